"""ZeRO-R, section 6.2 (C_B): what daemon and trainer allocate beside the planes does not grow with the model.

A fused fp32 buffer of the whole model, to which the paper compares, has 4 Psi bytes.
"""
from cluster import SETS, Cluster, finish_all, group, tensor

from activations import own

# a table of the chunks of its shards: 40 bytes for every 256 elements or more, a half of them on each node
CHUNKS = 40 / 256 / 2
NOISE = 2 << 20  # of what two processes have to themselves
RECORDS = "most is the daemon's table of the chunks of its shards, 40 bytes each"


def measure(groups, size):
    """Of a node: bytes of windows; of memory that daemon and trainer have to themselves after some steps."""
    layout = [group(f"g{i}", tensor(f"t{i}", size), dtype="bf16") for i in range(groups)]
    with Cluster(2) as c:
        ranks = c.ranks("buffers", layout, [0, 1], hold=2, push=2, grad="bf16", reduce="bf16")
        for a in ranks:
            a.start("train", steps=3, sets=SETS)
        finish_all(ranks)
        job = c[0].job("buffers")
        assert sum(job["planes"].values()) >= 17 * groups * size / 2, job["planes"]
        windows = job["gather"]["window_bytes"] + job["sessions"][0]["push_window"]
        return windows, own(c[0].process.pid) + own(ranks[0].pid)


def fill(table, quick):
    few, many, size = (10, 100, 200_000) if quick else (10, 100, 1_000_000)
    small, large = measure(few, size), measure(many, size)
    growth = [b - a for a, b in zip(small, large)]
    where = f"from {few * size:,} to {many * size:,} parameters"
    fused = 4 * (many - few) * size
    table.row("ZeRO 6.2", f"C_B, gather and push windows: growth {where}, bytes", "0, of 4 Psi", 0, growth[0], 0, 0,
              of=fused, note=f"{small[0]:,} at {few * size:,}")
    table.row("ZeRO 6.2", f"C_B, daemon's and trainer's own memory: growth {where}, bytes", "0, of 4 Psi", 0, growth[1],
              -0.01, 0.01, of=fused, known=[0.01, CHUNKS / 4 + NOISE / fused], note=RECORDS)
