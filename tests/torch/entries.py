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
from torch.func import functional_call, grad, vmap  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

import zerod.torch as zt  # noqa: E402
from common import needs_checkpoint, raises  # noqa: E402
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


# ---- other methods than forward ------------------------------------------------------


class Encoder(Net):
    """Its methods call modules, and the root unit is fetched in none of them by itself."""

    def encode(self, tokens):
        return self.head(self.embed(tokens) @ self.embed.weight.t() @ self.embed.weight)

    def look(self, tokens):
        return self.encode(tokens)


def encoder(_):
    torch.manual_seed(0)
    return Encoder(BLOCKS)


def encoded(model, step):
    loss = model.encode(tokens(step)).square().mean() + loss_of(model, step)
    loss.backward()
    return loss.detach()


@cases_of([1, 2, 3], "stage{}")
def encode_is_a_forward_by_itself(stage):
    in_rank(lambda: same(stage, {}, prepare=encoder, backward=encoded), nodes=2)


class Counts:
    """How often each group is fetched."""

    def __init__(self, model):
        client = model.sharded.client
        self.fetches, fetch = 0, client.fetch

        def counted(group):
            self.fetches += 1
            return fetch(group)
        client.fetch = counted


def registers():
    plain, model = encoder(None), zt.shard(encoder(None), stage=3)
    with torch.no_grad():
        assert torch.equal(model.look(tokens(0)), plain.look(tokens(0)))
        zt.register_forward_method(model, "look")
        zt.register_forward_method(model, "look")
        counts = Counts(model)
        assert torch.equal(model.look(tokens(0)), plain.look(tokens(0)))
    assert counts.fetches == 1 and not fetched(model), counts.fetches
    raises(AttributeError, "see", zt.register_forward_method, model, "see")
    raises(TypeError, "mode", zt.register_forward_method, model, "mode")
    raises(TypeError, "not part of a sharded", zt.register_forward_method, plain, "look")


@case
def a_registered_method_fetches_once():
    in_rank(registers, nodes=2)


# ---- full_params() and hold() --------------------------------------------------------


def outputs(model):
    with torch.no_grad():
        return model(tokens(0)), model(tokens(1))


def same_outputs(a, b):
    return all(torch.equal(x, y) for x, y in zip(outputs(a), outputs(b)))


def runs_in_full(stage):
    plain, model = make(blocks=BLOCKS), zt.shard(make(blocks=BLOCKS), stage=stage)
    counts = Counts(model)
    with zt.full_params(model):
        assert same_outputs(plain, model) and counts.fetches == 0, counts.fetches
        weights = [plain.head.weight, model.head.weight]
        a, b = (torch.autograd.grad(loss_of(m, 0), [w])[0] for m, w in zip((plain, model), weights))
        assert torch.equal(a, b)
    with zt.full_params(model.blocks[1]):  # a part: other units are fetched
        assert same_outputs(plain, model)
    assert same_outputs(plain, model)
    said = raises(zt.GradientsAreElsewhere, "embed.weight", backward_in_full, model)
    assert "torch.autograd.grad()" in str(said)
    want = train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2), 2)
    got = train(model, zt.AdamW(model, lr=1e-2), 2)
    assert max(abs(a - b) for a, b in zip(want, got)) < 1e-4, (want, got)


def backward_in_full(model):
    with zt.full_params(model):
        loss_of(model, 0).backward()


@cases_of([1, 2, 3], "stage{}")
def a_model_runs_in_full_params(stage):
    in_rank(runs_in_full, stage, nodes=2)


def holds(options, stage, fits):
    plain, model = make(**options), zt.shard(make(**options), stage=stage)
    counts = Counts(model)
    with zt.hold(model):
        assert same_outputs(plain, model)
        first = counts.fetches
        assert same_outputs(plain, model) and counts.fetches == first, (first, counts.fetches)
        assert (first > 0) == fits, first
    assert stage < 3 or not fetched(model), fetched(model)
    optimizers = torch.optim.AdamW(plain.parameters(), lr=1e-2), zt.AdamW(model, lr=1e-2)
    with zt.hold(model) if fits else contextlib.nullcontext():
        want, got = train(plain, optimizers[0], 2), train(model, optimizers[1], 2)
        assert max(abs(a - b) for a, b in zip(want, got)) < 1e-4, (want, got)
    with zt.hold(model), torch.no_grad():
        assert (model(tokens(0)) - plain(tokens(0))).abs().max() < 1e-3
    loss_of(model, 0).backward()
    assert stage < 3 or not fetched(model), fetched(model)


@cases_of([(1, 1, True), (2, 3, True), (BLOCKS, 3, False)], "{0[0]}_blocks_stage{0[1]}")
def held(blocks_stage_fits):
    blocks, stage, fits = blocks_stage_fits
    in_rank(lambda: holds({"blocks": blocks}, stage, fits), nodes=2)


# ---- functional_call() ---------------------------------------------------------------


def squares(model, tensors, step):
    return functional_call(model, tensors, (tokens(step)[:, :-1],)).square().mean()


def with_other_tensors(model, step):
    """Tensors of all parameters, and of one of a block."""
    torch.manual_seed(step)
    other = {n: torch.randn(p.shape, requires_grad=True) for n, p in model.named_parameters()}
    squares(model, other, step).backward()
    one = {"blocks.1.up.weight": other["blocks.1.up.weight"].detach()}
    loss = loss_of(model, step) + squares(model, one, step) + sum(t.grad.sum() for t in other.values())
    loss.backward()
    return loss.detach()


def first_order_maml(model, step):
    params = dict(model.named_parameters())
    slopes = torch.autograd.grad(squares(model, params, step), list(params.values()))
    loss = squares(model, {n: p - 0.1 * g for (n, p), g in zip(params.items(), slopes)}, step + 1)
    loss.backward()
    return loss.detach()


def maml(model, step):
    params = dict(model.named_parameters())
    slopes = torch.autograd.grad(squares(model, params, step), list(params.values()), create_graph=True)
    loss = squares(model, {n: p - 0.1 * g for (n, p), g in zip(params.items(), slopes)}, step + 1)
    loss.backward()
    return loss.detach()


FUNCTIONAL = [(with_other_tensors, 1), (with_other_tensors, 3), (first_order_maml, 1), (first_order_maml, 3), (maml, 1)]


@cases_of([(*what, mode) for what in FUNCTIONAL for mode in ("plain", "twice")], "{0[0].__name__}_stage{0[1]}_{0[2]}")
def functional_calls(what):
    backward, stage, mode = what
    in_rank(lambda: same(stage, {"mode": mode}, backward=backward), nodes=2)


def per_sample(stage):
    plain, model = make(), zt.shard(make(), stage=stage)
    batch = tokens(0)

    def gradients(model, tensors):
        return vmap(grad(lambda ts, row: functional_call(model, ts, (row[None],)).square().mean()), (None, 0))(tensors, batch)
    wanted = gradients(plain, {n: p.detach() for n, p in plain.named_parameters()})
    found = [gradients(model, {n: p.full_tensor() for n, p in model.named_parameters()})]
    with zt.full_params(model):
        found.append(gradients(model, {n: p.detach() for n, p in model.named_parameters()}))
    assert all(torch.equal(f[n], wanted[n]) for f in found for n in wanted)
    if stage == 3:
        raises(NotImplementedError, ["full_params(model)", "full_tensor()", "copy.deepcopy(model)"],
               vmap(grad(lambda x: model.blocks[0](x).sum())), torch.ones(2, 3, WIDTH))
    want = train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2), 2)
    got = train(model, zt.AdamW(model, lr=1e-2), 2)
    assert max(abs(a - b) for a, b in zip(want, got)) < 1e-4, (want, got)


@cases_of([1, 3], "stage{}")
def per_sample_gradients(stage):
    in_rank(per_sample, stage, nodes=2)


# ---- copies --------------------------------------------------------------------------


def copies(stage):
    plain, model = make(tied=True), zt.shard(make(tied=True), stage=stage, stash=1 << 20)
    zt.checkpoint_blocks(model, model.blocks)
    loss_of(model, 0).backward()
    model.zero_grad()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(buffer, weights_only=False)]
    want = train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2), 2)
    for twin in twins:
        assert type(twin) is Net and twin.head.weight is twin.embed.weight
        assert not any("zerod" in name for m in twin.modules() for name in m.__dict__)
        got = train(twin, torch.optim.AdamW(twin.parameters(), lr=1e-2), 2)
        assert want == got, (want, got)
    got = train(model, zt.AdamW(model, lr=1e-2), 2)
    assert max(abs(a - b) for a, b in zip(want, got)) < 1e-4, (want, got)
    raises(zt.NotFetched, ["blocks.0", "copy.deepcopy(model)"], copy.deepcopy, model.blocks[0])
    raises(zt.NotFetched, ["blocks.0", "save_safetensors"], pickle.dumps, model.blocks[0])


@cases_of([1, 3], "stage{}")
def a_copy_is_a_plain_model(stage):
    needs_checkpoint()
    in_rank(copies, stage, nodes=2)


def averages(decay):
    models = make(), zt.shard(make(), stage=3)
    optimizers = (torch.optim.AdamW(models[0].parameters(), lr=1e-2), zt.AdamW(models[1], lr=1e-2))
    averaged = []
    for model, optimizer in zip(models, optimizers):
        average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=decay and torch.optim.swa_utils.get_ema_multi_avg_fn(decay))
        for step in range(3):
            loss_of(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)
        averaged.append(average)
    for a, b in zip(*(average.parameters() for average in averaged)):
        assert (a - b).abs().max() < 1e-3, (a - b).abs().max()
    assert not fetched(models[1]), fetched(models[1])


@cases_of([None, 0.9], "decay_{}")
def averaged_model(decay):
    in_rank(averages, decay, nodes=2)


if __name__ == "__main__":
    ranks.main()
