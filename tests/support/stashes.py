"""Ranks that stash, and what they read back."""
from cluster import SLOW, finish_all, small_layout

MIB = 1 << 20


def stashing(c, placement, sets, devices=None, timeout_ms=60000 * SLOW, on_lost="wait", **stash):
    """A rank for each place, attached, each with the set that names it.  devices: of each rank; one for all."""
    actors = [c.caller("job", small_layout(), placement, rank, timeout_ms) for rank in range(len(placement))]
    finish_all(actors), finish_all(actors)
    for rank, a in enumerate(actors):
        ranks = next(s for s in sets if rank in s)
        device = devices[rank] if isinstance(devices, list) else devices
        a.start("attach", hold=1, push=2, device=device, on_lost=on_lost, stash={"ranks": ranks, **stash})
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
