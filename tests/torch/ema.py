#!/usr/bin/env python3
"""Averages of the weights that the service keeps, against torch.optim.swa_utils.AveragedModel."""
import copy
import math
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402
from harness import case, cases_of  # noqa: E402

import torch  # noqa: E402
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn  # noqa: E402

from common import raises, zero  # noqa: E402
from gpt import batch_of, make  # noqa: E402

STEPS, DECAY = 20, 0.9
MAKERS = {"adamw": ("AdamW", {"lr": 1e-2}), "adam": ("Adam", {"lr": 1e-2}), "lion": ("Lion", {"lr": 1e-3}),
          "sgd": ("SGD", {"lr": 0.1}), "sgd-momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}), "muon": ("Muon", {"lr": 1e-2})}


def prepare(optimizer="adamw", decay=DECAY, stage=3, model=None, **options):
    zt, model = zero(make() if model is None else model, stage, optimizer=optimizer, ema=True, **options)
    kind, more = MAKERS[optimizer]
    return zt, model, getattr(zt, kind)(model, ema_decay=decay, **more)


def averages(zt, model):
    with zt.ema_params(model):
        return {n: p.detach().clone() for n, p in model.named_parameters()}


def near(mine, theirs, most=1e-6):
    for n, value in theirs.items():
        value = value.detach().double()
        distance = float((mine[n].double() - value).norm() / (value.norm() + 1e-30))
        assert distance < most, f"{n}: {distance}"


def step(model, optimizer, t, world=1):
    model(batch_of(t, 8 * world).chunk(world)[model.sharded.rank]).backward()
    optimizer.step()


def follow(average, zt, model):
    """AveragedModel's update by the service's own weights."""
    with zt.full_params(model):
        average.update_parameters(model)


def averaged(decay=DECAY):
    return AveragedModel(make(), multi_avg_fn=get_ema_multi_avg_fn(decay))


@cases_of(MAKERS)
def equals_averaged_model(optimizer):
    def run(rank):
        zt, model, optimizer_ = prepare(optimizer)
        average = averaged()
        for t in range(STEPS):
            step(model, optimizer_, t, 2)
            follow(average, zt, model)
        found = averages(zt, model)
        near(found, dict(average.module.named_parameters()))
        with zt.full_params(model):
            assert not torch.equal(model.head.weight, found["head.weight"])
    ranks.run(run, [0, 1], ranks.shared(2))


@case
def decay_is_a_hyperparameter_of_each_step():
    def run(_):
        zt, model, optimizer = prepare()
        average = averaged()
        for t in range(STEPS):
            group, = optimizer.param_groups
            group["ema_decay"] = 1 - 1 / (t + 2)
            average.multi_avg_fn = get_ema_multi_avg_fn(group["ema_decay"])
            step(model, optimizer, t)
            follow(average, zt, model)
        near(averages(zt, model), dict(average.module.named_parameters()))
        for wrong in (1.0, -0.1, math.nan):
            group["ema_decay"] = wrong
            model(batch_of(0)).backward()
            raises(ValueError, "ema_decay", optimizer.step)
    ranks.run(run, 1, ranks.shared())


@case
def a_skipped_step_and_a_missing_gradient_change_nothing():
    def run(_):
        zt, model, optimizer = prepare()
        for t in range(3):
            step(model, optimizer, t)
        before = averages(zt, model)
        (model(batch_of(3)) * math.inf).backward()
        optimizer.step()
        assert optimizer.skipped
        for n, value in averages(zt, model).items():
            assert torch.equal(value, before[n]), n
        optimizer.step()  # without a gradient
        for n, value in averages(zt, model).items():
            assert torch.equal(value, before[n]), n
    ranks.run(run, 1, ranks.shared())


@cases_of([torch.float32, torch.bfloat16])
def begins_as_the_weights(dtype):
    """The model's own, and others that are written before the first update; frozen ones stay themselves."""
    def run(_):
        whole = make(dtype=dtype)
        whole.head.weight.requires_grad_(False)
        zt, model, optimizer = prepare(model=whole)
        wanted = make(dtype=dtype).state_dict()
        for n, value in averages(zt, model).items():
            assert value.dtype is dtype and torch.equal(value, wanted[n]), n
        model.load_state_dict(make(1, dtype=dtype).state_dict())
        wanted = make(1, dtype=dtype).state_dict()
        for n, value in averages(zt, model).items():
            assert torch.equal(value, wanted[n]), n
        step(model, optimizer, 0)
        found = averages(zt, model)
        assert torch.equal(found["head.weight"], wanted["head.weight"])
        with zt.full_params(model):
            near(found, {n: p.detach() for n, p in model.named_parameters()})
    ranks.run(run, 1, ranks.shared())


@case
def is_read_as_full_parameters_are():
    def run(_):
        from safetensors.torch import load_file
        zt, model, optimizer = prepare()
        for t in range(3):
            step(model, optimizer, t)
        found = averages(zt, model)
        with tempfile.TemporaryDirectory() as path, zt.ema_params(model):
            zt.save_safetensors(model, path)
            written, said, copied = load_file(f"{path}/model.safetensors"), model.state_dict(), copy.deepcopy(model)
            loss = model(batch_of(9))
            raises(RuntimeError, "leave the context", zt.save_checkpoint, path, model, optimizer)
            raises(RuntimeError, "leave the context", zt.full_params(model, write=True).__enter__)
        for n, value in found.items():
            assert torch.equal(written[n], value) and torch.equal(said[n], value), n
        assert torch.allclose(loss, copied(batch_of(9)))
        with zt.full_params(model):
            raises(RuntimeError, "leave the context", zt.ema_params(model).__enter__)
        step(model, optimizer, 3)
        zt.drop(model.sharded.client.job)
    ranks.run(run, 1, ranks.shared())


@cases_of([torch.float32, torch.bfloat16])
def goes_into_checkpoints_and_state_dicts(dtype):
    def train(rank, path, begin, load):
        zt, model, optimizer = prepare(model=make(dtype=dtype))
        if load == "files":
            zt.load_checkpoint(path, model, optimizer)
        elif load:
            state = torch.load(f"{path}/state.pt")
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        for t in range(begin, begin + 3):
            step(model, optimizer, t, 2)
        if rank == 0 and not load:
            zt.save_checkpoint(path, model, optimizer)
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{path}/state.pt")
        model.sharded.barrier()
        if begin == 0:
            for t in range(3, 6):
                step(model, optimizer, t, 2)
        return {n: v.tolist() for n, v in averages(zt, model).items()}
    with tempfile.TemporaryDirectory() as path:
        wanted = ranks.run(train, [0, 1], ranks.shared(2), arguments=(path, 0, None))
        for load in ("files", "state_dict"):
            assert ranks.run(train, [0, 1], ranks.shared(2), arguments=(path, 3, load)) == wanted, load


@case
def a_state_without_averages_begins_them():
    def run(_):
        zt, model, optimizer = prepare()
        plain = make(1)
        theirs = torch.optim.AdamW(plain.parameters(), lr=1e-2)
        plain(batch_of(0)).backward()
        theirs.step()
        for t in range(2):
            step(model, optimizer, t)
        model.load_state_dict(plain.state_dict())
        optimizer.load_state_dict(theirs.state_dict())
        wanted = plain.state_dict()
        for n, value in averages(zt, model).items():
            assert torch.equal(value, wanted[n]), n
    ranks.run(run, 1, ranks.shared())


@case
def is_refused_where_there_are_none():
    def run(_):
        zt, model = zero(make())
        raises(ValueError, ["AdamW", "ema=True", "ema=False"], zt.AdamW, model, ema_decay=DECAY)
        optimizer = zt.AdamW(model)
        raises(ValueError, ["keeps no averages", "ema=True"], zt.ema_params(model).__enter__)
        optimizer.param_groups[0]["ema_decay"] = DECAY
        model(batch_of(0)).backward()
        raises(ValueError, "ema_decay", optimizer.step)
        raises(ValueError, "ema_decay", zt.AdamW, model, ema_decay=1.0)
    ranks.run(run, 1, ranks.shared())


if __name__ == "__main__":
    ranks.main()
