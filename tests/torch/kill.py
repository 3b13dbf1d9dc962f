#!/usr/bin/env python3
"""A rank that is killed in the middle of a step: every other rank, on its node and on the other one, gets
an exception that names it within the deadline; the daemons go on, and so does the next job."""
import itertools
import os
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402
from cluster import SLOW  # noqa: E402
from harness import cases_of  # noqa: E402

from gpt import batch_of, make  # noqa: E402

PLACEMENT, VICTIM = [0, 0, 1, 1], 2
TIMEOUT_S = 3 * SLOW
GRACE_S = 3 * SLOW  # two seconds of the library's own, and what computes until the wait begins
GOOD_STEPS = 2


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def prepare(model, moment):
    """Has this process die in the next step; when what it installs is called."""
    block = model.blocks[1]
    if moment == "forward":
        block.up.register_forward_pre_hook(die)
    elif moment == "backward":
        block.ln2.register_forward_hook(lambda _module, _inputs, output: output.register_hook(die) and None)


def train(rank, stage, moment, steps):
    """Steps; at the last of them, the victim dies.  What each rank saw: (error's name, text, seconds)."""
    import zerod
    import zerod.torch as zt
    model = zt.shard(make(), stage, client=zerod.connect(timeout=TIMEOUT_S))
    optimizer = zt.AdamW(model, lr=1e-3)
    begin = time.monotonic()
    try:
        for t in range(steps):
            begin = time.monotonic()
            doomed = moment and rank == VICTIM and t == steps - 1
            if doomed:
                prepare(model, moment)
            model(batch_of(t).chunk(4)[rank]).backward()
            if doomed:
                die()
            optimizer.step()
    except zerod.Error as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    return None


def check_survivors(said, job):
    for rank, (name, text, seconds) in said.items():
        print(f"# rank {rank}: {name} after {seconds:.1f} s: {text}")
        assert f"rank {VICTIM}" in text, f"rank {rank} does not name the dead one in job {job}: {text}"
        assert seconds < TIMEOUT_S + GRACE_S, f"rank {rank} waited {seconds:.1f} s"


@cases_of(itertools.product(("forward", "backward", "step"), (1, 3)), "{0[0]}_stage{0[1]}")
def killed(what):
    moment, stage = what
    cluster = ranks.shared(2)
    with ranks.Ranks(train, PLACEMENT, cluster, arguments=(stage, moment, GOOD_STEPS + 1)) as job:
        assert job.wait(ranks.DEADLINE_S), "a rank hangs:\n" + "\n".join(
            p.stack() for p in job.processes if p.outcome is None)
        assert job[VICTIM].outcome == ("died", -signal.SIGKILL), job[VICTIM].outcome
        said = {p: job[p].value() for p in range(len(PLACEMENT)) if p != VICTIM}
        assert all(said.values()), f"ranks that noticed nothing: {said}"
        check_survivors(said, job.job)
        cluster[1].ctl("drop", job.job)
    assert ranks.run(train, PLACEMENT, cluster, arguments=(stage, None, GOOD_STEPS)) == [None] * len(PLACEMENT)
    assert all(d.alive() for d in cluster.daemons)


if __name__ == "__main__":
    ranks.main()
