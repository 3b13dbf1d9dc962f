"""Formats in which owners keep the moments and the master weights of each parameter.

Rule: a parameter has its formats before the job is laid out, and keeps them.  They are no hyperparameters: param_groups
and state_dict() do not have them.
"""
from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from typing import Any, Union

import torch
from torch import nn

from .plan import PlannedParam, clean, named
from .sharded import Sharded, find_param

KNOWN = {"state": ("fp32", "bf16", "8bit"), "master": ("fp32", "bf16+16", "bf16+8")}
WHAT = {"state": "moments", "master": "master weights"}

#: One format for all trained parameters, or {name or pattern: format}.
Choice = Union[str, Mapping[str, str]]


def check_format(what: str, value: Any, optimizer: str) -> None:
    """Raises ValueError for a format that planes of this optimizer cannot have."""
    if value not in KNOWN[what]:
        raise ValueError(f"{what} is one of {', '.join(KNOWN[what])}, not {value!r}")
    if optimizer == "sgd" and what == "state" and value != "fp32":
        raise ValueError(f"state={value!r}: 'sgd' keeps no moments: leave state out, or use 'sgd-momentum', SGD with momentum")


def frozen_text(name: str, what: str) -> str:
    """Returns a text: a frozen parameter takes no format."""
    return (f"{what}: parameter '{name}' is frozen, and the service keeps it as it is: leave {what} out, or call "
            "requires_grad_(True) before shard()")


def _chosen(params: list[PlannedParam], choice: Choice, what: str, pipeline: bool) -> dict[str, str]:
    """Returns the format of each trained parameter that has one by this choice."""
    trained = [p for p in params if p.value.requires_grad]
    if isinstance(choice, str):
        return {p.name: choice for p in trained}
    for pattern in choice:
        found = named(params, [pattern], what, pipeline)
        if found and found.isdisjoint(p.name for p in trained):
            raise ValueError(frozen_text(min(found), what))
    chosen = {}
    for p in trained:
        names = [*p.names, *p.tied]
        keys = [n for n in names if n in choice] or [k for k in choice if any(fnmatch.fnmatchcase(n, k) for n in names)]
        if keys:
            chosen[p.name] = choice[keys[0]]
    return chosen


def take_formats(params: list[PlannedParam], state: Choice, master: Choice, optimizer: str, eager: bool, pipeline: bool) -> None:
    """Gives the parameters their formats.  ValueError, naming the parameter, for one that cannot have its format."""
    for what, choice in (("state", state), ("master", master)):
        for value in [choice] if isinstance(choice, str) else choice.values():
            check_format(what, value, optimizer)
    states, masters = _chosen(params, state, "state", pipeline), _chosen(params, master, "master", pipeline)
    for p in params:
        p.formats = states.get(p.name, "fp32"), masters.get(p.name, "fp32")
        if p.formats[1] == "fp32":
            continue
        if p.value.dtype is not torch.bfloat16:
            raise ValueError(f"master={p.formats[1]!r}: parameter '{p.name}' is {p.value.dtype}, and such a master is 8 or 16 bits "
                             f"beside a weight in bf16: convert it to torch.bfloat16, or pass master={{'{p.name}': 'fp32', "
                             f"'*': {p.formats[1]!r}}}")
        if eager:
            raise ValueError(f"master={p.formats[1]!r}: what is served of an eager block changes with the decision alone: leave master "
                             "out, or eager=True")


class Wanted:
    """The formats that an optimizer was given: its own, and those of param groups.  None: as the model has them.

    For a marked model, which is laid out for the optimizer, params come as they were before shard().
    """

    def __init__(self, state: str | None, master: str | None, optimizer: str):
        self.own = {"state": state, "master": master}
        self.optimizer = optimizer
        self._check(self.own)

    def _check(self, formats: Mapping[str, str | None]) -> None:
        for what, value in formats.items():
            if value is not None:
                check_format(what, value, self.optimizer)

    def choices(self, names: Mapping[nn.Parameter, str], params: list[Any]) -> dict[str, Choice]:
        """Returns shard()'s arguments."""
        found: dict[str, Choice] = {}
        for what, own in self.own.items():
            choice = {clean(names[t]): g[what] for g in params if isinstance(g, dict) and g.get(what)
                      for t in map(tensor_of, g["params"]) if isinstance(t, nn.Parameter) and t in names and t.requires_grad}
            found[what] = {**choice, "*": own or "fp32"} if choice else own or "fp32"
        return found

    def take(self, group: dict[str, Any], sharded: Sharded, given: list[Any]) -> None:
        """Takes the formats out of a new param group.  ValueError if its parameters were laid out with others, or if it
        was given frozen ones alone."""
        own = {what: group.pop(what, None) for what in KNOWN}
        self._check(own)
        for i, (what, value) in enumerate(own.items()):
            if value and given and not group["params"]:
                raise ValueError(frozen_text(find_param(tensor_of(given[0])).name, what))
            wanted = value or self.own[what]
            for param in (sharded.param_of(tensor_of(p)) for p in group["params"] if wanted):
                if param.formats[i] != wanted:
                    raise ValueError(f"{what}={wanted!r}: parameter '{param.name}' was laid out with its {WHAT[what]} in "
                                     f"{param.formats[i]}, which its job keeps: pass shard(model, {what}=...), or leave {what} out")


def tensor_of(given: Any) -> Any:
    """Returns the tensor of what torch takes as a parameter."""
    return given[1] if isinstance(given, tuple) else given


def listed(params: Iterable[Any]) -> list[Any]:
    """Returns params, with a list in the place of each iterator."""
    return [{**g, "params": [g["params"]] if isinstance(g["params"], torch.Tensor) else list(g["params"])}
            if isinstance(g, dict) and not isinstance(g["params"], set) else g for g in params]


def replaced(params: list[Any], after: Mapping[Any, Any]) -> list[Any]:
    """Returns listed() params, with other tensors in the place of some."""
    def of(given: Any) -> Any:
        if isinstance(given, dict):
            return given if isinstance(given["params"], set) else {**given, "params": list(map(of, given["params"]))}
        if isinstance(given, tuple):
            return given[0], of(given[1])
        return after.get(given, given) if isinstance(given, nn.Parameter) else given
    return list(map(of, params))
