"""Frozen parameters that the jobs of a node share: they stay in the files' one copy, and in no shard.

Rule: a frozen parameter is the files' tensor of its name, dtype and shape, or shard() refuses it by name.  The
memory cannot be written to: whoever would load other values gets an error.
"""
from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

import zerod

from .files import CheckpointError, tensors_in
from .plan import PlannedParam, find_params
from .state import attributes
from .twin import override

OF_PEFT = ("base_layer", "original_module")  # what peft puts around the modules of a model


def _names(param: PlannedParam) -> Iterator[str]:
    """The names that a parameter may have in a file: its own, and those before peft."""
    for name in param.names:
        yield name
        parts = name.removeprefix("base_model.model.").split(".")
        yield ".".join(part for part in parts if part not in OF_PEFT)


def _in_files(files: list[str], memories: list[memoryview]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for path, memory in zip(files, memories):
        tensors = tensors_in(path, memory)
        for name in tensors.keys() & found.keys():
            raise CheckpointError(f"{path}: tensor '{name:.200}' is in another file of the base, too")
        found.update(tensors)
    return found


def _tensor_of(param: PlannedParam, found: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """The tensor of the base that a parameter is, None for a trained one; ValueError if it cannot be that."""
    tensor = next((found[name] for name in _names(param) if name in found), None)
    value = param.value
    if value.requires_grad:
        if tensor is not None:
            raise ValueError(f"parameter '{param.name}' is trained and in the base, which nobody changes: freeze it by "
                             "requires_grad_(False), or leave it out of the files")
        return None
    if tensor is None:
        raise ValueError(f"parameter '{param.name}' is frozen and in no file of the base: name the file that has it, or "
                         "leave base= out")
    if tensor.dtype is not value.dtype or tensor.shape != value.shape:
        raise ValueError(f"parameter '{param.name}' is {value.dtype} {tuple(value.shape)}, and in the base "
                         f"{tensor.dtype} {tuple(tensor.shape)}: make the model as the files are")
    return tensor


def take(model: nn.Module, client: zerod.Client, files: Iterable[str | os.PathLike[str]]) -> set[nn.Parameter]:
    """Puts the files' tensors in the place of all frozen parameters; returns what the model then has of them."""
    if isinstance(files, (str, os.PathLike)):
        raise TypeError("base is a list of safetensors files: write base=[path]")
    paths = [os.fspath(f) for f in files]
    found = _in_files(paths, client.base(paths))
    tensors = [(param, _tensor_of(param, found)) for param in find_params(model)]
    taken = set()
    for param, tensor in tensors:
        if tensor is not None:
            mapped = nn.Parameter(tensor, requires_grad=False)
            taken.add(mapped)
            for module, attribute in param.places:
                module._parameters[attribute] = mapped  # pylint: disable=protected-access
    if not taken:
        raise ValueError("no parameter of the model is frozen, so that base= has nothing to hold: leave it out, or freeze "
                         "by requires_grad_(False)")
    return taken


def _load(module: nn.Module, names: list[str], before: Any, *args: Any) -> None:
    """``_load_from_state_dict`` of a module with parameters of the base."""
    base = {name: module._parameters[name] for name in names}
    blanks = {name: nn.Parameter(torch.empty_like(p), requires_grad=False) for name, p in base.items()}
    versions = {name: blank._version for name, blank in blanks.items()}
    with attributes(module, blanks):
        before(*args)
        loaded = {name: module._parameters[name] for name in names}
    for name, value in loaded.items():
        if value is blanks[name] and value._version == versions[name]:
            continue
        if value is None or not torch.equal(value, base[name]):
            raise ValueError(f"parameter '{args[1]}{name}' is of the base, and load_state_dict() has other values: shard the "
                             "model with base= of the files that have them")


def install(model: nn.Module, taken: set[nn.Parameter]) -> None:
    """Has ``load_state_dict()`` check what it would write to the base; after state.install()."""
    for module in model.modules():
        names = [name for name, p in module._parameters.items() if p in taken]  # pylint: disable=protected-access
        if names:
            override(module, "_load_from_state_dict",
                     functools.partial(_load, module, names, module._load_from_state_dict))
