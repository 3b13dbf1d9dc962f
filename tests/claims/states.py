"""ZeRO, sections 5 and 7: bytes of model states, and elements that travel, at each stage.

A device of the paper is here a node with its daemon, an owner, and one trainer.  Its model states are the planes of
the daemon and, at stages 1 and 2, what the trainer keeps for the whole step: the parameters in the window, and, at
stage 1, the gradients in the push window.  Windows of a group at a time are no model states (see buffers.py).

A daemon outlives its trainer, so an owner has its shard beside the trainer's.  To have nothing twice, master weights
at stages 1 and 2 are "bf16+16": the served parameters and 16 bits more, exact, where the paper has parameters and fp32
master weights.  At stage 1 the trainer has as many slots as groups, less what the sum of the shard has.
"""
from cluster import SETS, Cluster, finish_all, group, tensor

GROUPS, ELEMENTS = 64, 16 * 4096
PSI = GROUPS * ELEMENTS
STEPS = 2
TRANSFER = 4 << 20  # of a push window: for zero_get() and zero_put()
OPTIMIZER = "master", "exp_avg", "exp_avg_sq"
BYTES = {1: "4 Psi + 12 Psi / N", 2: "2 Psi + 14 Psi / N", 3: "16 Psi / N"}
FORMULA = {1: lambda n: 4 + 12 / n, 2: lambda n: 2 + 14 / n, 3: lambda n: 16 / n}

SPLIT = 'master="bf16+16"; with fp32 master weights the window has the shard once more'


def train(ranks, stage):
    for a in ranks:
        a.start("train", steps=STEPS, sets=SETS, stage=stage)
    finish_all(ranks)


def moved(daemon):
    """Elements of bf16 from and to other nodes."""
    peers = [p for p in daemon.status()["peers"] if not p["self"]]
    return [sum(p[way][kind] for p in peers for kind in ("gather", "reduce")) / 2 for way in ("received", "sent")]


def kept(job, stage):
    """Bytes of model states of a node."""
    state = sum(job["planes"].values())
    if stage < 3:
        state += job["gather"]["window_bytes"]
    if stage == 1:
        state += sum(s["push_window"] - TRANSFER for s in job["sessions"])
    return state


def measure(nodes, stage):
    """Of the node that has most: planes, bytes of model states, elements a step."""
    split = {"master": "bf16+16"} if stage < 3 and nodes > 1 else {}
    layout = [group(f"g{i}", tensor(f"t{i}", ELEMENTS), dtype="bf16", **split) for i in range(GROUPS)]
    slots = max(1, GROUPS - GROUPS // nodes) if stage == 1 else 1
    with Cluster(nodes) as c:
        ranks = c.ranks("claims", layout, list(range(nodes)), hold=1 if stage == 3 else -1,
                        push=slots, grad="bf16", reduce="bf16", accumulate="wire")
        train(ranks, stage)
        before = [moved(d) for d in c.daemons]
        train(ranks, stage)
        after = [moved(d) for d in c.daemons]
        jobs = [d.job("claims") for d in c.daemons]
        planes = max((j["planes"] for j in jobs), key=lambda p: sum(p.values()))
        elements = max(b - a for old, new in zip(before, after) for a, b in zip(old, new)) / STEPS
        return planes, max(kept(j, stage) for j in jobs), elements


def fill(table, quick):
    traffic = []
    for nodes in (1, 2, 4) if quick else (1, 2, 4, 8, 16):
        for stage in (1, 2, 3):
            planes, state, elements = measure(nodes, stage)
            table.row("ZeRO 5", f"stage {stage}, N = {nodes}: bytes a device", BYTES[stage],
                      FORMULA[stage](nodes) * PSI, state, note=SPLIT if stage < 3 and nodes > 1 else "")
            if nodes > 1:
                times = 3 if stage == 3 else 2
                traffic.append(("ZeRO 7", f"stage {stage}, N = {nodes}: elements a step and rank, the larger of "
                                "received and sent", f"{times} Psi (N - 1) / N", times * PSI * (nodes - 1) / nodes,
                                elements))
    for part, formula, size, names in (("optimizer states", "12 Psi / N", 12, OPTIMIZER),
                                       ("gradients", "2 Psi / N", 2, ["grad"]),
                                       ("parameters", "2 Psi / N", 2, ["serve"])):
        table.row("ZeRO 5", f"{part} of a shard, N = {nodes}: bytes", formula, size * PSI / nodes,
                  sum(planes[p] for p in names))
    for row in traffic:
        table.row(*row)
