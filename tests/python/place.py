#!/usr/bin/env python3
"""Rank, world size and job from arguments, from torchrun's variables and from Slurm's."""
import os
import re
import uuid
from unittest import mock

from common import raises, zerod
from harness import case, cases_of, main
from zerod import environment
from zerod.environment import incarnation, job, job_is_random, own_job, place

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_NODEID": "1", "SLURM_TASKS_PER_NODE": "4(x2)",
         "SLURM_JOB_ID": "77"}


@case
def one_rank_without_a_launcher():
    assert place(environment={}) == (0, 1, 1) and job({}) is None


@case
def place_by_torchrun():
    assert place(environment=TORCHRUN) == (3, 8, 4)


@case
def place_by_slurm():
    assert place(environment=SLURM) == (5, 8, 4)


@case
def torchrun_comes_before_slurm():
    assert place(environment={**SLURM, **TORCHRUN}) == (3, 8, 4)


@case
def restarts_are_counted_by_the_launcher():
    assert incarnation({}) == 0 and incarnation({"TORCHELASTIC_RESTART_COUNT": "2"}) == 2
    assert incarnation({"SLURM_RESTART_COUNT": "3"}) == 3
    assert incarnation({"SLURM_RESTART_COUNT": "3", "TORCHELASTIC_RESTART_COUNT": "1"}) == 1
    with raises(ValueError, "TORCHELASTIC_RESTART_COUNT", "often"):
        incarnation({"TORCHELASTIC_RESTART_COUNT": "often"})


@case
def arguments_come_first():
    assert place(1, 2, 2, TORCHRUN) == (1, 2, 2)
    assert place(7, environment=TORCHRUN) == (7, 8, 4)


@case
def local_world_size_is_for_the_launchers_world_size():
    """torchrun says that 4 of 8 ranks are on this node, and nothing about a job of 2 ranks."""
    assert place(1, 2, environment=TORCHRUN) == (1, 2, 2)
    assert place(1, 8, environment=TORCHRUN) == (1, 8, 4)


@case
def all_ranks_are_local_without_a_launchers_count():
    assert place(environment={"RANK": "1", "WORLD_SIZE": "2"}) == (1, 2, 2)
    assert place(environment={"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}) == (1, 2, 2)


@case
def full_arguments_ignore_the_environment():
    assert place(0, 1, 1, {"RANK": "junk", "WORLD_SIZE": "junk"}) == (0, 1, 1)


@cases_of([("2(x3),1", 0, 2), ("2(x3),1", 2, 2), ("2(x3),1", 3, 1), ("4", 0, 4), ("1,2,3(x2)", 1, 2)], "{0}")
def slurms_list_of_tasks(values):
    tasks, node, local = values
    assert place(environment={**SLURM, "SLURM_TASKS_PER_NODE": tasks, "SLURM_NODEID": str(node)}) == (5, 8, local)


@case
def slurms_step_comes_before_its_job():
    assert place(environment={**SLURM, "SLURM_STEP_TASKS_PER_NODE": "3,5"}) == (5, 8, 5)


BAD = ["x", "-1", "1.5", "0x1", "9" * 30, "1 2", "\u0663", "4096000"]


@cases_of(BAD, "{!r:.20}")
def bad_value_is_named(text):
    for variables, names in ((TORCHRUN, TORCHRUN), (SLURM, ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NODEID"))):
        for name in names:
            with raises(ValueError, name):
                place(environment={**variables, name: text})


@cases_of(["", "x", "(x2)", "4(x0)", "4(x2", "2(y3)", "0", "4,", "1(x1)"], "{!r}")
def bad_list_of_slurm_is_named(text):
    if text:
        with raises(ValueError, "SLURM_TASKS_PER_NODE"):
            place(environment={**SLURM, "SLURM_TASKS_PER_NODE": text})
    else:
        assert place(environment={**SLURM, "SLURM_TASKS_PER_NODE": text}) == (5, 8, 8)


@cases_of(["RANK", "WORLD_SIZE"])
def missing_variable_is_named(name):
    with raises(ValueError, name):
        place(environment={n: v for n, v in TORCHRUN.items() if n != name})
    with raises(ValueError, name):
        place(environment={**TORCHRUN, name: ""})


@case
def rank_outside_its_world_is_named():
    with raises(ValueError, "RANK", "WORLD_SIZE"):
        place(environment={"RANK": "8", "WORLD_SIZE": "8"})
    with raises(ValueError, "SLURM_PROCID"):
        place(environment={**SLURM, "SLURM_PROCID": "8"})
    with raises(ValueError, "world_size"):
        place(2, 2, environment={})
    with raises(ValueError, "LOCAL_WORLD_SIZE"):
        place(environment={**TORCHRUN, "LOCAL_WORLD_SIZE": "9"})
    with raises(ValueError, "local_world_size"):
        place(0, 2, 3, {})


@case
def world_size_without_rank_is_refused():
    with raises(ValueError, "rank", "RANK"):
        place(world_size=4, environment={})
    assert place(world_size=1, environment={}) == (0, 1, 1)


@cases_of([True, 1.0, "1", [1]])
def arguments_are_ints(value):
    for arguments in ((value,), (0, value), (0, 1, value)):
        with raises(TypeError, "int"):
            place(*arguments, environment={})


@cases_of([-2, 4096, 2**70])
def arguments_have_a_range(value):
    for i, name in enumerate(("rank", "world_size", "local_world_size")):
        if (i, value) != (1, 4096) and (i, value) != (2, 4096):
            with raises(ValueError, name):
                place(**{name: value}, environment={})


# ---- the job's name ----------------------------------------------------------------

@case
def job_by_environment():
    assert job({"ZEROD_JOB": "mine", "TORCHELASTIC_RUN_ID": "run", "SLURM_JOB_ID": "1"}) == "mine"
    assert job({"TORCHELASTIC_RUN_ID": "run", "SLURM_JOB_ID": "1"}) == "torchrun-run"
    assert job({"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "1"}) == "slurm-1"
    assert job({"TORCHELASTIC_RUN_ID": "none"}) is None


@case
def run_id_becomes_a_valid_name():
    assert job({"TORCHELASTIC_RUN_ID": "a b/\u00e9"}) == "torchrun-a-b--"
    assert len(job({"TORCHELASTIC_RUN_ID": "x" * 5000})) < 255


@case
def random_names():
    """Those that torchrun makes on one node, with dashes, and a launcher in Python, as a number."""
    run = uuid.uuid4()
    for text in (str(run), str(run.int)):
        assert job_is_random({"TORCHELASTIC_RUN_ID": text, "GROUP_WORLD_SIZE": "1"})
        assert not job_is_random({"TORCHELASTIC_RUN_ID": text, "GROUP_WORLD_SIZE": "2"}), "two nodes cannot make one name"
        assert not job_is_random({"TORCHELASTIC_RUN_ID": text, "GROUP_WORLD_SIZE": "1", "ZEROD_JOB": "mine"})


@cases_of(["run", "none", "", "12345", "9" * 5000, "\u00b2", str(uuid.uuid1()), str(uuid.UUID(int=0))])
def chosen_names(text):
    assert not job_is_random({"TORCHELASTIC_RUN_ID": text, "GROUP_WORLD_SIZE": "1"})


@case
def own_job_names_are_unique():
    a, b = own_job(), own_job()
    assert a != b and f"-{os.getpid()}-" in a and re.fullmatch(r"[A-Za-z0-9._-]+", a)


@case
def own_job_of_a_user_without_name():
    with mock.patch("getpass.getuser", side_effect=KeyError("uid")):
        assert own_job().startswith(f"uid{os.getuid()}-")


@case
def several_ranks_need_a_job_name():
    with mock.patch.dict(os.environ, {"RANK": "0", "WORLD_SIZE": "2"}), raises(ValueError, "ZEROD_JOB"):
        zerod.connect()


@case
def default_environment_is_os_environ():
    with mock.patch.dict(os.environ, TORCHRUN):
        assert place() == environment.Place(3, 8, 4)


if __name__ == "__main__":
    main()
