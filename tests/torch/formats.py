#!/usr/bin/env python3
"""Moments and master weights in fewer bytes than fp32, for optimizers of zerod.torch: the bits are those of a job that a client
without PyTorch lays out in the same way."""
import copy
import ctypes
import itertools
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from checkpointing import Place  # noqa: E402
from cluster import Tools  # noqa: E402
from harness import Skip, case, cases_of  # noqa: E402

import torch  # noqa: E402

import zerod  # noqa: E402
import zerod.torch as zt  # noqa: E402
from common import raises  # noqa: E402
from gpt import batch_of, make  # noqa: E402

STEPS = 3
FORMATS = [("8bit", "fp32"), ("8bit", "bf16+8"), ("8bit", "bf16+16"), ("bf16", "fp32"), ("bf16", "bf16+8"), ("bf16", "bf16+16"),
           ("fp32", "bf16+8"), ("fp32", "bf16+16")]
STEP_OF = {"fp32": 0, "bf16": 2.0 ** -7, "8bit": 1 / 8}  # of a block's greatest value, generously


def bf16():
    return make(dtype=torch.bfloat16)


def marked(model=None):
    model = model or bf16()
    for block in model.blocks:
        zt.fully_shard(block)
    return zt.fully_shard(model)


def shared(nodes=1, **options):
    return ranks.shared(nodes, job_limit=1000, **options)


def named(job):
    return f"{os.environ['ZEROD_JOB']}-{job}"


def train(model, optimizer, first=0, steps=STEPS, micro=1):
    rank, world = model.sharded.rank, model.sharded.world_size
    for t in range(first, first + steps):
        for part in batch_of(t).chunk(world)[rank].chunk(micro):
            (model(part) / micro).backward()
        model.clip_grad_norm_(0.5)
        optimizer.step()
    return planes(model)


def planes(model):
    return model.sharded.client.query("checksum", model.sharded.client.job)["planes"]


def everything(model, optimizer):
    """Values, without what lies in the gaps between tensors."""
    return copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))


def same(found, wanted):
    assert all(torch.equal(found[0][n], v) for n, v in wanted[0].items())
    assert found[1].keys() == wanted[1].keys()
    assert all(torch.equal(found[1][i][k], v) for i, e in wanted[1].items() for k, v in e.items())


def checkpoint(job, directory):
    """Its path."""
    told = subprocess.run([Tools.zeroctl, "--json", "checkpoint", job, directory], check=True, capture_output=True, text=True)
    return json.loads(told.stdout)["path"]


def formats_of(model):
    layout = model.sharded.client.layout
    return {layout.tensor_name(t): layout.formats(layout.tensor_group(t)) for t in range(layout.tensors)}


# ---- the same bits ---------------------------------------------------------------------


def by_hand(has, state, master):
    """Trains in a job whose layout is that of a sharded model, by calls of the client."""
    layout, model = zerod.Layout(), bf16()
    params = dict(model.named_parameters())
    for g in range(has.groups):
        layout.group(has.group_name(g), has.dtype(g), state=state, master=master)
        for t in has.group_tensors(g):
            layout.tensor(g, has.tensor_name(t), has.shape(t))

    def each(g, at, move):
        for t in layout.group_tensors(g):
            move(params[layout.tensor_name(t)], at + 2 * layout.offset(t))

    with zerod.connect(named("by_hand")) as client:
        client.attach(layout, zerod.ALL, zerod.ALL, "bf16", "bf16")
        for t in range(layout.tensors):
            values = params[layout.tensor_name(t)].detach().float().contiguous()
            client.put(t, "master", 0, values.numel(), values.data_ptr())
        for step in range(STEPS):
            for g in range(layout.groups):
                each(g, client.fetch(g), lambda p, at: ctypes.memmove(p.data_ptr(), at, 2 * p.numel()))
                client.release(g)
            model.zero_grad()
            model(batch_of(step)).backward()
            for g in reversed(range(layout.groups)):
                each(g, client.grad(g), lambda p, at: ctypes.memmove(at, p.grad.contiguous().data_ptr(), 2 * p.numel()))
                client.push(g)
            client.step([zerod.AdamWSet(lr=1e-2, weight_decay=0.01)], clip_norm=0.5)
        return client.query("checksum", client.job)["planes"]


@cases_of(FORMATS, "{0[0]}_{0[1]}")
def bits_are_those_of_a_job_without_pytorch(what):
    formats = dict(zip(("state", "master"), what))

    def run(_):
        told = []
        for model in (zt.shard(bf16(), job=named("sharded"), **formats), marked()):
            optimizer = zt.AdamW(model, lr=1e-2, **formats)
            assert set(formats_of(model).values()) == {what}
            told.append(train(model, optimizer))
        told.append(by_hand(model.sharded.client.layout, *what))
        assert told[0] == told[1] == told[2], told
    ranks.run(run, 1, shared())


OPTIMIZERS = {"adam": ("Adam", {"lr": 1e-2}), "lion": ("Lion", {"lr": 1e-3}),
              "sgd-momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}), "muon": ("Muon", {"lr": 1e-2})}


@cases_of(itertools.product(OPTIMIZERS, (1, 3)), "{0[0]}_stage{0[1]}")
def ranks_of_two_nodes_train_by_any_optimizer(what):
    """As near to moments in fp32 as their format, and with the bits of one owner."""
    name, stage = what
    kind, more = OPTIMIZERS[name]

    def run(_):
        found = []
        for state in ("fp32", "8bit"):
            model = zt.shard(bf16(), stage, optimizer=name, job=named(state), state=state, master="bf16+8")
            optimizer = getattr(zt, kind)(model, **more)
            train(model, optimizer, micro=2)
            found.append((planes(model), {n: p.full_tensor().float() for n, p in model.named_parameters()}))
        near = max(float((found[1][1][n] - v).norm() / v.norm()) for n, v in found[0][1].items() if v.dim() == 2)
        assert 0 < near < 0.1, near
        return found[1][0]
    told = [ranks.run(run, [0, 1], shared(2, **({"owners": owners} if owners else {}))) for owners in (None, 1)]
    assert all(t == told[0][0] for ts in told for t in ts), told


@case
def a_second_stage_and_no_format_asked_for():
    """The optimizer takes what the model has."""
    def run(_):
        told = []
        for stage in (2, 3):
            model = zt.shard(bf16(), stage, job=named(stage), state="8bit", master="bf16+16")
            told.append(train(model, zt.AdamW(model, lr=1e-2)))
        assert told[0] == told[1]
    ranks.run(run, 1, shared())


# ---- param groups ------------------------------------------------------------------------


def two(model, **more):
    """Two param groups: vectors and embeddings, and matrices of blocks."""
    matrices = [n for n, p in model.named_parameters() if n.startswith("blocks.") and p.dim() == 2]
    params = dict(model.named_parameters())
    return [{"params": [p for n, p in params.items() if n not in matrices], "weight_decay": 0.0, **more},
            {"params": [params[n] for n in matrices]}], matrices


@cases_of(["list", "names", "iterators"])
def param_groups_have_formats_of_their_own(how):
    def run(_):
        model = marked()
        groups, matrices = two(model, state="fp32")
        names = {p: n for n, p in model.named_parameters()}
        for group in groups if how != "list" else []:
            group["params"] = [(names[p], p) for p in group["params"]] if how == "names" else iter(group["params"])
        if how == "names" and torch.__version__ < "2.6":
            return
        optimizer = zt.AdamW(model, groups, lr=1e-2, state="8bit", master="bf16+8")
        found = formats_of(model)
        assert {n for n, f in found.items() if f == ("8bit", "bf16+8")} == set(matrices), found
        assert {f for n, f in found.items() if n not in matrices} == {("fp32", "bf16+8")}
        assert [len(u.groups) for u in model.sharded.units] == [2, 2, 1], "a block's matrices are a group of their own"
        assert not {"state", "master"} & set().union(*optimizer.param_groups), "they are no hyperparameters"
        told = train(model, optimizer)
        by_name = zt.shard(bf16(), job=named("by_name"), state={"*.weight": "8bit", **{n: "fp32" for n in found if n not in matrices}},
                           master="bf16+8")
        same = zt.AdamW(by_name, two(by_name, state="fp32")[0], lr=1e-2, state="8bit")
        assert formats_of(by_name) == found and train(by_name, same) == told
        optimizer.param_groups[0]["lr"] = 0.0
        train(model, optimizer, STEPS, 1)
    ranks.run(run, 1, shared())


@case
def muon_keeps_momentum_in_fewer_bytes():
    def run(_):
        model = marked()
        named_params = dict(model.named_parameters())
        optimizer = zt.Muon(model, [{"params": [named_params["blocks.0.up.weight"]], "state": "bf16"},
                                    {"params": [named_params["blocks.0.down.weight"]]},
                                    {"params": [named_params["head.weight"]], "state": "fp32"}], lr=1e-2, state="8bit", master="bf16+16")
        found = formats_of(model)
        assert [found[n][0] for n in ("blocks.0.up.weight", "blocks.0.down.weight", "head.weight", "wte.weight")] == [
            "bf16", "8bit", "fp32", "8bit"]
        train(model, optimizer)
    ranks.run(run, 1, shared())


# ---- refusals ------------------------------------------------------------------------------


@case
def what_cannot_be_is_refused():
    def run(_):
        half = bf16()
        half.ln.float()
        frozen = bf16()
        frozen.wpe.weight.requires_grad_(False)
        for words, model, more in (
                (["state is one of fp32, bf16, 8bit", "'4bit'"], bf16(), {"state": "4bit"}),
                (["master is one of", "'bf16'"], bf16(), {"master": {"*": "bf16"}}),
                (["'blocks.0.ln1.weight' is torch.float32", "convert it to torch.bfloat16"], make(), {"master": "bf16+8"}),
                (["'ln.weight' is torch.float32", "master={'ln.weight': 'fp32', '*': 'bf16+16'}"], half, {"master": "bf16+16"}),
                (["eager"], bf16(), {"master": "bf16+8", "eager": True}),
                (["'sgd' keeps no moments", "sgd-momentum"], bf16(), {"state": "8bit", "optimizer": "sgd"}),
                (["'wpe.weight' is frozen", "requires_grad_(True)"], frozen, {"state": {"wpe.*": "8bit"}}),
                (["no parameter 'nothing'"], bf16(), {"state": {"nothing": "8bit"}})):
            raises(ValueError, words, zt.shard, model, job=named("refused"), **more)
        raises(ValueError, ["'sgd' keeps no moments"], zt.SGD, marked(), state="bf16")
        raises(ValueError, ["'ln.weight' is torch.float32"], zt.AdamW, marked(half), master="bf16+8")
        model = marked(frozen)
        raises(ValueError, ["'wpe.weight' is frozen"], zt.AdamW, model, [{"params": [model.wpe.weight], "state": "8bit"},
                                                                       {"params": model.blocks.parameters()}])
    ranks.run(run, 1, shared())


@case
def a_format_that_comes_too_late_is_refused():
    def run(_):
        model = zt.shard(bf16(), job=named("head"), state={"head.*": "8bit"})
        raises(ValueError, ["state='8bit'", "'wte.weight'", "moments in fp32", "shard(model, state=...)"],
               zt.AdamW, model, state="8bit")
        raises(ValueError, ["master='bf16+8'", "master weights in fp32", "shard(model, master=...)"], zt.AdamW, model, master="bf16+8")
        optimizer = zt.AdamW(model, [{"params": model.blocks.parameters()}])
        raises(ValueError, ["state='bf16'", "'head.weight'", "in 8bit"], optimizer.add_param_group,
               {"params": model.head.weight, "state": "bf16"})
        optimizer.add_param_group({"params": model.head.weight, "state": "8bit", "lr": 0.0})
        assert optimizer.param_groups[1]["lr"] == 0.0
        train(model, optimizer, steps=1)
        late = marked()
        late(batch_of(0))
        raises(ValueError, ["state='8bit'", "laid out"], zt.AdamW, late, state="8bit")
    ranks.run(run, 1, shared())


@case
def a_job_goes_on_under_its_own_formats_alone():
    def run(_):
        model = zt.shard(bf16(), state="8bit", master="bf16+8")
        before = train(model, zt.AdamW(model, lr=1e-2))
        model.sharded.client.close()
        raises(zerod.LayoutMismatch, ["moments in", "8bit", "fp32"], zt.shard, bf16())
        raises(zerod.LayoutMismatch, ["master weights in", "bf16+8", "bf16+16"], zt.shard, bf16(), state="8bit", master="bf16+16")
        again = zt.shard(bf16(), state="8bit", master="bf16+8", resume="must")
        assert planes(again) == before
    ranks.run(run, 1, shared())


# ---- state ------------------------------------------------------------------------------------


@cases_of(FORMATS, "{0[0]}_{0[1]}")
def state_is_fp32_and_comes_back_to_the_same_bits(what):
    """By state_dict(), and by a checkpoint."""
    def run(_):
        model = marked()
        optimizer = zt.AdamW(model, lr=1e-2, state=what[0], master=what[1])
        train(model, optimizer)
        with tempfile.TemporaryDirectory(prefix="zerod-test-") as path:
            saved = everything(model, optimizer)
            zt.save_checkpoint(path, model, optimizer)
            assert all(v.dtype is torch.float32 for e in saved[1].values() for v in e.values())
            full = optimizer.state_dict()
            ends = []
            for load in (lambda: None, lambda: (model.load_state_dict(saved[0]), optimizer.load_state_dict(full)),
                         lambda: zt.load_checkpoint(path, model, optimizer)):
                load()
                same(everything(model, optimizer), saved)
                train(model, optimizer, STEPS, 1)
                ends.append(everything(model, optimizer))
        same(ends[1], ends[0])
        same(ends[2], ends[0])
    ranks.run(run, 1, shared())


@cases_of(["8bit", "bf16"])
def state_goes_to_torchs_optimizer_and_back(state):
    """What torch has is rounded once; what it got from here is not."""
    def run(_):
        model, theirs = zt.shard(bf16(), state=state), make()
        optimizer = zt.AdamW(model, lr=1e-2)
        train(model, optimizer)
        reference = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
        theirs.load_state_dict(model.state_dict())
        reference.load_state_dict(optimizer.state_dict())
        before = optimizer.state_dict()["state"]
        optimizer.load_state_dict(reference.state_dict())
        after = optimizer.state_dict()["state"]
        assert all(torch.equal(after[i][k], v) for i, e in before.items() for k, v in e.items() if k.startswith("exp"))
        theirs(batch_of(9)).backward()
        reference.step()
        optimizer.load_state_dict(reference.state_dict())
        for i, entry in reference.state_dict()["state"].items():
            for k, v in entry.items():
                mine = optimizer.state_dict()["state"][i][k]
                assert float((mine - v).abs().max()) <= STEP_OF[state] * float(v.abs().max()), (i, k)
    ranks.run(run, 1, shared())


@case
def state_goes_to_a_job_of_another_format():
    def run(_):
        model = zt.shard(bf16(), job=named("fp32"))
        optimizer = zt.AdamW(model, lr=1e-2)
        train(model, optimizer)
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        other = zt.shard(bf16(), job=named("other"), state="8bit", master="bf16+16")
        narrow = zt.AdamW(other, lr=1e-2)
        other.load_state_dict(saved[0])
        narrow.load_state_dict(saved[1])
        found = narrow.state_dict()["state"]
        for i, entry in saved[1]["state"].items():
            assert torch.equal(found[i]["master"], entry["master"]) and float(found[i]["step"]) == STEPS
            for k in ("exp_avg", "exp_avg_sq"):
                assert float((found[i][k] - entry[k]).abs().max()) <= STEP_OF["8bit"] * float(entry[k].abs().max())
        train(other, narrow, STEPS, 1)
    ranks.run(run, 1, shared())


# ---- frameworks, and checkpoints of the service --------------------------------------------------


def by_accelerate(model):
    import zerod.accelerate
    model, optimizer = zerod.accelerate.Accelerator(cpu=True, state="8bit", master="bf16+8").prepare(
        model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    train(model, getattr(optimizer, "optimizer", optimizer))
    return model


def by_trainer(model):
    import transformers
    import zerod.transformers

    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gpt = model

        def forward(self, tokens):
            return {"loss": self.gpt(tokens)}

    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        arguments = transformers.TrainingArguments(directory, use_cpu=True, max_steps=2, report_to=[], save_strategy="no",
                                                   per_device_train_batch_size=4, disable_tqdm=True)
        trainer = zerod.transformers.Trainer(Loss(), arguments, train_dataset=[{"tokens": t} for t in batch_of(0)], state="8bit",
                                             master="bf16+8")
        trainer.train()
    return trainer.model


@cases_of([by_accelerate, by_trainer], "{0.__name__}")
def frameworks_pass_formats_on(make_by):
    def run(_):
        try:
            model = make_by(bf16())
        except ModuleNotFoundError as error:
            return str(error)
        assert set(formats_of(model).values()) == {("8bit", "bf16+8")}, formats_of(model)
        return None
    missing, = ranks.run(run, 1, shared(), environment={"MASTER_ADDR": "127.0.0.1"})
    if missing:
        raise Skip(missing)


def served_alike(found, wanted, masters):
    """Whether all values are the same.  Only a master that lies between two values of bf16 may be served as another one:
    bf16+16 rounds it away from 0, a cast to even."""
    differ = {n: found[n] != v for n, v in wanted.items()}
    for n, at in differ.items():
        assert ((masters[n][at].view(torch.int32) & 0xffff) == 0x8000).all(), n
    return not any(at.any() for at in differ.values())


@cases_of([("fp32", "fp32"), ("fp32", "bf16+16"), ("8bit", "bf16+8")], "{0[0]}_{0[1]}")
def a_checkpoint_of_the_service_goes_on_in_other_formats(what):
    """To the same bits where nothing is lost, as long as the same values are served."""
    def exact(model, optimizer):
        values, moments = everything(model, optimizer)
        return values, ({p.name: model.sharded.read(p).view(p.shape) for p in model.sharded.params}, moments)

    def first(_, directory):
        model = marked()
        optimizer = zt.AdamW(model, lr=1e-2)
        train(model, optimizer)
        taken, saved = checkpoint(model.sharded.client.job, directory), exact(model, optimizer)
        train(model, optimizer, STEPS, 1)
        return taken, saved, exact(model, optimizer)

    def then(_, job):
        model = marked()
        optimizer = zt.AdamW(model, lr=1e-2, state=what[0], master=what[1])
        assert model.sharded.steps_made == STEPS
        loaded = exact(model, optimizer)
        train(model, optimizer, STEPS, 1)
        return loaded, exact(model, optimizer)

    with Place() as d:
        (path, saved, wanted), = ranks.run(first, 1, shared(), arguments=(d,))
        cluster, job = shared(2), f"converted-{what[0]}-{what[1]}".replace("+", "-")
        if what != ("fp32", "fp32"):
            cluster[1].ctl("restore", job, path, "--convert", ",".join(what))
        else:
            cluster[1].ctl("restore", job, path)
        (loaded, found), = ranks.run(then, 1, cluster, job=job, arguments=(job,))
    if what[0] == "fp32":
        same(loaded[1], saved[1])
        if served_alike(loaded[0], saved[0], saved[1][0]):
            same(found[1], wanted[1])
            assert served_alike(found[0], wanted[0], wanted[1][0]) or what[1] != "fp32"
        else:
            assert what[1] != "fp32"
    near = max(float((found[0][n].float() - v.float()).norm() / v.float().norm()) for n, v in wanted[0].items() if v.dim() == 2)
    assert near < (0.01 if what[0] == "fp32" else 0.1) and (near > 0 or what[0] == "fp32"), near


if __name__ == "__main__":
    ranks.main()
