#!/usr/bin/env python3
"""The plugin's table in Python agrees with the headers, and a step by it is AdamW's; on the stand-in for a GPU."""
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "support"))

from c_compiler import check_layout, values  # noqa: E402
import fake_gpu  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402
import plugin  # noqa: E402

HEADER, FOLDERS = "cuda/zero_cuda.h", [ROOT, os.path.join(ROOT, "proto")]
STRUCTS = {"zero_cuda_plugin": plugin.Table, "update_piece": plugin.Piece, "update_scalars": plugin.Scalars,
           "adam_scalars": plugin.Adam}
CONSTANTS = {"ZERO_CUDA_ABI_VERSION": plugin.ABI, "ZERO_FP32": plugin.FP32, "ZERO_BF16": plugin.BF16, "UPDATE_ADAMW": plugin.ADAMW,
             "UPDATE_PLANES": plugin.PLANES, "UPDATE_SOURCES": plugin.SOURCES}
N, STEPS, LR, BETAS, EPS, DECAY = 1000, 3, 1e-2, (0.9, 0.99), 1e-8, 0.1


@cases_of(STRUCTS)
def layout_in_memory_of(name):
    """No field, and no function of the table, is missing or out of its place."""
    check_layout(name, STRUCTS[name], [field for field, _ in STRUCTS[name]._fields_], HEADER, FOLDERS)


@case
def constants():
    told = dict(zip(CONSTANTS, values(CONSTANTS, HEADER, FOLDERS)))
    assert told == CONSTANTS, f"in C: {told}"


def expected(p, g):
    """The parameter after the steps, in double precision."""
    m = v = 0
    for step in range(1, STEPS + 1):
        p *= 1 - LR * DECAY
        m += (g - m) * (1 - BETAS[0])
        v = v * BETAS[1] + g * g * (1 - BETAS[1])
        p -= LR / (1 - BETAS[0] ** step) * m / ((v / (1 - BETAS[1] ** step)) ** 0.5 + EPS)
    return p


@case
def steps_are_those_of_adamw():
    table, chance = plugin.load(fake_gpu.plugin()), random.Random(1)
    stream, addresses = table.new_stream(), [table.new_pinned(4 * N) for _ in range(5)]
    p, m, v, g = ((ctypes.c_float * N).from_address(address) for address in addresses[:4])
    served = (ctypes.c_uint16 * N).from_address(addresses[4])
    for i in range(N):
        p[i], m[i], v[i], g[i] = chance.gauss(0, 1), 0, 0, chance.gauss(0, 1)
    begin = list(p)
    adamw = plugin.AdamW(table, [(N, addresses[:3], addresses[3], addresses[4])], LR, BETAS, EPS, DECAY)
    for _ in range(STEPS):
        adamw.step(stream)
    assert table.stream_wait(stream) == 0
    for i in range(N):
        assert abs(p[i] - expected(begin[i], g[i])) < 1e-6, f"{p[i]} is not {expected(begin[i], g[i])}"
        copy = ctypes.c_float.from_buffer(ctypes.c_uint32(served[i] << 16)).value
        assert abs(copy - p[i]) <= abs(p[i]) / 256, f"{copy} is served for {p[i]}"


@case
def adamw_beside_pytorchs():
    python = os.environ.get("TESTS_PYTHON")
    if not python:
        raise Skip("no Python with PyTorch: set TESTS_PYTHON")
    with tempfile.TemporaryDirectory() as cache:  # PyTorch makes it where it finds none
        told = subprocess.run([python, "-B", os.path.join(HERE, "adamw.py"), fake_gpu.plugin(), "--small"], check=True,
                              env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}, capture_output=True, text=True).stdout
    assert [json.loads(line)["elements"] > 0 for line in told.splitlines()] == [True] * 3, told


if __name__ == "__main__":
    main()
