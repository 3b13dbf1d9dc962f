"""Runs of the C example gpt in a cluster and alone, for the benchmarks of whole training steps."""
import json
import os
import random
import select
import statistics
import time
from subprocess import PIPE

from cluster import Tools, spawn

MODEL = ["--width", "512", "--layers", "8", "--heads", "8", "--context", "256", "--batch", "8", "--threads", "1",
         "--eval-windows", "1", "--warmup", "1", "--log", "json", "--log-every", "1"]
TEXT_BYTES = 1 << 20
RUN_S = 300
END_S = 60
TICKS = os.sysconf("SC_CLK_TCK")


def write_text(cluster):
    with open(f"{cluster.directory}/text", "wb") as text:
        text.write(random.Random(1).randbytes(TEXT_BYTES))


def cpu_seconds(pid):
    """User and system time so far, of all threads; the name in front of the fields may hold anything."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Trainer:
    """gpt; what it says of its steps, with the moment at which it said so."""

    def __init__(self, cluster, arguments_):
        command = [Tools.gpt, "--data", f"{cluster.directory}/text", *MODEL, *arguments_]
        self.process = spawn(command, stdout=PIPE)
        cluster.others.append(self.process)
        self.buffer = b""
        self.moments = []  # one a step: when, and what CPU time all processes of the run had used

    def read(self, pids):
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        now = time.monotonic()
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            if json.loads(line)["event"] == "step":
                self.moments.append((now, sum(map(cpu_seconds, pids))))
        return bool(data)

    def end(self):
        status = self.process.wait(END_S)
        self.process.stdout.close()
        if status:
            raise RuntimeError(f"gpt ended with status {status}")


def run(cluster, commands, daemons, steps):
    """Seconds and CPU seconds of a step, over trainers that run at the same time; and seconds of the fastest step.
    Only rank 0 of a job speaks."""
    trainers = [Trainer(cluster, c) for c in commands]
    pids = [t.process.pid for t in trainers] + daemons
    open_, deadline = list(trainers), time.monotonic() + RUN_S
    while open_:
        ready = select.select([t.process.stdout for t in open_], [], [], max(0, deadline - time.monotonic()))[0]
        if not ready:
            raise RuntimeError(f"gpt has not ended in {RUN_S} s")
        open_ = [t for t in open_ if t.process.stdout not in ready or t.read(pids)]
    for t in trainers:
        t.end()
    spoke = [t.moments for t in trainers if t.moments]
    if not spoke or any(len(m) != steps for m in spoke):
        raise RuntimeError("gpt did not tell of each step")
    fastest = min(b[0] - a[0] for m in spoke for a, b in zip(m, m[1:]))
    return [statistics.mean((m[-1][i] - m[0][i]) / (steps - 1) for m in spoke) for i in (0, 1)], fastest


class Alone:
    name, bytes = "alone", None

    def __init__(self, cluster, trainers, more=()):
        self.cluster, self.trainers, self.more = cluster, trainers, more
        self.fastest = None  # step of the last run

    def run(self, steps):
        measured, self.fastest = run(self.cluster, [["--local", "--steps", str(steps), *self.more]] * self.trainers, [],
                                     steps)
        return measured


class Served:
    """A job that each run takes up where the last one left it; rank i is with node i."""

    def __init__(self, cluster, trainers, stage, name=None, more=()):
        self.cluster, self.trainers, self.stage, self.version = cluster, trainers, stage, 0
        self.name, self.more = name or f"stage {stage}", more
        self.bytes = None  # sent between the daemons a parameter, step and node, so far
        self.fastest = None  # step of the last run

    def command(self, rank):
        return ["--job", f"stage{self.stage}", "--socket", self.cluster[rank].socket, "--stage", str(self.stage),
                "--rank", str(rank), "--world-size", str(self.trainers), "--local-world-size", "1",
                "--steps", str(self.version), *self.more]

    def run(self, steps):
        self.version += steps
        commands = [self.command(rank) for rank in range(self.trainers)]
        measured, self.fastest = run(self.cluster, commands, [d.process.pid for d in self.cluster.daemons], steps)
        told = [d.status() for d in self.cluster.daemons]
        sent = sum(p["sent"][kind] for s in told for p in s["peers"] if not p["self"] for kind in ("gather", "reduce"))
        self.bytes = sent / (told[0]["jobs"][0]["parameters"] * self.version * len(told))
        return measured
