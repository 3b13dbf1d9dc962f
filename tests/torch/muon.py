#!/usr/bin/env python3
"""zerod.torch.Muon against torch.optim.Muon for matrices and torch.optim.AdamW for the rest, on the same model and data.

Newton-Schulz computes in bf16, and the service adds products up in another order than torch.  So directions differ by
about half a percent, and learning rates are such that parameters then agree to NEAR.
"""
import copy
import itertools
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from harness import Skip, case, cases_of  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402

import zerod.torch as zt  # noqa: E402
from common import raises  # noqa: E402
from gpt import batch_of, make  # noqa: E402

if not hasattr(torch.optim, "Muon"):
    ranks.leave_out(f"PyTorch {torch.__version__} has no Muon")

NEAR = 4e-4
LR, ADAMW = 3e-3, {"lr": 1e-3, "weight_decay": 0.1}
STEPS = 4


def distance(a, b):
    """Norm-wise, of a from b."""
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


def near(mine, theirs, most=NEAR):
    """Two state_dicts, without the keys' biases: their gradient is rounding errors of 0, which AdamW makes large."""
    assert list(mine) == list(theirs)
    for name, value in theirs.items():
        far = distance(mine[name], value)
        assert name.endswith("qkv.bias") or far < most, f"{name}: {far}"


class Torch:
    """The model under torch's two optimizers."""

    def __init__(self, split, model=None, **muon):
        self.model = model or make()
        named = dict(self.model.named_parameters())
        self.muon = torch.optim.Muon([named[n] for n in split.matrices], **{"lr": LR, **muon})
        self.adamw = torch.optim.AdamW([named[n] for n in split.elementwise], **ADAMW)

    def step(self, t, clip=None, scale=1.0):
        self.model.zero_grad()
        (self.model(batch_of(t)) * scale).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip) if clip else None
        self.muon.step()
        self.adamw.step()
        return norm


class Zerod:
    """The model, sharded; micro: the number of backward passes of a step."""

    def __init__(self, rank=0, world=1, micro=1, stage=3, model=None, optimizer="muon", muon=None, **options):
        self.rank, self.world, self.micro = rank, world, micro
        self.model = zt.shard(model or make(), stage, optimizer=optimizer, **options)
        self.optimizer = zt.Muon(self.model, **{"lr": LR, "adamw": ADAMW, **(muon or {})})

    def step(self, t, clip=None, update=None):
        mine = batch_of(t).chunk(self.world)[self.rank]
        for part in mine.chunk(self.micro):
            (self.model(part) / self.micro).backward()
        norm = self.model.clip_grad_norm_(clip) if clip else None
        (update or self.optimizer.step)()
        return norm


# ---- arithmetic ----------------------------------------------------------------------


@cases_of(itertools.product((1, 2, 3), (1, 2, 8)), "stage{0[0]}_micro{0[1]}")
def trains_as_torch(what):
    stage, micro = what

    def run(_):
        split = zt.muon_split(make())
        mine, theirs = Zerod(stage=stage, micro=micro), Torch(split)
        for t in range(STEPS):
            mine.step(t)
            theirs.step(t)
        near(mine.model.state_dict(), theirs.model.state_dict())
        buffers = dict(zip(split.matrices, theirs.muon.state_dict()["state"].values()))
        for param in mine.model.sharded.params:
            if param.matrices:
                buffer = mine.model.sharded.read(param, "momentum_buffer").view(param.shape)
                assert distance(buffer, buffers[param.name]["momentum_buffer"]) < 1e-3, param.name
    ranks.run(run, 1, ranks.shared())


@cases_of(itertools.product((1, 2, 3), (1, 4)), "stage{0[0]}_micro{0[1]}")
def trains_as_torch_on_ranks_of_three_nodes(what):
    """Blocks are wide enough to have several owners each."""
    stage, micro = what

    def run(rank):
        mine, theirs = Zerod(rank, 2, micro, stage, model=make(width=192)), make(width=192)
        theirs = Torch(zt.muon_split(theirs), theirs)
        for t in range(STEPS):
            norms = mine.step(t, 0.5), theirs.step(t, 0.5)
            assert distance(*norms) < 1e-4, norms
        near(mine.model.state_dict(), theirs.model.state_dict())
    ranks.run(run, [0, 2], ranks.shared(3))


ARGUMENTS = {
    "original": {"adjust_lr_fn": "original", "nesterov": False},
    "as_adamw": {"adjust_lr_fn": "match_rms_adamw", "lr": 1e-3},
    "unclamped": {"adjust_lr_fn": "spectral_unclamped", "weight_decay": 0.0},
    "no_momentum": {"momentum": 0.0, "ns_steps": 1},
    "another_polynomial": {"ns_coefficients": (2.0, -1.5, 0.5), "ns_steps": 8, "eps": 1e-3},
    "no_steps": {"ns_steps": 0},
}


@cases_of(ARGUMENTS)
def arguments_are_torchs(name):
    def run(_):
        mine, theirs = Zerod(muon=ARGUMENTS[name]), Torch(zt.muon_split(make()), **ARGUMENTS[name])
        for t in range(STEPS):
            mine.step(t)
            theirs.step(t)
        near(mine.model.state_dict(), theirs.model.state_dict())
    ranks.run(run, 1, ranks.shared())


@case
def a_step_has_the_direction_of_the_sum_of_its_micro_batches():
    """Two of three passes point away from the sum of all three, which is the gradient of one pass."""
    def run(_):
        states = []
        for job, scales in (("one", [1.0]), ("several", [3.0, -1.0, -1.0])):
            mine = Zerod(job=f"{os.environ['ZEROD_JOB']}-{job}", muon={"lr": 5 * LR})
            for scale in scales:
                (mine.model(batch_of(0)) * scale).backward()
            mine.optimizer.step()
            states.append(mine.model.state_dict())
            zt.drop(mine.model.sharded.client.job)
        near(*states)
        assert distance(states[0]["blocks.0.up.weight"], make().state_dict()["blocks.0.up.weight"]) > 10 * NEAR
    ranks.run(run, 1, ranks.shared())


@case
def the_gradient_is_clipped_before_its_momentum():
    """So a step that is clipped to next to nothing moves matrices as far as one that is not, and its gradient counts for
    next to nothing in later steps."""
    def run(_):
        split = zt.muon_split(make())
        mine, theirs, free = Zerod(), Torch(split), Torch(split)
        limit = 1e-3
        for t in range(STEPS):
            clip = limit if t == 0 else None
            norm = mine.step(t, clip)
            wanted = theirs.step(t, clip)
            free.step(t)
            if t == 0:
                assert distance(norm, wanted) < 1e-4, (norm, wanted)
                for param in mine.model.sharded.params:
                    if param.matrices:
                        near({param.name: param.placeholder.full_tensor()}, {param.name: free.model.get_parameter(param.name)})
        near(mine.model.state_dict(), theirs.model.state_dict())
        weight = mine.model.state_dict()["blocks.0.up.weight"]
        assert distance(weight, free.model.state_dict()["blocks.0.up.weight"]) > 2 * NEAR
    ranks.run(run, 1, ranks.shared())


class Fused(nn.Module):
    """A query of four rows, a key and a value of two each, and two experts; apart: the same as matrices of their own."""

    def __init__(self, apart):
        super().__init__()
        draw = torch.Generator().manual_seed(3)
        qkv, experts = torch.randn(8, 6, generator=draw) / 3, torch.randn(2, 5, 8, generator=draw) / 3
        self.apart = apart
        self.qkv = nn.ParameterDict({f"weight{i}": nn.Parameter(w) for i, w in enumerate(
            qkv.split([4, 2, 2]) if apart else [qkv])})
        self.experts = nn.ParameterDict({f"weight{i}": nn.Parameter(w) for i, w in enumerate(experts if apart else [experts])})

    def forward(self, x):
        y = x @ (torch.cat(list(self.qkv.values())) if self.apart else self.qkv["weight0"]).T
        experts = self.experts.values() if self.apart else self.experts["weight0"]
        return sum((y @ e.T).tanh().sum() * (i + 1) for i, e in enumerate(experts)) / 10


@case
def fused_weights_and_stacks_are_updated_matrix_by_matrix():
    def run(_):
        model = Fused(apart=False)
        split = zt.muon_split(model, matrices=["experts.*"], split={"qkv.*": [4, 2, 2]})
        assert split == ({"qkv.weight0": [4, 2, 2], "experts.weight0": [5]}, [])
        model = zt.shard(model, optimizer=split)
        optimizer = zt.Muon(model, lr=LR)
        theirs = Fused(apart=True)
        reference = torch.optim.Muon(theirs.parameters(), lr=LR)
        for t in range(STEPS):
            x = torch.randn(7, 6, generator=torch.Generator().manual_seed(t))
            model(x).backward()
            optimizer.step()
            theirs.zero_grad()
            theirs(x).backward()
            reference.step()
        found = model.state_dict()
        near({"qkv": found["qkv.weight0"], "experts": found["experts.weight0"]},
             {"qkv": torch.cat(list(theirs.qkv.values())), "experts": torch.stack(list(theirs.experts.values()))})
    ranks.run(run, 1, ranks.shared())


@case
def large_matrices_of_odd_sizes_are_updated_as_torchs():
    """Large ones are computed in parts."""
    def make_wide():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(301, 707, bias=False), nn.Tanh(), nn.Linear(707, 301, bias=False))

    def run(_):
        model, theirs = zt.shard(make_wide(), optimizer="muon"), make_wide()
        optimizer, reference = zt.Muon(model, lr=2 * LR), torch.optim.Muon(theirs.parameters(), lr=2 * LR)
        for t in range(2):
            for m, o in ((model, optimizer), (theirs, reference)):
                x = torch.randn(64, 301, generator=torch.Generator().manual_seed(t))
                (m(x) - x).square().mean().backward()
                o.step()
                o.zero_grad()
        near(model.state_dict(), theirs.state_dict())
    ranks.run(run, 1, ranks.shared())


@cases_of([torch.bfloat16, torch.float16])
def master_weights_of_16_bits_are_trained(dtype):
    def run(_):
        mine, theirs = Zerod(model=make(dtype=dtype)), Torch(zt.muon_split(make()), make(dtype=dtype).float())
        for t in range(STEPS):
            mine.step(t)
            theirs.step(t)
        for param in mine.model.sharded.params:
            if param.matrices:
                far = distance(mine.model.sharded.read(param, "master").view(param.shape), theirs.model.get_parameter(param.name))
                assert far < 0.01, f"{param.name}: {far}"
    ranks.run(run, 1, ranks.shared())


# ---- what other optimizers have ------------------------------------------------------


@case
def a_scaler_skips_and_unscales_as_torchs():
    def run(_):
        mine, theirs = Zerod(), Torch(zt.muon_split(make()))
        scaler = zt.GradScaler(mine.optimizer, init_scale=1024.0)
        for t, factor in enumerate((1.0, float("inf"), 1.0)):
            scaler.scale(mine.model(batch_of(t)) * factor).backward()
            scaler.unscale_(mine.optimizer)
            mine.model.clip_grad_norm_(0.5)
            scaler.step(mine.optimizer)
            scaler.update()
            if factor == 1.0:
                theirs.step(t, 0.5)
        assert mine.optimizer.version == 2 and scaler.get_scale() == 512.0
        near(mine.model.state_dict(), theirs.model.state_dict())
    ranks.run(run, 1, ranks.shared())


@case
def averages_of_matrices_and_of_the_rest_are_kept():
    def run(_):
        mine = Zerod(ema=True, muon={"ema_decay": 0.5})
        average = make().state_dict()
        for t in range(STEPS):
            mine.step(t)
            now = mine.model.state_dict()
            average = {n: now[n] if t == 0 else average[n] * 0.5 + now[n] * 0.5 for n in now}
        with zt.ema_params(mine.model):
            near(mine.model.state_dict(), average, 1e-6)
        assert [g["ema_decay"] for g in mine.optimizer.param_groups] == [0.5, 0.5]
        assert {"momentum_buffer", "ema"} < mine.optimizer.state_dict()["state"][0].keys()
    ranks.run(run, 1, ranks.shared())


@case
def parameters_without_a_gradient_stay():
    def run(_):
        mine = Zerod()
        before = mine.model.state_dict()
        mine.model.blocks[0](torch.randn(2, 3, 48)).sum().backward()
        mine.optimizer.step()
        after = mine.model.state_dict()
        moved = {n for n in after if not torch.equal(after[n], before[n])}
        assert "blocks.0.up.weight" in moved and all(n.startswith("blocks.0.") for n in moved), moved
    ranks.run(run, 1, ranks.shared())


@case
def param_groups_have_learning_rates_of_their_own():
    """Vectors come first, and two groups are of matrices; a parameter in no group stays."""
    def groups(model):
        named = dict(model.named_parameters())
        return ([named["blocks.0.ln1.weight"], named["ln.weight"]], [named["blocks.0.qkv.weight"]],
                [named["blocks.1.up.weight"], named["blocks.1.down.weight"]])

    def run(_):
        model = zt.shard(make(), optimizer="muon")
        first, second, third = groups(model)
        mine = zt.Muon(model, [{"params": first, "lr": 3e-3}, {"params": second, "lr": 1e-3},
                               {"params": iter(third), "momentum": 0.5}], lr=LR, adamw={"weight_decay": 0.2})
        theirs = make()
        a, b, c = groups(theirs)
        reference = [torch.optim.AdamW(a, lr=3e-3, weight_decay=0.2),
                     torch.optim.Muon([{"params": b, "lr": 1e-3}, {"params": c, "momentum": 0.5}], lr=LR)]
        schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda t: 0.8 ** t) for o in (mine, *reference)]
        for t in range(STEPS):
            model(batch_of(t)).backward()
            mine.step()
            theirs.zero_grad()
            theirs(batch_of(t)).backward()
            for o in reference:
                o.step()
            for s in schedules:
                s.step()
        near(model.state_dict(), theirs.state_dict())
        assert [sorted(g.keys() & {"betas", "momentum"}) for g in mine.param_groups] == [["betas"], ["momentum"], ["momentum"]]
        assert mine.param_groups[1].keys() - {"initial_lr"} == reference[1].param_groups[0].keys() - {"initial_lr"}
        name = {"params": [model.blocks[1].out.weight, model.blocks[1].out.bias]}
        raises(ValueError, ["'blocks.1.out.weight', which is Muon's", "'blocks.1.out.bias', which is AdamW's"],
               mine.add_param_group, name)
        mine.add_param_group({"params": model.blocks[1].out.weight, "lr": 0.0})
        assert mine.param_groups[3]["momentum"] == 0.95
        raises(ValueError, ["with betas", "'blocks.0.up.weight'"], mine.add_param_group,
               {"params": [model.blocks[0].up.weight], "betas": (0.9, 0.99)})
    ranks.run(run, 1, ranks.shared())


# ---- state ---------------------------------------------------------------------------


@case
def state_goes_to_torchs_optimizers_and_back():
    def run(_):
        mine, theirs = Zerod(), Torch(zt.muon_split(make()))
        for t in range(3):
            mine.step(t)
        theirs.model.load_state_dict(mine.model.state_dict())
        muon, adamw = mine.optimizer.torch_state_dicts()
        theirs.muon.load_state_dict(muon)
        theirs.adamw.load_state_dict(adamw)
        for t in range(3, 6):
            mine.step(t)
            theirs.step(t)
        near(mine.model.state_dict(), theirs.model.state_dict())
        mine.model.load_state_dict(theirs.model.state_dict())
        mine.optimizer.load_torch_state_dicts(theirs.muon.state_dict(), theirs.adamw.state_dict())
        for own, their in zip(mine.optimizer.torch_state_dicts(), (theirs.muon, theirs.adamw)):
            for i, tensors in their.state_dict()["state"].items():
                assert all(torch.equal(own["state"][i][k], v) for k, v in tensors.items()), i
        for t in range(6, 9):
            mine.step(t)
            theirs.step(t)
        near(mine.model.state_dict(), theirs.model.state_dict())
    ranks.run(run, 1, ranks.shared())


@cases_of([torch.float32, torch.bfloat16])
def resumes_to_the_same_bits(dtype):
    """By state_dict(), and by a checkpoint."""
    def run(_):
        mine = Zerod(model=make(dtype=dtype))
        with tempfile.TemporaryDirectory(prefix="zerod-test-") as path:
            for t in range(2):
                mine.step(t)
            saved = copy.deepcopy((mine.model.state_dict(), mine.optimizer.state_dict()))
            zt.save_checkpoint(path, mine.model, mine.optimizer)
            ends = []
            for load in (None, lambda: (mine.model.load_state_dict(saved[0]), mine.optimizer.load_state_dict(saved[1])),
                         lambda: zt.load_checkpoint(path, mine.model, mine.optimizer)):
                for group in mine.optimizer.param_groups if load else []:
                    group["lr"] = 1.0
                if load:
                    load()
                for t in range(2, 4):
                    mine.step(t)
                ends.append((mine.model.state_dict(), mine.optimizer.state_dict()["state"]))
        for params, state in ends[1:]:
            assert all(torch.equal(params[n], v) for n, v in ends[0][0].items())
            assert state.keys() == ends[0][1].keys()
            assert all(torch.equal(state[i][k], v) for i, e in ends[0][1].items() for k, v in e.items() if k != "step")
    ranks.run(run, 1, ranks.shared())


@case
def state_of_another_kind_changes_nothing():
    def run(_):
        mine = Zerod()
        mine.step(0)
        good, job = mine.optimizer.state_dict(), mine.model.sharded.client.job
        before = mine.model.sharded.client.query("checksum", job)
        muon, adamw = mine.optimizer.torch_state_dicts()
        raises(ValueError, ["group 0 is Muon's"], mine.optimizer.load_torch_state_dicts, adamw, muon)
        raises(ValueError, ["has 1 parameter groups"], mine.optimizer.load_torch_state_dicts, muon, {"state": {}, "param_groups": []})
        wrong = copy.deepcopy(good)
        wrong["state"][0]["exp_avg"] = wrong["state"][0]["momentum_buffer"]
        raises(ValueError, ["'blocks.0.qkv.weight'", "'exp_avg'", "does not keep"], mine.optimizer.load_state_dict, wrong)
        wrong = copy.deepcopy(good)
        del wrong["state"][0]["momentum_buffer"]
        raises(ValueError, ["has no 'momentum_buffer'"], mine.optimizer.load_state_dict, wrong)
        assert mine.model.sharded.client.query("checksum", job) == before
    ranks.run(run, 1, ranks.shared())


# ---- the split -----------------------------------------------------------------------

HIDDEN = [f"blocks.{i}.{n}.weight" for i in (0, 1) for n in ("qkv", "out", "up", "down")]


@case
def hidden_matrices_are_muons_and_the_rest_is_adamws():
    for tied in (False, True):
        model = make(tied=tied)
        split = zt.muon_split(model)
        assert list(split.matrices) == HIDDEN and split.matrices["blocks.0.qkv.weight"] == [144]
        assert sorted([*split.matrices, *split.elementwise]) == sorted(n for n, _ in model.named_parameters())
    model.wpe.weight.requires_grad_(False)
    model.blocks[0].up.weight.requires_grad_(False)
    split = zt.muon_split(model)
    assert "wpe.weight" not in split.elementwise and "blocks.0.up.weight" not in split.matrices
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 61), nn.Linear(61, 4)) for _ in range(2))
    inner = nn.ModuleDict({"embed": nn.Embedding(61, 4), "blocks": blocks, "score": nn.Linear(4, 1)})
    assert list(zt.muon_split(inner).matrices) == ["blocks.0.0.weight", "blocks.0.1.weight", "blocks.1.0.weight", "blocks.1.1.weight"]


@case
def names_and_patterns_choose_otherwise():
    model = make()
    split = zt.muon_split(model, matrices=["head.weight"], elementwise=["blocks.0.*", "*.down.weight"],
                          split={"*.qkv.weight": 3, "head.weight": [30, 31]})
    assert split.matrices == {"blocks.1.qkv.weight": [48] * 3, "blocks.1.out.weight": [48], "blocks.1.up.weight": [192],
                              "head.weight": [30, 31]}
    for words, arguments in (
            (["'blocks.0.ln1.weight'", "shape (48,)", "leave it to AdamW"], {"matrices": ["blocks.0.ln1.weight"]}),
            (["'wte.weight'", "Embedding", "leave it to AdamW"], {"matrices": ["wte.weight"]}),
            (["no trained parameter 'nothing'"], {"matrices": ["nothing"]}),
            (["no trained parameter 'nothing'"], {"elementwise": ["nothing"]}),
            (["no trained parameter 'nothing'"], {"split": {"nothing": 3}}),
            (["'head.weight'", "matrices= and in elementwise="], {"matrices": ["head.*"], "elementwise": ["head.*"]}),
            (["list of names"], {"matrices": "head.weight"}),
            (["'blocks.0.qkv.weight' has 144 rows", "5"], {"split": {"*.qkv.weight": 5}}),
            (["'blocks.0.qkv.weight' has 144 rows"], {"split": {"*.qkv.weight": [48, 48]}}),
            (["'blocks.0.qkv.weight' has 144 rows"], {"split": {"*.qkv.weight": [0, 144]}}),
            (["'blocks.0.qkv.weight' has 144 rows"], {"split": {"*.qkv.weight": 0}}),
            (["'head.weight' is AdamW's", "matrices="], {"split": {"head.weight": 61}})):
        raises(ValueError, words, zt.muon_split, model, **arguments)
    raises(ValueError, ["'0.weight'", "Conv1d"], zt.muon_split, nn.Sequential(nn.Conv1d(4, 4, 3)), matrices=["0.weight"])


@case
def models_of_transformers_are_split():
    try:
        import transformers
    except ImportError:
        raise Skip("no transformers") from None
    sizes = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    wanted = {"gpt2": {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"},
              "llama": {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
                        "mlp.up_proj", "mlp.down_proj"}}
    for name, ends in wanted.items():
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(
            name, **sizes, tie_word_embeddings=name == "gpt2"))
        split = zt.muon_split(model)
        found = {".".join(n.split(".")[-3:-1]) for n in split.matrices}
        assert found == ends and len(split.matrices) == 2 * len(ends), split
        assert ("lm_head.weight" in split.elementwise) == (name == "llama"), split


# ---- making it -----------------------------------------------------------------------


@case
def a_marked_model_is_sharded_for_it():
    def run(_):
        model = make()
        for block in model.blocks:
            zt.fully_shard(block)
        zt.fully_shard(model)
        split = zt.muon_split(model, split={"*.qkv.weight": 3})
        optimizer = zt.Muon(model, lr=LR, adamw={"lr": 1e-4}, split=split)
        assert model.sharded.optimizer_name == "muon" and zt.muon_split(model) == split
        assert optimizer.matrices == HIDDEN and optimizer.elementwise == split.elementwise
        assert [(len(g["params"]), g["lr"]) for g in optimizer.param_groups] == [(8, LR), (len(split.elementwise), 1e-4)]
        assert sorted({p.unit.name for p in model.sharded.params}) == ["", "blocks.0", "blocks.1"]
        assert all(len(u.groups) == 1 for u in model.sharded.units), "one fetch a block"
        raises(ValueError, ["not the one", "shard(model, optimizer=split)"], zt.Muon, model, split=zt.muon_split(make()))
        raises(ValueError, ["sharded already", "before shard()"], zt.muon_split, model, matrices=["head.weight"])
        model(batch_of(0)).backward()
        optimizer.step()
    ranks.run(run, 1, ranks.shared())


@case
def what_cannot_be_is_refused():
    def run(_):
        raises(ValueError, ["eager=True", "Muon"], zt.shard, make(), optimizer="muon", eager=True)
        raises(ValueError, ["a stage does not know", "muon_split(whole)"], zt.shard, make(), optimizer="muon", pipeline="pp")
        fewer = make()
        fewer.head.weight.requires_grad_(False)
        raises(ValueError, ["'head.weight'", "not in the split"], zt.shard, make(), optimizer=zt.muon_split(fewer))
        other = zt.shard(make(), job=f"{os.environ['ZEROD_JOB']}-adamw")
        raises(ValueError, ["Muon is for shard(model, optimizer='muon'", "optimizer='adamw'"], zt.Muon, other)
        raises(ValueError, ["sharded already, for adamw"], zt.muon_split, other)
        zt.drop(other.sharded.client.job)
        model = zt.shard(make(), optimizer="muon")
        raises(ValueError, ["AdamW is for", "optimizer='muon'"], zt.AdamW, model)
        for words, arguments in ((["ns_steps 100"], {"ns_steps": 100}), (["adjust_lr_fn", "'other'"], {"adjust_lr_fn": "other"}),
                                 (["momentum 1.0"], {"momentum": 1.0}), (["lr -1"], {"lr": -1}),
                                 (["three numbers"], {"ns_coefficients": (1, 2)}), (["betas"], {"adamw": {"betas": (1, 1)}})):
            raises(ValueError, words, zt.Muon, model, **arguments)
        raises(TypeError, ["'momentum'", "lr, betas"], zt.Muon, model, adamw={"momentum": 0.9})
        optimizer = zt.Muon(model)
        optimizer.param_groups[0]["ns_steps"] = 100
        model(batch_of(0)).backward()
        raises(ValueError, ["ns_steps 100"], optimizer.step)
    ranks.run(run, 1, ranks.shared())


if __name__ == "__main__":
    ranks.main()
