#!/usr/bin/env python3
"""Pipelines whose ranks have a stage each: the losses and parameters of one process with the whole batch, whole files, and
what is refused."""
import os
import signal
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from harness import case, cases_of  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import zerod  # noqa: E402
import zerod.torch as zt  # noqa: E402
from common import adapters_only, frozen_files, raises  # noqa: E402
from meshes import (STEPS, VOCABULARY, WIDTH, Block, batch_of, ending_with_others, in_ranks, meet, start_again,  # noqa: E402
                    values)

TIED = [("embed.weight", "head.weight")]
BLOCKS, MICRO_BATCHES = 4, 4


class Tied(nn.Module):
    """The whole model, or the stage of it that has some of the blocks.  Its head has the embedding's weight."""

    def __init__(self, blocks=range(BLOCKS)):
        super().__init__()
        self.first, self.last = 0 in blocks, BLOCKS - 1 in blocks
        made = {str(i): Block() for i in range(BLOCKS)}  # all of them, so that stages draw the same values
        embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleDict({str(i): made[str(i)] for i in blocks})
        if self.first:
            self.embed = embed
        if self.last:
            self.norm = nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
            self.head.weight = embed.weight

    def forward(self, h):
        if self.first:
            h = self.embed(h)
        for block in self.blocks.values():
            h = block(h)
        return self.head(self.norm(h)) if self.last else h


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def stage_of(number, n, tied=True):
    torch.manual_seed(5)
    whole = range(BLOCKS)
    model = Tied(whole[number * BLOCKS // n:(number + 1) * BLOCKS // n])
    if not tied and model.last:
        model.head.weight = nn.Parameter(model.head.weight.detach() * 2)
    return model


def alone(tied=True, steps=STEPS):
    model = stage_of(0, 1, tied)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for t in range(steps):
        loss = loss_of(model(batch_of(t)[:, :-1]), batch_of(t)[:, 1:])
        loss.backward()
        found += [loss.detach(), nn.utils.clip_grad_norm_(model.parameters(), 0.5)]
        optimizer.step()
        optimizer.zero_grad()
    return torch.stack(found), values(model)


class Runner:
    """A stage of the service, and its schedule."""

    def __init__(self, model, mesh, dp, n_dp, schedule=Schedule1F1B, optimizer=None):
        self.model, self.dp, self.n_dp = model, dp, n_dp
        self.optimizer = optimizer or zt.AdamW(model, lr=1e-2)
        stage = PipelineStage(model, mesh["pp"].get_local_rank(), mesh["pp"].size(), torch.device("cpu"),
                              group=mesh["pp"].get_group())
        self.schedule = schedule(stage, MICRO_BATCHES, loss_fn=lambda *of: loss_of(*of) / MICRO_BATCHES, scale_grads=False)

    def backward(self, t):
        """Of a step; the loss of this rank's batch in the last stage, else 0."""
        batch, losses = batch_of(t).chunk(self.n_dp)[self.dp], []
        if self.model.first:
            self.schedule.step(batch[:, :-1])
        elif self.model.last:
            self.schedule.step(target=batch[:, 1:], losses=losses)
        else:
            self.schedule.step()
        return sum(losses, torch.zeros(()))

    def train(self, steps=STEPS, first=0):
        found = []
        for t in range(first, first + steps):
            loss = self.backward(t)
            found += [loss.detach(), self.model.clip_grad_norm_(0.5)]
            self.optimizer.step()
        return torch.stack(found), values(self.model)


def close(found, wanted):
    """found: of the ranks of each stage."""
    losses = torch.stack([f[0] for f in found[-1]])
    assert torch.allclose(losses.mean(0)[0::2], wanted[0][0::2], rtol=2e-4, atol=2e-5)
    for f in [f for stage in found for f in stage]:
        assert torch.allclose(f[0][1::2], wanted[0][1::2], rtol=2e-4, atol=2e-5)  # one norm for all stages
        assert f[1]
        for name, value in f[1].items():
            assert torch.allclose(value, wanted[1][name], rtol=1e-3, atol=2e-4), name


def runner_of(rank, path, shape, zero=3, schedule=Schedule1F1B, tied=True):
    """Pipeline times data parallel."""
    mesh = meet(rank, path, shape, ("pp", "dp"))
    model = zt.shard(stage_of(rank // shape[1], shape[0], tied), zero, mesh=mesh, pipeline="pp", tied=TIED if tied else (),
                     whole=TIED[0][1:] if tied else ())  # by the name of one stage: the others know the parameter, too
    return Runner(model, mesh, rank % shape[1], shape[1], schedule)


def trained(rank, path, shape, zero, schedule, tied):
    return runner_of(rank, path, shape, zero, schedule, tied).train()


@cases_of([((2, 2), 3, Schedule1F1B, 1, True), ((2, 2), 1, ScheduleGPipe, 1, True), ((2, 2), 2, Schedule1F1B, 2, True),
           ((4, 1), 3, Schedule1F1B, 2, True), ((2, 1), 3, ScheduleGPipe, 1, False)],
          "{0[0]}_stage_{0[1]}_{0[2].__name__}_nodes_{0[3]}_tied_{0[4]}")
def pipeline_as_one_process(what):
    shape, zero, schedule, nodes, tied = what
    close(in_ranks(trained, shape, zero, schedule, tied, nodes=nodes), ranks.alone(alone, tied))


def norms(rank, path, shape):
    runner = runner_of(rank, path, shape)
    weights = zt.weight_norms(runner.model)
    runner.backward(0)
    found = weights, zt.grad_norms(runner.model)
    runner.optimizer.step()
    return found


@case
def norms_are_those_of_the_stage():
    """Of the whole batch; the tied weight's gradient is of both stages."""
    model = stage_of(0, 1)
    loss_of(model(batch_of(0)[:, :-1]), batch_of(0)[:, 1:]).backward()
    named = dict(model.named_parameters(remove_duplicate=False))
    for number, stage in enumerate(in_ranks(norms, (2, 2), nodes=2)):
        for weights, found in stage:
            assert weights.keys() == found.keys() == dict(stage_of(number, 2).named_parameters()).keys()
            for n, norm in found.items():
                wanted = float(named[n].grad.norm())
                assert abs(norm - wanted) <= 1e-4 * wanted, (n, norm, wanted)
                assert abs(weights[n] - float(named[n].detach().norm())) <= 1e-5 * weights[n], n


def by_muon(rank, path, shape):
    """Some steps, and more after a checkpoint of the first stage."""
    mesh = meet(rank, path, shape, ("pp", "dp"))
    split = zt.muon_split(stage_of(0, 1))
    model = zt.shard(stage_of(rank, shape[0]), mesh=mesh, pipeline="pp", tied=TIED, optimizer=split)
    runner = Runner(model, mesh, 0, 1, optimizer=zt.Muon(model, lr=1e-3, adamw={"lr": 1e-3}))
    losses, _ = runner.train(STEPS // 2)
    if rank == 0:
        zt.save_checkpoint(f"{path}.saved", model, runner.optimizer)
    model.sharded.barrier()
    runner.train(1)
    zt.load_checkpoint(f"{path}.saved", model, runner.optimizer)
    more, end = runner.train(STEPS - STEPS // 2, STEPS // 2)
    return torch.cat([losses, more]), end


def alone_by_muon(_rank):
    model = zt.shard(stage_of(0, 1), optimizer="muon")
    optimizer = zt.Muon(model, lr=1e-3, adamw={"lr": 1e-3})
    found = []
    for t in range(STEPS):
        loss = loss_of(model(batch_of(t)[:, :-1]), batch_of(t)[:, 1:])
        loss.backward()
        found += [loss.detach(), model.clip_grad_norm_(0.5)]
        optimizer.step()
    return torch.stack(found), values(model)


@case
def pipeline_by_muon_as_one_process():
    close(in_ranks(by_muon, (2, 1)), ranks.run(alone_by_muon, 1, ranks.shared())[0])


def with_tensor_parallel(rank, path, shape):
    """Stages whose blocks are divided among the ranks of the stage."""
    mesh = meet(rank, path, shape, ("pp", "tp"))
    model = stage_of(rank // shape[1], shape[0])
    for block in model.blocks.values():
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    runner = Runner(zt.shard(model, mesh=mesh, pipeline="pp", tied=TIED), mesh, 0, 1)
    found = runner.train()
    raises(ValueError, "on all ranks", zt.load_safetensors, model, f"{path}.files", alone=True)
    raises(ValueError, ["other stages", "zeroctl checkpoint"], zt.save_safetensors, model, f"{path}.files")
    return found


@case
def pipeline_of_tensor_parallel_stages_as_one_process():
    close(in_ranks(with_tensor_parallel, (2, 2)), ranks.alone(alone))


def on_base(rank, path, shape, files_of):
    mesh = meet(rank, path, shape, ("pp", "dp"))
    model = adapters_only(stage_of(rank // shape[1], shape[0]), ("norm",))
    zt.shard(model, mesh=mesh, pipeline="pp", tied=TIED, base=files_of and [files_of])
    if files_of:
        assert model.sharded.params and all(p.trainable for p in model.sharded.params)
    return Runner(model, mesh, rank % shape[1], shape[1]).train()


@cases_of([((2, 1), 2), ((2, 2), 1)], "{0[0]}_nodes_{0[1]}")
def stages_of_a_pipeline_take_what_is_theirs(what):
    """Also a tied weight, which the files have under the first stage's name."""
    shape, nodes = what
    with frozen_files(adapters_only(stage_of(0, 1), ("norm",))) as (path,):
        without = in_ranks(on_base, shape, None, nodes=nodes)
        found = in_ranks(on_base, shape, path, nodes=nodes)
    for (losses, values), (other, others) in zip(sum(without, []), sum(found, [])):
        assert torch.equal(losses, other) and values.keys() == others.keys()
        assert all(torch.equal(value, others[n]) for n, value in values.items())


# ---- whole files --------------------------------------------------------------------------


def saved(rank, path, shape, directory):
    """Five steps, and a checkpoint that one rank writes."""
    if shape is None:
        model = zt.shard(stage_of(0, 1))
        optimizer = zt.AdamW(model, lr=1e-2)
        for t in range(5):
            loss_of(model(batch_of(t)[:, :-1]), batch_of(t)[:, 1:]).backward()
            model.clip_grad_norm_(0.5)
            optimizer.step()
    else:
        runner = runner_of(rank, path, shape)
        runner.train(5)
        model, optimizer = runner.model, runner.optimizer
    if rank == model.sharded.world_size - 1:  # of the last stage
        zt.save_checkpoint(f"{directory}/half", model, optimizer)
    model.sharded.barrier()
    return values(model)


def goes_on(rank, path, shape, directory):
    if shape is not None:
        runner = runner_of(rank, path, shape)
        zt.load_checkpoint(f"{directory}/half", runner.model, runner.optimizer)
        return runner.train(5, 5)
    model = zt.shard(stage_of(0, 1))
    optimizer = zt.AdamW(model, lr=1e-2)
    zt.load_checkpoint(f"{directory}/half", model, optimizer)
    found = []
    for t in range(5, 10):
        loss = loss_of(model(batch_of(t)[:, :-1]), batch_of(t)[:, 1:])
        loss.backward()
        found += [loss.detach(), model.clip_grad_norm_(0.5)]
        optimizer.step()
    return torch.stack(found), values(model)


@cases_of([((2, 2), None), (None, (2, 1)), ((2, 1), (4, 1))], "of_{0[0]}_to_{0[1]}")
def a_checkpoint_loads_under_another_cut(what):
    """Weights, moments and steps; the steps after it are those of one process."""
    with tempfile.TemporaryDirectory() as directory:
        def run(function, shape):
            if shape:
                return in_ranks(function, shape, directory)
            return [ranks.run(function, 1, ranks.shared(1), arguments=(None, None, directory))]
        run(saved, what[0])
        found = run(goes_on, what[1])
    losses, end = ranks.alone(alone, True, 10)
    close(found, (losses[10:], end))


# ---- kills --------------------------------------------------------------------------------


def until_the_end(rank, path, shape, killed):
    """Trains to the last step; as under torchrun, what a kill does to the others ends them."""
    runner = runner_of(rank, path, shape)
    with ending_with_others(killed):
        for step in zt.steps(runner.model, until=STEPS):
            with step as t:
                runner.backward(t)
                if killed and t == killed[0] and rank == 0:
                    os.kill(killed[1] or os.getpid(), signal.SIGKILL)
                runner.model.clip_grad_norm_(0.5)
                runner.optimizer.step()
    return values(runner.model)


@cases_of([0, 1, None], "of_node_{}")
def ranks_that_start_again_after_a_kill_end_at_the_same_bits(node):
    """Of a daemon, or of a rank."""
    start_again(until_the_end, (2, 1), node)


# ---- refusals -----------------------------------------------------------------------------


def refused(rank, path):
    mesh = meet(rank, path, (2, 1), ("pp", "dp"))
    raises(ValueError, ["'pp'", "mesh="], zt.shard, stage_of(rank, 2), pipeline="pp")
    raises(ValueError, "'stages'", zt.shard, stage_of(rank, 2), mesh=mesh, pipeline="stages")
    raises(ValueError, "pipeline=", zt.shard, stage_of(rank, 2), mesh=mesh, tied=TIED)
    # both stages have names of their own model
    raises(zerod.LayoutMismatch, ["two tensors are named", "one group"], zt.shard, nn.Sequential(nn.Linear(3, 3)), mesh=mesh,
           pipeline="pp", job="names")
    # one parameter, two shapes
    model = nn.Module()
    model.embed = nn.Embedding(5 + rank, 3)
    raises(zerod.LayoutMismatch, ["'embed.weight'", "[5, 3]", "[6, 3]"], zt.shard, model, mesh=mesh, pipeline="pp",
           tied=["embed.weight"], job="shapes")


@case
def what_does_not_fit_is_refused_by_name():
    with tempfile.TemporaryDirectory() as directory:
        ranks.run(refused, 2, ranks.shared(1), arguments=(f"{directory}/meet",))


def scaled(rank, path, shape):
    runner = runner_of(rank, path, shape)
    raises(RuntimeError, ["scale_grads=False", "micro-batches"], runner.schedule._stage.scale_grads, 2)
    assert len(list(runner.model.parameters())) > 1


@case
def a_schedule_that_would_divide_gradients_is_refused():
    in_ranks(scaled, (2, 1))


if __name__ == "__main__":
    ranks.main()
