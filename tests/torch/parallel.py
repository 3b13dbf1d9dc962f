#!/usr/bin/env python3
"""Tensor, expert and sequence parallel models: the losses and parameters of one process with the whole batch, files of
whole tensors, and what is refused."""
import copy
import os
import signal
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from harness import case, cases_of  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, SequenceParallel,  # noqa: E402
                                               parallelize_module)
from torch.nn import functional as F  # noqa: E402

import zerod  # noqa: E402
import zerod.torch as zt  # noqa: E402
from zerod import _replay  # noqa: E402
from common import adapters_only, frozen_files, needs_checkpoint, raises  # noqa: E402
from meshes import (BATCH, LENGTH, MIB, STEPS, VOCABULARY, WIDTH, Model, batch_of, close, ending_with_others, in_ranks,  # noqa: E402
                    make, meet, one_process, start_again, train, values)


def parallelize(model, mesh, sequence=False):
    """sequence: between blocks each rank has a part of the sequence; the vocabulary is divided, into unequal parts."""
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if sequence:
        plan = {"norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)),
                "down": RowwiseParallel(output_layouts=Shard(1))}
        parallelize_module(model, mesh, {
            "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())})
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return model


def sharded(rank, path, shape, stage=3, sequence=False, stash=False):
    mesh = meet(rank, path, shape, ("dp", "tp"))
    model = parallelize(make(), mesh["tp"], sequence)
    return zt.shard(model, stage, mesh=mesh, stash=zerod.Stash(MIB, ranks=mesh["tp"].mesh.tolist()) if stash else None)


def tensor_parallel(rank, path, shape, stage, stash, sequence=False):
    model = sharded(rank, path, shape, stage, sequence, stash)
    if stash:
        zt.checkpoint_blocks(model, model.blocks)
    return train(model, rank // shape[1], shape[0])


@cases_of([((2, 2), 3, 1, False), ((2, 2), 1, 1, False), ((2, 2), 2, 2, False), ((1, 4), 3, 1, False), ((2, 2), 3, 1, True),
           ((2, 2), 3, 2, True)], "{0[0]}_stage_{0[1]}_nodes_{0[2]}_stash_{0[3]}")
def tensor_parallel_as_one_process(what):
    shape, stage, nodes, stash = what
    if stash:
        needs_checkpoint()
    close(in_ranks(tensor_parallel, shape, stage, stash, nodes=nodes), ranks.alone(one_process))


@cases_of([(2, 2), (1, 2)], "{}")
def tensor_and_sequence_parallel_as_one_process(shape):
    close(in_ranks(tensor_parallel, shape, 3, False, True), ranks.alone(one_process))


def norms(rank, path, shape):
    """Of the gradient and weights of whole tensors, on each rank."""
    model = sharded(rank, path, shape, sequence=True)
    optimizer = zt.AdamW(model, lr=1e-2)
    weights = zt.weight_norms(model)
    model(batch_of(0).chunk(shape[0])[rank // shape[1]]).backward()
    found = weights, zt.grad_norms(model)
    optimizer.step()
    return found


@cases_of([1, 2], "nodes_{}")
def norms_are_those_of_whole_tensors(nodes):
    model = make()
    wanted = {n: float(p.detach().norm()) for n, p in model.named_parameters()}
    model(batch_of(0)).backward()
    grads = {n: float(p.grad.norm()) for n, p in model.named_parameters()}
    for weights, found in sum(in_ranks(norms, (2, 2), nodes=nodes), []):
        assert weights.keys() == found.keys() == wanted.keys()
        for n, norm in grads.items():
            assert abs(weights[n] - wanted[n]) <= 1e-6 * wanted[n], (n, weights[n], wanted[n])
            assert abs(found[n] - norm) <= 1e-4 * norm, (n, found[n], norm)


def context_parallel(rank):
    """Each rank has a part of every sequence."""
    model = zt.shard(make())
    part = LENGTH // 2
    optimizer = zt.AdamW(model, lr=1e-2)
    for t in range(STEPS):
        model(batch_of(t)[:, rank * part:(rank + 1) * part + 1]).backward()
        model.clip_grad_norm_(0.5)
        optimizer.step()
    return values(model)


@case
def context_parallel_needs_nothing_of_the_service():
    wanted = ranks.alone(one_process)[1]
    for got in ranks.run(context_parallel, 2, ranks.shared(1)):
        for name, value in wanted.items():
            assert torch.allclose(got[name], value, rtol=1e-3, atol=2e-4), name


# ---- experts ----------------------------------------------------------------------------


class Experts(nn.Module):
    """Each sequence goes to one of two experts; ranks that share a batch have an expert each."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.up, self.down = (nn.Parameter(torch.randn(2, WIDTH, WIDTH) / 4) for _ in range(2))
        self.mesh, self.exchanges = None, False

    def parallelize(self, mesh, exchanges):
        """exchanges: ranks along the mesh have batches of their own, and send each expert its tokens."""
        self.mesh, self.exchanges = mesh, exchanges
        for name in ("up", "down"):
            setattr(self, name, nn.Parameter(distribute_tensor(getattr(self, name).detach(), mesh, [Shard(0)])))
        return self

    def forward(self, tokens):
        x = self.embed(tokens[:, :-1]).flatten(0, 1)
        which = (tokens[:, :1] % 2).expand(-1, tokens.shape[1] - 1).flatten()
        out = self.run(x, which)
        return F.cross_entropy(self.head(x + out), tokens[:, 1:].flatten())

    def run(self, x, which):
        if self.mesh is None:
            return self.experts(x, which, self.up, self.down, 0)
        of = Shard(0) if self.exchanges else Replicate()
        x = DTensor.from_local(x, self.mesh, [of], run_check=False).full_tensor(grad_placements=[Partial()])
        which = DTensor.from_local(which, self.mesh, [of], run_check=False).full_tensor()
        out = self.experts(x, which, self.up.to_local(), self.down.to_local(), self.mesh.get_local_rank())
        return DTensor.from_local(out, self.mesh, [Partial()], run_check=False).redistribute(placements=[of]).to_local()

    @staticmethod
    def experts(x, which, up, down, first):
        out = x * 0
        for i in range(len(up)):
            mine = (which == first + i).nonzero()[:, 0]
            if len(mine):  # an expert without tokens has no gradient
                out = out.index_add(0, mine, F.gelu(x[mine] @ up[i]) @ down[i])
        return out


def expert_parallel(rank, path, shape, exchanges):
    mesh = meet(rank, path, shape, ("dp", "ep"))
    model = zt.shard(make(Experts).parallelize(mesh["ep"], exchanges), mesh=mesh, data=("dp", "ep") if exchanges else None)
    if exchanges:
        return train(model, rank, 4)
    return train(model, rank // shape[1], shape[0])


@cases_of([1, 2], "nodes_{}")
def expert_parallel_as_one_process(nodes):
    """In every third step all tokens of a data-parallel rank go to one expert, and the other has no gradient there."""
    close(in_ranks(expert_parallel, (2, 2), False, nodes=nodes), ranks.alone(one_process, Experts))


@case
def experts_that_get_tokens_of_other_ranks():
    found = in_ranks(expert_parallel, (2, 2), True)
    close([[of] for row in found for of in row], ranks.alone(one_process, Experts))


def experts_by_muon(rank, path="", shape=()):
    """Stacks of matrices, whole or divided between matrices."""
    model, mesh = make(Experts), meet(rank, path, shape, ("dp", "ep")) if shape else None
    split = zt.muon_split(model, matrices=["up", "down"])
    assert split.matrices == {"up": [WIDTH], "down": [WIDTH]}
    model = zt.shard(model.parallelize(mesh["ep"], False) if mesh else model, mesh=mesh, optimizer=split)
    return train(model, rank // shape[1] if shape else 0, shape[0] if shape else 1, zt.Muon(model, lr=1e-3, adamw={"lr": 1e-3}))


@case
def expert_parallel_by_muon_as_one_process():
    close(in_ranks(experts_by_muon, (2, 2)), ranks.run(experts_by_muon, 1, ranks.shared())[0])


# ---- whole tensors ------------------------------------------------------------------------


def ten_steps():
    """Of one process: losses of the last five, the optimizer's state in the middle, and parameters."""
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, 0, 1, optimizer, steps=5)
    state = {i: {name: value.clone() for name, value in of.items()} for i, of in optimizer.state_dict()["state"].items()}
    losses, end = train(model, 0, 1, optimizer, first=5, steps=5)
    return losses, state, end


def half(rank, path, shape, directory):
    """Five steps, and what is saved after them."""
    model = sharded(rank, path, shape, sequence=True) if shape else zt.shard(make())
    optimizer = zt.AdamW(model, lr=1e-2)
    found = train(model, rank // shape[1] if shape else 0, shape[0] if shape else 1, optimizer, steps=5)
    if rank == 0:
        zt.save_checkpoint(f"{directory}/half", model, optimizer)
    model.sharded.barrier()
    state = optimizer.state_dict()["state"]
    return *found, {i: {name: torch.as_tensor(value) for name, value in of.items()} for i, of in state.items()}


def goes_on(rank, path, shape, directory):
    """Five steps more."""
    model = sharded(rank, path, shape, sequence=True) if shape else zt.shard(make())
    optimizer = zt.AdamW(model, lr=1e-2)
    zt.load_checkpoint(f"{directory}/half", model, optimizer)
    return train(model, rank // shape[1] if shape else 0, shape[0] if shape else 1, optimizer, first=5, steps=5)


@cases_of([((1, 2), None), (None, (1, 2)), ((2, 2), (1, 2))], "of_{0[0]}_to_{0[1]}")
def a_checkpoint_loads_under_another_mesh(what):
    """Weights, moments and steps of whole tensors; the steps after it are those of one process."""
    with tempfile.TemporaryDirectory() as directory:
        def run(function, shape):
            return in_ranks(function, shape or (1, 1), directory) if shape else [
                ranks.run(function, 1, ranks.shared(1), arguments=(None, None, directory))]
        first = run(half, what[0])[0][0]
        second = run(goes_on, what[1])
    losses, state, end = ranks.alone(ten_steps)
    assert first[2].keys() == state.keys()
    for number, of in state.items():
        for name, value in of.items():
            assert torch.allclose(first[2][number][name].float(), value.float(), rtol=1e-3, atol=1e-4), (number, name)
    close(second, (losses, end))



def full(rank, path, shape):
    """Parameters inside full_params(), before and after one is changed there."""
    model = sharded(rank, path, shape, sequence=True)
    with zt.full_params(model):
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
    model.sharded.barrier()
    if rank == 0:
        with zt.full_params(model, write=True), torch.no_grad():
            model.blocks[1].down.weight.mul_(2)
    model.sharded.barrier()
    loss = model(batch_of(0))
    loss.backward()
    return before, values(model), loss.detach()


@torch.no_grad()
def changed():
    """As in full(), without a service."""
    model = make()
    before = values(model)
    model.blocks[1].down.weight.mul_(2)
    return before, values(model), model(batch_of(0))


@case
def full_parameters_are_whole_tensors():
    wanted = ranks.alone(changed)
    for found in in_ranks(full, (1, 2))[0]:
        for got, value in zip(found[:2], wanted[:2]):
            assert got.keys() == value.keys() and all(torch.equal(got[name], value[name]) for name in got)
        assert torch.allclose(found[2], wanted[2], rtol=1e-5)


# ---- kills --------------------------------------------------------------------------------


def until_the_end(rank, path, shape, killed):
    """Trains to the last step, with P_a; as under torchrun, what a kill does to the others ends them.  killed: in which step,
    and whom; 0: rank 0."""
    model = sharded(rank, path, shape, stash=True)
    zt.checkpoint_blocks(model, model.blocks)
    optimizer = zt.AdamW(model, lr=1e-2)
    with ending_with_others(killed):
        for step in zt.steps(model, until=STEPS):
            with step as t:
                model(batch_of(t).chunk(shape[0])[rank // shape[1]]).backward()
                if killed and t == killed[0] and rank == 0:
                    os.kill(killed[1] or os.getpid(), signal.SIGKILL)
                model.clip_grad_norm_(0.5)
                optimizer.step()
    return values(model)


@cases_of([0, 1, None], "of_node_{}")
def ranks_that_start_again_after_a_kill_end_at_the_same_bits(node):
    """Of a daemon, or of a rank."""
    needs_checkpoint()
    start_again(until_the_end, (1, 2), node)


def aborted(rank, path):
    """In the calls of a Trainer's step."""
    model, calls = sharded(rank, path, (1, 2)), []

    def call():
        calls.append(1)
        if len(calls) == 1:
            raise zerod.Aborted("a daemon was lost")
    error = raises(zerod.Aborted, "lost", _replay.Steps(model.sharded).do, call)
    assert len(calls) == 1
    if hasattr(error, "add_note"):  # from Python 3.11 on
        assert "start again together" in error.__notes__[0]


@case
def a_framework_does_not_repeat_a_step_of_a_mesh():
    with tempfile.TemporaryDirectory() as directory:
        ranks.run(aborted, 2, ranks.shared(1), arguments=(f"{directory}/meet",))


# ---- frozen parameters that are mapped ----------------------------------------------------


def on_base(rank, path, shape, files_of, trained, meta):
    mesh = meet(rank, path, shape, ("dp", "tp"))
    model = adapters_only(make(), trained)
    for module in model.modules() if meta and files_of else ():
        for name, p in module._parameters.items():
            if not p.requires_grad:
                setattr(module, name, nn.Parameter(p.to("meta"), requires_grad=False))
    parallelize(model, mesh["tp"], sequence=not meta)
    adapters_only(model, trained)  # parallelize_module() of PyTorch 2.6 has all that it divides trained
    zt.shard(model, mesh=mesh, base=files_of and [files_of])
    found = train(model, rank // shape[1], shape[0])
    if files_of:
        assert all(p.trainable for p in model.sharded.params) and model.sharded.parallel
        state = model.state_dict()
        model.load_state_dict(state)
        with zt.full_params(model):
            assert all(torch.equal(p, state[n]) for n, p in model.named_parameters())
        assert all(torch.equal(p, state[n]) for n, p in copy.deepcopy(model).named_parameters())
        mapped = [p for n, p in model.named_parameters() if n == "blocks.0.down.weight"][0].to_local()
        assert mapped.untyped_storage().data_ptr() in {t.untyped_storage().data_ptr() for t in model.sharded.base.values()}
        state["blocks.0.up.weight"] = state["blocks.0.up.weight"] + 1
        raises(ValueError, "of the base", model.load_state_dict, state)
    return found


@cases_of([((1, 2), 1, ("norm",), True), ((2, 2), 2, ("norm", "blocks.1.up"), False)], "{0[0]}_nodes_{0[1]}_{0[2]}_meta_{0[3]}")
def tensor_parallel_ranks_have_their_parts_of_a_base(what):
    """Of what is divided along either dimension of a matrix, into unequal parts too; beside trained parts."""
    shape, nodes, trained, meta = what
    with frozen_files(adapters_only(make(), trained)) as (path,):
        without = in_ranks(on_base, shape, None, trained, meta, nodes=nodes)
        found = in_ranks(on_base, shape, path, trained, meta, nodes=nodes)
    for (losses, values), (other, others) in zip(sum(without, []), sum(found, [])):
        assert torch.equal(losses, other) and values.keys() == others.keys()
        assert all(torch.equal(value, others[n]) for n, value in values.items())


# ---- refusals -----------------------------------------------------------------------------


def refused(rank, path):
    mesh = meet(rank, path, (2, 1), ("dp", "tp"))
    raises(ValueError, ["'blocks.0.up.weight'", "shard(model, mesh=...)"], zt.shard, parallelize(make(), mesh["tp"]))
    raises(ValueError, ["'blocks.0.up.weight'", "one piece", "elementwise="], zt.shard, parallelize(make(), mesh["tp"]), mesh=mesh,
           optimizer="muon")
    other = init_device_mesh("cpu", (2,), mesh_dim_names=("rows",))
    raises(ValueError, ["'blocks.0.up.weight'", "rows", "dp, tp"], zt.shard, parallelize(make(), other), mesh=mesh)
    raises(ValueError, ["rows", "dp, tp"], zt.shard, make(), mesh=mesh, data=("rows",))
    raises(ValueError, "mesh=", zt.shard, make(), data=("dp",))
    raises(ValueError, "no names", zt.shard, make(), mesh=init_device_mesh("cpu", (2,)), job=f"{rank}")
    raises(ValueError, ["the mesh has 1 ranks", "job has 2"], zt.shard, make(), mesh=mesh["tp"])
    model = parallelize(make(), mesh["tp"])
    model.blocks[0].up.weight.register_hook(lambda g: g)
    raises(ValueError, ["'blocks.0.up.weight'", "hook"], zt.shard, model, mesh=mesh)
    with torch.device("meta"):
        model = Model()
    raises(ValueError, ["'blocks.0.up.weight'", "meta"], zt.shard, parallelize(model, mesh["tp"]), mesh=mesh)
    model = make()
    model.head.weight = nn.Parameter(distribute_tensor(model.head.weight.detach(), mesh, [Shard(0), Shard(1)]))
    raises(ValueError, ["'head.weight'", "one Shard(dim)"], zt.shard, model, mesh=mesh)


@case
def what_does_not_fit_is_refused_by_name():
    with tempfile.TemporaryDirectory() as directory:
        ranks.run(refused, 2, ranks.shared(1), arguments=(f"{directory}/meet",))


def parts(_rank):
    from zerod.torch.split import Split
    draw = torch.Generator().manual_seed(3)
    for _ in range(300):
        shape = torch.randint(0, 7, (int(torch.randint(1, 4, (), generator=draw)),), generator=draw).tolist()
        axis, n = int(torch.randint(len(shape), (), generator=draw)), int(torch.randint(1, 5, (), generator=draw))
        whole = torch.rand(shape, generator=draw)
        split = Split(whole, axis, "tp", 0, [[i] for i in range(n)])
        chunks = [*whole.chunk(n, axis), *[whole.narrow(axis, 0, 0)] * n][:n]
        assert [split.shape(i) for i in range(n)] == [c.shape for c in chunks]
        first, end = sorted(torch.randint(0, whole.numel() + 1, (2,), generator=draw).tolist())
        found = torch.full((end - first,), -1.0)
        for part, at, box in split.boxes(found, first):
            box.copy_(chunks[part].flatten()[at:at + box.numel()].view(box.shape))
        assert torch.equal(found, whole.flatten()[first:end]), (shape, axis, n, first, end)


@case
def any_range_of_a_whole_tensor_comes_from_its_parts():
    ranks.run(parts, 1)


if __name__ == "__main__":
    ranks.main()
