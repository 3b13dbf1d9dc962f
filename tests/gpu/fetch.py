#!/usr/bin/env python3
"""How long a fetch takes: of a group that is mapped, and of one that is gathered from two owners, directly where UCX
can, and staged.

usage: fetch.py TOP PLUGIN [--quick]; lines of JSON, see fetch.c
"""
import os
import subprocess
import sys

from where import GPU_STATES, cluster, use_bundle

TOP, PLUGIN = sys.argv[1:3]
SIZES = ["1"] if "--quick" in sys.argv else ["1", "64", "1024"]


def measure(nodes, how, bulk_gpu):
    with cluster(PLUGIN, nodes, threads=max(1, ((os.cpu_count() or 1) - 2) // nodes), bulk_gpu=bulk_gpu, **GPU_STATES) as c:
        if nodes > 1:
            way, = {p["bulk_gpu"] for p in c[0].status()["peers"] if not p["self"]}
            if way == "staged" and bulk_gpu == "auto":
                print("gathered: staged alone; the log of the part `paths` says why", flush=True)
                return
            how += f" ({way})"
        subprocess.run([f"{TOP}/bin/fetch", PLUGIN, c[0].socket, "fetch", "cuda:0", how, *SIZES],
                       env={**os.environ, "ZEROD_CUDA_PLUGIN": PLUGIN}, timeout=500, check=True)
        c[0].ctl("drop", "fetch")  # else the daemons save 13 GB when they end


def main():
    use_bundle(TOP)
    failed = []
    for way in (1, "mapped", "auto"), (2, "gathered", "auto"), (2, "gathered", "staged"):
        try:
            measure(*way)
        except (AssertionError, subprocess.SubprocessError) as why:
            failed.append(why)
            print(f"{way}: {why}", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
