#!/usr/bin/env python3
"""Counts what the papers claim of a build tree, and prints the table; see run.sh."""
import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", folder) for folder in ("support", "integration")]
import harness  # noqa: E402 F401  it takes ZEROD_* out of the environment
from cluster import Tools  # noqa: E402

import activations  # noqa: E402
import buffers  # noqa: E402
import server  # noqa: E402
import states  # noqa: E402
from table import Table, machine  # noqa: E402

RESULTS = os.path.join(HERE, "RESULTS.md")
LEFT_OUT = 77  # as ranks.py ends without PyTorch


def layers(table, quick):
    """In a process of its own: another Python."""
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/rows"
        arguments = [Tools.zerod, Tools.zeroctl, Tools.actor, "-", path, "quick" if quick else "full"]
        r = subprocess.run([sys.executable, "-B", f"{HERE}/layers.py", *arguments], stdin=subprocess.DEVNULL,
                           stdout=sys.stderr, check=False)
        if r.returncode != LEFT_OUT:
            assert r.returncode == 0, f"layers.py ended with {r.returncode}"
            table.load(path)


def largest(table, _quick):
    """What largest.py has kept: it takes too long to be counted each time."""
    with open(f"{HERE}/largest.json", encoding="utf-8") as f:
        found = json.load(f)
    mine = found["zerod"]
    for system in "torch", "fsdp2", "deepspeed3":
        claim = f"largest model within 8 GiB, 64 tokens a step: parameters, zerod against {system}"
        peer = found[system]
        if "why" in peer:
            table.failed("L2L", claim, peer["why"])
            continue
        table.row("L2L", claim, "at least the peer's", peer["parameters"], mine["parameters"], most=math.inf,
                  note=mine["machine"])


PARTS = [("ZeRO 5 and 7", states.fill), ("ZeRO 6.1 and 6.3", activations.fill), ("ZeRO 6.2", buffers.fill),
         ("L2L", layers), ("L2L, eager server", server.fill), ("largest model", largest)]
LARGE = [("ZeRO 6.2, a billion parameters", buffers.fill_large)]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("tree", help="the build tree")
    for option in ("--quick", "--large", "--write"):
        p.add_argument(option, action="store_true")
    args = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # clusters end
    Tools.zerod, Tools.zeroctl = f"{args.tree}/daemon/zerod", f"{args.tree}/client/zeroctl/zeroctl"
    Tools.actor = f"{args.tree}/tests/support/actor"
    table = Table()
    for source, fill in PARTS + LARGE * args.large:
        print(f"counting: {source}", file=sys.stderr, flush=True)
        try:
            fill(table, args.quick)
        except Exception as error:  # pylint: disable=broad-except
            traceback.print_exc()
            table.failed(source, "could not be counted", f"{type(error).__name__}: {error}".replace("\n", " "))
    text = table.text() + "\n\n" + table.summary()
    if args.write:
        with open(RESULTS, "w", encoding="utf-8") as f:
            f.write("# The papers' claims\n\n"
                    f"`tests/claims/run.sh{' --quick' * args.quick}{' --large' * args.large} --write`, {machine()}\n\n{text}\n")
    print(text, flush=True)
    sys.exit(not all(r["holds"] for r in table.rows))


if __name__ == "__main__":
    main()
