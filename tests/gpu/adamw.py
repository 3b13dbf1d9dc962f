#!/usr/bin/env python3
"""The plugin's fused AdamW against torch.optim.AdamW(fused=True), on tensors of the same sizes.

usage: adamw.py PLUGIN [--quick]; lines of JSON.  The ratio is torch's time over ours: above 1 is faster.

torch's keeps no copy in half precision; ours is measured with and without writing one.  Before, one
step of both from the same state is compared.
"""
import ctypes
import json
import statistics
import sys
import time

import torch

PLUGIN = sys.argv[1]
QUICK = "--quick" in sys.argv
ABI, FP32, BF16 = 6, 1, 2
GRADS = 3
LR, BETA1, BETA2, EPS, DECAY = 1e-3, 0.9, 0.999, 1e-8, 0.1
# As in cuda/zero_cuda.h; what is not called here is only counted.
TABLE = ["device_count", "device_info", "use", "alloc", "free", "memory", "share_new", "share_free",
         "pinned_new", "pinned_free", "gpu_of", "event_open", "event_done", "event_free", "stream_new",
         "stream_wait", "stream_free", "adamw"]


class Update(ctypes.Structure):
    """struct zero_cuda_adamw"""
    _fields_ = [*((name, ctypes.c_float) for name in (
        "grad_scale", "decay", "one_minus_beta1", "beta2", "one_minus_beta2", "step_size", "sqrt_bias2", "eps")),
        ("n", ctypes.c_size_t), *((name, ctypes.c_void_p) for name in ("p", "m", "v")), ("grad", ctypes.c_void_p * GRADS),
        ("k", ctypes.c_uint32), ("grad_dtype", ctypes.c_int), ("wire", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in ("out_p", "out_m", "out_v", "serve")), ("serve_dtype", ctypes.c_int)]


class Table(ctypes.Structure):
    _fields_ = [("abi_version", ctypes.c_uint32), *((name, ctypes.c_void_p) for name in TABLE)]


def plugin_adamw():
    library = ctypes.CDLL(PLUGIN)
    library.zero_cuda_plugin.restype = ctypes.POINTER(Table)
    table = library.zero_cuda_plugin().contents
    assert table.abi_version == ABI, f"the plugin has version {table.abi_version}, this script knows {ABI}"
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Update), ctypes.c_size_t, ctypes.c_void_p)(table.adamw)


class Ours:
    def __init__(self, tensors, gradients, serve):
        self.call, self.step_number, self.keep = plugin_adamw(), 0, []
        updates = []
        for p, g in zip(tensors, gradients):
            m, v = torch.zeros_like(p), torch.zeros_like(p)
            s = torch.empty_like(p, dtype=torch.bfloat16) if serve else None
            self.keep.append((p, g, m, v, s))
            addresses = [t.data_ptr() for t in (p, m, v, p, m, v)]
            updates.append(Update(n=p.numel(), grad=(g.data_ptr(),), k=1, grad_dtype=FP32, wire=FP32, serve_dtype=BF16, serve=s.data_ptr() if serve else None, **dict(
                zip(("p", "m", "v", "out_p", "out_m", "out_v"), addresses))))
        self.updates = (Update * len(updates))(*updates)

    def step(self):
        self.step_number += 1
        t, stream = self.step_number, torch.cuda.current_stream().cuda_stream
        for u in self.updates:
            u.grad_scale, u.decay, u.eps = 1, 1 - LR * DECAY, EPS
            u.one_minus_beta1, u.beta2, u.one_minus_beta2 = 1 - BETA1, BETA2, 1 - BETA2
            u.step_size, u.sqrt_bias2 = LR / (1 - BETA1 ** t), (1 - BETA2 ** t) ** 0.5
        status = self.call(self.updates, len(self.updates), stream)
        assert status == 0, status


def random_tensors(shapes, seed):
    chance = torch.Generator(device="cuda").manual_seed(seed)
    return [torch.randn(s, generator=chance, device="cuda") for s in shapes]


def torchs(tensors, gradients):
    for p, g in zip(tensors, gradients):
        p.requires_grad_(True)
        p.grad = g
    return torch.optim.AdamW(tensors, lr=LR, betas=(BETA1, BETA2), eps=EPS, weight_decay=DECAY, fused=True)


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


def seconds(step, times):
    step()
    torch.cuda.synchronize()
    begin = time.monotonic()
    for _ in range(times):
        step()
    torch.cuda.synchronize()
    return (time.monotonic() - begin) / times


def measure(name, shapes, serve):
    gradients = random_tensors(shapes, 2)
    ours = Ours(random_tensors(shapes, 1), gradients, serve)
    reference = torchs(random_tensors(shapes, 1), gradients)
    times, rounds = (2, 3) if QUICK else (20, 11)
    ratios, own = [], []
    for _ in range(rounds):
        peer = seconds(reference.step, times)
        own.append(seconds(ours.step, times))
        ratios.append(peer / own[-1])
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    print(json.dumps({"name": name, "repeat": rounds, "median_ratio": round(middle, 4),
                      "spread": [round(low, 4), round(high, 4)], "ours_ms": round(1e3 * statistics.median(own), 4),
                      "elements": sum(p.numel() for p, *_ in ours.keep)}), flush=True)


def main():
    one = [(1 << 20,)] if QUICK else [(1 << 27,)]
    # of a GPT with 24 blocks, 1024 wide
    block = [(3072, 1024), (1024, 1024), (4096, 1024), (1024, 4096), (1024,), (1024,), (4096,)]
    many = block * (2 if QUICK else 24)
    compare(block)
    measure("adamw of one tensor", one, False)
    measure("adamw of one tensor, and serve in bf16", one, True)
    measure("adamw of many tensors, in one call", many, False)


if __name__ == "__main__":
    main()
