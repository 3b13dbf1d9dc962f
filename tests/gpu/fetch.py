#!/usr/bin/env python3
"""How long a fetch takes: of a group that is mapped, and of one that is gathered from two owners.

usage: fetch.py TOP PLUGIN [--quick]; lines of JSON, see fetch.c
"""
import subprocess
import sys

from where import GPU_STATES, cluster, use_bundle

TOP, PLUGIN = sys.argv[1:3]
SIZES = ["1"] if "--quick" in sys.argv else ["1", "4", "16", "64", "256", "1024"]


def main():
    use_bundle(TOP)
    for nodes, how in ((1, "mapped"), (2, "gathered")):
        with cluster(PLUGIN, nodes, threads=4, **GPU_STATES) as c:
            subprocess.run([f"{TOP}/bin/fetch", PLUGIN, c[0].socket, "fetch", "cuda:0", how, *SIZES],
                           env={"ZEROD_CUDA_PLUGIN": PLUGIN, "PATH": "/usr/bin:/bin"}, timeout=500, check=True)


if __name__ == "__main__":
    main()
