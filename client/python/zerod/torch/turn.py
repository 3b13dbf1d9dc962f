"""The turns of threads: one thread at a time uses a sharded model.

Rules
- A pass, a step, and a context that shows or holds parameters have the model for themselves.  A thread that trains also
  keeps its turn from the forward pass to the step.
- Another thread that needs a turn meanwhile raises UsedByAnotherThread.  The thread that trains does not notice.
- A thread that took the turn between two steps, and does not train, makes the thread that trains wait.
- A call that only reads from the service needs no turn: :meth:`one_version` keeps steps away while it reads.
- A thread of autograd works for the thread of the backward pass.  A thread of a micro-batch works for the thread that
  began it.
"""
from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterator
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .sharded import Sharded

WAIT_S = 600.0  # the longest wait of one thread for another


def graph_task() -> int:
    """Returns the backward pass that this thread is in; -1 if there is none."""
    return torch._C._current_graph_task_id()  # pylint: disable=protected-access


class UsedByAnotherThread(RuntimeError):
    """A thread needs a sharded model that another thread uses."""


class Turn:
    """The turn of a sharded model.

    thread: has the turn, or had it last.  ident: the thread's number.  depth: its calls that have not returned.
    trains: one of these calls is part of a step.  stepping: a pass with gradients was made since the last step.
    trainer: the thread of the newest backward pass."""

    def __init__(self, sharded: "Sharded"):
        self.sharded = sharded
        self.thread: threading.Thread | None = None
        self.trainer: threading.Thread | None = None
        self.ident: int | None = 0
        self.depth = 0
        self.trains = self.stepping = False
        self.make_locks()
        _turns.add(self)

    def make_locks(self) -> None:
        """Makes new locks, also in a forked process: a thread that holds an old one is not there to give it back."""
        self._ends = threading.Condition()
        self._version = threading.RLock()

    def _me(self, caller: threading.Thread | None = None) -> threading.Thread:
        """Returns the thread that this thread works for.  caller: the thread that made the graph, for a thread of
        autograd."""
        me = threading.current_thread()
        if isinstance(me, threading._DummyThread) and graph_task() != -1:  # pylint: disable=protected-access
            return caller or self.thread or me
        return getattr(me, "zerod_for", me)

    def is_mine(self) -> bool:
        """Returns True if this thread has the turn, or had it last."""
        return self.thread is None or get_ident() == self.ident or self._me() is self.thread

    def _steps(self) -> bool:
        return self.sharded.hooks.task != -1 or (self.stepping and self.thread is self.trainer)

    def _is_taken(self, me: threading.Thread) -> bool:
        return (self.thread not in (None, me) and self.thread.is_alive()  # type: ignore[union-attr]
                and (self.depth > 0 or self._steps()))

    def _refusal(self, me: threading.Thread, does: str) -> UsedByAnotherThread:
        owner = self.thread.name if self.thread else ""
        return UsedByAnotherThread(
            f"thread '{me.name}' needs the model, which thread '{owner}' {does}. These work in every thread: "
            "model.state_dict(), parameter.full_tensor(), and zerod.torch.save_safetensors(), save_checkpoint() and weight_norms(). "
            f"Compute with a model of such values, or do this in '{owner}' between two steps")

    def enter(self, trains: bool = False, caller: threading.Thread | None = None, wait: bool = True) -> None:
        """Begins a call that needs the model.  Waits for a thread that only looks; UsedByAnotherThread if another one
        trains."""
        me = self._me(caller)
        with self._ends:
            end = time.monotonic() + WAIT_S
            while self._is_taken(me):
                if not wait or ((self.trains or self._steps()) and me is not self.trainer):
                    raise self._refusal(me, "trains" if self.trains or self._steps() else "uses")
                if not self._ends.wait(end - time.monotonic()):
                    raise self._refusal(me, f"has been using for {WAIT_S:.0f} s")
            if self.thread is not me:
                self.thread, self.ident = me, me.ident
                self.depth, self.trains, self.stepping, self.sharded.hooks.task = 0, False, False, -1
            self.depth += 1
            self.trains = self.trains or trains

    def leave(self) -> None:
        """Ends a call."""
        with self._ends:
            self.depth -= 1
            if self.depth == 0:
                self.trains = False
            self._ends.notify_all()

    @contextlib.contextmanager
    def taken(self, trains: bool = False) -> Iterator[None]:
        """Calls enter(), and leave() at the end."""
        self.enter(trains)
        try:
            yield
        finally:
            self.leave()

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Keeps other threads from the service's values while this thread changes them."""
        with self.taken(trains=True), self.one_version():
            yield

    def check(self, caller: threading.Thread | None = None) -> None:
        """Raises UsedByAnotherThread if it is another thread's turn."""
        if get_ident() != self.ident:
            me = self._me(caller)
            with self._ends:
                if self._is_taken(me):
                    raise self._refusal(me, "uses")

    def begin_backward(self, caller: threading.Thread | None) -> None:
        """Begins a backward pass: the thread trains, and hooks.task keeps its turn from now on."""
        own = threading.current_thread() is self._me(caller)
        self.enter(True, caller, wait=own)  # a thread of autograd serves the passes of all models
        self.trainer = self.thread

    def end_step(self) -> None:
        """Ends a step or an attempt, even if it has no work."""
        if self.is_mine():
            with self._ends:
                self.stepping, self.sharded.hooks.task = False, -1  # a backward pass that raised has not told its end
                self._ends.notify_all()

    def one_version(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which no other thread of this process changes the service's values, or reads all of
        them.  Entering it has no deadline: a save may take long, and each call in it has one."""
        return self._version


_turns: "weakref.WeakSet[Turn]" = weakref.WeakSet()


def _forked() -> None:
    for turn in list(_turns):
        turn.make_locks()


os.register_at_fork(after_in_child=_forked)


class Parameters(dict[str, Any]):
    """The parameters of a module.  A thread without the turn sees placeholders.  A copy is a plain dict."""

    def __init__(self, turn: Turn, parameters: dict[str, Any]):
        super().__init__(parameters)
        self.turn = turn

    def _seen(self, value: Any) -> Any:
        param = getattr(value, "zerod_param", None)
        return value if param is None or self.turn.is_mine() else param.placeholder

    def __getitem__(self, name: str) -> Any:
        value = dict.__getitem__(self, name)
        return value if torch.compiler.is_compiling() or self.turn.ident == get_ident() else self._seen(value)

    def __setitem__(self, name: str, value: Any) -> None:
        self.turn.check()
        dict.__setitem__(self, name, value)

    def __delitem__(self, name: str) -> None:
        self.turn.check()
        dict.__delitem__(self, name)

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return dict, (dict(self),)

    def items(self) -> Any:
        """Does what dict's does."""
        return super().items() if self.turn.is_mine() else {k: self._seen(v) for k, v in super().items()}.items()

    def values(self) -> Any:
        """Does what dict's does."""
        return super().values() if self.turn.is_mine() else {k: self._seen(v) for k, v in super().items()}.values()
