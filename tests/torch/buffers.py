#!/usr/bin/env python3
"""Buffers: alike on all ranks at first, and those of the step before in whatever makes a step again."""
import contextlib
import itertools
import logging
import os
import signal
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from cluster import until  # noqa: E402
from harness import case, cases_of  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402

import zerod  # noqa: E402
import zerod.torch as zt  # noqa: E402
from common import raises  # noqa: E402
from scene import Scene  # noqa: E402
from survivor import LONG_S, die, once  # noqa: E402

STEPS, AT, VICTIM, WIDTH = 5, 2, 1, 6


class Net(nn.Module):
    """Statistics, a queue with its position, a codebook that forward replaces, and what is saved nowhere."""

    def __init__(self, large=0):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("queue", torch.zeros(4, dtype=torch.bfloat16))
        self.register_buffer("used", torch.zeros(4, dtype=torch.bool))
        self.register_buffer("at", torch.tensor(0))
        self.register_buffer("codebook", torch.ones(WIDTH))
        self.register_buffer("table", torch.full((WIDTH,), 0.5), persistent=False)
        self.large = nn.Module()
        self.large.register_buffer("scores", torch.zeros(large))

    def forward(self, x):
        h = self.inner(x)
        if self.training:
            self.queue[self.at % 4] = h.detach().mean()
            self.used[self.at % 4] = True
            self.at += 1
            self.codebook = 0.9 * self.codebook + 0.1 * h.detach().mean(0)
        return self.out(h * self.codebook * self.table).square().mean()


def make(seed=0, **options):
    torch.manual_seed(seed)
    return Net(**options)


def batch_of(t, rank):
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(100 * t + rank))


def bits(model):
    """Of parameters and buffers."""
    return {name: value.flatten().view(torch.uint8).tolist() for name, value in model.state_dict().items()}


def train(rank, moment=None, directory=None, target=None, until=STEPS):
    """Something dies in step AT, on the victim or by it; this rank's bits at the end."""
    model = zt.shard(make(), client=zerod.connect(timeout=LONG_S))
    optimizer = zt.AdamW(model, lr=1e-2)
    act = once(directory, lambda: os.kill(target or os.getpid(), signal.SIGKILL))
    for step in zt.steps(model, until=until, seed=0):
        with step as t:
            doomed = moment is not None and rank == VICTIM and t == AT
            if doomed and moment == "forward":
                model.out.register_forward_pre_hook(lambda *_: act())
            loss = model(batch_of(t, rank))
            if doomed and moment == "backward":
                loss.register_hook(lambda _: act())
            loss.backward()
            if doomed and moment == "step":
                act()
            optimizer.step()
            if doomed and moment == "end":
                act()
    return bits(model)


def undisturbed():
    said = ranks.run(train, [0, 1], ranks.shared(2))
    assert said[0]["inner.1.running_mean"] != said[1]["inner.1.running_mean"], "each rank has its own"
    assert said[0]["inner.0.weight"] == said[1]["inner.0.weight"]
    return said


def check(said, wanted):
    for rank, (got, want) in enumerate(zip(said, wanted)):
        assert got == want, f"rank {rank}: {[name for name in want if got[name] != want[name]]} differ"


def disturbed(moment, restart, target=None):
    cluster = ranks.shared(2)
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        with ranks.Ranks(train, [0, 1], cluster, arguments=(moment, directory, target)) as job:
            restart(job)
            said = job.finish()
            cluster[0].ctl("drop", job.job)
        assert os.listdir(directory), "nothing was killed"
    check(said, undisturbed())


@cases_of(["forward", "backward", "step", "end"])
def rank_is_started_again_in(moment):
    disturbed(moment, lambda job: job.restart(VICTIM))


@cases_of(["forward", "backward", "step"])
def daemon_is_started_again_in(moment):
    """Its ranks make the step again, and find the buffers of before."""
    daemon = ranks.shared(2)[0]

    def restart(_job):
        daemon.process.wait(ranks.DEADLINE_S)
        daemon.start()
    disturbed(moment, restart, daemon.process.pid)


@case
def a_job_goes_on_later():
    cluster = ranks.shared(2)
    ranks.run(train, [0, 1], cluster, job="later", arguments=(None, None, None, AT), keep=True)
    check(ranks.run(train, [0, 1], cluster, job="later"), undisturbed())


class Odd(nn.Module):
    """A slice, an expanded one and a conjugate, which have no view as bytes, and one that only inference mode may write."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("slice", torch.zeros(8)[::2])
        self.register_buffer("single", torch.zeros(8)[::8])
        self.register_buffer("spread", torch.zeros(1).expand(4))
        self.register_buffer("conjugate", torch.zeros(3, dtype=torch.complex64).conj())
        with torch.inference_mode():
            self.register_buffer("inferred", torch.zeros(3))
        self.register_buffer("input", torch.zeros(8, WIDTH), persistent=False)

    def forward(self, x):
        self.input = x
        self.slice += 1
        self.single += 1
        self.spread = self.spread + 1
        self.conjugate += 1j
        with torch.inference_mode():
            self.inferred += 1
        return self.linear(x).sum()


def odd(rank):
    told = Told()
    model = zt.shard(Odd(), client=zerod.connect(timeout=LONG_S))
    optimizer = zt.AdamW(model)
    begun = [b.flatten()[0].item() for b in model.buffers()][:5]
    for step in zt.steps(model, until=3, seed=0):
        with step as t:
            x = batch_of(t, rank)
            model(x).backward()
            if rank == VICTIM and t == 1 and begun[0] == 0:
                die()
            optimizer.step()
            assert torch.equal(x, batch_of(t, rank)), "a batch is the trainer's own"
    assert not told.texts, told.texts
    return begun, [b.flatten()[0].item() for b in model.buffers()][:5]


@case
def buffers_of_any_form():
    cluster = ranks.shared(2)
    with ranks.Ranks(odd, [0, 1], cluster) as job:
        job.restart(VICTIM)
        said = job.finish()
        cluster[0].ctl("drop", job.job)
    assert said == [([0, 0, 0, 0, 0], [3, 3, 3, 3j, 3]), ([1, 1, 1, 1j, 1], [3, 3, 3, 3j, 3])], said


def ensemble(rank):
    model = zt.shard(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)).eval())
    means, x = torch.stack([torch.zeros(WIDTH), torch.ones(WIDTH)]), batch_of(0, rank)
    with torch.no_grad():
        zero, one = torch.vmap(lambda mean: torch.func.functional_call(model, {"1.running_mean": mean}, (x,)))(means)
        assert torch.allclose(zero, model(x)) and not torch.allclose(one, zero)


@case
def buffers_of_vmap():
    ranks.run(ensemble, 1, ranks.shared())


# ---- a step that this process repeats --------------------------------------------------------


class Counts(nn.Module):
    """More than is kept with a step, and what is saved nowhere."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("large", torch.zeros(3000))
        self.register_buffer("passing", torch.zeros(2), persistent=False)
        self.frozen = nn.Module()
        self.frozen.register_buffer("weights", torch.zeros(17 << 20))

    def forward(self, x):
        if self.training:
            self.large += 1
            self.passing = self.passing + 1
        return self.linear(x).sum()


def repeated(_rank, blocks):
    """The second step's first try is aborted; before it are a pass without gradients, and a change."""
    with Scene(Counts()) as s:
        model, optimizer, tries, x = s.model, zt.AdamW(s.model), 0, batch_of(0, 0)
        steps = zt.steps(model, until=2)
        while model.sharded.steps_made < 2:
            if tries == 1:
                with torch.no_grad():
                    model.eval()(x)
                    model.train().large += 10
            tries += 1
            with next(steps) if blocks else contextlib.suppress(zerod.Aborted):
                if blocks:
                    model.passing += 100
                model(x).backward()
                if tries == 2:
                    s.restart()
                optimizer.step()
        return tries, *({v.item() for v in b.unique()} for b in (model.large, model.passing))


@cases_of(["steps", "own"])
def repeated_in_a_loop_of(loop):
    blocks = loop == "steps"
    (tries, large, passing), = ranks.run(repeated, 1, arguments=(blocks,))
    assert (tries, large, passing) == (3, {12}, {202 if blocks else 2}), (tries, large, passing)


# ---- what is not kept ------------------------------------------------------------------------


class Told(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []
        logging.getLogger("zerod").addHandler(self)

    def emit(self, record):
        self.texts.append(record.getMessage())

    def about(self, word):
        return [t for t in self.texts if word in t]


def too_large(rank):
    told = Told()
    model = zt.shard(make(large=3000))
    said, = told.about("are not kept")
    assert "12000 bytes" in said and "'large.scores'" in said and "checkpoint" in said, said
    optimizer = zt.AdamW(model, lr=1e-2)
    for blob in (b"x" * 8168, b"y" * 8160, b"", b"z" * 8168):
        with torch.no_grad():
            model.codebook.add_(1)
        model(batch_of(0, rank)).backward()
        optimizer.step(blob=blob)
        assert optimizer.kept == blob
    said = told.about("are not kept")
    assert len(said) == 2 and "'inner.1.running_mean'" in said[1] and "has room for 0" in said[1], said


@case
def what_does_not_fit_is_named_and_a_ranks_own_bytes_come_first():
    ranks.run(too_large, 1, ranks.shared())


def forms(_rank):
    told = Told()
    model = make()
    model.register_buffer("sparse", torch.eye(2).to_sparse())
    model.register_buffer("tagged", nn.Buffer(torch.ones(2)).as_subclass(Tagged))
    model.register_buffer("passing", torch.eye(2).to_sparse(), persistent=False)
    zt.shard(model)
    said, = told.about("are not kept")
    assert "of 24 bytes" in said and "'sparse', 'tagged'." in said, said


class Tagged(torch.Tensor):
    """A tensor of somebody else's class."""


@case
def what_is_no_plain_tensor_is_named():
    ranks.run(forms, 1, ranks.shared())


def other_model(_rank, width):
    told = Told()
    model = zt.shard(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    model[1].register_buffer("more", torch.zeros(width))
    model(torch.randn(4, 3)).sum().backward()
    zt.AdamW(model).step()
    return told.texts, model[1].running_mean.tolist()


@case
def other_buffers_stay_as_they_are():
    ranks.run(other_model, 1, ranks.shared(), job="other", arguments=(2,), keep=True)
    (texts, _), = ranks.run(other_model, 1, ranks.shared(), job="other", arguments=(2,))
    assert any("other buffers than this model has" in t for t in texts), texts


def grows(rank):
    told = Told()
    model = zt.shard(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)))
    begun = model[1].num_batches_tracked.item()
    model(batch_of(0, rank)).sum().backward()
    zt.AdamW(model).step()
    return begun, len(told.about(f"rank {rank} is new in job"))


@case
def a_larger_and_a_smaller_world_go_on_with_what_ranks_have_kept():
    cluster = ranks.shared(3)
    said = [ranks.run(grows, nodes, cluster, job="grows", keep=nodes != [0]) for nodes in ([1, 2], [0, 1, 2], [0])]
    assert said == [[(0, 0)] * 2, [(1, 0), (1, 0), (0, 1)], [(2, 0)]], said


# ---- alike at first --------------------------------------------------------------------------


def differs(rank, name):
    model = make(seed=0)
    with torch.no_grad():
        for i in range(100):
            model.register_buffer(f"b{i}", torch.full((3,), float(i)))
        model.register_buffer("count", torch.full((3,), 10 ** 6))
        model.register_buffer("wide", torch.full((3,), torch.finfo(torch.float64).min, dtype=torch.float64))
        values = getattr(model, name)
        values[rank] = -values[rank] if name == "wide" else values[rank] + 1
    error = raises(zerod.LayoutMismatch, [f"'{name}'", "torch.manual_seed()", "after shard(), if model.sharded.steps_made is 0"], zt.shard, model)
    assert "'at'" not in str(error)


@cases_of(["queue", "used", "table", "count", "wide", "b7", "b93"])
def buffers_that_differ_are_named(name):
    cluster = ranks.shared(2)
    ranks.run(differs, [0, 1], cluster, job="differs", arguments=(name,))
    ranks.run(train, [0, 1], cluster, job="differs")


def alike(rank):
    """One process rounds otherwise, and what must be the same is: parameters are rank 0's."""
    model = make(seed=rank)
    model.table.mul_(1 + 1e-7 * rank)
    model.register_buffer("mask", torch.full((3, 3), -torch.inf).triu_(1))
    model.register_buffer("waves", torch.polar(torch.ones(3), torch.arange(3.0)))
    model.register_buffer("sparse", torch.eye(2).to_sparse())
    model.register_buffer("wide", torch.full((2,), torch.finfo(torch.float64).min, dtype=torch.float64))
    model.register_buffer("nothing", None)
    model.register_buffer("empty", torch.zeros(0))
    zt.shard(model)


@case
def what_is_alike_is_taken():
    ranks.run(alike, 2, ranks.shared())


def begins(rank, moment, directory):
    """The victim is killed within shard(): behind a call of its own, or as it waits for the other one to meet."""
    client, (pid, back, over) = zerod.connect(timeout=LONG_S), (f"{directory}/{name}" for name in ("pid", "back", "over"))

    def watch(name, before, behind):
        call = getattr(client, name)

        def watched(*arguments, **named):
            before()
            try:
                return call(*arguments, **named)
            finally:
                behind()
        setattr(client, name, watched)

    def write(path):
        with open(path, "w", encoding="ascii") as f:
            f.write(str(os.getpid()))

    def is_waited_for():
        job, = (j for j in client.query("jobs")["jobs"] if j["job"] == client.job)
        return any(f"rank {rank} " in str(w) for w in job["waiting"])

    def kill_who_waits():
        until(is_waited_for, what="the other one's call")
        with open(pid, encoding="ascii") as f:
            os.kill(int(f.read()), signal.SIGKILL)
        until(lambda: os.path.exists(back) and (os.path.exists(over) or is_waited_for()), LONG_S, "its successor's call")

    if rank == VICTIM and moment == "waiting":
        if os.path.exists(pid):
            watch("all_reduce", lambda: write(back), lambda: write(over))
        else:
            write(pid)
    elif rank == VICTIM:
        watch({"attached": "attach", "compared": "all_reduce", "met": "step"}[moment], int, once(directory, die))
    elif moment == "waiting":
        watch("step", once(directory, kill_who_waits), int)
    zt.shard(make(), client=client)
    return client.version


@cases_of(itertools.product(["attached", "compared", "waiting", "met"], [1, 2]), "{0[0]}_on_{0[1]}_nodes")
def killed_within_shard(what):
    moment, nodes = what
    cluster = ranks.shared(2)
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        with ranks.Ranks(begins, [0, nodes - 1], cluster, arguments=(moment, directory)) as job:
            job.restart(VICTIM)
            assert job.finish() == [0, 0]
            cluster[0].ctl("drop", job.job)


@case
def killed_as_a_larger_world_goes_on():
    cluster = ranks.shared(2)
    ranks.run(train, [0], cluster, job="larger", arguments=(None, None, None, AT), keep=True)
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        with ranks.Ranks(begins, [0, 1], cluster, job="larger", arguments=("compared", directory)) as job:
            job.restart(VICTIM)
            assert job.finish() == [AT, AT]


if __name__ == "__main__":
    ranks.main()
