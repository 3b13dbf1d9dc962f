#!/usr/bin/env python3
"""Who lets go first of what trainers and daemon share on a GPU.  CUDA leaves undefined what a process finds in an event,
or in memory of a legacy handle, that its maker has freed; with the fake GPU the maker dies then."""
import os
import signal
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SLOW, finish_all, small_layout, until  # noqa: E402
from fake_gpu import environment  # noqa: E402
from gpu_ranks import Gate, gpus, train  # noqa: E402
from harness import case, cases_of, main  # noqa: E402

LAYOUT = small_layout(blocks=2, width=100)


def enter(a, incarnation=0, attach=True):
    """Connects the actor, perhaps again, and attaches it as the only rank."""
    a.do("connect", job="job", rank=0, world=1, local=1, timeout_ms=60000 * SLOW, incarnation=incarnation)
    if attach:
        a.do("layout", groups=LAYOUT)
        a.do("attach", hold=2, push=2, device="cuda:0")


def begin(c, delay_ms):
    """A rank whose release the daemon waits for."""
    with environment(FAKE_GPU_DELAY_MS=delay_ms):
        a = c.actor()
    enter(a)
    a.do("fetch", group=1)
    a.start("release", group=1)
    finish_all([a])
    return a


def is_served(c):
    b = c.actor()
    enter(b, incarnation=9)
    train([b], 1)
    b.do("close")


@case
def a_trainer_that_closes_leaves_its_events_to_the_daemon():
    """The daemon, which has the events open, stands still meanwhile; the next client of the process records the same
    events again."""
    with gpus() as c:
        a = begin(c, delay_ms=50)
        for incarnation in (1, 2):
            os.kill(c[0].process.pid, signal.SIGSTOP)
            try:
                a.do("close")
            finally:
                os.kill(c[0].process.pid, signal.SIGCONT)
            enter(a, incarnation)
            train([a], 1)
        a.do("close")
        is_served(c)


@case
def the_clients_of_a_process_have_as_many_events_as_one_at_a_time():
    with gpus() as c:
        a = c.actor()
        made = []
        for incarnation in range(3):
            enter(a, incarnation)
            a.do("close")
            made.append(sum("zerod-fake-event" in os.readlink(fd.path) for fd in descriptors(a)))
        assert made[0] > 0 and made == made[:1] * 3, made


def descriptors(a):
    with os.scandir(f"/proc/{a.process.pid}/fd") as found:
        return list(found)


@cases_of(["killed", "forked_and_killed"])
def a_trainer_dies_with_work_under_way(how):
    """A child that it has forked keeps its connection, its events and its windows."""
    with gpus() as c:
        a = begin(c, delay_ms=3600000)
        child = a.do("fork")["pid"] if how == "forked_and_killed" else 0
        a.kill()
        c.dismiss(a)
        try:
            is_served(c)
        finally:
            if child:
                os.kill(child, signal.SIGKILL)


@case
def a_daemon_dies_with_work_under_way():
    """The client of the same process attaches to the next daemon with the same events."""
    with gpus() as c:
        a = begin(c, delay_ms=50)
        c[0].kill()
        c[0].start()
        until(lambda: a.start("fetch", group=1) or a.finish()["status"] == "OK", what="the next daemon")
        train([a], 1)
        a.do("close")
        is_served(c)


@case
def a_trainer_that_closes_unmaps_its_windows_before_the_daemon_hears_of_it():
    with tempfile.TemporaryDirectory() as directory, gpus(daemon={"FAKE_GPU_HANDLES": 1}) as c:
        gate = Gate(directory)
        with environment(FAKE_GPU_UNMAP_GATE=gate.path):
            a = c.actor()
        enter(a)
        a.do("fetch", group=1)
        gate.shut()
        a.start("close")
        gate.wait()
        assert len(c[0].job("job")["sessions"]) == 1, "the daemon frees windows that the trainer still has mapped"
        gate.open()
        finish_all([a])
        is_served(c)


if __name__ == "__main__":
    main()
