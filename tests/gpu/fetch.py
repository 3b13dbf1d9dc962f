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
SIZES = ["1"] if "--quick" in sys.argv else ["1", "4", "16", "64", "256", "1024"]


def main():
    use_bundle(TOP)
    for nodes, how, bulk_gpu in ((1, "mapped", "auto"), (2, "gathered", "auto"), (2, "gathered", "staged")):
        with cluster(PLUGIN, nodes, threads=4, bulk_gpu=bulk_gpu, **GPU_STATES) as c:
            if nodes > 1:
                way, = {p["bulk_gpu"] for p in c[0].status()["peers"] if not p["self"]}
                if way == "staged" and bulk_gpu == "auto":
                    print("gathered: staged alone; the log of the part `paths` says why", flush=True)
                    continue
                how += f" ({way})"
            subprocess.run([f"{TOP}/bin/fetch", PLUGIN, c[0].socket, "fetch", "cuda:0", how, *SIZES],
                           env={**os.environ, "ZEROD_CUDA_PLUGIN": PLUGIN}, timeout=500, check=True)


if __name__ == "__main__":
    main()
