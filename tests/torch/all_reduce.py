#!/usr/bin/env python3
"""Numbers over all ranks: zerod.torch.all_reduce().  kill.py has what dies meanwhile."""
import contextlib
import math
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402
from cluster import until  # noqa: E402
from harness import case, cases_of  # noqa: E402

import torch  # noqa: E402

from common import raises, zero  # noqa: E402
from gpt import batch_of, make  # noqa: E402


@case
def all_ranks_get_the_same():
    """Between steps and within them, in double and in the order of ranks."""
    def run(rank):
        zt, model = zero(make())
        optimizer, mine = zt.AdamW(model), 0.1 * (rank + 1)
        said = []
        for t in range(3):
            loss = model(batch_of(t, 4).chunk(4)[rank])
            loss.backward()
            said.append(zt.all_reduce(mine))
            optimizer.step()
            said += [zt.all_reduce(mine, "mean"), zt.all_reduce(mine, "max"), zt.all_reduce(-mine, "min")]
            mean = zt.all_reduce(loss, "mean")
            assert mean.shape == loss.shape and mean.dtype is loss.dtype
            said.append(float(mean))
        assert zt.all_reduce([1.0, 1e16, -1e16, 1.0][rank]) == 1.0  # 2 in another order
        many = zt.all_reduce(torch.full((8, 8), rank, dtype=torch.int64))
        assert many.tolist() == [[6] * 8] * 8 and many.dtype is torch.int64
        assert math.isnan(zt.all_reduce(math.nan if rank == 2 else 1.0, "max"))
        return said
    said = ranks.run(run, [0, 1, 1, 0], ranks.shared(2))
    assert said == said[:1] * 4
    total = ((0.1 + 0.1 * 2) + 0.1 * 3) + 0.1 * 4
    assert said[0][:4] == [total, total / 4, 0.1 * 4, -(0.1 * 4)], said[0]


@case
def wrong_values_are_refused():
    def run(_):
        import zerod
        zt, _ = zero(make())
        raises(ValueError, ["mean, max or min"], zt.all_reduce, 1.0, "median")
        raises(ValueError, ["64"], zt.all_reduce, torch.ones(65))
        raises(ValueError, ["64"], zt.all_reduce, torch.ones(0))
        raises(zerod.Invalid, ["63"], zt.all_reduce, 1.0, name="a" * 64)
        assert zt.all_reduce(1.5) == 1.5
    ranks.run(run, 1, ranks.shared())


PLACEMENTS = ([0, 0], [0, 1])


@cases_of(PLACEMENTS)
def ranks_that_reduce_different_things_are_told(placement):
    def run(rank):
        import zerod
        zt, _ = zero(make())
        try:
            zt.all_reduce(1.0, name=("loss", "accuracy")[rank])
            return ""
        except zerod.Conflict as error:
            assert zt.all_reduce(1.0, name=("accuracy", "loss")[rank]) == 2
            return str(error)
    said = "".join(ranks.run(run, placement, ranks.shared(2)))
    assert "'loss'" in said and "'accuracy'" in said and "rank 0" in said and "rank 1" in said, said


@cases_of([(p, first) for p in PLACEMENTS for first in (0, 1)])
def a_rank_that_ends_the_step_meanwhile_is_told(what):
    """The second of the two is refused; it does what the first one does."""
    placement, first = what

    def run(rank):
        import zerod
        zt, model = zero(make())
        optimizer, said = zt.AdamW(model), []

        def reduce():
            zt.all_reduce(1.0, name="loss")
        def is_waited_for():
            client = model.sharded.client
            job, = (j for j in client.query("jobs")["jobs"] if j["job"] == client.job)
            return any(f"rank {rank} " in str(w) and "zero_query" in str(w) for w in job["waiting"])
        if rank != first:
            until(is_waited_for, what="the first rank's call")
        try:
            (reduce if rank else optimizer.step)()
        except zerod.Conflict as error:
            said.append(str(error))
            if rank == 0:
                reduce()
        if rank or said:
            optimizer.step()
        assert model.sharded.steps_made == 1
        return "".join(said)
    said = ranks.run(run, placement, ranks.shared(2))
    assert not said[first], said
    said = said[1 - first]
    assert "zero_step" in said and "zero_all_reduce" in said, said


@case
def a_deadline_names_who_has_not_called():
    def run(rank, fifo):
        import zerod
        zt, _ = zero(make(), client=zerod.connect(timeout=2))
        if rank == 0:
            error = raises(zerod.Deadline, ["rank 1", "zero_all_reduce"], zt.all_reduce, 1.0, name="loss")
            print(f"# {error}")
        with contextlib.closing(open(fifo, "r" if rank else "w", encoding="ascii")):
            return zt.all_reduce(1.0, name="loss")
    with tempfile.TemporaryDirectory() as directory:
        os.mkfifo(f"{directory}/fifo")
        assert ranks.run(run, [0, 1], ranks.shared(2), arguments=(f"{directory}/fifo",)) == [2.0, 2.0]


if __name__ == "__main__":
    ranks.main()
