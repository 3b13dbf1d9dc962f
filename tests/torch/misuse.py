#!/usr/bin/env python3
"""What goes wrong in a trainer: exceptions in forward and backward, writes to what is only read,
use of what is not fetched.  Each is an error that names its cause, and training goes on after it."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from cluster import Cluster  # noqa: E402
from harness import case, cases_of  # noqa: E402

import copy  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402

import zerod
import zerod.torch as zt  # noqa: E402
from common import raises  # noqa: E402
from net import WIDTH, fetched, full, in_rank, loss_of, make, train  # noqa: E402


def broken(*_):
    raise KeyError("in the middle")


def fails():
    model = zt.shard(make(), stage=3)
    inner = model.blocks[1].up
    inner.forward = broken
    raises(KeyError, "in the middle", lambda: loss_of(model, 0))
    assert not fetched(model), fetched(model)
    del inner.forward
    plain = make()
    want = train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2))
    got = train(model, zt.AdamW(model, lr=1e-2))
    assert max(abs(a - b) for a, b in zip(want, got)) < 1e-4, (want, got)


@case
def exception_in_forward_leaves_nothing_fetched():
    in_rank(fails)


def fails_in_backward():
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x.clone()

        @staticmethod
        def backward(_, gradient):
            raise KeyError("in the middle of backward")

    model = zt.shard(make(), stage=3)
    optimizer = zt.AdamW(model, lr=1e-2)
    handle = model.blocks[0].register_forward_hook(lambda _m, _a, out: Bad.apply(out))
    raises(KeyError, "in the middle of backward", lambda: loss_of(model, 0).backward())
    handle.remove()
    optimizer.zero_grad()
    before = full(model)
    reference = make()
    assert all(torch.equal(before[n], p) for n, p in reference.named_parameters())
    want = train(reference, torch.optim.AdamW(reference.parameters(), lr=1e-2))
    got = train(model, optimizer)
    assert max(abs(a - b) for a, b in zip(want, got)) < 1e-4
    assert not fetched(model)


@case
def exception_in_backward_then_zero_grad_starts_anew():
    in_rank(fails_in_backward)


def writes(stage):
    model = zt.shard(make(), stage=stage)

    def write(module, _):
        with torch.no_grad():
            module.up.weight.add_(1)

    handle = model.blocks[1].register_forward_pre_hook(write)
    raises(zt.NotFetched, "blocks.1.up.weight", lambda: loss_of(model, 0))
    handle.remove()
    handle = model.blocks[1].norm.register_forward_pre_hook(lambda *_: write(model.blocks[1], None))
    raises(zt.WrittenInPlace, "blocks.1.up.weight", lambda: loss_of(model, 0))
    handle.remove()
    optimizer = zt.AdamW(model, lr=1e-2)
    optimizer.zero_grad()
    reference = make()
    want = train(reference, torch.optim.AdamW(reference.parameters(), lr=1e-2), 3)
    got = train(model, optimizer, 3)
    assert max(abs(a - b) for a, b in zip(want, got)) < 1e-4, (want, got)


@cases_of([1, 3], "stage{}")
def in_place_write_is_named(stage):
    in_rank(writes, stage)


def placeholders():
    model = zt.shard(make(), stage=3)
    p = model.blocks[0].up.weight
    assert isinstance(p, nn.Parameter) and p.shape == (2 * WIDTH, WIDTH) and p.requires_grad
    raises(zt.NotFetched, "blocks.0.up.weight", lambda: p.detach().add_(1))
    raises(zt.NotFetched, "blocks.0.up.weight", lambda: p.data.zero_())
    raises(zt.NotFetched, "blocks.0.up.weight", p.share_memory_)
    raises(zt.NotFetched, "embed.weight", lambda: copy.deepcopy(model.embed))
    raises(NotImplementedError, "embed.weight", lambda: model.embed.weight.register_hook(print))
    assert "blocks.0.up.weight" in repr(p) and p.grad is None
    loss_of(model, 0).backward()
    assert p.grad is not None
    raises(zt.GradientsAreElsewhere, "clip_grad_norm_", lambda: p.grad.norm())
    raises(zt.GradientsAreElsewhere, "clip_grad_norm_",
           lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    optimizer = zt.AdamW(model)
    optimizer.step()
    assert p.grad is None


@case
def placeholders_name_themselves():
    in_rank(placeholders)


def drops_gradients():
    plain, model = make(), make()
    zt.shard(model, stage=3)
    a, b = torch.optim.AdamW(plain.parameters(), lr=1e-2), zt.AdamW(model, lr=1e-2)
    for m, optimizer in ((plain, a), (model, b)):
        loss_of(m, 5).backward()
        m.zero_grad()
        loss_of(m, 6).backward()
        optimizer.step()
        optimizer.zero_grad()
    want, got = train(plain, a), train(model, b)
    assert max(abs(x - y) for x, y in zip(want, got)) < 1e-4, (want, got)
    loss_of(model, 0).backward()
    p = model.embed.weight
    raises(zt.GradientsAreElsewhere, "model.zero_grad()", lambda: setattr(p, "grad", None))


@case
def gradients_are_dropped_or_it_is_an_error():
    in_rank(drops_gradients)


def moves():
    model = zt.shard(make(), stage=3)
    assert model.cpu().float().to("cpu") is model
    raises(zt.NotFetched, "embed.weight", model.half)
    raises(zt.NotFetched, "embed.weight", model.share_memory)
    loss_of(model, 0).backward()


@case
def moving_a_model_to_where_it_is():
    in_rank(moves)


def new_parameter():
    model = zt.shard(make(), stage=3)
    model.head = nn.Linear(WIDTH, 11)
    raises(ValueError, "head.weight", lambda: zt.AdamW(model))


@case
def parameters_that_zerod_does_not_have():
    in_rank(new_parameter)


def other_optimizers():
    model = make()
    early = torch.optim.SGD(model.parameters(), lr=1e-2)
    zt.shard(model, stage=3)
    late = torch.optim.AdamW(model.parameters())
    loss_of(model, 0).backward()
    for optimizer in (early, late):
        raises(RuntimeError, "zerod.torch.AdamW(model", optimizer.step)
    other = nn.Linear(2, 2)
    other(torch.ones(2)).sum().backward()
    torch.optim.SGD(other.parameters(), lr=1.0).step()


@case
def optimizers_that_would_train_nothing():
    in_rank(other_optimizers)


def waits_for_nobody():
    os.environ["WORLD_SIZE"] = "2"
    raises(zerod.Deadline, "rank 1", zt.shard, make(), job="half", timeout=2.0)


@case
def the_timeout_of_shard():
    in_rank(waits_for_nobody)


def waits_as_the_daemon_says():
    os.environ["WORLD_SIZE"] = "2"
    said = str(raises(zerod.Deadline, "rank 1", zt.shard, make(), job="half"))
    assert "within 60.0 s" not in said, said


@case
def shard_without_a_timeout_waits_as_the_daemon_says():
    with Cluster(1, wait_ms=2000, rank_wait_ms=4000) as cluster:
        ranks.run(lambda _: waits_as_the_daemon_says(), 1, cluster)


class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs)


def unusual_parameters():
    model = make()
    torch.autograd.graph.register_multi_grad_hook(list(model.blocks[1].up.parameters()), print)
    raises(ValueError, ["blocks.1.up.weight", "register_multi_grad_hook"], zt.shard, model)
    model = make()
    model.head.weight = nn.Parameter(model.head.weight.detach().as_subclass(Logged))
    raises(TypeError, ["head.weight", "Logged"], zt.shard, model)
    for dtype in (torch.int16, torch.int64, torch.float64):
        model = make()
        model.head.weight = nn.Parameter(model.head.weight.detach().to(dtype), requires_grad=False)
        raises(TypeError, ["head.weight", str(dtype), "register_buffer"], zt.shard, model)
    raises(TypeError, ["'weight'", "UninitializedParameter"], zt.shard, nn.LazyLinear(3))
    model = make()
    model.head.weight.data = model.embed.weight.data
    raises(ValueError, ["embed.weight", "head.weight", "share memory", "tie them"], zt.shard, model)
    model.embed.requires_grad_(False)
    model.head.requires_grad_(False)
    zt.shard(model)  # what stays equal may be two parameters


@case
def parameters_that_cannot_be_taken_are_named():
    in_rank(unusual_parameters)


@cases_of(["script", "trace"])
def a_scripted_module_is_named(how):
    def scripted():
        model = make()
        up = model.blocks[1].up
        model.blocks[1].up = torch.jit.script(up) if how == "script" else torch.jit.trace(up, torch.ones(2, WIDTH))
        raises(TypeError, ["'blocks.1.up'", "torch.compile()"], zt.shard, model)
        model.blocks[1].up = up
        model.blocks[1].activation = torch.jit.script(nn.ReLU())  # has no parameters
        zt.shard(model)
        loss_of(model, 0).backward()
    in_rank(scripted)


class Renormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3, max_norm=0.1)

    def forward(self, x):
        return self.embed(x).sum()


def renormed():
    model = zt.shard(Renormed(), stage=3)
    raises(zt.WrittenInPlace, ["embed.weight"], lambda: model(torch.arange(5)).backward())


def gradients_within_full_params():
    model = zt.shard(make(), stage=3)

    def backward():
        with zt.full_params(model):
            loss_of(model, 0).backward()
    raises(zt.GradientsAreElsewhere, ["within full_params", ".grad"], backward)


class InAList(nn.Module):
    """Gives its blocks one tensor in a list, more blocks than the window has places."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Adds() for _ in range(12))

    def forward(self, x):
        return sum(block([x]) for block in self.blocks).sum()


class Adds(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, given):
        return self.linear(given[0])


def held_until_their_gradients():
    model = zt.shard(InAList(), stage=3)
    raises(zerod.TooManyHeld, ["blocks.", "as an argument", "stage 2"], lambda: model(torch.ones(2, 3, requires_grad=True) * 2).backward())


def backward_after_the_step():
    model = make()
    model.blocks[0].requires_grad_(False)
    zt.shard(model, stage=2)
    optimizer = zt.AdamW(model, lr=1e-2)
    old, frozen = loss_of(model, 0), model.blocks[0](torch.ones(2, WIDTH, requires_grad=True))
    loss_of(model, 1).backward()
    optimizer.step()
    raises(RuntimeError, ["from before optimizer.step()", "run forward again"], old.backward)
    optimizer.zero_grad()
    frozen.sum().backward()  # the step has changed none of its parameters


class KeepsAList(nn.Module):
    """Computes with parameters that a list of its own has."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.kept = [self.linear.weight, self.linear.bias]

    def forward(self, x):
        return nn.functional.linear(x, *self.kept).sum()


def computes_with_old_parameters():
    model = KeepsAList()
    calls = []
    model.linear.weight.register_hook(calls.append)
    zt.shard(model)
    raises(RuntimeError, ["'linear.", "before shard()", "attribute"], lambda: model(torch.ones(2, 3)).backward())
    assert not calls, "the hook is the sharded parameter's"
    model.linear(torch.ones(2, 3)).sum().backward()
    assert len(calls) == 1


def left_out_of_its_group():
    model = zt.shard(make(), stage=3)
    optimizer = zt.AdamW(model, lr=1e-2)
    del optimizer.param_groups[0]["params"][-1]
    loss_of(model, 0).backward()
    raises(RuntimeError, ["'head.weight'", "new optimizer", "add_param_group()"], optimizer.step)
    model.zero_grad()
    before = full(model)["head.weight"]
    train(model, zt.AdamW(model, [p for n, p in model.named_parameters() if n != "head.weight"], lr=1e-2), 2)
    assert torch.equal(before, full(model)["head.weight"])


@cases_of([renormed, gradients_within_full_params, held_until_their_gradients, backward_after_the_step,
           computes_with_old_parameters, left_out_of_its_group], "{0.__name__}")
def what_the_package_does_not_do_is_refused(what):
    in_rank(what, nodes=2)  # of a job's only owner fp32 parameters take no place of a window


# ---- errors that name what the user did, and the way out ---------------------------------------


def half_frozen():
    model = make()
    model.blocks[0].requires_grad_(False)
    return model


def frozen_parameters_are_left_out():
    for i, given in enumerate([lambda m: m.parameters(), lambda m: m.named_parameters(),
                               lambda m: [{"params": m.blocks.parameters(), "lr": 2e-2}, {"params": m.head.parameters()}]]):
        plain, model = half_frozen(), zt.shard(half_frozen(), job=f"frozen{i}")
        want = train(plain, torch.optim.AdamW(list(given(plain)), lr=1e-2), 2)
        got = train(model, zt.AdamW(model, given(model), lr=1e-2), 2)
        assert max(abs(a - b) for a, b in zip(want, got)) < 1e-4, (want, got)


def unfreezing():
    model, words = zt.shard(half_frozen()), ["blocks.0.", "requires_grad=True", "after shard()", "add_param_group()"]
    optimizer = zt.AdamW(model)
    model.blocks[0].requires_grad_(True)
    raises(ValueError, words, zt.AdamW, model, model.parameters())
    raises(ValueError, words, optimizer.add_param_group, {"params": model.blocks[0].parameters()})
    raises(ValueError, words, loss_of, model, 0)


def the_order_that_unfreezes():
    """As the error says: train, for a while without a block."""
    for joins in (False, True):
        plain, model = make(), zt.shard(make(), job=f"unfreezes{joins}")
        losses = []
        for m, kind in ((plain, torch.optim.AdamW), (model, zt.AdamW)):
            m.blocks[0].requires_grad_(False)
            trained = [p for p in m.parameters() if p.requires_grad or not joins]
            optimizer = kind(trained, lr=1e-2) if m is plain else kind(m, trained, lr=1e-2)
            losses.append(train(m, optimizer, 2))
            m.blocks[0].requires_grad_(True)
            if joins:
                optimizer.add_param_group({"params": m.blocks[0].parameters()})
            losses[-1] += train(m, optimizer, 2)
        assert max(abs(a - b) for a, b in zip(*losses)) < 1e-4, losses


def two_optimizers():
    model = zt.shard(make())
    first, second = zt.AdamW(model, model.blocks.parameters()), zt.AdamW(model, model.head.parameters())
    loss_of(model, 0).backward()
    raises(RuntimeError, ["param groups", "a job of its own"], first.step)
    second.step()


def a_module_of_two_models():
    model = zt.shard(make(), job="first")
    raises(ValueError, ["'0.weight'", "job 'first'", "'embed.weight'", "nn.ModuleDict"], zt.shard,
           nn.Sequential(model.embed, nn.Linear(WIDTH, 2)), job="second")
    loss_of(model, 0).backward()


def a_layer_that_came_later():
    model = zt.shard(make())
    model.added = nn.Linear(2, 2)
    raises(ValueError, ["'added.weight'", "after shard()", "before shard()"], zt.AdamW, model, model.parameters())


def another_dtype():
    model = zt.shard(make())
    for convert in (lambda m: m.to(torch.bfloat16), lambda m: m.bfloat16()):
        raises(zt.NotFetched, ["'embed.weight'", "torch.float32", "torch.bfloat16", "before shard()", "deepcopy"], convert, model)
        assert convert(copy.deepcopy(model)).head.weight.dtype is torch.bfloat16


def other_embeddings():
    import transformers
    config = transformers.LlamaConfig(vocab_size=11, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
                                      bos_token_id=0, eos_token_id=0)
    model = zt.shard(transformers.AutoModelForCausalLM.from_config(config))
    raises(RuntimeError, ["resize_token_embeddings(12)", "before shard()", "11 rows"], model.resize_token_embeddings, 12)
    raises(RuntimeError, ["before shard()", "11 rows"], model.resize_token_embeddings, 11, pad_to_multiple_of=8)
    assert model.resize_token_embeddings(11) is model.get_input_embeddings()


def complex_parameters():
    model = make()
    model.waves = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    raises(TypeError, ["'waves'", "view_as_real", "view_as_complex"], zt.shard, model)


@cases_of([frozen_parameters_are_left_out, unfreezing, the_order_that_unfreezes, two_optimizers, a_module_of_two_models,
           a_layer_that_came_later, another_dtype, other_embeddings, complex_parameters], "{0.__name__}")
def says_what_was_done(what):
    in_rank(what, nodes=2)


def drops_alone(rank):
    model = zt.shard(make())
    optimizer = zt.AdamW(model)
    loss_of(model, 0).backward()
    said = ""
    try:
        optimizer.step() if rank else optimizer.zero_grad()
    except zerod.Conflict as error:
        said = str(error)
        optimizer.zero_grad() if rank else optimizer.step()
    return said


@cases_of([[0, 0], [0, 1]], "on_nodes_{}")
def zero_grad_on_one_rank_is_named(placement):
    said = "".join(ranks.run(drops_alone, placement, ranks.shared(2)))
    assert "ranks " in said and "zero_grad()" in said and "same calls" in said, said


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x):
        return self.encoder(x, src_key_padding_mask=torch.tensor([[False, False, True, True], [False] * 4]))


def fast_path_of_an_encoder():
    """README: as the plain model, padded places too, within full_params() alone."""
    torch.manual_seed(0)
    plain, x = Encoder().eval(), torch.randn(2, 4, 8)
    with torch.no_grad():
        want = plain(x)
        model = zt.shard(copy.deepcopy(plain))
        with zt.full_params(model):
            assert torch.equal(model(x), want)
        off = (model(x) - want).abs().amax(-1)
    assert off[0, :2].max() < 1e-5 and off[1].max() < 1e-5 and off[0, 2:].min() > 1e-2, off


@case
def the_fast_path_of_an_encoder_needs_full_params():
    in_rank(fast_path_of_an_encoder)


if __name__ == "__main__":
    ranks.main()
