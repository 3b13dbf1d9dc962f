#!/usr/bin/env python3
"""Counts what the papers claim of a build tree, and prints the table; see run.sh."""
import argparse
import datetime
import os
import platform
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
import states  # noqa: E402
from table import Table  # noqa: E402

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


PARTS = [("ZeRO 5 and 7", states.fill), ("ZeRO 6.1 and 6.3", activations.fill), ("ZeRO 6.2", buffers.fill),
         ("L2L", layers)]


def machine():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        model = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), platform.machine())
    return f"{datetime.date.today()}, {len(os.sched_getaffinity(0))} cores of {model}"


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("tree", help="the build tree")
    for option in ("--quick", "--write", "--known"):
        p.add_argument(option, action="store_true")
    args = p.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # clusters end
    Tools.zerod, Tools.zeroctl = f"{args.tree}/daemon/zerod", f"{args.tree}/client/zeroctl/zeroctl"
    Tools.actor = f"{args.tree}/tests/support/actor"
    table = Table()
    for source, fill in PARTS:
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
                    f"`tests/claims/run.sh{' --quick' * args.quick} --write`, {machine()}\n\n{text}\n")
    print(text, flush=True)
    wrong = [r["claim"] for r in table.rows if not (r["holds"] or args.known and r["known"])]
    if args.known and wrong:
        print("not known:", "; ".join(wrong), file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
