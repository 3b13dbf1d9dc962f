#!/usr/bin/env python3
"""One rank that trains a GPT on the GPU: by plain PyTorch, FSDP2 or zerod.

usage: trainer.py SYSTEM SIZE STEPS SEQUENCES [SOCKET JOB RANK WORLD]

$TRAINER_DETERMINISTIC: two runs give the same bits.  All have fp32 master weights and moments, compute in bf16 and update by AdamW.  Ends with a line of
JSON: the losses, and seconds a step (the median after three steps to warm up).
"""
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench", "torch_bench"))

import torch  # noqa: E402

import model as gpt  # noqa: E402

gpt.CONTEXT = 1024
gpt.SIZES["350m"] = {"width": 1024, "layers": 24, "vocabulary": 50304}
WARM = 3
SEED = 1


def batch(size, step, rank, sequences):
    chance = torch.Generator(device="cuda").manual_seed(1000003 * SEED + 1009 * step + rank)
    tokens = torch.randint(gpt.SIZES[size]["vocabulary"], (sequences, gpt.CONTEXT + 1), generator=chance,
                           device="cuda")
    return tokens[:, :-1], tokens[:, 1:]


class Plain:
    """fp32 parameters, autocast."""

    first = 0  # step

    def __init__(self, size):
        self.model = gpt.build(size).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **gpt.ADAMW, fused=True)

    def forward(self, tokens, following):
        with torch.autocast("cuda", torch.bfloat16):
            return self.model(tokens, following)

    def step(self, tokens, following):
        loss = self.forward(tokens, following)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


class Fsdp2(Plain):
    """One rank, so that what it costs is its own work and no network's."""

    def __init__(self, size):
        import torch.distributed as dist
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        os.environ.update({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                           "MASTER_PORT": "0"})
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        self.model = gpt.build(size).cuda()
        for block in self.model.blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(self.model, mp_policy=policy)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **gpt.ADAMW, fused=True)

    def forward(self, tokens, following):
        return self.model(tokens, following)


class Zerod(Plain):
    """Stage 3; parameters, windows and gradients on the GPU."""

    def __init__(self, size, socket, job, rank, world):
        import zerod
        import zerod.torch as zt

        client = zerod.connect(job=job, socket=socket, rank=int(rank), world_size=int(world),
                               local_world_size=int(world), timeout=240.0)
        self.model = zt.shard(gpt.build(size).bfloat16().cuda(), stage=3, client=client)
        self.optimizer = zt.AdamW(self.model, **gpt.ADAMW)
        self.first = self.model.sharded.steps_made  # a dead rank's successor goes on where it was

    def forward(self, tokens, following):
        return self.model(tokens, following)


def main(system, size, steps, sequences, *where):
    if os.environ.get("TRAINER_DETERMINISTIC"):
        torch.use_deterministic_algorithms(True, warn_only=True)
    makers = {"plain": Plain, "fsdp2": Fsdp2, "zerod": Zerod}
    trainer = makers[system](size, *where)
    rank = int(where[2]) if where else 0
    losses, ends = [], []
    for step in range(trainer.first, int(steps)):
        losses.append(trainer.step(*batch(size, step, rank, int(sequences))).item())
        torch.cuda.synchronize()
        ends.append(time.monotonic())
    times = [b - a for a, b in zip(ends[WARM:], ends[WARM + 1:])]
    print(json.dumps({"losses": losses, "step_s": statistics.median(times) if times else None,
                      "tokens": int(sequences) * gpt.CONTEXT,
                      "peak_bytes": torch.cuda.max_memory_allocated()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
