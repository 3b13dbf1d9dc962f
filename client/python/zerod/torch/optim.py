"""Optimizers whose arithmetic happens in the service.

An optimizer keeps hyperparameters only.  Moments, master weights and step counts are in zerod.  A param group is one
hyperparameter set of zero_step(), or shares one if there are more groups than sets.
"""
from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

import zerod

from . import state as values
from .files import Source, of_tensor
from .formats import Wanted, listed, replaced, tensor_of
from .matrices import MuonSplit
from .pipeline import ParamElsewhere
from .sharded import Sharded, find_param, sharded_of
from .unit import ShardedParam
from .wrap import is_marked, shard

__all__ = ["Adam", "AdamW", "Lion", "SGD", "ServiceOptimizer"]

MAX_SETS = 256
# keys in a state_dict of torch's optimizers that choose an implementation, not a result
IMPLEMENTATION = {"foreach", "capturable", "differentiable", "fused", "amsgrad"}
REFUSED = {"amsgrad": "zerod keeps no max_exp_avg_sq: leave it out",
           "capturable": "zerod's update is in no CUDA graph: leave it out",
           "differentiable": "autograd does not see zerod's update: leave it out, or use torch's "
                             "optimizer on a model that is not sharded"}


# ---- hyperparameters ---------------------------------------------------------------


def number_of(group: Mapping[str, Any], key: str) -> float:
    value = group[key]
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, (torch.Tensor, str)):
        raise ValueError(f"{key} is a number or a tensor of one element, not {value!r}")
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


def ema_decay_of(group: Mapping[str, Any], averages: bool) -> float:
    if not averages:
        if group.get("ema_decay") is not None:
            raise ValueError("ema_decay of a param group: give it to the optimizer, too, for a model of "
                             "shard(model, ema=True)")
        return 0.0
    decay = number_of(group, "ema_decay")
    if decay >= 1.0:
        raise ValueError(f"ema_decay {decay} is not in [0, 1)")
    return decay


def _refuse(group: Mapping[str, Any]) -> None:
    for key, why in REFUSED.items():
        if group.get(key):
            raise ValueError(f"{key}=True: {why}")


# ---- the optimizer -----------------------------------------------------------------


class ServiceOptimizer(torch.optim.Optimizer):
    """The base class of the optimizers of a sharded model.

    model: of :func:`zerod.torch.shard` with this optimizer's name, or marked by :func:`zerod.torch.fully_shard`.
    params: None for all trainable parameters, in the order of model.parameters().  Else as in torch: an iterable of the
    model's parameters, of (name, parameter) or of dicts ``{"params": [...], "lr": ...}``.  The service has 256 sets:
    with more groups than that, groups with the same hyperparameters share a set.  Parameters in no group are not
    updated.  Parameters that were frozen when the model was sharded are left out.
    Hyperparameters are numbers, read at each step.  lr and others that are one number may be a tensor of one element,
    which goes into files as a number.
    ema_decay: the service averages the weights after each step, as torch.optim.swa_utils.AveragedModel with
    get_ema_multi_avg_fn() does.  :func:`ema_params` reads the averages.  The model is of shard(ema=True).  A number in
    [0, 1), read at each step.  A step that is skipped leaves the averages as they are, and so does one without a
    gradient for that parameter.  None: no averages.
    state, master: formats in which owners keep the moments and the master weights, of :func:`shard`: a model that
    :func:`zerod.torch.fully_shard` has marked is sharded with them.  Dicts of `params` may have their own:
    ``{"params": [...], "state": "fp32"}``.  None: those of the model.  They are in no param group of the optimizer, and
    state_dict() has fp32 whatever they are.
    how: torch's foreach and fused, which change nothing here; amsgrad, capturable and
    differentiable are False, else a ValueError.

    A model has one optimizer at a time: a new one takes over from the last.  :meth:`step` sets ``grad_norm`` (float, of
    the mean gradient, before clipping, loss scale taken out; nan if it was not finite) and ``skipped`` (bool).  It sets
    ``loss_scale`` (float, to use next) and ``version`` (int, committed steps of the job).  Before the first step
    grad_norm is nan.  ``state`` is always empty: use :meth:`state_dict`, or read one tensor with
    ``sharded_of(model).read(param, "exp_avg")``.

    Errors: ValueError, naming the parameter, for one that was frozen when the model was sharded and is not now, or that
    is another model's.  ValueError for hyperparameters out of range, and for a model that was sharded for another
    optimizer or with other formats.
    """

    name: str  # in the service
    planes: tuple[str, ...]  # the state that the service keeps beside the master weights
    has_step = True  # the state of torch's optimizer has a step
    torch_kind: type[torch.optim.Optimizer] | None = None  # torch's optimizer of this name
    split: MuonSplit | None = None  # for a marked model; None: by name

    def set_of(self, group: Mapping[str, Any]) -> Any:
        """Returns a param group's hyperparameters.  ValueError for those that the service does not have."""
        raise NotImplementedError

    def __init__(self, model: nn.Module, params: Iterable[Any] | None, defaults: dict[str, Any],
                 **how: bool | None):
        kind = type(self).__name__
        if not isinstance(model, nn.Module):
            raise TypeError(f"the first argument is the sharded model, not {type(model).__name__}: "
                            f"{kind}(model, params=None, lr=...)")
        for key in how.keys() - IMPLEMENTATION:
            raise TypeError(f"{kind} has no argument '{key}'")
        _refuse(how)
        if defaults["ema_decay"] is None:
            del defaults["ema_decay"]
        else:
            self.planes = (*self.planes, "ema")
        self.averages = "ema_decay" in defaults
        self.formats = Wanted(defaults.pop("state"), defaults.pop("master"), self.name)
        self.set_of(defaults)
        if is_marked(model):
            params = self._shard(model, params)
        self.sharded = sharded_of(model)
        needs, has = (f"shard(model, optimizer='{name}', ema={ema})" for name, ema in (
            (self.name, self.averages), (self.sharded.optimizer_name, self.sharded.ema)))
        if needs != has:
            raise ValueError(f"this {kind} is for {needs}, and the model is of {has}")
        self.grad_norm, self.skipped = math.nan, False
        self.version = self.sharded.client.version
        self.loss_scale = self.sharded.client.loss_scale
        self._sets: dict[ShardedParam, int] = {}  # the service's set numbers, as far as they are known
        if params is None:
            values.check_all_sharded(model)
            params = [p for p in model.parameters() if p.requires_grad]
        super().__init__(self.grouped(params), defaults)
        self.numbered(self.param_groups)
        self.sharded.optimized = self._optimized()
        self.sharded.optimizer = weakref.ref(self)

    def _shard(self, model: nn.Module, params: Iterable[Any] | None) -> Iterable[Any] | None:
        """Shards a marked model for this optimizer.  Returns params with the placeholders of its parameters."""
        names = {p: name for name, p in model.named_parameters()}
        given = [] if params is None or isinstance(params, torch.Tensor) else listed(params)
        shard(model, optimizer=self.split or self.name, ema=self.averages, **self.formats.choices(names, given))
        return replaced(given, {p: model.get_parameter(name) for p, name in names.items()}) if given else params

    def grouped(self, params: Iterable[Any]) -> Iterable[Any]:
        """Returns what torch takes as params."""
        return params

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a param group, as in torch.  ValueError if a parameter is not one of the model's trainable ones."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        param_group = dict(param_group)
        given = param_group["params"]
        given = [given] if isinstance(given, torch.Tensor) else given
        if not isinstance(given, set):  # torch refuses sets
            given = list(given)
            param_group["params"] = [self._checked(i, p) for i, p in enumerate(given) if not self._is_frozen(p)]
            self.formats.take(param_group, self.sharded, given)
        added = {**self.defaults, **param_group}
        self.set_of(added)
        if self._is_mine():
            self.numbered([*self.param_groups, added])
        # its wrapper imports torch._dynamo, which takes as long as importing torch
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)
        if self._is_mine():
            self.sharded.optimized = self._optimized()

    def _is_frozen(self, given: Any) -> bool:
        """Returns True for a parameter frozen when the model was sharded, and now: torch takes it, and does nothing."""
        tensor = tensor_of(given)
        if isinstance(tensor, nn.Parameter) and tensor in self.sharded.base:
            return True
        param = find_param(tensor) if isinstance(tensor, torch.Tensor) else None
        return param is not None and param.sharded is self.sharded and not (param.trainable or param.placeholder.requires_grad)

    def _checked(self, position: int, given: Any) -> Any:
        """Returns a parameter as the param groups keep it, with its name if it came with one."""
        name, tensor = given if isinstance(given, tuple) else (None, given)
        if not isinstance(tensor, torch.Tensor):
            raise TypeError("optimizer can only optimize Tensors, but one of the params is "
                            + torch.typename(tensor))
        try:
            param = self.sharded.param_of(tensor)
        except (TypeError, ValueError) as e:
            values.check_all_sharded(self.sharded.model)  # has a better text for a parameter that came later
            called = f"'{name}'" if name else f"{position} of param group {len(self.param_groups)}"
            raise ValueError(f"parameter {called} is not one of this model's: {e}") from e
        if param.placeholder.requires_grad and not param.trainable:
            raise ValueError(param.frozen_text())
        return param.placeholder if name is None else (name, param.placeholder)

    def _optimized(self) -> set[ShardedParam]:
        return {self.sharded.param_of(p) for g in self.param_groups for p in g["params"]}

    def _is_mine(self) -> bool:
        newest = self.sharded.optimizer
        return newest is not None and newest() is self

    def _check_mine(self) -> None:
        if not self._is_mine():
            raise RuntimeError("a newer optimizer of the same model has taken over from this one, for a model has one. Give it "
                               "the parameters of both as param groups, each with its own lr, or shard two models, each with "
                               "an optimizer and a job of its own")

    def _check_groups(self) -> None:
        """Raises if param_groups lost or gained parameters without add_param_group(): their gradients are pushed
        already."""
        changed = self._optimized() ^ (self.sharded.optimized or set())
        if changed:
            raise RuntimeError(f"param_groups lost or gained parameter '{min(p.name for p in changed)}': to leave parameters "
                               "out call zero_grad() and make a new optimizer, and use add_param_group() to add some")

    def numbered(self, groups: list[dict[str, Any]]) -> tuple[list[Any], list[int]]:
        """Returns the service's sets, and each group's number of one: its own, or with too many groups one with its
        values."""
        sets = [self.set_of(g) for g in groups]
        if len(sets) <= MAX_SETS:
            return sets, list(range(len(sets)))
        numbers: dict[Any, int] = {}
        found = [numbers.setdefault(s, len(numbers)) for s in sets]
        if len(numbers) > MAX_SETS:
            raise ValueError(f"{len(sets)} param groups have {len(numbers)} different sets of hyperparameters, and the service "
                             f"has {MAX_SETS}: give some groups the same values")
        return list(numbers), found

    def _assign_sets(self, numbers: list[int]) -> None:
        """Tells the service the sets of tensors that changed; the first rank that has a tensor does."""
        for index, group in zip(numbers, self.param_groups):
            for p in group["params"]:
                param = self.sharded.param_of(p)
                if param.writer != self.sharded.rank:
                    continue
                if param not in self._sets:
                    self._sets[param] = int(self.sharded.read(param, "set"))
                if self._sets[param] != index:
                    self.sharded.write(param, "set", torch.tensor([index]))
                    self._sets[param] = index

    def ahead(self) -> None:
        """Tells owners this step's hyperparameters: they update eager groups as soon as their gradients are complete.
        step() then raises zerod.Conflict if a value has changed."""
        self._check_mine()
        self._check_groups()
        pending = self.sharded.pending
        if pending.loss_scale != 1.0:
            raise RuntimeError("eager blocks are updated before an overflow is known: train without a GradScaler, or "
                               "shard the model without eager=True")
        sets, numbers = self.numbered(self.param_groups)
        self._assign_sets(numbers)
        self.sharded.attempt.ahead(sets)
        self.sharded.gradients.last = True

    @property
    def kept(self) -> bytes:
        """The blob that this rank, or its predecessor, gave to the last decided step, or b""."""
        return self.sharded.kept

    def step(self, closure: Callable[[], Any] | None = None, *, blob: bytes = b"") -> Any:
        """Updates the parameters.  All ranks call it; blocks until all have.

        Pushes the remaining gradients.  The service clips (after :func:`clip_grad_norm_`), unscales (with
        :class:`GradScaler`) and updates.  Returns the closure's value.  If a gradient is not finite, nothing is updated
        and ``skipped`` is True.
        blob: at most 8168 bytes that the service keeps for this rank with the step: :attr:`kept`.  Persistent buffers
        take the rest of these bytes.

        Raises zerod.Aborted, as forward and backward do, if a daemon, a node or a rank was lost: the step's gradients
        are gone.  If ``version`` is one higher, the step was committed after all.  Else run its forward and backward
        passes again, from the same batch, and call step() again.  :func:`zerod.torch.steps` does all that.
        zerod.Deadline and zerod.LostRank name the rank that the step waits for, and leave the step as it is.  step() may
        be called again, but forward and backward passes may not.
        """
        loss = None
        with self.sharded.turn.taken(trains=True):
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self._step(blob)
        return loss

    def _step(self, blob: bytes) -> None:
        self._check_mine()
        self._check_groups()
        sharded, pending = self.sharded, self.sharded.pending
        sets, numbers = self.numbered(self.param_groups)
        try:
            sharded.finish_backward_pushes()
            self._assign_sets(numbers)
            result = sharded.attempt.step(sets, blob, clip_norm=pending.clip_norm,
                                          loss_scale=pending.loss_scale,
                                          growth_interval=pending.growth_interval)
        except zerod.Aborted:
            self.version = sharded.client.version
            raise
        self.grad_norm, self.skipped = result.grad_norm, result.skipped
        self.loss_scale, self.version = result.loss_scale, result.version
        sharded.after_step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discards gradients that no step has used.  Then it waits for all ranks, which must all call it.  After a step
        it does nothing.

        set_to_none: False does the same.  torch would update a parameter without a gradient with zeros; the service
        does not update it."""
        del set_to_none
        self.sharded.drop_gradients()

    # ---- state ---------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the optimizer's state, in the format of torch's optimizer of this name.  Any rank may call it alone.

        The format is ``{"state": {i: {"step", "exp_avg", ...}}, "param_groups": [...]}``.  step is a float32 scalar.
        Moments have torch's names, and are fp32 of the parameter's shape, on the CPU, read one at a time.  Parameters
        that were never updated have no state.  16-bit parameters also have "master", fp32: with it training resumes
        exactly.  torch's optimizer loads the state, too.
        """
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        with self.sharded.turn.one_version():
            packed = tree_map_only(Source, Source.whole, self.sources())
        for hook in self._optimizer_state_dict_post_hooks.values():
            packed = hook(self, packed) or packed
        return packed

    def sources(self) -> dict[str, Any]:
        """Returns :meth:`state_dict`, without hooks, with a Source in the place of each tensor."""
        state: dict[int, dict[str, Source]] = {}
        groups, index = [], 0
        for group in self.param_groups:
            params = [self.sharded.param_of(p) for p in group["params"]]
            for i, param in enumerate(params, index):
                entry = self._state_of(param)
                if entry:
                    state[i] = entry
            groups.append({**{k: v for k, v in group.items() if k != "params"},
                           "params": list(range(index, index + len(params)))})
            index += len(params)
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads :meth:`state_dict`'s result, or that of torch's optimizer of this name.  All ranks call it.

        The first rank that has a parameter writes it to the service, one tensor at a time.  The call begins when all
        ranks have called, and returns when everything is written.  For 16-bit parameters load the model first: its
        values become the master weights.  The exact ones in the state, if it has them, then replace these.

        Errors, before anything is written: ValueError for other groups, shapes or another optimizer's state;
        RuntimeError in the middle of a step.
        """
        state_dict = dict(state_dict)
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = hook(self, state_dict) or state_dict
        values.check_boundary(self.sharded)
        groups = state_dict["param_groups"]
        entries = self._match(groups, state_dict["state"])
        for group in groups:
            self.set_of({**self.defaults, **group})
        with self.sharded.turn.changing():
            self.sharded.barrier()
            for param, entry in entries.items():
                if param.writer == self.sharded.rank:
                    self._write_state(param, entry)
            for mine, saved in zip(self.param_groups, groups):
                self._take_group(mine, saved)
            self.sharded.barrier()
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    @staticmethod
    def _take_group(mine: dict[str, Any], saved: Mapping[str, Any]) -> None:
        mine.update({k: v for k, v in saved.items()
                     if k != "params" and k not in IMPLEMENTATION})
        for key in {"betas", "ns_coefficients"} & mine.keys():
            mine[key] = tuple(mine[key])

    def _match(self, groups: list[Mapping[str, Any]],
               state: Mapping[Any, Any]) -> dict[ShardedParam, Mapping[str, Any]]:
        """Checks and returns each parameter's saved state; {} for one without."""
        if len(groups) != len(self.param_groups):
            raise ValueError(f"loaded state dict has {len(groups)} parameter groups, the optimizer "
                             f"{len(self.param_groups)}")
        found: dict[ShardedParam, Mapping[str, Any]] = {}
        for i, (mine, saved) in enumerate(zip(self.param_groups, groups)):
            if len(mine["params"]) != len(saved["params"]):
                raise ValueError(f"parameter group {i} has {len(mine['params'])} parameters, in "
                                 f"the loaded state dict {len(saved['params'])}")
            for p, key in zip(mine["params"], saved["params"]):
                param = self.sharded.param_of(p)
                found[param] = {k: v for k, v in state.get(key, {}).items() if v is not None}
                self._check_state(param, found[param])
        return found

    def _check_state(self, param: ShardedParam, entry: Mapping[str, Any]) -> None:
        if not entry:
            return
        kept = {"step", "master", *self.kept_of(param)}
        for key in sorted(set(entry) - kept):
            raise ValueError(f"parameter '{param.name}': the loaded state has '{key}', which "
                             f"{self.name} does not keep: it is of another optimizer, or of amsgrad")
        for key in sorted(kept - set(entry) - {"master", "ema", *([] if self.has_step else ["step"])}):
            raise ValueError(f"parameter '{param.name}': the loaded state has no '{key}', which "
                             f"{self.name} needs")
        if not 0 <= int(entry.get("step", 1)) < 1 << 62:
            raise ValueError(f"parameter '{param.name}': step {entry['step']} is out of range")
        for key in (*self.kept_of(param), "master"):
            if key in entry and tuple(entry[key].shape) != tuple(param.shape):
                raise ValueError(f"parameter '{param.name}' has shape {tuple(param.shape)}, its "
                                 f"loaded {key} {tuple(entry[key].shape)}")

    def kept_of(self, param: ShardedParam | ParamElsewhere) -> tuple[str, ...]:
        """Returns the state of a parameter that the service keeps beside the master weights."""
        del param
        return self.planes

    def planes_of(self, param: ShardedParam) -> tuple[str, ...]:
        """Returns the planes of an exact copy of a parameter's state."""
        return self.kept_of(param) if param.dtype is torch.float32 else ("master", *self.kept_of(param))

    def _state_of(self, param: ShardedParam) -> dict[str, Source]:
        step = int(self.sharded.read(param, "step"))
        if not step and param.dtype is torch.float32:
            return {}
        entry = {"step": of_tensor("step", torch.tensor(float(step)))}
        for plane in self.planes_of(param):
            entry[plane] = values.source_of(self.sharded, param, plane)
        return entry

    def _write_state(self, param: ShardedParam, entry: Mapping[str, Any]) -> None:
        if not entry:
            self.clear_state(param)
            return
        for plane in self.planes_of(param):
            if plane in entry:
                values.write_all(self.sharded, param, plane, entry[plane])
            elif plane == "ema":
                self._begin_average(param)
        self.sharded.write(param, "step", torch.tensor([int(entry.get("step", 1))]))

    def clear_state(self, param: ShardedParam) -> None:
        """Makes a parameter's state that of one that was never updated."""
        if int(self.sharded.read(param, "step")) == 0:
            return
        for plane in self.kept_of(param):
            for first, count in values.pieces(param.numel):
                self.sharded.write(param, plane, torch.zeros(count), first)
        if self.averages:
            self._begin_average(param)
        self.sharded.write(param, "step", torch.tensor([0]))

    def _begin_average(self, param: ShardedParam) -> None:
        """The average is what the weights are."""
        for first, count in values.pieces(param.numel):
            self.sharded.write(param, "ema", self.sharded.read(param, "master", first, count), first)


# ---- each of them ------------------------------------------------------------------


def adam_set(kind: Any, group: Mapping[str, Any], averages: bool) -> Any:
    """Returns a param group's hyperparameters as zerod.AdamSet or zerod.AdamWSet, which is `kind`."""
    _refuse(group)
    beta1, beta2 = _betas(group)
    return kind(lr=number_of(group, "lr"), beta1=beta1, beta2=beta2, eps=number_of(group, "eps"),
                weight_decay=number_of(group, "weight_decay"), maximize=bool(group["maximize"]),
                ema_decay=ema_decay_of(group, averages))


class Adam(ServiceOptimizer):
    """``torch.optim.Adam`` of a sharded model, with torch's arguments: weight_decay is L2, a part of the gradient.  eps
    0, with which a gradient of 0 makes nan, is refused.  Everything else is as :class:`ServiceOptimizer` says."""

    name, planes, torch_kind = "adam", ("exp_avg", "exp_avg_sq"), torch.optim.Adam

    def __init__(self, model: nn.Module, params: Iterable[Any] | None = None, lr: float | torch.Tensor = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.0, amsgrad: bool = False, *, maximize: bool = False,
                 decoupled_weight_decay: bool = False, ema_decay: float | None = None, state: str | None = None,
                 master: str | None = None, **how: bool | None):
        super().__init__(model, params, {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "maximize": maximize, "decoupled_weight_decay": decoupled_weight_decay,
            "ema_decay": ema_decay, "state": state, "master": master}, amsgrad=amsgrad, **how)

    def set_of(self, group: Mapping[str, Any]) -> "zerod.AdamSet | zerod.AdamWSet":
        decoupled = isinstance(self, AdamW)
        kind, other = (zerod.AdamWSet, "Adam") if decoupled else (zerod.AdamSet, "AdamW")
        if bool(group["decoupled_weight_decay"]) != decoupled:
            raise ValueError(f"decoupled_weight_decay={group['decoupled_weight_decay']} is "
                             f"zerod.torch.{other}, for a model that is sharded for it")
        return adam_set(kind, group, self.averages)


class AdamW(Adam):
    """``torch.optim.AdamW`` of a sharded model, with torch's arguments.  Everything else is as
    :class:`ServiceOptimizer` says."""

    name, torch_kind = "adamw", torch.optim.AdamW

    def __init__(self, model: nn.Module, params: Iterable[Any] | None = None, lr: float | torch.Tensor = 1e-3,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.01, amsgrad: bool = False, *, maximize: bool = False,
                 ema_decay: float | None = None, state: str | None = None, master: str | None = None, **how: bool | None):
        super().__init__(model, params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize,
                         decoupled_weight_decay=True, ema_decay=ema_decay, state=state, master=master, **how)


class _WithMomentum(zerod.SGDSet):
    """The set of "sgd-momentum", also for a group with momentum 0, while other groups have momentum."""

    @property
    def optimizer(self) -> str:
        return "sgd-momentum"


class SGD(ServiceOptimizer):
    """``torch.optim.SGD`` of a sharded model, with torch's arguments.

    The service keeps a momentum_buffer for all parameters or for none.  With momentum, in the defaults or in any param
    group, this is "sgd-momentum", else "sgd", and the model is sharded for that.  A group's momentum may change between
    steps.  If it rises from 0, it finds the last gradient in the momentum_buffer; torch begins with no buffer.
    Everything else is as :class:`ServiceOptimizer` says."""

    name, planes, has_step, torch_kind = "sgd", (), False, torch.optim.SGD

    def __init__(self, model: nn.Module, params: Iterable[Any] | None = None, lr: float | torch.Tensor = 1e-3,
                 momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
                 nesterov: bool = False, *, maximize: bool = False, ema_decay: float | None = None,
                 state: str | None = None, master: str | None = None, **how: bool | None):
        if nesterov and (not momentum or dampening):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        params = None if params is None else list(params)
        if momentum or any(isinstance(g, dict) and g.get("momentum") for g in params or ()):
            self.name, self.planes = "sgd-momentum", ("momentum_buffer",)
        super().__init__(model, params, {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
            "nesterov": nesterov, "maximize": maximize, "ema_decay": ema_decay, "state": state, "master": master}, **how)

    def set_of(self, group: Mapping[str, Any]) -> zerod.SGDSet:
        _refuse(group)
        momentum, dampening = number_of(group, "momentum"), number_of(group, "dampening")
        if momentum and "momentum_buffer" not in self.planes:
            raise ValueError(f"momentum {momentum}: 'sgd' keeps no momentum_buffer. Give SGD() the "
                             "momentum when you make it, for a model of "
                             "shard(model, optimizer='sgd-momentum')")
        return (_WithMomentum if "momentum_buffer" in self.planes else zerod.SGDSet)(
            lr=number_of(group, "lr"), momentum=momentum, dampening=dampening if momentum else 0.0,
            weight_decay=number_of(group, "weight_decay"),
            nesterov=bool(momentum and group["nesterov"]), maximize=bool(group["maximize"]),
            ema_decay=ema_decay_of(group, self.averages))


class Lion(ServiceOptimizer):
    """Lion (arXiv 2302.06675) of a sharded model, with the paper's defaults and decoupled weight
    decay.  Everything else is as :class:`ServiceOptimizer` says."""

    name, planes, has_step = "lion", ("exp_avg",), False

    def __init__(self, model: nn.Module, params: Iterable[Any] | None = None, lr: float | torch.Tensor = 1e-4,
                 betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0, *,
                 maximize: bool = False, ema_decay: float | None = None, state: str | None = None,
                 master: str | None = None):
        super().__init__(model, params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize,
                                         "ema_decay": ema_decay, "state": state, "master": master})

    def set_of(self, group: Mapping[str, Any]) -> "zerod.LionSet":
        beta1, beta2 = _betas(group)
        return zerod.LionSet(lr=number_of(group, "lr"), beta1=beta1, beta2=beta2,
                             weight_decay=number_of(group, "weight_decay"),
                             maximize=bool(group["maximize"]),
                             ema_decay=ema_decay_of(group, self.averages))
