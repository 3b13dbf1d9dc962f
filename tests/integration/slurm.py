#!/usr/bin/env python3
"""deploy/slurm under Slurm's own daemons: a job's nodes have a zerod when it begins, and states end when they should."""
import os
import random
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import REPLY_S, small_layout, until  # noqa: E402
from harness import case, main  # noqa: E402
from slurm import HERE, Slurm  # noqa: E402
from web import get  # noqa: E402

MODEL = ["--context", "32", "--width", "64", "--heads", "2", "--layers", "2", "--batch", "4", "--eval-windows", "2"]


def text(c):
    words = random.Random(1)
    c.write("text", " ".join(words.choice(["zero", "rank", "shard", "step"]) for _ in range(2000)))
    return f"{c.directory}/text"


def train(c, *options, steps, nodes=2):
    """Submits deploy/slurm/train.sbatch; the job's id."""
    return c.submit("--nodes", str(nodes), *options, f"{HERE}/train.sbatch", text(c), *MODEL, "--steps", str(steps))


def origin_is(daemon, job):
    """Metrics say that the one rank of the node is in that job of Slurm, whose name its job in zerod has."""
    found = [line for line in get(daemon, "/metrics").splitlines() if line.startswith("zerod_job_origin_ranks{")]
    assert len(found) == 1 and f'job="slurm-{job}"' in found[0] and f'slurm_job="{job}"' in found[0] and found[0].endswith(" 1"), found


def job_of(daemon, name):
    jobs = [j for j in daemon.status()["jobs"] if j["job"] == name]
    return jobs[0] if jobs else None


def steps_made(daemon, job):
    r = daemon.ctl_run("wait", "--step", "5", f"slurm-{job}")
    assert r.returncode == 0, r


@case
def a_job_trains_in_zerod_of_its_nodes_and_a_killed_one_is_started_by_the_next():
    with Slurm() as c:
        assert not any(c.pids(d) for d in c.daemons)
        job = train(c, steps=1000000)
        until(lambda: all(c.pids(d) for d in c.daemons), what="zerod on both nodes")
        steps_made(c[0], job)
        origin_is(c[0], job)
        origin_is(c[1], job)
        c.slurm("scancel", job)
        assert c.ended(job) == "CANCELLED"
        assert all(job_of(d, f"slurm-{job}")["state"] == "idle" for d in c.daemons), "states ended with the job"

        c.kill_zerod(c[1])
        job = train(c, steps=20)
        assert c.ended(job) == "COMPLETED", c.output(job)
        assert ", 20 steps, " in c.output(job)
        assert [len(c.pids(d)) for d in c.daemons] == [1, 2], "a zerod that ran was started"
        assert f"n1, job {job}: starts zerod: " in c.scripts()


@case
def a_node_whose_zerod_does_not_start_is_drained_with_the_reason():
    with Slurm() as c:
        c.set_options(c[0], start="echo no room for states >&2; exit 7")
        c.set_options(c[1], start="true", start_s=1)
        job = c.submit("--nodes", "2", "--wrap", "true")
        until(lambda: all(c.node(d).startswith("DRAINED ") for d in c.daemons), what="drained nodes")
        assert c.node(c[0]).endswith("zerod: 'echo no room for states >&2; exit 7' failed with 7: no room for states")
        assert "zerod: not ready 1 s after 'true': zeroctl: " in c.node(c[1]), c.node(c[1])
        assert c.state(job) == "PENDING" and not c.output(job), "the job ran"
        c.set_options(c[0])
        c.set_options(c[1])
        for d in c.daemons:
            c.slurm("scontrol", "update", f"nodename={d.name}", "state=resume")
        c.slurm("scontrol", "update", f"jobid={job}", "starttime=now")
        assert c.ended(job) == "COMPLETED"


@case
def options_that_sh_cannot_read_are_a_reason():
    with Slurm(1) as c:
        c.write("n0.sh", "start='no end\n")
        c.submit("--nodes", "1", "--wrap", "true")
        until(lambda: c.node(c[0]).startswith("DRAINED "), what="a drained node")
        assert "zerod: " in c.node(c[0]) and "n0.sh" in c.node(c[0]), c.node(c[0])


@case
def other_partitions_have_no_zerod():
    with Slurm(1, partitions="gpu big", start="exit 1") as c:
        job = c.submit("--nodes", "1", "--wrap", "true")
        assert c.ended(job) == "COMPLETED" and not c.scripts(), c.scripts()


@case
def records_of_jobs_whose_node_lost_its_power_go():
    with Slurm(1) as c:
        def records():
            return [n for n in os.listdir(f"{c.directory}/n0.slurm") if n.startswith("job-")]

        os.mkdir(f"{c.directory}/n0.slurm")
        c.write("n0.slurm/job-7.of-an-earlier-boot", "0\n")
        job = c.submit("--wrap", "sleep 600")
        until(lambda: any(n.startswith(f"job-{job}") for n in records()), what="the job's record")
        assert len(records()) == 1, records()
        c.slurm("scancel", job)
        c.ended(job)
        assert not records()


def starts(c, job, at):
    """Waits until the job has been told to start at that time, and does."""
    c.slurm("scontrol", "update", f"jobid={job}", f"starttime={at}")
    until(lambda: c.state(job) == "RUNNING", what="another start")
    until(lambda: job_of(c[0], f"slurm-{job}")["state"] == "running", what="its ranks")


@case
def states_end_with_a_job_whose_user_asked_for_that_and_not_when_it_is_started_again():
    with Slurm() as c:
        job = train(c, "--requeue", "--comment", "a zerod-drop b", steps=1000000)
        until(lambda: all(c.pids(d) for d in c.daemons), what="zerod on both nodes")
        steps_made(c[0], job)
        c.slurm("scontrol", "requeue", job)
        until(lambda: c.state(job) == "PENDING" and c.scripts().count("states stay") == 2, what="both epilogs")
        starts(c, job, "now+2")  # slurmd refuses it within the second
        c.slurm("scontrol", "update", "nodename=n1", "state=down", "reason=power")
        until(lambda: c.state(job) == "PENDING" and c.scripts().count("states stay") == 4, what="the epilogs")
        c.slurm("scontrol", "update", "nodename=n1", "state=resume")
        starts(c, job, "now+2")
        c.slurm("scancel", job)
        c.ended(job)
        assert [job_of(d, f"slurm-{job}") for d in c.daemons] == [None, None], c.scripts()
        assert f"job {job}: job slurm-{job}: dropped" in c.scripts()

        number = str(int(job) + 1)
        theirs = f"slurm-{number}"  # of root, named like the next job of another user
        a = c.actor(0)
        a.do("connect", job=theirs, rank=0, world=1)
        a.do("layout", groups=small_layout())
        a.do("attach", hold=2, push=2)
        said = c.slurm("sbatch", "--parsable", "--output", "/dev/null", "--comment", "zerod-drop", "--wrap", "true", user=65534)
        assert said.strip() == number and c.ended(number) == "COMPLETED"
        assert f"job {number}: zeroctl: drop: job '{theirs}' belongs to user 0 (EPERM)" in c.scripts(), c.scripts()
        assert c.ended(c.submit("--comment", "zerod-drop", "--wrap", "exit 3")) == "FAILED"
        assert c.scripts().endswith("states stay: the job has failed\n"), c.scripts()


@case
def a_zerod_that_does_not_answer_holds_up_no_script():
    with Slurm(1, ask_s=1, start_s=2, drain="yes") as c:
        job = c.submit("--nodes", "1", "--comment", "zerod-drop", "--wrap", "sleep 600")
        until(lambda: c.state(job) == "RUNNING" and "node n0 is ready" in c.scripts(), what="the job")
        os.kill(c.pids(c[0])[0], signal.SIGSTOP)
        c.slurm("scancel", job)
        assert c.ended(job) == "CANCELLED"
        assert f"job {job}: zeroctl: " in c.scripts().splitlines()[-1], c.scripts()
        c.set_options(c[0], start="sleep 600", start_s=2, ask_s=1)
        c.submit("--nodes", "1", "--wrap", "true")
        until(lambda: c.node(c[0]) == "DRAINED zerod: 'sleep 600' has not ended after 2 s", what="the drain")
        os.kill(c.pids(c[0])[0], signal.SIGCONT)


@case
def a_node_that_slurm_drains_is_drained_in_zerod_and_the_next_job_takes_it_back():
    with Slurm(drain="yes") as c:
        job = train(c, steps=1000000)
        until(lambda: all(c.pids(d) for d in c.daemons), what="zerod on both nodes")
        steps_made(c[0], job)
        c.slurm("scontrol", "update", "nodename=n1", "state=drain", "reason=disk")
        c.slurm("scancel", job)
        until(lambda: c.node(c[1]) == "DRAINED disk", REPLY_S, what="the epilog")
        assert c[1].status()["drained"] and not c[0].status()["drained"], c.scripts()
        assert c[0].ctl("members")["owners"] == ["n0"] and "it is safe to power off" in c.scripts()

        c.slurm("scontrol", "update", "nodename=n1", "state=resume")
        job = train(c, steps=20)
        assert c.ended(job) == "COMPLETED", c.output(job)
        assert not c[1].status()["drained"]
        assert "node n1 takes ranks again" in c.scripts()


@case
def a_node_that_a_person_has_drained_in_zerod_takes_no_job():
    with Slurm() as c:
        assert c.ended(c.submit("--nodes", "2", "--wrap", "true")) == "COMPLETED"
        c[0].ctl("drain", "n1")
        c.submit("--nodes", "2", "--wrap", "true")
        until(lambda: c.node(c[1]) == "DRAINED zerod: node n1 is drained: zeroctl undrain n1", what="the drain")


if __name__ == "__main__":
    main()
