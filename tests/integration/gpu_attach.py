#!/usr/bin/env python3
"""The driver takes long to allocate a window on a GPU. The daemon does everything else meanwhile, and the rank that
asked may be gone when the window is there."""
import contextlib
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SLOW, expect, finish_all, small_layout, until  # noqa: E402
from gpu_ranks import DEADLINE_MS, Event, GPU_0, Gate, LAYOUTS, attach, gpus, in_host_memory, memory_of_gpu, outcome, raw_attach, train  # noqa: E402
from harness import case, main  # noqa: E402
import wire  # noqa: E402


LEFT = 64  # ranks that have left
LOOKS, QUESTIONS = 64, 100  # questions that wait for the driver; those that come


@contextlib.contextmanager
def gated(nodes=1, **options):
    with tempfile.TemporaryDirectory() as directory:
        gate = Gate(directory)
        with gpus(nodes, {"FAKE_GPU_GATE": gate.path}, **options) as c:
            gate.shut()
            try:
                yield c, gate
            finally:
                gate.open()


def attaching(c, job="job", placement=(0,), rank=0, **more):
    a = c.caller(job, LAYOUTS["fp32"], list(placement), rank, **more)
    finish_all([a]), finish_all([a])
    a.start("attach", hold=2, push=2, device="cuda:0")
    return a


def others_train(c):
    """The daemon serves another job meanwhile."""
    a, = c.ranks("other", small_layout(blocks=1), [0], hold=1, push=1)
    train([a], 2)
    c.dismiss(a)


def nothing_is_left(c):
    for d in c.daemons:
        until(lambda d=d: memory_of_gpu(d) == 0, what="the release of the memory")
        until(lambda d=d: not any(g["allocations"] for g in d.status()["gpus"]), what="the end of the windows")


@case
def a_rank_dies_while_its_windows_are_allocated():
    expected = in_host_memory("two_nodes", "fp32")
    with gated(2) as (c, gate):
        ranks = [attaching(c, placement=(0, 1), rank=rank) for rank in (0, 1)]
        gate.wait()
        others_train(c)
        ranks[1].kill()
        c.dismiss(ranks[1])
        gate.open()
        finish_all(ranks[:1])
        heir = attaching(c, placement=(0, 1), rank=1)
        finish_all([heir])
        assert outcome(c, [ranks[0], heir]) == expected
        c.dismiss(ranks[0]), c.dismiss(heir)
        nothing_is_left(c)


@case
def ranks_that_attach_at_once_share_a_window():
    expected = in_host_memory("four_ranks", "fp32")
    with gated(2) as (c, gate):
        ranks = [attaching(c, placement=(0, 0, 1, 1), rank=rank) for rank in range(4)]
        gate.wait()
        others_train(c)
        assert not any(a.ready() for a in ranks), "a rank was attached without a window"
        gate.open()
        finish_all(ranks)
        for d in c.daemons:
            names = [a["what"] for g in d.status()["gpus"] for a in g["allocations"]]
            assert memory_of_gpu(d) == 3 and len(names) == 3, names
        assert outcome(c, ranks) == expected


@case
def jobs_that_attach_at_once_stay_within_gpu_windows():
    with gated(gpu_windows=4 << 20) as (c, gate):  # a window takes 2 MiB
        ranks = [attaching(c, job) for job in ("one", "two", "three")]
        gate.wait()
        others_train(c)
        gate.open()
        replies = [a.finish() for a in ranks]
        well = [a for a, reply in zip(ranks, replies) if reply["status"] == "OK"]
        assert len(well) == 1, replies
        for reply in replies:
            if reply["status"] != "OK":
                expect(reply, "EQUOTA", "gpu_windows allows 4.0")
        train(well, 2)


@case
def a_window_that_is_not_allocated_in_time_is_named():
    with gated() as (c, gate):
        a = attaching(c, timeout_ms=DEADLINE_MS)
        gate.wait()
        expect(a.finish(), "EDEADLINE", "memory of GPU 0: the windows of rank 0")
        others_train(c)
        gate.open()
        nothing_is_left(c)
        c.dismiss(a)
        train(attach(c, [0], LAYOUTS["fp32"]), 2)


@case
def a_job_is_dropped_while_a_window_is_allocated():
    with gated() as (c, gate):
        a = attaching(c)
        gate.wait()
        c[0].ctl("drop", "job")
        gate.open()
        reply = a.finish()
        assert reply["status"] in ("ENOJOB", "EABORTED"), reply
        c.dismiss(a)
        nothing_is_left(c)
        train(attach(c, [0], LAYOUTS["fp32"]), 2)


@case
def a_stop_while_a_window_is_allocated():
    with gated() as (c, gate):
        a = attaching(c)
        gate.wait()
        c[0].process.terminate()
        until(lambda: "stopping" in c[0].log(), what="the stop")
        gate.open()
        assert c[0].process.wait(60 * SLOW) == 0, c[0].log()
        c[0].start()
        finish_all([a])
        train([a], 2)


@case
def questions_that_wait_for_a_driver_are_bounded():
    """For they outlive their deadline and their connection.  All are answered when the driver answers."""
    with tempfile.TemporaryDirectory() as directory:
        gate = Gate(directory)
        with gpus(daemon={"FAKE_GPU_LOOK_GATE": gate.path}) as c:
            gate.shut()
            try:
                raw = wire.Raw(c[0].socket, timeout=60 * SLOW)
                raw.hello(timeout_ms=60000 * SLOW)
                raw.send(b"".join(wire.request(i, "query", {1: "status"}) for i in range(QUESTIONS)))
                raw.send(wire.request(QUESTIONS, "query", {1: "ping"}))
                refused = []
                while (reply := raw.reply())[2].get(1) != [QUESTIONS]:
                    refused.append(reply[:2])
                assert LOOKS <= QUESTIONS - len(refused) <= LOOKS + 4, f"{QUESTIONS - len(refused)} of {QUESTIONS} wait"
                for status, text in refused:
                    assert status == wire.EBUSY and f"{LOOKS} questions of user" in text and "doctor" in text, text
                others_train(c)
            finally:
                gate.open()
            assert {raw.reply()[0] for _ in range(QUESTIONS - len(refused))} == {wire.OK}
            raw.close()
            assert c[0].ctl_run("status").returncode == 0


@case
def ranks_that_leave_before_the_driver_answers_are_bounded():
    """Each one keeps memory until then.  Ranks in host memory attach meanwhile, and all do when the driver answers."""
    event = Event()
    needs = {1: wire.layout_message(LAYOUTS["fp32"]), 2: 2, 3: 2, 4: 1, 5: 1, 9: GPU_0, 10: [event.handle]}
    with tempfile.TemporaryDirectory() as directory:
        gate = Gate(directory)
        with gpus(daemon={"FAKE_GPU_EVENT_GATE": gate.path}) as c:
            gate.shut()
            try:
                for n in range(2 * LEFT):
                    raw = wire.Raw(c[0].socket, timeout=60 * SLOW)
                    raw.hello(f"job{n}", 0, 1, timeout_ms=60000 * SLOW)
                    raw.send(wire.request(2, "attach", needs) + wire.request(3, "query", {1: "ping"}))
                    status, text, fields = raw.reply()
                    raw.close()
                    if fields[1] == [2]:
                        break
                assert n >= LEFT and status == wire.EBUSY and f"{LEFT} ranks of user" in text, (n, status, text)
                others_train(c)
            finally:
                gate.open()
            until(lambda: raw_attach(c, GPU_0)[0][0] == wire.OK, what="an attach")


if __name__ == "__main__":
    main()
