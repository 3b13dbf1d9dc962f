#!/usr/bin/env python3
"""compare.py [--pairs N] [--repeat N] OLD NEW [NAME [ARGUMENT...]]...

Whether a change made zerod slower: runs benchmarks of two build trees in turn, OLD first in one pair and NEW first in
the next, and prints for each figure the median over pairs of NEW / OLD and its quartiles.

OLD and NEW are release build trees; each stays with the sources that it was built from.  NAME is a benchmark of run.sh;
"kernels --threads 1" in quotes adds arguments.  Default: kernels bulk fetch step update checkpoint recovery.

A figure is worse if its median is worse by more than 3 % and by more than the quartiles' distance from each other.
kernels and bulk measure speeds: there, less is worse.  Everywhere else, more is worse.
Exit status: 0, or 1 if a figure is worse or a benchmark failed.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile

NAMES = ["kernels --threads 1", "bulk", "fetch", "step", "update", "checkpoint", "recovery"]
SPEEDS = ("kernels", "bulk")
LIMIT = 1.03


def key(figure):
    """Names a figure: sizes and places tell figures of one name apart."""
    said = [figure["name"]] + [str(figure[k]) for k in ("bytes", "case", "stage", "isa") if k in figure]
    return " ".join(said)


def run(tree, words, repeat):
    name, arguments = words[0], words[1:]
    with tempfile.NamedTemporaryFile("r", suffix=".json") as out:
        command = [f"{tree}/tests/bench/{name}/bench-{name}", *arguments, "--json", out.name]
        command += ["--repeat", str(repeat)] if repeat else []
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, check=False)
        if done.returncode:
            sys.exit(f"{shlex.join(command)} failed:\n{done.stdout}")
        return {key(f): f["median_ratio"] for f in map(json.loads, out)}


def compare(words, old, new, pairs, repeat):
    """(figure, NEW / OLD of each pair) of one benchmark."""
    found = {}
    for i in range(pairs):
        seen = {tree: run(tree, words, repeat) for tree in ((old, new) if i % 2 == 0 else (new, old))}
        for name in {**seen[old], **seen[new]}:
            ratios = found.setdefault(name, [])
            if seen[old].get(name, 0) > 0 and name in seen[new]:
                ratios.append(seen[new][name] / seen[old][name])
        print(f"{words[0]}: pair {i + 1} of {pairs}", file=sys.stderr)
    return found.items()


def is_worse(name, ratios):
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    slower = 1 / middle if name in SPEEDS else middle
    return slower > LIMIT and slower - 1 > high - low


def main():
    parser = argparse.ArgumentParser(usage=__doc__.partition("\n")[0], description=__doc__.partition("\n\n")[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--repeat", type=int, default=0, help="rounds of each run; 0: each benchmark's own")
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("names", nargs="*", default=NAMES)
    o = parser.parse_args()
    if o.pairs < 3:
        parser.error("--pairs is at least 3: quartiles of fewer say nothing")
    worse = 0
    print("BENCHMARK  NEW/OLD  QUARTILES        FIGURE")
    for entry in o.names:
        words = shlex.split(entry)
        for figure, ratios in compare(words, os.path.abspath(o.old), os.path.abspath(o.new), o.pairs, o.repeat):
            if len(ratios) < 3:
                print(f"{words[0]:10s} in {len(ratios)} of {o.pairs} pairs only  {figure}")
                continue
            low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
            bad = is_worse(words[0], ratios)
            worse += bad
            print(f"{words[0]:10s} {middle:7.3f}  {low:.3f} .. {high:.3f}  {figure}{'  WORSE' if bad else ''}", flush=True)
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()
