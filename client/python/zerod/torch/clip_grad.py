"""Clipping the gradient of a sharded model to a global norm; the service does the arithmetic.

Rule: the limit is kept in Sharded.pending, and the next step uses it up, even if that step is skipped or aborted.
"""
from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from .sharded import Sharded, find_param, sharded_of


def clip_grad_norm_(model_or_parameters: nn.Module | torch.Tensor | Iterable[torch.Tensor],
                    max_norm: float, norm_type: float = 2.0,
                    error_if_nonfinite: bool = False) -> torch.Tensor:
    """Clips the gradient of a sharded model to a global norm; all ranks call it, after backward.

    The norm is that of the mean gradient over all ranks, of all parameters that the optimizer updates, loss scale taken
    out.  Blocks for all ranks.  The next step() clips the gradients themselves, and no backward pass may come before
    it.

    model_or_parameters: the model, or all of its parameters.  max_norm: > 0; inf only measures.
    Returns the norm before clipping: a float32 scalar, nan if the gradient is not finite.

    Errors: ValueError for a part of the parameters, another norm than 2 or max_norm <= 0; RuntimeError with
    error_if_nonfinite; zerod.Aborted as from :meth:`ServiceOptimizer.step`.
    """
    if float(norm_type) != 2.0:
        raise ValueError(f"norm_type {norm_type}: the service computes the 2-norm only")
    max_norm = float(max_norm)
    if not max_norm > 0:
        raise ValueError(f"max_norm {max_norm} is not > 0")
    sharded = _sharded_to_clip(model_or_parameters)
    pending = sharded.pending
    if sharded.gradients.last and max_norm < math.inf:
        raise RuntimeError("eager blocks were updated before the norm is known, and cannot be clipped: train without "
                           "clipping, or shard the model without eager=True")
    sharded.finish_backward_pushes()
    pending.closed = "clip_grad_norm_()"
    norm, finite = sharded.attempt.norm()
    norm /= pending.loss_scale
    if error_if_nonfinite and not (finite and math.isfinite(norm)):
        raise RuntimeError("The total norm of order 2.0 for gradients from `parameters` is "
                           "non-finite, so it cannot be clipped.")
    if pending.clip_norm:
        norm = min(norm, pending.clip_norm) if finite else norm
        max_norm = min(max_norm, pending.clip_norm)
    if max_norm < math.inf:
        pending.clip_norm = max_norm
    return torch.tensor(norm, dtype=torch.float32)


def _sharded_to_clip(given: Any) -> Sharded:
    if isinstance(given, nn.Module):
        if "_zerod_sharded" in given.__dict__:
            return sharded_of(given)
        given = given.parameters()
    params = []
    for tensor in [given] if isinstance(given, torch.Tensor) else given:
        param = find_param(tensor)
        if param is None and hasattr(tensor, "zerod_taken") and not tensor.requires_grad:
            continue  # of a base
        if param is None:
            raise ValueError(f"a tensor of shape {tuple(tensor.shape)} is not a parameter of a "
                             "sharded model: pass the model")
        params.append(param)
    if not params:
        raise ValueError("no parameters: pass the model")
    sharded = params[0].sharded
    wanted = sharded.optimized
    if wanted is None:
        wanted = {p for p in sharded.params if p.trainable}
    left_out = sorted(p.name for p in wanted.difference(params))
    if left_out or any(p.sharded is not sharded for p in params):
        what = f"'{left_out[0]}' and {len(left_out) - 1} more are missing" if left_out else (
            "they belong to several models")
        raise ValueError("the gradient is clipped as a whole, pass the model or all of its "
                         f"parameters: {what}")
    return sharded
