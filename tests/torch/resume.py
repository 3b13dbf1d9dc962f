#!/usr/bin/env python3
"""The same job name again, and what becomes of a job at the end of its script."""
import os
import subprocess
import sys
import textwrap

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
import forks  # noqa: E402
from cluster import Cluster, until  # noqa: E402
from harness import case, cases_of  # noqa: E402

from torchrun import END_S, worker_environment  # noqa: E402

SCRIPT = textwrap.dedent("""
    import sys, torch
    import zerod.torch as zt
    until, end, options = int(sys.argv[1]), sys.argv[2], eval(sys.argv[3])
    torch.set_num_threads(1)
    model = zt.shard(torch.nn.Linear(8, 8), **options)
    optimizer = zt.AdamW(model, lr=1e-2)
    for step in zt.steps(model, until=until):
        with step as t:
            model(torch.ones(2, 8)).square().mean().backward()
            optimizer.step()
    assert not end, end
""")


def run(cluster, until=3, end="", world=1, environment=(), python=forks.PYTHON, **options):
    """Ranks of the job "again", each with its standard error."""
    path = f"{cluster.directory}/again.py"
    with open(path, "w", encoding="utf-8") as f:
        f.write(SCRIPT)
    ends = end if isinstance(end, list) else [end] * world
    started = [subprocess.Popen(
        [python, "-B", path, str(until), ends[rank], repr(options)], text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env={**worker_environment(cluster), "ZEROD_JOB": "again", "RANK": str(rank), "WORLD_SIZE": str(world),
             "LOCAL_WORLD_SIZE": str(world), **dict(environment)}) for rank in range(world)]
    cluster.others += started
    said = [p.communicate(timeout=END_S)[1] for p in started]
    return [(p.returncode, text) for p, text in zip(started, said)]


def jobs(cluster):
    return [job["job"] for job in cluster[0].status()["jobs"]]


@case
def a_job_that_goes_on_says_so_once():
    with Cluster(1) as cluster:
        own = {"world": 2, "python": sys.executable}  # a hash seed each: no order of a set goes into the layout
        for status, text in run(cluster, **own):
            assert status == 0 and "again" not in text, text
        ended = run(cluster, until=5, **own)
        assert [status for status, _ in ended] == [0, 0], ended
        said = "".join(text for _, text in ended)
        assert said.count("job 'again' goes on after step 3") == 1 and "zeroctl drop again" in said, said
        (status, text), = run(cluster, until=5)
        assert status == 0 and "has made 5 of 5 steps" in text, text


@case
def resume_never_refuses_a_job_that_has_values():
    with Cluster(1) as cluster:
        (status, text), = run(cluster, resume="never")
        assert status == 0, text
        (status, text), = run(cluster, until=4, resume="never")
        assert status != 0 and "stands at step 3, and resume='never'" in text and cluster[0].job("again")["version"] == 3, text
        (status, text), = run(cluster, until=4, resume="never", environment={"TORCHELASTIC_RESTART_COUNT": "1"}.items())
        assert status == 0, f"a process that torchrun has started again was refused: {text}"
        assert cluster[0].job("again")["version"] == 4


@case
def resume_must_refuses_a_new_job_and_leaves_none():
    with Cluster(1) as cluster:
        for status, text in run(cluster, world=2, resume="must"):
            assert status != 0, text
        until(lambda: jobs(cluster) == [], what="the end of a job that nobody made")
        for options in ({}, {"resume": "must"}):
            (status, text), = run(cluster, until=3 + len(options), **options)
            assert status == 0, text


@cases_of([1, 2], "world_{}")
def a_job_that_is_not_kept_ends_with_its_loop(world):
    with Cluster(1) as cluster:
        for status, text in run(cluster, world=world, keep=False):
            assert status == 0, text
        until(lambda: jobs(cluster) == [], what="the drop")


@case
def a_job_that_is_not_kept_outlives_an_exception():
    with Cluster(1) as cluster:
        ended = run(cluster, world=2, end=["", "fails behind the loop"], keep=False)
        assert ended[0][0] == 0 and ended[1][0] != 0, ended
        until(lambda: not any(rank["attached"] for rank in cluster[0].job("again")["ranks"]), what="both ends")
        assert jobs(cluster) == ["again"]


@case
def drop_by_name():
    with Cluster(1) as cluster:
        run(cluster)
        os.environ["ZEROD_SOCKET"] = cluster[0].socket
        import zerod.torch as zt
        import zerod
        zt.drop("again")
        assert jobs(cluster) == []
        try:
            zt.drop("again")
        except zerod.NoJob:
            return
        raise AssertionError("a job was dropped twice")


if __name__ == "__main__":
    ranks.main()
