#!/usr/bin/env python3
"""One rank that trains a GPT on the GPU: by plain PyTorch, FSDP2, DeepSpeed or zerod.

usage: trainer.py SYSTEM SIZE STEPS SEQUENCES [SOCKET JOB RANK WORLD]

All update by AdamW in fp32.  All but `autocast`, whose parameters are fp32, compute in bf16 beside fp32 master weights.
Ends with a line of JSON: the losses, seconds a step (the median after three steps to warm up), and when
this process had reached what (time.monotonic()).  Where there is no GPU it runs on the CPU, and zerod on its
stand-in: shows that it runs.

$TRAINER_SECONDS: no step begins later than so long after the first one's end, once two have counted.
$TRAINER_PUSH_GROUPS: zerod has room for so many groups' gradients.
$TRAINER_DETERMINISTIC: two runs give the same bits.
$TRAINER_HOLDS_AT=STEP: says so before that step's update, and waits to be killed.
"""
import contextlib
import json
import os
import statistics
import sys
import time

AT = {"main": time.monotonic()}
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "compare", "systems"), os.path.join(HERE, "..", "torch")]

import torch  # noqa: E402

import model as gpt  # noqa: E402

AT["import torch"] = time.monotonic()

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
gpt.CONTEXT = 1024 if GPU else 64
gpt.SIZES["350m"] = {"width": 1024, "layers": 24, "vocabulary": 50304}
WARM = 3
SEED = 1


def batch(size, step, rank, sequences):
    chance = torch.Generator(device=DEVICE).manual_seed(1000003 * SEED + 1009 * step + rank)
    tokens = torch.randint(gpt.SIZES[size]["vocabulary"], (sequences, gpt.CONTEXT + 1), generator=chance,
                           device=DEVICE)
    return tokens[:, :-1], tokens[:, 1:]


def build(size):
    with torch.device(DEVICE):
        return gpt.build(size)


def wait_for_gpu():
    if GPU:
        torch.cuda.synchronize()


def one_rank():
    """torch.distributed with one rank, so that what a system costs is its own work and no network's."""
    import torch.distributed as dist

    os.environ.update({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})
    dist.init_process_group("nccl" if GPU else "gloo", store=dist.HashStore(), rank=0, world_size=1)


class Trainer:
    first = 0  # step
    note = ""  # on what was measured

    def forward(self, tokens, following):
        return self.model(tokens, following)

    def gradients(self, tokens, following):
        loss = self.forward(tokens, following)
        loss.backward()
        return loss.detach()

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


class Autocast(Trainer):
    def __init__(self, size, *_):
        self.model = build(size)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **gpt.ADAMW, fused=True)

    def forward(self, tokens, following):
        with torch.autocast(DEVICE, torch.bfloat16):
            return self.model(tokens, following)


class Masters(Trainer):
    """The arithmetic of FSDP2 and zerod in one process."""

    def __init__(self, size, *_):
        self.model = build(size)
        self.masters = [p.detach().clone() for p in self.model.parameters()]
        self.model.bfloat16()
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.masters, **gpt.ADAMW, fused=True)

    def update(self):
        for master, p in zip(self.masters, self.parameters):
            master.grad = p.grad.float()
            p.grad = None
        super().update()
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, self.masters)  # pylint: disable=protected-access


class Fsdp2(Trainer):
    def __init__(self, size, *_):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        one_rank()
        more = {"mesh": init_device_mesh(DEVICE, (1,)),
                "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
        self.model = build(size)
        for block in self.model.blocks:
            fully_shard(block, **more)
        fully_shard(self.model, **more)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **gpt.ADAMW, fused=True)


class Zero3(Trainer):
    """DeepSpeed's stage 3, with torch's fused AdamW: its own is compiled at the first use."""

    offload = {}

    def __init__(self, size, sequences):
        import deepspeed

        one_rank()
        model = build(size).bfloat16()
        optimizer = torch.optim.AdamW(model.parameters(), **gpt.ADAMW, fused=True)
        settings = {"train_micro_batch_size_per_gpu": sequences, "steps_per_print": 1 << 30, "gradient_clipping": 0.0,
                    "bf16": {"enabled": True}, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
                    "zero_optimization": {"stage": 3, **self.offload}}
        self.model = deepspeed.initialize(model=model, optimizer=optimizer, config=settings,
                                          dist_init_required=False)[0]

    def gradients(self, tokens, following):
        loss = self.model(tokens, following)
        self.model.backward(loss)
        return loss.detach()

    def update(self):
        self.model.step()


class Offload(Zero3):
    """ZeRO-Offload: states and update on the host."""

    offload = {"offload_optimizer": {"device": "cpu", "pin_memory": GPU}}
    note = "PyTorch's AdamW on the CPU: DeepSpeed's own is compiled at the first use"


def push_groups(shard):
    import inspect

    slots = os.environ.get("TRAINER_PUSH_GROUPS")
    if slots and "push_groups" not in inspect.signature(shard).parameters:
        sys.exit("this zerod takes no push_groups")
    return {"push_groups": int(slots)} if slots else {}


class Zerod(Trainer):
    """Stage 3; parameters, windows and gradients on the GPU."""

    def __init__(self, size, _, socket, job, rank, world):
        import zerod
        import zerod.torch as zt

        AT["import zerod"] = time.monotonic()
        if not GPU:
            import storages

            zt.wrap.place_of = lambda device, values: storages.Stand()
        model = build(size).bfloat16()
        wait_for_gpu()
        AT["model"] = time.monotonic()
        client = zerod.connect(job=job, socket=socket, rank=int(rank), world_size=int(world),
                               local_world_size=int(world), timeout=240.0)
        self.model = zt.shard(model, stage=3, client=client, **push_groups(zt.shard))
        self.optimizer = zt.AdamW(self.model, **gpt.ADAMW)
        self.first = self.model.sharded.steps_made  # a dead rank's successor goes on where it was


def same_bits():
    """A fused attention's backward pass may differ from run to run, with a warning alone."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.use_deterministic_algorithms(True, warn_only=True)
    return sdpa_kernel(SDPBackend.MATH)


def hold(step):
    if os.environ.get("TRAINER_HOLDS_AT") == str(step):
        wait_for_gpu()
        print("holds", flush=True)
        time.sleep(3600)


def train(trainer, size, steps, sequences, rank):
    """Losses, and when each step had ended."""
    seconds = float(os.environ.get("TRAINER_SECONDS", "inf"))
    losses, ends = [], []
    for step in range(trainer.first, steps):
        loss = trainer.gradients(*batch(size, step, rank, sequences))
        hold(step)
        trainer.update()
        losses.append(loss.item())
        wait_for_gpu()
        ends.append(time.monotonic())
        if ends[-1] - ends[0] > seconds and len(ends) > WARM + 2:
            break
    return losses, ends


SYSTEMS = {"autocast": Autocast, "masters": Masters, "fsdp2": Fsdp2, "zero3": Zero3, "offload": Offload, "zerod": Zerod}


def main(system, size, steps, sequences, *where):
    torch.zeros(1, device=DEVICE)
    how = same_bits() if os.environ.get("TRAINER_DETERMINISTIC") else contextlib.nullcontext()  # torch takes seconds for that
    AT["CUDA"] = time.monotonic()
    with how:
        trainer = SYSTEMS[system](size, int(sequences), *where)
        wait_for_gpu()
        AT["attach"] = time.monotonic()
        losses, ends = train(trainer, size, int(steps), int(sequences), int(where[2]) if where else 0)
    AT["first step"] = ends[0] if ends else None
    times = [b - a for a, b in zip(ends[WARM:], ends[WARM + 1:])]
    print(json.dumps({"losses": losses, "step_s": statistics.median(times) if times else None, "timed": len(times),
                      "tokens": int(sequences) * gpt.CONTEXT, "at": AT, "note": trainer.note,
                      "peak_bytes": torch.cuda.max_memory_allocated() if GPU else 0}))


if __name__ == "__main__":
    main(*sys.argv[1:])
