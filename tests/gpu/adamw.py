#!/usr/bin/env python3
"""The plugin's fused AdamW against torch.optim.AdamW(fused=True), on tensors of the same sizes.

usage: adamw.py PLUGIN; lines of JSON.  The ratio is torch's time over ours: above 1 is faster.

torch's keeps no copy in half precision; ours is measured with and without writing one.  Before, three
steps of both from the same state are compared.
"""
import json
import statistics
import sys
import time

import torch

import plugin

PLUGIN = sys.argv[1]
TIMES, ROUNDS = 20, 11
LR, BETAS, EPS, DECAY = 1e-3, (0.9, 0.999), 1e-8, 0.1


class Ours:
    def __init__(self, tensors, gradients, serve):
        self.keep = [(p, torch.zeros_like(p), torch.zeros_like(p), g, torch.empty_like(p, dtype=torch.bfloat16) if serve else None)
                     for p, g in zip(tensors, gradients)]
        self.adamw = plugin.AdamW(plugin.load(PLUGIN), [
            (p.numel(), [t.data_ptr() for t in (p, m, v)], g.data_ptr(), s.data_ptr() if serve else None)
            for p, m, v, g, s in self.keep], LR, BETAS, EPS, DECAY)

    def step(self):
        self.adamw.step(torch.cuda.current_stream().cuda_stream)


def random_tensors(shapes, seed):
    chance = torch.Generator(device="cuda").manual_seed(seed)
    return [torch.randn(s, generator=chance, device="cuda") for s in shapes]


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
    torch.cuda.synchronize()
    # roundings, of which those above 1 are as large as they are
    worst = max(float(((a - b).abs() / b.abs().clamp(min=1)).max()) for a, b in zip(mine, (t.detach() for t in theirs)))
    assert worst < 1e-6, f"after three steps parameters differ by {worst}"
    print(f"after three steps parameters differ from torch's by at most {worst:.1e}", file=sys.stderr)


def seconds(step):
    step()
    torch.cuda.synchronize()
    begin = time.monotonic()
    for _ in range(TIMES):
        step()
    torch.cuda.synchronize()
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
    one = [(1 << 27,)]
    # of a GPT with 24 blocks, 1024 wide
    block = [(3072, 1024), (1024, 1024), (4096, 1024), (1024, 4096), (1024,), (1024,), (4096,)]
    many = block * 24
    compare(block)
    measure("adamw of one tensor", one, False)
    measure("adamw of one tensor, and serve in bf16", one, True)
    measure("adamw of many tensors, in one call", many, False)


if __name__ == "__main__":
    main()
