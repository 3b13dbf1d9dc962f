#!/usr/bin/env python3
"""Says each half minute how far a run of a build tree's tests is, for run.sh.

usage: progress.py TREE LOG

TREE is the tree's name, LOG the testlog.json that meson writes while tests run.  A test weighs as much as its limit:
the estimate is too long at first, because the longest tests begin first.
"""
import sys
import time

from summary import limits, names_of, read

EVERY_S = 30


def main(tree, log):
    weights = limits(log)
    begin = time.monotonic()
    while True:
        time.sleep(EVERY_S)
        done = [test["name"] for test in read(log)]
        part = sum(weights.get(name, 0) for name in done) / sum(weights.values())
        took = time.monotonic() - begin
        left = f", about {(took / part - took) / 60:.0f} min to go" if part > 0.1 else ""
        last = f", the last one {' '.join(names_of(done[-1]))}" if done else ""
        print(f"{tree:8} {len(done)} of {len(weights)} tests in {took / 60:.1f} min{left}{last}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
