#!/usr/bin/env python3
"""bench-checkpoint [--repeat N] [--json FILE] [--parameters N] [--threads N]

For how long a checkpoint with a full budget keeps an update waiting, against one copy of the same bytes of
memory, on as many threads, past the cache.

  idle      how long the copy takes when nothing else runs: what an update waits at most
  training  what a run of steps takes longer with the copy in it, writing to memory (tmpfs) and hashing included;
            in the time of one copy

One daemon; states of 12 bytes a parameter.  Copy and limit take turns.  Median and quartiles over rounds.
"""
import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, "@SOURCE@/tests/bench")
import common  # noqa: E402  (its place is known only now)
from cluster import SETS, Cluster, Tools, group, spawn, tensor  # noqa: E402

BUILD = "@BUILD@"
STATE_BYTES = 12
GROUPS = 16
STEPS = 6
AIM = 1.0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json")
    parser.add_argument("--parameters", type=int, default=32 << 20)
    parser.add_argument("--threads", type=int, default=min(8, os.cpu_count()))
    return parser.parse_args()


class Limit:
    """One copy of the same bytes, when asked."""

    def __init__(self, nbytes, threads):
        self.process = spawn([f"{BUILD}/tests/bench/checkpoint/copy-limit", str(nbytes), str(threads)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.seconds()  # the first one warms up

    def seconds(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def push_all(rank):
    """Every group has a gradient: the update touches all of the state."""
    for g in range(GROUPS):
        rank.do("grad", group=g)
        rank.do("push", group=g)


def steps_with_gradients(rank):
    """Seconds in zero_step() and until the update is through; making gradients is left out."""
    seconds = 0
    for _ in range(STEPS):
        push_all(rank)
        begin = time.monotonic()
        rank.do("step", sets=SETS[:1])
        rank.do("get", tensor=0, plane="exp_avg", count=1)  # waits for the end of the update
        seconds += time.monotonic() - begin
    return seconds


class Checkpoint:
    """zeroctl, while something else goes on."""

    def __init__(self, daemon, directory):
        self.process = spawn([Tools.zeroctl, "--socket", daemon.socket, "checkpoint", "job", directory, "--keep", "1"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end(self):
        if self.process.wait(300):
            raise RuntimeError("the checkpoint failed")


def rounds_of(cluster, rank, directory, limit, repeat):
    daemon = cluster[0]
    for i in range(repeat + 1):
        measured = {"limit": limit.seconds()}
        measured["idle"] = daemon.ctl("checkpoint", "job", directory, "--keep", "1")["copy_s"]
        plain = steps_with_gradients(rank)
        asked = Checkpoint(daemon, directory)
        measured["training"] = steps_with_gradients(rank) - plain
        asked.end()
        if i > 0:  # the first round warms up
            yield measured


def figure(name, rounds, options, **more):
    ratios = [r[name] / r["limit"] for r in rounds]
    seconds, limit = (statistics.median(r[n] for r in rounds) for n in (name, "limit"))
    return common.figure(f"checkpoint, {name}", ratios, seconds=round(seconds, 4), copy_seconds=round(limit, 4),
                         gib=round(options.parameters * STATE_BYTES / 2**30, 2), threads=options.threads, **more)


def main():
    options = arguments()
    common.leave_on_signals()
    common.use_build(BUILD)
    Tools.actor = f"{BUILD}/tests/support/actor"
    output = common.Output(options.json)
    layout = [group(f"g{i}", tensor(f"t{i}", options.parameters // GROUPS)) for i in range(GROUPS)]
    directory = tempfile.mkdtemp(prefix="zerod-bench-", dir="/dev/shm")
    limit = Limit(options.parameters * STATE_BYTES, options.threads)
    try:
        with Cluster(1, threads=options.threads) as cluster:
            rank, = cluster.ranks("job", layout, [0], hold=1, push=-1, timeout_ms=300000)
            rounds = []
            for measured in rounds_of(cluster, rank, directory, limit, max(2, options.repeat)):
                rounds.append(measured)
                print(*(f"{name}: {seconds * 1e3:.1f} ms;" for name, seconds in measured.items()), flush=True)
    finally:
        limit.end()
        shutil.rmtree(directory, ignore_errors=True)
    for name, more in (("idle", {"aim": AIM}), ("training", {})):
        f = figure(name, rounds, options, **more)
        output.add(f)
        print(f"{f['name']}: ratio {f['median_ratio']:.3f}, {f['spread'][0]:.3f} .. {f['spread'][1]:.3f}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(f"bench-checkpoint: {error}")
