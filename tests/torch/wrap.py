#!/usr/bin/env python3
"""What a sharded model does in every shape of forward and backward that trainers use: each case
compares with the same model trained by plain PyTorch."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from harness import case, cases_of  # noqa: E402

import copy  # noqa: E402
import inspect  # noqa: E402
import types  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402

import zerod.torch as zt  # noqa: E402
from common import raises  # noqa: E402
from net import (WIDTH, Block, Net, both, fetched, full, in_rank, loss_of, make, same, tokens,  # noqa: E402
                 train)


@cases_of([1, 2, 3], "stage{}")
def trains_as_plain_torch(stage):
    in_rank(same, stage, {})


@cases_of(["reentrant", "nonreentrant", "inside", "twice", "skip"])
def mode_stage3(mode):
    in_rank(same, 3, {"mode": mode})


@cases_of(["reentrant", "nonreentrant", "twice", "skip"])
def mode_stage2_two_owners(mode):
    in_rank(same, 2, {"mode": mode}, nodes=2)


@cases_of(["plain", "reentrant", "nonreentrant", "inside", "twice", "skip"])
def window_of_few_groups(mode):
    """More blocks than the window has places: what is fetched must really be given back."""
    in_rank(lambda: same(3, {"mode": mode, "blocks": 9}), nodes=2)


@case
def frozen_parameters_in_a_window_of_few_groups():
    def prepare(model):
        for block in model.blocks:
            block.up.weight.requires_grad_(False)
        return model
    in_rank(lambda: same(3, {"blocks": 9}, prepare=prepare), nodes=2)


@cases_of([1, 2, 3], "stage{}")
def tied_weights(stage):
    in_rank(same, stage, {"tied": True}, nodes=2)


@cases_of([1, 3], "stage{}")
def tied_weights_of_two_units(stage):
    """They belong to neither: the root has them."""
    in_rank(lambda: same(stage, {"tied": True},
                         shard_options={"groups": ["embed", "head", "Block"]}), nodes=2)


class Adapter(nn.Module):
    """Its trained parameters have their gradients before its frozen one was used last."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH)
        self.a = nn.Parameter(torch.randn(WIDTH, 4) / 8)
        self.b = nn.Parameter(torch.randn(4, WIDTH) / 8)
        for p in self.frozen.parameters():
            p.requires_grad_(False)

    def forward(self, x):
        return x + self.frozen(x) + x @ self.a @ self.b


class Walked(list):
    """Counts how often somebody goes through it."""

    walks = 0

    def __iter__(self):
        Walked.walks += 1
        return super().__iter__()


def scalars(count):
    """How often a step goes through a unit's parameters."""
    model = nn.Module()
    model.all = nn.ParameterList(nn.Parameter(torch.ones(())) for _ in range(count))
    model.forward = lambda: sum(p * p for p in model.all)
    zt.shard(model, stage=3)
    for unit in model.sharded.units:
        unit.params = Walked(unit.params)
    Walked.walks = 0
    model().backward()
    walks = Walked.walks
    model.sharded.client.close()
    return walks


@case
def gradients_do_not_each_go_through_all_parameters():
    (few,), (many,) = in_rank(scalars, 4), in_rank(scalars, 64)
    assert few == many, (few, many)


@case
def adapters_on_frozen_layers():
    def prepare(model):
        torch.manual_seed(1)
        for i in range(len(model.blocks)):
            model.blocks[i] = Adapter()
        return model
    in_rank(lambda: same(3, {"blocks": 9}, prepare=prepare), nodes=2)


class Recurrent(nn.Module):
    """torch's recurrent modules keep their parameters in a list besides, and compute with that."""

    def __init__(self, kind):
        super().__init__()
        self.cells = kind(WIDTH, WIDTH, num_layers=2, batch_first=True)

    def forward(self, x):
        return x + self.cells(x)[0]


@cases_of([nn.LSTM, nn.GRU])
def recurrent_modules(kind):
    def prepare(model):
        torch.manual_seed(1)
        for i in range(len(model.blocks)):
            model.blocks[i] = Recurrent(kind)
        model.blocks[1].requires_grad_(False)
        return model
    in_rank(lambda: same(3, {"blocks": 3}, prepare=prepare))


def freeze(model):
    model.embed.weight.requires_grad_(False)
    model.blocks[1].up.weight.requires_grad_(False)
    for p in model.blocks[2].parameters():
        p.requires_grad_(False)
    return model


class Unused(Block):
    def __init__(self):
        super().__init__()
        self.never_called = nn.Linear(3, 3)


class StopGradient(nn.Module):
    """Its parameters have their gradients before backward has used the weight last."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 8)
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        return x @ self.weight.detach() + self.bias + self.weight.sum() / 100


class Prompt(nn.Module):
    """Its inputs have their gradients before backward has used the frozen layer."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.prompt = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        return x + self.frozen(self.prompt)


class Throws(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        raise KeyError(self.layer(x).shape)


class Catches(Net):
    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            try:
                x = block(x)
            except KeyError:
                continue
        return self.head(x)


def replaced(kind, mode="plain"):
    def prepare(model):
        torch.manual_seed(1)
        model.mode = mode
        for i in range(len(model.blocks)):
            model.blocks[i] = kind()
        return model
    same(3, {"blocks": 9}, prepare=prepare)


@cases_of([Unused, StopGradient, Prompt], "{0.__name__}")
def end_of_a_blocks_backward(kind):
    in_rank(replaced, kind, nodes=2)


@cases_of([Unused, Prompt], "{0.__name__}")
def end_of_a_checkpointed_blocks_backward(kind):
    in_rank(replaced, kind, "reentrant", nodes=2)


@case
def frozen_block_called_twice():
    def prepare(model):
        for block in model.blocks:
            block.up.requires_grad_(False)
        return model
    in_rank(lambda: same(3, {"blocks": 9, "mode": "twice"}, prepare=prepare), nodes=2)


@case
def exceptions_that_forward_catches():
    def catches():
        model = Catches(blocks=9)
        for i in range(9):
            model.blocks[i] = Throws()
        zt.shard(model, stage=3)
        loss_of(model, 0).backward()
        assert not fetched(model), fetched(model)
    in_rank(catches, nodes=2)


def frozen_later(stage):
    """requires_grad_(False) on a sharded model."""
    plain, model = make(blocks=9), make(blocks=9)
    zt.shard(model, stage=stage)
    for m in (plain, model):
        for name, p in m.named_parameters():
            if ".norm." in name or ".up." in name:
                p.requires_grad_(False)
    want = train(plain, torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], lr=1e-2))
    got = train(model, zt.AdamW(model, lr=1e-2))
    assert max(abs(a - b) for a, b in zip(want, got)) < 1e-4, (want, got)


@cases_of([2, 3], "stage{}")
def frozen_after_shard(stage):
    in_rank(frozen_later, stage, nodes=2)


def penalised(model, step):
    """A gradient penalty: backward through a backward pass."""
    noise = torch.zeros(4, 5, WIDTH, requires_grad=True)
    handle = model.embed.register_forward_hook(lambda _m, _a, out: out + noise)
    loss = loss_of(model, step)
    handle.remove()
    gradient, = torch.autograd.grad(loss, noise, create_graph=True)
    loss = loss + gradient.square().sum()
    loss.backward()
    return loss.detach()


@cases_of([1, 2], "stage{}")
def gradient_penalty(stage):
    in_rank(lambda: same(stage, {}, backward=penalised))


@case
def gradient_penalty_at_stage3_is_refused():
    in_rank(lambda: raises(RuntimeError, "use stage 1 or 2",
                           lambda: penalised(zt.shard(make()), 0)))


@case
def attention_outside_of_blocks():
    """Its output layer is never called: attention takes the weights itself."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(2048, 1)

        def forward(self, x):
            return self.attention(x, x, x)[0]

    in_rank(lambda: zt.shard(Model(), stage=3)(torch.randn(1, 1, 2048)).sum().backward())


@cases_of([1, 2, 3], "stage{}")
def frozen_parameters(stage):
    in_rank(lambda: same(stage, {}, prepare=freeze))


class Expert(nn.Parameter):
    """A mark that param-group code looks for."""


class Tagged(torch.Tensor):
    """Another, of a parameter that nn.Parameter() makes of it."""


def doubled(parameter):
    parameter.grad.mul_(2)


def dropped(parameter):
    parameter.grad = None


def hooked(model):
    """Masks, one that is gone before training begins, and changes of what has been accumulated."""
    block = model.blocks[1]
    mask = torch.ones_like(block.up.weight)
    mask[::3] = 0
    block.up.weight.register_hook(lambda gradient: gradient * mask)
    gone = block.up.weight.register_hook(torch.zeros_like)
    block.norm.weight.register_post_accumulate_grad_hook(doubled)
    block.norm.bias.register_post_accumulate_grad_hook(dropped)
    model.embed.weight.register_hook(lambda gradient: gradient / 2)
    block.gone = gone
    return model


def hooks_of_parameters(stage):
    def backward(model, step):
        model.blocks[1].gone.remove()
        loss = loss_of(model, step)
        loss.backward()
        return loss.detach()
    before = hooked(make(tied=True))
    _, want, _, got = both(stage, {"tied": True}, backward, prepare=hooked)
    up, bias = "blocks.1.up.weight", "blocks.1.norm.bias"
    assert torch.equal(want[bias], got[bias]) and not got[bias].any(), "a dropped gradient was used"
    for name, value in want.items():
        assert (got[name] - value).norm() / value.norm().clamp_min(1e-6) < 2e-3, name
    decayed = dict(before.named_parameters())[up][::3] * (1 - 1e-2 * 1e-2) ** 4
    assert torch.allclose(got[up][::3], decayed, rtol=1e-6), "masked entries were trained"


@cases_of([1, 2, 3], "stage{}")
def hooks_set_before_shard_run(stage):
    in_rank(hooks_of_parameters, stage, nodes=2)


def seen_in_forward(module, _inputs):
    assert module.weight.role == "up" and type(module.weight) is Expert, type(module.weight)
    assert module.bias.late, "an attribute that was set after shard()"


def marks():
    model = make(tied=True)
    up = model.blocks[0].up
    up.weight = Expert(up.weight.detach())
    up.weight.role = "up"
    model.blocks[0].down.weight = nn.Parameter(model.blocks[0].down.weight.detach().as_subclass(Tagged))
    for name, p in model.named_parameters():
        p._no_weight_decay = "norm" in name or "bias" in name
    up.register_forward_pre_hook(seen_in_forward)
    zt.shard(model, stage=3)
    assert type(up.weight) is not Expert and isinstance(up.weight, Expert) and up.weight.role == "up"
    assert isinstance(model.blocks[0].down.weight, Tagged) and not isinstance(up.weight, Tagged)
    assert isinstance(up.weight, nn.Parameter) and not isinstance(up.bias, Expert)
    raises(zt.NotFetched, "blocks.0.up.weight", up.weight.share_memory_)
    raises(zt.NotFetched, "blocks.0.down.weight", model.blocks[0].down.weight.share_memory_)
    groups = [{"params": [p for p in model.parameters() if p._no_weight_decay == (decay == 0)], "weight_decay": decay}
              for decay in (0.0, 0.5)]
    assert all(g["params"] for g in groups)
    up.bias.late = True
    loss_of(model, 0).backward()
    zt.AdamW(model, groups).step()
    with zt.full_params(model):
        assert type(up.weight) is Expert and up.weight.role == "up"
        assert all(hasattr(p, "_no_weight_decay") for p in model.parameters())


@case
def classes_and_attributes_of_parameters_stay():
    in_rank(marks)


def initialised_by_marks():
    def fill(module):
        for p in module.parameters(recurse=False):
            p.fill_(p.spread)

    with torch.device("meta"):
        model = nn.Linear(4, 4)
    model.weight.spread, model.bias.spread = 2.0, 3.0
    values = full(zt.shard(model, init_fn=fill))
    assert (values["weight"] == 2).all() and (values["bias"] == 3).all(), values


@case
def init_fn_sees_attributes_of_parameters():
    in_rank(initialised_by_marks)


def accumulated(model, step):
    total = 0
    for micro in range(3):
        loss = loss_of(model, 10 * step + micro) / 3
        loss.backward()
        total += loss.detach()
    return total


@cases_of([1, 2, 3], "stage{}")
def accumulation_in_the_owner(stage):
    in_rank(same_accumulated, stage, "owner")


@cases_of([1, 2, 3], "stage{}")
def accumulation_in_the_trainer(stage):
    in_rank(same_accumulated, stage, "trainer")


def accumulated_no_sync(model, step):
    if not isinstance(model, zt.ZeroModule):
        return accumulated(model, step)
    total = 0
    with model.no_sync():
        for micro in range(2):
            loss = loss_of(model, 10 * step + micro) / 3
            loss.backward()
            total += loss.detach()
    loss = loss_of(model, 10 * step + 2) / 3
    loss.backward()
    return total + loss.detach()


def same_accumulated(stage, where):
    same(stage, {}, backward=accumulated if where == "owner" else accumulated_no_sync)


def pushes(stage):
    model = zt.shard(make(), stage=stage)
    with model.no_sync():
        for t in range(2):
            loss_of(model, t).backward()
    loss_of(model, 2).backward()
    client = model.sharded.client
    client.norm()  # the service has all that was pushed
    return {client.accepted(g) for g in range(client.layout.groups)}


@cases_of([1, 2, 3], "stage{}")
def no_sync_pushes_nothing(stage):
    assert in_rank(pushes, stage) == [{1}]


def several_forwards(model, step):
    losses = [loss_of(model, 10 * step + i) for i in range(3)]
    (losses[0] + losses[1]).backward()
    losses[2].backward()
    return sum(losses).detach()


@cases_of([1, 3], "stage{}")
def several_forwards_before_backward(stage):
    in_rank(lambda: same(stage, {}, backward=several_forwards))


def chosen(model, step):
    """A backward pass to some parameters alone."""
    loss = loss_of(model, step)
    loss.backward(inputs=[model.blocks[1].up.weight, *model.head.parameters()])
    return loss.detach()


def gradients_by_name(model):
    with torch.enable_grad():
        gradients = torch.autograd.grad(loss_of(model, 0), list(model.parameters()), allow_unused=True)
    return {n: g for (n, _), g in zip(model.named_parameters(), gradients)}


def gradients_of_chosen_parameters(stage):
    want, model = gradients_by_name(make()), zt.shard(make(), stage=stage)
    for name, gradient in gradients_by_name(model).items():
        torch.testing.assert_close(gradient, want[name], msg=name)
    assert not model.sharded.has_gradients and (stage < 3 or not fetched(model))
    unused = zt.shard(make(), stage=stage, job="unused")
    raises(RuntimeError, "not have been used", torch.autograd.grad, loss_of(model, 0), [unused.head.weight])
    unused.sharded.client.close()


@cases_of([1, 3], "stage{}")
def parameters_may_be_the_inputs_of_autograd(stage):
    in_rank(gradients_of_chosen_parameters, stage)
    if "has_torch_function" in inspect.getsource(torch.autograd.backward):  # PyTorch 2.6 asks nobody
        in_rank(lambda: same(stage, {}, backward=chosen))


def by_row(model):
    return torch.func.vmap(model)(torch.arange(12).view(4, 1, 3) % 11)


def vmapped(model, step):
    loss = by_row(model).square().mean() + loss_of(model, step)
    loss.backward()
    return loss.detach()


@case
def vmap_trains_as_on_the_plain_model():
    in_rank(lambda: same(2, {}, backward=vmapped))


def vmapped_at_stage3():
    model = zt.shard(make(), stage=3)
    with torch.no_grad():
        torch.testing.assert_close(by_row(model), by_row(make()))
    raises(NotImplementedError, ["torch.func", "stage 1 or 2", "no_grad()"], by_row, model)
    raises(NotImplementedError, "torch.func", torch.func.jacrev(model.blocks[0]), torch.ones(2, WIDTH))
    assert not fetched(model)


@case
def vmap_at_stage3_is_for_inference():
    in_rank(vmapped_at_stage3)


@case
def backward_kept_graph_twice():
    def twice(model, step):
        loss = loss_of(model, step)
        loss.backward(retain_graph=True)
        loss.backward()
        return loss.detach()
    in_rank(lambda: same(3, {}, backward=twice))


def without_gradient():
    """A parameter without a gradient in a step is not updated, and its step count stays."""
    model = zt.shard(make(mode="skip"), stage=3)
    before = full(model)
    train(model, zt.AdamW(model, lr=1e-2), 2)
    after = full(model)
    sharded = zt.sharded_of(model)
    for p in sharded.params:
        skipped = p.name.startswith("blocks.1.")
        assert torch.equal(before[p.name], after[p.name]) == skipped, p.name
        assert sharded.read(p, "step").item() == (0 if skipped else 2), p.name


@case
def parameters_without_gradient_stay():
    in_rank(without_gradient)


def branches(rank, stage):
    """Ranks that take different branches: the mean counts the absent one as zero."""
    torch.manual_seed(0)
    model = Net()
    zt.shard(model, stage=stage)
    optimizer = zt.AdamW(model, lr=1e-2)
    for step in range(3):
        model.mode = "skip" if rank == step % 2 else "plain"
        loss_of(model, step).backward()
        optimizer.step()
    return {n: p.sum().item() for n, p in full(model).items()}


@cases_of([2, 3], "stage{}")
def ranks_take_different_branches(stage):
    a, b = ranks.run(branches, 2, ranks.shared(1), arguments=(stage,))
    assert a == b


def evaluates(stage):
    model = zt.shard(make(), stage=stage)
    plain = make()
    for no_grad in (torch.inference_mode, torch.no_grad):
        with no_grad():
            model.eval()
            assert torch.equal(model(tokens(1)), plain(tokens(1)))
    assert stage < 3 or not fetched(model)
    optimizer = zt.AdamW(model)
    model.train()
    loss_of(model, 0).backward()
    with torch.no_grad():
        model(tokens(2))
    optimizer.step()
    assert stage < 3 or not fetched(model)


@cases_of([1, 3], "stage{}")
def eval_and_no_grad(stage):
    in_rank(evaluates, stage)


def marked():
    plain, model = make(), make()
    for block in model.blocks:
        zt.fully_shard(block)
    raises(RuntimeError, "fully_shard(model)", lambda: model(tokens(0)))
    zt.fully_shard(model)
    assert torch.equal(model(tokens(0)), plain(tokens(0)))
    assert [u.name for u in zt.sharded_of(model).units] == ["blocks.0", "blocks.1", "blocks.2", ""]
    want = train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2))
    got = train(model, zt.AdamW(model, lr=1e-2))
    assert max(abs(a - b) for a, b in zip(want, got)) < 1e-4


@case
def fully_shard_marks():
    in_rank(marked)


def mixed():
    plain, model = make(), make()
    for m in (plain, model):
        for block in m.blocks:
            block.up.to(torch.bfloat16)
            block.up.register_forward_pre_hook(lambda _m, a: (a[0].bfloat16(),))
            block.up.register_forward_hook(lambda _m, _a, out: out.float())
    zt.shard(model, stage=3)
    want = train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-3))
    got = train(model, zt.AdamW(model, lr=1e-3))
    assert max(abs(a - b) for a, b in zip(want, got)) < 2e-2, (want, got)


@case
def mixed_dtypes_in_a_block():
    in_rank(mixed)


class Opaque(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return types.SimpleNamespace(value=self.block.down(self.block.up(x)))


def opaque():
    torch.manual_seed(0)
    plain = nn.ModuleList([Opaque(Block()) for _ in range(2)])

    class Model(nn.Module):
        def __init__(self, blocks):
            super().__init__()
            self.blocks = blocks

        def forward(self, x):
            for block in self.blocks:
                x = block(x).value
            return x

    model = Model(copy.deepcopy(plain))
    plain = Model(plain)
    x = torch.randn(3, WIDTH)
    a = torch.optim.AdamW(plain.parameters())
    zt.shard(model, stage=3)
    b = zt.AdamW(model)
    for _ in range(3):
        want, got = plain(x).square().mean(), model(x).square().mean()
        assert torch.allclose(want, got, atol=1e-5)
        want.backward()
        got.backward()
        a.step()
        b.step()
        a.zero_grad()


@case
def outputs_that_hide_their_tensors():
    in_rank(opaque)


if __name__ == "__main__":
    ranks.main()
