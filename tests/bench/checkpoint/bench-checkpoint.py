#!/usr/bin/env python3
"""bench-checkpoint [--repeat N] [--json FILE] [--parameters N] [--threads N]

What training loses to a checkpoint with a full budget, against one copy of the same bytes of memory, on as many
threads, past the cache, its pages in place.

  stall     what the update after the version that is kept takes longer than others, from zero_step() to its end: it
            waits, or saves what is not copied yet
  training  what all steps take longer until the checkpoint is there, gradients and pushes too: preparing, hashing and
            writing (to a tmpfs of its own, which root mounts) included
  mapped    the copy from pages of a state file, for comparison

One daemon; states of 12 bytes a parameter.  Steps with a checkpoint are compared with those before and behind it, and
take turns with copies.  Median and quartiles over rounds.  bench-update tells what an update takes longer that saves
everything.
"""
import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time

sys.path.insert(0, "@SOURCE@/tests/bench")
import common  # noqa: E402  (its place is known only now)
from checkpointing import Place  # noqa: E402
from cluster import SETS, Cluster, Tools, group, spawn, tensor  # noqa: E402
from mounts import private_mounts, small_disks  # noqa: E402

BUILD = "@BUILD@"
STATE_BYTES = 12
GROUPS = 16
STEPS = 4
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

    def __init__(self, kind, nbytes, threads):
        self.process = spawn([f"{BUILD}/tests/bench/checkpoint/copy-limit", kind, str(nbytes), str(threads)],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def seconds(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def step(rank):
    """Every group has a gradient: the update touches all of the state.  The version, and seconds of update and step."""
    begin = time.monotonic()
    for g in range(GROUPS):
        rank.do("grad", group=g)
        rank.do("push", group=g)
    pushed = time.monotonic()
    version = rank.do("step", sets=SETS[:1])["version"]
    rank.do("get", tensor=0, plane="exp_avg", count=1)  # waits for the end of the update
    end = time.monotonic()
    return version, end - pushed, end - begin


class Checkpoint:
    """zeroctl, while something else goes on."""

    def __init__(self, daemon, directory):
        self.process = spawn([Tools.zeroctl, "--json", "--socket", daemon.socket, "checkpoint", "job", directory,
                              "--keep", "1"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def running(self):
        return self.process.poll() is None

    def end(self):
        out, _ = self.process.communicate(timeout=300)
        if self.process.returncode:
            raise RuntimeError("the checkpoint failed")
        return json.loads(out)


def steps_with_checkpoint(rank, asked):
    """step() by the version it begins at, from when a checkpoint is asked for until it is there."""
    seconds = {}
    while asked.running() or len(seconds) < STEPS:
        version, *took = step(rank)
        seconds[version - 1] = took
    return seconds


def differences(rank, daemon, directory):
    """Stall and training of one checkpoint, and what zeroctl says of it."""
    plain = [step(rank)[1:] for _ in range(STEPS)]
    asked = Checkpoint(daemon, directory)
    seconds = steps_with_checkpoint(rank, asked)
    answer = asked.end()
    plain += [step(rank)[1:] for _ in range(STEPS)]
    update, whole = (statistics.median(times) for times in zip(*plain))
    return {"update": update, "stall": seconds[answer["version"]][0] - update,
            "training": sum(took for _, took in seconds.values()) - whole * len(seconds),
            "predicted": answer["predicted_stall_s"]}


def rounds_of(cluster, rank, directory, limits, repeat):
    daemon = cluster[0]
    for i in range(repeat + 1):
        measured = {name: limit.seconds() for name, limit in limits.items()}
        measured.update(differences(rank, daemon, directory))
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
    rounds = []
    private_mounts()
    with Place() as place, small_disks([f"{place}/memory"], options.parameters * STATE_BYTES * 4) as (directory,), \
            contextlib.ExitStack() as stack:
        limits = {name: stack.enter_context(Limit(kind, options.parameters * STATE_BYTES, options.threads))
                  for name, kind in (("limit", "memory"), ("mapped", "file"))}
        cluster = stack.enter_context(Cluster(1, threads=options.threads))
        rank, = cluster.ranks("job", layout, [0], hold=1, push=-1, timeout_ms=300000)
        for measured in rounds_of(cluster, rank, directory, limits, max(2, options.repeat)):
            rounds.append(measured)
            print(*(f"{name}: {seconds * 1e3:.1f} ms;" for name, seconds in measured.items()), flush=True)
    for name, more in (("stall", {"aim": AIM}), ("training", {}), ("mapped", {})):
        f = figure(name, rounds, options, **more)
        output.add(f)
        print(f"{f['name']}: ratio {f['median_ratio']:.3f}, {f['spread'][0]:.3f} .. {f['spread'][1]:.3f}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(f"bench-checkpoint: {error}")
