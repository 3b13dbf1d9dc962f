#!/usr/bin/env python3
"""deploy/kubernetes and deploy/container: known to Kubernetes and to zerod, and in agreement with each other and with the units.
run.sh builds and runs the image."""
import functools
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import REPLY_S, Tools  # noqa: E402
from harness import Skip, case, main  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "../.."))
VERSIONS = "1.28,1.37"
UNITS = {"M": 1 << 20, "G": 1 << 30, "Mi": 1 << 20, "Gi": 1 << 30}


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def bytes_of(text):
    number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()
    return int(number) * UNITS[unit]


@functools.cache
def documents(*options):
    python = os.environ.get("TESTS_PYTHON_TYPES")
    if not python:
        raise Skip("no Python with kubernetes-validate: set TESTS_PYTHON_TYPES to one that has what deploy/python-requirements-types "
                   "names; tests/run.sh makes one")
    done = subprocess.run([python, "-B", f"{HERE}/documents.py", *options, *sorted(glob.glob(f"{ROOT}/deploy/kubernetes/*.yaml"))],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=REPLY_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def the(kind, name="zerod"):
    found = [d for d in documents() if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    assert len(found) == 1, (kind, name)
    return found[0]


def pod():
    return the("DaemonSet")["spec"]["template"]["spec"]


def containers():
    return {c["name"]: c for c in pod()["initContainers"] + pod()["containers"]}


def daemon():
    return containers()["zerod"]


def ports():
    return {p["name"]: p["containerPort"] for p in daemon()["ports"]}


def text_of_conf():
    return the("ConfigMap")["data"]["zerod.conf"]


def conf():
    return dict(re.findall(r"^(\w+) = (.*)$", text_of_conf(), re.MULTILINE))


def peers():
    return dict(peer.split("=") for peer in conf()["peers"].split())


def mounts(container):
    """{path in the container: volume}."""
    volumes = {v["name"]: v for v in pod()["volumes"]}
    return {m["mountPath"]: volumes[m["name"]] for m in container["volumeMounts"]}


def directories():
    """Those of the node that zerod writes to."""
    c = conf()
    return {os.path.dirname(c["socket"]), c["state_dir"], c["membership_dir"], c["log_dir"]}


@case
def kubernetes_knows_all_of_it():
    assert {d["kind"] for d in documents("--check", VERSIONS)} >= {"DaemonSet", "ConfigMap", "NetworkPolicy", "PodMonitor", "Job"}


@case
def pod_monitor_scrapes_the_port_with_the_token():
    monitor = the("PodMonitor")
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1" and set(monitor) == {"apiVersion", "kind", "metadata", "spec"}
    assert monitor["spec"] == {"selector": the("DaemonSet")["spec"]["selector"], "podMetricsEndpoints": [
        {"port": "http", "path": "/metrics", "honorLabels": True,
         "authorization": {"type": "Bearer", "credentials": {"name": "zerod", "key": os.path.basename(conf()["http_token_file"])}}}]}
    assert "http" in ports() and '{ "/metrics", HTTP_METRICS }' in read("daemon/face/http/request.c")


@case
def zerod_takes_the_configuration():
    """With the variables of the DaemonSet, as the kubelet fills them in; keys as the Secret's command makes them."""
    node, address = next((name, place.rsplit(":", 1)[0]) for name, place in peers().items())
    filled = {"spec.nodeName": node, "status.hostIP": address}
    environment = {e["name"]: e["value"] if "value" in e else filled[e["valueFrom"]["fieldRef"]["fieldPath"]] for e in daemon()["env"]}
    environment = {k: v.replace("$(HOST_IP)", address) for k, v in environment.items()}
    assert containers()["keys"]["env"] == daemon()["env"]
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        text = text_of_conf()
        for option in ("key_file", "http_token_file"):
            text = text.replace(conf()[option], f"{directory}/{option}")
            with open(f"{directory}/{option}", "w", encoding="ascii", opener=lambda p, f: os.open(p, f, 0o600)) as f:
                f.write("17" * 32)
        with open(f"{directory}/zerod.conf", "w", encoding="ascii") as f:
            f.write(text + "user = root\n")
        done = subprocess.run([Tools.zerod, "--config", f"{directory}/zerod.conf", "--check"], env={**os.environ, **environment},
                              capture_output=True, text=True, timeout=REPLY_S, check=False)
    assert done.returncode == 0 and f"; {len(peers())} nodes, one key; the configuration is good" in done.stdout, done
    assert f"http = {address}:{ports()['http']}" in done.stdout and f"node = {node}" in done.stdout


@case
def directories_are_the_nodes_and_belong_to_zerod():
    prepared = " ".join(containers()["directories"]["args"])
    for container in (daemon(), containers()["directories"]):
        assert directories() <= set(mounts(container))
        for path in directories():
            assert mounts(container)[path]["hostPath"] == {"path": path, "type": "DirectoryOrCreate"}
            assert not any(m.get("readOnly") for m in container["volumeMounts"] if m["mountPath"] == path)
    owner, owned = re.search(r"chown (\S+) (.*)", prepared).groups()
    assert set(owned.split()) == directories() == {p for m in re.findall(r"chmod \d+ (.*)", prepared) for p in m.split()}
    assert owner == "{runAsUser}:{runAsGroup}".format(**pod()["securityContext"])


@case
def directories_are_those_of_the_unit_and_the_image():
    unit = dict(re.findall(r"^(StateDirectory|LogsDirectory|ReadWritePaths|Environment)=(.*)$", read("systemd/zerod.service.in"), re.MULTILINE))
    socket = re.search(r"^ListenStream=(.*)$", read("systemd/zerod.socket"), re.MULTILINE)[1]
    state, logs = f"/var/lib/{unit['StateDirectory']}", f"/var/log/{unit['LogsDirectory']}"
    assert directories() == {os.path.dirname(socket), unit["ReadWritePaths"], state, logs} and conf()["socket"] == socket
    image = read("deploy/container/Containerfile")
    assert f"ENV STATE_DIRECTORY={state} LOGS_DIRECTORY={logs} {unit['Environment']}\n" in image
    made = dict(re.findall(r"(/[\w/]+):(\d+)", re.search(r"for dir in (.*); do", image)[1]))
    assert set(made) == directories() - {conf()["state_dir"]}, made  # a tmpfs is over that one


@case
def keys_are_copied_from_the_secret():
    keys = containers()["keys"]
    names = re.search(r"for key in (.*); do", keys["args"][0])[1].split()
    there = [v["emptyDir"]["medium"] for p, v in mounts(daemon()).items() if "emptyDir" in v and p == os.path.dirname(conf()["key_file"])]
    assert there == ["Memory"]
    assert [conf()["key_file"], conf()["http_token_file"]] == [f"/run/zerod-keys/{n}" for n in names]
    assert mounts(keys)["/run/zerod-secret"]["secret"]["secretName"] == "zerod"
    command = re.search(r"kubectl -n zerod create secret generic zerod (.*?)\nkubectl", read("deploy/kubernetes/README.md"), re.DOTALL)[1]
    assert re.findall(r"--from-literal=(\w+)=", command) == names


@case
def one_user_in_all_files():
    user = pod()["securityContext"]
    assert user["runAsUser"] == user["runAsGroup"] == user["fsGroup"] and user["runAsNonRoot"]
    for path in ("deploy/container/Containerfile", "deploy/container/README.md", "deploy/kubernetes/README.md"):
        assert set(re.findall(r"\b60\d{3}\b", read(path))) == {str(user["runAsUser"])}, path


@case
def only_one_container_has_privileges():
    for name, c in containers().items():
        context = c["securityContext"]
        assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"], **({"add": ["CHOWN", "FOWNER"]} if name == "directories" else {})}
        assert (context.get("runAsUser") == 0) == (name == "directories")
    assert pod()["hostNetwork"] and pod()["hostPID"] and "hostIPC" not in pod() and not pod()["enableServiceLinks"]


@case
def ports_agree():
    assert {int(place.rsplit(":", 1)[1]) for place in peers().values()} == {ports()["links"]}
    assert all(p["hostPort"] == p["containerPort"] for p in daemon()["ports"])
    assert f"EXPOSE {ports()['links']} {ports()['http']}\n" in read("deploy/container/Containerfile")
    policy = the("NetworkPolicy")["spec"]
    assert policy["podSelector"] == the("DaemonSet")["spec"]["selector"]
    assert {p["port"] for rule in policy["ingress"] for p in rule["ports"]} == set(ports())
    assert [p["port"] for rule in policy["egress"] for p in rule["ports"]] == [ports()["links"]]
    assert {d["metadata"].get("namespace", "zerod") for d in documents() if d["metadata"]["name"] == "zerod"
            and d["kind"] != "PersistentVolumeClaim"} == {"zerod"}


@case
def probes_ask_what_zerod_answers():
    routes = re.findall(r'\{ "(/\w*)", HTTP_', read("daemon/face/http/request.c"))
    for probe, path in (("startupProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert daemon()[probe]["httpGet"] == {"path": path, "port": "http"} and path in routes


@case
def the_probe_that_restarts_zerod_is_not_on_the_network():
    liveness = daemon()["livenessProbe"]
    program, option, seconds, subcommand = liveness["exec"]["command"]
    assert (program, option) == ("zeroctl", "--timeout") and int(seconds) < liveness["timeoutSeconds"]
    assert os.path.exists(os.path.join(ROOT, "client/zeroctl", f"{subcommand}.c"))
    assert re.search(r"^ +socket = (\S+)$", read("deploy/kubernetes/config.yaml"), re.MULTILINE)[1] in read("client/lib/connect.c")


@case
def times_are_those_of_the_unit():
    unit = dict(re.findall(r"^(Timeout\w+|Watchdog)Sec=(\d+)$", read("systemd/zerod.service.in"), re.MULTILINE))
    startup, liveness = daemon()["startupProbe"], daemon()["livenessProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == int(unit["TimeoutStart"])
    assert liveness["periodSeconds"] * liveness["failureThreshold"] == int(unit["Watchdog"])
    assert pod()["terminationGracePeriodSeconds"] == int(unit["TimeoutStop"])


@case
def states_fit_into_the_pod():
    for c in containers().values():
        assert c["resources"]["requests"] == c["resources"]["limits"], c["name"]
    limit = bytes_of(daemon()["resources"]["limits"]["memory"])
    beside = [bytes_of(conf()[name]) for name in ("memory_limit", "checkpoint_memory", "stash_limit")]
    assert sum(beside) < limit and bytes_of(conf()["base_limit"]) <= limit, beside


@case
def trainer_reaches_the_socket():
    volume, claim = the("PersistentVolume", "zerod-trainers")["spec"], the("PersistentVolumeClaim")
    assert volume["hostPath"] == {"path": os.path.dirname(conf()["socket"]), "type": "Directory"}
    assert volume["claimRef"] == {k: claim["metadata"][k] for k in ("namespace", "name")} and claim["spec"]["volumeName"] == "zerod-trainers"
    (key, value), = pod()["nodeSelector"].items()
    assert volume["nodeAffinity"]["required"]["nodeSelectorTerms"] == [
        {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}]
    job = the("Job", "example")
    assert job["metadata"]["namespace"] == claim["metadata"]["namespace"]
    spec = job["spec"]["template"]["spec"]
    trainer, = spec["containers"]
    assert spec["volumes"] == [{"name": "zerod", "persistentVolumeClaim": {"claimName": "zerod"}}]
    assert trainer["volumeMounts"] == [{"name": "zerod", "mountPath": volume["hostPath"]["path"], "readOnly": True}]
    assert trainer["command"][trainer["command"].index("--socket") + 1] == conf()["socket"]
    values = {e["name"]: e.get("value") for e in trainer["env"]}
    assert set(values) == {"RANK", "WORLD_SIZE", "POD_NAME"} and int(values["WORLD_SIZE"]) == job["spec"]["completions"]


@case
def trainer_is_what_a_restricted_namespace_takes():
    labels = the("Namespace", "zerod-trainers")["metadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": "restricted"}
    spec = the("Job", "example")["spec"]["template"]["spec"]
    context = spec["securityContext"]
    assert context["runAsNonRoot"] and context["runAsUser"] not in (0, pod()["securityContext"]["runAsUser"])
    assert context["seccompProfile"] == {"type": "RuntimeDefault"} and not any(k.startswith("host") for k in spec)
    for c in spec["containers"]:
        assert c["securityContext"]["capabilities"] == {"drop": ["ALL"]} and not c["securityContext"]["allowPrivilegeEscalation"]


@case
def image_has_one_name_and_the_version():
    version = subprocess.run([Tools.zerod, "--version"], capture_output=True, text=True, timeout=REPLY_S, check=True).stdout.split()[1]
    files = ["deploy/container/README.md", *sorted(glob.glob(f"{ROOT}/deploy/kubernetes/*.yaml"))]
    names = {n for path in files for n in re.findall(r"localhost/zerod:\S+", read(path))}
    assert names == {f"localhost/zerod:{version}"}
    assert f'org.opencontainers.image.version="{version}"' in read("deploy/container/Containerfile")


@case
def readme_has_every_manifest():
    named = set(re.findall(r"^\| `(\S+\.yaml)`", read("deploy/kubernetes/README.md"), re.MULTILINE))
    assert named == {os.path.basename(path) for path in glob.glob(f"{ROOT}/deploy/kubernetes/*.yaml")}


if __name__ == "__main__":
    main()
