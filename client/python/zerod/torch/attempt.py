"""One attempt at a step: the calls that this rank has begun in it, and its end.

Every call of a sharded model to the service during a step goes through here.  So one place handles an abort: a daemon,
a node or a rank was lost.

Rules
- The trainer does not notice an abort that finds no gradient of this rank, and the same version: the groups that it
  held are fetched again, at the same addresses and with the same values.
- It does notice if values were copied out of the window, because the copy may have come too late.  It does if
  activations were stashed, because they are gone, or if numbers were reduced, because all ranks begin anew.
- Any other abort raises zerod.Aborted exactly once.  Before that everything of the attempt is forgotten, and buffers get
  their earlier values, as far as copies of them fit (buffers.py).  So the next forward pass begins anew.  If another
  error is being raised already, the next call raises the abort.
"""
from __future__ import annotations

import contextlib
import functools
import logging
import math
import re
import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

import zerod
from zerod._library import BLOB_MAX

from .buffers import packed_size

if TYPE_CHECKING:
    from .buffers import Found
    from .sharded import Sharded

log = logging.getLogger("zerod")

HEAD = struct.Struct("<11sBIq")  # of the bytes a rank keeps: mark, format, world size, steps made elsewhere
MARK, FORMAT, WITH_BUFFERS = b"zerod.torch", 2, 3
KEPT_MAX = BLOB_MAX - HEAD.size  # bytes for the user


class Attempt:
    """The current attempt of a rank.  number: counts aborts that the trainer noticed."""

    def __init__(self, sharded: "Sharded"):
        self.sharded, self.client = sharded, sharded.client
        self.version = self.client.version  # when the attempt began
        self.number = 0
        self._made: int | None = None
        self._elsewhere = self._unwrapped()[1]  # steps made before the checkpoint that the job has loaded
        self._held: set[int] = set()  # groups
        self._buffers: "list[tuple[Found, torch.Tensor]] | None" = None  # with the values to begin anew with
        self._trains = False  # True once _buffers has the values with which a repeated step begins
        self._copied = self._reduced = False
        self._untold: zerod.Aborted | None = None

    # ---- calls that may survive an abort --------------------------------------------------

    def fetch(self, group: int) -> int:
        """Calls Client.fetch(), and returns the address of a group's parameters."""
        address = self._unless_begun(self.client.fetch, group)
        self._held.add(group)
        return address

    def prefetch(self, group: int) -> None:
        """Calls Client.prefetch()."""
        self._unless_begun(self.client.prefetch, group)

    def copied(self) -> None:
        """Notes that a group's values were copied, or that a copy is enqueued on the GPU."""
        self._copied = True

    def release(self, group: int, stream: int | None = None) -> None:
        """Calls Client.release(), unless an abort has ended the fetch."""
        if group not in self._held:
            return
        self._held.discard(group)
        try:
            self.client.release(group, stream)
        except zerod.Aborted as abort:
            self._go_on(abort)

    def release_quietly(self, groups: Iterable[int], stream: int | None = None) -> None:
        """Calls release() while another error is being raised."""
        for group in groups:
            try:
                self.release(group, stream)
            except zerod.Aborted as abort:
                self._untold = abort
            except zerod.Error:
                pass

    def stash_write(self, key: int, address: int, size: int, stream: int | None) -> None:
        """Calls Client.stash_write()."""
        self._unless_begun(self.client.stash_write, key, address, size, stream)

    def stash_view(self, key: int) -> tuple[int, int]:
        """Calls Client.stash_view()."""
        return self._of_step(self.client.stash_view, key)

    def stash_release(self, key: int, last: bool, stream: int | None = None) -> None:
        """Calls Client.stash_release()."""
        self._of_step(self.client.stash_release, key, last, stream)

    def get(self, *arguments: Any) -> None:
        """Calls Client.get()."""
        self._read("get", *arguments)

    def put(self, *arguments: Any) -> None:
        """Calls Client.put()."""
        self._unless_begun(self.client.put, *arguments)

    def put_file(self, *arguments: Any) -> None:
        """Calls Client.put_file()."""
        self._unless_begun(self.client.put_file, *arguments)

    def _read(self, call: str, *arguments: Any) -> Any:
        """Makes a call that only reads, in any thread.  Only the thread whose turn it is may lose values by an
        abort."""
        if self.sharded.turn.is_mine():
            return self._unless_begun(getattr(self.client, call), *arguments)
        with self.sharded.turn.one_version():
            return self.client.observe(call, *arguments)

    def _unless_begun(self, call: Callable[..., Any], *arguments: Any) -> Any:
        self.sharded.turn.check()
        self._tell()
        while True:
            try:
                return call(*arguments)
            except zerod.Aborted as abort:
                self._go_on(abort)

    def _go_on(self, abort: zerod.Aborted) -> None:
        """Fetches the held groups again; raises if the trainer has to repeat the step."""
        while not self._begun and self.client.version == self.version:
            try:
                for group in self._held:
                    self.client.fetch(group)
                return
            except zerod.Aborted as again:
                abort = again
            except BaseException:  # nothing was pushed, so no abort is left to report
                self._begin_anew()
                raise
        self._begin_anew()
        raise abort

    @property
    def _begun(self) -> bool:
        """True if this rank has done work that is lost with the attempt."""
        return self._copied or self._reduced or self.sharded.has_gradients or self.sharded.activations.any

    # ---- calls of a step that has begun --------------------------------------------------

    def grad(self, group: int) -> int:
        """Calls Client.grad()."""
        return self._of_step(self.client.grad, group)

    def push(self, group: int, present: bytes, stream: int | None = None, last: bool = False) -> None:
        """Calls Client.push()."""
        self._of_step(self.client.push, group, present, last, stream)

    def ahead(self, sets: list[zerod.AdamWSet]) -> None:
        """Calls Client.ahead()."""
        self._of_step(self.client.ahead, sets)

    def norm(self) -> tuple[float, bool]:
        """Calls Client.norm()."""
        return self._of_step(self.client.norm)

    def norms(self, plane: str, first: int, count: int) -> list[float]:
        """Calls Client.norms()."""
        if plane == "grad":
            return self._of_step(self.client.norms, plane, first, count)
        return self._read("norms", plane, first, count)

    def all_reduce(self, name: str, values: list[float], op: str) -> list[float]:
        """Calls Client.all_reduce()."""
        result = self._of_step(self.client.all_reduce, name, values, op)
        self._reduced = True
        return result

    def step(self, sets: list[zerod.AdamWSet], kept: bytes = b"",
             **named: Any) -> zerod.StepResult:
        """Calls Client.step(), and ends the attempt."""
        with self.sharded.turn.one_version():
            result = self._of_step(self._step, sets, blob=self._wrapped(kept), **named)
            self._over()
            self._made = None if self._made is None else self._made + 1
        return result

    def barrier(self, before: Callable[[], None] = lambda: None) -> None:
        """Meets all ranks; gradients pushed before it are dropped.  before: called once in each attempt."""
        kept, self._untold = self.kept, None
        while True:
            with contextlib.suppress(zerod.Aborted), self.sharded.turn.one_version():  # all ranks get an abort, and meet again
                before()
                self._step([], loss_scale=self.client.loss_scale or 1.0, blob=self._wrapped(kept))
                self._over()
                return

    def _step(self, sets: list[zerod.AdamWSet], **named: Any) -> zerod.StepResult:
        try:
            return self.client.step(sets, **named)
        except zerod.Conflict as error:
            if not re.search(r"sets (0 and|\d+ and 0\b)", str(error)):
                raise
            raise zerod.Conflict(f"{error}: one steps, and the other meets the ranks, as zero_grad() behind a backward pass, "
                                 "load_state_dict() and load_checkpoint() do; all ranks make the same calls") from error

    def _of_step(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self.sharded.turn.check()
        self._tell()
        try:
            return call(*arguments, **named)
        except zerod.Aborted:
            self._begin_anew()
            raise

    # ---- its end --------------------------------------------------------------------------

    def _tell(self) -> None:
        abort, self._untold = self._untold, None
        if abort is not None:
            raise abort

    def begin_step(self) -> None:
        """Begins a part that is repeated as a whole; buffers then get the values that they have now."""
        self._buffers, self._trains = self.sharded.buffers.copies(), True

    def begin_forward(self) -> None:
        """Begins a forward pass; one with gradients is part of a step."""
        batched = torch._C._functorch.peek_interpreter_stack() is not None  # pylint: disable=protected-access  # buffers of vmap
        trains = torch.is_grad_enabled()
        if not batched and not self._trains and (trains or self._buffers is None):
            self._buffers, self._trains = self.sharded.buffers.copies(), trains

    def _over(self) -> None:
        self._held.clear()
        self._buffers = None
        self._copied = self._reduced = self._trains = False
        self.version = self.client.version
        self.sharded.activations.end_attempt()

    @property
    def steps_made(self) -> int:
        """The number of steps that the job has decided: committed, or skipped because a gradient was not finite.  Steps
        made before the checkpoint that the job has loaded are included."""
        if self._made is None:
            self._made = self._decided() + self._elsewhere
        return self._made

    def _decided(self) -> int:
        query = self.client.query if self.sharded.turn.is_mine() else functools.partial(self._read, "query")
        jobs = query("jobs")["jobs"]
        return self.client.version + next(job["skipped"] for job in jobs if job["job"] == self.client.job)

    def goes_on_from(self, made: int) -> None:
        """Sets the number of steps that count as made.  All ranks call it, between steps; the next barrier keeps it."""
        self._elsewhere = made - self._decided()
        self._made = made

    def agree_on_steps(self) -> None:
        """Tells new ranks how many steps were made elsewhere, and all keep the number.  All ranks call it, if their
        number is not that of the job's last ranks."""
        known = float(self._elsewhere) if self._unwrapped()[0] else -math.inf

        def agree() -> None:
            most, = self.client.all_reduce("steps made before", [known], "max")
            self._elsewhere = 0 if most == -math.inf else int(most)

        self.barrier(agree)

    @property
    def is_of_another_world(self) -> bool:
        """True if the job has made steps, all of them with another number of ranks."""
        return self.client.version > 0 and self._unwrapped()[0] != self.sharded.world_size

    def _begin_anew(self) -> None:
        buffers = self._buffers if self.client.version == self.version else None
        self._over()
        self._made = None
        self.number += 1
        self.sharded.forget()
        for found, values in buffers or []:
            found.put_back(values)

    # ---- the bytes that a rank keeps ------------------------------------------------------

    def _wrapped(self, kept: bytes) -> bytes:
        if len(kept) > KEPT_MAX:
            raise ValueError(f"a rank keeps at most {KEPT_MAX} bytes with a step, not {len(kept)}")
        buffers = self.sharded.buffers.packed(KEPT_MAX - len(kept))
        form = WITH_BUFFERS if buffers else FORMAT
        return HEAD.pack(MARK, form, self.sharded.world_size, self._elsewhere) + buffers + kept

    def _unwrapped(self) -> tuple[int, int, bytes, bytes]:
        """Returns world size (0 if this rank has kept nothing yet), steps made elsewhere, buffers, and the user's
        bytes."""
        blob = self.client.blob
        if len(blob) < HEAD.size:
            return 0, 0, b"", b""
        mark, form, world_size, elsewhere = HEAD.unpack_from(blob)
        if mark != MARK or form not in (FORMAT, WITH_BUFFERS):
            return 0, 0, b"", b""
        rest = blob[HEAD.size:]
        size = packed_size(rest) if form == WITH_BUFFERS else 0
        return world_size, elsewhere, rest[:size], rest[size:]

    def restore_buffers(self) -> None:
        """Gives the buffers their values of the last decided step."""
        world_size, _, buffers, _ = self._unwrapped()
        if world_size:
            self.sharded.buffers.restore(buffers)
        elif self.sharded.buffers.packed(KEPT_MAX):
            log.warning("rank %d is new in job '%s', and begins with the buffers of its script", self.client.rank, self.client.job)

    @property
    def kept(self) -> bytes:
        """The bytes that this rank kept with the last decided step."""
        return self._unwrapped()[3]

    @property
    def has_values(self) -> bool:
        """True if first values were written, and all ranks have met afterwards."""
        return self.client.version > 0 or self._unwrapped()[0] == self.sharded.world_size
