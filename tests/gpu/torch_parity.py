#!/usr/bin/env python3
"""Two PyTorch trainers on one GPU and its daemon: the same bits with states on GPU and host, a trainer
killed in between or not.  That they learn what plain PyTorch learns is for tests/torch/on_gpu.py.

usage: torch_parity.py TOP PLUGIN [--quick]
"""
import json
import math
import os
import subprocess
import sys

from where import GPU_STATES, HERE, HOST_STATES, cluster, trainer_environment, use_bundle

sys.path.insert(0, os.path.join(HERE, "..", "support"))
from cluster import spawn, until  # noqa: E402

TOP, PLUGIN = sys.argv[1:3]
STEPS = 5 if "--quick" in sys.argv else 20
END_S = 300
SEQUENCES = "2"


def rank_of(c, rank, world, **more):
    with open(f"{c.directory}/rank-{rank}.log", "ab") as log:
        return spawn([sys.executable, "-B", f"{HERE}/trainer.py", "zerod", "tiny", str(STEPS), SEQUENCES,
                      c[0].socket, "torch", str(rank), str(world)], stdin=subprocess.DEVNULL,
                     stdout=subprocess.PIPE, stderr=log, text=True,
                     env={**trainer_environment(TOP, PLUGIN), "TRAINER_DETERMINISTIC": "1",
                          "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **more})


def answer(c, rank, process):
    out = process.communicate(timeout=END_S)[0]
    if process.returncode:
        with open(f"{c.directory}/rank-{rank}.log", encoding="utf-8", errors="replace") as log:
            raise AssertionError(f"rank {rank} ended with {process.returncode}: {log.read()[-3000:]}")
    return json.loads(out.splitlines()[-1])


def train(states, kill=False):
    with cluster(PLUGIN, **states) as c:
        ranks = [rank_of(c, i, 2) for i in range(2)]
        if kill:
            until(lambda: (c[0].job("torch") or {}).get("version", 0) >= 1, END_S, "the first step")
            ranks[1].kill()
            ranks[1].communicate()
            ranks[1] = rank_of(c, 1, 2, TORCHELASTIC_RESTART_COUNT="1")
        losses = [answer(c, i, r)["losses"] for i, r in enumerate(ranks)]
        return c.checksum("torch"), losses[0]


def main():
    use_bundle(TOP)
    on_gpu, losses = train(GPU_STATES)
    assert all(map(math.isfinite, losses)), losses
    on_host, _ = train(HOST_STATES)
    assert on_gpu == on_host, f"states on the GPU {on_gpu}, on the host {on_host}"
    print("states on the GPU and on the host have the same bits", flush=True)
    killed, _ = train(GPU_STATES, kill=True)
    print(f"a trainer was killed: the bits are {'the same' if killed == on_gpu else 'others'}")
    assert killed == on_gpu


if __name__ == "__main__":
    main()
