"""Fetch, prefetch, release and push, at the right moments of forward and backward.

Hooks wrap every unit's forward: they fetch before it and release after it.  Hooks of the tensors that forward returns
tell that its backward begins, and fetch again.  Hooks of its parameters' gradients tell that they are complete, then
push and release.  The engine's end-of-backward callback releases the rest.

Rules: stages 1 and 2 hold fetched units until the step.  Stage 3 holds a unit during its own forward and backward, and
the root unit from the begin of forward to the end of backward.  The engine runs later nodes first, so a call's backward
is over when the gradients of its inputs have come.  Without such inputs it is over when all the unit's parameters have
their gradients.  After an exception in forward nothing stays fetched.
"""
from __future__ import annotations

import dataclasses
import functools
import itertools
import sys
import threading
from collections.abc import Iterator, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from .heap import Heap
from .parameter import Copies, Placeholder
from .turn import UsedByAnotherThread, graph_task
from .twin import not_compiled, not_traced, override
from .unit import ShardedParam, Unit

if TYPE_CHECKING:
    from .attempt import Attempt
    from .sharded import Sharded


NO_GRAPH = ("no graph has a whole sharded model, for zerod fetches parameters before each block and releases them after it: "
            "leave fullgraph=True out, or compile the blocks, block.compile(fullgraph=True)")

NO_COMPILED_BACKWARD = ("compiled autograd runs hooks apart from the backward pass, and zerod needs them in it: leave "
                        "torch._dynamo.config.compiled_autograd off. torch.compile(model) compiles backward passes without it")

_passes = itertools.count(1)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors of an output or of arguments, also those inside containers and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for v in value.values():
            yield from tensors_in(v)
    elif isinstance(value, (list, tuple, set)):
        for v in value:
            yield from tensors_in(v)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for f in dataclasses.fields(value):
            yield from tensors_in(getattr(value, f.name, None))


def inputs_of_its_own(value: Any, seen: dict[int, torch.Tensor]) -> Any:
    """Returns an argument with a view in the place of each tensor that an earlier call of a unit was given.

    The gradient of a tensor that several calls share is complete when the backward of all of them is over.  The
    gradient of a view is complete when the backward of its own call is.  seen: this call's tensors by id, so that one
    tensor gets one view.  Lists and dicts stay the caller's, who may see how the call changes them."""
    if type(value) is tuple:
        return tuple(inputs_of_its_own(v, seen) for v in value)
    if not (isinstance(value, torch.Tensor) and value.requires_grad and not value.is_leaf
            and value.layout is torch.strided):
        return value
    if id(value) not in seen:
        seen[id(value)] = value
        if hasattr(value, "zerod_input"):
            view = seen[id(value)] = value.view_as(value)
            view.zerod_input = value if value.zerod_input is None else value.zerod_input
        else:
            value.zerod_input = None
    return seen[id(value)]


class Call:
    """One call of a unit's forward.  attempt: the number of its attempt.  version: of the parameters.  thread: the one
    that had the turn.  tells_its_end: gradients of its inputs will show the end of its backward."""

    def __init__(self, attempt: "Attempt") -> None:
        self.attempt, self.version, self.thread = attempt.number, attempt.version, attempt.sharded.turn.thread
        self.tells_its_end = False


class Order:
    """The order of the units in the last pass of one direction."""

    def __init__(self) -> None:
        self.next: dict[Unit, Unit] = {}
        self.last: Unit | None = None

    def begin(self) -> None:
        """Begins a pass."""
        self.last = None

    def visit(self, unit: Unit, ahead: int) -> list[Unit]:
        """Notes a unit, and returns the units that will probably follow it, nearest first."""
        if self.last is not None and self.last is not unit:
            self.next[self.last] = unit
        self.last = unit
        found: list[Unit] = []
        following = self.next.get(unit)
        while following is not None and following not in found and len(found) < ahead:
            found.append(following)
            following = self.next.get(following)
        return found


class Hooks:
    """The hooks of one sharded model."""

    def __init__(self, sharded: "Sharded"):
        self.sharded, self.turn = sharded, sharded.turn
        self.holds = sharded.stage < 3  # until the step
        self.pass_number = 0  # of this model's newest forward pass; passes of all models are counted
        self.depth = 0  # forwards of units that have not returned
        self.forward_order, self.backward_order = Order(), Order()
        self.task = -1  # the backward pass whose end the engine will report
        self.in_backward: set[Unit] = set()  # fetched in the backward pass, or kept for it
        self.heap = Heap() if sharded.place.holds else None
        self.copies = Copies()

    def install(self) -> None:
        """Wraps every unit's forward."""
        for unit in self.sharded.units:
            unit.forward = unit.module.forward
            override(unit.module, "forward", self._wrap(unit, unit.forward))
            hook = functools.partial(self._after_inner, unit)
            hook.zerod = True  # type: ignore[attr-defined]  # plain() leaves it out
            inner = {m for p in unit.params for m, _ in p.places} - {unit.module}
            unit.inner = {} if self.holds else dict.fromkeys(inner, hook)

    def run_as_forward(self, module: torch.nn.Module, name: str) -> None:
        """Keeps the innermost unit around the module fetched while the method runs."""
        method = getattr(module, name)
        if not callable(method):
            raise TypeError(f"{type(module).__name__}.{name} is not a method")
        if name in module.__dict__.get("_zerod_before", ()):
            return
        around = [u for u in self.sharded.units if any(m is module for m in u.module.modules())]
        override(module, name, self._wrap(max(around, key=lambda u: len(u.name)), method))

    def watch(self, unit: Unit) -> None:
        """Registers for the gradients of parameters that were just gathered for the first time."""
        for p in unit.params:
            if p.trainable:
                p.gathered.register_post_accumulate_grad_hook(
                    functools.partial(self._gradient, unit, p))
                p.follow_requires_grad(p.placeholder.requires_grad)

    # ---- forward ----------------------------------------------------------------

    def _wrap(self, unit: Unit, forward: Any) -> Any:
        turn = self.turn

        @functools.wraps(forward, updated=())  # a compiled forward's attributes lead PyTorch 2.6 back to it
        def zerod_forward(*args: Any, **kwargs: Any) -> Any:
            # the parameters are there and stay.  The test is inline: torch.compile would compile a function of Python
            if (0 < unit.full == len(unit.params) or (unit.held and unit.shown and not torch.is_grad_enabled())) and (
                    turn.ident == get_ident()):
                return forward(*args, **kwargs)
            call, args, kwargs = self._before_forward(unit, args, kwargs)
            try:
                output = forward(*args, **kwargs)
            except BaseException:
                self._failed_forward(unit, call)
                raise
            return self._after_forward(unit, call, output)

        return not_traced(zerod_forward, NO_GRAPH)

    def within(self, function: Any) -> Any:
        """Wraps a function as a forward pass of the whole model.  Parameters outside of blocks are fetched while it
        runs, and its result begins a backward pass."""
        return self._wrap(self.sharded.units[-1], function)

    @not_compiled
    def _before_forward(self, unit: Unit, args: Any, kwargs: Any) -> tuple[Call | None, Any, Any]:
        """Begins a call.  Returns None as the call if the unit computes with tensors that the caller gave."""
        self.turn.enter(torch.is_grad_enabled())
        try:
            return (None, args, kwargs) if unit.is_given() else self._begin_call(unit, args, kwargs)
        except BaseException:
            self.turn.leave()
            raise

    def _begin_call(self, unit: Unit, args: Any, kwargs: Any) -> tuple[Call, Any, Any]:
        if not self.holds and torch.is_grad_enabled() and torch._C._functorch.peek_interpreter_stack() is not None:
            raise NotImplementedError("forward at stage 3 within a transform of torch.func, such as vmap or grad: no hook would tell of "
                                      "its backward pass. For vmap alone use stage 1 or 2, or torch.no_grad() around vmap(). For others use "
                                      "zerod.torch.full_params(model), functional_call() with tensors of parameter.full_tensor(), or a "
                                      "copy.deepcopy(model)")
        if self.depth == 0 and graph_task() == -1:
            self.begin_pass()
        self.fetch(unit, self.forward_order if graph_task() == -1 else None)
        self.depth += 1
        unit.depth += 1
        call = unit.call = Call(self.sharded.attempt)
        for module, hook in unit.inner.items() if torch.is_grad_enabled() else ():  # else modules run faster without hooks
            module._forward_hooks[id(unit)] = hook
        if torch.is_grad_enabled() and not unit.is_root and not self.holds:
            seen: dict[int, torch.Tensor] = {}
            args = inputs_of_its_own(args, seen)
            kwargs = {k: inputs_of_its_own(v, seen) for k, v in kwargs.items()}
            inputs = [t for t in tensors_in((args, kwargs)) if t.requires_grad]
            call.tells_its_end = bool(inputs) and not any(t.is_leaf for t in inputs)
            if call.tells_its_end and len(inputs) == 1:
                inputs[0].register_hook(lambda _gradient: self._inputs_done(unit, call))  # in a tenth of the time
            elif call.tells_its_end:
                torch.autograd.graph.register_multi_grad_hook(inputs, lambda _gradients: self._inputs_done(unit, call))
            for t in () if call.tells_its_end else inputs:  # autograd.grad() has no multi-grad hooks of leaves
                t.register_hook(lambda _gradient: self._leaf_done(unit))
        return call, args, kwargs

    def begin_pass(self) -> None:
        """Begins a forward pass, and clears the remains of a failed backward pass."""
        self.sharded.attempt.begin_forward()
        self.copies.check()
        self.copies.watched.clear()
        self.pass_number = next(_passes)
        self.task = -1
        for unit in list(self.in_backward):
            self.let_go(unit)
        for unit in self.sharded.units:
            unit.arrived.clear()
        self.forward_order.begin()

    def fetch(self, unit: Unit, order: Order | None = None) -> None:
        """Holds a unit and shows its parameters, and prefetches the units that will probably follow it in that
        order."""
        if self.heap:
            self.heap.look()
        self._hold(unit)
        unit.show()
        if order is not None:
            for ahead in order.visit(unit, self.sharded.prefetch):
                self.prefetch(ahead)

    def _hold(self, unit: Unit) -> None:
        first = unit.params and unit.params[0].gathered is None
        unit.hold()
        if first:
            self.watch(unit)

    def copy_of(self, placeholder: Placeholder) -> torch.Tensor:
        """Returns a copy of a parameter, whose gradient is the parameter's.  Fetches the unit for it if need be."""
        param, trains = placeholder.zerod_param, torch.is_grad_enabled()
        unit = param.unit
        try:
            self.turn.enter(trains, wait=False)
        except UsedByAnotherThread:
            if (trains and placeholder.requires_grad) or param.dtensor:
                raise
            return placeholder.full_tensor()
        fetched = unit.fetched
        try:
            self._hold(unit)
            param.follow_requires_grad(param.placeholder.requires_grad)
            with torch.inference_mode(False), torch.set_grad_enabled(trains):  # a copy counts its versions
                return param.shown.clone()
        finally:
            if not fetched and not self.holds and not unit.held:
                unit.release()
            self.turn.leave()

    def prefetch(self, unit: Unit) -> None:
        """Makes the service bring the unit's groups."""
        for g in () if unit.fetched else unit.groups:
            self.sharded.attempt.prefetch(g.index)

    def _after_inner(self, unit: Unit, _module: Any, _args: Any, output: Any) -> None:
        """Watches the output of a module inside the unit: a loss may use it, and not the unit's own output."""
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        if unit.depth and graph_task() == -1:
            for t in tensors_in(output):
                if t.requires_grad:
                    t.register_hook(functools.partial(self._before_backward, unit, unit.call))

    @not_compiled
    def _after_forward(self, unit: Unit, call: Call | None, output: Any) -> Any:
        """Ends a call.  Returns the output, with copies of views of parameters, since the parameters go away."""
        try:
            if call is None:
                return output
            if any(map(unit.has_memory_of, tensors_in(output))) and not self.holds:
                output = torch.utils._pytree.tree_map_only(  # pylint: disable=protected-access
                    torch.Tensor, lambda t: t.clone() if unit.has_memory_of(t) else t, output)
            self._forward_done(unit, call, output)
        finally:
            self.turn.leave()
        return output

    def _leave(self, unit: Unit) -> None:
        self.depth -= 1
        unit.depth -= 1
        for module in () if unit.depth else unit.inner:
            module._forward_hooks.pop(id(unit), None)

    def _forward_done(self, unit: Unit, call: Call, output: Any) -> None:
        self._leave(unit)
        if unit.depth or graph_task() != -1:
            return
        if torch.is_grad_enabled():
            outputs = list(tensors_in(output))
            differentiable = [t for t in outputs if t.requires_grad]
            self.turn.stepping = self.turn.stepping or bool(differentiable)
            for t in differentiable:
                t.register_hook(functools.partial(self._before_backward, unit, call))
            # the root, and a unit whose output has no tensor to tell that backward begins, stay fetched for it
            if (unit.is_root and differentiable) or not outputs:
                self.in_backward.add(unit)
        if unit in self.in_backward and not unit.held:
            unit.hide()
        else:
            self.let_go(unit)

    @not_compiled
    def _failed_forward(self, unit: Unit, call: Call | None) -> None:
        try:
            if call is None:
                return
            self._leave(unit)
            if graph_task() != -1:
                return
            if self.depth == 0:
                self.drop()
            elif unit.depth == 0 and unit not in self.in_backward:  # the caller may still use it
                unit.abandon()
        finally:
            self.turn.leave()

    def forget(self) -> None:
        """Ends the attempt.  Forward passes that still run end by themselves."""
        self.task = -1
        self.in_backward.clear()

    def drop(self) -> None:
        """Abandons all units: nothing stays fetched."""
        self.in_backward.clear()
        for unit in self.sharded.units:
            unit.depth = 0
            unit.calls.clear()
            unit.abandon()

    def let_go(self, unit: Unit) -> None:
        """Gives the unit's parameters back.  At stages 1 and 2 it only hides them."""
        self.in_backward.discard(unit)
        unit.calls.clear()
        if unit.held:
            return
        if self.holds:
            unit.hide()
        else:
            unit.release()

    def let_go_unless_used(self, unit: Unit) -> None:
        """Calls let_go() if no forward or backward pass needs the unit."""
        if unit.depth == 0 and unit not in self.in_backward:
            self.let_go(unit)

    # ---- backward ---------------------------------------------------------------

    @functools.partial(not_traced, reason=NO_COMPILED_BACKWARD)
    def _before_backward(self, unit: Unit, call: Call, _gradient: torch.Tensor) -> None:
        if call in unit.calls and unit.shown and self.turn.ident == get_ident():
            return  # as for most modules in a unit: another one has begun the call's backward
        if torch.is_grad_enabled() and not self.holds:
            raise RuntimeError("a backward pass with create_graph=True makes a graph that needs the "
                               "parameters after they were released: use stage 1 or 2")
        if call.attempt != self.sharded.attempt.number:
            raise RuntimeError("the backward pass of a forward pass whose step was aborted since: "
                               "repeat the step from its beginning after zerod.Aborted")
        updated = self.sharded.optimized
        if call.version != self.sharded.attempt.version and any(
                p.placeholder.requires_grad and (updated is None or p in updated) for p in unit.params):
            raise RuntimeError(f"the backward pass of a forward pass of '{unit.name or '(root)'}' from before "
                               "optimizer.step(), which may have changed the parameters: run forward again after the step")
        self._expect_end(call.thread)
        unit.calls.add(call)
        if unit in self.in_backward and unit.fetched and unit.shown:
            return
        self.in_backward.add(unit)
        self.fetch(unit, self.backward_order)

    def _expect_end(self, caller: threading.Thread | None = None) -> None:
        """Makes the engine tell when the outermost backward pass is over.  caller: the thread that made its graph."""
        if self.task != -1:
            self.turn.check(caller)
            return
        if getattr(sys.modules.get("torch._dynamo.compiled_autograd"), "in_compiled_autograd_region", False):
            raise NotImplementedError(NO_COMPILED_BACKWARD)
        self.turn.begin_backward(caller)
        try:
            engine = torch.autograd.Variable._execution_engine  # pylint: disable=protected-access
            engine.queue_callback(self._after_backward)
            self.task = graph_task()
            self.backward_order.begin()
        finally:
            self.turn.leave()

    @functools.partial(not_traced, reason=NO_COMPILED_BACKWARD)
    def _gradient(self, unit: Unit, param: ShardedParam, gathered: torch.Tensor) -> None:
        """Takes a parameter's gradient from autograd."""
        gradient, gathered.grad = gathered.grad, None
        self._expect_end(unit.call and unit.call.thread)
        if gradient is not None:  # a hook of the user's may have removed it
            self.sharded.gradients.take(param, gradient)
        if not unit.gradient_arrived(param):
            return
        if self.sharded.stage > 1:
            self.sharded.gradients.push_groups(unit.groups)
        if unit.has_frozen or unit.is_root or unit.depth:
            return
        if not any(call.tells_its_end for call in unit.calls):
            self.let_go(unit)

    def _inputs_done(self, unit: Unit, call: Call) -> None:
        """Ends a call's backward: the gradients of its inputs have come."""
        unit.calls.discard(call)
        if not unit.calls and unit.depth == 0:
            self.let_go(unit)

    def _leaf_done(self, unit: Unit) -> None:
        """Lets a unit go after the backward pass: a leaf among its inputs has its gradient before the rest of the
        graph."""
        engine = torch.autograd.Variable._execution_engine  # pylint: disable=protected-access
        engine.queue_callback(lambda: self._let_go_after(unit))

    def _let_go_after(self, unit: Unit) -> None:
        """Gives a unit back after a backward pass."""
        if unit.depth == 0 and (unit in self.in_backward or unit.shown):
            self.let_go(unit)

    def _after_backward(self) -> None:
        with self.turn.taken():
            self.task = -1
            self.sharded.activations.release_unneeded()
            self.sharded.gradients.push_groups(self.sharded.groups)
            for unit in self.sharded.units:
                unit.arrived.clear()
                self._let_go_after(unit)
