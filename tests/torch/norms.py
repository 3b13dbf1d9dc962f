#!/usr/bin/env python3
"""Norms of each parameter's gradient and weights against plain PyTorch's p.grad.norm() and p.norm().  aborts.py has daemons
that die meanwhile, parallel.py and pipeline.py have divided models."""
import contextlib
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402
from harness import case, cases_of  # noqa: E402

import torch  # noqa: E402

from common import raises, zero  # noqa: E402
from gpt import batch_of, make  # noqa: E402

STEPS = 3


def near(mine, theirs, most=1e-5):
    assert list(mine) == list(theirs), (list(mine), list(theirs))
    for name, norm in theirs.items():
        assert abs(mine[name] - norm) <= most * norm + 1e-9, (name, mine[name], norm)


def plain_grads(plain):
    return {n: float(p.grad.double().norm()) if p.grad is not None else 0.0
            for n, p in plain.named_parameters() if p.requires_grad}


def plain_weights(plain):
    return {n: float(p.detach().double().norm()) for n, p in plain.named_parameters()}


def follow(zt, model, plain):
    """The plain model gets the service's weights."""
    with zt.full_params(model, write=False):
        plain.load_state_dict(model.state_dict())


@cases_of([(1, False, 1), (2, True, 2), (3, False, 2), (3, True, 1), (1, True, 3)], "stage_{0[0]}_tied_{0[1]}_nodes_{0[2]}")
def as_plain_pytorch(what):
    """Also where gradients add up in the trainer or with the owners, and whatever clips them afterwards."""
    stage, tied, nodes = what

    def run(rank):
        zt, model = zero(make(tied=tied), stage)
        optimizer, plain, said = zt.AdamW(model, lr=1e-2), make(tied=tied), []
        for t in range(STEPS):
            follow(zt, model, plain)
            near(zt.weight_norms(model), plain_weights(plain))
            plain.zero_grad()
            for k in range(2):
                whole = batch_of(10 * t + k, 8)
                (plain(whole)).backward()
                with model.no_sync() if k == 0 and t == 1 else contextlib.nullcontext():
                    model(whole.chunk(2)[rank]).backward()
            said.append(zt.grad_norms(model))
            near(said[-1], plain_grads(plain))
            model.clip_grad_norm_(0.1)
            assert zt.grad_norms(model) == said[-1]
            optimizer.step()
        said.append(zt.weight_norms(model))
        return said
    said = ranks.run(run, [0, nodes - 1], ranks.shared(nodes))
    assert said[0] == said[1]


@case
def a_rank_asks_alone():
    """The other one makes its step meanwhile."""
    def run(rank):
        zt, model = zero(make())
        optimizer, plain = zt.AdamW(model, lr=1e-2), make()
        for t in range(STEPS):
            if rank == t % 2:
                follow(zt, model, plain)
                near(zt.weight_norms(model), plain_weights(plain))
            plain.zero_grad()
            whole = batch_of(t, 8)
            plain(whole).backward()
            model(whole.chunk(2)[rank]).backward()
            if rank == t % 2:
                near(zt.grad_norms(model), plain_grads(plain))
            optimizer.step()
    ranks.run(run, [0, 1], ranks.shared(2))


@cases_of([False, True], "eager_{0}")
def loss_scale_is_taken_out(eager):
    def run(_):
        zt, model = zero(make(), eager=eager)
        optimizer, plain = zt.AdamW(model, lr=1e-2), make()
        scaler = zt.GradScaler(optimizer, init_scale=1024.0)
        for t in range(STEPS):
            follow(zt, model, plain)
            plain.zero_grad()
            plain(batch_of(t)).backward()
            scaler.scale(model(batch_of(t))).backward()
            near(zt.grad_norms(model), plain_grads(plain))
            scaler.step(optimizer)
            scaler.update()
    ranks.run(run, 1, ranks.shared())


@case
def frozen_unused_and_left_out_parameters():
    """Frozen ones and those of no optimizer have no gradient; what the step did not use has the norm 0."""
    def made():
        model = make(layers=3)
        model.wpe.weight.requires_grad_(False)
        model.spare = torch.nn.Linear(7, 3)
        return model

    def run(_):
        zt, model = zero(made())
        kept = [p for n, p in model.named_parameters() if p.requires_grad and "ln1" not in n]
        optimizer = zt.AdamW(model, [{"params": kept}], lr=1e-2)
        plain = made()
        plain(batch_of(0)).backward()
        model(batch_of(0)).backward()
        wanted = {n: x for n, x in plain_grads(plain).items() if "ln1" not in n}
        near(zt.grad_norms(model), wanted)
        assert wanted["spare.weight"] == 0 and "wpe.weight" not in wanted
        near(zt.weight_norms(model), plain_weights(plain))
        optimizer.step()
        assert zt.weight_norms(torch.compile(model)) == zt.weight_norms(model)
    ranks.run(run, 1, ranks.shared())


@case
def what_is_refused():
    def run(_):
        zt, model = zero(make(), ema=True)
        optimizer = zt.AdamW(model, lr=1e-2, ema_decay=0.9)
        raises(TypeError, "not sharded", zt.grad_norms, make())
        raises(zt.GradientsAreElsewhere, "after backward()", zt.grad_norms, model)
        model(batch_of(0)).backward()
        assert zt.grad_norms(model)["head.weight"] > 0
        raises(RuntimeError, ["grad_norms()", "last backward pass"], model(batch_of(1)).backward)
        optimizer.step()
        raises(zt.GradientsAreElsewhere, "after backward()", zt.grad_norms, model)
        with zt.ema_params(model):
            raises(RuntimeError, "ema_params()", zt.weight_norms, model)
        model(batch_of(1)).backward()
        optimizer.step()
        assert optimizer.version == 2
    ranks.run(run, 1, ranks.shared())


@case
def whole_parameters_are_at_one_owner():
    """Norms, steps and their bits are those of parameters that owners divide."""
    def run(rank, patterns):
        zt, model = zero(make(width=192), whole=patterns)
        optimizer = zt.AdamW(model, lr=1e-2)
        for t in range(STEPS):
            model(batch_of(t, 8).chunk(2)[rank]).backward()
            optimizer.step()
        job = model.sharded.client.job
        groups = next(j for j in model.sharded.client.query("shards")["jobs"] if j["job"] == job)["groups"]
        ends = {s["first"] for g in groups if g["group"] == "blocks.0" for s in g["shards"]}
        return ends, [name for g in groups for name in g["whole"]], zt.weight_norms(model)

    def refused(_):
        raises(ValueError, ["whole", "block.*"], zero, make(), whole=["head.weight", "block.*"])
    divided = ranks.run(run, [0, 1], ranks.shared(2), arguments=[()])
    for patterns in (["blocks.*.weight"], ["blocks.0.up.weight"]):
        kept = ranks.run(run, [0, 1], ranks.shared(2), arguments=[patterns])
        for (before, none, plain), (ends, names, norms) in zip(divided, kept):
            assert norms == plain and not none and "blocks.0.up.weight" in names, names
            assert len(names) == (12 if "*" in patterns[0] else 1), names
            assert len(ends) == len(before) == 2 and ends != before, (ends, before)
    ranks.run(refused, 1, ranks.shared())


if __name__ == "__main__":
    ranks.main()
