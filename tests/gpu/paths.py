#!/usr/bin/env python3
"""Payloads of GPU memory between two daemons: directly by UCX, staged through host memory, and over TCP: the same bits,
and how long the steps take.

usage: paths.py TOP PLUGIN [--quick]; exit status 77: nothing goes directly here, and the log says why.
"""
import os
import sys
import time

from where import GPU_STATES, HOST_STATES, cluster, use_bundle

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cluster import SETS, finish_all, small_layout  # noqa: E402
from fake_gpu import environment  # noqa: E402

TOP, PLUGIN = sys.argv[1:3]
QUICK = "--quick" in sys.argv
STEPS = 1 if QUICK else 8
WIDTH = 1500 if QUICK else 4000  # slices travel in several parts
SKIPPED = 77
WAYS = {"direct": {"bulk_gpu": "auto"}, "staged": {"bulk_gpu": "staged"}, "over tcp": {"bulk": "tcp"}}


def how(c):
    """How it goes, both ways, and what the log says of it."""
    ways = {p["bulk_gpu"] for d in c.daemons for p in d.status()["peers"] if not p["self"]}
    assert len(ways) == 1, f"one side sends what the other does not take: {ways}"
    why = [line for line in c[0].log().splitlines() if "payloads go by" in line][-1]
    return ways.pop(), why.partition("payloads go by ")[2]


def train(c, dtype, device):
    """The bits of parameters and states, and milliseconds a step."""
    with environment(ZEROD_CUDA_PLUGIN=PLUGIN):
        ranks = c.ranks("paths", small_layout(dtype, blocks=2, width=WIDTH), [0, 1], hold=2, push=2, grad=dtype,
                        reduce=dtype, **({"device": device} if device else {}))
    begin = time.monotonic()
    for a in ranks:
        a.start("train", steps=STEPS, clip=0.5, sets=SETS, seed=7)
    seen = {r["hash"] for r in finish_all(ranks)}
    taken = time.monotonic() - begin
    assert len(seen) == 1, "ranks saw different parameters"
    return (seen.pop(), c.checksum("paths")["planes"]), 1000 * taken / STEPS


def lands_on_gpu(c):
    """Gradients do, where the states are."""
    for d in c.daemons:
        names = {a["what"] for g in d.status()["gpus"] for a in g["allocations"]}
        assert "accumulator of job paths" in names, f"gradients land in host memory: {names}"


def main():
    use_bundle(TOP)
    direct = True
    for dtype in ("bf16",) if QUICK else ("fp32", "bf16"):
        with cluster(PLUGIN, 2, device="host") as c:
            expected, _ = train(c, dtype, None)
        for states in (GPU_STATES,) if QUICK else (GPU_STATES, HOST_STATES):
            for way, options in WAYS.items():
                with cluster(PLUGIN, 2, **states, **options) as c:
                    taken, why = how(c)
                    assert taken == "staged" or way == "direct", f"{way}: {taken}"
                    direct = direct and (way != "direct" or taken == "direct")
                    got, ms = train(c, dtype, "cuda:0")
                    assert got == expected, f"{dtype}, {way}, {states}: {got} is not {expected}"
                    if states is GPU_STATES:
                        lands_on_gpu(c)
                    print(f"{dtype}, states on the {states['optimizer']}, {way}: {ms:.0f} ms a step; {why}", flush=True)
    if not direct:
        print("the bits are the same, but GPU memory was always staged: see above why")
        sys.exit(SKIPPED)
    print("the same bits directly, staged and over TCP")


if __name__ == "__main__":
    main()
