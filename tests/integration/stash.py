#!/usr/bin/env python3
"""Activation checkpoints: sets of ranks that keep the same bytes once, on one node and on several."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SETS, Cluster, expect, finish_all, small_layout, step_all, until  # noqa: E402
from harness import case, cases_of, main  # noqa: E402

MIB = 1 << 20


def stashing(c, placement, sets, **stash):
    """A rank for each place, attached, each with the set that names it."""
    actors = [c.caller("job", small_layout(), placement, rank) for rank in range(len(placement))]
    finish_all(actors), finish_all(actors)
    for rank, a in enumerate(actors):
        ranks = next(s for s in sets if rank in s)
        a.start("attach", hold=1, push=2, stash={"ranks": ranks, **stash})
    finish_all(actors)
    return actors


def write(actors, key, size, seed=0):
    for a in actors:
        a.start("stash_write", key=key, bytes=size, seed=seed)
    finish_all(actors)


def read(actors, key, size, seed=0, last=True):
    for a in actors:
        a.start("stash_read", key=key, seed=seed)
    for told in finish_all(actors):
        assert told["bytes"] == size and told["differs"] == -1, told
    for a in actors:
        a.do("stash_release", key=key, last=last)


def used(c, nodes):
    return [c[n].job("job")["stash"]["used"] for n in range(nodes)]


@cases_of([[0], [0, 0], [0, 0, 0], [0, 1], [0, 0, 1, 1], [0, 1, 0, 2]])
def every_rank_reads_what_all_wrote(placement):
    """Entries of odd sizes, read forward and backward, once or twice, by a set on one node or several."""
    sizes = [1, 63, 4096, 100_001, MIB + 17, 3 * MIB]
    nodes = max(placement) + 1
    with Cluster(nodes) as c:
        ranks = stashing(c, placement, [list(range(len(placement)))], bytes=6 * MIB, entry_bytes=4 * MIB)
        for step in range(3):
            for key, size in enumerate(sizes):
                write(ranks, key, size, seed=step + key)
            read(ranks, 2, sizes[2], seed=step + 2, last=False)
            for key, size in reversed(list(enumerate(sizes))):
                read(ranks, key, size, seed=step + key)
            until(lambda: used(c, nodes) == [0] * nodes, what="the stash to be empty")
            step_all(ranks, sets=SETS)
        received = [c[n].job("job")["stash"]["received"] for n in range(nodes)]
        assert (sum(received) == 0) == (nodes == 1), received


if __name__ == "__main__":
    main()
