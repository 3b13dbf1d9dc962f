"""ZeRO-R, section 6.2 (C_B): what daemon and trainer allocate beside the planes does not grow with the model.

A fused fp32 buffer of the whole model, to which the paper compares, has 4 Psi bytes.
"""
from cluster import SETS, Cluster, group, tensor

from activations import own

NOISE = 2 << 20  # of what two processes have to themselves
# name of a case: dtype, optimizer, one of its sets, bytes of the planes a parameter
ADAMW = "bf16", "adamw", SETS[0], 18
SGD = "fp32", "sgd", ["sgd", 1e-2, 0, 0, 0], 8
STEP_S = 900


def measure(groups, size, states):
    """Of a node: bytes of windows; of memory that daemon and trainer have to themselves after some steps."""
    dtype, optimizer, values, planes = states
    layout = [group(f"g{i}", tensor(f"t{i}", size, init="constant"), dtype=dtype, optimizer=optimizer) for i in range(groups)]
    with Cluster(2) as c:
        ranks = c.ranks("buffers", layout, [0, 1], hold=2, push=2, grad="bf16", reduce="bf16", timeout_ms=STEP_S * 1000)
        for a in ranks:
            a.start("train", steps=3, sets=[values])
        for a in ranks:
            a.good(a.finish(STEP_S))
        job = c[0].job("buffers")
        assert 0.95 < sum(job["planes"].values()) / (planes * groups * size / 2) < 1.05, job["planes"]
        windows = job["gather"]["window_bytes"] + job["sessions"][0]["push_window"]
        return windows, own(c[0].process.pid) + own(ranks[0].pid)


def compare(table, few, many, size, states):
    small, large = measure(few, size, states), measure(many, size, states)
    growth = [b - a for a, b in zip(small, large)]
    where = f"from {few * size:,} to {many * size:,} parameters, {states[1]}"
    fused = 4 * (many - few) * size
    table.row("ZeRO 6.2", f"C_B, gather and push windows: growth {where}, bytes", "0, of 4 Psi", 0, growth[0], 0, 0,
              of=fused, note=f"{small[0]:,} at {few * size:,}")
    table.row("ZeRO 6.2", f"C_B, daemon's and trainer's own memory: growth {where}, bytes", "0, of 4 Psi", 0, growth[1],
              -0.01, max(0.01, NOISE / fused), of=fused, note=f"{small[1]:,} at {few * size:,}")


def fill(table, quick):
    compare(table, 10, 100, 200_000 if quick else 1_000_000, ADAMW)


def fill_large(table, _quick):
    """To a billion parameters: 8 GiB on this machine."""
    compare(table, 10, 1000, 1_000_000, SGD)
