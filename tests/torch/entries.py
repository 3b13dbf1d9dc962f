#!/usr/bin/env python3
"""Parameters used in other ways than by a module's forward: touched outside of it, by methods that are
not forward, in full_params(), held, and copied.  Each compares with the plain model."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from harness import case, cases_of  # noqa: E402

import contextlib  # noqa: E402
import copy  # noqa: E402
import io  # noqa: E402
import logging  # noqa: E402
import pickle  # noqa: E402
import warnings  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

import zerod.torch as zt  # noqa: E402
from common import raises  # noqa: E402
from net import WIDTH, Net, fetched, full, in_rank, loss_of, make, same, tokens, train  # noqa: E402

BLOCKS = 9  # more than the window has places


# ---- touched outside of forward ------------------------------------------------------


def l1(model):
    return sum(p.abs().sum() for p in model.parameters()) / 1000


def penalty_first(model, step):
    penalty = l1(model)
    return loss_of(model, step) + penalty


def penalty_last(model, step):
    return loss_of(model, step) + l1(model)


def views_of_weights(model, step):
    """A view lives on when its parameter is fetched no more."""
    views = [p.view(-1)[:5] for p in model.blocks.parameters()]
    return loss_of(model, step) + torch.cat(views).square().sum() / 100 + torch.stack(
        [b.up.weight for b in model.blocks]).square().sum() / 1000


def head_outside(model, step):
    got = []
    handle = model.blocks[-1].register_forward_hook(lambda _m, _a, out: got.append(out))
    loss = loss_of(model, step)
    handle.remove()
    return loss + F.linear(got[0], model.head.weight).square().mean()


def penalty_in_a_hook(model, step):
    got = []
    handles = [b.register_forward_hook(lambda m, _a, out: got.append(m.up.weight.square().sum() / 1000))
               for b in model.blocks]
    loss = loss_of(model, step)
    for handle in handles:
        handle.remove()
    return loss + sum(got)


LOSSES = (penalty_first, penalty_last, views_of_weights, head_outside, penalty_in_a_hook)


def backward_of(loss):
    def backward(model, step):
        value = loss(model, step)
        value.backward()
        return value.detach()
    return backward


@cases_of([(loss, stage) for loss in LOSSES for stage in (1, 2, 3)], "{0[0].__name__}_stage{0[1]}")
def touched(loss_and_stage):
    loss, stage = loss_and_stage
    in_rank(lambda: same(stage, {"blocks": BLOCKS}, backward=backward_of(loss)), nodes=2)


def old_weight_norm(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(model.head)
        nn.utils.weight_norm(model.blocks[1].up)
    return model


def old_spectral_norm(model):
    torch.manual_seed(4)
    nn.utils.spectral_norm(model.head)
    nn.utils.spectral_norm(model.blocks[1].up)
    return model


def pruned(model):
    prune.l1_unstructured(model.head, "weight", amount=0.3)
    prune.l1_unstructured(model.blocks[1].up, "weight", amount=0.3)
    return model


@cases_of([old_weight_norm, old_spectral_norm, pruned], "{0.__name__}")
def weights_that_hooks_compute(prepare):
    """Their hooks run before the forward of a module that is a unit itself."""
    in_rank(lambda: same(3, {"blocks": 3}, prepare=prepare, shard_options={"groups": ["head", "up"]}), nodes=2)


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def reads():
    lines, log = Lines(), logging.getLogger("zerod")
    log.addHandler(lines)
    log.setLevel(logging.DEBUG)
    plain, model = make(), zt.shard(make(), stage=3)
    weight = model.blocks[1].up.weight
    with torch.no_grad():
        assert torch.equal(weight.norm(), plain.blocks[1].up.weight.norm())
    assert any("blocks.1.up.weight" in line and "norm" in line for line in lines.lines), lines.lines
    assert torch.equal(weight.data.abs(), plain.blocks[1].up.weight.data.abs())
    assert not weight.data.requires_grad and not weight.data.abs().requires_grad
    array = weight.detach().numpy()
    assert (array == plain.blocks[1].up.weight.detach().numpy()).all()
    raises(ValueError, "read-only", array.fill, 0)
    with torch.inference_mode():
        assert torch.equal(weight.sum(), plain.blocks[1].up.weight.sum())
    vector = nn.utils.parameters_to_vector(model.parameters())
    assert torch.equal(vector, nn.utils.parameters_to_vector(plain.parameters()))
    assert not fetched(model), fetched(model)
    n = len(lines.lines)
    assert weight.shape == (2 * WIDTH, WIDTH) and weight.requires_grad and weight.is_contiguous()
    assert len(lines.lines) == n, "a shape needs no values"


@case
def values_read_outside_are_the_parameters_and_leave_nothing_fetched():
    in_rank(reads, nodes=2)


def zero_by_view(weight):
    weight[0].zero_()


def zero_by_index(weight):
    weight[0] = 0


def zero_by_name(weight):
    nn.init.zeros_(weight)


def zero_data(weight):
    weight.data.zero_()


def zero_data_by_view(weight):
    weight.data.view(-1).zero_()


def writes(write):
    plain, model = make(), zt.shard(make(), stage=3)
    with torch.no_grad():
        try:
            write(model.head.weight)
            loss_of(model, 0)
            raise AssertionError("the change is lost silently")
        except (zt.NotFetched, zt.WrittenInPlace) as error:
            assert "head.weight" in str(error) and "full_params(module, write=True)" in str(error), error
    want = train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2), 2)
    got = train(model, zt.AdamW(model, lr=1e-2), 2)
    assert max(abs(a - b) for a, b in zip(want, got)) < 1e-4, (want, got)


@cases_of([zero_by_view, zero_by_index, zero_by_name, zero_data, zero_data_by_view], "{0.__name__}")
def written_outside(write):
    in_rank(writes, write)


if __name__ == "__main__":
    ranks.main()
