"""The norm of each parameter's gradient or weights.  The owners compute them, and nothing is gathered."""
from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from .parameter import GradientsAreElsewhere
from .plan import BYTES
from .sharded import Sharded, find_param, sharded_of, uncompiled
from .state import check_not_averaged
from .unit import ShardedParam


def grad_norms(model: nn.Module) -> dict[str, float]:
    """Returns the Euclidean norm of each parameter's gradient, by the names of ``named_parameters()``.

    A norm is that of the mean gradient over all ranks and backward passes, before clipping, loss scale taken out.  If
    ranks have parts of a tensor (DTensor), it is that of the whole tensor.  It is 0.0 without a gradient in this step,
    and nan if the gradient is not finite.  The result has the parameters that the optimizer updates; with a pipeline,
    those of this rank's stage.

    Call it between the last backward pass of a step and optimizer.step(), before or after clip_grad_norm_().  One rank
    may call it alone: it waits until all ranks have ended their backward passes, but no longer than the timeout.
    zerod.Deadline names a rank; ask again, or end the step.

    Errors: GradientsAreElsewhere if this process has no gradient; zerod.Aborted as from :meth:`ServiceOptimizer.step`.
    A backward pass that follows in this step raises RuntimeError.
    """
    sharded = sharded_of(model)
    optimized = sharded.optimized
    wanted = _named(model, lambda p: p.trainable and (optimized is None or p in optimized))
    if wanted and not sharded.has_gradients:
        raise GradientsAreElsewhere("grad_norms() without a gradient: call it after backward() and before optimizer.step()")
    sharded.finish_backward_pushes()
    if wanted:
        sharded.pending.closed = "grad_norms()"
    scale = sharded.pending.loss_scale
    return {name: norm / scale for name, norm in _norms(sharded, "grad", wanted).items()}


def weight_norms(model: nn.Module) -> dict[str, float]:
    """Returns the Euclidean norm of each parameter's fp32 master weights, by the names of ``named_parameters()``.

    All norms are of one version, and of whole tensors even if ranks have parts of them (DTensor).  Parameters that the
    service does not hold, and frozen ones of bytes, are left out.  Any rank may call it alone, at any time.

    Errors: RuntimeError within ema_params(); zerod.Aborted as from :meth:`Sharded.read`.
    """
    sharded = sharded_of(model)
    check_not_averaged(sharded)
    return _norms(sharded, "master", _named(model, lambda p: p.dtype not in BYTES))


def _named(model: nn.Module, wanted: Callable[[ShardedParam], bool]) -> dict[str, ShardedParam]:
    named = ((name, find_param(tensor)) for name, tensor in uncompiled(model).named_parameters())
    return {name: param for name, param in named if param is not None and wanted(param)}


def _norms(sharded: Sharded, plane: str, named: dict[str, ShardedParam]) -> dict[str, float]:
    indices = [i for p in named.values() for i in p.parts]
    if not indices:
        return {}
    first = min(indices)
    norms = sharded.attempt.norms(plane, first, max(indices) + 1 - first)
    return {name: math.hypot(*(norms[i - first] for i in p.parts)) for name, p in named.items()}
