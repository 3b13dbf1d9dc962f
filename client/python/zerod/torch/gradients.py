"""Gradients on their way from autograd into the push window.

Rule: a gradient is copied into its group's memory once and dropped; a group is pushed when its
unit's gradients are complete, or at the end of the backward pass with those that came.  Every
push is one micro-batch; zero_step() ends the series, so no backward pass need know that it is the
last.

Invariant: `present` marks exactly the tensors whose gradient stands in the group's memory.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .unit import Group, ShardedParam, tensor_at

if TYPE_CHECKING:
    from .sharded import Sharded


class GroupGradient:
    """The gradient of one group that is being written."""

    def __init__(self, group: Group):
        self.group = group
        self.present = bytearray(len(group.params))
        self.address = 0  # of the memory being written; 0: none
        self.views: dict[int, list[torch.Tensor]] = {}  # by address, a tensor a parameter

    def add(self, client: object, dtype: torch.dtype, param: ShardedParam,
            gradient: torch.Tensor) -> None:
        """Copies or adds a gradient; blocks while no memory is free."""
        if not self.address:
            self.address = client.grad(self.group.index)
            if self.address not in self.views:
                self.views[self.address] = [
                    tensor_at(self.address + p.offset * dtype.itemsize, p.numel, dtype).view(p.shape)
                    for p in self.group.params]
        view = self.views[self.address][param.position]
        if self.present[param.position]:
            view.add_(gradient)
        else:
            view.copy_(gradient)
            self.present[param.position] = 1

    def push(self, client: object) -> bool:
        """Hands over what is there; whether anything was."""
        if not self.address:
            return False
        self.address = 0
        client.push(self.group.index, bytes(self.present), False)
        self.present = bytearray(len(self.group.params))
        return True

    def forget(self) -> None:
        """What was not pushed is gone with the attempt."""
        self.address = 0
        self.present = bytearray(len(self.group.params))


class Gradients:
    """All gradients of one model in one attempt.

    keep: nothing is pushed for now; micro-batches add up in the trainer's memory.
    """

    def __init__(self, sharded: "Sharded", groups: list[Group], dtype: torch.dtype):
        self.sharded, self.dtype = sharded, dtype
        self.of_group = {g.index: GroupGradient(g) for g in groups if g.trainable}
        self.keep = False
        self.any = False  # a gradient was pushed or kept in this attempt

    @torch.no_grad()
    def take(self, param: ShardedParam, gradient: torch.Tensor) -> None:
        """One gradient, of the parameter's shape and dtype.  Sparse ones are made dense."""
        optimized = self.sharded.optimized
        if optimized is not None and param not in optimized:
            return
        self.any = True
        if gradient.layout is not torch.strided:
            gradient = gradient.to_dense()
        self.of_group[param.group].add(self.sharded.client, self.dtype, param, gradient)

    def push_groups(self, groups: list[Group]) -> None:
        """Pushes these groups' gradients, unless they are kept."""
        if not self.keep:
            for g in groups:
                if g.trainable:
                    self.of_group[g.index].push(self.sharded.client)

    def push_all(self) -> None:
        """Pushes whatever has not been pushed."""
        for g in self.of_group.values():
            g.push(self.sharded.client)

    def forget(self) -> None:
        """A new attempt: nothing is there."""
        self.any = False
        for g in self.of_group.values():
            g.forget()
