#!/usr/bin/env python3
"""The largest GPT that trains on this machine with 8 GiB for everything: trainer, daemon and their shared memory.

usage: largest.py BUILD_TREE [SYSTEM...]: searches for each system (none: for all), and keeps what it finds in
largest.json, whose rows main.py puts into the table.  It takes half an hour, root, and 9 GiB of free memory.

A size is a number of blocks, 1,024 wide.  One process makes two steps of 64 tokens, and the loss must fall.  The limit
is a cgroup's, v1 or v2, without swap; pages of tmpfs count where they are first touched, and that is inside.
"""
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE] + [os.path.join(HERE, "..", folder) for folder in ("support", "bench")]
import harness  # noqa: E402 F401  it takes ZEROD_* out of the environment
from cluster import Cluster, Tools, spawn, until  # noqa: E402
from table import machine  # noqa: E402
from torch_bench import deepspeed_env  # noqa: E402

GIB = 1 << 30
LIMIT, SPARE = 8 * GIB, GIB
RESULT = os.path.join(HERE, "largest.json")
GRID = range(16, 48, 2)  # blocks
SYSTEMS = ["zerod", "torch", "fsdp2", "deepspeed3"]
ATTEMPT_S = 900


class Limit:
    """While this is entered, what this process starts shares LIMIT bytes, page cache and tmpfs included."""

    def __enter__(self):
        with open("/proc/self/cgroup", encoding="ascii") as f:
            of = dict(line.rstrip("\n").split(":", 2)[1:] for line in f)
        v1 = "memory" in of
        self.home = f"/sys/fs/cgroup/memory{of['memory']}" if v1 else f"/sys/fs/cgroup{of['']}"
        # v2: a group that has processes has no groups with limits below it, unless it is the root
        self.group = f"{self.home if v1 else '/sys/fs/cgroup'}/zerod-largest-{os.getpid()}"
        self.peak = f"{self.group}/memory.{'max_usage_in_bytes' if v1 else 'peak'}"
        os.mkdir(self.group)
        self.write("memory.limit_in_bytes" if v1 else "memory.max", LIMIT)
        with contextlib.suppress(FileNotFoundError):  # a kernel without swap
            self.write("memory.memsw.limit_in_bytes" if v1 else "memory.swap.max", LIMIT if v1 else 0)
        self.write("cgroup.procs", os.getpid())
        return self

    def write(self, name, value):
        with open(f"{self.group}/{name}", "w", encoding="ascii") as f:
            f.write(str(value))

    def most(self):
        with open(self.peak, encoding="ascii") as f:
            return int(f.read())

    def __exit__(self, *_):
        with open(f"{self.home}/cgroup.procs", "w", encoding="ascii") as f:
            f.write(str(os.getpid()))
        os.rmdir(self.group)


def available():
    with open("/proc/meminfo", encoding="ascii") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("MemAvailable:"))


def attempt(python, system, blocks, log, directory):
    """Whether the system trains a size.  A daemon that the limit kills ends the trainer too."""
    environment = {**os.environ, "PYTHONPATH": f"{HERE}/../../client/python", "DS_ACCELERATOR": "cpu",
                   "ZEROD_LIBRARY": f"{os.path.dirname(Tools.zerod)}/../client/lib/libzero.so.0"}
    with contextlib.ExitStack() as stack:
        cluster = Cluster(1) if system == "zerod" else None
        if cluster:
            stack.callback(cluster.end)
            environment["ZEROD_SOCKET"] = cluster[0].socket
        trainer = spawn([python, "-B", f"{HERE}/largest_trainer.py", system, str(blocks)], stdin=subprocess.DEVNULL,
                        stdout=log, stderr=log, env=environment, cwd=directory)
        stack.callback(trainer.wait)
        stack.callback(trainer.kill)
        until(lambda: trainer.poll() is not None or cluster and not cluster[0].alive(), ATTEMPT_S, f"the end of {system}")
        return trainer.poll() == 0


def fits(python, system, blocks):
    """Whether a size trains, the most memory it took, and the last line that the trainer wrote."""
    until(lambda: available() > LIMIT + SPARE, ATTEMPT_S, f"{(LIMIT + SPARE) // GIB} GiB of free memory")
    with tempfile.TemporaryDirectory() as directory, open(f"{directory}/log", "w+", encoding="utf-8") as log:
        with Limit() as limit:
            good, most = attempt(python, system, blocks, log, directory), limit.most()
        log.seek(0)
        last = [line.strip() for line in log if line.strip()][-1:]
    print(f"{system}: {blocks} blocks {'train' if good else 'do not train'}, {most:,} bytes", file=sys.stderr, flush=True)
    return good, most, "".join(last)


def search(system):
    """What is kept of a system: its largest size, or why it has none."""
    python = deepspeed_env.python_with_torch()
    if system == "deepspeed3":
        try:
            python = deepspeed_env.ensure(python)
        except deepspeed_env.Unavailable as why:
            return {"why": f"not run: {why}"}
    found, low, high = None, -1, len(GRID)  # GRID[low] trains, GRID[high] does not
    while high - low > 1:
        middle = (low + high) // 2
        good, most, said = fits(python, system, GRID[middle])
        if good:
            low, found = middle, {"blocks": GRID[middle], "parameters": int(said), "most": most}
        else:
            high = middle
    assert high < len(GRID), f"{system} trains all sizes of the grid"
    return found or {"why": f"not run: {said}"}


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was started ends
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    tree, systems = os.path.abspath(sys.argv[1]), sys.argv[2:] or SYSTEMS
    Tools.zerod, Tools.zeroctl = f"{tree}/daemon/zerod", f"{tree}/client/zeroctl/zeroctl"
    try:
        with open(RESULT, encoding="utf-8") as f:
            kept = json.load(f)
    except FileNotFoundError:
        kept = {}
    for system in systems:
        kept[system] = {**search(system), "machine": machine()}
        with open(RESULT, "w", encoding="utf-8") as f:
            json.dump(kept, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
