#!/usr/bin/env python3
"""The driver does not let the daemon open the trainers' events, as if they were another user's, or gives trainers none
to pass on: trainers wait for their GPU themselves, get the same bits, and wait no longer than their deadline."""
import contextlib
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SETS, expect, finish_all, until  # noqa: E402
from fake_gpu import environment  # noqa: E402
from gpu_ranks import DEADLINE_MS, GROUPS, LAYOUTS, PLACEMENTS, attach, gpu_call, gpus, in_host_memory, outcome  # noqa: E402
from harness import case, cases_of, main  # noqa: E402

UNOPENED = {"FAKE_GPU_NO_EVENTS": 1}
NEVER = 3600000
LATE_MS = 100   # the gradient is written so long after its push; a daemon that does not wait has read it by then
DONE_MS = 4000  # the event is done so long after it was recorded: the gradient is written by then


@contextlib.contextmanager
def unopened(nodes=1, by="daemon"):
    """by: who is refused, the daemon or the trainers."""
    with environment(**{} if by == "daemon" else {"FAKE_GPU_EVENTS_ALONE": 1}):
        with gpus(nodes, UNOPENED if by == "daemon" else None) as c:
            yield c


@cases_of(["daemon", "trainers"])
def same_bits_from_a_slow_gpu(by):
    expected = in_host_memory("four_ranks", "fp32")
    with environment(FAKE_GPU_DELAY_MS=7), unopened(2, by) as c:
        assert outcome(c, attach(c, PLACEMENTS["four_ranks"], LAYOUTS["fp32"])) == expected


@cases_of(["daemon", "trainers"])
def log_and_status_say_who_waits(by):
    """The log says it once per rank, with what to do; zeroctl says it while the rank is attached."""
    with unopened(by=by) as c:
        attach(c, [0, 0], LAYOUTS["fp32"])
        assert [s["no_events"] for s in c[0].job("job")["sessions"]] == [True, True]
        assert "waits for its GPU itself" in c[0].ctl_run("status").stdout
        for rank in (0, 1):
            assert c[0].log().count(f"job job: rank {rank} (process") == 1, c[0].log()
        way_out = "run zerod and trainers as one user" if by == "daemon" else "run the trainer outside of them"
        assert c[0].log().count(way_out) == 2, c[0].log()
    with gpus() as c:
        attach(c, [0], LAYOUTS["fp32"])
        assert [s["no_events"] for s in c[0].job("job")["sessions"]] == [False]


@cases_of([(call, by) for call in ("release", "push", "step") for by in ("daemon", "trainers")], "{0[0]}_{0[1]}")
def a_call_waits_for_the_gpu_work_before_it(case_of):
    what, by = case_of
    delay = 0.7
    with unopened(by=by) as c, environment(FAKE_GPU_DELAY_MS=int(1000 * delay)):
        a, = attach(c, [0], LAYOUTS["fp32"], hold=GROUPS)
        a.do("fetch", group=1)
        begin = time.monotonic()
        gpu_call(a, what)
        assert time.monotonic() - begin >= delay, f"the {what} did not wait for the GPU"


@case
def a_gradient_is_read_when_it_is_written():
    """The gradient is written after the push: if the trainer does not wait, the daemon adds up old memory."""
    sums = []
    for late in (0, LATE_MS):
        with gpus(1, UNOPENED) as c:
            with environment(FAKE_GPU_DELAY_MS=DONE_MS if late else 0):
                a, = attach(c, [0], LAYOUTS["fp32"], hold=GROUPS)
            a.do("grad", group=1, seed=5, step=0)
            a.do("push", group=1, late=late)
            a.do("step", sets=SETS, sync=False)
            sums.append(c.checksum("job")["planes"])
    assert sums[0] == sums[1]


@cases_of(["release", "push", "step"])
def work_that_does_not_end_is_named(what):
    """At the trainer's own deadline the error names the work; the call may be repeated, and the others wait for that rank."""
    with gpus(1, UNOPENED) as c:
        with environment(FAKE_GPU_DELAY_MS=NEVER):
            stuck = c.caller("job", LAYOUTS["fp32"], [0, 0], 0, timeout_ms=DEADLINE_MS)
        rest = c.caller("job", LAYOUTS["fp32"], [0, 0], 1)
        for a in (stuck, rest):
            finish_all([a]), finish_all([a])
            a.start("attach", hold=2, push=2, device="cuda:0")
        finish_all([stuck, rest])
        stuck.do("fetch", group=2)
        if what == "push":
            stuck.do("grad", group=2)
        rest.start("train", steps=1, sets=SETS, patient=True)
        more = {"sets": SETS} if what == "step" else {"group": 2}
        name = "the end of the step" if what == "step" else f"the {what} of group 'block1'"
        for _ in range(2):
            stuck.start(what, **more)
            expect(stuck.finish(), "EDEADLINE", f"the GPU work behind {name} was not done")
        assert not rest.ready(), "the step ended without rank 0"
        if what == "push":
            stuck.do("push", group=2, sync=False)
        until(lambda: steps(stuck), what="the end of the step")
        finish_all([rest])


def steps(a):
    a.start("step", sets=SETS, sync=False)
    reply = a.finish()
    assert reply["status"] in ("OK", "EDEADLINE"), reply
    return reply["status"] == "OK"


if __name__ == "__main__":
    main()
