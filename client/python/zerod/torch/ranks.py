"""This process's rank, for its part of the data, and numbers over all ranks.

    sampler = torch.utils.data.DistributedSampler(rows, zerod.torch.world_size(), zerod.torch.rank())

Rule: the sharded models of this process tell the rank; without one torchrun or Slurm does.  No process group is needed.
"""
from __future__ import annotations

import os
import sys

import torch
from torch import nn

from zerod.environment import place

from .sharded import Sharded, sharded_of
from .wrap import _of_job


def _rank_and_world_size() -> tuple[int, int]:
    found = {(s.rank, s.world_size) for s in _of_job.values() if not s.client.closed} or {place()[:2]}
    if len(found) > 1:
        raise RuntimeError("the models of this process have different ranks or world sizes: take "
                           "model.sharded.rank and model.sharded.world_size")
    return found.pop()


def rank() -> int:
    """Returns this process's rank in its job, 0 if it is alone.  It may be called before shard().

    Errors: ValueError if a variable of torchrun or Slurm makes no sense.  RuntimeError if this process has several
    models, of different ranks or world sizes.
    """
    return _rank_and_world_size()[0]


def world_size() -> int:
    """Returns the number of ranks of the job, 1 if this process is alone.  It is otherwise like :func:`rank`.

    The ranks of a mesh that work on one batch together have the same data: use the mesh's dimension for those.
    """
    return _rank_and_world_size()[1]


def _only_model(otherwise: str = "pass all_reduce(..., model=model)") -> Sharded:
    found = [s for s in _of_job.values() if not s.client.closed]
    if len(found) != 1:
        raise RuntimeError(f"this process has {len(found)} sharded models: {otherwise}")
    return found[0]


def all_reduce(value: float | torch.Tensor, op: str = "sum", *, name: str | None = None,
               model: nn.Module | None = None) -> float | torch.Tensor:
    """Reduces a number over all ranks, such as a loss, through the service.  All ranks call it and get the same.

    value: a number, or a tensor of 1 to 64 elements, which are all reduced.  A tensor comes back with its shape, dtype
    and device.  op: "sum", "mean", "max" or "min", in double, and in the order of ranks.
    name: of the reduction, the same on all ranks; None: file and line of the call.
    model: a sharded model; None: the only one of this process.

    Call it outside forward and backward passes.  Raises zerod.Conflict if another rank reduces something else or is in
    its step, and zerod.Deadline with a rank that has not called.  Raises zerod.Aborted as optimizer.step() does, also
    if a rank was started again; :func:`zerod.torch.steps` goes on at the right step.
    """
    if op not in ("sum", "mean", "max", "min"):
        raise ValueError(f"op is sum, mean, max or min, not {op!r}")
    sharded = _only_model() if model is None else sharded_of(model)
    if name is None:
        caller = sys._getframe(1)
        name = f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"[-63:]
    tensor = value.detach() if isinstance(value, torch.Tensor) else torch.tensor(float(value), dtype=torch.float64)
    reduced = sharded.attempt.all_reduce(name, tensor.to("cpu", torch.float64).reshape(-1).tolist(), "sum" if op == "mean" else op)
    if op == "mean":
        reduced = [r / sharded.world_size for r in reduced]
    if not isinstance(value, torch.Tensor):
        return reduced[0]
    return torch.tensor(reduced, dtype=torch.float64).view(tensor.shape).to(value.device, value.dtype)
