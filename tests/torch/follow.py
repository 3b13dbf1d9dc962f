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
from net import WIDTH, fetched, full, in_rank, loss_of, make, train  # noqa: E402
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


@case
def tensors_in_the_readers_dtype():
    def run(_):
        model = zt.shard(make())
        optimizer = zt.AdamW(model, lr=1e-2)
        for dtype in (torch.bfloat16, torch.float16):
            with zt.follow(model.sharded.client.job, dtype=dtype) as job, job.wait() as weights:
                assert raw(weights.state_dict()) == raw({n: p.to(dtype) for n, p in full(model).items()})
                assert {d for _, d, _ in weights.metadata()} == {dtype}
            model.sharded.barrier()
            step(model, optimizer, 0)
    ranks.run(run, [0, 1], ranks.shared(2))


def tensor_parallel(rank, world):
    """The boxes of a rank of Net: rows of "up", columns of "down", three slices as one, and a new name."""
    part, up, down = zt.Part(rank, world), "blocks.0.up.weight", "blocks.0.down.weight"
    return {"up": zt.Output(zt.Box(up, part), shape=(WIDTH * 2 // world, WIDTH)),
            "down": zt.Box(down, slice(None), part),
            "rows": zt.Output(zt.Box(up, slice(2, 4)), "blocks.0.up.weight", zt.Box(up, slice(40, None)), dtype=torch.bfloat16),
            "columns": zt.Output(zt.Box(down, slice(0, 24), slice(4)), zt.Box("head.weight", slice(0, 0 + 11), slice(5, 9)), dim=0),
            "head": "head.weight"}


def made(p, rank, world):
    """The same of the whole tensors."""
    up, down, head = p["blocks.0.up.weight"], p["blocks.0.down.weight"], p["head.weight"]
    return {"up": up.chunk(world)[rank], "down": down.chunk(world, 1)[rank], "rows": torch.cat([up[2:4], up, up[40:]]),
            "columns": torch.cat([down[:, :4], head[:, 5:9]]), "head": head}


@case
def boxes_of_tensors():
    """As the reader wants them, in bf16; also of two versions at once, and of one after another in the same memory."""
    def run(rank):
        model = zt.shard(make())
        optimizer = zt.AdamW(model, lr=1e-2)
        name, client = model.sharded.client.job, model.sharded.client
        with zt.follow(name, dtype=torch.bfloat16, form=tensor_parallel(rank, 2)) as job, zt.follow(name) as whole:
            held = None
            for t in range(READ):
                want = made({n: p.bfloat16() for n, p in full(model).items()}, rank, 2)
                weights = job.wait(version=t)
                found = weights.state_dict()
                assert raw(found) == raw(want) and list(found) == list(want)
                assert weights.metadata() == [(n, v.dtype, tuple(v.shape)) for n, v in found.items()]
                if held:
                    assert raw(held[0].state_dict()) == held[1]
                    held[0].release()
                    raises(ValueError, "is released", held[0].output, "rows")
                held = weights, raw(want)
                assert found["rows"] is weights.output("rows") and found["up"].data_ptr() == weights.output("up").data_ptr()
                with whole.wait() as everything:
                    assert weights._held.bytes < everything._held.bytes / 2
                raises(zerod.NoGroup, ["blocks.1.up.weight", "groups"], weights.view, client.layout.find("blocks.1.up.weight"))
                model.sharded.barrier()
                step(model, optimizer, t)
            assert len(job._plan.free) == 1
    ranks.run(run, [0, 1], ranks.shared(2))


@case
def boxes_of_bytes_and_scalars():
    def run():
        model = zt.shard(MODELS["mixed"]())
        form = {"a": zt.Output(*(zt.Box("p4099_int", slice(i, i + 3)) for i in (0, 7))), "mask": zt.Box("mask", slice(1, 3)),
                "f8": zt.Box("p5_float8_e5m", slice(1, 4)), "none": "empty", "scalar": "scalar",
                "both": zt.Output("mask", "mask", dim=1)}
        with zt.follow(model.sharded.client.job, form=lambda shapes: form if shapes["mask"] == (3, 7) else None) as job:
            p = full(model)
            want = {"a": torch.cat([p["p4099_int"][:3], p["p4099_int"][7:10]]), "mask": p["mask"][1:], "f8": p["p5_float8_e5m"][1:4],
                    "none": p["empty"], "scalar": p["scalar"], "both": torch.cat([p["mask"]] * 2, 1)}
            assert raw(job.wait().state_dict()) == raw(want)
    in_rank(run)


HEAD = "head.weight"
WRONG_FORMS = {
    "unknown": ({"a": "head.wieght"}, zerod.NoGroup, ["'a'", "'head.wieght'", "did you mean 'head.weight'"]),
    "beyond": ({"a": zt.Box(HEAD, slice(5, 12))}, zerod.OutOfRange, ["'a'", HEAD, "dimension 0", "5 to 12", "0 to 11"]),
    "before": ({"a": zt.Box(HEAD, slice(-3, None))}, zerod.OutOfRange, [HEAD, "-3"]),
    "empty": ({"a": zt.Box(HEAD, slice(None), slice(4, 4))}, zerod.OutOfRange, [HEAD, "dimension 1", "empty"]),
    "backwards": ({"a": zt.Box(HEAD, slice(7, 4))}, zerod.OutOfRange, [HEAD, "7 to 4"]),
    "strided": ({"a": zt.Box(HEAD, slice(0, 8, 2))}, ValueError, [HEAD, "step"]),
    "deep": ({"a": zt.Box(HEAD, slice(1), slice(1), slice(1))}, zerod.OutOfRange, [HEAD, "3 dimensions"]),
    "unequal": ({"a": zt.Box(HEAD, zt.Part(0, 2))}, zerod.OutOfRange, [HEAD, "11", "2 equal parts", "slice"]),
    "no_part": ({"a": zt.Box(HEAD, zt.Part(2, 2))}, zerod.OutOfRange, ["no part 2 of 2"]),
    "no_world": ({"a": zt.Box(HEAD, zt.Part(0, 0))}, zerod.OutOfRange, ["no part 0 of 0"]),
    "twice": ([("a", HEAD), ("b", HEAD), ("a", "embed.weight")], ValueError, ["'a' twice"]),
    "shape": ({"a": zt.Output(HEAD, shape=[11, 25])}, ValueError, ["'a'", HEAD, "(11, 24)", "(11, 25)", "boxes"]),
    "dtype": ({"a": zt.Output(HEAD, dtype=torch.bfloat16)}, ValueError, ["'a'", HEAD, "float32", "bfloat16", "follow(dtype=)"]),
    "joined": ({"a": zt.Output(HEAD, "blocks.0.up.weight", dim=1)}, ValueError, ["'a'", "(11, 24)", "(48, 24)", "other dimensions"]),
    "joined_ranks": ({"a": zt.Output(HEAD, "blocks.0.up.bias")}, ValueError, ["'a'", "other dimensions"]),
    "no_dim": ({"a": zt.Output(HEAD, HEAD, dim=2)}, ValueError, ["'a'", "dimension 2"]),
    "nothing": ({}, ValueError, ["no output"]),
    "strange": ({"a": 5}, TypeError, ["'a'", "int"]),
}


@cases_of(WRONG_FORMS)
def forms_that_are_wrong(kind):
    def run():
        form, error, words = WRONG_FORMS[kind]
        model = zt.shard(make())
        with zt.follow(model.sharded.client.job, form=form) as job:
            raises(error, words, job.wait)
            raises(error, words, job.wait)
    in_rank(run)


@case
def arguments_that_are_wrong():
    raises(TypeError, ["'a'", "int"], zt.Box, "a", 3)
    raises(TypeError, "str", zt.Box, 3)
    raises(ValueError, "one box", zt.Output)
    raises(ValueError, "groups or form", zt.follow, groups=[0], form={"a": "b"})
    raises(ValueError, ["torch.int8", "torch.bfloat16"], zt.follow, dtype=torch.int8)


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
