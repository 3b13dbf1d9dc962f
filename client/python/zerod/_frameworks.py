"""Shared by zerod.accelerate and zerod.lightning, whose scripts make optimizer and schedulers for a model that is not
sharded yet.

Rule: an option that the service cannot have is refused by name, before the model is sharded.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

import zerod

from . import environment
from . import torch as zt
from .torch.sharded import find_param
from .torch.wrap import _of_job

#: Arguments of zerod.torch.shard() that accelerators and strategies pass on.
OPTIONS = ("stage", "groups", "client", "job", "timeout", "reduce_dtype", "init_fn", "prefetch", "on_lost_rank",
           "resume", "keep", "base", "state", "master")
KINDS: dict[type[torch.optim.Optimizer], Any] = {
    torch.optim.AdamW: zt.AdamW, torch.optim.Adam: zt.Adam, torch.optim.SGD: zt.SGD}


def check_options(options: Mapping[str, Any]) -> None:
    """Raises TypeError for an argument that is not passed on to shard()."""
    for name in options.keys() - set(OPTIONS):
        raise TypeError(f"'{name}' is not an argument here, nor one of shard() that is passed on: {', '.join(OPTIONS)}")


def service_name(optimizer: torch.optim.Optimizer | None) -> str:
    """Returns shard()'s optimizer=... for an optimizer of torch.  ValueError if the service has none of its kind."""
    if optimizer is None:
        return "adamw"
    if type(optimizer) not in KINDS:
        raise ValueError(f"nothing takes the place of this {type(optimizer).__name__}: pass torch.optim.AdamW, Adam or SGD, "
                         "or shard the model yourself and pass an optimizer of zerod.torch")
    if optimizer.state:
        raise ValueError(f"this {type(optimizer).__name__} has state, which the service would not get: load the state "
                         "after the model is sharded")
    if isinstance(optimizer, torch.optim.SGD):
        return "sgd-momentum" if any(g["momentum"] for g in optimizer.param_groups) else "sgd"
    return KINDS[type(optimizer)].name


def shard(model: nn.Module, optimizer: torch.optim.Optimizer | None, place: tuple[int, int],
          device: torch.device, options: Mapping[str, Any]) -> None:
    """Shards a model for an optimizer of torch.

    place: the framework's rank and world size.  ValueError if zerod's are others."""
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"the device is {device}, and zerod serves host memory and CUDA")
    name, options = service_name(optimizer), dict(options)
    client = options.pop("client", None)
    if client is None:
        client = _connect(options.get("job"), options.get("timeout"))
    check_ranks(client, place)
    options = {k: v for k, v in options.items() if k not in ("job", "timeout")}
    # sharding leaves the script's random numbers as they are without zerod
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        zt.shard(model, client=client, device=device, optimizer=name, **options)


def _connect(job: str | None, timeout: float | None) -> zerod.Client:
    """Connects for the next model of this process.  The second model's job is "JOB-2", and so on, the same on all
    ranks."""
    base = name = job or environment.job()
    number, named = 1, bool(job) or not environment.job_is_random()
    while name is not None and name in _of_job and not _of_job[name].client.closed:
        number += 1
        name = f"{base}-{number}"
    client = zerod.connect(name, timeout=timeout)
    if base is not None:
        client.keep_job(named)
    return client


def check_ranks(client: zerod.Client, place: tuple[int, int]) -> None:
    """Raises ValueError if a framework sees other ranks than zerod."""
    if place != (client.rank, client.world_size):
        raise ValueError(f"this process is rank {place[0]} of {place[1]} here, and rank {client.rank} of "
                         f"{client.world_size} for zerod: start all ranks by torchrun, with the CPU chosen by name (cpu=True) "
                         "where there is no GPU")


def converted(model: nn.Module, optimizer: torch.optim.Optimizer) -> zt.ServiceOptimizer:
    """Returns the service's optimizer for one of torch, with the same param groups, without frozen parameters.

    The optimizer was made for the model, before or after the model was sharded."""
    if isinstance(optimizer, zt.ServiceOptimizer):
        return optimizer
    service_name(optimizer)
    kind, sharded = KINDS[type(optimizer)], zt.sharded_of(model)
    taken, base = {p.name: p for p in sharded.params}, {p.zerod_taken for p in sharded.base}
    groups = []
    for group in optimizer.param_groups:
        given = [p for p in group["params"] if getattr(p, "zerod_taken", "") not in base]
        params = [find_param(p) or taken.get(getattr(p, "zerod_taken", "")) for p in given]
        if None in params:
            raise ValueError(f"{type(optimizer).__name__} has a tensor of shape "
                             f"{tuple(given[params.index(None)].shape)}, which is no parameter of the sharded model")
        groups.append({**{k: v for k, v in group.items() if k != "param_names"},
                       "params": [p.placeholder for p in params if p.trainable]})
    defaults = {k: v for k, v in optimizer.defaults.items() if k != "decoupled_weight_decay" or kind is zt.Adam}
    return kind(model, groups, **defaults)


def rebind(scheduler: Any, optimizers: Iterable[tuple[torch.optim.Optimizer, zt.ServiceOptimizer]]) -> None:
    """Makes a schedule, and the schedules that it consists of, set the learning rate of the service's optimizer."""
    for before, after in optimizers:
        if getattr(scheduler, "optimizer", None) is before:
            scheduler.optimizer = after
            groups = [dict(g) for g in after.param_groups]
            # torch warns if no schedule has wrapped step(): this schedule wraps it and changes nothing else
            torch.optim.lr_scheduler.LambdaLR(after, lambda _: 1.0)
            for mine, as_before in zip(after.param_groups, groups):
                mine.update(as_before)
    for part in getattr(scheduler, "_schedulers", ()):
        rebind(part, optimizers)
