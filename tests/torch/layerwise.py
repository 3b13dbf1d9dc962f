#!/usr/bin/env python3
"""Layer by layer: the bits of plain accumulation, two fetches of a block a step however many micro-batches it has,
and errors that name the block."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from harness import case, cases_of  # noqa: E402

import collections  # noqa: E402
import re  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import zerod  # noqa: E402
import zerod.torch as zt  # noqa: E402
from common import raises  # noqa: E402
from gpt import batch_of, make  # noqa: E402
from net import Net, fetched, in_rank, tokens  # noqa: E402

STEPS, LARGE, STASH = 3, {"layers": 9}, 1 << 20


def accumulate(model, loss_of, batch, parts):
    """Plain accumulation with the random numbers of LayerByLayer."""
    seed = int(torch.empty((), dtype=torch.int64).random_())
    after = torch.get_rng_state()
    losses = []
    for i, part in enumerate(batch.chunk(parts)):
        torch.manual_seed(seed + i)
        with model.no_sync():
            loss = loss_of(model, part)
            loss.backward()
        losses.append(loss.detach())
    torch.set_rng_state(after)
    return torch.stack(losses)


def train(rank, layerwise, options, parts, stage=3, loss_of=None, shard=None, autocast=False, clip=True):
    """Losses and parameters after some steps of a job of its own."""
    def mean(model, part):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return (loss_of or (lambda m, p: m(p)))(model, part) / parts
    torch.set_num_threads(1)
    model = zt.shard(make(**options), stage, **(shard or {}))
    world = model.sharded.world_size
    optimizer = zt.AdamW(model, lr=1e-2)
    layers = zt.LayerByLayer(model, model.blocks, micro_batches=parts)
    losses = []
    for t in range(STEPS):
        torch.manual_seed(100 * t + rank)
        batch = batch_of(t, 8 * world).chunk(world)[rank]
        losses.append(layers.forward_backward(mean, batch) if layerwise else accumulate(model, mean, batch, parts))
        losses.append(torch.rand(1))  # the generator goes on alike
        if clip:
            model.clip_grad_norm_(0.5)
        optimizer.step()
        assert stage < 3 or not fetched(model), fetched(model)
    with zt.full_params(model):
        return torch.cat(losses), {n: p.detach().clone() for n, p in model.named_parameters()}


def same_bits(nodes_of_ranks, *arguments):
    cluster = ranks.shared(1 + max(nodes_of_ranks))
    found = [ranks.run(train, nodes_of_ranks, cluster, arguments=(layerwise, *arguments)) for layerwise in (True, False)]
    for (got, values), (wanted, reference) in zip(*found):
        assert torch.equal(got, wanted), (got, wanted)
        assert values.keys() == reference.keys()
        for name, value in reference.items():
            assert torch.equal(values[name], value), f"{name}: {(values[name] - value).abs().max()}"


@cases_of([1, 2, 4, 8], "{}_micro_batches")
def bits_of_plain_accumulation(parts):
    same_bits([0], LARGE, parts)


@cases_of([([0], {}), ([0, 1], {}), ([0, 0], {"dropout": 0.2}), ([0, 1], {"tied": True})], "{0[0]}_{0[1]}")
def bits_of_plain_accumulation_with_an_eager_service(what):
    """Blocks are updated while others still come; the plain job has no eager groups."""
    nodes, options = what
    with ranks.Cluster(1 + max(nodes), log_level="debug") as cluster:
        found = [ranks.run(train, nodes, cluster, arguments=(eager, {**LARGE, **options}, 2, 3, None, {"eager": eager},
                                                             False, False)) for eager in (True, False)]
        assert all(updated_ahead(d) for d in cluster.daemons), "nothing was updated ahead"
    for (got, values), (wanted, reference) in zip(*found):
        assert torch.equal(got, wanted), (got, wanted)
        for name, value in reference.items():
            assert torch.equal(values[name], value), f"{name}: {(values[name] - value).abs().max()}"


def updated_ahead(daemon):
    return re.findall(r"has updated ahead group '([^']*)'", daemon.log())


@cases_of([[0], [0, 1]], "on_nodes_{}")
def bits_with_dropout(nodes):
    same_bits(nodes, {"dropout": 0.2, **LARGE}, 4)


@cases_of([[0], [0, 1]], "on_nodes_{}")
def bits_with_tied_weights(nodes):
    same_bits(nodes, {"tied": True, "dropout": 0.2}, 4)


@cases_of([1, 2], "{}")
def bits_at_stage(stage):
    same_bits([0], {"dropout": 0.2}, 2, stage)


@case
def bits_in_bf16():
    same_bits([0], {"dtype": torch.bfloat16, "tied": True}, 4)


@case
def bits_under_autocast():
    same_bits([0], {"dropout": 0.2}, 2, 3, None, None, True)


@case
def bits_where_embedding_and_head_are_groups():
    same_bits([0, 1], LARGE, 4, 3, None, {"groups": ["wte", "wpe", "head", "Block"]})


@cases_of([{"dropout": 0.2, **LARGE}, {"tied": True, "dropout": 0.2}, {"dtype": torch.bfloat16}], "{}")
def bits_with_inputs_in_the_stash(options):
    same_bits([0, 1], options, 4, 3, None, {"stash": STASH})


@case
def losses_where_later_blocks_use_what_was_before_the_first():
    def loss_of(model, part):
        x, y = part[:, :-1], part[:, 1:]
        h = first = model.wte(x)
        for block in model.blocks:
            h = block(h) + 0.5 * first
        return F.cross_entropy(model.head(model.ln(h)).flatten(0, 1), y.flatten()) + h.square().mean()

    shard = {"groups": ["wte", "wpe", "ln", "head", "Block"]}
    found = [ranks.run(train, [0], ranks.shared(1), arguments=(layerwise, {}, 4, 3, loss_of, shard))[0]
             for layerwise in (True, False)]
    assert torch.allclose(found[0][0], found[1][0], atol=1e-5), found


# ---- what it costs ----------------------------------------------------------------------


def counted(_rank, parts):
    """Fetches and pushes of each group in a step."""
    model = zt.shard(make(layers=9), prefetch=0)
    zt.AdamW(model)
    layers = zt.LayerByLayer(model, model.blocks, micro_batches=parts)
    layers.forward_backward(lambda m, part: m(part) / parts, batch_of(0, 8))
    model.zero_grad()
    counts, client = collections.Counter(), model.sharded.client
    fetch, push = client.fetch, client.push
    client.fetch = lambda group: counts.update([("fetch", group)]) or fetch(group)
    client.push = lambda group, *more: counts.update([("push", group)]) or push(group, *more)
    layers.forward_backward(lambda m, part: m(part) / parts, batch_of(0, 8))
    return [(unit.name, [(counts["fetch", g.index], counts["push", g.index]) for g in unit.groups])
            for unit in model.sharded.units]


@cases_of([1, 2, 8], "{}_micro_batches")
def a_block_is_fetched_twice_and_pushed_once(parts):
    units, = ranks.run(counted, [0], ranks.shared(1), arguments=(parts,))
    *blocks, last, root = [counts for _, counts in units]
    assert all(counts == [(2, 1)] for counts in blocks), units
    assert last == [(1, 1)], "the last block's backward follows its forward"
    assert root == [(1, 1)], units


def pushed(_rank, tied):
    """The units in the order in which a step pushes them."""
    model = zt.shard(make(layers=9, tied=tied), groups=["wte", "wpe", "head", "Block"])
    zt.AdamW(model)
    layers = zt.LayerByLayer(model, model.blocks, micro_batches=2)
    order, client = [], model.sharded.client
    push, names = client.push, {g.index: u.name for u in model.sharded.units for g in u.groups}
    client.push = lambda group, *more: order.append(names[group]) or push(group, *more)
    layers.forward_backward(lambda m, part: m(part) / 2, batch_of(0, 8))
    return order


@case
def what_is_behind_the_blocks_is_pushed_before_them():
    blocks = [f"blocks.{i}" for i in reversed(range(9))]
    order, = ranks.run(pushed, [0], ranks.shared(1), arguments=(False,))
    assert order == ["head", *blocks, "wte", "wpe", ""], order
    order, = ranks.run(pushed, [0], ranks.shared(1), arguments=(True,))
    assert order == [*blocks, "wpe", ""], "the head's weights are the embedding's, in the group of the model itself"


def live_inputs(_rank, stash):
    """Tensors of the shapes of a block's inner activations and of its input that are there when the last block begins."""
    import gc
    model = zt.shard(make(layers=9), stash=stash)
    zt.AdamW(model)
    layers = zt.LayerByLayer(model, model.blocks, micro_batches=2)
    seen = []

    def look(*_):
        gc.collect()
        tensors = [t for t in gc.get_objects() if isinstance(t, torch.Tensor)]
        seen.append(tuple(len({t.untyped_storage().data_ptr() for t in tensors if t.shape == (4, 16, width)})
                          for width in (192, 48)))
    model.blocks[8].ln1.register_forward_pre_hook(look)
    layers.forward_backward(lambda m, part: m(part) / 2, batch_of(0, 8))
    return seen


@cases_of([None, STASH], "{}")
def inner_activations_of_blocks_before_are_not_kept(stash):
    """Nor their inputs, if they are in the stash: each micro-batch has those of the last block and of the one before."""
    seen, = ranks.run(live_inputs, [0], ranks.shared(1), arguments=(stash,))
    assert seen and {inner for inner, _ in seen} == {0}, seen
    inputs = {inputs for _, inputs in seen}
    assert max(inputs) <= 4 if stash else min(inputs) >= 2 * 8, seen


# ---- what goes wrong ----------------------------------------------------------------------


class Odd(nn.Module):
    """A model whose blocks are called in odd ways."""

    def __init__(self, way):
        super().__init__()
        self.way = way
        self.embed = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        h = self.embed(x)
        for i, block in enumerate(self.blocks):
            if self.way == "skips" and i == 1 and int(x[0, 0]) % 2:
                continue
            after = block(h)
            if self.way == "in place" and i == 1:
                h.mul_(2)
            if self.way == "raises" and i == 2 and int(x[0, 0]) == 1:
                raise KeyError("of the model's own")
            h = after
        return h.square().mean()


def odd(way, kind, *words):
    model = zt.shard(Odd(way), groups=nn.Linear)
    optimizer = zt.AdamW(model)
    layers = zt.LayerByLayer(model, model.blocks, micro_batches=2)
    raises(kind, words, layers.forward_backward, lambda m, part: m(part), torch.tensor([[0, 2], [1, 3]]))
    assert not fetched(model) and model.sharded.hooks.depth == 0 and all(u.depth == 0 for u in model.sharded.units)
    model.zero_grad()
    model.way = ""
    layers.forward_backward(lambda m, part: m(part), torch.tensor([[0, 2], [1, 3]]))  # and then all is well
    optimizer.step()
    assert model.sharded.version == 1


@case
def micro_batches_that_call_different_blocks():
    in_rank(odd, "skips", RuntimeError, "micro-batch 1 calls block 'blocks.2'", "micro-batch 0 calls block 'blocks.1'")


class Grows(nn.Linear):
    """Fails when it runs again with what it has changed itself."""

    def forward(self, x, cache):  # pylint: disable=arguments-differ
        cache.append(x.shape)
        return super().forward(x.view(cache[0] if len(cache) == 1 else (-1, 3)))


def grows():
    model = nn.Sequential(nn.Linear(8, 8), Grows(8, 8))
    zt.shard(model, groups=[nn.Linear, Grows])
    layers = zt.LayerByLayer(model, model, micro_batches=1)
    cache = collections.UserList()
    error = raises(RuntimeError, [], layers.forward_backward,
                   lambda m, part: m[1](m[0](part), cache).square().mean(), torch.ones(1, 8))
    assert any("block '1'" in note and "cache" in note for note in error.__notes__), error.__notes__


@case
def block_that_changes_an_argument():
    in_rank(grows)


@case
def input_that_is_changed_after_the_call():
    in_rank(odd, "in place", RuntimeError, "block 'blocks.1'", "changed in place")


@case
def error_of_the_model():
    in_rank(odd, "raises", KeyError, "of the model's own")


def refused():
    plain = Net()
    raises(TypeError, "not sharded", zt.LayerByLayer, plain, plain.blocks, 2)
    model = zt.shard(Net(), groups="Block")
    raises(ValueError, ["'blocks.0.up'", "groups="], zt.LayerByLayer, model, [model.blocks[0].up], 2)
    raises(ValueError, "micro_batches", zt.LayerByLayer, model, model.blocks, 0)
    raises(ValueError, "no module", zt.LayerByLayer, model, [], 2)
    layers = zt.LayerByLayer(model, model.blocks, micro_batches=3)
    raises(ValueError, ["4", "3 micro-batches"], layers.forward_backward, lambda m, p: m(p).mean(), tokens(0))
    raises(ValueError, "first dimension", layers.forward_backward, lambda m, p: m(p).mean(), (tokens(0), tokens(0)[:2]))
    layers = zt.LayerByLayer(model, model.blocks, micro_batches=2)
    raises(TypeError, "scalar", layers.forward_backward, lambda m, p: m(p), tokens(0))
    client = model.sharded.client
    client.close()


@case
def what_cannot_be_done_is_refused():
    in_rank(refused)


def refused_to_eager():
    plain = zt.shard(Net(), groups="Block")
    raises(ValueError, "shard(model, eager=True)", zt.LayerByLayer, plain, plain.blocks, 2, eager=True)
    plain.sharded.client.close()
    model = zt.shard(Net(), groups="Block", eager=True, job="eager")
    layers = zt.LayerByLayer(model, model.blocks, micro_batches=2)

    def run():
        return layers.forward_backward(lambda m, p: m(p).mean(), tokens(0))
    raises(RuntimeError, "make the optimizer before", run)
    optimizer = zt.AdamW(model, lr=1e-2)
    run()
    raises(RuntimeError, "one forward_backward()", run)
    raises(RuntimeError, "without clipping", model.clip_grad_norm_, 1.0)
    assert model.clip_grad_norm_(float("inf")) > 0
    optimizer.param_groups[0]["lr"] = 2e-2
    raises(zerod.Conflict, ["lr", "zero_ahead"], optimizer.step)
    optimizer.param_groups[0]["lr"] = 1e-2
    optimizer.step()
    scaler = zt.GradScaler(optimizer)
    scaler.scale(torch.ones(()))
    raises(RuntimeError, "GradScaler", run)
    model.sharded.pending.loss_scale = 1.0
    run()
    model.zero_grad()  # gives the gradients up
    run()
    optimizer.step()
    assert model.sharded.version == 2


@case
def what_an_eager_service_cannot_do_is_refused():
    in_rank(refused_to_eager)


def nested():
    model = zt.shard(Net(), groups=["Block", nn.Linear])
    raises(ValueError, ["'blocks.0'", "'blocks.0.up'"], zt.LayerByLayer, model, model.blocks, 2)


@case
def block_with_a_group_inside():
    in_rank(nested)


def calls_another():
    model = make(layers=2)
    model.blocks[0].other = [model.blocks[1]]
    first = type(model.blocks[0]).forward
    model.blocks[0].forward = lambda x: model.blocks[1](first(model.blocks[0], x))
    zt.shard(model)
    layers = zt.LayerByLayer(model, model.blocks, micro_batches=2)
    raises(RuntimeError, ["'blocks.0' calls block 'blocks.1'"], layers.forward_backward, lambda m, p: m(p), batch_of(0))


@case
def block_that_calls_a_block():
    in_rank(calls_another)


# ---- models of others ---------------------------------------------------------------------


def family(name):
    import transformers
    tiny = {"vocab_size": 61, "dropout_rate": 0.0}
    if name == "gpt2":
        config = transformers.GPT2Config(n_layer=4, n_embd=32, n_head=4, vocab_size=61, n_positions=32)
        return transformers.GPT2LMHeadModel(config), lambda m: m.transformer.h
    if name == "t5":
        config = transformers.T5Config(num_layers=2, d_model=32, d_ff=64, num_heads=4, d_kv=8, decoder_start_token_id=0,
                                       **tiny)
        return (transformers.T5ForConditionalGeneration(config),
                lambda m: [*m.encoder.block, *m.decoder.block])
    config = transformers.AlbertConfig(num_hidden_layers=4, hidden_size=32, intermediate_size=64, embedding_size=16,
                                       num_attention_heads=4, vocab_size=61, max_position_embeddings=32)
    return transformers.AlbertForMaskedLM(config), lambda m: m.albert.encoder.albert_layer_groups


def train_family(_rank, layerwise, name):
    torch.manual_seed(0)
    model, blocks_of = family(name)
    chosen = list(blocks_of(model))
    zt.shard(model, groups=lambda _, m: any(m is b for b in chosen))
    optimizer = zt.AdamW(model, lr=1e-2)
    layers = zt.LayerByLayer(model, blocks_of(model), micro_batches=2)

    def loss_of(m, part):
        ids = part[:, :-1].contiguous()
        return m(input_ids=ids, labels=ids, **({} if name == "albert" else {"use_cache": False})).loss / 2
    losses = []
    for t in range(STEPS):
        torch.manual_seed(t)
        batch = batch_of(t, 4)
        losses.append(layers.forward_backward(loss_of, batch) if layerwise else accumulate(model, loss_of, batch, 2))
        optimizer.step()
    return torch.cat(losses)


@cases_of(["gpt2", "t5", "albert"])
def hugging_face(name):
    got, wanted = (ranks.run(train_family, [0], ranks.shared(1), arguments=(layerwise, name))[0]
                   for layerwise in (True, False))
    assert torch.allclose(got, wanted, rtol=1e-5), (got, wanted)


ranks.main()
