#!/usr/bin/env python3
"""At stage 3 a trainer's memory for parameters is its window, however large the model, and trainers of a
node have one copy.  What a trainer freed it does not keep."""
import ctypes
import multiprocessing
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402
from cluster import libc  # noqa: E402
from harness import case  # noqa: E402

import torch  # noqa: E402

from gpt import GPT, batch_of, make  # noqa: E402

HEAD = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)$")
FIELD = re.compile(r"^(Pss|Rss|Private_Dirty): +(\d+) kB$")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
LAYERS, WIDTH, TOKENS = 80, 256, 4


def smaps(pid="self"):
    """Bytes by what is mapped, each {"Rss", "Pss", "Private_Dirty"}: zerod's windows by name, files of
    libraries as "files", all else as "own"."""
    sums = {}
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as f:
        for line in f:
            head = HEAD.match(line)
            if head:
                name = head[1]
                key = name.split(":")[1].split(" ")[0] if name.startswith("/memfd:zerod") else \
                    "files" if name.startswith("/") else "own"
                continue
            value = FIELD.match(line)
            if value:
                of = sums.setdefault(key, {})
                of[value[1]] = of.get(value[1], 0) + int(value[2]) * 1024
    return sums


def resident():
    """Windows and memory of its own.  Not what is private, for that grows as what was forked is touched."""
    return sum(v["Rss"] for k, v in smaps().items() if k != "files")


def warm_up():
    """What a backward pass of so many modules leaves behind, however narrow they are, belongs to PyTorch."""
    # what is freed is given back at once, so that what is resident is what is held
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 16)
    libc.mallopt(M_TRIM_THRESHOLD, 1 << 16)
    model = make(layers=LAYERS, width=16, recompute="nonreentrant")
    optimizer = torch.optim.AdamW(model.parameters())
    for t in range(2):
        model(batch_of(t, 1)[:, :TOKENS + 1]).backward()
        optimizer.step()


class Peak:
    """The most of what it sees, above what was there when it began."""

    def __init__(self):
        self.before, self.most = resident(), 0

    def look(self, *_):
        now = resident() - self.before
        self.most = max(self.most, now)
        return now


def windows(client):
    """Bytes of the gather window and of a rank's own, as the daemon declares them."""
    job, = (j for j in client.query("status")["jobs"] if j["job"] == client.job)
    return job["gather"]["window_bytes"], job["sessions"][0]["push_window"]


def large_model(rank):
    """Bytes of the model, and of windows and heap: the most within steps, and between them."""
    import zerod.torch as zt
    warm_up()
    with torch.device("meta"):
        model = GPT(layers=LAYERS, width=WIDTH, recompute="nonreentrant")
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    peak = Peak()
    for block in model.blocks[::8]:  # a look takes longer than a block
        block.down.register_forward_hook(lambda *_: peak.look() and None)
        block.ln1.register_full_backward_hook(lambda *_: peak.look() and None)
    model = zt.shard(model, 3, init_fn=GPT.init)
    optimizer = zt.AdamW(model, lr=1e-4)
    for t in range(3):
        model(batch_of(t, 1)[:, :TOKENS + 1]).backward()
        peak.look()
        optimizer.step()
    return size, peak.most, peak.look(), windows(model.sharded.client)


@case
def bounded_by_the_window():
    for size, most, after, declared in ranks.run(large_model, [0, 1], ranks.shared(2)):
        window = sum(declared)
        print(f"# model {size >> 10} kB, windows {window >> 10} kB, in steps {most >> 10} kB, after {after >> 10} kB")
        assert size >= 10 * window, f"the model has {size} bytes, the windows {window}"
        assert max(most, after) <= window, f"{most} bytes in steps, {after} after; the windows have {window}"


# ---- what was freed -------------------------------------------------------------------


class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks",
                                                     "fsmblks", "uordblks", "fordblks", "keepcost")]


def in_use():
    """Bytes that glibc has given out."""
    libc.mallinfo2.restype = Mallinfo2
    info = libc.mallinfo2()
    return info.uordblks + info.hblkhd


def anonymous():
    with open("/proc/self/status", encoding="utf-8") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("RssAnon:"))


def freed_tensors(_rank, stage):
    """The most anonymous memory and the most in use in steps, above what was there before."""
    import zerod.torch as zt
    until_sharded = torch.ones(64 << 20)  # as the parameters of a large model
    model = zt.shard(make(layers=8, width=192, context=256), stage)
    del until_sharded
    optimizer = zt.AdamW(model, lr=1e-4)
    before, most = (anonymous(), in_use()), [0, 0]

    def look(*_):
        for i, now in enumerate((anonymous(), in_use())):
            most[i] = max(most[i], now - before[i])
    for block in model.blocks:
        block.ln2.register_forward_pre_hook(look)
        block.ln2.register_full_backward_pre_hook(look)
    for t in range(6):
        model(batch_of(t, 2, context=256)).backward()
        look()
        optimizer.step()
    return most


@case
def a_trainer_does_not_keep_what_it_freed():
    for stage in (2, 3):
        (resident_, used), = ranks.run(freed_tensors, [0], ranks.shared(2), arguments=(stage,))
        print(f"# stage {stage}: at most {used >> 10} kB in use, {resident_ >> 10} kB resident")
        assert used > 32 << 20, "too little to see anything"
        assert resident_ < 1.25 * used + (16 << 20), (resident_, used)


PARTS = 2


def records(_rank, blocks):
    """The most bytes of malloc's that are in use in a step layer by layer, beyond what is between steps."""
    import zerod.torch as zt
    model = zt.shard(make(layers=blocks, width=32, heads=2), optimizer="sgd", stage=3, stash=blocks * PARTS * (1 << 14))
    optimizer = zt.SGD(model, lr=1e-3)
    layers = zt.LayerByLayer(model, model.blocks, micro_batches=PARTS)
    seen = []
    for t in range(3):
        before = in_use()
        layers.forward_backward(lambda m, part: m(part) / PARTS, batch_of(t, 4))
        optimizer.step()
        if t == 0:
            model.blocks[-1].ln2.register_forward_pre_hook(lambda *_: seen.append(in_use() - before))
    return max(seen)


@case
def a_run_of_a_block_leaves_small_records():
    few, many = (ranks.run(records, [0], ranks.shared(2), arguments=(n,))[0] for n in (8, 72))
    grown = (many - few) / 64
    print(f"# layer by layer: {grown:.0f} bytes a block and {PARTS} micro-batches")
    assert grown < 1024, f"{grown} bytes a block"


# ---- checkpoints of Trainer -----------------------------------------------------------

PIECE = 1 << 20


def written_and_loaded(_rank):
    """The most bytes while a checkpoint is written and loaded, and the size of the optimizer's file."""
    import zerod.torch as zt
    from zerod.torch import checkpoints, files
    files.PIECE = PIECE
    warm_up()
    model = zt.shard(torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))))
    optimizer = zt.AdamW(model)
    model(torch.ones(1, 1024)).sum().backward()
    optimizer.step()
    sharded, defaults = model.sharded, torch.optim.AdamW([torch.zeros(0)]).defaults
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        def there_and_back(name):
            checkpoints.save_plain(f"{directory}/{name}", optimizer, defaults)
            checkpoints.load_plain(f"{directory}/{name}", optimizer)
        there_and_back("first")  # what is loaded and mapped once and for all
        peak = Peak()
        for name, call in (("read", sharded.read), ("write", sharded.write)):
            def looked(*arguments, call=call):
                value = call(*arguments)
                peak.look()
                return value
            setattr(sharded, name, looked)
        there_and_back("second")
        return peak.most, os.path.getsize(f"{directory}/second/optimizer.pt")


@case
def a_trainers_checkpoint_goes_by_pieces():
    (most, size), = ranks.run(written_and_loaded, 1, ranks.shared(2))
    print(f"# optimizer.pt {size >> 10} kB, at most {most >> 10} kB in memory")
    # two to four whole pieces, by what the process had before, and a few kB beside them
    assert size > 24 * PIECE and most < 5 * PIECE, (most, size)


# ---- one copy a node ------------------------------------------------------------------

TRAINERS = 3


def hold_together(rank, met):
    """Meets the others of its node in the middle of a forward pass, where all hold the same groups."""
    import zerod.torch as zt
    model = zt.shard(make(layers=6, width=128), 3)
    optimizer = zt.AdamW(model)
    seen = {}

    def look(*_):
        met.wait(ranks.DEADLINE_S)
        seen.update(smaps())
        seen["window"] = windows(model.sharded.client)[0]
        met.wait(ranks.DEADLINE_S)

    model(batch_of(0)).backward()
    optimizer.step()
    model.blocks[3].down.register_forward_hook(look)
    with torch.no_grad():
        model(batch_of(1))
    return seen["zerod-gather"], seen["window"]


@case
def one_copy_a_node():
    cluster = ranks.shared(2)
    met = multiprocessing.get_context("fork").Barrier(TRAINERS)
    seen, (window, *_) = zip(*ranks.run(hold_together, [0] * TRAINERS, cluster, arguments=(met,)))
    resident, share = (sum(s[field] for s in seen) for field in ("Rss", "Pss"))
    print(f"# window {window >> 10} kB; {TRAINERS} trainers see {resident >> 10} kB, their share is {share >> 10} kB")
    assert all(s["Rss"] == seen[0]["Rss"] > 0 for s in seen), seen
    assert share <= window, f"the trainers' share is {share} bytes, the window has {window}"
    assert share <= resident / TRAINERS * 1.01, f"{share} bytes of {resident} for {TRAINERS} trainers"
    assert not any(s["Private_Dirty"] for s in seen), f"copies of the window: {seen}"


if __name__ == "__main__":
    ranks.main()
