"""Frozen parameters that the jobs of a node share: they stay in the files' one copy, and in no shard.

Rule: a frozen parameter is the files' tensor of its name, dtype and shape, or shard() refuses it by name.  The memory
cannot be written to: loading other values is an error.  A rank has its part of a DTensor by the same mapping.  A GPU
has one copy of all files for all processes of the user.  Ranks of a mesh or a pipeline need parts, and have copies of
their own.
"""
from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import zerod

from .files import CheckpointError, tensors_in
from .plan import PlannedParam, find_params
from .split import Split, is_dtensor, split_of
from .state import attributes, save_module, show_whole
from .twin import override

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from .pipeline import Stage
    from .place import Gpu, Host

log = logging.getLogger(__name__)
OF_PEFT = ("base_layer", "original_module")  # names that peft puts around a model's modules


def _names(param: PlannedParam, tied: Iterable[list[str]]) -> Iterator[str]:
    """Yields the names that a parameter may have in a file: its own, those in other stages, and those before peft."""
    for name in dict.fromkeys([*param.names, *(n for of in tied if set(of) & set(param.names) for n in of)]):
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


def _tensor_of(param: PlannedParam, names: Iterable[str], found: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """Returns a frozen parameter's tensor of the base, None for a trained one.  ValueError if they differ."""
    tensor = next((found[name] for name in names if name in found), None)
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


def no_mapping(_tensor: torch.Tensor) -> None:
    """Returns None: each process has a copy."""


def _mapped_on(place: "Host | Gpu", client: zerod.Client) -> Callable[[torch.Tensor], torch.Tensor | None]:
    """Returns a function from a tensor of the base in host memory to its mapping on the place, or None if it has
    none."""
    if place.holds:
        return lambda tensor: tensor
    try:
        copy = client.base_copy(place.needs()["device"])
    except (zerod.Gpu, zerod.ProtocolVersion) as e:
        log.warning("job '%s': each process has a copy of the base on its GPU: %s", client.job, e)
        return no_mapping

    def on_gpu(tensor: torch.Tensor) -> torch.Tensor | None:
        address = copy.at(tensor.data_ptr())
        if tensor.element_size() == 1 and address % 16:  # kernels load 16 bytes at once, and files align only to elements
            return None
        return place.tensor_at(address, tensor.numel(), tensor.dtype, copy).view(tensor.shape)
    return on_gpu


def _parameter(param: PlannedParam, tensor: torch.Tensor, mapped: Callable[[torch.Tensor], torch.Tensor | None],
               device: torch.device) -> nn.Parameter:
    """Makes a frozen parameter of a tensor of the base, or of this rank's part of it: mapped, or a copy."""
    value, split = param.value, param.split
    if split:
        tensor = tensor.narrow(split.axis, split.begins[split.own], split.sizes[split.own])
    there = mapped(tensor)
    tensor = tensor.to(device, copy=True) if there is None else there
    if is_dtensor(value):
        from torch.distributed.tensor import DTensor  # pylint: disable=import-outside-toplevel
        made = nn.Parameter(DTensor.from_local(tensor, value.device_mesh, value.placements, run_check=False,
                                               shape=value.shape, stride=value.stride()), requires_grad=False)
    else:
        made = torch.Tensor._make_subclass(type(value), tensor, False)  # pylint: disable=protected-access
        made.__dict__.update(vars(value))
    made.zerod_mapped = there is not None
    return made


def take(model: nn.Module, client: zerod.Client, files: Iterable[str | os.PathLike[str]], place: "Host | Gpu",
         mesh: "DeviceMesh | None", stage: "Stage | None") -> tuple[dict[nn.Parameter, torch.Tensor], list[Split]]:
    """Puts the files' tensors in the place of all frozen parameters.

    Returns the model's new parameters, each with its whole tensor, and how parameters are divided."""
    if isinstance(files, (str, os.PathLike)):
        raise TypeError("base is a list of safetensors files: write base=[path]")
    paths = [os.fspath(f) for f in files]
    found = _in_files(paths, client.base(paths))
    params = [(param, _tensor_of(param, _names(param, stage.tied if stage else ()), found)) for param in find_params(model)]
    frozen = [(param, tensor) for param, tensor in params if tensor is not None]
    for param, _ in frozen:
        param.split = split_of(param.name, param.value, mesh)
    parts = not place.holds and (mesh is not None or stage is not None)
    mapped = _mapped_on(place, client) if frozen and not parts else no_mapping
    taken = {_parameter(param, tensor, mapped, place.device): tensor for param, tensor in frozen}
    for (param, _), made in zip(frozen, taken):
        param.value.zerod_taken = made.zerod_taken = param.name  # tells optimizers that have the old parameter
        for module, attribute in param.places:
            module._parameters[attribute] = made  # pylint: disable=protected-access
    if not taken and stage is None:
        raise ValueError("no parameter of the model is frozen, so that base= has nothing to hold: leave it out, or freeze "
                         "by requires_grad_(False)")
    return taken, [param.split for param, _ in frozen if param.split]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _load(module: nn.Module, base: Mapping[str, torch.Tensor], before: Any, *args: Any) -> None:
    """Is ``_load_from_state_dict`` of a module with parameters of the base."""
    blanks = {name: nn.Parameter(torch.empty_like(t), requires_grad=False) for name, t in base.items()}
    versions = {name: blank._version for name, blank in blanks.items()}
    with attributes(module, blanks):
        before(*args)
        loaded = {name: module._parameters[name] for name in base}
    for name, value in loaded.items():
        if value is blanks[name] and value._version == versions[name]:
            continue
        if value is None or value.dtype is not base[name].dtype or value.shape != base[name].shape or (
                not torch.equal(_bytes(value.cpu()), _bytes(base[name]))):
            raise ValueError(f"parameter '{args[1]}{name}' is of the base, and load_state_dict() has other values: shard the "
                             "model with base= of the files that have them")


def _refuse_merge(name: str, before: Any, safe_merge: bool = False, *args: Any, **more: Any) -> None:
    """Is ``merge`` of a peft layer, which adds to the weights in place.  With safe_merge it makes new ones."""
    if not safe_merge:
        raise RuntimeError(f"the weights of '{name}' are of the base, which nobody changes: merge the adapters of a "
                           "copy.deepcopy(model)")
    before(safe_merge, *args, **more)


def install(model: nn.Module, base: Mapping[nn.Parameter, torch.Tensor]) -> None:
    """Makes ``load_state_dict()`` check the values that it would write to the base, and ``state_dict()`` and
    full_params() show whole tensors.  Keeps peft's layers from merging into mapped tensors.  Called after
    state.install()."""
    full = {p: nn.Parameter(tensor, requires_grad=False) for p, tensor in base.items() if is_dtensor(p)}
    mapped = {p for p in base if p.zerod_mapped}
    for prefix, module in model.named_modules():
        mine = {name: p for name, p in module._parameters.items() if p in base}  # pylint: disable=protected-access
        if mine:
            override(module, "_load_from_state_dict",
                     functools.partial(_load, module, {n: base[p] for n, p in mine.items()}, module._load_from_state_dict))
        whole = {name: full[p] for name, p in mine.items() if p in full}
        if whole:
            override(module, "_save_to_state_dict", functools.partial(save_module, module))
            show_whole(module, whole)
        inner = getattr(module, OF_PEFT[0], None)
        if isinstance(inner, nn.Module) and hasattr(module, "merge") and any(p in mapped for p in inner.parameters()):
            override(module, "merge", functools.partial(_refuse_merge, prefix, module.merge))
