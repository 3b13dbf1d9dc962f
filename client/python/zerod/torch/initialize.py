"""First values for models on the meta device, one group of parameters at a time.

A module is initialised by ``init_fn(module)`` if there is one, else by the Hugging Face model around it
(``_init_weights``).  Else its own ``reset_parameters()`` does it (``_reset_parameters()`` of torch's attention and
transformer modules).

Rules: a module is initialised on scratch copies of its own parameters and buffers, so only the wanted values are kept
and nothing real changes.  Scratch is filled with a mark (nan, an extreme integer).  An error names parameters and
buffers that still have the mark afterwards, so none has chance values.  Values depend on torch's seed and the
parameters' names alone, not on ranks, stages or groups.  Drawing them leaves the random state of all ranks alike.
"""
from __future__ import annotations

import contextlib
import hashlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from .parameter import Placeholder
from .plan import PlannedParam

INITIALIZED = "_is_hf_initialized"  # of modules and parameters: Hugging Face leaves them alone
InitFn = Callable[[nn.Module], None]

_seeds: "weakref.WeakKeyDictionary[nn.Module, int]" = weakref.WeakKeyDictionary()
_prepared: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()


# ---- initialisers ------------------------------------------------------------------


def _hf_model(model: nn.Module, name: str) -> nn.Module | None:
    """Returns the innermost Hugging Face model around a module, which initialises the module."""
    found, at = None, model
    for part in [None, *filter(None, name.split("."))]:
        at = at if part is None else at._modules[part]
        if hasattr(at, "_init_weights") and hasattr(at, "config"):
            found = at
    return found


def _reset(module: nn.Module) -> Callable[[], None] | None:
    for name in ("reset_parameters", "_reset_parameters"):
        if callable(getattr(module, name, None)):
            return getattr(module, name)
    return None


def _initializers(model: nn.Module, name: str, module: nn.Module,
                  init_fn: InitFn | None) -> list[Callable[[], Any]]:
    """Returns initialisers to try, one after the other, until nothing is blank."""
    found: list[Callable[[], Any]] = []
    hf, reset = _hf_model(model, name), _reset(module)
    own: InitFn | None = init_fn if init_fn is not None else hf._init_weights if hf else None
    if own is not None:
        found.append(lambda: own(module))
        if reset is not None:  # parameters that `own` leaves alone get their constructor's values
            found.append(lambda: (reset(), own(module)))
    elif reset is not None:
        found.append(reset)
    return found


def _unreal(tensor: torch.Tensor) -> bool:
    return tensor.is_meta or isinstance(tensor, Placeholder)


def _on_meta(tensors: dict[str, torch.Tensor | None]) -> bool:
    return any(t is not None and _unreal(t) for t in tensors.values())


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"'{n or '(the model itself)'}'" for n in names)


def _check(model: nn.Module, init_fn: InitFn | None) -> None:
    """Raises ValueError, which names all modules on meta without an initialiser."""
    helpless = [
        f"{name or '(the model itself)'} ({type(m).__name__})" for name, m in model.named_modules()
        if (_on_meta(m._parameters) or _on_meta(m._buffers))
        and not _initializers(model, name, m, init_fn)]
    if helpless:
        raise ValueError(
            "these modules are on the meta device and have no reset_parameters(): "
            f"{', '.join(helpless)}. Pass init_fn(module), which fills the module's own parameters "
            "and buffers, or build them on the CPU")


# ---- scratch -----------------------------------------------------------------------


def _mark_value(dtype: torch.dtype) -> Any:
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    if dtype is torch.bool:
        return True
    return torch.iinfo(dtype).min or torch.iinfo(dtype).max


def _scratch(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a real tensor: marked if this one is on meta, else a copy."""
    if not _unreal(tensor):
        return tensor.detach().clone()
    return torch.full(tensor.shape, _mark_value(tensor.dtype), dtype=tensor.dtype, device="cpu")


def _marked(tensor: torch.Tensor) -> bool:
    """Returns True if a scratch tensor still has its mark: anywhere, or, for integers and bools, everywhere."""
    if tensor.numel() == 0:
        return False
    if tensor.dtype is torch.bool:
        return tensor._version == 0 and bool(tensor.all())
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return bool(tensor.sum().isnan()) and bool(tensor.isnan().any())  # the sum takes no memory
    return bool((tensor == _mark_value(tensor.dtype)).all())


@contextlib.contextmanager
def _on_scratch(module: nn.Module) -> Iterator[None]:
    """Replaces the module's own parameters and buffers by real scratch tensors, inside the context."""
    params, buffers = dict(module._parameters), dict(module._buffers)
    flag = module.__dict__.pop(INITIALIZED, None)
    for name, p in params.items():
        if p is not None:
            module._parameters[name] = made = nn.Parameter(_scratch(p), p.requires_grad)
            made.__dict__.update({k: v for k, v in vars(p).items() if k != INITIALIZED})
    for name, b in buffers.items():
        if b is not None:
            module._buffers[name] = _scratch(b)
    try:
        yield
    finally:
        module._parameters.update(params)
        module._buffers.update(buffers)
        if flag is not None:
            module.__dict__[INITIALIZED] = flag


def _blank(module: nn.Module, params: Iterable[str], buffers: Iterable[str]) -> list[str]:
    """Returns the names of those that still have their mark."""
    return ([n for n in params if _marked(module._parameters[n])]
            + [n for n in buffers if _marked(module._buffers[n])])


@contextlib.contextmanager
def _seeded(seed: int, what: str) -> Iterator[None]:
    """Gives each module random numbers of its own, and leaves the caller's as they were.

    torch.manual_seed() would also seed the generators of all GPUs, all ranks alike from then on.  Scratch is in host
    memory, and does not need them.
    """
    digest = hashlib.sha256(f"{seed} {what}".encode()).digest()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int.from_bytes(digest[:7], "little"))
        yield


def _seed_of(model: nn.Module) -> int:
    """Draws a seed from torch's generator, once for each model and on all ranks."""
    if model not in _seeds:
        _seeds[model] = int(torch.randint(1 << 62, ()))
    return _seeds[model]


class _Work:
    """One module that is being initialised on scratch, and the names of the wanted values."""

    def __init__(self, name: str, module: nn.Module):
        self.name, self.module = name, module
        self.params: list[str] = []
        self.buffers: list[str] = []


def _run(model: nn.Module, work: Sequence[_Work], init_fn: InitFn | None) -> None:
    """Initialises modules on scratch, children first; ValueError names what stays blank."""
    blank: list[str] = []
    for w in work:
        left: list[str] = []
        with _seeded(_seed_of(model), w.name), torch.no_grad():
            for function in _initializers(model, w.name, w.module, init_fn):
                function()
                left = _blank(w.module, w.params, w.buffers)
                if not left:
                    break
        blank += [f"{w.name}.{n}" if w.name else n for n in left]
    if blank:
        raise ValueError(
            f"these are on the meta device and initialising their modules leaves them unset: "
            f"{_names(blank)}. Pass an init_fn(module) that fills them (values that __init__ "
            "computes are not there on meta), or build those modules on the CPU")


def _ancestors(model: nn.Module, work: Sequence[_Work]) -> list[tuple[str, nn.Module]]:
    """Returns the modules around the work that own nothing on meta themselves, innermost first.  From there Hugging
    Face models give some of their parts' parameters another distribution."""
    names = {w.name for w in work}
    found: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        found.update(dict.fromkeys(".".join(parts[:i]) for i in range(len(parts))))
    around = [(n, model.get_submodule(n)) for n in found if n not in names]
    around = [(n, m) for n, m in around if not _on_meta(m._parameters) and not _on_meta(m._buffers)]
    return sorted(around, key=lambda nm: (-nm[0].count(".") - bool(nm[0]), nm[0]))


# ---- called by shard() --------------------------------------------------------------


def prepare(model: nn.Module, init_fn: InitFn | None = None) -> None:
    """Checks that everything on meta can be initialised, and gives the model real buffers.

    Every rank calls it, before or with the first :func:`materialize`.  A model without anything on meta is not touched.
    ValueError names all modules without an initialiser, and all buffers that stay unset.
    """
    _prepared.add(model)
    if not any(_on_meta(m._parameters) or _on_meta(m._buffers) for m in model.modules()):
        return
    _check(model, init_fn)
    _seed_of(model)
    work = []
    for name, module in model.named_modules():
        if _on_meta(module._buffers):
            w = _Work(name, module)
            w.buffers = [n for n, b in module._buffers.items() if b is not None and b.is_meta]
            work.append(w)
    work.reverse()  # children first
    real: dict[int, torch.Tensor] = {}  # by id of the buffer on meta: some are shared
    for w in work:
        with _on_scratch_keeping(w, real):
            _run(model, [w], init_fn)


@contextlib.contextmanager
def _on_scratch_keeping(w: _Work, real: dict[int, torch.Tensor]) -> Iterator[None]:
    """Does what _on_scratch() does, and leaves the wanted buffers in the module."""
    before = {n: w.module._buffers[n] for n in w.buffers}
    with _on_scratch(w.module):
        yield
        made = {n: w.module._buffers[n] for n in w.buffers}
    for n, old in before.items():
        w.module._buffers[n] = real.setdefault(id(old), made[n].detach())


def materialize(model: nn.Module, members: Sequence[PlannedParam], init_fn: InitFn | None = None,
                wanted: bool = True) -> list[torch.Tensor | None]:
    """Returns first values of some parameters, of their shape and dtype, on the CPU.

    Parameters that are not on meta are returned as they are.  For the others only they, and scratch of their modules,
    become real; the model stays as it is.  wanted: False if the values are not needed, as on all ranks but one.  The
    model's buffers become real in any case.

    ValueError as from :func:`prepare`, and if a parameter stays unset.
    """
    if model not in _prepared:
        prepare(model, init_fn)
    if not wanted:
        return [None] * len(members)
    homes = {p.places[0][0]: p.names[0].rpartition(".")[0]
             for p in members if p.value.is_meta}
    names = {id(m): n for n, m in model.named_modules()} if homes else {}
    work = {m: _Work(names[id(m)], m) for m in homes}
    for p in members:
        if p.value.is_meta:
            work[p.places[0][0]].params.append(p.places[0][1])
    ordered = [work[m] for m in reversed(list(model.modules())) if m in work]
    with contextlib.ExitStack() as scratch:
        for w in ordered:
            scratch.enter_context(_on_scratch(w.module))
        _run(model, ordered, init_fn)
        if init_fn is None:
            _run_around(model, ordered)
        return [p.places[0][0]._parameters[p.places[0][1]].detach() if p.value.is_meta
                else p.value.detach() for p in members]


def _run_around(model: nn.Module, work: Sequence[_Work]) -> None:
    mine = {w.module for w in work}
    for name, module in _ancestors(model, work):
        hf = _hf_model(model, name)
        if hf is not None:
            with (_others_on_meta(module, mine), _seeded(_seed_of(model), f"{name} (around)"),
                  torch.no_grad()):
                hf._init_weights(module)


@contextlib.contextmanager
def _others_on_meta(module: nn.Module, mine: set[nn.Module]) -> Iterator[None]:
    """Keeps an initialiser of the module from changing modules that are not in `mine`, inside the context."""
    before = [(m, n, p) for m in module.modules() if m not in mine
              for n, p in m._parameters.items() if p is not None]
    for m, n, p in before:
        m._parameters[n] = nn.Parameter(torch.empty(p.shape, dtype=p.dtype, device="meta"), False)
    try:
        yield
    finally:
        for m, n, p in before:
            m._parameters[n] = p
