"""Full parameters on demand: reading, changing, ``state_dict()`` and ``load_state_dict()``.

Rule: beyond the parameters that the caller wants to hold, one at a time is read or written.  If all ranks call, they
meet, the first rank that has a parameter writes it, and they meet again.
"""
from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

import zerod

from .files import Source, pieces
from .parameter import GradientsAreElsewhere
from .sharded import Sharded, find_param, uncompiled
from .twin import overridden, override
from .unit import ShardedParam


# ---- one parameter -----------------------------------------------------------------


def read_all(sharded: Sharded, param: ShardedParam, plane: str = "serve") -> torch.Tensor:
    """Reads a parameter's plane, flat: fp32, or the parameter's dtype for "serve"."""
    dtype = param.dtype if plane == "serve" else torch.float32
    return source_of(sharded, param, plane, dtype=dtype).whole().view(-1)


def source_of(sharded: Sharded, param: ShardedParam, plane: str, name: str = "",
              dtype: torch.dtype = torch.float32) -> Source:
    """Returns a Source of a parameter's plane, which is read when it is written to a file."""
    return Source(name, tuple(param.shape), dtype,
                  lambda first, count: sharded.read(param, plane, first, count).to(dtype))


def write_all(sharded: Sharded, param: ShardedParam, plane: str,
              values: torch.Tensor) -> None:
    """Writes a tensor of the parameter's shape, of any dtype, a piece at a time."""
    flat = values.detach().reshape(-1)
    for first, count in pieces(param.numel):
        sharded.write(param, plane, flat[first:first + count], first)


def check_all_sharded(model: nn.Module) -> None:
    """Raises ValueError for a trained parameter that came into the model after shard()."""
    for name, tensor in model.named_parameters():
        if tensor.requires_grad and find_param(tensor) is None:
            raise ValueError(f"parameter '{name}' came into the model after shard(): zerod does not "
                             "have it and would not train it; change the model before shard()")


def check_boundary(sharded: Sharded) -> None:
    """Raises RuntimeError if this rank has gradients of an unfinished step, or another thread trains."""
    sharded.turn.check()
    if sharded.has_gradients:
        raise RuntimeError("parameters and optimizer state are written between steps: gradients of "
                           "this step are there; call optimizer.step() or optimizer.zero_grad() on "
                           "all ranks first")


def check_not_averaged(sharded: Sharded) -> None:
    """Raises RuntimeError within ema_params()."""
    if sharded.averaged:
        raise RuntimeError("within ema_params() the averages stand in for the parameters: leave the context first")


# ---- full parameters ---------------------------------------------------------------


class _Full:
    """One parameter that a full_params() context shows."""

    def __init__(self, param: ShardedParam, plane: str = "serve"):
        self.param = param
        values = read_all(param.sharded, param, plane).view(param.shape).to(param.sharded.place.device, param.dtype)
        self.tensor = param.parameter(values, param.placeholder.requires_grad)
        self.depth = 0  # contexts that show it
        self.clean = self.tensor._version  # version counter of the service's values

    def show(self) -> None:
        self.depth += 1
        self.param.unit.full += self.depth == 1
        self.param.full = self.tensor
        self.param.put_in_place(self.tensor)

    def hide(self) -> bool:
        """Ends one context.  Returns True if it was the last."""
        self.depth -= 1
        if self.depth == 0:
            self.param.full = None
            self.param.unit.full -= 1
            _restore(self.param)
        return self.depth == 0

    def current(self) -> torch.Tensor:
        """Returns the module's tensor: another one, if the user has assigned one."""
        for module, attribute in self.param.places:
            found = module._parameters.get(attribute)
            if found is not None and find_param(found) is not self.param:
                return found
        return self.tensor

    def write_back(self) -> None:
        """Writes the values if they differ from the service's."""
        value = self.current()
        if tuple(value.shape) != tuple(self.param.shape):
            raise ValueError(f"parameter '{self.param.name}' has shape {tuple(self.param.shape)} "
                             f"and was given {tuple(value.shape)}; nothing of it is written")
        if value is self.tensor and value._version == self.clean and not self._differs():
            return
        write_all(self.param.sharded, self.param, "master", value)
        self.clean = self.tensor._version

    def _differs(self) -> bool:
        """Compares with the service's values: a write through ``.data`` does not count in the version counter."""
        flat = self.tensor.detach().reshape(-1)
        if flat.dtype is not self.param.dtype:
            return True
        same = {4: torch.int32, 2: torch.int16, 1: torch.uint8}[flat.dtype.itemsize]
        for first, count in pieces(self.param.numel):
            there = self.param.sharded.read(self.param, "serve", first, count)
            if not torch.equal(there.view(same), flat[first:first + count].cpu().view(same)):
                return True
        return False


def _restore(param: ShardedParam) -> None:
    """Shows the parameter as the present state of its unit wants it."""
    param.put_in_place(param.shown if param.unit.shown else param.placeholder)


def _let_go(param: ShardedParam) -> None:
    """Releases the parameter's unit, whose values are not the newest any more."""
    if param.unit.depth == 0 and param.unit.fetched:
        param.unit.release()


class _Model:
    """The record that install() keeps with a Sharded."""

    def __init__(self, sharded: Sharded):
        self.sharded = sharded
        self.full: dict[ShardedParam, _Full] = {}
        self.loading = 0  # load_state_dict() calls under way
        self.saved: dict[ShardedParam, tuple[str, int]] = {}  # key and address in the last state_dict(), for tied ones
        self.of_module: dict[nn.Module, dict[str, ShardedParam]] = {}
        self.whole: dict[nn.Module, dict[str, nn.Parameter]] = {}  # whole tensors of the base whose part this rank has
        for param in sharded.params:
            for module, attribute in param.places:
                self.of_module.setdefault(module, {})[attribute] = param

    def params_in(self, module: nn.Module) -> list[ShardedParam]:
        """Returns the parameters of a part of the model, each once."""
        found: dict[ShardedParam, None] = {}
        for m in module.modules():
            found.update(dict.fromkeys(self.of_module.get(m, {}).values()))
        return list(found)


def _model_of(module: nn.Module) -> _Model:
    model = uncompiled(module).__dict__.get("_zerod_state")
    if model is None:
        raise TypeError(f"{type(module).__name__} is not part of a sharded model: call "
                        "zerod.torch.shard(model)")
    return model


@contextlib.contextmanager
def full_params(module: nn.Module, write: bool = False) -> Iterator[None]:
    """Makes the parameters of a module and its children ordinary full parameters, inside the context.

    module: a sharded model or a part of one.  Values have the parameter's shape and dtype, on the model's device.  They
    are read one parameter at a time when the context begins, and tied parameters once.  Any rank may use it alone; it
    is reentrant.  The model runs on these parameters: forward, generate().  torch.autograd.grad() works on them.
    backward() would train nothing, and the end of the context raises.

    write: when the block ends without an exception, this rank writes changed parameters to the service.  After an
    exception nothing is written.  In 16-bit models the fp32 master weights of changed parameters become the new values.
    Use it on one rank, between steps, and let the others wait: ``sharded_of(model).barrier()`` on all ranks makes them
    meet.  Without write, changes are lost.

    Errors: TypeError if the module is not part of a sharded model.  GradientsAreElsewhere if parameters have gradients
    at the end.  With write: RuntimeError in the middle of a step, ValueError if a parameter was given another shape.
    """
    model = _model_of(module)
    if write:
        check_boundary(model.sharded)
        check_not_averaged(model.sharded)
    with _shown(model, module, write, ()):
        yield


def show_whole(module: nn.Module, tensors: dict[str, nn.Parameter]) -> None:
    """Makes full_params() show these tensors in one module of a sharded model."""
    _model_of(module).whole[module] = tensors


@contextlib.contextmanager
def ema_params(module: nn.Module) -> Iterator[None]:
    """Inside, the module's parameters are the averages of its weights: ``full_params(module)``, read from the
    plane that an optimizer with ema_decay keeps.

    Values have the parameter's dtype; frozen parameters are themselves.  :func:`save_safetensors`,
    ``state_dict()`` and ``copy.deepcopy(model)`` take the averages; zerod.torch.full_params(write=True) and
    save_checkpoint() raise.  Any rank may use it alone, and reads one parameter at a time.

    Errors: ValueError if the model was sharded without ema=True, RuntimeError within
    full_params(), and those of full_params().
    """
    model = _model_of(module)
    sharded = model.sharded
    if not sharded.ema:
        raise ValueError("the model keeps no averages: shard(model, ema=True) and an optimizer with ema_decay do")
    params = model.params_in(module)
    if any(p in model.full and p not in sharded.averaged for p in params):
        raise RuntimeError("ema_params() within full_params(): leave the context first")
    averaged = {p for p in params if p.trainable}
    if module is sharded.model:
        averaged |= {p for p in sharded.elsewhere if p.trainable}
    with _shown(model, module, False, averaged):
        before, sharded.averages = sharded.averages, sharded.averages | averaged
        try:
            yield
        finally:
            sharded.averages = before


@contextlib.contextmanager
def _shown(model: _Model, module: nn.Module, write: bool, averaged: Container[Any]) -> Iterator[None]:
    """Shows full parameters, and the averages of those in `averaged`."""
    shown: list[_Full] = []
    whole = contextlib.ExitStack()
    turn = model.sharded.turn
    turn.enter(trains=write)
    try:
        for m in module.modules():
            whole.enter_context(attributes(m, model.whole.get(m, {})))
        for param in model.params_in(module):
            full = model.full.get(param)
            if full is None:
                full = model.full[param] = _Full(param, "ema" if param in averaged else "serve")
            param.unit.guard()
            full.show()
            shown.append(full)
        yield
        for full in shown:
            if full.tensor.grad is not None:
                raise GradientsAreElsewhere(
                    f"backward() within full_params() gave '{full.param.name}' a gradient, which the service does not "
                    "get. Call it outside, take torch.autograd.grad(), or set .grad to None before the end")
        if write:
            check_boundary(model.sharded)
            with turn.one_version():
                for full in shown:
                    full.write_back()
                    _let_go(full.param)
    finally:
        whole.close()
        for full in shown:
            if full.hide():
                del model.full[full.param]
        turn.leave()


@contextlib.contextmanager
def hold(module: nn.Module) -> Iterator[None]:
    """Keeps the parameters that forward passes of the module fetch, inside the context: for generation and evaluation.

    module: a sharded model or a part of one.  At stages 1 and 2, on a GPU, or if the model fits its window, the groups
    stay in the window until the next step.  Else this is ``full_params(module)``: the rank has a copy of the module's
    parameters until the end.  Any rank may use it alone.  Passes with gradients are right, too, but slower than without
    this context.  With the copy they are not possible (full_params() says why).

    Errors: TypeError if the module is not part of a sharded model.
    """
    model = _model_of(module)
    sharded = model.sharded
    if sharded.place.holds and sharded.hold_groups != zerod.ALL:
        with full_params(module):
            yield
        return
    units = {p.unit for p in model.params_in(module)}
    with sharded.turn.taken():
        for unit in units:
            unit.held += 1
        try:
            yield
        finally:
            for unit in units:
                unit.held -= 1
                sharded.hooks.let_go_unless_used(unit)


def register_forward_method(module: nn.Module, name: str) -> None:
    """Keeps the module's parameters fetched while this method runs, as while its forward runs.

    module: a sharded model or a part of one.  name: of a method, which may call forward.  shard() registers generate(),
    encode() and encode_...(), and get_..._features() of all modules.  FSDP2 has a function of that name.

    Errors: TypeError if the module is not part of a sharded model or the attribute is no method, AttributeError if it
    is missing.
    """
    _model_of(module).sharded.hooks.run_as_forward(module, name)


ENTRIES = re.compile(r"generate|encode(_\w+)?|get_\w+_features")


@functools.cache
def _entries(kind: type) -> list[str]:
    """Returns methods of transformers, peft and sentence-transformers that use parameters without a forward pass."""
    return [n for n in dir(kind) if ENTRIES.fullmatch(n) and inspect.isfunction(inspect.getattr_static(kind, n))]


# ---- state_dict() ------------------------------------------------------------------


@contextlib.contextmanager
def attributes(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Shows tensors in one module during a call, which has the model's turn."""
    before = {name: module._parameters[name] for name in tensors}
    module._parameters.update(tensors)
    try:
        yield
    finally:
        module._parameters.update(before)


def _saved_twin(model: _Model, param: ShardedParam, destination: Mapping[str, Any]) -> Any:
    """Returns a tied parameter's tensor, if the same state_dict() call has it already."""
    key, address = model.saved.get(param, ("", 0))
    there = destination.get(key)
    if isinstance(there, torch.Tensor) and there.data_ptr() == address and (
            there.shape == param.shape and there.dtype is param.dtype):
        return there
    return None


def _save(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Is ``state_dict`` of a sharded model or a part of one, in any thread."""
    with _model_of(module).sharded.turn.one_version():
        return overridden(module, "state_dict")(*args, **kwargs)


def save_module(module: nn.Module, destination: dict[str, Any], prefix: str,
                 keep_vars: bool) -> None:
    """Is ``_save_to_state_dict`` of a module that owns sharded parameters.

    It leaves the module as it is, because another thread may compute with it."""
    model = _model_of(module)
    tensors: dict[str, torch.Tensor] = dict(model.whole.get(module, {}))
    for name, param in model.of_module.get(module, {}).items():
        value = _saved_twin(model, param, destination) if len(param.places) > 1 else None
        if value is None and param in model.full and model.sharded.turn.is_mine():
            continue
        if value is None:
            value = read_all(model.sharded, param).view(param.shape)
        model.saved[param] = (prefix + name, value.data_ptr())
        tensors[name] = param.parameter(value, param.placeholder.requires_grad)
    twin = nn.Module.__new__(type(module))
    twin.__dict__.update(module.__dict__, _parameters={**module._parameters, **tensors})
    type(module)._save_to_state_dict(twin, destination, prefix, keep_vars)


# ---- load_state_dict() -------------------------------------------------------------


def _blank(module: nn.Module, param: ShardedParam) -> nn.Parameter:
    """Returns a parameter to load into.  It has the values if the module's class loads in its own way, and may look at
    them."""
    own = type(module)._load_from_state_dict is not nn.Module._load_from_state_dict
    values = read_all(param.sharded, param) if own else torch.empty(param.numel, dtype=param.dtype)
    return nn.Parameter(values.view(param.shape), requires_grad=param.placeholder.requires_grad)


def _load_module(module: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Is ``_load_from_state_dict`` of a module that owns sharded parameters."""
    model = _model_of(module)
    if not model.loading:
        raise RuntimeError("load_state_dict() of a module around a sharded model, where ranks would not meet: call the "
                           "sharded model's own; that of what torch.compile() made is compiled._orig_mod")
    mine = model.of_module[module]
    blanks = {name: _blank(module, param) for name, param in mine.items()}
    versions = {name: t._version for name, t in blanks.items()}
    with attributes(module, blanks):
        type(module)._load_from_state_dict(module, *args, **kwargs)
        loaded = {name: module._parameters.get(name) for name in blanks}
    for name, value in loaded.items():
        if mine[name].writer != model.sharded.rank or (value is blanks[name] and value._version == versions[name]):
            continue
        if value is None or value.shape != mine[name].shape:
            raise ValueError(f"parameter '{mine[name].name}' has shape {tuple(mine[name].shape)}; "
                             "load_state_dict() put something else in its place")
        write_all(model.sharded, mine[name], "master", value.to(mine[name].dtype))


def _load(module: nn.Module, state_dict: Mapping[str, Any], strict: bool = True,
          assign: bool = False) -> Any:
    """Is ``load_state_dict`` of a sharded model or a part of one.  All ranks call it.

    Values are cast to the parameters' dtypes, and the first rank that has a parameter writes it.  Each rank loads its
    buffers.  The call begins when all ranks have called, and returns when everything is written.  assign changes
    nothing for parameters.
    """
    model = _model_of(module)
    with model.sharded.turn.changing():
        check_boundary(model.sharded)
        if model.full:
            raise RuntimeError("load_state_dict() within full_params(): leave the context first")
        if model.loading == 0:
            model.sharded.barrier()  # no rank computes with or reads the old values any more
        model.loading += 1
        try:
            result = overridden(module, "load_state_dict")(state_dict, strict=strict, assign=assign)
        finally:
            model.loading -= 1
        if model.loading == 0:
            model.sharded.barrier()
        return result


def _resize(module: Any, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, *more: Any, **named: Any) -> Any:
    """Is transformers' ``resize_token_embeddings``.  RuntimeError if that makes new parameters."""
    rows = module.get_input_embeddings().weight.shape[0]
    wanted, multiple = rows if new_num_tokens is None else new_num_tokens, pad_to_multiple_of or 1
    if -(-wanted // multiple) * multiple != rows:
        raise RuntimeError(f"resize_token_embeddings({new_num_tokens}) makes new parameters, which the service does not have: call "
                           f"it before shard(); the embedding has {rows} rows")
    return overridden(module, "resize_token_embeddings")(new_num_tokens, pad_to_multiple_of, *more, **named)


def install(model: nn.Module, sharded: Sharded) -> None:
    """Makes ``state_dict()`` and ``load_state_dict()`` of the model and of each of its modules work on the service's
    values."""
    kept = _Model(sharded)
    for module in model.modules():
        override(module, "_zerod_state", kept)
        override(module, "state_dict", functools.partial(_save, module))
        override(module, "load_state_dict", functools.partial(_load, module))
        if module in kept.of_module:
            override(module, "_save_to_state_dict", functools.partial(save_module, module))
            override(module, "_load_from_state_dict", functools.partial(_load_module, module))
        if hasattr(module, "resize_token_embeddings"):
            override(module, "resize_token_embeddings", functools.partial(_resize, module))
        for name in _entries(type(module)):
            register_forward_method(module, name)


# ---- names -------------------------------------------------------------------------


def persistent_buffers(model: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    """Yields the buffers that state_dict() saves, with their names without the parts of wrappers."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield (f"{prefix}.{name}" if prefix else name), buffer
