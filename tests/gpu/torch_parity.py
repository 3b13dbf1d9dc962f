#!/usr/bin/env python3
"""Two PyTorch trainers on one GPU and its daemon: the same bits with states on GPU and host, a trainer
killed in between or not.  That they learn what plain PyTorch learns is for tests/torch/on_gpu.py.

usage: torch_parity.py TOP PLUGIN [--quick]; a line of JSON: how long after a trainer was killed the job makes its
next step, with a successor that starts at once.  The ratio is of a process that only starts, imports torch and takes
the GPU to that: 1 is as fast as can be.
"""
import json
import math
import os
import subprocess
import sys
import time

from where import GPU_STATES, HERE, HOST_STATES, cluster, trainer_environment, use_bundle

sys.path.insert(0, os.path.join(HERE, "..", "support"))
from cluster import spawn  # noqa: E402

TOP, PLUGIN = sys.argv[1:3]
STEPS = 5 if "--quick" in sys.argv else 20
END_S = 300
SEQUENCES = "2"
HELD_AT = "2"  # step


def rank_of(c, rank, world, **more):
    with open(f"{c.directory}/rank-{rank}.log", "ab") as log:
        return spawn([sys.executable, "-B", f"{HERE}/trainer.py", "zerod", "tiny", str(STEPS), SEQUENCES,
                      c[0].socket, "torch", str(rank), str(world)], stdin=subprocess.DEVNULL,
                     stdout=subprocess.PIPE, stderr=log, text=True,
                     env={**trainer_environment(TOP, PLUGIN), "TRAINER_DETERMINISTIC": "1",
                          "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **more})


def log_of(c, rank):
    with open(f"{c.directory}/rank-{rank}.log", encoding="utf-8", errors="replace") as log:
        return log.read()[-3000:]


def answer(c, rank, process):
    out = process.communicate(timeout=END_S)[0]
    if process.returncode:
        raise AssertionError(f"rank {rank} ended with {process.returncode}: {log_of(c, rank)}")
    return json.loads(out.splitlines()[-1])


def figure(killed, at):
    """What the successor did from the kill to the end of its first step."""
    stages = ["main", "import torch", "CUDA", "import zerod", "model", "attach", "first step"]
    times = [killed] + [at[s] for s in stages]
    took = {s: round(b - a, 3) for s, a, b in zip(["start", *stages[1:]], times, times[1:])}
    total = at["first step"] - killed
    ratio = round((at["CUDA"] - killed) / total, 4)
    print(json.dumps({"name": "a trainer is killed: to the job's next step", "repeat": 1, "median_ratio": ratio,
                      "spread": [ratio, ratio], "seconds": round(total, 3), **took}), flush=True)


def train(states, kill=False):
    with cluster(PLUGIN, **states) as c:
        ranks = [rank_of(c, i, 2, **({"TRAINER_HOLDS_AT": HELD_AT} if kill and i else {})) for i in range(2)]
        if kill:
            said = ranks[1].stdout.readline()
            assert said == "holds\n", f"rank 1 ended before it was killed: {log_of(c, 1)}"
            killed = time.monotonic()
            ranks[1].kill()
            ranks[1].communicate()
            ranks[1] = rank_of(c, 1, 2, TORCHELASTIC_RESTART_COUNT="1")
        answers = [answer(c, i, r) for i, r in enumerate(ranks)]
        if kill:
            figure(killed, answers[1]["at"])
        return c.checksum("torch"), answers[0]["losses"], log_of(c, 0)


def main():
    use_bundle(TOP)
    on_gpu, losses, said = train(GPU_STATES)
    assert all(map(math.isfinite, losses)), losses
    on_host, *_ = train(HOST_STATES)
    # PyTorch warns of an operation that is not deterministic
    assert on_gpu == on_host, f"states on the GPU {on_gpu}, on the host {on_host}; {said}"
    print("states on the GPU and on the host have the same bits", flush=True)
    killed, *_ = train(GPU_STATES, kill=True)
    print(f"a trainer was killed: the bits are {'the same' if killed == on_gpu else 'others'}")
    assert killed == on_gpu


if __name__ == "__main__":
    main()
