#!/usr/bin/env python3
"""zerod.torch.follow(): tensors of whole versions, bit for bit those of the trainers, wherever they are read."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402
from harness import case, cases_of  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402

import zerod  # noqa: E402
import zerod.torch as zt  # noqa: E402
from common import raises  # noqa: E402
from net import fetched, full, in_rank, loss_of, make, train  # noqa: E402
from scene import Scene  # noqa: E402

STEPS, READ = 12, 3


class Mixed(nn.Module):
    """Parameters of all dtypes.  Some take no whole words of four bytes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        for n in (1, 5, 4099):
            values = torch.randint(0, 256, (n,), dtype=torch.uint8)
            for dtype in (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2):
                setattr(self, f"p{n}_{dtype}"[:-1].replace("torch.", ""), nn.Parameter(values.view(dtype), requires_grad=False))
        self.mask = nn.Parameter(torch.rand(3, 7) < 0.5, requires_grad=False)
        self.empty = nn.Parameter(torch.empty(0, 3, dtype=torch.int8), requires_grad=False)
        self.bf16 = nn.Parameter(torch.randn(5, 3, dtype=torch.bfloat16))
        self.scalar = nn.Parameter(torch.tensor(0.5))

    def forward(self):
        return self.bf16.float().square().sum() * self.scalar


MODELS = {"fp32": make, "bf16": lambda: make().bfloat16(), "tied": lambda: make(tied=True), "mixed": Mixed}


def raw(tensors):
    """{name: dtype, shape and bytes}."""
    return {n: (t.dtype, tuple(t.shape), bytes(t.detach().reshape(-1).view(torch.uint8).tolist())) for n, t in tensors.items()}


def step(model, optimizer, t):
    (model() if isinstance(model, Mixed) else loss_of(model, t)).backward()
    optimizer.step()


@cases_of(MODELS)
def equals_the_ranks_parameters(kind):
    """Read by each of two ranks on two nodes, between steps."""
    def run(_):
        model = zt.shard(MODELS[kind]())
        optimizer = zt.AdamW(model, lr=1e-2)
        with zt.follow(model.sharded.client.job) as job:
            for t in range(READ):
                with job.wait(version=t) as weights:
                    found, names = weights.state_dict(), {n for n, _ in model.named_parameters()}
                    assert raw(found) == raw({n: p for n, p in full(model).items() if n in names}) and not fetched(model)
                    assert [(n, v.dtype, tuple(v.shape)) for n, v in weights] == weights.metadata()
                    name = next(n for n, p in model.named_parameters() if p.requires_grad)
                    assert torch.equal(model.get_parameter(name).full_tensor(), found[name])
                model.sharded.barrier()
                step(model, optimizer, t)
    ranks.run(run, [0, 1], ranks.shared(2))


def trained(rank):
    """What rank 0 has at each version."""
    model = zt.shard(make(tied=True, seed=rank), keep=True)
    optimizer = zt.AdamW(model, lr=1e-2)
    values = [raw(full(model))]
    for t in range(STEPS):
        step(model, optimizer, t)
        values.append(raw(full(model)))
    return values


def loaded(_):
    """What a model has that loads each version that it meets, by version."""
    met, model = {}, make(seed=7, tied=True)
    with zt.follow() as job:
        for weights in job:
            with weights:
                missing, unexpected = model.load_state_dict(weights.state_dict(), strict=False)
            assert missing == ["head.weight"] and not unexpected, "a tied parameter comes once"
            met[weights.version] = raw(dict(model.named_parameters(remove_duplicate=False)))
            if weights.version == STEPS:
                return met


@case
def another_process_follows_from_before_the_first_rank():
    cluster = ranks.shared(2)
    with ranks.Ranks(loaded, [1], cluster, "job") as reader, ranks.Ranks(trained, [0, 1], cluster, "job") as trainers:
        values = trainers.finish()
        met, = reader.finish()
    cluster[0].ctl("drop", "job")
    assert len(met) > 1 and list(met) == sorted(met), list(met)
    met.pop(0, None)  # rank 0 may have been putting first values
    for version, found in met.items():
        assert found == values[0][version] == values[1][version], version


@case
def what_is_released_is_not_viewed():
    def run():
        model = zt.shard(make())
        job = zt.follow(model.sharded.client.job)
        weights = job.wait()
        walk = iter(weights)
        next(walk)
        weights.release()
        for read in (weights.state_dict, lambda: weights.view(0), lambda: next(walk)):
            raises(ValueError, "version 0 is released", read)
        train(model, zt.AdamW(model), 2)
        raises(zerod.Gone, ["version 1", "stands at version 2"], job.wait, version=1)
        raises(zerod.Deadline, "stands at version 2", job.wait, newer_than=2, timeout=0.3)
        assert job.wait(newer_than=0).version == 2
        job.close()
        raises(zerod.Closed, "closed", job.wait)
    in_rank(run)


@case
def a_held_version_outlives_the_daemon():
    def run():
        with Scene(make()) as scene:
            optimizer = zt.AdamW(scene.model, lr=1e-2)
            with zt.follow("job", socket=scene.cluster[0].socket) as job:
                held = job.wait()
                want = raw(full(scene.model))
                scene.restart()
                assert raw(held.state_dict()) == want
                for t in zt.steps(scene.model, until=2):
                    with t as i:
                        step(scene.model, optimizer, i)
                again = job.wait(newer_than=0)
                assert again.version == 2 and raw(again.state_dict()) == raw(full(scene.model))
                assert raw(held.state_dict()) == want
                scene.restart()
                assert job.wait().version == 2
    ranks.alone(run)


@case
def a_job_that_is_not_there():
    def run():
        job = zt.follow("nothing")
        raises(zerod.NoJob, "'nothing'", job.wait, timeout=0.3)
        model = zt.shard(make(), job="nothing")
        train(model, zt.AdamW(model), 1)
        assert job.wait().version == 1
        zt.drop("nothing")
        raises(zerod.NoJob, "'nothing'", job.wait, timeout=0.3)
    in_rank(run)


if __name__ == "__main__":
    ranks.main()
