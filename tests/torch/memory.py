#!/usr/bin/env python3
"""At stage 3 a trainer's memory for parameters is its window, however large the model, and trainers of a
node have one copy."""
import multiprocessing
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402
from harness import case  # noqa: E402

import torch  # noqa: E402

from gpt import GPT, batch_of, make  # noqa: E402

HEAD = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)$")
FIELD = re.compile(r"^(Pss|Rss|Private_Clean|Private_Dirty): +(\d+) kB$")
LAYERS, WIDTH, TOKENS = 64, 192, 4


def smaps(pid="self"):
    """Bytes by what is mapped, each {"Rss", "Pss", "Private_Clean", "Private_Dirty"}: zerod's windows
    by name, files of libraries as "files", all else as "own"."""
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


def total(sums, field, *, own):
    """Of all windows; with own: and of what is private."""
    windows = sum(v[field] for k, v in sums.items() if k.startswith("zerod"))
    return windows + (sums["own"]["Private_Clean"] + sums["own"]["Private_Dirty"] if own else 0)


def warm_up():
    """What the first backward pass of a process leaves behind belongs to PyTorch."""
    model = make(layers=1, width=WIDTH, recompute="nonreentrant")
    optimizer = torch.optim.AdamW(model.parameters())
    model(batch_of(0, 1)[:, :TOKENS + 1]).backward()
    optimizer.step()


class Peak:
    """The most of what it sees, above what was there when it began."""

    def __init__(self):
        self.before = total(smaps(), "Rss", own=True)
        self.most = 0

    def look(self, *_):
        self.most = max(self.most, total(smaps(), "Rss", own=True) - self.before)


def large_model(rank):
    """Bytes of the model, and of windows and heap: the most within steps, and between them."""
    import zerod.torch as zt
    warm_up()
    peak = Peak()
    with torch.device("meta"):
        model = GPT(layers=LAYERS, width=WIDTH, recompute="nonreentrant")
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    for block in model.blocks:
        block.down.register_forward_hook(peak.look)
        block.ln1.register_full_backward_hook(peak.look)
    model = zt.shard(model, 3, init_fn=GPT.init)
    optimizer = zt.AdamW(model, lr=1e-4)
    for t in range(3):
        model(batch_of(t, 1)[:, :TOKENS + 1]).backward()
        peak.look()
        optimizer.step()
    after = total(smaps(), "Rss", own=True) - peak.before
    job = model.sharded.client.query("status")
    return size, peak.most, after, job


def windows_of(job):
    return job["gather"]["window_bytes"] + job["sessions"][0]["push_window"]


@case
def bounded_by_the_window():
    cluster = ranks.shared(2)
    placement = [0, 1]
    with ranks.Ranks(large_model, placement, cluster) as job:
        values = job.finish()
        declared = [windows_of(j) for v in values for j in v[3]["jobs"] if j["job"] == job.job]
        cluster[0].ctl("drop", job.job)
    for (size, most, after, _), window in zip(values, declared):
        print(f"# model {size >> 10} kB, window {window >> 10} kB, most {most >> 10} kB, after {after >> 10} kB")
        assert size >= 10 * window, f"the model has {size} bytes, the window {window}"
        assert most <= window and after <= window, f"{most} bytes in steps, {after} after, the window has {window}"


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
        met.wait(ranks.DEADLINE_S)

    model(batch_of(0)).backward()
    optimizer.step()
    model.blocks[3].down.register_forward_hook(look)
    with torch.no_grad():
        model(batch_of(1))
    return seen["zerod-gather"]


@case
def one_copy_a_node():
    cluster = ranks.shared(2)
    met = multiprocessing.get_context("fork").Barrier(TRAINERS)
    # a trainer on the other node would meet nobody
    seen = ranks.run(hold_together, [0] * TRAINERS, cluster, arguments=(met,), keep=True)
    job = cluster[0].status()["jobs"][0]
    window = job["gather"]["window_bytes"]
    resident, share = (sum(s[field] for s in seen) for field in ("Rss", "Pss"))
    print(f"# window {window >> 10} kB; {TRAINERS} trainers see {resident >> 10} kB, their share is {share >> 10} kB")
    assert all(s["Rss"] == seen[0]["Rss"] > 0 for s in seen), seen
    assert share <= window, f"the trainers' share is {share} bytes, the window has {window}"
    assert share <= resident / TRAINERS * 1.01, f"{share} bytes of {resident} for {TRAINERS} trainers"
    assert not any(s["Private_Dirty"] for s in seen), f"copies of the window: {seen}"
    cluster[0].ctl("drop", job["job"])


if __name__ == "__main__":
    ranks.main()
