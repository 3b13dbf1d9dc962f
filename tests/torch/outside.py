#!/usr/bin/env python3
"""Losses and outputs that reach past a unit's own output: tensors from inside of it, views of its
parameters.  Its parameters may have gone away by then, and must be back, or never be needed."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from harness import case, cases_of  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402

import zerod.torch as zt  # noqa: E402
from common import raises  # noqa: E402
from net import WIDTH, Block, in_rank, loss_of, make, same  # noqa: E402

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
    raises(RuntimeError, "clip after the last", lambda: loss_of(model, 1).backward())
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
