#!/usr/bin/env python3
"""L2L (arXiv 2002.05645): weights that come to the trainer in a step, layer by layer and by plain accumulation.

usage: layers.py ZEROD ZEROCTL ACTOR GPT FILE full|quick: writes its rows into FILE.
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE] + [os.path.join(HERE, "..", folder) for folder in ("support", "torch")]
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from cluster import Tools  # noqa: E402

import zerod.torch as zt  # noqa: E402
from gpt import batch_of, make  # noqa: E402
from table import Table  # noqa: E402

LAYERS, STEPS = 100, 2


def train(_rank, cluster, parts, layerwise):
    """Elements of the model, and those that come to this node in a step."""
    model = zt.shard(make(layers=LAYERS, width=16, heads=2), prefetch=0)
    optimizer = zt.AdamW(model)
    layers = zt.LayerByLayer(model, model.blocks, micro_batches=parts)

    def step(t):
        if layerwise:
            layers.forward_backward(lambda m, part: m(part) / parts, batch_of(t, 8))
        else:
            for part in batch_of(t, 8).chunk(parts):
                with model.no_sync():
                    (model(part) / parts).backward()
        optimizer.step()
    step(0)
    job = model.sharded.client.job
    before = cluster[1].job(job)["gather"]["elements_received"]
    for t in range(STEPS):
        step(1 + t)
    seen = cluster[1].job(job)
    return seen["parameters"], (seen["gather"]["elements_received"] - before) / STEPS


def fill(table, quick):
    with ranks.Cluster(2, owners=1) as cluster:
        for parts in (1, 4) if quick else (1, 2, 4, 8):
            for layerwise in (True, False):
                size, moved = ranks.run(train, [1], cluster, arguments=(cluster, parts, layerwise))[0]
                what = "layer by layer" if layerwise else "plain accumulation"
                times = 2 if layerwise else 2 * parts
                table.row("L2L", f"{what}, {parts} micro-batches: elements of weights a step to the trainer",
                          "2 x model" if layerwise else "2 u x model", times * size, moved, least=0.97,
                          note="what the window still has does not come again")


if __name__ == "__main__":
    Tools.zerod, Tools.zeroctl, Tools.actor, Tools.gpt = sys.argv[1:5]
    rows = Table()
    fill(rows, sys.argv[6] == "quick")
    rows.dump(sys.argv[5])
