#!/usr/bin/env python3
"""Activation checkpoints in the service: the bits of torch's own checkpointing, what a set of ranks stores,
and what is refused."""
import functools
import itertools
import os
import re
import sys
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from harness import Skip, case, cases_of  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.utils.checkpoint import checkpoint as plain  # noqa: E402

import zerod  # noqa: E402
import zerod.torch as zt  # noqa: E402
from common import needs_checkpoint, raises  # noqa: E402
from gpt import batch_of, make  # noqa: E402
from scene import Scene  # noqa: E402

MIB = 1 << 20
UNIT = 4096  # of a stash below 128 MiB
ROOM = zerod.Stash(MIB)
LAYERS, SIZE = 4, 8
ENTRY = SIZE * 16 * 48 * 4  # an input of a block
assert ENTRY % UNIT == 0


def in_ranks(function, *arguments, n=1, nodes=1):
    """function(rank, *arguments) in each of n ranks."""
    placement = [r * nodes // n for r in range(n)]
    return ranks.run(function, placement, ranks.shared(nodes), arguments=arguments)


def stash_of(model):
    client = model.sharded.client
    return next(j for j in client.query("jobs")["jobs"] if j["job"] == client.job)["stash"]


def values(model):
    with zt.full_params(model):
        return torch.cat([p.detach().flatten() for p in model.parameters()])


def gpt(way, stage=3, stash=ROOM, **options):
    """way: who checkpoints the blocks: nobody, torch or zerod."""
    model = make(layers=LAYERS, recompute="nonreentrant" if way == "torch" else None, **options)
    zt.shard(model, stage, stash=stash)
    if way == "zerod":
        zt.checkpoint_blocks(model, model.blocks)
    return model


# ---- the same bits ----------------------------------------------------------------------


def trained(rank, ways, stage, same_data, stash):
    """The parameters after three steps each way."""
    found = []
    for way in ways:
        client = zerod.connect(f"{os.environ['ZEROD_JOB']}-{way}")
        model = make(layers=LAYERS, dropout=0.1, recompute="nonreentrant" if way == "torch" else None)
        zt.shard(model, stage, client=client, stash=stash)
        if way == "zerod":
            zt.checkpoint_blocks(model, [f"blocks.{i}" for i in range(LAYERS)])
        optimizer = zt.AdamW(model, lr=1e-2)
        for step in range(3):
            zt.manual_seed(1, step, 0 if same_data else rank)
            model(batch_of(step if same_data else 10 * step + rank, SIZE)).backward()
            optimizer.step()
        if way == "zerod":
            assert stash_of(model)["peak"] >= LAYERS * ENTRY, stash_of(model)
        found.append(values(model))
        client.finish(keep=False)
        client.close()
    return found


@cases_of([(stage, n, n) for stage in (1, 2, 3) for n in (1, 2)] + [(3, 2, 1)], "stage_{0[0]}_ranks_{0[1]}_nodes_{0[2]}")
def the_bits_are_those_of_torch(case_):
    """With dropout, so that random states count; without checkpointing too, for torch itself gives that."""
    stage, n, nodes = case_
    for way in in_ranks(trained, ("none", "torch", "zerod"), stage, False, ROOM, n=n, nodes=nodes):
        assert torch.equal(way[0], way[1]) and torch.equal(way[1], way[2])


@cases_of([1, 2], "{}_nodes")
def a_set_has_the_bits_of_torch(nodes):
    stash = zerod.Stash(MIB, ranks=[0, 1], entry_bytes=ENTRY)
    for way in in_ranks(trained, ("torch", "zerod"), 3, True, stash, n=2, nodes=nodes):
        assert torch.equal(*way)


# ---- a drop-in for torch's function ---------------------------------------------------------


class Holder(nn.Module):
    """Calls a function of its own inside the forward of a sharded model."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.inner = nn.Linear(6, 6)
        self.call = None

    def forward(self, x):
        return self.call(self.inner(x).tanh(), self.inner)


def several_outputs(checkpoint, h, inner):
    def function(x, scale, *, shift, more):
        assert scale == 2 and more["name"] == "a"
        y = torch.dropout(inner(x) * scale + more["pair"][0], 0.5, True)
        return y, {"sum": (shift + more["pair"][1]).sin()}, "text"
    y, rest, text = checkpoint(function, h, 2, shift=h * 3, more={"pair": (h.exp(), [h.cos()][0]), "name": "a"})
    assert text == "text"
    return y.sum() + rest["sum"].square().sum()


def autocast(checkpoint, h, inner):
    with torch.autocast("cpu", torch.bfloat16):
        return checkpoint(lambda x: inner(x).relu(), h).float().sum()


def random_not_kept(checkpoint, h, _inner):
    drawn = []

    def function(x):
        drawn.append(torch.rand(()))
        return (x * drawn[-1]).sin()
    out = checkpoint(function, h, preserve_rng_state=False)
    out.register_hook(lambda g: g * torch.manual_seed(9).initial_seed() / 9)  # what is drawn again
    return out.sum()


def settings(checkpoint, h, inner):
    return checkpoint(lambda x: inner(x).sin(), h, determinism_check="none", early_stop=False, debug=False).sum()


def written_in_place(checkpoint, h, inner):
    """The function writes to its input; a copy of the input is written where torch would refuse."""
    given = h.clone() if checkpoint is not None else h
    return checkpoint(lambda x: inner(torch.relu_(x * 1)).sin(), given).sum()


def a_list_is_filled(checkpoint, h, inner):
    """The caller's own list."""
    kept = []

    def function(x, into):
        into.append(1)
        return inner(x).sin()
    out = checkpoint(function, h, kept).sum()
    assert kept == [1], kept
    return out


def strided(checkpoint, h, inner):
    """Not contiguous, expanded and a part of another tensor."""
    def function(a, b, c):
        assert a.stride() == (1, 6), a.stride()
        return (inner(a.t()) + b).sin() * c
    return checkpoint(function, h.t(), (h[:1] * 2).expand(4, 6), (h.repeat(1, 2) * 2)[:, 3:9]).sum()


def nested(checkpoint, h, inner):
    return checkpoint(lambda x: checkpoint(lambda y: inner(y).sin(), x * 2).cos(), h).sum()


def decorated(checkpoint, h, inner):
    return checkpoint(preserve_rng_state=True)(lambda x, *, by: inner(x).sin() * by)(h, by=2).sum()


def one_input_of_several(checkpoint, h, inner):
    x = h
    for _ in range(3):
        x = checkpoint(lambda x, h: inner(x).sin() + h, x, h)
    return x.sum()


def no_gradient(checkpoint, h, inner):
    """Leaves, integers and what needs no gradient."""
    where, leaf = torch.arange(6).flip(0), torch.ones(6, requires_grad=True)
    return checkpoint(lambda x, i, mask, w: (inner(x)[:, i] * mask * w).sin(), h, where, h.detach() > 0, leaf).sum()


WAYS = (several_outputs, autocast, random_not_kept, settings, written_in_place, a_list_is_filled, strided, nested,
        decorated, one_input_of_several, no_gradient)


def both(_rank, way):
    """Loss and gradients by torch and by zerod."""
    model, said = Holder(), []
    for p in model.parameters():
        p.register_hook(lambda g: said[-1].append(g.clone()))
    zt.shard(model, stash=ROOM)
    x = torch.linspace(-1, 1, 24).view(4, 6)
    for checkpoint in (functools.partial(plain, use_reentrant=False), zt.checkpoint):
        said.append([])
        model.call = functools.partial(way, checkpoint)
        torch.manual_seed(5)
        loss = model(x)
        loss.backward()
        said[-1].append(loss.detach())
        model.zero_grad()
    return said[-2:], stash_of(model)


@cases_of(WAYS, "{0.__name__}")
def a_drop_in_for_torch(way):
    (said, stash), = in_ranks(both, way)
    assert len(said[0]) == 3 and all(torch.equal(a, b) for a, b in zip(*said)), said
    assert stash["peak"] > 0 and stash["used"] == 0, stash


def counts(_rank):
    model = Holder()
    zt.shard(model, stash=ROOM)
    x, peaks = torch.ones(4, 6), []
    for way in (nested, one_input_of_several):
        model.call = functools.partial(way, zt.checkpoint)
        loss = model(x)
        peaks.append(stash_of(model)["used"] // UNIT)
        loss.backward()
    return peaks


@case
def what_is_stashed_is_stashed_once():
    """Inputs of inner functions are not, and one input of three functions is one entry: of x three, h being the first."""
    assert in_ranks(counts) == [[1, 3]], in_ranks(counts)


# ---- what is kept, and how long --------------------------------------------------------------


def leaves_the_trainer(_rank, way):
    """How many inputs of blocks are in the trainer's memory after the forward pass."""
    model, inputs = gpt(way), []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _m, a: inputs.append(StorageWeakRef(a[0].untyped_storage())))
    loss = model(batch_of(0, SIZE))
    kept = sum(not s.expired() for s in inputs)
    used = stash_of(model)["used"]
    loss.backward()
    return kept, used, stash_of(model)["used"]


@case
def inputs_leave_the_trainer():
    found = in_ranks(leaves_the_trainer, "torch")
    assert found == [(LAYERS, 0, 0)], found
    found = in_ranks(leaves_the_trainer, "zerod")
    assert found == [(0, LAYERS * ENTRY, 0)], found


def peak(_rank, stash):
    model = gpt("zerod", stash=stash)
    optimizer = zt.AdamW(model)
    for step in range(2):
        model(batch_of(step, SIZE)).backward()
        optimizer.step()
    return stash_of(model)


@cases_of([2, 4], "{}_ranks")
def a_set_stores_each_byte_once(n):
    """All ranks of a set on one node store what one rank alone does."""
    alone = in_ranks(peak, ROOM)[0]["peak"]
    together = in_ranks(peak, zerod.Stash(MIB, ranks=range(n)), n=n)[0]["peak"]
    assert alone == together == LAYERS * ENTRY, (alone, together)


def twice(_rank):
    """Two backward passes through one graph: what is read is read again, and goes after the second."""
    model, used, gradients = make(layers=LAYERS), [], []
    model.blocks[0].up.weight.register_hook(lambda g: gradients.append(g.clone()))
    zt.shard(model, stash=ROOM)
    zt.checkpoint_blocks(model, model.blocks)
    loss = model(batch_of(0, SIZE))
    for last in (False, True):
        loss.backward(retain_graph=not last)
        used.append(stash_of(model)["used"])
    assert torch.equal(*gradients)
    return used


@case
def a_graph_that_is_kept_keeps_its_entries():
    assert in_ranks(twice) == [[LAYERS * ENTRY, 0]]


def interrupted(_rank):
    model = gpt("zerod")
    optimizer, used = zt.AdamW(model, lr=1e-2), []
    handle = model.blocks[1].register_full_backward_hook(broken)
    raises(KeyError, "in the middle", lambda: model(batch_of(0, SIZE)).backward())
    handle.remove()
    optimizer.zero_grad()
    used.append(stash_of(model)["used"])
    model(batch_of(0, SIZE)).backward()
    used.append(stash_of(model)["used"])
    loss = model(batch_of(1, SIZE))  # no backward
    optimizer.step()
    raises(RuntimeError, ["from before optimizer.step()"], loss.backward)
    del loss
    with torch.no_grad():
        model(batch_of(0, SIZE))
    model.eval()
    model(batch_of(0, SIZE))
    used.append(stash_of(model)["used"])
    return used


def broken(*_):
    raise KeyError("in the middle")


@case
def the_stash_is_empty_after_failures():
    found = in_ranks(interrupted)
    assert found == [[0, 0, 0]], found


def killed(stage, kills, steps):
    """With kills, the daemon dies at the step's first call in the first step, at its second in the second, and so on.
    (parameters, aborts told, calls of the last step)"""
    calls, kill_at, last, told = itertools.count(), -1, -1, 0
    with Scene(make(layers=3, dropout=0.1), stage, stash=ROOM) as s:
        zt.checkpoint_blocks(s.model, s.model.blocks)
        optimizer = zt.AdamW(s.model, lr=1e-2)

        def before(_name):
            nonlocal kill_at
            if next(calls) == kill_at:
                kill_at = -1
                s.restart()
        s.watch(before)
        for step in zt.steps(s.model, until=steps, seed=1):
            with step as t:
                if t != last:
                    last, calls, kill_at = t, itertools.count(), t if kills else -1
                s.model(batch_of(t, 4)).backward()
                optimizer.step()
            told += step.aborted
            made = next(calls)
        return values(s.model), told, made


@cases_of([1, 3], "stage_{}")
def a_daemon_dies_at_any_call(stage):
    def run():
        made = killed(stage, False, 2)[2]
        want, told, _ = killed(stage, False, made)
        assert told == 0
        got, told, _ = killed(stage, True, made)
        assert torch.equal(want, got) and 0 < told < made, told
    ranks.alone(run)


# ---- Hugging Face ---------------------------------------------------------------------------


def hugging_face(_rank, frozen):
    from transformers import GPT2Config, GPT2LMHeadModel, logging
    logging.set_verbosity_error()
    found, peaks = [], []
    for way in ("none", "torch", "zerod"):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=61, n_positions=16, n_embd=48, n_layer=3, n_head=4, use_cache=False))
        if frozen:
            model.transformer.wte.weight.requires_grad_(False)
        client = zerod.connect(f"{os.environ['ZEROD_JOB']}-{way}")
        zt.shard(model, client=client, stash=ROOM)
        if way == "torch":
            model.activation_checkpointing_enable()
        elif way == "zerod":
            zt.checkpoint_blocks(model)
        model.train()
        optimizer = zt.AdamW(model, lr=1e-2)
        for step in range(2):
            zt.manual_seed(1, step)
            tokens = batch_of(step, 4)[:, :16]
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
        found.append(values(model))
        peaks.append(stash_of(model)["peak"])
        client.finish(keep=False)
        client.close()
    return found, peaks


@cases_of([False, True], "frozen_embedding_{}")
def a_model_of_hugging_face(frozen):
    (found, peaks), = in_ranks(hugging_face, frozen)
    assert torch.equal(found[0], found[1]) and torch.equal(found[1], found[2])
    assert peaks[:2] == [0, 0] and peaks[2] == 3 * 4 * 16 * 48 * 4, peaks


# ---- refusals -----------------------------------------------------------------------------------


def refused(_rank):
    h = torch.ones(2, 2, requires_grad=True).exp()
    raises(RuntimeError, ["outside", "zerod.torch.shard(model, stash=zerod.Stash(bytes))"], zt.checkpoint, torch.sin, h)
    raises(ValueError, "use_reentrant", zt.checkpoint, torch.sin, h, use_reentrant=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = make(layers=LAYERS)
        raises(TypeError, "shard", zt.checkpoint_blocks, model, model.blocks)
        zt.shard(model)
        raises(RuntimeError, "zerod.torch.shard(model, stash=zerod.Stash(bytes))", zt.checkpoint_blocks, model, model.blocks)
        raises(RuntimeError, "zerod.torch.shard(model, stash=zerod.Stash(bytes))", zt.checkpoint, torch.sin, h)
    model.sharded.client.close()
    with zerod.connect(os.environ["ZEROD_JOB"] + "-more") as client:
        model = make(layers=LAYERS)
        zt.shard(model, client=client, stash=2 * ENTRY)
        raises(TypeError, "name them", zt.checkpoint_blocks, model)
        raises(ValueError, ["ranks=[0, 1]", "[0]"], zt.checkpoint_blocks, model, model.blocks, ranks=[0, 1])
        raises(ValueError, ["where='host'", "'windows'"], zt.checkpoint_blocks, model, model.blocks, where="host")
        raises(TypeError, "no setting speed", zt.checkpoint_blocks, model, model.blocks, speed=1)
        raises(ValueError, "use_reentrant", zt.checkpoint_blocks, model, model.blocks, use_reentrant=True)
        raises(ValueError, "'nothing' is no module", zt.checkpoint_blocks, model, ["nothing"])
        zt.checkpoint_blocks(model, iter(model.blocks), ranks=[0], where="windows")
        raises(ValueError, "'blocks.1' is checkpointed already", zt.checkpoint_blocks, model, ["blocks.1"])
        raises(zerod.Window, [str(2 * ENTRY), str(3 * ENTRY)], model, batch_of(0, SIZE))
        model(batch_of(0, SIZE // 2)).backward()  # goes on with what it has room for


@case
def refusals_say_what_to_do():
    in_ranks(refused)


def differ(rank, stashes, inputs):
    model = gpt("zerod", stash=stashes[rank])
    model(batch_of(rank if inputs else 0, SIZE)).backward()


def said_by_ranks(stashes, inputs):
    """What the ranks of a set raise."""
    cluster = ranks.shared(1)
    with ranks.Ranks(differ, [0, 0], cluster, arguments=(stashes, inputs)) as r:
        r.wait(60, stop=True)
        said = "".join(p.outcome[1] for p in r.processes if p.outcome and p.outcome[0] == "error")
    if cluster[0].job(r.job):
        cluster[0].ctl("drop", r.job)
    return said


@case
def ranks_of_a_set_declare_one_stash():
    said = said_by_ranks([zerod.Stash(MIB, [0, 1]), zerod.Stash(2 * MIB, [0, 1])], False)
    told = dict(re.findall(r"rank (\d)(?: has)? (\d+) bytes", said))
    assert "Conflict" in said and told == {"0": str(MIB), "1": str(2 * MIB)}, said


@case
def ranks_of_a_set_stash_equal_bytes():
    said = said_by_ranks([zerod.Stash(MIB, [0, 1])] * 2, True)
    assert "Conflict" in said and "have different bytes of entry 0" in said, said


if __name__ == "__main__":
    try:
        needs_checkpoint()
    except Skip as why:
        ranks.leave_out(why)
    ranks.main()
