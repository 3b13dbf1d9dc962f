#!/usr/bin/env python3
"""Runs what the manifests say in the image: two nodes with their init containers and daemons, then the trainers.

usage: image.py WORK IMAGE
WORK has buildah's storage, and the manifests in JSON (documents.py).  Called by run.sh.
"""
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../support"))
from ports import free_ports  # noqa: E402

WORK, IMAGE = sys.argv[1:]
RUN_S, READY_S = 600, 60
STEPS = 20
# Those that buildah gives; to drop "ALL" drops what is added, too.
CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID",
                "SYS_CHROOT", "AUDIT_WRITE"]
with open(f"{WORK}/documents", encoding="utf-8") as documents:
    MANIFESTS = {(d["kind"], d["metadata"]["name"]): d for d in json.load(documents)}
POD = MANIFESTS["DaemonSet", "zerod"]["spec"]["template"]["spec"]
JOB = MANIFESTS["Job", "example"]["spec"]["template"]["spec"]
KEYS = {name: secrets.token_hex(32) for name in ("link", "http")}
checks = []


def check(what, holds):
    assert holds, what
    checks.append(what)
    print(f"kubernetes: {what}", flush=True)


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def buildah(*arguments):
    return ["buildah", "--root", f"{WORK}/storage", "--runroot", f"{WORK}/run", *arguments]


def said(*arguments):
    return subprocess.run(buildah(*arguments), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RUN_S, check=True).stdout.strip()


def below(pid):
    """All processes that came of one: number and name."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{parent}/task"):
                found += [int(child) for child in read(f"/proc/{parent}/task/{task}/children").split()]
            yield parent, read(f"/proc/{parent}/comm").strip()


class Node:
    """A node's directories, and one container of the image for all that runs on it."""

    def __init__(self, top, name, ports):
        self.name, self.directory, (self.port, self.http) = name, f"{top}/{name}", ports
        self.container, self.process, self.processes = said("from", IMAGE), None, []
        self.peers = ""

    def place(self, volume):
        """The directory that stands for a volume, with what the kubelet puts there."""
        path = f"{self.directory}/{volume['name']}"
        if os.path.isdir(path):
            return path
        os.makedirs(path)
        files = {"secret": KEYS, "config": MANIFESTS["ConfigMap", "zerod"]["data"]}.get(volume["name"], {})
        for name, text in files.items():
            with open(f"{path}/{name}", "w", encoding="utf-8") as f:
                f.write(text)
            if "secret" in volume:
                os.chown(f"{path}/{name}", 0, POD["securityContext"]["fsGroup"])
                os.chmod(f"{path}/{name}", volume["secret"]["defaultMode"])
        if "emptyDir" in volume:
            os.chmod(path, 0o777)
        return path

    def mount(self, mount, volumes):
        claim = volumes[mount["name"]].get("persistentVolumeClaim")
        volume = next(v for v in POD["volumes"] if v["name"] == ("run" if claim else mount["name"]))
        return f"{self.place(volume)}:{mount['mountPath']}:{'ro' if mount.get('readOnly') else 'rw'}"

    def command(self, spec, container, words=None, user=None, **environment):
        """What runs a container of the pod, or other words in its place."""
        context = {**spec["securityContext"], **container["securityContext"]}
        fields = {"spec.nodeName": self.name, "status.hostIP": "127.0.0.1", "metadata.name": f"pod-on-{self.name}"}
        values = {e["name"]: e.get("value") or fields.get(e["valueFrom"]["fieldRef"]["fieldPath"]) for e in container.get("env", [])}
        options = ["--isolation", "oci", "--runtime", "runc", "--network", "host" if spec.get("hostNetwork") else "none",
                   "--pid", "host" if spec.get("hostPID") else "container", "--user", user or "{runAsUser}:{runAsGroup}".format(**context)]
        kept = context["capabilities"].get("add", [])
        options += [o for c in CAPABILITIES if c not in kept for o in ("--cap-drop", f"CAP_{c}")]
        options += [o for name, value in {**values, **environment}.items() for o in ("--env", f"{name}={value}")]
        volumes = {v["name"]: v for v in spec["volumes"]}
        options += [o for m in container["volumeMounts"] for o in ("--volume", self.mount(m, volumes))]
        return buildah("run", *options, self.container, "--", *(words or container.get("command", []) + container.get("args", [])))

    def run(self, *arguments, **named):
        return subprocess.run(self.command(*arguments, **named), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=RUN_S, check=False)

    def own(self):
        """Two nodes share this machine's addresses, so the ports are not those of the manifests."""
        return {"ZEROD_PEERS": self.peers, "ZEROD_HTTP": f"127.0.0.1:{self.http}"}

    def start(self):
        for container in POD["initContainers"]:
            done = self.run(POD, container, **(self.own() if "env" in container else {}))
            assert done.returncode == 0, (container["name"], done)
        with open(f"{self.directory}/log", "ab") as log:
            self.process = subprocess.Popen(self.command(POD, POD["containers"][0], self.entry(), **self.own()),
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.processes.append(self.process)

    @staticmethod
    def entry():
        return json.loads(said("inspect", "--type", "image", IMAGE))["OCIv1"]["config"]["Entrypoint"]

    def daemon(self):
        """Its process, below those of buildah."""
        found = [pid for pid, name in below(self.process.pid) if name == "zerod"]
        assert found, f"no daemon on {self.name}"
        return found[0]

    def stop(self):
        os.kill(self.daemon(), signal.SIGTERM)
        assert self.process.wait(READY_S) == 0

    def get(self, path, **headers):
        with contextlib.suppress(ConnectionError, urllib.error.URLError):
            try:
                with urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{self.http}{path}", headers=headers), timeout=10) as r:
                    return r.status
            except urllib.error.HTTPError as e:
                return e.code
        return 0

    def wait_ready(self):
        probe = POD["containers"][0]["readinessProbe"]["httpGet"]["path"]
        end = time.monotonic() + READY_S
        while self.get(probe) != 200 or self.zeroctl("ping").returncode:
            assert self.process.poll() is None and time.monotonic() < end, (self.get(probe), self.zeroctl("ping"))
            time.sleep(0.2)

    def zeroctl(self, *words, user=None):
        return self.run(POD, POD["containers"][0], ["zeroctl", *words], user=user)

    def status(self):
        return json.loads(self.zeroctl("--json", "status").stdout)

    def versions(self):
        return {job["job"]: job["version"] for job in self.status()["jobs"]}

    def trainer(self, rank):
        container = JOB["containers"][0]
        self.processes.append(subprocess.Popen(
            self.command(JOB, container, [*container["command"], "--steps", str(STEPS)], RANK=rank), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return self.processes[-1]


def status_of(pid):
    return dict(line.split(":\t", 1) for line in read(f"/proc/{pid}/status").splitlines())


def daemons(nodes):
    for node in nodes:
        node.start()
    for node in nodes:
        node.wait_ready()
    check("init containers prepare the nodes; daemons start and reach each other", True)
    user = str(POD["securityContext"]["runAsUser"])
    for node in nodes:
        status = status_of(node.daemon())
        assert set(status["Uid"].split()) == {user} and int(status["CapEff"], 16) == 0, status
    check(f"daemons are user {user}, without capabilities", True)
    answers = [nodes[0].get("/healthz"), nodes[0].get("/readyz"), nodes[0].get("/metrics"),
               nodes[0].get("/metrics", Authorization=f"Bearer {KEYS['http']}")]
    check("probes need no token, metrics do", answers == [200, 200, 401, 200])
    health = json.loads(said("inspect", "--type", "image", IMAGE))["Docker"]["config"]["Healthcheck"]["Test"]
    done = nodes[0].run(POD, POD["containers"][0], health[1:])
    check("the image's HEALTHCHECK passes", health[0] == "CMD" and done.returncode == 0)


def process_of_rank(node):
    """The name of the process that the daemon sees at the other end of a rank's socket."""
    end = time.monotonic() + READY_S
    while True:
        status = node.status()
        for rank in [*status["attaching"], *(session for job in status["jobs"] for session in job["sessions"])]:
            return read(f"/proc/{rank['pid']}/comm").strip()
        assert time.monotonic() < end, status


def trainers(nodes):
    ranks = [nodes[0].trainer(0)]  # waits for the other
    check("a daemon sees the process of a trainer in another pod", process_of_rank(nodes[0]) == JOB["containers"][0]["command"][0])
    ranks += [nodes[1].trainer(1)]
    texts = [rank.communicate(timeout=RUN_S)[0] for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), texts
    check(f"two trainers of user {JOB['securityContext']['runAsUser']} train {STEPS} steps over a mount that is read-only",
          nodes[0].versions() == {"example": STEPS})
    done = nodes[0].zeroctl("drop", "example", user="10002:10002")
    check("another user may not drop their job", done.returncode != 0 and nodes[0].versions() == {"example": STEPS})


def pods_anew(nodes):
    for node in nodes:
        node.stop()
    for node in nodes:
        node.start()
    for node in nodes:
        node.wait_ready()
    check("pods that replace these find the states", nodes[0].versions() == {"example": STEPS})


def main():
    top = tempfile.mkdtemp(prefix="zerod-kubernetes.", dir="/dev/shm")
    nodes = []
    try:
        ports = free_ports(4)
        nodes += [Node(top, name, pair) for name, pair in (("node-a", ports[:2]), ("node-b", ports[2:]))]
        for node in nodes:
            node.peers = " ".join(f"{n.name}=127.0.0.1:{n.port}" for n in nodes)
        daemons(nodes)
        trainers(nodes)
        pods_anew(nodes)
        for node in nodes:
            node.stop()
    except BaseException:
        for node in nodes:
            with contextlib.suppress(OSError):
                print("---", node.name, *read(f"{node.directory}/log").splitlines()[-20:], sep="\n")
        raise
    finally:
        # the programs in the containers: buildah ends with them
        for pid in [pid for node in nodes for process in node.processes for pid, name in below(process.pid) if name.startswith("zerod")]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for process in [process for node in nodes for process in node.processes]:
            process.wait(READY_S)
        subprocess.run(["rm", "-rf", "--", top], check=False)
    print(f"kubernetes: {len(checks)} checks passed")


if __name__ == "__main__":
    main()
