"""Activation checkpoints in the service: the inputs that a checkpointed block needs to run again (P_a of ZeRO-R, SC20,
section 6.1).

torch.utils.checkpoint does all of the checkpointing.  It hands the inputs of a block to the hooks for saved tensors.
The hooks write them to the stash and, when the block runs again, read them.

Rules
- The writes of a step number the entries.  All ranks of a set run the same blocks in the same order, so they number
  the entries alike.
- An entry lives as long as autograd may ask for it.  Its last release comes from a destructor, in any thread and in the
  middle of any call.  So the destructor only notes it, and the next call makes it.
- A tensor that is read is a copy: blocks write to their inputs in place, or keep them beyond the step.
- Copies between a GPU and host memory run on a stream of their own (:meth:`Gpu.beside`), so forward passes do not wait
  for them.  Their source is a copy, too, which no block writes to meanwhile.
- The next entry is read ahead: the one that earlier attempts read next.  Until that is known, it is the entry that was
  written before this one, which most backward passes read next.
"""
from __future__ import annotations

import collections
import contextlib
import functools
import gc
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils import checkpoint as plain
from torch.utils.weak import WeakIdKeyDictionary

import zerod

from .place import host_tensor_at
from .sharded import sharded_of
from .twin import not_traced, override

if TYPE_CHECKING:
    from .sharded import Sharded

SETTINGS = ("preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop",
            "respect_saved_tensors_hooks")
DECLARE = "zerod.torch.shard(model, stash=zerod.Stash(bytes)), with the bytes of all inputs of blocks in a step"

_all: "weakref.WeakSet[Activations]" = weakref.WeakSet()


class Entry:
    """Stands in autograd's graph in the place of a saved tensor."""

    __slots__ = ("owner", "attempt", "key", "shape", "stride", "dtype", "device", "written", "__weakref__")

    def __init__(self, owner: "Activations", tensor: torch.Tensor):
        like = torch.empty_like(tensor, device="meta")  # dense, in the tensor's order of dimensions
        self.owner, self.attempt, self.key = owner, owner.attempt, owner.next_key
        self.shape, self.stride = like.shape, like.stride()
        self.dtype, self.device = tensor.dtype, tensor.device
        self.written = False

    def empty(self, device: torch.device) -> torch.Tensor:
        """Returns memory for the tensor, in the order of the entry's bytes."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)

    def __del__(self) -> None:
        if self.written:
            self.owner.unneeded.append((self.attempt, self.key))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_strided((tensor.numel(),), (1,))


class Activations:
    """The stash of one sharded model.

    declared: the stash= of :func:`shard`.  attempt: counts steps and attempts, with which entries end.
    where: the place that is declared.  crosses: entries go from a GPU to host memory and back.
    ahead: the key, the tensor, and the mark behind the copy of an entry that is read ahead.
    """

    def __init__(self, sharded: "Sharded", declared: zerod.Stash | int | None):
        self.sharded, self.declared = sharded, declared
        self.attempt = self.next_key = 0
        self.unneeded: collections.deque[tuple[int, int]] = collections.deque()  # (attempt, key)
        self.of_tensor = WeakIdKeyDictionary()  # (version, weak entry): an input of several blocks
        self.where = declared.where if isinstance(declared, zerod.Stash) else "windows"
        self.crosses = self.where == "host" and sharded.place.stream is not None
        self.written: dict[int, weakref.ref[Entry]] = {}  # by key
        self.order: list[int] = []  # keys in the order of reads: n_reads of this attempt, then those of earlier ones
        self.n_reads = 0
        self.ahead: tuple[int, torch.Tensor, Any] | None = None
        _all.add(self)

    @property
    def any(self) -> bool:
        """True if this attempt has stashed an entry."""
        return self.next_key > 0

    def end_attempt(self) -> None:
        """Forgets the attempt's entries, which are gone."""
        self.attempt += 1
        self.next_key = 0
        self.unneeded.clear()
        self.of_tensor.clear()
        self.written.clear()
        self.n_reads, self.ahead = 0, None

    def release_unneeded(self) -> None:
        """Frees the entries that autograd has dropped."""
        while self.unneeded:
            attempt, key = self.unneeded.popleft()
            if attempt == self.attempt:
                self.sharded.attempt.stash_release(key, True)

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | Entry:
        """Writes a tensor that autograd saves to the stash, and returns its entry.  Leaves, constants and unusual
        tensors stay."""
        if (not tensor.requires_grad or tensor.is_leaf or tensor.numel() == 0 or type(tensor) is not torch.Tensor
                or tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg()
                or tensor.device.type not in ("cpu", "cuda")):
            return tensor
        shared = getattr(tensor, "zerod_input", None)  # the tensor that several calls share: see hooks.py
        tensor = tensor if shared is None else shared
        version, known = self.of_tensor.get(tensor, (None, None))
        entry = known() if version == tensor._version else None  # pylint: disable=protected-access
        return entry or self._write(tensor)

    @torch.no_grad()
    def _write(self, tensor: torch.Tensor) -> Entry:
        self.release_unneeded()
        entry, place, source = Entry(self, tensor), self.sharded.place, tensor
        device = torch.device("cpu") if place.stream is None else tensor.device
        if self.crosses or tensor.device != device or tensor.stride() != entry.stride:
            source = entry.empty(device).copy_(tensor)
        mark = place.mark()
        with place.beside() if self.crosses else contextlib.nullcontext():
            place.follow(mark, source)
            memory = source.data_ptr(), source.numel() * source.itemsize, place.stream
            try:
                self.sharded.attempt.stash_write(entry.key, *memory)
            except zerod.Window:  # the traceback of an earlier error may hold a graph, in a cycle
                gc.collect()
                self.release_unneeded()
                self.sharded.attempt.stash_write(entry.key, *memory)
        # an abort that the trainer did not notice may have begun another attempt
        entry.attempt, entry.written = self.attempt, True
        self.next_key += 1
        self.of_tensor[tensor] = tensor._version, weakref.ref(entry)  # pylint: disable=protected-access
        self.written[entry.key] = weakref.ref(entry)
        return entry

    def unpack(self, saved: torch.Tensor | Entry) -> torch.Tensor:
        """Returns a tensor that autograd needs again."""
        if isinstance(saved, torch.Tensor):
            return saved
        if saved.attempt != self.attempt:
            raise RuntimeError("the inputs of a checkpointed block are gone: its step is over, or was aborted, since "
                               "the forward pass. Run forward and backward in one step, and repeat the step from its "
                               "beginning after zerod.Aborted")
        self.release_unneeded()
        key, tensor, mark = self.ahead if self.ahead and self.ahead[0] == saved.key else self._read(saved)
        self.sharded.place.follow(mark, tensor)
        self.ahead = self._read_ahead(key)
        return tensor

    def _read_ahead(self, key: int) -> tuple[int, torch.Tensor, Any] | None:
        """Begins to read the entry that comes after this one, if it comes to a GPU from host memory."""
        if not self.crosses:
            return None
        if self.order[self.n_reads:self.n_reads + 1] != [key]:
            self.order[self.n_reads:] = [key]
        self.n_reads += 1
        (following,) = self.order[self.n_reads:self.n_reads + 1] or [key - 1]
        entry = self.written.get(following, lambda: None)()
        return self._read(entry) if entry else None

    @torch.no_grad()
    def _read(self, entry: Entry) -> tuple[int, torch.Tensor, Any]:
        """Begins to read an entry.  Returns its key, a tensor that is on its way, and the mark behind the copy."""
        place, attempt = self.sharded.place, self.sharded.attempt
        tensor_at = host_tensor_at if self.where == "host" else place.tensor_at
        with place.beside() if self.crosses else contextlib.nullcontext():
            address, _ = attempt.stash_view(entry.key)
            tensor = entry.empty(entry.device)
            flat = _flat(tensor)
            flat.copy_(tensor_at(address, flat.numel(), entry.dtype), non_blocking=True)
            attempt.stash_release(entry.key, False, place.stream)
            return entry.key, tensor, place.mark()


def _current() -> Activations:
    """Returns the stash of the model whose forward pass runs, else of the only model.  RuntimeError without a stash."""
    there = [a for a in _all if not a.sharded.client.closed]
    running = [a for a in there if a.sharded.hooks.depth]
    if running:
        there = [max(running, key=lambda a: a.sharded.hooks.pass_number)]
    if len(there) != 1:
        raise RuntimeError(f"zerod.torch.checkpoint() is called outside of the forward pass of a sharded model, and "
                           f"this process has {len(there)} of them: shard the model by {DECLARE}")
    if there[0].declared is None:
        raise RuntimeError(f"the model has no stash: shard it by {DECLARE}")
    return there[0]


def _checkpointing() -> bool:
    """Returns True if a checkpointed function runs now: that one saves the inputs of functions inside it."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # pylint: disable=protected-access
    return hooks is not None and hooks[0].__qualname__.startswith(("_checkpoint_hook", "_recomputation_hook"))


def _check_settings(use_reentrant: bool | None) -> None:
    if not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"):  # pylint: disable=protected-access
        raise NotImplementedError(f"PyTorch {torch.__version__} does not tell whether a checkpointed function runs, which "
                                  "zerod.torch.checkpoint() has to know: use a newer PyTorch, or torch.utils.checkpoint")
    if use_reentrant:
        raise ValueError("zerod.torch.checkpoint() has no reentrant variant: leave use_reentrant out, or pass False")


def checkpoint(function: Callable[..., Any] | None = None, *args: Any, use_reentrant: bool | None = None,
               **kwargs: Any) -> Any:
    """Calls the function, and computes its inner activations again in the backward pass.  Arguments, settings and
    results are those of torch.utils.checkpoint.checkpoint(use_reentrant=False).

    The function's inputs go to the service (``shard(model, stash=...)``), divided among the ranks of the stash's set.
    These are tensors of any shape, dtype and device that require a gradient and are results themselves, also inside
    lists, tuples, dicts and keyword arguments.  Other tensors, such as masks, stay where they are.  All ranks of a set
    call it with equal inputs, in the same order.  A checkpointed function inside another one stashes nothing.  Entries
    end with the step.

    Errors: ValueError for use_reentrant=True; RuntimeError if the model has no stash; zerod.Window with the bytes that
    the stash needs.  zerod.Conflict if ranks of the set differ; zerod.Aborted; NotImplementedError with PyTorch 2.6.
    """
    _check_settings(use_reentrant)
    if function is None:
        return functools.partial(_decorated, kwargs)
    settings = {name: kwargs.pop(name) for name in SETTINGS if name in kwargs}
    if not torch.is_grad_enabled() or _checkpointing():
        return plain.checkpoint(function, *args, use_reentrant=False, **settings, **kwargs)
    activations = _current()
    while isinstance(function, functools.partial):
        args, kwargs = (*function.args, *args), {**function.keywords, **kwargs}
        function = function.func
    flat, shape = pytree.tree_flatten((args, kwargs))
    first = [(args, kwargs)]  # the caller's own containers, which the function may fill

    def run(*flat: Any) -> Any:
        positional, named = first.pop() if first else pytree.tree_unflatten(flat, shape)
        return function(*positional, **named)

    with torch.autograd.graph.saved_tensors_hooks(activations.pack, activations.unpack):
        return plain.checkpoint(run, *flat, use_reentrant=False, **settings)


def _decorated(settings: dict[str, Any], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(function, *args, **settings, **kwargs)
    return checkpointed


def _check_declared(activations: Activations, ranks: Iterable[int] | None, where: str | None) -> None:
    """Raises ValueError if the stash has another set or another place.  None: any is right."""
    declared = activations.declared
    if declared is None:
        raise RuntimeError(f"the model has no stash: shard it by {DECLARE}")
    own = [activations.sharded.client.rank]
    has = {"ranks": list(getattr(declared, "ranks", None) or own), "where": activations.where}
    for name, wanted in (("ranks", None if ranks is None else list(ranks)), ("where", where)):
        if wanted is not None and wanted != has[name]:
            raise ValueError(f"{name}={wanted!r} is not what the stash was declared with, {has[name]!r}: shard the model by "
                             f"zerod.torch.shard(model, stash=zerod.Stash(bytes, {name}={wanted!r}))")


def checkpoint_blocks(model: nn.Module, blocks: Iterable[nn.Module | str] | None = None, *,
                      ranks: Iterable[int] | None = None, where: str | None = None,
                      use_reentrant: bool | None = None, **settings: Any) -> None:
    """Makes blocks of a sharded model run by :func:`checkpoint` while they train.

    blocks: modules, or their names; None: those that a Hugging Face model names itself
    (``activation_checkpointing_enable()``).
    ranks, where: of the zerod.Stash that :func:`shard` has declared.  A script may repeat them here, so that another
    stash is refused.
    settings: of :func:`checkpoint`.

    Errors: TypeError if the model is not sharded or names no blocks.  ValueError for a block that is not in the model
    or is checkpointed already.  ValueError for ranks or a place that the stash does not have.  The errors of
    :func:`checkpoint`.
    """
    _check_settings(use_reentrant)
    if unknown := set(settings) - set(SETTINGS):
        raise TypeError(f"checkpoint() has no setting {', '.join(sorted(unknown))}: there are {', '.join(SETTINGS)}")
    _check_declared(sharded_of(model).activations, ranks, where)
    if blocks is None:
        if not hasattr(model, "activation_checkpointing_enable"):
            raise TypeError(f"{type(model).__name__} does not say what its blocks are: name them, "
                            "checkpoint_blocks(model, blocks)")
        model.activation_checkpointing_enable()
        model._set_gradient_checkpointing(True, functools.partial(checkpoint, **settings))
        return
    names = {module: name for name, module in model.named_modules()}
    modules = dict(model.named_modules())
    found = [modules.get(b) if isinstance(b, str) else b for b in blocks]
    for block, module in zip(blocks, found):
        if module not in names:
            raise ValueError(f"{block!r} is no module of the model")
        if getattr(module.forward, "zerod_checkpoints", False):
            raise ValueError(f"module '{names[module]}' is checkpointed already")
    for module in found:
        _checkpoint_block(module, settings)


def _checkpoint_block(module: nn.Module, settings: dict[str, Any]) -> None:
    forward = module.forward

    @functools.wraps(forward)
    def zerod_checkpointed(*args: Any, **kwargs: Any) -> Any:
        if not module.training:
            return forward(*args, **kwargs)
        return checkpoint(functools.partial(forward, **kwargs), *args, **settings)

    zerod_checkpointed.zerod_checkpoints = True
    override(module, "forward", not_traced(zerod_checkpointed, "a checkpointed block makes graphs of its own"))
