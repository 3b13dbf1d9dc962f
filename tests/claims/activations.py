"""ZeRO-R, sections 6.1 and 6.3: activation checkpoints in the stash.

b sequences of s tokens, hidden h, L blocks, 2 bytes an element; N_m ranks hold the same activations.
"""
import random

from cluster import Cluster, expect, finish_all, resident, step_all
from stash import stashing, write

KIB, MIB = 1 << 10, 1 << 20
B, S, H, L = 2, 64, 1024, 24
ENTRY = 2 * B * S * H  # bytes
WHOLE = L * ENTRY


def told(c):
    return c[0].job("job")["stash"]


def read_all(ranks):
    """The backward pass; bytes that the ranks were given to read."""
    given = 0
    for key in reversed(range(L)):
        for a in ranks:
            a.start("stash_read", key=key, seed=key)
        for reply in finish_all(ranks):
            assert reply["differs"] == -1, reply
            given += reply["bytes"]
        for a in ranks:
            a.do("stash_release", key=key, last=True)
    return given


def write_all(ranks):
    for key in range(L):
        write(ranks, key, ENTRY, seed=key)


def own(pid):
    """Bytes of resident memory that are the process's own."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        return next(int(line.split()[1]) * KIB for line in f if line.startswith("RssAnon:"))


def replay(places):
    """A step of ranks on these nodes.  Of the first node: bytes in the stash after the forward pass, those of entries
    that are put together for their reads among them, most bytes in it, bytes from other nodes.  Of all ranks: bytes they read.  Of one: the growth of its own memory."""
    with Cluster(max(places) + 1) as c:
        ranks = stashing(c, places, [list(range(len(places)))], bytes=WHOLE, entry_bytes=ENTRY)
        write_all(ranks), read_all(ranks)  # actors make their buffers
        step_all(ranks)
        before, memory = told(c)["received"], own(ranks[0].pid)
        write_all(ranks)
        stashed, assembled = told(c)["used"], told(c)["assembled"]
        given = read_all(ranks)
        return {"stashed": stashed, "assembled": assembled, "peak": told(c)["peak"], "received": told(c)["received"] - before, "given": given,
                "own": own(ranks[0].pid) - memory}


def partitioned(table, quick):
    for n in (2, 4) if quick else (2, 4, 8):
        where = f"{n} ranks of one node"
        node = replay([0] * n)
        table.row("ZeRO 6.1", f"P_a, {where}: most bytes in the stash, a rank", "2 b s h L / N_m", WHOLE / n,
                  node["peak"] / n)
        table.row("ZeRO 6.1", f"P_a, {where}: bytes between nodes", "0, of 2 b s h L", 0, node["received"], 0, 0,
                  of=WHOLE)
        where = f"{n} ranks on {n} nodes"
        nodes = replay(list(range(n)))
        kept = nodes["stashed"] - nodes["assembled"]
        table.row("ZeRO 6.1", f"P_a, {where}: bytes of a rank's checkpoints between forward and backward",
                  "2 b s h L / N_m", WHOLE / n, kept)
        table.row("ZeRO 6.1", f"P_a, {where}: most bytes of gathered checkpoints of a rank",
                  "at most two of 2 b s h: the one that it recomputes from, and the next", 2 * ENTRY, nodes["peak"] - kept, 0,
                  note=f"{nodes['assembled']:,} have come with the last write: the backward pass needs them at once")
        table.row("ZeRO 6.1", f"P_a, {where}: bytes a step and rank from others",
                  "1/12 of Megatron's 12 b s h L (N_m - 1) / N_m elements", 12 * WHOLE * (n - 1) / n / 12,
                  nodes["received"])
    for n, seen in (1, replay([0])), (n, node):
        where = "1 rank" if n == 1 else f"{n} ranks of one node"
        table.row("ZeRO 6.1", f"P_a+cpu, {where}: bytes a step copied to and from host memory", "at most 2 x 2 b s h L",
                  2 * WHOLE, seen["stashed"] + seen["own"], 0,
                  note=f"ranks that compute on the host read {seen['given']:,} in place; a rank on a GPU copies what it reads")
        table.row("ZeRO 6.1", f"P_a+cpu, {where}: bytes of the stash in a trainer's own memory", "0, of 2 b s h L", 0,
                  seen["own"], 0, 0.01, of=WHOLE)


# ---- M_D ----------------------------------------------------------------------------------


class FirstFit:
    """An allocator that takes the first gap that is large enough, and moves nothing."""

    def __init__(self, size):
        self.size, self.blocks = size, {}  # offset -> bytes

    def take(self, size):
        """The block's offset; None: no gap is large enough."""
        at = 0
        for offset in sorted(self.blocks):
            if offset - at >= size:
                break
            at = offset + self.blocks[offset]
        if self.size - at < size:
            return None
        self.blocks[at] = size
        return at

    def free(self):
        return self.size - sum(self.blocks.values())


def trace(size, unit):
    """Yields ("take", key, bytes) and ("give", key): long- and short-lived blocks in turn, until nine tenths are
    taken; then the short-lived ones go, and larger ones come."""
    draw, taken, short = random.Random(1), 0, []
    key = 0
    while taken < 0.9 * size:
        block = draw.randrange(unit, 4 * unit)
        yield "take", key, block
        if key % 2:
            short.append(key)
        taken, key = taken + block, key + 1
    for old in short:
        yield "give", old, 0
    while True:
        yield "take", key, draw.randrange(5 * unit, 8 * unit)
        key += 1


def first_fit(size, unit):
    """Bytes that are free when the trace fails."""
    heap, at = FirstFit(size), {}
    for what, key, block in trace(size, unit):
        if what == "give":
            del heap.blocks[at.pop(key)]
            continue
        at[key] = heap.take(block)
        if at[key] is None:
            return heap.free()
    raise AssertionError("the trace ends")


def fragmented(table, quick):
    size, unit = (16 * MIB, 96 * KIB) if quick else (256 * MIB, 1 * MIB)
    with Cluster(1) as c:
        a, = stashing(c, [0], [[0]], bytes=size)
        for what, key, block in trace(size, unit):
            if what == "give":
                a.do("stash_release", key=key, last=True)
                continue
            reply = a.ask("stash_write", key=key, bytes=block)
            if reply["status"] != "OK":
                break
        expect(reply, "EWINDOW")
        free = size - told(c)["used"]
    table.row("ZeRO 6.3", "M_D, long- and short-lived blocks in turn: bytes free when a block fails",
              "at most the block + 1 % of the stash", block + size / 100, free, 0,
              note=f"a simulated first-fit allocator fails with {first_fit(size, unit) / size:.0%} free")


def churned(table, quick):
    count, size, draw = 1000 if quick else 10000, 64 * MIB, random.Random(2)
    with Cluster(1) as c:
        a, = stashing(c, [0], [[0]], bytes=size)
        kept, memory = [], []
        for key in range(count):
            block = draw.randrange(1, MIB // 2)
            while a.ask("stash_write", key=key, bytes=block)["status"] != "OK":
                a.do("stash_release", key=kept.pop(draw.randrange(len(kept))), last=True)
            kept.append(key)
            if key in (count // 10, count - 1):
                memory.append(resident(c[0].process.pid) * KIB)
    table.row("ZeRO 6.3", f"M_D, {count:,} blocks of random sizes: growth of the daemon's memory, bytes",
              "0, of the stash", 0, memory[1] - memory[0], -1, 0.01, of=size)


def fill(table, quick):
    partitioned(table, quick)
    fragmented(table, quick)
    churned(table, quick)
