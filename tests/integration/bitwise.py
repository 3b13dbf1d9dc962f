#!/usr/bin/env python3
"""For a given placement of its ranks, a job ends with the same bits for any number of owners, instruction
set, message timing, chunk size and bulk path."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SETS, Cluster, finish_all, small_layout  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402

STEPS = 8
PLACEMENTS = {"one_node": [0, 0], "two_nodes": [0, 1], "four_ranks": [0, 0, 1, 1]}
LAYOUT = small_layout(blocks=3, width=200)
known = {}


def outcome(placement, layout=None, nodes=1, needs=None, **options):
    """Checksums of the states, and the hash of everything the ranks fetched."""
    with Cluster(nodes, **options) as c:
        ranks = c.ranks("bits", layout or LAYOUT, placement, hold=2, push=2, **(needs or {}))
        for a in ranks:
            a.start("train", steps=STEPS, micro_batches=2, clip=0.5, sets=SETS, seed=7)
        seen = finish_all(ranks)
        assert {r["version"] for r in seen} == {STEPS}, seen
        assert len({r["hash"] for r in seen}) == 1, "ranks saw different parameters"
        return c.checksum("bits")["planes"], seen[0]["hash"]


def reference(name):
    """The outcome with one owner and default options."""
    placement = PLACEMENTS[name]
    if name not in known:
        known[name] = outcome(placement, nodes=max(placement) + 1, owners=1)
    return known[name]


def same(name, nodes, **options):
    got = outcome(PLACEMENTS[name], nodes=max(nodes, max(PLACEMENTS[name]) + 1), **options)
    assert got == reference(name), f"{got} is not {reference(name)}"


@cases_of([(p, n) for p in PLACEMENTS for n in (2, 3, 5)], "{0[0]}_{0[1]}")
def owners(pair):
    same(pair[0], pair[1], owners=pair[1])


@cases_of(["n0*2", "n0*3 n1", "n0*2 n1*2", "n2*8 n0 n1*5"])
def devices_of_a_node(owners):
    same("four_ranks", 3, owners=owners)


@case
def mirrors_of_several_devices():
    same("two_nodes", 3, owners="n0*2 n1*3 n2", mirror=1)


@case
def another_placement_gives_other_bits():
    """Shows that the comparisons above can fail: another placement gives other bits."""
    assert reference("two_nodes") != reference("four_ranks")


@cases_of(["host:scalar", "host:avx2", "host:avx512"])
def device(isa):
    flags = open("/proc/cpuinfo", encoding="utf-8").read()
    if isa == "host:avx2" and " avx2" not in flags or isa == "host:avx512" and " avx512f" not in flags:
        raise Skip(f"this CPU does not have {isa}")
    same("two_nodes", 3, owners=3, device=isa)


@case
def delayed_messages():
    same("two_nodes", 3, owners=3, delay_ms=5)


@cases_of([128, 640, 4096])
def chunk(elements):
    same("two_nodes", 2, chunk=elements)


@cases_of(["ucx", "tcp"])
def bulk(path):
    same("two_nodes", 2, bulk=path)


@case
def several_threads():
    same("four_ranks", 2, threads=3)


@case
def tight_buffers():
    """The smallest window that the ranks' declarations allow, and small buffers for sums."""
    same("four_ranks", 2, reduce_buffers=1)


@cases_of(["bf16", "fp16"])
def low_precision(dtype):
    layout, needs = small_layout(dtype, blocks=2, width=200), {"grad": dtype, "reduce": "bf16" if dtype == "bf16" else "fp32"}
    one = outcome([0, 0, 1], layout, 2, needs, owners=1)
    assert one == outcome([0, 0, 1], layout, 3, needs, device="host:scalar", bulk="tcp")


if __name__ == "__main__":
    main()
