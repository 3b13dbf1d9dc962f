#!/usr/bin/env python3
"""The largest GPT that trains on this machine with 8 GiB for everything: trainer, daemon and their shared memory.

Searches for each SYSTEM (none: for all), and keeps what it finds in largest.json, whose rows main.py puts into the
table.  It takes half an hour, root, and 9 GiB of free memory.  Another number of GiB needs a file of its own.

A size is a number of blocks, 1,024 wide.  One process makes two steps of 64 tokens, and the loss must fall.
"""
import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE] + [os.path.join(HERE, "..", folder) for folder in ("support", "compare")]
import harness  # noqa: E402 F401  it takes ZEROD_* out of the environment
from cluster import Cluster, Tools, spawn, until  # noqa: E402
from limit import Limit, available  # noqa: E402
from table import machine  # noqa: E402
from systems import deepspeed_env  # noqa: E402

GIB = 1 << 30
SPARE = GIB
USUAL, RESULT = 8, os.path.join(HERE, "largest.json")
SYSTEMS = ["zerod", "torch", "fsdp2", "deepspeed3"]
ATTEMPT_S = 900
COMPILE = "import torch; from deepspeed.ops.adam import DeepSpeedCPUAdam as A; A([torch.nn.Parameter(torch.zeros(1))])"


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


def fits(python, system, blocks, size):
    """Whether so many blocks train in `size` bytes, the most memory they took, and the last line that the trainer wrote."""
    until(lambda: available() > size + SPARE, ATTEMPT_S, f"{(size + SPARE) // GIB} GiB of free memory")
    with tempfile.TemporaryDirectory() as directory, open(f"{directory}/log", "w+", encoding="utf-8") as log:
        with Limit(size) as limit:
            good, most = attempt(python, system, blocks, log, directory), limit.most()
        log.seek(0)
        last = [line.strip() for line in log if line.strip()][-1:]
    print(f"{system}: {blocks} blocks {'train' if good else 'do not train'}, {most:,} bytes", file=sys.stderr, flush=True)
    return good, most, "".join(last)


def search(system, gib):
    """What is kept of a system: its largest size, or why it has none."""
    grid = range(2 * gib, 6 * gib, max(1, gib // 4))  # blocks
    python = deepspeed_env.python_with_torch()
    if system == "deepspeed3":
        try:
            python = deepspeed_env.ensure(python)
            deepspeed_env.call("compile DeepSpeed's Adam", python, "-c", COMPILE)  # or compilers take part of the limit
        except deepspeed_env.Unavailable as why:
            return {"why": f"not run: {why}"}
    found, low, high = None, -1, len(grid)  # grid[low] trains, grid[high] does not
    while high - low > 1:
        middle = (low + high) // 2
        good, most, said = fits(python, system, grid[middle], gib * GIB)
        if good:
            low, found = middle, {"blocks": grid[middle], "parameters": int(said), "most": most}
        else:
            high = middle
    assert high < len(grid), f"{system} trains all sizes of the grid"
    return found or {"why": f"not run: {said}"}


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # what was started ends
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("tree", help="the build tree")
    p.add_argument("systems", nargs="*", metavar="SYSTEM", help=", ".join(SYSTEMS))
    p.add_argument("--gib", type=int, default=USUAL, help="the limit")
    p.add_argument("--keep", metavar="FILE", default=RESULT, help="in place of largest.json")
    args = p.parse_intermixed_args()
    if args.gib != USUAL and args.keep == RESULT:
        p.error(f"largest.json is of {USUAL} GiB: name a file by --keep")
    tree = os.path.abspath(args.tree)
    Tools.zerod, Tools.zeroctl = f"{tree}/daemon/zerod", f"{tree}/client/zeroctl/zeroctl"
    try:
        with open(args.keep, encoding="utf-8") as f:
            kept = json.load(f)
    except FileNotFoundError:
        kept = {}
    for system in args.systems or SYSTEMS:
        kept[system] = {**search(system, args.gib), "machine": machine()}
        with open(args.keep, "w", encoding="utf-8") as f:
            json.dump(kept, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
