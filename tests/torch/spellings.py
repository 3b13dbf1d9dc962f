#!/usr/bin/env python3
"""What scripts written for torch's optimizers and FSDP2 say: it works if it means the same here, else an error says
what to write instead."""
import inspect
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from harness import case, cases_of  # noqa: E402

import torch  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler  # noqa: E402

import zerod  # noqa: E402
import zerod.torch as zt  # noqa: E402
from common import raises  # noqa: E402
from net import full, in_rank, loss_of, make, tokens, train  # noqa: E402

LEARNING_RATES = [1e-2, 1e-3, 5e-3, 2e-2]


def near(got, want):
    """What is trained alike; eps is large, so that rounding errors make no updates."""
    for name, value in want.named_parameters(remove_duplicate=False):
        assert (got[name] - value).norm() <= 1e-5 * value.norm().clamp_min(1), name


# ---- optimizers ----------------------------------------------------------------------


def lr_is_a_tensor():
    plain, model = make(), zt.shard(make())
    for m, kind in ((plain, torch.optim.AdamW), (model, zt.AdamW)):
        optimizer = kind(m if m is model else m.parameters(), lr=torch.tensor(1.0), eps=1e-3, fused=False, foreach=False)
        for step, lr in enumerate(LEARNING_RATES):
            optimizer.param_groups[0]["lr"].fill_(lr)
            loss_of(m, step).backward()
            optimizer.step()
            optimizer.zero_grad()
    near(full(model), plain)
    with tempfile.TemporaryDirectory() as directory:
        zt.save_checkpoint(directory, model, optimizer)
        optimizer.param_groups[0]["lr"].fill_(1.0)
        zt.load_checkpoint(directory, model, optimizer)
    assert abs(optimizer.param_groups[0]["lr"] - LEARNING_RATES[-1]) < 1e-9
    raises(ValueError, ["lr", "one element"], zt.AdamW, model, lr=torch.ones(2))


@case
def lr_may_be_a_tensor():
    in_rank(lr_is_a_tensor)


def configure_optimizers(kind, model, device_type):
    """As nanoGPT's model has it; kind(groups, lr=..., betas=...) is the line that changes."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    groups = [{"params": [p for p in named.values() if p.dim() >= 2], "weight_decay": 0.1},
              {"params": [p for p in named.values() if p.dim() < 2], "weight_decay": 0.0}]
    counted = [sum(p.numel() for p in group["params"]) for group in groups]
    can_fuse = "fused" in inspect.signature(torch.optim.AdamW).parameters
    more = {"fused": True} if can_fuse and device_type == "cuda" else {}
    return kind(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-3, **more), counted


def trains_by_configure_optimizers():
    plain, model = make(tied=True), zt.shard(make(tied=True))
    wanted, elements = configure_optimizers(torch.optim.AdamW, plain, "cpu")
    optimizer, counted = configure_optimizers(lambda *a, **k: zt.AdamW(model, *a, **k), model, "cuda")
    assert counted == elements
    train(plain, wanted)
    train(model, optimizer)
    near(full(model), plain)


@case
def configure_optimizers_as_in_nanogpt():
    in_rank(trains_by_configure_optimizers)


# ---- FSDP2 ---------------------------------------------------------------------------


def marked(block, root=None):
    model = make()
    for b in model.blocks:
        zt.fully_shard(b, reshard_after_forward=block)
    return zt.fully_shard(model, reshard_after_forward=root)


def reshards(block):
    stage, other = (3, 2) if block else (2, 3)
    raises(ValueError, ["blocks.0", f"stage {stage}", f"stage={stage}"], zt.shard, marked(block), stage=other)
    plain, model = make(), zt.shard(marked(block, root=False), stage=stage)
    train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2, eps=1e-3))
    train(model, zt.AdamW(model, lr=1e-2, eps=1e-3))
    near(full(model), plain)


@cases_of([True, False])
def reshard_after_forward_is_the_stage(block):
    in_rank(reshards, block)


@case
def what_fully_shard_does_not_take():
    def run():
        raises(ValueError, ["stage 3", "stage 2", "not 8"], zt.fully_shard, make(), reshard_after_forward=8)
        for name, instead in {"mesh": "shard(model, mesh=", "mp_policy": "reduce_dtype=", "ignored_params": "requires_grad_",
                              "offload_policy": "leave it out", "shard_placement_fn": "leave it out"}.items():
            raises(ValueError, [name, instead], zt.fully_shard, make(), **{name: {1}})
        raises(TypeError, "'reshard'", zt.fully_shard, make(), reshard=True)
        zt.fully_shard(make(), mesh=None)
    in_rank(run)


def syncs():
    plain, model = make(), zt.shard(make())
    a = torch.optim.AdamW(plain.parameters(), lr=1e-2, eps=1e-3)
    b = zt.AdamW(model, lr=1e-2, eps=1e-3)
    pushed, push = [], model.sharded.client.push
    model.sharded.client.push = lambda *arguments, **named: (pushed.append(arguments), push(*arguments, **named))[1]
    for m, optimizer in ((plain, a), (model, b)):
        for part in range(2):
            if m is model:
                m.set_requires_gradient_sync(part == 1)
            (loss_of(m, part) / 2).backward()
            assert bool(pushed) == (m is model and part == 1), "only the last part is pushed"
        optimizer.step()
    assert len(pushed) == len(model.sharded.groups), "each group is pushed once"
    near(full(model), plain)
    raises(NotImplementedError, "recurse", model.set_requires_gradient_sync, False, recurse=False)


@case
def set_requires_gradient_sync_keeps_gradients():
    in_rank(syncs)


@case
def unshard_and_reshard_say_what_to_write():
    def run():
        model = zt.shard(make())
        for call in (model.unshard, model.reshard):
            raises(NotImplementedError, "full_params(module", call)
    in_rank(run)


def whole(rank, stage):
    model, want = zt.shard(make(), stage), make()
    if rank == 1:  # alone
        for name, p in model.named_parameters():
            assert torch.equal(p.full_tensor(), want.get_parameter(name)), name
    model.sharded.barrier()
    model(tokens(0)).sum().backward()
    raises(zt.GradientsAreElsewhere, "clip_grad_norm_", model.embed.weight.grad.full_tensor)
    model.sharded.barrier()


@cases_of([1, 3], "stage{}")
def full_tensor_reads_a_parameter(stage):
    ranks.run(whole, [0, 1], ranks.shared(2), arguments=(stage,))


# ---- ranks and data ------------------------------------------------------------------


def samples(rank):
    assert (zt.rank(), zt.world_size()) == (rank, 3), "before shard() by the environment"
    rows, epochs = torch.arange(12), []
    sampler = DistributedSampler(rows, zt.world_size(), zt.rank(), shuffle=True, seed=1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        epochs.append([int(i) for batch in DataLoader(rows, batch_size=2, sampler=sampler) for i in batch])
    return epochs


@case
def a_distributed_sampler_without_a_process_group():
    first, second = zip(*ranks.run(samples, 3, ranks.shared()))
    assert sorted(sum(first, [])) == sorted(sum(second, [])) == list(range(12)) and first != second


def of_models(rank):
    own = zt.shard(make(), client=zerod.connect(f"own{rank}", 0, 1))
    assert (zt.rank(), zt.world_size()) == (0, 1), "what the client was given, not the environment"
    common = zt.shard(make())
    raises(RuntimeError, "model.sharded.rank", zt.rank)
    own.sharded.client.close()
    assert (zt.rank(), zt.world_size()) == (rank, 2)
    common.sharded.barrier()


@case
def rank_and_world_size_are_those_of_the_models():
    ranks.run(of_models, 2, ranks.shared())


if __name__ == "__main__":
    ranks.main()
