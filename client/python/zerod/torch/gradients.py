"""Gradients on their way from autograd into the push window.

Rule: a gradient stays where autograd made it until its unit's gradients are complete, or the backward pass ends.  Then
the gradients of each group are copied into push memory, once, and pushed.  Every push is one micro-batch.  zero_step()
ends the series, so no backward pass needs to know that it is the last.  If a backward pass knows it, owners update
eager groups ahead of the step.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .unit import Group, ShardedParam

if TYPE_CHECKING:
    from .attempt import Attempt
    from .place import Gpu, Host
    from .sharded import Sharded


class GroupGradient:
    """The gradient of one group, part by part: a tensor for each parameter, None until it comes."""

    def __init__(self, place: "Host | Gpu", group: Group):
        self.place, self.group = place, group
        self.parts: list[torch.Tensor | None] = [None] * len(group.params)
        self.marks: list[Any] = [None] * len(group.params)  # of the work that made the part
        self.came = False  # a part did
        self.places: dict[int, list[torch.Tensor]] = {}  # of all parts, by the address of the push memory

    def add(self, param: ShardedParam, gradient: torch.Tensor, dtype: torch.dtype) -> None:
        """Takes a gradient over, or adds it to the one before in the job's gradient dtype."""
        before, self.came = self.parts[param.position], True
        if before is None:
            self.parts[param.position] = gradient
        else:
            self.place.follow(self.marks[param.position], before)
            with torch.no_grad():
                self.parts[param.position] = before.to(dtype).add_(gradient)
        self.marks[param.position] = self.place.mark()

    def push(self, attempt: "Attempt", dtype: torch.dtype, last: bool) -> None:
        """Pushes the parts that have come, if any.  Blocks while no push memory is free."""
        if not self.came:
            return
        present = bytes(part is not None for part in self.parts)
        address = attempt.grad(self.group.index)
        if address not in self.places:
            flat = self.place.tensor_at(address, self.group.elements, dtype)
            self.places[address] = [flat[p.offset:p.offset + p.local_numel].view(p.local_shape) for p in self.group.params]
        pairs = []
        for into, part, mark in zip(self.places[address], self.parts, self.marks):
            if part is not None:
                self.place.follow(mark, part)
                pairs.append((into, part))
        torch._foreach_copy_(*map(list, zip(*pairs)))  # pylint: disable=protected-access
        self.forget()
        attempt.push(self.group.index, present, self.place.stream, last)

    def forget(self) -> None:
        """Drops the gradients that were not pushed; they are lost with the attempt."""
        if self.came:
            self.parts = [None] * len(self.group.params)
            self.marks = [None] * len(self.group.params)
            self.came = False


class Gradients:
    """All gradients of one model in one attempt.

    keep: nothing is pushed for now; micro-batches add up in the trainer's memory.
    part: the micro-batch that gradients come from.
    several: parameters whose gradient comes in several pieces of a micro-batch, which add up before micro-batches do.
    last: owners know how the step will end, and each group is pushed once.
    """

    def __init__(self, sharded: "Sharded", groups: list[Group], dtype: torch.dtype):
        self.sharded, self.dtype = sharded, dtype
        self.of_group = {g.index: GroupGradient(sharded.place, g) for g in groups
                         if g.trainable}
        self.keep = False
        self.part: int | None = None
        self.several: set[ShardedParam] = set()
        self.pieces: dict[ShardedParam, dict[int, torch.Tensor]] = {}
        self.any = False  # a gradient was pushed or kept in this attempt
        self.last = False

    def take(self, param: ShardedParam, gradient: torch.Tensor) -> None:
        """Takes one gradient, of the parameter's shape and dtype.  Makes a sparse one dense."""
        optimized = self.sharded.optimized
        if optimized is not None and param not in optimized:
            return
        if self.sharded.pending.closed:
            raise RuntimeError(f"a backward pass after {self.sharded.pending.closed}: the norm is taken already; "
                               "call it after the last backward pass of a step")
        self.any = True
        if gradient.layout is not torch.strided:
            with torch.no_grad():
                gradient = gradient.to_dense()
        if self.part is None or param not in self.several:
            self.of_group[param.group].add(param, gradient, self.dtype)
            return
        pieces = self.pieces.setdefault(param, {})
        with torch.no_grad():
            pieces[self.part] = pieces[self.part] + gradient if self.part in pieces else gradient

    def add_pieces(self, params: list[ShardedParam]) -> None:
        """Adds up gradients that came in several pieces, in the order of micro-batches."""
        for param in params:
            for _, gradient in sorted(self.pieces.pop(param, {}).items()):
                self.of_group[param.group].add(param, gradient, self.dtype)

    @torch.no_grad()
    def push_groups(self, groups: list[Group], kept: bool = False) -> None:
        """Pushes these groups' gradients, and kept ones only with `kept`."""
        if kept or not self.keep:
            for g in groups:
                if g.trainable:
                    self.of_group[g.index].push(self.sharded.attempt, self.dtype, self.last)

    @torch.no_grad()
    def push_all(self) -> None:
        """Pushes all gradients that were not pushed yet."""
        for g in self.of_group.values():
            g.push(self.sharded.attempt, self.dtype, self.last)

    def forget(self) -> None:
        """Begins a new attempt, without gradients."""
        self.any = self.last = False
        self.pieces.clear()
        for g in self.of_group.values():
            g.forget()
