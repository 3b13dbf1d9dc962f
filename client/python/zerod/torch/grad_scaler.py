"""Loss scaling: the service finds overflows and sets the scale.

Rule: a scaler's values for the next step are kept in Sharded.pending, and that step uses them up, even if it is skipped
or aborted.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from .optim import ServiceOptimizer
from .sharded import Sharded, sharded_of


class GradScaler:
    """``torch.amp.GradScaler`` for a sharded model: the service finds overflows and sets the scale.

    The scale halves when a gradient is not finite; that step is skipped.  It doubles after `growth_interval` good
    steps, and stays within 2**-16 and 2**24.  Code for torch's scaler works unchanged::

        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)            # before clipping; optional
        model.clip_grad_norm_(1.0)
        scaler.step(optimizer)
        scaler.update()

    target: the optimizer or the sharded model.  init_scale: used if the job has no scale yet; else the job's scale goes
    on.  enabled=False: no method has an effect.
    """

    def __init__(self, target: ServiceOptimizer | nn.Module, init_scale: float = 65536.0,
                 growth_interval: int = 2000, enabled: bool = True):
        self._enabled = enabled
        self._stepped = False
        self._tracker = 0
        self.sharded = _sharded_behind(target) if enabled else None
        self._scale = 1.0
        self.set_growth_interval(growth_interval)
        self._attempt, self._told = 0, 1.0  # the attempt, and the last scale that the service told
        if enabled:
            self._scale = _scale_checked(init_scale)
            self._attempt = self.sharded.attempt.number
            self._ask()

    def scale(self, outputs: Any) -> Any:
        """Multiplies a tensor, or each tensor of an iterable, by the scale; dtypes stay."""
        if not self._enabled:
            return outputs
        self._follow()
        self.sharded.pending.loss_scale = self._scale
        return self._times_scale(outputs)

    def _follow(self) -> None:
        """Follows an abort: the step begins again, or it was committed after all, with another scale."""
        if self._attempt != self.sharded.attempt.number:
            self._attempt = self.sharded.attempt.number
            self._stepped = False
            self._ask()

    def _ask(self) -> None:
        """Takes the service's scale if it has changed."""
        told = self.sharded.client.loss_scale
        if told not in (0.0, self._told):
            self._scale = self._told = _scale_checked(told)

    def _times_scale(self, outputs: Any) -> Any:
        if isinstance(outputs, torch.Tensor):
            return outputs * self._scale
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self._times_scale(o) for o in outputs)
        if isinstance(outputs, Iterable):
            return map(self._times_scale, outputs)
        raise ValueError("outputs must be a Tensor or an iterable of Tensors")

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Marks the gradients as unscaled.  Norms and steps have the scale taken out anyway."""
        if not self._enabled:
            return
        pending = _sharded_behind(optimizer).pending
        if self._stepped:
            raise RuntimeError("unscale_() is being called after step().")
        if pending.unscaled:
            raise RuntimeError("unscale_() has already been called on this optimizer since the "
                               "last update().")
        pending.unscaled = True

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Calls ``optimizer.step()``, which the service skips if a gradient is not finite."""
        sharded = _sharded_behind(optimizer)
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if args or "closure" in kwargs:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        if self._stepped:
            raise RuntimeError("step() has already been called since the last update().")
        pending = sharded.pending
        pending.loss_scale, pending.growth_interval = self._scale, self._growth_interval
        result = optimizer.step(**kwargs)
        self._stepped = True
        return result

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Takes the scale that the service wants next, or `new_scale`."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = _scale_checked(new_scale)
        elif not self._stepped:
            raise AssertionError("update() before step(): no overflow has been looked for")
        else:
            scale = self.sharded.client.loss_scale
            self._tracker = self._tracker + 1 if scale == self._scale else 0
            self._scale = self._told = scale
        self._stepped = False

    def get_scale(self) -> float:
        """Returns the current scale; 1.0 if scaling is off."""
        return self._scale if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """Returns 2.0, the service's factor."""
        return 2.0

    def get_backoff_factor(self) -> float:
        """Returns 0.5, the service's factor."""
        return 0.5

    def get_growth_interval(self) -> int:
        """Returns the number of good steps until the scale doubles."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Sets the number of good steps until the scale doubles, the same on all ranks."""
        if not 0 < int(new_interval) < 1 << 32:
            raise ValueError(f"growth_interval {new_interval} is not a number of steps")
        self._growth_interval = int(new_interval)

    def is_enabled(self) -> bool:
        """Returns True if scaling is on."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """Returns torch's state; {} if scaling is off.  The service counts good steps itself, so "_growth_tracker" is
        saved and not loaded."""
        if not self._enabled:
            return {}
        return {"scale": self._scale, "growth_factor": 2.0, "backoff_factor": 0.5,
                "growth_interval": self._growth_interval, "_growth_tracker": self._tracker}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes scale and growth interval; ValueError for factors other than 2 and 0.5."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError("The source state dict is empty, possibly because it was saved from "
                               "a disabled instance of GradScaler.")
        if (state_dict["growth_factor"], state_dict["backoff_factor"]) != (2.0, 0.5):
            raise ValueError("growth_factor and backoff_factor are 2.0 and 0.5 in the service")
        scale = _scale_checked(state_dict["scale"])
        self.set_growth_interval(state_dict["growth_interval"])
        self._scale, self._tracker = scale, 0


def _scale_checked(scale: float | torch.Tensor) -> float:
    scale = float(scale)
    if not 2.0 ** -126 < scale < 2.0 ** 126:
        raise ValueError(f"the loss scale {scale} is not a number > 0 in fp32's range")
    return scale


def _sharded_behind(target: Any) -> Sharded:
    if isinstance(target, nn.Module):
        return sharded_of(target)
    sharded = getattr(target, "sharded", None)
    if sharded is None:
        raise TypeError(f"{type(target).__name__} is neither an optimizer of zerod.torch nor a "
                        "sharded model")
    return sharded
