"""Muon: whole matrices by Newton-Schulz, and AdamW for all other parameters of the model."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

import zerod

from .matrices import MuonSplit
from .optim import ServiceOptimizer, adam_set, ema_decay_of, number_of
from .pipeline import ParamElsewhere
from .sharded import find_param, uncompiled
from .unit import ShardedParam

__all__ = ["Muon"]

ADAMW = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01, "maximize": False}
PLANES = {True: ("momentum_buffer",), False: ("exp_avg", "exp_avg_sq")}  # of a parameter with matrices, and of another
ADJUST_LR = ("original", "match_rms_adamw", "spectral_unclamped")


def _of_matrices(group: Mapping[str, Any]) -> bool:
    """Returns True for a param group of Muon, and False for one of AdamW."""
    return "betas" not in group


class Muon(ServiceOptimizer):
    """``torch.optim.Muon`` for the matrices of a sharded model, and AdamW for the rest, in one optimizer:

        model = zt.shard(model, optimizer="muon")
        optimizer = zt.Muon(model, lr=2e-2, adamw={"lr": 3e-4})

    One owner updates a matrix, from the gradient of the whole step: all ranks' and all micro-batches', clipped by the
    global norm before it enters the momentum.  Newton-Schulz runs once a step, in bf16 with sums in fp32.
    :func:`muon_split` tells, and changes, which parameters are which; ``optimizer.matrices`` and
    ``optimizer.elementwise`` name them.

    model: of ``shard(model, optimizer="muon")``, or marked by :func:`fully_shard`.
    params: None: two param groups, Muon's and AdamW's.  So it is with an iterable of the model's parameters.  Dicts are
    groups of their own, each of one kind, with learning rates of their own.
    lr, weight_decay, momentum, nesterov, ns_coefficients, eps, ns_steps, adjust_lr_fn: torch.optim.Muon's, of Muon's
    groups.  adjust_lr_fn is None or "original", "match_rms_adamw", with which AdamW's lr fits Muon, too, or
    "spectral_unclamped".  ns_steps is at most 99.
    adamw: of AdamW's groups: lr (1e-3), betas, eps, weight_decay (0.01) and maximize, with torch.optim.AdamW's values
    where it does not say.
    state, master: formats of all parameters, of both kinds.
    split: of :func:`muon_split`, for a model that fully_shard() has marked; the model's own otherwise.

    :meth:`state_dict` has "momentum_buffer" of matrices, fp32, and "exp_avg" and "exp_avg_sq" of others.
    :meth:`torch_state_dicts` is for torch.optim.Muon and torch.optim.AdamW.  momentum_buffer is the average of gradients
    that torch's code keeps.  The buffer of torch's documentation is their sum: multiply it by 1 - momentum before you
    load it.  Everything else is as :class:`ServiceOptimizer` says.

    Errors: ValueError for hyperparameters out of range, for a param group with parameters of both kinds, and for another
    split than the model's.  TypeError for a key of `adamw` that AdamW does not have.
    """

    name, planes = "muon", (*PLANES[True], *PLANES[False])

    def __init__(self, model: nn.Module, params: Iterable[Any] | None = None, lr: float | torch.Tensor = 1e-3,
                 weight_decay: float = 0.1, momentum: float = 0.95, nesterov: bool = True,
                 ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315), eps: float = 1e-7,
                 ns_steps: int = 5, adjust_lr_fn: str | None = None, *, adamw: Mapping[str, Any] | None = None,
                 split: MuonSplit | None = None, ema_decay: float | None = None, state: str | None = None,
                 master: str | None = None):
        for key in (adamw or {}).keys() - ADAMW.keys():
            raise TypeError(f"adamw={{'{key}': ...}}: zerod's AdamW has {', '.join(ADAMW)}")
        averages = {} if ema_decay is None else {"ema_decay": ema_decay}
        self.averages, self.split = bool(averages), split
        self.adamw = {**ADAMW, **(adamw or {}), **averages}
        self.set_of(self.adamw)
        there = uncompiled(model).__dict__.get("_zerod_sharded") if isinstance(model, nn.Module) else None
        if split is not None and there is not None and split != there.muon:
            raise ValueError("split= is not the one that the model was sharded for: leave it out, or pass it to "
                             "shard(model, optimizer=split)")
        super().__init__(model, params, {
            "lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov,
            "ns_coefficients": ns_coefficients, "eps": eps, "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn,
            "ema_decay": ema_decay, "state": state, "master": master})

    @property
    def matrices(self) -> list[str]:
        """The names of the parameters that Muon updates."""
        return list(self.sharded.muon.matrices)

    @property
    def elementwise(self) -> list[str]:
        """The names of the parameters that AdamW updates."""
        return list(self.sharded.muon.elementwise)

    def set_of(self, group: Mapping[str, Any]) -> "zerod.MuonSet | zerod.AdamWSet":
        if not _of_matrices(group):
            if not group.get("decoupled_weight_decay", True):
                raise ValueError("decoupled_weight_decay=False is Adam, and the parameters that are no matrices are AdamW's")
            return adam_set(zerod.AdamWSet, group, self.averages)
        momentum, steps, adjust = number_of(group, "momentum"), group["ns_steps"], group["adjust_lr_fn"]
        coefficients = tuple(map(float, group["ns_coefficients"]))
        if momentum >= 1.0:
            raise ValueError(f"momentum {momentum} is not in [0, 1)")
        if not isinstance(steps, int) or not 0 <= steps < 100:
            raise ValueError(f"ns_steps {steps!r} is not a number of steps from 0 to 99")
        if len(coefficients) != 3:
            raise ValueError(f"ns_coefficients {coefficients} are not three numbers")
        if adjust is not None and adjust not in ADJUST_LR:
            raise ValueError(f"adjust_lr_fn is None or one of {', '.join(ADJUST_LR)}, not {adjust!r}")
        return zerod.MuonSet(number_of(group, "lr"), momentum, number_of(group, "weight_decay"), bool(group["nesterov"]),
                             adjust, coefficients, number_of(group, "eps"), steps, ema_decay_of(group, self.averages))

    # ---- param groups --------------------------------------------------------------

    def _has_matrices(self, given: Any) -> bool | None:
        """Returns the kind of a parameter, or None if the service does not train it for this model."""
        tensor = given[1] if isinstance(given, tuple) else given
        param = find_param(tensor) if isinstance(tensor, torch.Tensor) else None
        trained = param is not None and param.sharded is self.sharded and param.trainable
        return param.matrices is not None if trained else None

    def grouped(self, params: Iterable[Any]) -> Iterable[Any]:
        params = params if isinstance(params, torch.Tensor) else list(params)
        if isinstance(params, torch.Tensor) or not params or isinstance(params[0], dict):
            return params
        matrices = [p for p in params if self._has_matrices(p)]
        return [{"params": matrices}, {**self.adamw, "params": [p for p in params if not self._has_matrices(p)]}]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a param group, as in torch.  Its parameters decide if it is Muon's or AdamW's."""
        before = self.defaults
        if isinstance(param_group, dict):
            given = param_group["params"]
            if not isinstance(given, (torch.Tensor, set)):  # an iterator, which is read twice
                param_group = {**param_group, "params": list(given)}
            if not self._is_of_matrices(param_group):
                self.defaults = self.adamw
        try:
            super().add_param_group(param_group)
        finally:
            self.defaults = before

    def _is_of_matrices(self, group: Mapping[str, Any]) -> bool:
        """Returns True for a new param group of Muon.  ValueError if it has parameters of AdamW, too, or its values."""
        given = [group["params"]] if isinstance(group["params"], torch.Tensor) else group["params"]
        kinds = {kind: self._name_of(p) for p in given if (kind := self._has_matrices(p)) is not None}
        if len(kinds) > 1:
            raise ValueError(f"a param group has '{kinds[True]}', which is Muon's, and '{kinds[False]}', which is AdamW's: "
                             "make two groups")
        if True in kinds and not _of_matrices(group):
            raise ValueError(f"a param group with betas has '{kinds[True]}', which is Muon's")
        return next(iter(kinds), _of_matrices(group))

    def _name_of(self, given: Any) -> str:
        return self.sharded.param_of(given[1] if isinstance(given, tuple) else given).name

    def numbered(self, groups: list[dict[str, Any]]) -> tuple[list[Any], list[int]]:
        """The first sets are of Muon and of AdamW, which the layout gives to a parameter that is in no group."""
        first = [next((g for g in groups if _of_matrices(g) is kind), default)
                 for kind, default in ((True, self.defaults), (False, self.adamw))]
        ordered = [*first, *(g for g in groups if all(g is not f for f in first))]
        sets, numbers = super().numbered(ordered)
        number = {id(g): n for g, n in zip(ordered, numbers)}
        return sets, [number[id(g)] for g in groups]

    # ---- state ---------------------------------------------------------------------

    def kept_of(self, param: ShardedParam | ParamElsewhere) -> tuple[str, ...]:
        return (*PLANES[param.matrices is not None], *(["ema"] if self.averages else []))

    def torch_state_dicts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the state as torch.optim.Muon and as torch.optim.AdamW load it: those of the groups of each kind, in
        their order.  Any rank may call it alone."""
        packed = self.state_dict()
        found = []
        for kind in (True, False):
            groups = [g for g in packed["param_groups"] if _of_matrices(g) is kind]
            number = {key: i for i, key in enumerate(key for g in groups for key in g["params"])}
            found.append({
                "state": {number[key]: entry for key, entry in packed["state"].items() if key in number},
                "param_groups": [{**g, "params": [number[key] for key in g["params"]]} for g in groups]})
        return found[0], found[1]

    def load_torch_state_dicts(self, muon: Mapping[str, Any], adamw: Mapping[str, Any]) -> None:
        """Loads the state_dict() of a torch.optim.Muon and of a torch.optim.AdamW: the groups of each in the order of
        the groups of its kind here.  All ranks call it.  Errors are those of :meth:`load_state_dict`."""
        state: dict[Any, Any] = {}
        left: dict[bool, list[dict[str, Any]]] = {}
        for kind, packed in ((True, muon), (False, adamw)):
            state.update({(kind, key): entry for key, entry in packed["state"].items()})
            left[kind] = [{**g, "params": [(kind, key) for key in g["params"]]} for g in packed["param_groups"]]
        groups = [left[kind].pop(0) for kind in map(_of_matrices, self.param_groups) if left[kind]]
        self.load_state_dict({"state": state, "param_groups": [*groups, *left[True], *left[False]]})

    def _match(self, groups: list[Mapping[str, Any]],
               state: Mapping[Any, Any]) -> dict[ShardedParam, Mapping[str, Any]]:
        for i, (mine, saved) in enumerate(zip(self.param_groups, groups)):
            if _of_matrices(mine) is not _of_matrices(saved):
                raise ValueError(f"parameter group {i} is {'Muon' if _of_matrices(mine) else 'AdamW'}'s, in the loaded state "
                                 "dict it is not")
        return super()._match(groups, state)

    def _check_state(self, param: ShardedParam, entry: Mapping[str, Any]) -> None:
        """torch.optim.Muon keeps no step."""
        super()._check_state(param, {"step": 1, **entry} if entry and param.matrices else entry)
