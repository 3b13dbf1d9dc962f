#!/usr/bin/env python3
"""The process group of the service: what torch's collectives say, and a Trainer without any other group."""
import functools
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from cluster import Cluster  # noqa: E402
from harness import case, cases, cases_of  # noqa: E402

import torch  # noqa: E402
from torch import distributed  # noqa: E402

import zerod  # noqa: E402
import zerod.torch as zt  # noqa: E402
import trainer  # noqa: E402
from common import raises  # noqa: E402
from net import loss_of, make  # noqa: E402
from torchrun import started_again  # noqa: E402

cases.clear()  # those of trainer
OPS = {"SUM": torch.add, "MAX": torch.maximum, "MIN": torch.minimum, "PRODUCT": torch.mul}


def of_rank(rank, dtype, size):
    values = torch.randint(-2, 3, (size,), generator=torch.Generator().manual_seed(rank))
    return values.to(dtype) if dtype is not torch.int64 else values + (1 << 62)


def collectives(rank, n):
    zt.init_process_group()
    raises(RuntimeError, "0 sharded models", distributed.barrier)
    zt.shard(make())
    assert (distributed.get_rank(), distributed.get_world_size()) == (rank, n)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool):
        for size in (1, 7, 400):
            every = [of_rank(r, dtype, size) for r in range(n)]
            got = [torch.empty_like(every[0]) for _ in range(n)]
            distributed.all_gather(got, every[rank])
            assert all(map(torch.equal, got, every)), (dtype, size)
            whole = torch.empty(n * size, dtype=dtype)
            distributed.all_gather_into_tensor(whole, every[rank])
            assert torch.equal(whole, torch.cat(every)), (dtype, size)
            mine = every[rank].clone()
            distributed.broadcast(mine, src=n - 1)
            assert torch.equal(mine, every[-1]), (dtype, size)
            for op, wanted in OPS.items() if dtype in (torch.float32, torch.int64) else ():
                mine = every[rank].clone()
                distributed.all_reduce(mine, getattr(distributed.ReduceOp, op))
                assert torch.equal(mine, functools.reduce(wanted, every)), (dtype, size, op)
    objects = [None] * n
    distributed.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert objects == [{"rank": r, "text": "x" * r} for r in range(n)]
    raises(ValueError, "outputs", distributed.all_gather, [torch.zeros(2)] * n, torch.ones(1))
    if n > 1 and rank == 0:  # of all ranks there may be another group
        raises(ValueError, ["1 of", "gloo"], distributed.new_group, [0])
    assert distributed.get_world_size(distributed.new_group()) == n
    raises(ValueError, ["broadcast", "gloo"], distributed.broadcast, torch.zeros(1 << 20), src=0)
    raises(NotImplementedError, "SUM", distributed.all_reduce, torch.ones(1), distributed.ReduceOp.BAND)
    distributed.barrier()
    distributed.destroy_process_group()


@cases_of([1, 2, 3], "{}_ranks")
def collectives_are_those_of_torch(n):
    ranks.run(collectives, [r % 2 for r in range(n)], ranks.shared(2), arguments=(n,))


def another(rank, first, second):
    zt.init_process_group()
    zt.shard(make(), client=zerod.connect(timeout=120), on_lost_rank="fail")
    try:
        (first if rank else second)()
    except zerod.Error as error:
        return type(error).__name__, str(error)


def gathers(*values):
    mine = torch.tensor(values)
    distributed.all_gather([torch.empty_like(mine) for _ in range(2)], mine)


OTHERS = {"kind": (lambda: distributed.all_reduce(torch.ones(1)), distributed.barrier, ["all_reduce", "barrier"]),
          "size": (lambda: gathers(1., 2., 3.), lambda: gathers(1., 2.), ["12 bytes", "8 bytes"]),
          "dtype": (lambda: gathers(1, 2), lambda: gathers(1., 2., 3., 4.), ["int64", "float32"])}


@cases_of(OTHERS, "{}")
def ranks_at_other_collectives_are_told(what):
    """Sizes that take as many numbers of a reduction, too."""
    *calls, words = OTHERS[what]
    said = dict(ranks.run(another, 2, ranks.shared(), arguments=calls))
    assert all(word in said["Conflict"] for word in (*words, "rank 0", "rank 1")), said


def loses(rank, daemon, early):
    """The collective must not be repeated with a part of the step behind it.  early: before the backward pass."""
    zt.init_process_group()
    model = zt.shard(make(), client=zerod.connect(timeout=120))
    optimizer, said, killed = zt.AdamW(model), [], False
    for step in zt.steps(model, until=2):
        with step as t:
            loss = loss_of(model, t + rank)
            if not early:
                loss.backward()
            if t == 1 and not killed:
                killed = True
                distributed.barrier()
                if rank == 0:
                    os.kill(daemon, 9)
            mean = loss.detach().clone()
            distributed.all_reduce(mean, distributed.ReduceOp.AVG)
            if early:
                loss.backward()
            optimizer.step()
            said.append((t, mean.item()))
    return said[-2:]


@cases_of([False, True], "before_backward_{}")
def a_step_is_repeated_with_its_collectives(early):
    with Cluster(2) as cluster, ranks.Ranks(loses, [0, 1], cluster, arguments=(cluster[1].process.pid, early)) as job:
        cluster[1].process.wait(ranks.DEADLINE_S)
        cluster[1].start()
        first, second = job.finish()
        assert first == second and [t for t, _ in first] == [0, 1], (first, second)


SCRIPT = """
import os, sys
place = dict(os.environ)
from torch import distributed
init = distributed.init_process_group
def refuse(backend=None, *arguments, **more):
    if backend != "zerod":
        raise RuntimeError(f"process group {{backend}} is refused here")
    return init(backend, *arguments, **more)
distributed.init_process_group = refuse
import zerod.torch as zt
sys.path.insert(0, {here!r})
import trainer
os.environ.update(place)
zt.init_process_group()
said = trainer.perish(int(os.environ["RANK"]), {directory!r}, trainer.ACCUMULATING, os.getpid())
os.write(1, f"RANK {{os.environ['RANK']}} {{said}}\\n".encode())
"""


@case
def a_trainer_is_killed_and_started_again_while_gloo_is_refused():
    """By torchrun; it ends at the bits of a Trainer that has gloo and lives."""
    here = os.path.dirname(os.path.abspath(__file__))
    with Cluster(1) as cluster, tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        wanted = trainer.run(trainer.perish, [0, 0], cluster, f"{directory}/undisturbed", trainer.ACCUMULATING, 0)
        said = started_again(cluster, SCRIPT.format(here=here, directory=directory), 2, "trained")
        assert os.path.exists(f"{directory}/mark1") and not os.path.exists(f"{directory}/mark0"), "rank 1 was not killed"
        for rank, (losses, norms, *rest) in enumerate(wanted):
            assert said[rank] == str((losses[trainer.DIES_AT:], norms[trainer.DIES_AT:], *rest)), f"{said}\nundisturbed: {wanted}"


if __name__ == "__main__":
    ranks.main()
