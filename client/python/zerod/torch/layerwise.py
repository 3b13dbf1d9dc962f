"""Layer by layer: each block runs all micro-batches of a step while it is fetched.

L2L (Pudipeddi et al., arXiv 2002.05645): weights move twice through a trainer in a step, however many micro-batches the
step has.  Plain accumulation moves them twice for each micro-batch.  A micro-batch keeps only the inputs of blocks, and
a block computes its forward again when its backward begins.

The model needs no change: each micro-batch has a thread for its forward pass, and one thread runs at a time.  A thread
that calls a block waits until all micro-batches call it.  Then the block is fetched, and each thread in turn runs it,
without autograd, and goes on to the next block.  The output is cut from autograd's graph (_Cut).  The backward pass
takes the blocks in the opposite order, in the caller's thread.  A block computes its outputs again, with autograd, and
their gradients go back to the cuts before it.

Rules: code outside of blocks runs in the threads as it stands, and keeps its graph.  A module outside of blocks stays
fetched while all threads pass it, if the window has room for it.  A block's gradients add up here, and are pushed once,
when its last backward is over.  Gradients of a module that is used only behind the blocks, such as a large head, are
pushed before the blocks begin their backward.
"""
from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import zerod

from .hooks import Call, tensors_in
from .sharded import sharded_of
from .unit import Unit

if TYPE_CHECKING:
    from .place import Gpu, Host


class _Stop(BaseException):
    """Ends the thread of a micro-batch that is not needed any more."""


class _Gradients:
    """The gradients that have come back to a cut so far, one for each tensor."""

    __slots__ = ("so_far",)

    def __init__(self, n: int):
        self.so_far: list[torch.Tensor | None] = [None] * n

    def add(self, at: int, gradient: torch.Tensor | None) -> None:
        """Takes a gradient.  Gradients of several uses add up."""
        if gradient is not None:
            have = self.so_far[at]
            self.so_far[at] = gradient if have is None else have + gradient


class _Cut(torch.autograd.Function):  # pylint: disable=abstract-method
    """Cuts tensors from the graph behind them, and keeps the gradients that come to them."""

    @staticmethod
    def forward(ctx: Any, gradients: _Gradients, _anchor: torch.Tensor, *tensors: torch.Tensor) -> Any:  # pylint: disable=arguments-differ
        ctx.gradients = gradients
        ctx.set_materialize_grads(False)
        return tuple(t.detach() for t in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        for at, gradient in enumerate(gradients):
            ctx.gradients.add(at, gradient)
        return None, None, *(None for _ in gradients)


_ANCHOR = torch.empty(0, requires_grad=True)  # makes a cut's outputs require a gradient


def _shared(new: Any, before: Any) -> Any:
    """Returns the earlier object if it is equal, so that runs share it."""
    return before if new == before else new


def _cut(tensors: list[torch.Tensor]) -> tuple[tuple[torch.Tensor, ...], _Gradients]:
    gradients = _Gradients(len(tensors))
    return _Cut.apply(gradients, _ANCHOR, *tensors) if tensors else (), gradients


def _autocasts(device: torch.device) -> list[Any]:
    """Returns arguments of torch.autocast() that bring back the current state."""
    return [{"device_type": kind, "enabled": torch.is_autocast_enabled(kind), "dtype": torch.get_autocast_dtype(kind),
             "cache_enabled": torch.is_autocast_cache_enabled()} for kind in {"cpu", device.type}]


@contextlib.contextmanager
def _autocast(states: list[Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for state in states:
            stack.enter_context(torch.autocast(**state))
        yield


class _Random:
    """The state of torch's generators."""

    __slots__ = ("place", "cpu", "device")

    def __init__(self, place: "Host | Gpu"):
        self.place, self.cpu, self.device = place, torch.get_rng_state(), place.random_state()

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.device is not None:
            self.place.restore_random_state(self.device)

    def unchanged(self) -> bool:
        """Returns True if no random number was drawn since."""
        now = _Random(self.place)
        return torch.equal(self.cpu, now.cpu) and (self.device is None or torch.equal(self.device, now.device))


class _Run:
    """One run of a block by one micro-batch, which backward repeats.

    args: its arguments, flat, with entries in the place of arguments that are in the stash.  edges: of each such
    argument the cut, or the edge of autograd's graph, that its gradient goes to.  outputs: the indices of outputs with
    a gradient.

    One exists for each block and micro-batch until its backward, so it is small.  It shares equal members with the run
    before, and a node of the graph lives on only where the graph goes on.
    """

    __slots__ = ("unit", "random", "autocasts", "args", "shape", "versions", "edges", "outputs", "gradients")

    def __init__(self, unit: Unit, random: _Random, before: "_Run | None"):
        self.unit, self.random = unit, random
        self.autocasts = _shared(_autocasts(unit.sharded.place.device), before and before.autocasts)
        self.args: list[Any] = []
        self.shape: Any = before and before.shape
        self.versions: list[int] = []
        self.edges: dict[int, Any] = {}
        self.outputs: list[int] = []
        self.gradients = _Gradients(0)

    def forward(self, args: Any, kwargs: Any) -> Any:
        """Runs the block for the first time, without autograd, and cuts the outputs."""
        self.args, shape = pytree.tree_flatten((args, kwargs))
        self.shape = _shared(shape, self.shape)
        tensors = list(tensors_in(self.args))
        needed = torch.is_grad_enabled() and (any(t.requires_grad for t in tensors)
                                              or any(p.placeholder.requires_grad for p in self.unit.params))
        before = self._versions(tensors)
        if needed:
            self._stash()
        with torch.no_grad():
            output = self.unit.forward(*args, **kwargs)
        self._check_unchanged(before, tensors)
        self.versions = self._versions(tensors_in(self.args))
        if self.random.unchanged():
            self.random = None
        flat, shape = pytree.tree_flatten(output)
        self._check_no_parameter(flat)
        if needed:
            self.outputs = [i for i, t in enumerate(flat) if isinstance(t, torch.Tensor) and t.is_floating_point()]
            outputs, self.gradients = _cut([flat[i] for i in self.outputs])
            for i, t in zip(self.outputs, outputs):
                flat[i] = t
        return pytree.tree_unflatten(flat, shape)

    def _stash(self) -> None:
        """Moves the arguments that an earlier block has made to the stash, if the model has one."""
        activations = self.unit.sharded.activations
        if activations.declared is None:
            return
        for i, arg in enumerate(self.args):
            entry = activations.pack(arg) if isinstance(arg, torch.Tensor) else arg
            if entry is not arg:
                self.args[i], self.edges[i] = entry, self._edge(arg)

    @staticmethod
    def _edge(tensor: torch.Tensor) -> Any:
        cut = getattr(tensor.grad_fn, "gradients", None)
        if isinstance(cut, _Gradients) and not tensor._backward_hooks and not tensor.retains_grad:  # pylint: disable=protected-access
            return cut, tensor.output_nr
        return torch.autograd.graph.get_gradient_edge(tensor)

    @staticmethod
    def _versions(tensors: Iterable[torch.Tensor]) -> list[int]:
        return [t._version for t in tensors]  # pylint: disable=protected-access

    def _check_unchanged(self, before: list[int], tensors: Iterable[torch.Tensor]) -> None:
        if before != self._versions(tensors):
            raise RuntimeError(f"an input of block '{self.unit.name}' was changed in place after the block had read it. "
                               "So the block cannot run again for its backward: change a copy")

    def _check_no_parameter(self, outputs: list[Any]) -> None:
        if any(isinstance(t, torch.Tensor) and self.unit.has_memory_of(t) for t in outputs):
            raise RuntimeError(f"block '{self.unit.name}' returns a parameter of its own, or a view of one: return a "
                               "copy, for the block gives its parameters back")

    def backward(self) -> None:
        """Runs the block again, with autograd, and goes back from its outputs to the earlier cuts."""
        if not any(g is not None for g in self.gradients.so_far):
            return
        self._check_unchanged(self.versions, tensors_in(self.args))
        activations = self.unit.sharded.activations
        inputs, arriving = _cut([activations.unpack(self.args[i]) for i in self.edges])
        for i, t in zip(self.edges, inputs):
            self.args[i] = t
        if self.random is not None:
            self.random.restore()
        args, kwargs = pytree.tree_unflatten(self.args, self.shape)
        try:
            with torch.enable_grad(), _autocast(self.autocasts):
                flat, _ = pytree.tree_flatten(self.unit.forward(*args, **kwargs))
        except Exception as error:
            if hasattr(error, "add_note"):  # from Python 3.11 on
                error.add_note(f"block '{self.unit.name}' ran again, for its backward: it must find its arguments as they "
                               "were, so that a cache among them must be off (use_cache=False)")
            raise
        self._go_back((flat[i], g) for i, g in zip(self.outputs, self.gradients.so_far) if flat[i].requires_grad)
        beyond = []
        for edge, gradient in zip(self.edges.values(), arriving.so_far):
            if isinstance(edge[0], _Gradients):
                edge[0].add(edge[1], gradient)
            else:
                beyond.append((edge, gradient))
        self._go_back(beyond)

    @staticmethod
    def _go_back(pairs: Iterable[tuple[Any, torch.Tensor | None]]) -> None:
        """Goes back from tensors, or edges of the graph, with their gradients.  Keeps the graph: another block or
        output may pass the nodes between blocks again."""
        found = [(at, gradient) for at, gradient in pairs if gradient is not None]
        if found:
            torch.autograd.backward(*map(list, zip(*found)), retain_graph=True)


class _MicroBatch:
    """The forward pass of one micro-batch, in a thread that runs only within advance()."""

    def __init__(self, number: int, function: Callable[[], torch.Tensor], random: _Random):
        self.number, self.random = number, random
        self.wanted: Unit | None = None  # the block that it calls
        self.loss: torch.Tensor | None = None
        self.error: BaseException | None = None
        self.over = self.stopped = False
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._main, function), daemon=True,
                                        name=f"micro-batch {number}")
        self._thread.zerod_for = threading.current_thread()  # type: ignore[attr-defined]  # see turn.py
        self._thread.start()

    def _main(self, function: Callable[[], torch.Tensor]) -> None:
        self._go.acquire()
        try:
            if not self.stopped:
                self.loss = function()
        except _Stop:
            pass
        except BaseException as error:  # pylint: disable=broad-exception-caught
            self.error = error
        self.over, self.wanted = True, None
        self._back.release()

    def advance(self) -> None:
        """Runs the thread up to its next block, or to its end.  Raises its exception."""
        self.wanted = None
        self.random.restore()
        self._go.release()
        self._back.acquire()
        self.random = _Random(self.random.place)
        if self.error is not None:
            raise self.error

    def meet(self, unit: Unit) -> None:
        """Waits, in the micro-batch's thread, for its turn at the block."""
        self.wanted = unit
        self._back.release()
        self._go.acquire()
        if self.stopped:
            raise _Stop

    def stop(self) -> None:
        """Ends the thread."""
        if not self.over:
            self.stopped = True
            self._go.release()
            self._back.acquire()
        self._thread.join()


class LayerByLayer:
    """Trains a sharded model layer by layer.

        layers = zerod.torch.LayerByLayer(model, model.transformer.h, micro_batches=4)
        for step in zerod.torch.steps(model, until=1000, seed=0):
            with step as t:
                losses = layers.forward_backward(lambda model, part: loss_of(model, part) / 4, batch(t))
                optimizer.step()

    model: of :func:`shard`.
    blocks: modules of the model that are groups of their own (``groups=`` of :func:`shard`).  A forward pass calls them
    one after another, as often as it likes, and every micro-batch calls the same ones.
    micro_batches: the number of parts of a batch.

    Gradients are those of plain accumulation, to the bit if no block is called twice.  Each micro-batch's backward is
    added up in this process in the order of micro-batches, as within ``model.no_sync()``.

    Random numbers: a step draws one number n from torch's default generator, and micro-batch i begins as after
    ``torch.manual_seed(n + i)``.  Plain accumulation that does the same has the same dropout.  Python's and NumPy's
    generators are left alone: a block must not draw from them, for it runs twice.

    Only the inputs of blocks are kept for a micro-batch: with ``shard(model, stash=...)`` in the service, else in this
    process.  The stash needs the bytes of all inputs of all blocks in a step.

    A block's inputs must not be changed in place after the call.  If they are in the stash, only the block must not
    change them.  A block must not return its own parameters.  Hooks of the block module itself (not of modules inside)
    see its first run only.

    eager: L2L's eager server, for a model of ``shard(model, eager=True)``, whose default it is.  The service updates a
    block as soon as its gradient is complete, by the values that the optimizer has when forward_backward() begins.  A
    step then has one forward_backward() and no other backward pass, without clipping and loss scale.  The bits are the
    same, whatever process is killed in between.

    Errors: TypeError if the model is not sharded.  ValueError, naming the module, for a block that is no group of its
    own.  ValueError for micro_batches below 1, or for eager=True if the model is not eager.
    """

    def __init__(self, model: nn.Module, blocks: Iterable[nn.Module], micro_batches: int, *, eager: bool | None = None):
        self.model, self.sharded = model, sharded_of(model)
        self.eager = self.sharded.eager if eager is None else eager
        if self.eager and not self.sharded.eager:
            raise ValueError("eager=True needs a model of shard(model, eager=True): the service keeps old values for it")
        if not isinstance(micro_batches, int) or micro_batches < 1:
            raise ValueError(f"micro_batches is a number of parts, at least 1, not {micro_batches!r}")
        self.micro_batches = micro_batches
        self.blocks = self._units_of(list(blocks))
        self.outside = [u for u in self.sharded.units if u not in self.blocks]
        self.current: _MicroBatch | None = None  # whose thread runs
        self.expected: list[Unit] = []  # the blocks of the last step, in the order of their calls
        self.behind: list[Unit] = []  # modules that this step uses only behind the last block
        self.inside: Unit | None = None  # the block that runs
        self.newest: _Run | None = None

    def _units_of(self, blocks: list[nn.Module]) -> list[Unit]:
        units = {id(u.module): u for u in self.sharded.units if not u.is_root}
        names = {id(m): n for n, m in self.model.named_modules()}
        for block in blocks:
            name = names.get(id(block), type(block).__name__)
            if id(block) not in units:
                raise ValueError(f"block '{name}' is no group of its own: name the blocks to shard(model, groups=...)")
            inner = next((m for m in block.modules() if m is not block and id(m) in units), None)
            if inner is not None:
                raise ValueError(f"block '{name}' has a group inside, '{names[id(inner)]}': shard the model with groups "
                                 "that do not nest")
        if not blocks:
            raise ValueError("blocks names no module")
        return [units[id(b)] for b in blocks]

    # ---- a step -------------------------------------------------------------------------

    def forward_backward(self, loss_of: Callable[[nn.Module, Any], torch.Tensor], batch: Any) -> torch.Tensor:
        """Makes the forward and backward passes of all micro-batches of a step.  Returns their losses, detached.

        batch: a tensor, or a container of tensors, split along the first dimension.  loss_of(model, part): returns the
        scalar whose gradient a micro-batch's backward takes.  Divide it by the number of micro-batches for the gradient
        of the mean.  It may run the model under autocast.

        Errors: ValueError if the batch does not divide.  RuntimeError if micro-batches call different blocks, a block
        calls a block, or an input was changed in place.  The errors of loss_of and of a backward pass.
        """
        parts = self._split(batch)
        if self.eager:
            self._say_ahead()
        after, seed = self._seed()
        micros: list[_MicroBatch] = []
        try:
            with self.sharded.turn.taken(trains=True), self._begun():
                for i, part in enumerate(parts):
                    torch.manual_seed(seed + i)
                    micros.append(_MicroBatch(i, self._forward_of(loss_of, part), _Random(self.sharded.place)))
                rounds, losses = self._forward(micros)
                self._backward(rounds)
        finally:
            for micro in micros:
                micro.stop()
            after.restore()
        return torch.stack(losses)

    def _say_ahead(self) -> None:
        """Tells owners how the step will end.  From here on every group is pushed once."""
        optimizer = self.sharded.optimizer and self.sharded.optimizer()
        if optimizer is None:
            raise RuntimeError("eager blocks are updated before step(): make the optimizer before forward_backward()")
        if self.sharded.has_gradients:
            raise RuntimeError("eager: a step has one forward_backward() and no other backward pass: call step() first")
        optimizer.ahead()

    def _split(self, batch: Any) -> list[Any]:
        flat, shape = pytree.tree_flatten(batch)
        sizes = {len(t) for t in flat if isinstance(t, torch.Tensor) and t.dim()}
        if len(sizes) != 1:
            raise ValueError(f"a batch is of tensors with one first dimension, not {sorted(sizes)}")
        size, n = sizes.pop(), self.micro_batches
        if size % n or size == 0:
            raise ValueError(f"a batch of {size} does not divide into {n} micro-batches")
        return [pytree.tree_unflatten([t[i * size // n:(i + 1) * size // n] if isinstance(t, torch.Tensor) and t.dim()
                                       else t for t in flat], shape) for i in range(n)]

    def _seed(self) -> tuple[_Random, int]:
        """Returns the generators' state after the step, and the drawn number."""
        seed = int(torch.empty((), dtype=torch.int64).random_())
        return _Random(self.sharded.place), seed

    def _forward_of(self, loss_of: Callable[[nn.Module, Any], torch.Tensor], part: Any) -> Callable[[], torch.Tensor]:
        states, enabled = _autocasts(self.sharded.place.device), torch.is_grad_enabled()
        stream, device = self.sharded.place.current_stream(), torch.get_default_device()

        def forward() -> torch.Tensor:  # torch keeps all of this by thread
            with stream, device if device.type != "cpu" else contextlib.nullcontext(), \
                    torch.set_grad_enabled(enabled), _autocast(states):
                loss = loss_of(self.model, part)
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
                raise TypeError(f"loss_of() returns a scalar, not {loss!r:.80}")
            return loss
        return forward

    @contextlib.contextmanager
    def _begun(self) -> Iterator[None]:
        """Makes blocks wait for all micro-batches, keeps modules outside of them fetched for a round, and keeps
        gradients."""
        sharded, hooks, gradients = self.sharded, self.sharded.hooks, self.sharded.gradients
        forwards = [u.module.__dict__.get("forward") for u in self.blocks]
        held = self.blocks + (self.outside if self._fits() else [u for u in self.outside if u.is_root])
        hooks.begin_pass()
        keep, gradients.keep = gradients.keep, True
        gradients.several = {p for p in sharded.params if len(p.places) > 1}
        hooks.depth += 1
        for unit in held:
            unit.depth += 1
        for unit in self.blocks:
            unit.module.forward = self._meeting(unit)
        try:
            yield
        except BaseException:
            gradients.pieces.clear()
            for unit in sharded.units:
                unit.abandon()
            raise
        finally:
            gradients.keep, gradients.part, gradients.several = keep, None, set()
            hooks.depth -= 1
            for unit in held:
                unit.depth -= 1
            for unit, forward in zip(self.blocks, forwards):
                unit.module.forward = forward
            self.current = self.inside = self.newest = None

    def _fits(self) -> bool:
        """Returns True if all modules outside of blocks can be held beside two blocks."""
        hold = self.sharded.hold_groups
        return hold == zerod.ALL or hold >= (sum(len(u.groups) for u in self.outside)
                                             + 2 * max(len(u.groups) for u in self.blocks))

    def _meeting(self, unit: Unit) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            micro = self.current
            if self.inside is not None:
                raise RuntimeError(f"block '{self.inside.name}' calls block '{unit.name}': layer by layer, blocks follow "
                                   "one another; name the outer ones alone")
            assert micro is not None
            micro.meet(unit)
            self.newest = run = _Run(unit, _Random(self.sharded.place), self.newest)
            self.runs.append(run)
            self.inside = unit
            try:
                return run.forward(args, kwargs)
            finally:
                self.inside = None
        return forward

    def _forward(self, micros: list[_MicroBatch]) -> tuple[list[list[_Run]], list[torch.Tensor]]:
        """Makes all rounds of the forward pass.  The last one also goes back to the last block's outputs."""
        rounds: list[list[_Run]] = []
        losses: list[torch.Tensor] = []
        unit = None
        first = [u.call for u in self.outside]
        while not losses:
            last = [u.call for u in self.outside]
            self.runs: list[_Run] = []
            for micro in micros:
                self.current, self.sharded.gradients.part = micro, micro.number
                micro.advance()
                self._check_alike(micros[0], micro)
                if micro.over:
                    losses.append(self._backward_of_loss(micro))
            if self.runs:
                rounds.append(self.runs)
            self._end_round(unit, None if losses else micros[0].wanted)
            unit = micros[0].wanted
            if unit is not None:
                self.sharded.hooks.fetch(unit)
                self.sharded.hooks.forward_order.visit(unit, 0)  # so no module behind the blocks follows one before them
                for following in self.expected[len(rounds) + 1:len(rounds) + 2]:
                    self.sharded.hooks.prefetch(following)
        self.expected = [runs[0].unit for runs in rounds]
        self.behind = [u for u, a, b in zip(self.outside, first, last) if a is b and u.call is not b]
        self.newest = None
        return rounds, losses

    @staticmethod
    def _check_alike(first: _MicroBatch, micro: _MicroBatch) -> None:
        def does(m: _MicroBatch) -> str:
            return f"calls block '{m.wanted.name}'" if m.wanted else "ends"
        if micro.wanted is not first.wanted:
            raise RuntimeError(f"micro-batch {micro.number} {does(micro)} where micro-batch {first.number} {does(first)}: "
                               "layer by layer, all call the same blocks in the same order")

    def _backward_of_loss(self, micro: _MicroBatch) -> torch.Tensor:
        loss, micro.loss = micro.loss, None
        assert loss is not None
        if loss.requires_grad:
            torch.autograd.backward(loss, retain_graph=True)
        return loss.detach().reshape(())

    def _end_round(self, unit: Unit | None, following: Unit | None) -> None:
        """Lets a round's modules go, but not a block that comes again at once, or first in the backward pass."""
        hooks = self.sharded.hooks
        if unit is not None and following is not None and unit is not following:
            hooks.let_go(unit)
        for u in self.outside:
            if u.fetched and not u.is_root:
                hooks.let_go(u)

    def _backward(self, rounds: list[list[_Run]]) -> None:
        """Runs the blocks in the opposite order, and pushes each block's gradients when they are complete."""
        sharded = self.sharded
        gradients, hooks = sharded.gradients, sharded.hooks
        calls = self.expected
        for unit in self.behind:
            gradients.push_groups(unit.groups, kept=True)
        gradients.several |= {p for u in calls if calls.count(u) > 1 for p in u.params}
        for at in range(len(rounds) - 1, -1, -1):
            unit, runs = calls[at], rounds.pop()
            hooks.fetch(unit)
            if at and calls[at - 1] is not unit:
                hooks.prefetch(calls[at - 1])
            unit.call = Call(sharded.attempt)
            for i in range(len(runs)):
                gradients.part = i
                runs[i].backward()
                runs[i] = None  # frees its inputs
            if unit not in calls[:at]:
                gradients.add_pieces(unit.params)
                gradients.push_groups(unit.groups, kept=True)
            if at == 0 or calls[at - 1] is not unit:
                hooks.let_go(unit)
            self._end_round(None, None)
        gradients.part = None
        gradients.add_pieces(sharded.params)
        for unit in self.outside:
            if unit.fetched:
                hooks.let_go(unit)
        gradients.push_groups(sharded.groups, kept=True)
