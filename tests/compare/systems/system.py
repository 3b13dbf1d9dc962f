"""One system under measurement: its rank processes, its daemons, and what they are asked.

Rules: every wait has a deadline; a system that fails is ended as a whole and says why in one line.
"""
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

from cluster import Cluster, spawn
from systems import memory

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "..", "..", ".."))
BUILD_S = 300
STEP_S = 90
END_S = 20
LOOK_S = 0.01

# Name: system as worker.py knows it, stage and daemons.
KINDS = {
    "plain": ("plain", 0, 0),
    "ddp": ("ddp", 0, 0),
    "zero1": ("zero1", 0, 0),
    "fsdp2": ("fsdp2", 0, 0),
    **{f"deepspeed{stage}": ("deepspeed", stage, 0) for stage in (1, 2, 3)},
    **{f"zerod{stage}-{nodes}": ("zerod", stage, nodes) for nodes in (1, 2) for stage in (1, 2, 3)},
}
OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
# Name: the one of KINDS that it is, and what its configuration has beside.
VARIANTS = {
    **{f"deepspeed{stage}-offload": (f"deepspeed{stage}", {"deepspeed": OFFLOAD}) for stage in (1, 2)},
    "deepspeed3-offload": ("deepspeed3", {"deepspeed": {**OFFLOAD, "offload_param": {"device": "cpu"}}}),
    "zerod3-1-8bit": ("zerod3-1", {"dtype": "bf16", "shard": {"state": "8bit", "master": "bf16+8", "accumulate": "wire"}}),
    "zerod3-1-clip": ("zerod3-1", {"clip": 1.0}),
}


class Failed(Exception):
    """Why a system cannot be measured."""


class Worker:
    def __init__(self, python, environment, log_path):
        self.log_path, self.buffer = log_path, b""
        with open(log_path, "wb") as log:
            self.process = spawn([python, os.path.join(HERE, "worker.py")], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, stderr=log, env=environment)

    @property
    def pid(self):
        return self.process.pid

    def tell(self, **command):
        try:
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise Failed(self.reason()) from error

    def reason(self):
        """How it ended, and the last it wrote."""
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            lines = [line.strip() for line in log if line.strip()]
        status = self.process.wait(END_S)
        return f"a rank ended with status {status}: {lines[-1] if lines else 'no word'}"

    def read(self):
        """Its reply, or None if there is more to come."""
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        if not data:
            raise Failed(self.reason())
        self.buffer += data
        if b"\n" not in self.buffer:
            return None
        line, self.buffer = self.buffer.split(b"\n", 1)
        reply = json.loads(line)
        if "error" in reply:
            raise Failed(reply["error"])
        return reply

    def close(self):
        """Has it end by itself."""
        if not self.process.stdin.closed:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass

    def end(self, seconds):
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self.process.stdout.close()


class System:
    """options: those of the command line, and python_of, which gives the interpreter of a kind."""

    def __init__(self, name, options):
        self.name, self.options = name, options
        base, self.more = VARIANTS.get(name, (name, {}))
        self.kind, self.stage, self.nodes = KINDS[base]
        self.dtype = self.more.get("dtype", options.dtype)
        self.ranks = 1 if self.kind == "plain" else options.ranks
        self.batches = [[rank] for rank in range(self.ranks)]
        self.workers, self.cluster, self.directory = [], None, None
        self.torch, self.parameters = None, 0  # version; number
        self.imported = memory.Imported(0, 0)  # what torch's import took

    @classmethod
    def reference(cls, options):
        """One process that has the batches of all ranks."""
        made = cls("plain", options)
        made.name, made.batches = "reference", [list(range(options.ranks))]
        return made

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.end(now=True)
            raise
        return self

    def __exit__(self, kind, error, trace):
        self.end(now=kind is not None)

    def environment(self):
        return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo", "DS_ACCELERATOR": "cpu",
                "PYTHONPATH": f"{ROOT}/client/python",
                "ZEROD_LIBRARY": f"{self.options.build}/client/lib/libzero.so.0"}

    def start(self):
        self.directory = tempfile.mkdtemp(prefix="zerod-bench-")
        python = self.options.python_of(self.kind)
        if self.nodes:
            self.cluster = Cluster(self.nodes, threads=self.options.daemon_threads)
        for rank in range(self.ranks):
            log = f"{self.directory}/rank{rank}.log"
            self.workers.append(Worker(python, self.environment(), log))
        for rank, worker in enumerate(self.workers):
            worker.tell(do="build", **self.config(rank))
        built = self.hear(BUILD_S)
        self.torch, self.parameters = built[0]["torch"], built[0]["parameters"]
        self.imported = memory.Imported(*(sum(b[key] for b in built) for key in ("anonymous", "private")))

    def config(self, rank):
        config = {"system": self.kind, "size": self.options.model,
                  "sequences": self.options.sequences, "rank": rank, "world": self.ranks,
                  "batches": self.batches[rank], "directory": self.directory, "stage": self.stage,
                  **self.more, "dtype": self.dtype}
        if self.nodes:
            node = rank * self.nodes // self.ranks
            config.update(job="bench", local_world=self.ranks // self.nodes,
                          socket=self.cluster[node].socket)
        return config

    def hear(self, seconds, meanwhile=None):
        """The reply of each rank; `meanwhile` is called every now and then."""
        end, replies = time.monotonic() + seconds, {}
        while len(replies) < self.ranks:
            open_ = {w.process.stdout: rank for rank, w in enumerate(self.workers)
                     if rank not in replies}
            left = end - time.monotonic()
            if left < 0:
                raise Failed(f"no answer within {seconds} s")
            for stream in select.select(list(open_), [], [], LOOK_S if meanwhile else left)[0]:
                reply = self.workers[open_[stream]].read()
                if reply is not None:
                    replies[open_[stream]] = reply
            if meanwhile:
                meanwhile()
        return [replies[rank] for rank in range(self.ranks)]

    def ask(self, do, steps, meanwhile=None, **fields):
        for worker in self.workers:
            worker.tell(do=do, steps=steps, **fields)
        return self.hear(STEP_S * (steps + 1), meanwhile)

    # ---- what is measured --------------------------------------------------------

    def daemons(self):
        return [d.process.pid for d in self.cluster.daemons] if self.cluster else []

    def waited(self):
        """Seconds that all ranks have waited so far in fetches, pushes and steps, by the kind of call."""
        told = [w for d in self.cluster.daemons for w in d.job("bench")["waited"]] if self.cluster else []
        return {w["for"]: sum(x["sum_s"] for x in told if x["for"] == w["for"]) for w in told}

    def check(self, steps):
        """The mean loss of each step over the ranks, and the gradient's norm at the first one."""
        replies = self.ask("check", steps)
        losses = [sum(step) / self.ranks for step in zip(*(r["losses"] for r in replies))]
        return losses, replies[0]["norm"]

    def run(self, steps, meanwhile=None):
        """Tokens a second of all ranks, and CPU seconds a step of all processes."""
        pids = [w.pid for w in self.workers] + self.daemons()
        before = self.waited()
        replies = self.ask("run", steps, meanwhile, pids=pids)
        # of the step that warms up, too
        waited = {f"{k}_wait_s": (s - before[k]) / (steps + 1) / self.ranks for k, s in self.waited().items()}
        first, last = (max(r["ends"][i] for r in replies) for i in (0, -1))
        sequences = sum(map(len, self.batches)) * self.options.sequences * steps
        tokens = sequences * self.options.context
        return {"tokens_s": tokens / (last - first), "step_s": (last - first) / steps,
                "cpu_s": replies[0]["cpu"] / steps, **waited}

    def watch(self, steps):
        """Peaks of memory; the time of such a run does not count."""
        directory = self.cluster.directory if self.cluster else self.directory
        ranks = [w.pid for w in self.workers]
        watch = memory.Watch(ranks, self.daemons(), directory, self.imported)
        self.run(steps, watch.look)
        return watch.result()

    def profile(self, steps, directory):
        for rank, worker in enumerate(self.workers):
            worker.tell(do="profile", steps=steps, file=f"{directory}/{self.name}-rank{rank}.prof")
        self.hear(STEP_S * (steps + 1))

    def end(self, now=False):
        """Ends all processes; now: without waiting for them to end by themselves."""
        try:
            self.end_all(now)
        except BaseException:  # a signal: what is left is not
            self.end_all(now=True)
            raise

    def end_all(self, now):
        for worker in self.workers:
            worker.close()
        for worker in self.workers:
            worker.end(0 if now else END_S)
        self.workers = []
        if self.cluster:
            self.cluster.end()
            self.cluster = None
        if self.directory:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory = None
