#!/usr/bin/env python3
"""What is killed in the middle of a step: a rank, and every other one gets an exception that names it; a
rank that is started again, a daemon, or a worker of torchrun, and training ends with the same parameters,
to the bit, as if nothing had happened."""
import functools
import itertools
import os
import signal
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402
from cluster import SLOW, Cluster  # noqa: E402
from harness import case, cases_of  # noqa: E402

from common import needs_checkpoint  # noqa: E402
from gpt import batch_of, make  # noqa: E402
from survivor import STEPS, VICTIM, die, prepare, survive  # noqa: E402
from torchrun import started_again  # noqa: E402

PLACEMENT = [0, 0, 1, 1]
TIMEOUT_S = 60 * SLOW
GOOD_STEPS = 2
MOMENTS = ("forward", "backward", "step")


# ---- a job that fails with its rank ----------------------------------------------------

def train(rank, stage, moment, steps):
    """Steps; at the last of them, the victim dies.  What each rank saw: (error's name, text, seconds)."""
    import zerod
    import zerod.torch as zt
    model = zt.shard(make(), stage, client=zerod.connect(timeout=TIMEOUT_S), on_lost_rank="fail")
    optimizer = zt.AdamW(model, lr=1e-3)
    begin = time.monotonic()
    try:
        for t in range(steps):
            begin = time.monotonic()
            doomed = moment and rank == VICTIM and t == steps - 1
            if doomed:
                prepare(model, moment, die)
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
        assert seconds < TIMEOUT_S, f"rank {rank} waited for its deadline"


@cases_of(itertools.product(MOMENTS, (1, 3)), "{0[0]}_stage{0[1]}")
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


# ---- a job that goes on ------------------------------------------------------------------

@functools.cache
def undisturbed(options):
    said = ranks.run(survive, PLACEMENT, ranks.shared(2), arguments=(options,))
    assert said == said[:1] * len(said) and said[0][1] == b"after %d" % (STEPS - 1), said
    return said


WAYS = ({"stage": 1}, {"stage": 3})
MORE_WAYS = ({"stage": 2}, {"recompute": "reentrant"}, {"recompute": "nonreentrant"}, {"accumulate": "trainer"},
             {"tied": True}, {"layerwise": True}, {"stash": True}, {"layerwise": True, "stash": True},
             {"layerwise": True, "eager": True}, {"ema": 0.9}, {"reduce": True})


def named(moment, options):
    return f"{moment}_" + "_".join(f"{k}{v}" if k in ("stage", "at", "ema") else str(k if v is True else v)
                                   for k, v in options.items())


def disturbed(moment, options, restart, how=signal.SIGKILL, target=None):
    """A run in which something dies; restart(job) brings it back."""
    if options.get("stash") and not options.get("layerwise"):
        needs_checkpoint()
    key = tuple(sorted(options.items()))
    cluster = ranks.shared(2)
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        with ranks.Ranks(survive, PLACEMENT, cluster, arguments=(key, moment, directory, target, how)) as job:
            try:
                restart(job)
                said = job.finish()
            except BaseException:
                cluster.show()
                raise
            cluster[1].ctl("drop", job.job)
        assert os.listdir(directory), "nothing was killed"
    assert said == undisturbed(key), f"{said}\nundisturbed: {undisturbed(key)}"


def each(function, moments, ways):
    """Cases by moment and way."""
    for moment, options in itertools.product(moments, ways):
        def run(moment=moment, options=options):
            function(moment, options)
        run.__name__ = f"{function.__name__}_{named(moment, options)}"
        case(run)


def rank_is_started_again(moment, options):
    disturbed(moment, options, lambda job: job.restart(VICTIM))


each(rank_is_started_again, MOMENTS, WAYS)
each(rank_is_started_again, ("forward", "step"), ({"at": 0},))
each(rank_is_started_again, ("backward",), MORE_WAYS)


def daemon_is_started_again(moment, options, how=signal.SIGKILL, node=1):
    daemon = ranks.shared(2)[node]

    def restart(_job):
        status = daemon.process.wait(ranks.DEADLINE_S)
        assert status == (-signal.SIGKILL if how == signal.SIGKILL else 0), f"status {status}"
        daemon.start()
    disturbed(moment, options, restart, how, daemon.process.pid)


each(daemon_is_started_again, MOMENTS, WAYS)
each(daemon_is_started_again, ("forward", "backward"), MORE_WAYS)


@cases_of(MOMENTS)
def daemon_is_replaced_by_an_upgrade_in(moment):
    """As systemctl restart does it, on the node of the ranks that do not notice."""
    daemon_is_started_again(moment, {"stage": 3}, signal.SIGTERM, node=0)


# ---- workers of torchrun -----------------------------------------------------------------

SCRIPT = """
import os, sys
sys.path.insert(0, {here!r})
from survivor import survive
said = survive(int(os.environ["RANK"]), (), sys.argv[1] if len(sys.argv) > 1 else None, {directory!r})
os.write(1, f"RANK {{os.environ['RANK']}} {{said}}\\n".encode())
"""


@case
def torchrun_starts_its_workers_again():
    """One dies once in the middle of a step; training ends as if it had not."""
    here = os.path.dirname(os.path.abspath(__file__))
    with Cluster(1) as cluster, tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        wanted = ranks.run(survive, [0] * 3, cluster, arguments=((),))
        said = started_again(cluster, SCRIPT.format(here=here, directory=directory), 3, "disturbed", ("backward",))
        assert os.listdir(directory), "nothing was killed"
        assert said == {rank: str(value) for rank, value in enumerate(wanted)}, f"{said}\nundisturbed: {wanted}"


if __name__ == "__main__":
    ranks.main()
