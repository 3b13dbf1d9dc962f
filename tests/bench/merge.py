#!/usr/bin/env python3
"""Merges what the benchmarks wrote into one JSON file and prints a table, for run.sh.

usage: merge.py OUT FILE...

A FILE is named NN-PROGRAM and has one JSON object a line.
"""
import datetime
import json
import os
import platform
import sys

# What of a figure is no result but says how it was measured.
SETTINGS_LEFT_OUT = ("name", "program", "median_ratio", "spread")


def cpu():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        for line in info:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def figures(path):
    program = os.path.basename(path).partition("-")[2]
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield {"program": program, **json.loads(line)}


def row(figure):
    low, high = figure["spread"]
    rest = " ".join(f"{k}={v}" for k, v in figure.items() if k not in SETTINGS_LEFT_OUT)
    return [figure["program"], figure["name"], f"{figure['median_ratio']:.3f}", f"{low:.3f} .. {high:.3f}", rest]


def print_table(rows):
    rows = [["PROGRAM", "FIGURE", "RATIO", "QUARTILES", "MEASURED"]] + rows
    widths = [max(len(r[i]) for r in rows) for i in range(4)]
    for r in rows:
        print("  ".join([r[i].ljust(widths[i]) for i in range(4)] + [r[4]]))


def main(out, *paths):
    found = [f for path in sorted(paths) if os.path.exists(path) for f in figures(path)]
    if not found:
        sys.exit("no benchmark ran")
    result = {
        "machine": {"cpu": cpu(), "cpus": os.cpu_count(), "kernel": platform.release()},
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "figures": found,
    }
    with open(out + ".new", "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    os.replace(out + ".new", out)
    print_table([row(f) for f in found])
    print(f"\n{len(found)} figures in {out}")


if __name__ == "__main__":
    main(*sys.argv[1:])
