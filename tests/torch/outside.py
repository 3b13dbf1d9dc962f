#!/usr/bin/env python3
"""Losses, outputs and inputs that reach past a unit's own: tensors from inside of it, views of its parameters, inputs that
other units have too.  Its parameters may have gone away by then, and must be back, or never be needed; and they go away
when nothing needs them."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from harness import case, cases_of  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import zerod.torch as zt  # noqa: E402
from common import needs_checkpoint, raises  # noqa: E402
from net import WIDTH, Block, Net, in_rank, loss_of, make, same  # noqa: E402

BLOCKS = 9  # more than the window has places


class Auxiliary(Block):
    """Keeps a loss of its own aside."""

    def forward(self, x):
        self.aside = self.up(self.norm(x)).square().mean()
        return super().forward(x)


class Position(nn.Module):
    """Gives a part of its parameter."""

    def __init__(self, give):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(7, WIDTH) / 4)
        self.give = give

    def forward(self, _):
        return self.give(self.weight)


class Added(nn.Module):
    """A block beside a position; what that gives is used in here, outside of its unit."""

    def __init__(self, give, take):
        super().__init__()
        self.position, self.block, self.take = Position(give), Block(), take

    def forward(self, x):
        p = self.take(self.position(x))
        return self.block(x + p * p)


def replaced(make_block):
    def prepare(model):
        torch.manual_seed(2)
        for i in range(len(model.blocks)):
            model.blocks[i] = make_block()
        return model
    return prepare


def backward_of_aside(alone):
    def backward(model, step):
        loss = loss_of(model, step)
        aside = sum(b.aside for b in model.blocks)
        total = aside if alone else loss + aside
        total.backward()
        return total.detach()
    return backward


@cases_of([False, True], "alone_{}")
def loss_kept_aside_by_blocks(alone):
    in_rank(lambda: same(3, {"blocks": BLOCKS}, prepare=replaced(Auxiliary),
                         backward=backward_of_aside(alone)), nodes=2)


def backward_of_a_feature(model, step):
    got = []
    handle = model.blocks[BLOCKS // 2].up.register_forward_hook(lambda _m, _a, out: got.append(out))
    loss_of(model, step)
    handle.remove()
    loss = got[0].square().mean()
    loss.backward()
    return loss.detach()


@case
def loss_of_a_feature_inside_a_block():
    in_rank(lambda: same(3, {"blocks": BLOCKS}, backward=backward_of_a_feature), nodes=2)


GIVEN = {"slice": (lambda w: w[:5], lambda p: p),
         "whole": (lambda w: w, lambda p: p[:5]),
         "dict": (lambda w: {"w": (w[:5],)}, lambda p: p["w"][0])}


@cases_of(sorted(GIVEN))
def unit_gives_its_parameter(kind):
    give, take = GIVEN[kind]
    in_rank(lambda: same(3, {"blocks": BLOCKS}, prepare=replaced(lambda: Added(give, take)),
                         shard_options={"groups": ["Position", "Block"]}), nodes=2)


class Attending(Block):
    """A block with another input besides its own, in one of these places; it gives that input on."""

    def forward(self, x, *more, memory=None):
        memory, *others = [memory] if more == () else more[0] if isinstance(more[0], tuple) else more
        assert all(o is memory for o in others), "one tensor became two"
        return super().forward(x) + self.up(self.norm(memory)).mean(-1, keepdim=True), memory


WAYS = {"argument": lambda block, x, memory: block(x, memory)[0],
        "keyword": lambda block, x, memory: block(x, memory=memory)[0],
        "in_a_tuple_twice": lambda block, x, memory: block(x, (memory, memory))[0],
        "checkpointed": lambda block, x, memory: checkpoint(block, x, memory, use_reentrant=False)[0]}


class Attends(Net):
    """All blocks have the memory, and each has the outputs of all blocks before in its sum; way: of WAYS, or None for blocks
    that give it on."""

    def __init__(self, way):
        super().__init__()
        self.blocks = nn.ModuleList(Attending() for _ in range(BLOCKS))
        self.way = way

    def forward(self, tokens):
        x, outputs = self.embed(tokens), []
        memory = x.tanh()
        for _ in range(2):
            for block in self.blocks:
                if self.way is None:
                    x, memory = block(x, memory)
                else:
                    x = WAYS[self.way](block, x, memory)
                outputs.append(x)
                x = sum(outputs) / len(outputs)
        return self.head(x)


def attends(way):
    def prepare(_):
        torch.manual_seed(2)
        return Attends(way)
    return prepare


@cases_of([*WAYS, None])
def blocks_that_share_an_input(way):
    in_rank(lambda: same(3, {}, prepare=attends(way)), nodes=2)


def at_most_fetched():
    """Called twice, a block is there during its own backward alone, when later blocks are over."""
    model = zt.shard(attends("argument")(None), stage=3)
    most = 0
    for unit in model.sharded.units:
        def begins(unit=unit, hold=unit.hold):
            nonlocal most
            hold()
            most = max(most, len([u for u in model.sharded.units if u.fetched]))
        unit.hold = begins
    loss_of(model, 0).backward()
    assert most == 2, f"{most} units are fetched at once, and not the root and a block"


@case
def blocks_that_share_an_input_leave_when_their_backward_is_over():
    in_rank(at_most_fetched)


class Stashing(Attending):
    """Checkpoints itself, in its unit."""

    def forward(self, x, memory):
        return zt.checkpoint(super().forward, x, memory)


def stashes():
    torch.manual_seed(2)
    model = Attends("argument")
    for i in range(BLOCKS):
        model.blocks[i] = Stashing()
    zt.shard(model, stage=3, stash=1 << 20)
    written, write = [], model.sharded.client.stash_write
    model.sharded.client.stash_write = lambda *arguments: (written.append(arguments[2]), write(*arguments))[1]
    loss_of(model, 0).backward()
    assert len(written) == 2 * BLOCKS + 1, f"{len(written)} entries for {2 * BLOCKS} inputs and one that all blocks have"


@case
def what_blocks_share_is_stashed_once():
    needs_checkpoint()
    in_rank(stashes)


def second_model():
    first = zt.shard(make(), stage=3)
    raises(ValueError, "job=", lambda: zt.shard(make()))
    loss_of(first, 0).backward()


@case
def second_model_in_one_job():
    in_rank(second_model)


def late_backward():
    model = zt.shard(make(), stage=3)
    optimizer = zt.AdamW(model)
    loss_of(model, 0).backward()
    model.clip_grad_norm_(0.1)
    raises(RuntimeError, ["clip_grad_norm_()", "after the last"], lambda: loss_of(model, 1).backward())
    optimizer.step()
    assert optimizer.version == 1
    loss_of(model, 1).backward()


@case
def backward_after_clipping():
    in_rank(late_backward)


def replaced_weight():
    model = zt.shard(make(), stage=3)
    model.head.weight = nn.Parameter(torch.zeros(11, WIDTH))
    raises(ValueError, "head.weight", lambda: loss_of(model, 0))


@case
def weight_replaced_after_shard():
    in_rank(replaced_weight)


if __name__ == "__main__":
    ranks.main()
