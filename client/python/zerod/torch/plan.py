"""Divides the parameters of a model into units and groups.

A *unit* is a module whose parameters are fetched and released together.  The model itself is the last unit.  It has the
parameters that no other unit has, and tied parameters that several units share.  Parameters of one unit that differ in
dtype or formats are different *groups* of the layout, and so are trained and frozen ones.

Rule: the module looks at the model and changes nothing.
"""
from __future__ import annotations

import fnmatch
import logging
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .split import Split, is_dtensor

DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
BYTES = {torch.int8: "int8", torch.uint8: "uint8", torch.float8_e4m3fn: "fp8-e4m3", torch.float8_e5m2: "fp8-e5m2",
         torch.bool: "bool"}  # of frozen parameters, which the service keeps as they are
WORD = 4  # bytes of an element of such a parameter in the layout
UNCALLED = nn.modules.linear.NonDynamicallyQuantizableLinear  # attention uses such a layer's weights without a call
LARGE = 1 << 22  # least elements of a layer outside of blocks that is a unit of its own

log = logging.getLogger("zerod")

#: The types of ``groups`` of :func:`zerod.torch.shard`.
Groups = Callable[[str, nn.Module], bool] | Iterable[type | str] | None


@dataclass
class PlannedParam:
    """One parameter, however many modules share it."""
    value: nn.Parameter
    names: list[str]
    places: list[tuple[nn.Module, str]]  # module and attribute
    split: Split | None = None
    tied: list[str] = field(default_factory=list)  # its names in the stages of a pipeline that share it, the first for all
    matrices: list[int] | None = None  # the rows of each matrix that Muon updates; None: it has none
    formats: tuple[str, str] = ("fp32", "fp32")  # of its moments and its master weights

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass
class PlannedUnit:
    """A module and the parameters that are fetched and released with it."""
    module: nn.Module
    name: str  # "" for the model
    params: list[PlannedParam] = field(default_factory=list)

    def groups(self) -> list[list[PlannedParam]]:
        """Returns groups of parameters that agree in dtype, trained or frozen, dimension of the mesh, set of stages, and
        formats."""
        found: dict[tuple[Any, ...], list[PlannedParam]] = {}
        for p in self.params:
            found.setdefault((p.value.dtype, p.value.requires_grad, p.split and p.split.along, tuple(p.tied), p.formats), []).append(p)
        return list(found.values())


def clean(name: str) -> str:
    """Returns a name without the parts that torch.compile and checkpoint wrappers add."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def find_params(model: nn.Module, apart: Container[nn.Parameter] = ()) -> list[PlannedParam]:
    """Returns all parameters but those in `apart`, in the order of ``named_parameters()``, each with all its places."""
    found: dict[int, PlannedParam] = {}
    for prefix, module in model.named_modules(remove_duplicate=True):
        if isinstance(module, torch.jit.ScriptModule) and next(module.parameters(), None) is not None:
            raise TypeError(f"module '{clean(prefix)}' is a {type(module).__name__}, for which zerod cannot fetch parameters: shard the "
                            "module that torch.jit.script() or trace() was given, and compile it by torch.compile()")
        for attribute, value in module._parameters.items():  # pylint: disable=protected-access
            if value is None or value in apart:
                continue
            name = clean(f"{prefix}.{attribute}" if prefix else attribute)
            p = found.setdefault(id(value), PlannedParam(value, [], []))
            p.names.append(name)
            p.places.append((module, attribute))
    for p in found.values():
        check_param(p)
    check_memory(found.values())
    return list(found.values())


def named(params: list[PlannedParam], patterns: Iterable[str], what: str, pipeline: bool) -> set[str]:
    """Returns the names of the parameters that the patterns of argument `what` mean."""
    names: set[str] = set()
    if isinstance(patterns, str):
        raise ValueError(f"{what}: a list of names is expected, not one str")
    for pattern in patterns:
        found = {p.name for p in params if any(fnmatch.fnmatchcase(n, pattern) for n in [*p.names, *p.tied])}
        if not found and not pipeline:
            raise ValueError(f"{what}: the model has no parameter '{pattern}'")
        if not found:
            log.warning("%s: this stage has no parameter '%s'", what, pattern)
        names |= found
    return names


def _computes_otherwise(value: nn.Parameter) -> bool:
    """Returns True if operations on tensors of this class do more than use their values.

    Functions of a class of bytes, such as bitsandbytes' Params4bit, work on the bytes that the service gives back."""
    kind = type(value)
    function = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)
    return ((value.dtype not in BYTES and function not in (torch.Tensor.__torch_function__.__func__,
                                                           nn.Parameter.__torch_function__))
            or kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__)


def check_param(p: PlannedParam) -> None:
    """Raises TypeError or ValueError for a parameter that zerod cannot hold."""
    other = getattr(p.value, "zerod_param", None)
    if other is not None:
        raise ValueError(f"parameter '{p.name}' is in job '{other.sharded.client.job}' already, as '{other.name}' of another model: "
                         "one model has it. Put what shares a module into one model, as by nn.ModuleDict, and shard that")
    if not is_dtensor(p.value) and _computes_otherwise(p.value):
        raise TypeError(f"parameter '{p.name}' is a {type(p.value).__name__}, which has operations "
                        "of its own; zerod holds plain values")
    for hook in (p.value._backward_hooks or {}).values():  # pylint: disable=protected-access
        if getattr(hook, "__qualname__", "").startswith("register_multi_grad_hook.<locals>.get_"):
            raise ValueError(f"parameter '{p.name}' has a hook of register_multi_grad_hook(), which "
                             "would never run after shard(): use register_hook() on each parameter")
    if p.value.dtype in BYTES and p.value.requires_grad:
        raise TypeError(f"parameter '{p.name}' is {p.value.dtype}, which zerod holds frozen: call requires_grad_(False) on "
                        "it, or convert it")
    if p.value.dtype not in DTYPES and p.value.dtype not in BYTES:
        way_out = ("keep it as two numbers an element, torch.view_as_real(value), and use torch.view_as_complex() of it in forward"
                   if p.value.is_complex() else "convert it" if p.value.requires_grad else "keep it in the trainer, as a buffer: "
                   "module.register_buffer(name, value.data) before shard()")
        raise TypeError(f"parameter '{p.name}' is {p.value.dtype}; zerod holds "
                        f"{', '.join(str(d) for d in (*DTYPES, *BYTES))}: {way_out}")
    if p.value.device.type not in ("cpu", "cuda", "meta"):
        raise ValueError(f"parameter '{p.name}' is on {p.value.device}; zerod serves host memory "
                         "and CUDA devices: shard the model there or on the meta device")


def check_memory(params: Iterable[PlannedParam]) -> None:
    """Raises ValueError for two parameters over one memory: the service would train them apart."""
    seen: dict[int, PlannedParam] = {}
    for p in params:
        address = 0 if is_dtensor(p.value) or p.value.is_meta or not p.value.numel() else p.value.data_ptr()
        other = seen.setdefault(address, p)
        if address and other is not p and (p.value.requires_grad or other.value.requires_grad):
            raise ValueError(f"parameters '{other.name}' and '{p.name}' share memory and are two parameters: tie them as one, "
                             "a.weight = b.weight, or give one of them a clone() before shard()")


def blocks_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Returns the blocks: the children of the outermost lists of two or more modules of one class."""
    blocks: list[tuple[str, nn.Module]] = []

    def visit(name: str, module: nn.Module) -> None:
        children = list(module.named_children())
        kinds = {type(getattr(c, "_orig_mod", c)) for _, c in children}
        alike = len(children) > 1 and len(kinds) == 1
        if alike and isinstance(module, (nn.ModuleList, nn.Sequential, nn.ModuleDict)):
            found = [(f"{name}.{n}" if name else n, c) for n, c in children]
            if all(any(True for _ in c.parameters()) and _callable(c) for _, c in found):
                blocks.extend(found)
                return
        for n, child in children:
            visit(f"{name}.{n}" if name else n, child)

    visit("", model)
    return blocks


def _callable(module: nn.Module) -> bool:
    """Returns True if the module has a forward of its own, which lists of modules have not."""
    return not isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.ParameterList,
                                   nn.ParameterDict))


def _large_leaves(model: nn.Module, taken: set[int]) -> list[tuple[str, nn.Module]]:
    """Returns embeddings and linear layers outside of blocks that are large enough for a unit of their own."""
    uses: dict[int, int] = {}
    for module in model.modules():
        for p in module._parameters.values():  # pylint: disable=protected-access
            if p is not None:
                uses[id(p)] = uses.get(id(p), 0) + 1
    leaves = []
    for name, module in model.named_modules():
        own = [p for p in module._parameters.values()  # pylint: disable=protected-access
               if p is not None]
        if (module is not model and id(module) not in taken and type(module) is not UNCALLED
                and isinstance(module, (nn.Embedding, nn.Linear)) and sum(p.numel() for p in own) >= LARGE and
                all(uses[id(p)] == 1 for p in own)):
            leaves.append((name, module))
    return leaves


def _chosen(model: nn.Module, groups: Groups) -> list[tuple[str, nn.Module]]:
    if groups is None:
        blocks = blocks_of(model)
        inside = {id(m) for _, block in blocks for m in block.modules()}
        return blocks + _large_leaves(model, inside)
    if callable(groups) and not isinstance(groups, type):
        test = groups
    else:
        wanted = [groups] if isinstance(groups, (type, str)) else list(groups)
        classes = tuple(w for w in wanted if isinstance(w, type))
        names = {w for w in wanted if isinstance(w, str)}

        def test(name: str, module: nn.Module) -> bool:
            known = {clean(name), type(module).__name__}
            return isinstance(module, classes) or bool(known & names)
    found = [(n, m) for n, m in model.named_modules() if m is not model and test(n, m)]
    if not found:
        raise ValueError(f"groups={groups!r} names no module of {type(model).__name__}")
    return found


def find_units(model: nn.Module, groups: Groups = None,
               marked: Iterable[nn.Module] = (), apart: Container[nn.Parameter] = ()) -> list[PlannedUnit]:
    """Returns the units of a model: blocks in the order of the module tree, the model itself last.

    Each parameter is in exactly one unit: the innermost that holds all its places.  apart: parameters in no unit.
    """
    marked = set(map(id, marked))
    if marked and groups is None:
        chosen = [(n, m) for n, m in model.named_modules() if id(m) in marked and m is not model]
    else:
        chosen = _chosen(model, groups)
    for name, module in chosen:
        if not _callable(module):
            raise ValueError(f"module '{name}' is a {type(module).__name__}, which is never "
                             "called: its members can be groups")
    units = [PlannedUnit(m, clean(n)) for n, m in chosen] + [PlannedUnit(model, "")]
    unit_of = {id(u.module): u for u in units}
    inner: dict[int, PlannedUnit] = {}  # by module: the innermost unit around it

    def visit(module: nn.Module, around: PlannedUnit) -> None:
        around = unit_of.get(id(module), around)
        if id(module) in inner:  # a module in two places belongs to the unit of neither
            around = units[-1] if inner[id(module)] is not around else around
        inner[id(module)] = around
        for child in module.children():
            visit(child, around)

    visit(model, units[-1])
    for p in find_params(model, apart):
        homes = {id(inner[id(m)]): inner[id(m)] for m, _ in p.places}
        home = next(iter(homes.values())) if len(homes) == 1 else units[-1]
        home.params.append(p)
    return [u for u in units if u.params or u.module is model]
