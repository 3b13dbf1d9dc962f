"""A zerod cluster on loopback, and client processes that tests command.

Rules: every wait has a deadline; every process started here dies with the one that started
it; a cluster leaves no process, file or shared memory behind, whatever happened in it.
"""
import contextlib
import ctypes
import json
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time

import wire
from ports import free_ports

SLOW = int(os.environ.get("TESTS_SLOW", 1))  # factor of deadlines in builds with sanitizers
WAIT = min(SLOW, 2)  # factor of deadlines that a case lets pass
START_S = 60 * SLOW
REPLY_S = 120 * SLOW
SAVE_RATE = 64 << 20  # bytes a second: what a stop is allowed to write states with (node.c)
# default options of every daemon: "NAME=VALUE ..."
OPTIONS = dict(o.split("=", 1) for o in os.environ.get("TESTS_OPTIONS", "").split())
PR_SET_PDEATHSIG = 1
if "TMPDIR" not in os.environ and not tempfile.gettempdir().startswith("/dev/shm/"):
    tempfile.tempdir = "/dev/shm"  # states and checkpoints lie in memory
libc = ctypes.CDLL(None, use_errno=True)


class Tools:
    """Paths of the programs under test, set by harness.main()."""
    zerod = zeroctl = actor = gpt = None


class Refused(AssertionError):
    """An actor's command did not return OK."""

    def __init__(self, reply, what):
        super().__init__(f"{what}: {reply['status']}: {reply['text']}")
        self.reply = reply


def die_with_parent():
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def spawn(arguments, **options):
    return subprocess.Popen(arguments, preexec_fn=die_with_parent, **options)


def of_nodes(status, *names):
    """The findings about these nodes: the machine may have some of its own, as memory that is nearly full."""
    return [f for f in status["findings"] if any(n in f["found"] for n in names)]


def until(condition, seconds=START_S, what="the condition"):
    """Polls a condition until it is true; its value.  Polls less often the longer it takes, because many conditions
    start a process."""
    begin = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited = time.monotonic() - begin
        if waited > seconds:
            raise AssertionError(f"{what} did not come within {seconds} s")
        time.sleep(min(max(0.02, waited / 8), 0.1))


def crash_points():
    """The crash points that the daemon was built with (daemon/floor/base/crash.h)."""
    r = subprocess.run([Tools.zerod], env={**os.environ, "ZEROD_CRASH": "list"}, stdin=subprocess.DEVNULL,
                       capture_output=True, text=True, timeout=20, check=False)
    return r.stdout.split() if r.returncode == 0 else []


def ask_to_end(process):
    """Sends SIGTERM, and SIGCONT in case the process is stopped."""
    process.send_signal(signal.SIGCONT)
    process.terminate()


def ended_cleanly(process, seconds):
    """Whether the process exits with 0 in time; otherwise it is killed."""
    try:
        return process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False


def end_process(process, seconds):
    """Sends SIGTERM; whether the process exits with 0 in time."""
    if process.poll() is None:
        ask_to_end(process)
    return ended_cleanly(process, seconds)


class Actor:
    """A client process; see actor.c for its commands."""

    def __init__(self, socket_path, name="actor", stderr=None):
        self.socket, self.name, self.buffer, self.asked = socket_path, name, b"", []
        self.process = spawn([Tools.actor], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)

    @property
    def pid(self):
        return self.process.pid

    def start(self, do, **fields):
        """Sends a command; finish() returns its reply."""
        if do in ("connect", "churn"):
            fields.setdefault("socket", self.socket)
        self.asked.append(do)
        self.process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
        self.process.stdin.flush()

    def ready(self, seconds=0):
        """Waits at most this long for a reply; whether there is one."""
        end = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            left = max(0, end - time.monotonic())
            if not select.select([self.process.stdout], [], [], left)[0]:
                return False
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                raise AssertionError(f"{self.name} ended during '{self.asked[0]}', status {self.process.wait()}")
            self.buffer += data
        return True

    def finish(self, seconds=REPLY_S):
        """The reply of the oldest command, whatever its status."""
        if not self.ready(seconds):
            raise AssertionError(f"{self.name}: no answer to '{self.asked[0]}' in {seconds} s")
        line, self.buffer = self.buffer.split(b"\n", 1)
        self.asked.pop(0)
        return json.loads(line)

    def ask(self, do, **fields):
        self.start(do, **fields)
        return self.finish()

    def do(self, do, **fields):
        """ask(), which must return OK."""
        return self.good(self.ask(do, **fields), do)

    def good(self, reply, what="command"):
        if reply["status"] != "OK":
            raise Refused(reply, f"{self.name}: {what}")
        return reply

    def refused(self, status, do, *words, **fields):
        """ask(), which must return this status and a text with these words."""
        return expect(self.ask(do, **fields), status, *words)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self):
        os.kill(self.pid, signal.SIGCONT)

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


def expect(reply, status, *words):
    assert reply["status"] == status, f"{status} was expected, got {reply}"
    for word in words:
        assert word in reply["text"], f"'{word}' is not in the error's text: {reply}"
    return reply


def finish_all(actors):
    """All actors' replies; all must be OK."""
    return [a.good(a.finish(), a.name) for a in actors]


class Daemon:
    """wrapper: a command that execs the daemon, such as nsenter."""

    def __init__(self, name, directory, port, options, wrapper=()):
        self.name, self.directory, self.port, self.options = name, directory, port, options
        self.wrapper = wrapper
        self.socket = f"{directory}/{name}.sock"
        self.config = f"{directory}/{name}.conf"
        self.log_path = f"{directory}/{name}.log"
        self.process = None

    def configure(self):
        with open(self.config, "w", encoding="utf-8") as f:
            f.write("[zerod]\n")
            for key, value in self.options.items():
                f.write(f"{key} = {value}\n")

    def start(self, wrapper=(), crash=None, pass_fds=()):
        """crash: the crash point at which the daemon dies (daemon/floor/base/crash.h)."""
        self.configure()
        environment = {**os.environ, "ZEROD_CRASH": crash} if crash else None
        with open(self.log_path, "ab") as log:
            self.process = spawn([*self.wrapper, *wrapper, Tools.zerod, "--config", self.config],
                                 stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, pass_fds=pass_fds)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def restart(self, crash=None):
        """Kills the daemon and starts it again at once; does not wait until it is up."""
        self.kill()
        self.start(crash=crash)

    def stop(self):
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self):
        os.kill(self.process.pid, signal.SIGCONT)

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def ends_cleanly(self):
        """Whether the daemon, which was told to end, does so in time: it may write states from GPUs to files first."""
        try:
            self.process.wait(15 * SLOW)
        except subprocess.TimeoutExpired:
            pass
        left = sum(int(n) for n in re.findall(r"writing (\d+) bytes of states from GPU memory", self.log())[-1:])
        return ended_cleanly(self.process, left / SAVE_RATE * SLOW)

    def ctl_run(self, *arguments, user=None):
        """Runs zeroctl, as that user; a subprocess.CompletedProcess."""
        return subprocess.run([Tools.zeroctl, "--socket", self.socket, *arguments], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=REPLY_S, check=False, user=user)

    def ctl(self, *arguments):
        """Runs zeroctl --json, which must succeed; its answer."""
        r = self.ctl_run("--json", *arguments)
        assert r.returncode == 0, f"zeroctl {' '.join(arguments)} on {self.name}: {r.returncode}: {r.stderr}"
        return json.loads(r.stdout)

    def change_owners(self, command, node):
        """Runs add-node or remove-node; its answer.  Asks again while the node starts anew with other owners.
        Jobs may still be moving when this returns."""
        anew = "about to restart", "connection to zerod is closed", "is not reachable from here"

        def answer():
            r = self.ctl_run("--json", "--no-wait", command, node)
            assert r.returncode == 0 or any(why in r.stderr for why in anew), f"{self.name}: {command}: {r.stderr}"
            return r.stdout
        return json.loads(until(answer, what=f"{command} {node}"))

    def query(self, *what):
        """What `zeroctl --json` with these words answers, and None; or None, and why there is no answer.  Asks by a
        connection of this process: to start zeroctl takes twenty times as long."""
        try:
            with contextlib.closing(wire.Raw(self.socket, REPLY_S)) as raw:
                status, text, fields = raw.hello(timeout_ms=REPLY_S * 1000)
                if status == wire.OK:
                    status, text, fields = raw.ask("query", dict(enumerate(what, 1)))
        except (OSError, EOFError) as error:
            return None, str(error)
        if status == wire.OK:
            return json.loads(wire.decode(fields[9][0])[1][0]), None
        if status != wire.EVERSION:
            return None, text
        r = self.ctl_run("--json", *what)  # of the release before, as the daemon is
        return (json.loads(r.stdout), None) if r.returncode == 0 else (None, r.stderr)

    def status(self):
        return self.query("status")[0] or self.ctl("status")  # which waits for a daemon that starts

    def job(self, name):
        for job in self.status()["jobs"]:
            if job["job"] == name:
                return job
        return None

    def peers_up(self):
        status, _ = self.query("status")
        if not status:
            assert self.alive(), f"daemon {self.name} ended"
            return False
        return all(p["self"] or p["up"] for p in status["peers"])

    def memory(self):
        """Resident memory in KiB."""
        return resident(self.process.pid)

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def mappings(self):
        """Number of the daemon's mappings of memory that it shares with clients."""
        return mappings(self.process.pid)

    def state_files(self):
        return sorted(os.listdir(self.options["state_dir"]))


def mappings(pid):
    with open(f"/proc/{pid}/maps", encoding="utf-8") as f:
        return sum("memfd:zerod" in line for line in f)


def descriptors(pid):
    """{path: what is open there} of a process, without what it closes meanwhile."""
    found = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        with contextlib.suppress(FileNotFoundError):
            found[path] = os.readlink(path)
    return found


def resident(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        for line in f:
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    raise AssertionError(f"process {pid} has no memory")


class Cluster:
    """N daemons with each other as peers.  owners: how many of them hold shards (0: all), or
    their names.  network: a Network (network.py) in place of loopback."""

    def __init__(self, nodes=1, owners=0, start=True, per_node=None, network=None, **options):
        self.network = network
        self.directory = tempfile.mkdtemp(prefix="zerod-test-")
        os.chmod(self.directory, 0o755)
        self.actors, self.others, self.unclean, self.daemons = [], [], [], []
        try:
            self.configure(nodes, owners, options, per_node or {})
            if start:
                self.start()
        except BaseException:
            self.show()
            self.end()
            raise

    def configure(self, nodes, owners, options, per_node):
        names = [f"n{i}" for i in range(nodes)]
        numbers = free_ports(nodes)
        self.key_file = f"{self.directory}/key"
        self.write_key(self.key_file)
        hosts = [self.network.address(i) if self.network else "127.0.0.1" for i in range(nodes)]
        for i, name in enumerate(names):
            o = {"node": name, "socket": f"{self.directory}/{name}.sock",
                 "state_dir": f"{self.directory}/{name}.state", "membership_dir": f"{self.directory}/{name}.votes",
                 "log_dir": f"{self.directory}/{name}.traces", "threads": 1, "user": "root", "http": ""}
            if nodes > 1:
                o["peers"] = " ".join(f"{n}={h}:{p}" for n, h, p in zip(names, hosts, numbers))
                o["key_file"] = self.key_file
            if owners:
                o["owners"] = " ".join(names[:owners]) if isinstance(owners, int) else owners
            o.update(OPTIONS)
            o.update(options)
            o.update(per_node.get(i, {}))
            self.daemons.append(Daemon(name, self.directory, numbers[i], o,
                                       self.network.wrapper(i) if self.network else ()))

    @staticmethod
    def write_key(path, key=None):
        with open(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w", encoding="ascii") as f:
            f.write(key or os.urandom(32).hex())

    def start(self):
        for d in self.daemons:
            d.start()
        self.wait_up()

    def wait_up(self):
        """Waits until all daemons run and reach each other."""
        for d in self.daemons:
            until(d.peers_up, what=f"readiness of daemon {d.name}")

    def coordinator(self, job):
        """The daemon that coordinates a job; FNV-1a, as in job.c."""
        h = 14695981039346656037
        for byte in job.encode():
            h = (h ^ byte) * 1099511628211 % 2**64
        listed = self.daemons[0].options.get("owners", "").split() or [d.name for d in self.daemons]
        owners = [name for name, _, n in (w.partition("*") for w in listed) for _ in range(int(n or 1))]
        return next(d for d in self.daemons if d.name == owners[(h >> 32) % len(owners)])

    def __getitem__(self, i):
        return self.daemons[i]

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind and not issubclass(kind, KeyboardInterrupt):
            self.show()
        self.end()
        if not kind:
            assert not self.unclean, f"daemons that did not end cleanly: {'; '.join(self.unclean)}"

    def show(self):
        for d in self.daemons:
            if os.path.exists(d.log_path):
                print(f"# --- log of {d.name}")
                for line in d.log().splitlines()[-40:]:
                    print("# " + line)

    def end(self):
        for a in self.actors:
            a.end()
        for p in self.others:
            end_process(p, 5)
        for d in self.daemons:  # all at once: links end in any order
            if d.alive():
                ask_to_end(d.process)
        for d in self.daemons:
            if d.process is None or d.process.returncode == -signal.SIGKILL:
                continue
            if not d.ends_cleanly():
                self.unclean.append(f"{d.name}: status {d.process.returncode}: {d.log()[-2000:]}")
        if self.network:
            self.network.end()
        shutil.rmtree(self.directory, ignore_errors=True)

    def dismiss(self, actor):
        """Ends an actor that the case needs no longer."""
        actor.end()
        self.actors.remove(actor)

    def actor(self, node=0, name=None, stderr=None):
        a = Actor(self.daemons[node].socket, name or f"actor {len(self.actors)} on n{node}", stderr)
        self.actors.append(a)
        return a

    def caller(self, job, layout, placement, rank, timeout_ms=60000 * SLOW, incarnation=0, stderr=None):
        """An actor that connects as this rank; the caller collects two replies."""
        node = placement[rank]
        a = self.actor(node, f"rank {rank} of {job}", stderr)
        a.start("connect", job=job, rank=rank, world=len(placement), local=placement.count(node),
                timeout_ms=timeout_ms, incarnation=incarnation)
        a.start("layout", groups=layout)
        return a

    def rank(self, job, layout, placement, rank, timeout_ms=60000 * SLOW, incarnation=0, **needs):
        """An actor that connects and attaches as this rank; the caller collects three replies."""
        a = self.caller(job, layout, placement, rank, timeout_ms, incarnation)
        a.start("attach", **needs)
        return a

    def ranks(self, job, layout, placement, timeout_ms=60000 * SLOW, incarnation=0, **needs):
        """One attached actor for each rank; placement: the node of each rank.  All connect before the first one
        attaches, so that a short deadline does not pass while the others start."""
        actors = [self.caller(job, layout, placement, rank, timeout_ms, incarnation) for rank in range(len(placement))]
        for a in actors:
            finish_all([a]), finish_all([a])
        for a in actors:
            a.start("attach", **needs)
        finish_all(actors)
        return actors

    def checksum(self, job):
        """The job's checksum, which must be the same from every node; waits for nodes that are not up yet."""
        said = {}

        def answer(daemon):
            said[daemon] = daemon.query("checksum", job)
            return said[daemon][0]
        for d in self.daemons:
            try:
                until(lambda d=d: answer(d))
            except AssertionError:
                raise AssertionError(f"checksum of {job} on {d.name}: {said[d][1]}") from None
        sums = {json.dumps(sum_, sort_keys=True) for sum_, _ in said.values()}
        assert len(sums) == 1, f"nodes return different checksums: {sums}"
        return json.loads(sums.pop())


# ---- layouts and steps ---------------------------------------------------------

def tensor(name, *shape, **more):
    return {"name": name, "shape": list(shape), "init": "normal", "value": 0.5, "seed": sum(name.encode()), **more}


def group(name, *tensors, dtype="fp32", **more):
    return {"name": name, "dtype": dtype, "tensors": list(tensors), **more}


def small_layout(dtype="fp32", blocks=3, width=64):
    """A few blocks with matrices, biases of another set, odd sizes and a frozen tensor."""
    groups = [group("embed", tensor("wte", 37, width), tensor("wpe", 11, width, frozen=True), dtype=dtype)]
    for i in range(blocks):
        groups.append(group(f"block{i}", tensor(f"b{i}.w", width, 3 * width + 5), tensor(f"b{i}.b", 3 * width + 5, set=1),
                            tensor(f"b{i}.one", 1, set=1), tensor(f"b{i}.none", 0, 4), dtype=dtype))
    groups.append(group("head", tensor("head", width, 129), tensor("scale", set=1), dtype=dtype))
    return groups


SETS = [[1e-2, 0.9, 0.99, 1e-8, 0.1], [1e-2, 0.9, 0.99, 1e-8, 0.0]]
MUON_SETS = [["muon", 2e-2, 0.95, 0.1, 1, 0], ["muon", 1e-2, 0.9, 0.0, 0, 1]]  # lr, momentum, decay, nesterov, adjust_lr


def muon_layout(dtype="fp32", blocks=3, width=64):
    """Blocks with matrices of Muon in several shapes, a fused one and stacks, beside vectors and embeddings of AdamW."""
    def matrix(name, *shape, at=0, **more):
        return tensor(name, *shape, set=len(SETS) + at, optimizer="muon", **more)
    groups = [group("embed", tensor("wte", 37, width), tensor("wpe", 11, width, frozen=True), dtype=dtype)]
    for i in range(blocks):
        groups.append(group(
            f"block{i}", tensor(f"b{i}.norm", width, set=1),
            matrix(f"b{i}.qkv", 3 * width + 8, width, rows=[width, width, width + 8]), tensor(f"b{i}.bias", 3 * width + 5, set=1),
            matrix(f"b{i}.up", width, 4 * width + 3), matrix(f"b{i}.down", 4 * width + 3, width, at=1),
            matrix(f"b{i}.experts", 5, width, 2 * width), matrix(f"b{i}.odd", 2, 3, 7, 5, at=1), matrix(f"b{i}.none", 0, 4),
            dtype=dtype))
    groups.append(group("head", tensor("head", width, 129), tensor("scale", set=1), dtype=dtype))
    return groups


def step_all(actors, **fields):
    fields.setdefault("sets", SETS)
    for a in actors:
        a.start("step", **fields)
    return finish_all(actors)


def push_all(actor, groups, **fields):
    """Pushes a gradient for each of the first groups."""
    for g in range(groups):
        actor.do("grad", group=g, **fields)
        actor.do("push", group=g)
