"""Ranks of a training job in PyTorch: processes forked from one that has imported torch.

A suite imports this file first: that starts the suite again under $TESTS_PYTHON, a Python that has
PyTorch, with the zerod package of this checkout and the libzero of the build tree under test.  Without that
variable the whole suite is skipped, and says why.

Rules: the parent has one thread and never runs autograd, because neither survives a fork; everything
that computes is a rank, or runs in one by alone().  Every rank has a deadline and dies with the
parent.  When a rank fails, the others are ended, and its traceback is the case's error.
"""
import faulthandler
import gc
import itertools
import os
import pickle
import random
import selectors
import shutil
import signal
import sys
import tempfile
import time
import traceback

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
CLIENT = os.path.join(ROOT, "client/python")
LEFT_OUT = 77  # what meson takes for "skipped"
WHY = "no Python with PyTorch: set TESTS_PYTHON to one that has what deploy/python-requirements " \
      "names; tests/run.sh makes one"


def leave_out(why):
    print(f"[SKIP] {why}", flush=True)
    sys.exit(LEFT_OUT)


def enter():
    """Starts the suite again under $TESTS_PYTHON, unless that runs it already."""
    python = os.environ.get("TESTS_PYTHON")
    if not python:
        leave_out(os.environ.get("TESTS_PYTHON_MISSING") or WHY)
    if os.environ.get("TESTS_PYTHON_ENTERED") != python:
        paths = [CLIENT, *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ.update(TESTS_PYTHON_ENTERED=python, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1",
                          PYTHONPATH=os.pathsep.join(paths), TOKENIZERS_PARALLELISM="false",
                          HF_HUB_OFFLINE="1", TORCHINDUCTOR_CACHE_DIR=tempfile.mkdtemp(),
                          TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS="0",  # they would lie outside of that directory
                          TORCHINDUCTOR_VEC_ISA_OK="0")  # a third of the compiler's time
        if len(sys.argv) > 1:  # .../daemon/zerod of the build tree
            tree = os.path.dirname(os.path.dirname(os.path.abspath(sys.argv[1])))
            os.environ.setdefault("ZEROD_LIBRARY", f"{tree}/client/lib/libzero.so.0")
        sys.stdout.flush()
        os.execv(python, [python, "-B", *sys.argv])


enter()
sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), CLIENT]

LIBRARY = os.environ.get("ZEROD_LIBRARY", "")

gc.disable()  # a fifth of the time that it takes to import them

sys.modules["triton"] = None  # no suite needs it; at its end it names all that collecting has not freed
import torch  # noqa: E402
import torch._dynamo  # noqa: E402 F401  # otherwise each rank that uses checkpointing or DDP spends a second on it

import forks  # noqa: E402
import harness  # noqa: E402
from cluster import SLOW, Cluster, die_with_parent  # noqa: E402

gc.freeze()  # forks that collect, as every python does at its end, would copy all of it
gc.enable()
torch.set_num_threads(1)
if "TESTS_FORKS" not in os.environ:
    forks.start(os.environ["TORCHINDUCTOR_CACHE_DIR"])

DEADLINE_S = 240 * SLOW
GRACE_S = 3  # for the other ranks, once one has failed
jobs = itertools.count()


class RankFailed(AssertionError):
    """A rank raised, or ended by itself."""


class Died(Exception):
    """A rank ended without a result; status: as subprocess returns it."""

    def __init__(self, status):
        super().__init__(f"ended with status {status}")
        self.status = status


class Process:
    """One forked rank.  outcome: None while the rank runs, then ("value", result), ("error", traceback)
    or ("died", status)."""

    def __init__(self, name, function, arguments, environment):
        self.name, self.outcome, self.data = name, None, bytearray()
        self.stacks = tempfile.TemporaryFile()
        self.pipe, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        gc.freeze()
        self.pid = os.fork()
        if self.pid == 0:
            self.child(parent, writer, function, arguments, environment)
        os.close(writer)

    def child(self, parent, writer, function, arguments, environment):
        """Never returns."""
        status = 1
        try:
            die_with_parent()
            if os.getppid() != parent:
                os._exit(1)
            os.close(self.pipe)
            faulthandler.register(signal.SIGUSR1, self.stacks, all_threads=True)
            for name, value in environment.items():
                os.environ[name] = str(value)
            random.seed(0)
            try:
                said = pickle.dumps(("value", function(*arguments)))
                status = 0
            except Exception:  # pylint: disable=broad-except
                said = pickle.dumps(("error", traceback.format_exc()))
            with os.fdopen(writer, "wb") as out:
                out.write(said)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)

    def read(self):
        """Reads from the pipe; at its end, sets the outcome."""
        data = os.read(self.pipe, 1 << 20)
        self.data += data
        if not data:
            self.reap()

    def reap(self):
        if self.outcome is None:
            _, status = os.waitpid(self.pid, 0)
            try:
                self.outcome = pickle.loads(self.data)
            except (EOFError, pickle.UnpicklingError):
                self.outcome = ("died", os.waitstatus_to_exitcode(status))
            os.close(self.pipe)

    def stack(self):
        """The rank's stack, if the rank writes it within a second."""
        os.kill(self.pid, signal.SIGUSR1)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            text = os.pread(self.stacks.fileno(), 1 << 16, 0).decode(errors="replace")
            if text.endswith("\n"):
                return text
            time.sleep(0.02)
        return "(no stack)"

    def kill(self):
        if self.outcome is None:
            os.kill(self.pid, signal.SIGKILL)
            self.reap()

    def value(self):
        kind, what = self.outcome
        if kind == "value":
            return what
        if kind == "died":
            raise Died(what)
        raise RankFailed(f"{self.name} raised\n{what}")


class Ranks:
    """The ranks of one job, each with the environment to connect to its node's daemon.

    placement: the node of each rank; cluster: None for ranks without daemons.  Each rank calls
    function(rank, *arguments)."""

    def __init__(self, function, placement, cluster=None, job=None, arguments=(), environment=None):
        self.job = job or f"torch{next(jobs)}"
        self.processes = []

        def start(rank, **more):
            place = self.place(rank, placement[rank], placement, cluster)
            return Process(f"rank {rank}", function, (rank, *arguments),
                           {**place, **(environment or {}), **more})
        self.start = start
        try:
            for rank in range(len(placement)):
                self.processes.append(start(rank))
        except BaseException:
            self.end()
            raise

    def place(self, rank, node, placement, cluster):
        where = {"RANK": rank, "WORLD_SIZE": len(placement), "LOCAL_WORLD_SIZE": placement.count(node),
                 "LOCAL_RANK": placement[:rank].count(node), "ZEROD_JOB": self.job,
                 "ZEROD_LIBRARY": LIBRARY, "GLOO_SOCKET_IFNAME": "lo"}
        if cluster:
            where["ZEROD_SOCKET"] = cluster[node].socket
        return where

    def __getitem__(self, rank):
        return self.processes[rank]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def restart(self, rank, count=1, seconds=DEADLINE_S):
        """Waits for the death of a rank and starts it again, as a launcher does."""
        with selectors.DefaultSelector() as ready:
            ready.register(self.processes[rank].pipe, selectors.EVENT_READ)
            while self.processes[rank].outcome is None:
                assert ready.select(seconds), f"rank {rank} did not die"
                self.processes[rank].read()
        assert self.processes[rank].outcome[0] == "died", self.processes[rank].outcome
        self.processes[rank] = self.start(rank, TORCHELASTIC_RESTART_COUNT=count)

    def wait(self, seconds=DEADLINE_S, stop=False):
        """Waits until all ranks have an outcome; whether they have.  stop: once one has failed, the others have
        GRACE_S left."""
        end = time.monotonic() + seconds
        failed = False
        with selectors.DefaultSelector() as ready:
            for p in self.processes:
                if p.outcome is None:
                    ready.register(p.pipe, selectors.EVENT_READ, p)
            while ready.get_map():
                left = end - time.monotonic()
                if left <= 0:
                    return False
                for key, _ in ready.select(left):
                    p = key.data
                    pipe = p.pipe
                    p.read()
                    if p.outcome is None:
                        continue
                    ready.unregister(pipe)
                    if stop and not failed and p.outcome[0] != "value":
                        failed, end = True, min(end, time.monotonic() + GRACE_S)
        return True

    def finish(self, seconds=DEADLINE_S):
        """The value of each rank."""
        done = self.wait(seconds, stop=True)
        failed = [p for p in self.processes if p.outcome and p.outcome[0] != "value"]
        if not done and not failed:
            raise RankFailed(f"ranks did not end within {seconds} s\n" + "\n".join(
                f"{p.name} is at\n{p.stack()}" for p in self.processes if p.outcome is None))
        for p in failed:
            if p.outcome[0] == "died":
                raise RankFailed(f"{p.name} ended with status {p.outcome[1]}")
        if failed:
            raise RankFailed("\n".join(f"{p.name} raised\n{p.outcome[1]}" for p in failed))
        return [p.value() for p in self.processes]

    def end(self):
        for p in self.processes:
            p.kill()
            p.stacks.close()


def run(function, placement, cluster=None, job=None, arguments=(), environment=None,
        seconds=DEADLINE_S, keep=False):
    """Runs function(rank, *arguments) in each rank of one job; their values.

    A number for placement means that many ranks on the first node.  The job is dropped at the end, unless
    `keep` is set."""
    placement = [0] * placement if isinstance(placement, int) else list(placement)
    with Ranks(function, placement, cluster, job, arguments, environment) as ranks:
        try:
            values = ranks.finish(seconds)
        except RankFailed:
            if cluster:
                cluster.show()
            raise
    if cluster and not keep and cluster[0].job(ranks.job):
        cluster[0].ctl("drop", ranks.job)
    return values


def alone(function, *arguments, seconds=DEADLINE_S):
    """function(*arguments) in a process of its own, with no job and no daemon."""
    return run(lambda _: function(*arguments), 1, seconds=seconds)[0]


class Shared:
    """Clusters that the cases of a file share, by nodes and options; each is made at its first use."""

    def __init__(self):
        self.made = {}

    def __call__(self, nodes=1, **options):
        key = nodes, tuple(sorted(options.items()))
        if key not in self.made:
            self.made[key] = Cluster(nodes, **options)
        return self.made[key]

    def end(self):
        for c in self.made.values():
            c.__exit__(None, None, None)
        self.made.clear()


shared = Shared()


def main():
    """Runs the cases as harness.main() does, then ends the shared clusters."""
    try:
        harness.main()
    finally:
        shared.end()
        shutil.rmtree(os.environ["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)
