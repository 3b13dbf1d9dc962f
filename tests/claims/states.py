"""ZeRO, sections 5 and 7: bytes of model states, and elements that travel, at each stage.

A device of the paper is here a node with its daemon, an owner, and one trainer.  Its model states are the planes of
the daemon and, at stages 1 and 2, what the trainer keeps for the whole step: the parameters in the window, and, at
stage 1, the gradients in the push window.  Windows of a group at a time are no model states (see buffers.py).
"""
from cluster import SETS, Cluster, finish_all, group, tensor

GROUPS, ELEMENTS = 64, 16 * 4096
PSI = GROUPS * ELEMENTS
STEPS = 2
TRANSFER = 4 << 20  # of a push window: for zero_get() and zero_put()
OPTIMIZER = "master", "exp_avg", "exp_avg_sq"
BYTES = {1: "4 Psi + 12 Psi / N", 2: "2 Psi + 14 Psi / N", 3: "16 Psi / N"}
FORMULA = {1: lambda n: 4 + 12 / n, 2: lambda n: 2 + 14 / n, 3: lambda n: 16 / n}
# zerod's own: the owners add up gradients in fp32, and the window has the node's own shard once more; a
# single owner's trainer maps the shard in place of a window
OWN = {1: lambda n: 4 + 18 / n if n > 1 else 20, 2: lambda n: 2 + 18 / n if n > 1 else 18, 3: lambda n: 18 / n}
SUM = "an owner adds up the gradients of its shard in fp32, not in 2 bytes"
BESIDE = "an owner adds up the gradients of its shard in fp32, beside those of its rank"
SHARD = "the window has the shard once more"


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
    layout = [group(f"g{i}", tensor(f"t{i}", ELEMENTS), dtype="bf16") for i in range(GROUPS)]
    with Cluster(nodes) as c:
        ranks = c.ranks("claims", layout, list(range(nodes)), hold=1 if stage == 3 else -1,
                        push=-1 if stage == 1 else 1, grad="bf16", reduce="bf16")
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
            why = (BESIDE if stage == 1 else SUM) + f"; {SHARD}" * (stage < 3 and nodes > 1)
            expected = FORMULA[stage](nodes)
            table.row("ZeRO 5", f"stage {stage}, N = {nodes}: bytes a device", BYTES[stage],
                      expected * PSI, state, known=[OWN[stage](nodes) / expected], note=why)
            if nodes > 1:
                times = 3 if stage == 3 else 2
                traffic.append(("ZeRO 7", f"stage {stage}, N = {nodes}: elements a step and rank, the larger of "
                                "received and sent", f"{times} Psi (N - 1) / N", times * PSI * (nodes - 1) / nodes,
                                elements))
    for part, formula, size, names in (("optimizer states", "12 Psi / N", 12, OPTIMIZER),
                                       ("gradients", "2 Psi / N", 2, ["grad"]),
                                       ("parameters", "2 Psi / N", 2, ["serve"])):
        table.row("ZeRO 5", f"{part} of a shard, N = {nodes}: bytes", formula, size * PSI / nodes,
                  sum(planes[p] for p in names), **({"known": [2], "note": SUM} if names == ["grad"] else {}))
    for row in traffic:
        table.row(*row)
