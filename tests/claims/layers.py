#!/usr/bin/env python3
"""L2L (arXiv 2002.05645): weights that come to the trainer in a step, layer by layer and by plain accumulation; the
trainer's memory as the model gets deeper.

usage: layers.py ZEROD ZEROCTL ACTOR GPT FILE full|quick: writes its rows into FILE.
"""
import ctypes
import gc
import os
import statistics
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE] + [os.path.join(HERE, "..", folder) for folder in ("support", "torch")]
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from cluster import Tools  # noqa: E402

import torch  # noqa: E402

import zerod.torch as zt  # noqa: E402
from gpt import GPT, batch_of, make  # noqa: E402
from table import Table  # noqa: E402

LAYERS, STEPS = 100, 2
DEPTHS = [12, 24, 48, 96, 192, 384]
WIDTH, CONTEXT, BATCH, PARTS = 128, 64, 64, 2
BERT_LARGE = {"layers": 24, "width": 1024, "heads": 16, "vocabulary": 30522, "context": 128}
INPUTS = BATCH * CONTEXT * WIDTH * 4  # bytes of a block's inputs in a step


def train(_rank, cluster, parts, layerwise):
    """Elements of the model, and those that come to this node in a step."""
    model = zt.shard(make(layers=LAYERS, width=16, heads=2), prefetch=0)
    optimizer = zt.AdamW(model)
    layers = zt.LayerByLayer(model, model.blocks, micro_batches=parts)

    def step(t):
        if layerwise:
            layers.forward_backward(lambda m, part: m(part) / parts, batch_of(t, 16))
        else:
            for part in batch_of(t, 16).chunk(parts):
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


def train_by_fsdp2(rank, directory, parts):
    """Elements of the model, and those that come to this rank in a step, its own part included."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("gloo", init_method=f"file://{directory}/meet", rank=rank, world_size=2)
    model = make(layers=LAYERS, width=16, heads=2)
    size = sum(p.numel() for p in model.parameters())
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    gathered, gather = [], dist.all_gather_single

    def counted(output, *arguments, **named):
        gathered.append(output.numel())
        return gather(output, *arguments, **named)
    dist.all_gather_single = counted
    for part in batch_of(0, 16).chunk(parts):
        (model(part) / parts).backward()
    dist.destroy_process_group()
    return size, sum(gathered)


def own():
    """Bytes of memory that are this process's own."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/status", encoding="utf-8") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("RssAnon:"))


def peak(_rank, depth, stashed):
    """The most memory of a trainer in a step, above what it has between steps."""
    stash = depth * (INPUTS + PARTS * (4096 + depth * INPUTS // 16384)) if stashed else None
    model = zt.shard(make(layers=depth, width=WIDTH, heads=2, context=CONTEXT), optimizer="sgd", stash=stash)
    optimizer = zt.SGD(model, lr=1e-3)
    layers = zt.LayerByLayer(model, model.blocks, micro_batches=PARTS)
    seen = []

    def step(t, size):
        layers.forward_backward(lambda m, part: m(part) / PARTS, batch_of(t, size, context=CONTEXT))
        optimizer.step()
    step(0, PARTS)
    before = own()
    for i in (0, depth // 2, depth - 1):  # a look takes as long as a block
        model.blocks[i].ln2.register_forward_pre_hook(lambda *_: seen.append(own()))
    step(1, BATCH)
    return max(seen) - before


def deeper(table, cluster):
    for stashed in (False, True):
        peaks = [ranks.run(peak, [0], cluster, arguments=(d, stashed))[0] for d in DEPTHS]
        slope = statistics.linear_regression(DEPTHS, peaks).slope
        note = "peaks: " + ", ".join(f"{d} blocks {p:,}" for d, p in zip(DEPTHS, peaks))
        if stashed:
            table.row("L2L", "layer by layer, inputs in the stash: growth of the trainer's peak a block, bytes",
                      "0, of the block's inputs", 0, slope, -0.01, 0.01, of=INPUTS, note=note)
        else:
            table.row("L2L", "layer by layer, inputs in the trainer: growth of the trainer's peak a block, bytes",
                      "the block's inputs", INPUTS, slope, least=0.95, most=1.05, note=note)


def pss(pid):
    """Bytes of memory of a process; of pages that several have, its part."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("Pss:"))


class Peaks:
    """The most memory of the trainer, and of the trainer and the daemon, above what they had at first."""

    def __init__(self, daemon=None):
        self.pids = [os.getpid()] + [daemon] * (daemon is not None)
        self.first, self.most = None, [0, 0]
        self.look()

    def look(self, *_):
        seen = [pss(pid) for pid in self.pids]
        self.first = self.first or seen
        above = [now - first for now, first in zip(seen, self.first)]
        self.most = [max(self.most[0], above[0]), max(self.most[1], sum(above))]

    def train(self, model, forward_backward, update):
        torch.set_num_threads(2)
        for block in model.blocks:
            block.ln2.register_forward_pre_hook(self.look)
            block.down.register_full_backward_pre_hook(self.look)
        for t in range(STEPS):
            forward_backward(batch_of(t, 2, BERT_LARGE["vocabulary"], BERT_LARGE["context"]))
            self.look()
            update()
            self.look()
        return self.most


def bert_by_zerod(_rank, daemon):
    peaks = Peaks(daemon)
    with torch.device("meta"):
        model = GPT(**BERT_LARGE)
    inputs = 24 * 2 * 128 * 1024 * 4
    zt.shard(model, stash=inputs + 24 * 2 * 4096, timeout=600, push_groups=1)
    optimizer = zt.AdamW(model, lr=1e-4)
    layers = zt.LayerByLayer(model, model.blocks, micro_batches=2)
    return peaks.train(model, lambda batch: layers.forward_backward(lambda m, part: m(part) / 2, batch), optimizer.step)


def bert_by_torch(_rank):
    peaks = Peaks()
    model = GPT(**BERT_LARGE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def update():
        optimizer.step()
        optimizer.zero_grad()
    return [*peaks.train(model, lambda batch: model(batch).backward(), update), sum(p.numel() for p in model.parameters())]


def bert(table, cluster):
    """At equal batch: two sequences of 128 tokens."""
    trainer, both = ranks.run(bert_by_zerod, [0], cluster, arguments=(cluster[0].process.pid,))[0]
    plain, _, size = ranks.run(bert_by_torch, [0], cluster)[0]
    what = "BERT-Large's shape, 2 x 128 tokens: most bytes of"
    table.row("L2L", f"{what} the trainer", "at most 0.55 x plain PyTorch", 0.55 * plain, trainer, least=0,
              most=1, note=f"plain PyTorch {plain:,}")
    table.row("L2L", f"{what} trainer and daemon", "at most plain PyTorch", plain, both, least=0, most=1,
              note="with push_groups=1: the usual second slot is 100 MB more.  The trainer keeps an embedding's gradient until "
                   "all micro-batches have one, and the daemon has a place for that, too")
    others = 12 * size  # gradients and two moments, in fp32
    table.row("L2L", f"{what} trainer and daemon, without gradients and moments", "at most plain PyTorch", plain - others,
              both - others, least=0, most=1, note="weights and activations, and buffers")


def fill(table, quick):
    with ranks.Cluster(2, owners=1) as cluster:
        for parts in (1, 4) if quick else (1, 2, 4, 8, 16):
            for layerwise in (True, False):
                size, moved = ranks.run(train, [1], cluster, arguments=(cluster, parts, layerwise))[0]
                what = "layer by layer" if layerwise else "plain accumulation"
                times = 2 if layerwise else 2 * parts
                table.row("L2L", f"{what}, {parts} micro-batches: elements of weights a step to the trainer",
                          "2 x model" if layerwise else "2 u x model", times * size, moved, least=0.97,
                          note="what the window still has does not come again")
            with tempfile.TemporaryDirectory() as directory:
                size, moved = ranks.run(train_by_fsdp2, [0, 0], cluster, arguments=(directory, parts))[0]
            table.row("L2L", f"FSDP2 with resharding, {parts} micro-batches: elements of weights a step to the trainer",
                      "2 u x model", 2 * parts * size, moved, least=0.97, most=1.03,
                      note="the peer: what each rank gathers, its own part included")
        if not quick:
            deeper(table, cluster)
    if not quick:
        with ranks.Cluster(1) as cluster:
            bert(table, cluster)


if __name__ == "__main__":
    Tools.zerod, Tools.zeroctl, Tools.actor, Tools.gpt = sys.argv[1:5]
    rows = Table()
    fill(rows, sys.argv[6] == "quick")
    rows.dump(sys.argv[5])
