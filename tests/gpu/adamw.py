#!/usr/bin/env python3
"""The plugin's fused AdamW against torch.optim.AdamW(fused=True), on tensors of the same sizes.

usage: adamw.py PLUGIN [--small]; lines of JSON.  The ratio is torch's time over ours: above 1 is faster.
--small is for a stand-in: tensors are in its pinned memory, and figures say nothing.

torch's keeps no copy in half precision; ours is measured with and without writing one.  Before, three
steps of both from the same state are compared.
"""
import ctypes
import json
import math
import statistics
import sys
import time

import torch

import plugin

TABLE, SMALL = plugin.load(sys.argv[1]), "--small" in sys.argv
STREAM = TABLE.new_stream() if SMALL else torch.cuda.current_stream().cuda_stream
TIMES, ROUNDS = (2, 3) if SMALL else (20, 11)
LR, BETAS, EPS, DECAY = 1e-3, (0.9, 0.999), 1e-8, 0.1


def new(shape, dtype=torch.float32):
    if not SMALL:
        return torch.empty(shape, dtype=dtype, device="cuda")
    n = math.prod(shape)
    memory = (ctypes.c_float * n).from_address(TABLE.new_pinned(4 * n))
    return torch.frombuffer(memory, dtype=dtype, count=n).view(shape)


def wait():
    if SMALL:
        assert TABLE.stream_wait(STREAM) == 0
    else:
        torch.cuda.synchronize()


class Ours:
    def __init__(self, tensors, gradients, serve):
        self.keep = [(p, new(p.shape).zero_(), new(p.shape).zero_(), g, new(p.shape, torch.bfloat16) if serve else None)
                     for p, g in zip(tensors, gradients)]
        self.adamw = plugin.AdamW(TABLE, [
            (p.numel(), [t.data_ptr() for t in (p, m, v)], g.data_ptr(), s.data_ptr() if serve else None)
            for p, m, v, g, s in self.keep], LR, BETAS, EPS, DECAY)

    def step(self):
        self.adamw.step(STREAM)


def random_tensors(shapes, seed):
    chance = torch.Generator(device="cpu" if SMALL else "cuda").manual_seed(seed)
    return [new(s).normal_(generator=chance) for s in shapes]


def torchs(tensors, gradients):
    for p, g in zip(tensors, gradients):
        p.requires_grad_(True)
        p.grad = g
    return torch.optim.AdamW(tensors, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, fused=True)


def compare(shapes):
    mine, theirs, gradients = random_tensors(shapes, 1), random_tensors(shapes, 1), random_tensors(shapes, 2)
    ours, reference = Ours(mine, gradients, False), torchs(theirs, gradients)
    for _ in range(3):
        ours.step()
        reference.step()
    wait()
    # roundings, of which those above 1 are as large as they are
    worst = max(float(((a - b).abs() / b.abs().clamp(min=1)).max()) for a, b in zip(mine, (t.detach() for t in theirs)))
    assert worst < 1e-6, f"after three steps parameters differ by {worst}"
    print(f"after three steps parameters differ from torch's by at most {worst:.1e}", file=sys.stderr)


def seconds(step):
    step()
    wait()
    begin = time.monotonic()
    for _ in range(TIMES):
        step()
    wait()
    return (time.monotonic() - begin) / TIMES


def measure(name, shapes, serve):
    gradients = random_tensors(shapes, 2)
    ours = Ours(random_tensors(shapes, 1), gradients, serve)
    reference = torchs(random_tensors(shapes, 1), gradients)
    ratios, own = [], []
    for _ in range(ROUNDS):
        peer = seconds(reference.step)
        own.append(seconds(ours.step))
        ratios.append(peer / own[-1])
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    print(json.dumps({"name": name, "repeat": ROUNDS, "median_ratio": round(middle, 4),
                      "spread": [round(low, 4), round(high, 4)], "ours_ms": round(1e3 * statistics.median(own), 4),
                      "elements": sum(p.numel() for p, *_ in ours.keep)}), flush=True)


def main():
    width, blocks = (32, 2) if SMALL else (1024, 24)  # of a GPT
    one = [(1 << (10 if SMALL else 27),)]
    block = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width), (width,), (width,), (4 * width,)]
    compare(block)
    measure("adamw of one tensor", one, False)
    measure("adamw of one tensor, and serve in bf16", one, True)
    measure("adamw of many tensors, in one call", block * blocks, False)


if __name__ == "__main__":
    main()
