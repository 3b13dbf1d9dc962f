"""AdamW, clipping and loss scaling whose arithmetic happens in the service.

The optimizer keeps hyperparameters only; moments, master weights and step counts are in zerod.
One param group is one hyperparameter set of zero_step().

Rule: whatever a user says about the next step (clip norm, loss scale) is kept in Pending and used
up by that step, whether it is committed, skipped or aborted.
"""
from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

import zerod

from . import sharded as core
from . import state as values
from .unit import ShardedParam

MAX_SETS = 256
HYPERPARAMETERS = ("lr", "betas", "eps", "weight_decay")
# of torch's AdamW, in a state_dict of it: how it computes, not what
IMPLEMENTATION = {"foreach", "capturable", "differentiable", "fused", "amsgrad", "maximize",
                  "decoupled_weight_decay"}


class Pending:
    """What the next step of one sharded model takes along."""

    def __init__(self) -> None:
        self.clip_norm = 0.0  # 0: none
        self.loss_scale = 1.0
        self.growth_interval = 0
        self.unscaled = False


_pending: "weakref.WeakKeyDictionary[core.Sharded, Pending]" = weakref.WeakKeyDictionary()
_optimizers: "weakref.WeakKeyDictionary[core.Sharded, weakref.ref[AdamW]]" = (
    weakref.WeakKeyDictionary())


def pending_of(sharded: "core.Sharded") -> Pending:
    """What has been said about the model's next step."""
    return _pending.setdefault(sharded, Pending())


def _attempt_over(sharded: "core.Sharded") -> None:
    _pending.pop(sharded, None)
    sharded.after_step()


def _discard(sharded: "core.Sharded") -> None:
    """Ends the attempt without an update; all ranks call it."""
    try:
        sharded.client.step([], loss_scale=sharded.client.loss_scale or 1.0)
    finally:
        _attempt_over(sharded)


# ---- hyperparameters ---------------------------------------------------------------


def _number(group: Mapping[str, Any], key: str) -> float:
    value = group[key]
    if isinstance(value, (torch.Tensor, str)):
        raise ValueError(f"{key} is a number, not a {type(value).__name__}")
    value = float(value)
    if not 0.0 <= value < math.inf:
        raise ValueError(f"{key} {value} is not a finite number >= 0")
    return value


def _betas(group: Mapping[str, Any]) -> tuple[float, float]:
    betas = group["betas"]
    if isinstance(betas, torch.Tensor) or any(isinstance(b, torch.Tensor) for b in betas):
        raise ValueError("betas are two numbers, not tensors")
    if len(betas) != 2 or not all(0.0 <= b < 1.0 for b in betas):
        raise ValueError(f"betas {tuple(betas)} are not two numbers in [0, 1)")
    return float(betas[0]), float(betas[1])


def _adamw_set(group: Mapping[str, Any]) -> "zerod.AdamWSet":
    """A param group's hyperparameters; ValueError for what AdamW in the service has not."""
    for key in ("amsgrad", "maximize", "differentiable", "capturable"):
        if group.get(key):
            raise ValueError(f"{key}=True does not exist here: the service computes AdamW")
    if not group.get("decoupled_weight_decay", True):
        raise ValueError("decoupled_weight_decay=False (Adam with L2) does not exist here")
    beta1, beta2 = _betas(group)
    return zerod.AdamWSet(lr=_number(group, "lr"), beta1=beta1, beta2=beta2,
                          eps=_number(group, "eps"),
                          weight_decay=_number(group, "weight_decay"))


# ---- the optimizer -----------------------------------------------------------------


class AdamW(torch.optim.Optimizer):
    """``torch.optim.AdamW`` of a sharded model.

    model: of :func:`zerod.torch.shard`, or marked by :func:`zerod.torch.fully_shard`.
    params: None for all trainable parameters, else as in torch: an iterable of the model's
    parameters, of (name, parameter) or of dicts ``{"params": [...], "lr": ...}``; at most 256
    groups.  Parameters in no group are not updated.
    lr, betas, eps, weight_decay: numbers, as in torch; tensors are a ValueError.  ``amsgrad`` and
    ``maximize`` do not exist.

    A model has one optimizer at a time: a new one takes over from the last.
    After :meth:`step`: ``grad_norm`` (float, of the mean gradient, before clipping, loss scale
    taken out; nan if it was not finite), ``skipped`` (bool), ``loss_scale`` (float, to use next),
    ``version`` (int, committed steps of the job).  Before the first step grad_norm is nan.
    ``state`` is always empty: use :meth:`state_dict`, or read one tensor with
    ``sharded_of(model).read(param, "exp_avg")``.

    Errors: ValueError for a parameter that was frozen when the model was sharded, or is another
    model's, naming it, and for hyperparameters out of range.
    """

    def __init__(self, model: nn.Module, params: Iterable[Any] | None = None, lr: float = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.01):
        if not isinstance(model, nn.Module):
            raise TypeError(f"the first argument is the sharded model, not {type(model).__name__}: "
                            "AdamW(model, params=None, lr=...)")
        self.sharded = values.sharded_or_marked(model)
        self.grad_norm, self.skipped = math.nan, False
        self.version = self.sharded.client.version
        self.loss_scale = self.sharded.client.loss_scale
        self._sets: dict[ShardedParam, int] = {}  # what the service has, as far as it is known
        if params is None:
            params = [p.placeholder for p in self.sharded.params if p.placeholder.requires_grad]
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        _adamw_set(defaults)
        super().__init__(params, defaults)
        self.sharded.optimized = self._optimized()
        _optimizers[self.sharded] = weakref.ref(self)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch; ValueError if a parameter is not one of the model's trainable ones."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        if len(self.param_groups) == MAX_SETS:
            raise ValueError(f"more than {MAX_SETS} param groups: each is a hyperparameter set of "
                             f"the service, which has {MAX_SETS}")
        param_group = dict(param_group)
        given = param_group["params"]
        given = [given] if isinstance(given, torch.Tensor) else given
        if not isinstance(given, set):  # torch refuses sets
            param_group["params"] = [self._checked(i, p) for i, p in enumerate(given)]
        _adamw_set({**self.defaults, **param_group})
        super().add_param_group(param_group)
        mine = _optimizers.get(self.sharded)
        if mine is not None and mine() is self:
            self.sharded.optimized = self._optimized()

    def _checked(self, position: int, given: Any) -> Any:
        """A parameter as the param groups keep it; with its name if it came with one."""
        name, tensor = given if isinstance(given, tuple) else (None, given)
        if not isinstance(tensor, torch.Tensor):
            raise TypeError("optimizer can only optimize Tensors, but one of the params is "
                            + torch.typename(tensor))
        try:
            param = self.sharded.param_of(tensor)
        except (TypeError, ValueError) as e:
            called = f"'{name}'" if name else f"{position} of param group {len(self.param_groups)}"
            raise ValueError(f"parameter {called} is not one of this model's: {e}") from e
        if not param.trainable:
            raise ValueError(f"parameter '{param.name}' was frozen (requires_grad=False) when the "
                             "model was sharded and cannot be optimized")
        return param.placeholder if name is None else (name, param.placeholder)

    def _optimized(self) -> set[ShardedParam]:
        return {self.sharded.param_of(p) for g in self.param_groups for p in g["params"]}

    def _check_mine(self) -> None:
        mine = _optimizers.get(self.sharded)
        if mine is None or mine() is not self:
            raise RuntimeError("a newer optimizer of the same model has taken over from this one")

    def _assign_sets(self) -> None:
        """Tells the service which tensor uses which group, where that differs; rank 0 alone."""
        if self.sharded.rank != 0:
            return
        for index, group in enumerate(self.param_groups):
            for p in group["params"]:
                param = self.sharded.param_of(p)
                if param not in self._sets:
                    self._sets[param] = int(self.sharded.read(param, "set"))
                if self._sets[param] != index:
                    self.sharded.write(param, "set", torch.tensor([index]))
                    self._sets[param] = index

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters; all ranks call it. Blocks until all have.

        Pushes what is left, and has the service clip (after :func:`clip_grad_norm_`), unscale
        (with :class:`GradScaler`) and update.  Returns the closure's value.  If a gradient is not
        finite nothing is updated and ``skipped`` is True.

        Raises zerod.Aborted if the attempt was aborted (a rank or a node was lost): nothing was
        updated and the step's gradients are gone.  Run the step's forward and backward passes
        again, from the same batch, and call step() again; schedulers must not be advanced.
        zerod.Deadline and zerod.LostRank name who is waited for and leave the step as it is:
        step() may be called again.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_mine()
        sharded, pending = self.sharded, pending_of(self.sharded)
        sets = [_adamw_set(g) for g in self.param_groups]
        try:
            sharded.finish_backward_pushes()
            self._assign_sets()
            result = sharded.client.step(sets, clip_norm=pending.clip_norm,
                                         loss_scale=pending.loss_scale,
                                         growth_interval=pending.growth_interval)
        except zerod.Aborted:
            _attempt_over(sharded)
            raise
        self.grad_norm, self.skipped = result.grad_norm, result.skipped
        self.loss_scale, self.version = result.loss_scale, result.version
        _attempt_over(sharded)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Nothing to do after a step.  Gradients that no step has used are discarded in the
        service: all ranks must then call it, for it waits for them."""
        del set_to_none
        if self.sharded.has_gradients:
            _discard(self.sharded)

    # ---- state ---------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state in the format of ``torch.optim.AdamW``; any rank may call it alone.

        ``{"state": {i: {"step", "exp_avg", "exp_avg_sq"}}, "param_groups": [...]}``: step is a
        float32 scalar, moments are fp32 of the parameter's shape, on the CPU, read one at a time.
        Parameters that were never updated have no state.  16-bit parameters also have "master",
        fp32: with it training resumes exactly.  ``torch.optim.AdamW`` loads it too.
        """
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        state: dict[int, dict[str, torch.Tensor]] = {}
        groups, index = [], 0
        for group in self.param_groups:
            params = [self.sharded.param_of(p) for p in group["params"]]
            for i, param in enumerate(params, index):
                entry = _read_state(self.sharded, param)
                if entry:
                    state[i] = entry
            groups.append({**{k: v for k, v in group.items() if k != "params"},
                           "params": list(range(index, index + len(params)))})
            index += len(params)
        packed = {"state": state, "param_groups": groups}
        for hook in self._optimizer_state_dict_post_hooks.values():
            packed = hook(self, packed) or packed
        return packed

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads :meth:`state_dict`'s result, or that of ``torch.optim.AdamW``; all ranks call it.

        Rank 0 writes to the service, one tensor at a time; returns when all ranks have called.
        For 16-bit parameters load the model first: its values become the master weights, until the
        exact ones, if they are there, come from here.

        Errors, before anything is written: ValueError for other groups, shapes or amsgrad state;
        RuntimeError in the middle of a step.
        """
        state_dict = dict(state_dict)
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = hook(self, state_dict) or state_dict
        values.check_boundary(self.sharded)
        groups = state_dict["param_groups"]
        entries = self._match(groups, state_dict["state"])
        for group in groups:
            _adamw_set({**self.defaults, **group})
        if self.sharded.rank == 0:
            for param, entry in entries.items():
                _write_state(self.sharded, param, entry)
        for mine, saved in zip(self.param_groups, groups):
            self._take_group(mine, saved)
        self.sharded.barrier()
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    @staticmethod
    def _take_group(mine: dict[str, Any], saved: Mapping[str, Any]) -> None:
        mine.update({k: v for k, v in saved.items()
                     if k != "params" and k not in IMPLEMENTATION})
        mine["betas"] = tuple(mine["betas"])

    def _match(self, groups: list[Mapping[str, Any]],
               state: Mapping[Any, Any]) -> dict[ShardedParam, Mapping[str, Any]]:
        """Each parameter's saved state, checked; {} for one without."""
        if len(groups) != len(self.param_groups):
            raise ValueError(f"loaded state dict has {len(groups)} parameter groups, the optimizer "
                             f"{len(self.param_groups)}")
        found: dict[ShardedParam, Mapping[str, Any]] = {}
        for i, (mine, saved) in enumerate(zip(self.param_groups, groups)):
            if len(mine["params"]) != len(saved["params"]):
                raise ValueError(f"parameter group {i} has {len(mine['params'])} parameters, in the "
                                 f"loaded state dict {len(saved['params'])}")
            for p, key in zip(mine["params"], saved["params"]):
                param = self.sharded.param_of(p)
                found[param] = state.get(key, {})
                _check_state(param, found[param])
        return found


def _shaped(sharded: "core.Sharded", param: ShardedParam, plane: str) -> torch.Tensor:
    return values.read_all(sharded, param, plane).view(param.shape)


def _read_state(sharded: "core.Sharded", param: ShardedParam) -> dict[str, torch.Tensor]:
    step = int(sharded.read(param, "step"))
    if not step and param.dtype is torch.float32:
        return {}
    entry = {"step": torch.tensor(float(step))}
    planes = ["exp_avg", "exp_avg_sq"]
    if param.dtype is not torch.float32:
        planes.append("master")
    for plane in planes:
        entry[plane] = _shaped(sharded, param, plane)
    return entry


def _check_state(param: ShardedParam, entry: Mapping[str, Any]) -> None:
    if not entry:
        return
    if "max_exp_avg_sq" in entry:
        raise ValueError(f"parameter '{param.name}': the state is amsgrad's, which does not exist "
                         "here")
    for key in ("step", "exp_avg", "exp_avg_sq"):
        if key not in entry:
            raise ValueError(f"parameter '{param.name}': the loaded state has no '{key}'")
    if not 0 <= int(entry["step"]) < 1 << 62:
        raise ValueError(f"parameter '{param.name}': step {entry['step']} is out of range")
    for key in ("exp_avg", "exp_avg_sq", "master"):
        if key in entry and tuple(entry[key].shape) != tuple(param.shape):
            raise ValueError(f"parameter '{param.name}' has shape {tuple(param.shape)}, its loaded "
                             f"{key} {tuple(entry[key].shape)}")


def _write_state(sharded: "core.Sharded", param: ShardedParam, entry: Mapping[str, Any]) -> None:
    if not entry:
        clear_state(sharded, param)
        return
    for plane in ("exp_avg", "exp_avg_sq", "master"):
        if plane in entry and (plane != "master" or param.dtype is not torch.float32):
            values.write_all(sharded, param, plane, entry[plane])
    sharded.write(param, "step", torch.tensor([int(entry["step"])]))


def clear_state(sharded: "core.Sharded", param: ShardedParam) -> None:
    """Makes a parameter one that was never updated."""
    if int(sharded.read(param, "step")) == 0:
        return
    for plane in ("exp_avg", "exp_avg_sq"):
        for first, count in values.pieces(param.numel):
            sharded.write(param, plane, torch.zeros(count), first)
    sharded.write(param, "step", torch.tensor([0]))


# ---- clipping ----------------------------------------------------------------------


def clip_grad_norm_(model_or_parameters: nn.Module | torch.Tensor | Iterable[torch.Tensor],
                    max_norm: float, norm_type: float = 2.0,
                    error_if_nonfinite: bool = False) -> torch.Tensor:
    """Clips the gradient of a sharded model to a global norm; all ranks call it, after backward.

    The norm is that of the mean gradient over all ranks, of all parameters that the optimizer
    updates, loss scale taken out.  Blocks for all ranks; the gradients themselves are clipped by
    the next step().  No backward pass may follow before that.

    model_or_parameters: the model, or all of its parameters; max_norm: > 0, inf only measures.
    Returns the norm before clipping: a float32 scalar, nan if the gradient is not finite.

    Errors: ValueError for a part of the parameters, another norm than 2 or max_norm <= 0;
    RuntimeError with error_if_nonfinite; zerod.Aborted as of :meth:`AdamW.step`.
    """
    if float(norm_type) != 2.0:
        raise ValueError(f"norm_type {norm_type}: the service computes the 2-norm only")
    max_norm = float(max_norm)
    if not max_norm > 0:
        raise ValueError(f"max_norm {max_norm} is not > 0")
    sharded = _sharded_to_clip(model_or_parameters)
    pending = pending_of(sharded)
    try:
        sharded.finish_backward_pushes()
        norm, finite = sharded.client.norm()
    except zerod.Aborted:
        _attempt_over(sharded)
        raise
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


def _sharded_to_clip(given: Any) -> "core.Sharded":
    if isinstance(given, nn.Module):
        if "_zerod_sharded" in given.__dict__:
            return core.sharded_of(given)
        given = given.parameters()
    params = []
    for tensor in [given] if isinstance(given, torch.Tensor) else given:
        param = values.find_param(tensor)
        if param is None:
            raise ValueError(f"a tensor of shape {tuple(tensor.shape)} is no parameter of a sharded "
                             "model: pass the model")
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


# ---- loss scaling ------------------------------------------------------------------


class GradScaler:
    """``torch.amp.GradScaler`` for a sharded model: the service finds overflows and moves the scale.

    The scale halves when a gradient is not finite (the step is then skipped) and doubles after
    `growth_interval` good steps; it stays within 2**-16 and 2**24.  The ordinary flow of torch
    works as it is::

        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)            # before clipping; optional
        model.clip_grad_norm_(1.0)
        scaler.step(optimizer)
        scaler.update()

    target: the optimizer or the sharded model.  init_scale: taken where the job has none yet, else
    the job's own is gone on with.  enabled=False: all of it does nothing.
    """

    def __init__(self, target: AdamW | nn.Module, init_scale: float = 65536.0,
                 growth_interval: int = 2000, enabled: bool = True):
        self._enabled = enabled
        self._stepped = False
        self._tracker = 0
        self.sharded = _sharded_behind(target) if enabled else None
        self._scale = 1.0
        self.set_growth_interval(growth_interval)
        if enabled:
            client = self.sharded.client
            goes_on = client.version > 0 and client.loss_scale not in (0.0, 1.0)
            self._scale = _scale_checked(client.loss_scale if goes_on else init_scale)

    def scale(self, outputs: Any) -> Any:
        """A tensor, or each tensor of an iterable, times the scale; dtypes stay."""
        if not self._enabled:
            return outputs
        pending_of(self.sharded).loss_scale = self._scale
        return self._times_scale(outputs)

    def _times_scale(self, outputs: Any) -> Any:
        if isinstance(outputs, torch.Tensor):
            return outputs * self._scale
        if isinstance(outputs, (list, tuple)):
            return type(outputs)(self._times_scale(o) for o in outputs)
        if isinstance(outputs, Iterable):
            return map(self._times_scale, outputs)
        raise ValueError("outputs must be a Tensor or an iterable of Tensors")

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Marks the gradients as unscaled: norms and steps have the scale taken out anyway."""
        if not self._enabled:
            return
        pending = pending_of(_sharded_behind(optimizer))
        if self._stepped:
            raise RuntimeError("unscale_() is being called after step().")
        if pending.unscaled:
            raise RuntimeError("unscale_() has already been called on this optimizer since the "
                               "last update().")
        pending.unscaled = True

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """``optimizer.step()``, which the service skips if a gradient is not finite."""
        sharded = _sharded_behind(optimizer)
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if args or "closure" in kwargs:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        if self._stepped:
            raise RuntimeError("step() has already been called since the last update().")
        pending = pending_of(sharded)
        pending.loss_scale, pending.growth_interval = self._scale, self._growth_interval
        result = optimizer.step(**kwargs)
        self._stepped = True
        return result

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Takes the scale that the service says to use next; or the one given."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = _scale_checked(new_scale)
        elif not self._stepped:
            raise AssertionError("update() before step(): no overflow has been looked for")
        else:
            scale = self.sharded.client.loss_scale
            self._tracker = self._tracker + 1 if scale == self._scale else 0
            self._scale = scale
        self._stepped = False

    def get_scale(self) -> float:
        """The current scale; 1.0 if scaling is off."""
        return self._scale if self._enabled else 1.0

    def get_growth_factor(self) -> float:
        """2.0, the service's."""
        return 2.0

    def get_backoff_factor(self) -> float:
        """0.5, the service's."""
        return 0.5

    def get_growth_interval(self) -> int:
        """Good steps until the scale doubles."""
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Sets it; the same on all ranks."""
        if not 0 < int(new_interval) < 1 << 32:
            raise ValueError(f"growth_interval {new_interval} is not a number of steps")
        self._growth_interval = int(new_interval)

    def is_enabled(self) -> bool:
        """Whether it scales."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """As torch's; {} if scaling is off.  The service counts good steps itself:
        "_growth_tracker" is told and not loaded."""
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


def _sharded_behind(target: Any) -> "core.Sharded":
    if isinstance(target, nn.Module):
        return core.sharded_of(target)
    sharded = getattr(target, "sharded", None)
    if sharded is None:
        raise TypeError(f"{type(target).__name__} is neither zerod.torch.AdamW nor a sharded model")
    return sharded
