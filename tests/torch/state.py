#!/usr/bin/env python3
"""What a sharded model's values look like from outside: full_params(), state_dict(), load_state_dict();
and where they come from if the model was built on the meta device."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402
from harness import Skip, case, cases_of  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402

from common import raises, zero  # noqa: E402
from gpt import batch_of, make  # noqa: E402


def same(mine, theirs):
    assert list(mine) == list(theirs)
    for name, value in theirs.items():
        assert mine[name].dtype is value.dtype and torch.equal(mine[name], value), name


def near(model, plain):
    """Both compute the same."""
    assert torch.allclose(model(batch_of(1)), plain(batch_of(1)), rtol=1e-5), "forward has other values"


def count_calls(target, name):
    """Arguments of each call of an object's method from now on."""
    calls, method = [], getattr(target, name)
    setattr(target, name, lambda *a, **k: calls.append(a) or method(*a, **k))
    return calls


class Odd(nn.Module):
    """A tied weight, buffers of both kinds, an empty parameter, a scalar."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(6)
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("table", torch.arange(3), persistent=False)

    def forward(self, x):
        return self.norm(self.second(self.first(x))) * self.scale


def odd(seed=0):
    torch.manual_seed(seed)
    return Odd()


# ---- full_params() -----------------------------------------------------------------


@cases_of([1, 2, 3])
def full_parameters_are_read(stage):
    def run(_):
        wanted = make(tied=True).state_dict()
        zt, model = zero(make(tied=True), stage)
        reads = count_calls(model.sharded, "read")
        model(batch_of(0)).sum()
        with zt.full_params(model):
            same({n: p.data for n, p in model.named_parameters(remove_duplicate=False)}, wanted)
            assert type(model.wte.weight) is nn.Parameter and model.wte.weight is model.head.weight
        assert len(reads) == len(wanted) - 1, "the tied one is read once"
        with zt.full_params(model.blocks[1].up):
            assert torch.equal(model.blocks[1].up.weight, wanted["blocks.1.up.weight"])
            raises(zt.NotFetched, ["blocks.0.up.weight"], model.blocks[0].up.weight.share_memory_)
        raises(zt.NotFetched, ["blocks.1.up.weight"], model.blocks[1].up.weight.share_memory_)
        raises(TypeError, ["not part of a sharded"], zt.full_params(make()).__enter__)
        model(batch_of(0)).backward()
    ranks.run(run, 1, ranks.shared())


@cases_of([1, 3])
def only_what_changed_is_written(stage):
    def run(rank):
        zt, model = zero(make(), stage)
        model(batch_of(0)).sum()
        before = model.state_dict()
        model.sharded.barrier()  # no rank writes before all have read
        writes = count_calls(model.sharded, "write")
        block = model.blocks[0]
        if rank == 1:
            with zt.full_params(model, write=True), torch.no_grad():
                block.up.weight.add_(1)
                block.down.weight.data.mul_(2)  # a write that torch does not count
                block.ln1.weight = nn.Parameter(torch.full((48,), 3.0))
            plain = make()
            plain.load_state_dict(model.state_dict())
            near(model, plain)
        with zt.full_params(model), torch.no_grad():
            model.head.weight.zero_()  # without write=True
        model.sharded.barrier()
        after = model.state_dict()
        assert torch.equal(after["blocks.0.up.weight"], before["blocks.0.up.weight"] + 1)
        assert torch.equal(after["blocks.0.down.weight"], before["blocks.0.down.weight"] * 2)
        assert (after["blocks.0.ln1.weight"] == 3).all()
        changed = {n for n in after if not torch.equal(after[n], before[n])}
        assert len(changed) == 3 and len(writes) == 3 * rank, (changed, len(writes))
        plain = make()
        plain.load_state_dict(after)
        near(model, plain)
    ranks.run(run, 2, ranks.shared())


@case
def contexts_nest():
    def run(_):
        zt, model = zero(make())
        head, first = model.head, model.state_dict()["head.weight"]
        writes = count_calls(model.sharded, "write")
        with zt.full_params(model, write=True), torch.no_grad():
            outer = head.weight
            with zt.full_params(head, write=True):
                assert head.weight is outer
                head.weight.add_(1)
            assert len(writes) == 1 and head.weight is outer
            with zt.full_params(head):
                pass
            assert head.weight is outer, "an inner context took the outer's away"
        assert len(writes) == 1, "written twice"
        assert torch.equal(model.state_dict()["head.weight"], first + 1)
        raises(zt.NotFetched, ["head.weight"], head.weight.share_memory_)
    ranks.run(run, 1, ranks.shared())


@case
def an_exception_writes_nothing():
    def run(_):
        zt, model = zero(make())
        before = model.state_dict()

        def fail():
            with zt.full_params(model, write=True), torch.no_grad():
                model.head.weight.zero_()
                raise KeyError("user's")
        raises(KeyError, ["user's"], fail)

        def reshape():
            with zt.full_params(model, write=True):
                model.head.weight = nn.Parameter(torch.zeros(2, 2))
        raises(ValueError, ["head.weight", "(2, 2)"], reshape)
        same(model.state_dict(), before)
        model(batch_of(0)).backward()
        raises(RuntimeError, ["between steps"], zt.full_params(model, write=True).__enter__)
        with zt.full_params(model):
            assert torch.equal(model.head.weight, before["head.weight"])
    ranks.run(run, 1, ranks.shared())


@case
def one_rank_alone_reads():
    def run(rank):
        zt, model = zero(make())
        wanted = make().state_dict()
        if rank == 0:
            with zt.full_params(model.blocks):
                assert torch.equal(model.blocks[0].up.weight, wanted["blocks.0.up.weight"])
            same(model.state_dict(), wanted)
        zt.AdamW(model).step()
    ranks.run(run, [0, 1], ranks.shared(2))


@case
def odd_parameters_are_whole():
    def run(_):
        zt, model = zero(odd())
        with zt.full_params(model, write=True), torch.no_grad():
            assert model.empty.shape == (0, 4) and model.scale.item() == 2
            model.scale.fill_(5)
        same(model.state_dict(), {**odd().state_dict(), "scale": torch.tensor(5.0)})
        model(torch.randn(4, 6)).sum().backward()
    ranks.run(run, 1, ranks.shared())


# ---- state_dict(), load_state_dict() -----------------------------------------------


@cases_of([torch.float32, torch.bfloat16, torch.float16])
def state_dict_is_torchs(dtype):
    def run(_):
        plain = make(tied=True, dtype=dtype)
        _, model = zero(make(tied=True, dtype=dtype))
        for _ in range(2):
            state = model.state_dict()
            same(state, plain.state_dict())
            assert state["wte.weight"].data_ptr() == state["head.weight"].data_ptr(), "tied"
            assert not any(v.requires_grad for v in state.values())
        assert state._metadata == plain.state_dict()._metadata
        same(model.blocks[0].state_dict(prefix="x."), plain.blocks[0].state_dict(prefix="x."))
        assert model.head.state_dict(keep_vars=True)["weight"].requires_grad
        state["head.weight"].zero_()
        same(model.state_dict(), plain.state_dict())
    ranks.run(run, 1, ranks.shared())


@case
def a_state_dict_of_the_models_own_is_called():
    """The recipe of peft: the model saves less than it has."""
    def run(_):
        model = odd()
        whole = model.state_dict
        model.state_dict = lambda: {n: t for n, t in whole().items() if "norm" in n}
        wanted = {n: t.clone() for n, t in model.state_dict().items()}
        same(zero(model)[1].state_dict(), wanted)
    ranks.run(run, 1, ranks.shared())


@case
def buffers_stay_each_ranks():
    def run(rank):
        _, model = zero(odd())
        model(torch.full((4, 6), float(rank)) + torch.arange(24).view(4, 6)).sum()
        state = model.state_dict()
        assert "table" not in state and state["norm.num_batches_tracked"] == 1
        model.load_state_dict(odd(3).state_dict())
        same(model.state_dict(), odd(3).state_dict())
    ranks.run(run, 2, ranks.shared())


@case
def every_rank_loads():
    def run(rank):
        zt, model = zero(make(), rank % 2 + 2)
        model(batch_of(rank))
        writes, meetings = [], count_calls(model.sharded, "barrier")
        write = model.sharded.write
        model.sharded.write = lambda *a: writes.append(len(meetings)) or write(*a)
        wanted = make(5).state_dict()
        assert str(model.load_state_dict(wanted)) == "<All keys matched successfully>"
        assert set(writes) == ({1} if rank == 0 else set()), "written before or after all have met"
        assert len(meetings) == 2
        near(model, make(5))
        same(model.state_dict(), wanted)
        model.blocks[1].load_state_dict(make(6).blocks[1].state_dict())
        assert torch.equal(model.state_dict()["blocks.1.up.bias"], make(6).state_dict()["blocks.1.up.bias"])
        model.load_state_dict({n: v.to(torch.bfloat16) for n, v in wanted.items()}, assign=True)
        same(model.state_dict(), {n: v.to(torch.bfloat16).float() for n, v in wanted.items()})
        zt.AdamW(model, lr=1e-3)
    ranks.run(run, [0, 0, 1], ranks.shared(2))


@case
def misfits_are_told_as_torch_tells_them():
    def run(_):
        plain = make()
        zt, model = zero(make())
        bad = dict(make(5).state_dict())
        bad["extra.weight"] = bad.pop("blocks.0.up.weight")
        bad["head.weight"] = torch.zeros(2, 2)
        theirs = raises(RuntimeError, ["extra.weight", "size mismatch"], plain.load_state_dict, dict(bad))
        mine = raises(RuntimeError, [], model.load_state_dict, dict(bad))
        assert str(mine) == str(theirs), f"{mine}\n{theirs}"
        del bad["head.weight"]
        said = model.load_state_dict(bad, strict=False)
        assert said.missing_keys == ["blocks.0.up.weight", "head.weight"]
        assert said.unexpected_keys == ["extra.weight"]
        with zt.full_params(model):
            raises(RuntimeError, ["within full_params"], model.load_state_dict, bad)
        model(batch_of(0)).backward()
        raises(RuntimeError, ["between steps"], model.load_state_dict, bad, strict=False)
    ranks.run(run, 1, ranks.shared())


@case
def modules_own_ways_of_loading_work():
    class Renamed(nn.Linear):
        """Was saved under another name, and adds to what it has."""

        def _load_from_state_dict(self, state_dict, prefix, *rest):
            old = self.weight.detach().clone()
            state_dict[prefix + "weight"] = state_dict.pop(prefix + "kernel")
            super()._load_from_state_dict(state_dict, prefix, *rest)
            with torch.no_grad():
                self.weight.add_(old)

        def _save_to_state_dict(self, destination, prefix, keep_vars):
            super()._save_to_state_dict(destination, prefix, keep_vars)
            destination[prefix + "kernel"] = destination.pop(prefix + "weight")

    def run(_):
        torch.manual_seed(0)
        _, model = zero(nn.Sequential(Renamed(3, 3), nn.Linear(3, 3)))
        model[1].register_load_state_dict_pre_hook(
            lambda module, state, prefix, *_: state.update({prefix + "bias": torch.ones(3)}))
        before = model.state_dict()
        assert "0.kernel" in before and "0.weight" not in before
        model.load_state_dict(before)
        after = model.state_dict()
        assert torch.equal(after["0.kernel"], before["0.kernel"] * 2) and (after["1.bias"] == 1).all()
    ranks.run(run, 1, ranks.shared())


# ---- models on the meta device -----------------------------------------------------


def on_meta(build):
    with torch.device("meta"):
        return build()


@case
def first_values_depend_on_the_seed_alone():
    def run(rank, stage, groups, seed, path=None):
        def seed_gpus(_seed):
            raise AssertionError("the generators of GPUs are the caller's")
        torch.manual_seed(seed)
        torch.cuda.manual_seed_all = seed_gpus  # in this process, which a rank is
        model = on_meta(lambda: nn.Sequential(*(nn.Sequential(nn.Linear(9, 9), nn.BatchNorm1d(9)) for _ in range(3))))
        _, model = zero(model, stage, groups=groups)
        state, drawn = model.state_dict(), torch.rand(3)
        assert not any(v.is_meta or v.isnan().any() for v in state.values())
        assert not torch.equal(state["0.0.weight"], state["1.0.weight"]), "blocks begin alike"
        assert (state["2.1.running_var"] == 1).all() and (state["2.1.weight"] == 1).all()
        bound = state["0.0.weight"].abs().max()
        assert 0.3 < bound * 3 < 1.01, f"not reset_parameters()'s: {bound}"
        return [v.tolist() for v in (*state.values(), drawn)]
    one = ranks.run(run, 1, ranks.shared(), arguments=(3, None, 1))
    two = ranks.run(run, [0, 1], ranks.shared(2), arguments=(2, ["0", "2"], 1))
    other = ranks.run(run, 1, ranks.shared(), arguments=(3, None, 2))
    assert one[0] == two[0] == two[1] != other[0]


class NoReset(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(5))


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", torch.arange(4.0), persistent=False)


class Forgets(nn.Linear):
    def reset_parameters(self):
        nn.init.ones_(self.weight)


@case
def who_cannot_be_initialised_is_named():
    def run(_):
        import zerod.torch as zt
        model = on_meta(lambda: nn.ModuleDict({"a": NoReset(), "b": nn.Linear(2, 2), "c": Rotary()}))
        raises(ValueError, ["a (NoReset)", "c (Rotary)", "init_fn"], zt.shard, model)
    ranks.run(run, 1, ranks.shared())


@case
def what_stays_unset_is_named():
    def run(_):
        import zerod.torch as zt
        model = on_meta(lambda: nn.Sequential(Forgets(2, 2), nn.ModuleDict({"b": Forgets(2, 2)})))
        raises(ValueError, ["'0.bias'", "'1.b.bias'"], zt.shard, model)
    ranks.run(run, 1, ranks.shared())


@case
def init_fn_fills_parameters_and_buffers():
    def fill(module):
        if isinstance(module, NoReset):
            module.gain.data.fill_(7)
        elif isinstance(module, Rotary):
            module.inv_freq.copy_(torch.arange(4.0) + 1)

    def run(_):
        model = on_meta(lambda: nn.ModuleDict({"a": NoReset(), "c": Rotary(), "d": nn.Linear(4, 4)}))
        real = nn.Linear(4, 4)
        model["d"] = real
        wanted = {n: v.clone() for n, v in real.state_dict().items()}
        _, model = zero(model, init_fn=fill)
        assert model["c"].inv_freq.tolist() == [1, 2, 3, 4]
        state = model.state_dict()
        assert (state["a.gain"] == 7).all() and torch.equal(state["d.weight"], wanted["weight"])
    ranks.run(run, 2, ranks.shared())


@case
def hugging_face_models_have_their_own_values():
    import transformers
    if int(transformers.__version__.partition(".")[0]) < 5:
        raise Skip("transformers 4 does not initialise the buffers of a GPT-2 on the meta device, which shard() refuses by name")

    def run(_):
        import zerod
        config = transformers.GPT2Config(n_layer=3, n_embd=64, n_head=2, vocab_size=97, n_positions=32,
                                         bos_token_id=0, eos_token_id=0)
        zt, model = zero(on_meta(lambda: transformers.GPT2LMHeadModel(config)))
        plain = transformers.GPT2LMHeadModel(config).state_dict()
        state = model.state_dict()
        assert list(state) == list(plain)
        for name, value in plain.items():
            mine = state[name].std().item()
            assert abs(mine - value.std().item()) <= 0.2 * value.std().item() + 1e-9, (name, mine, value.std())
        assert state["transformer.wte.weight"].data_ptr() == state["lm_head.weight"].data_ptr()
        config = transformers.LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                          num_attention_heads=2, vocab_size=50, max_position_embeddings=16)
        zt, model = zero(on_meta(lambda: transformers.LlamaForCausalLM(config)), client=zerod.connect("llama"))
        tokens = torch.arange(12).view(2, 6)
        plain = transformers.LlamaForCausalLM(config)
        assert torch.equal(plain.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)
        plain.load_state_dict(model.state_dict())
        assert torch.allclose(plain(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-5)
    ranks.run(run, 1, ranks.shared())


if __name__ == "__main__":
    ranks.main()
