#!/usr/bin/env python3
"""Windows on a fake GPU: a daemon that touches its memory by the CPU dies.  Trainers get the bits that they get in host
memory.  A release, a push or a step takes effect when the GPU work before it is done, and work that never ends is
named."""
import contextlib
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SETS, SLOW, expect, finish_all, push_all, small_layout, until  # noqa: E402
from fake_gpu import environment  # noqa: E402
from gpu_ranks import (DEADLINE_MS, EVERYWHERE, GPU_0, GROUPS, LAYOUTS, PLACEMENTS, STEPS, Event, attach,  # noqa: E402
                       gpu_call, gpus, in_host_memory, memory_of_gpu, outcome, raw_attach, raw_is_silent, train)
from harness import Skip, case, cases_of, main  # noqa: E402
import wire  # noqa: E402

NEVER = 3600000
NOBODY = 65534


def same(name, dtype, places=EVERYWHERE, daemon=None, **options):
    needs = {"grad": dtype, "reduce": dtype}
    expected = in_host_memory(name, dtype, **needs)
    with gpus(max(PLACEMENTS[name]) + 1, daemon, **options) as c:
        ranks = attach(c, PLACEMENTS[name], LAYOUTS[dtype], places, **needs)
        for i, d in enumerate(c.daemons):
            assert d.job("job")["gather"]["place"] == ("GPU 0" if i in places else "host"), d.job("job")["gather"]
        got = outcome(c, ranks)
        assert got == expected, f"{got} is not {expected}"


def waits_for_gpu(daemon, rank):
    return any(w["what"].startswith("the work behind its") for w in daemon.job("job")["waiting"]
               if w["for"].startswith(f"the GPU of rank {rank}"))


# ---- bits --------------------------------------------------------------------------------------

@cases_of([(p, d) for p in PLACEMENTS for d in LAYOUTS], "{0[0]}_{0[1]}")
def same_bits(what):
    same(*what)


@cases_of([(p, w) for p in PLACEMENTS for w in ("windows", "no_windows")], "{0[0]}_and_{0[1]}")
def same_bits_with_states_on_gpus(what):
    name, windows = what
    same(name, "bf16", EVERYWHERE if windows == "windows" else (), optimizer="device")


@cases_of([0, 1], "on_n{}_alone")
def same_bits_with_a_gpu(node):
    same("four_ranks", "bf16", (node,))


@case
def same_bits_where_no_descriptors_are_exported():
    same("two_ranks", "bf16", daemon={"FAKE_GPU_HANDLES": 1})


@case
def same_bits_over_tcp_in_small_windows():
    """As small as the ranks' declarations allow."""
    same("four_ranks", "fp32", bulk="tcp", reduce_buffers=1, threads=3)


@case
def same_bits_when_every_group_is_held():
    needs = {"hold": GROUPS, "push": GROUPS}
    expected = in_host_memory("four_ranks", "fp32", **needs)
    with gpus(2) as c:
        assert outcome(c, attach(c, PLACEMENTS["four_ranks"], LAYOUTS["fp32"], **needs)) == expected


@case
def same_bits_from_a_slow_gpu():
    """Each event is done a while after it was recorded; trainers run ahead of it."""
    expected = in_host_memory("four_ranks", "fp32")
    with environment(FAKE_GPU_DELAY_MS=7), gpus(2) as c:
        assert outcome(c, attach(c, PLACEMENTS["four_ranks"], LAYOUTS["fp32"])) == expected


# ---- two GPUs a node ---------------------------------------------------------------------------

SPREAD = {"a_gpu_each": ["cuda:0", "cuda:1", "cuda:0", "cuda:1"], "one_gpu_and_two": ["cuda:1", "cuda:1", "cuda:1", "cuda:0"],
          "one_on_the_host": ["cuda:1", None, "cuda:0", "cuda:1"], "one_on_a_gpu": [None, None, None, "cuda:1"]}
GPUS = {None: "host", "cuda:0": "GPU 0", "cuda:1": "GPU 1"}


def attach_spread(c, devices, dtype="fp32", placement=(0, 0, 1, 1)):
    ranks = []
    for rank, device in enumerate(devices):
        a = c.caller("job", LAYOUTS[dtype], list(placement), rank)
        finish_all([a]), finish_all([a])
        a.start("attach", hold=2, push=2, grad=dtype, reduce=dtype, **({"device": device} if device else {}))
        ranks.append(a)
    finish_all(ranks)
    return ranks


@contextlib.contextmanager
def two_gpus(**options):
    with environment(FAKE_GPUS=2), gpus(2, **options) as c:
        yield c


@cases_of([(s, o) for s in SPREAD for o in ("host", "device")], "{0[0]}_states_{0[1]}")
def same_bits_from_two_gpus(what):
    spread, optimizer = what
    expected = in_host_memory("four_ranks", "bf16", grad="bf16", reduce="bf16")
    with two_gpus(owners="n0*2 n1*3", optimizer=optimizer) as c:
        ranks = attach_spread(c, SPREAD[spread], "bf16")
        for d, devices in zip(c.daemons, (SPREAD[spread][:2], SPREAD[spread][2:])):
            told = set(d.job("job")["gather"]["place"].split(", "))
            assert told == {GPUS[device] for device in devices}, told
        assert outcome(c, ranks) == expected
        for a in ranks:
            c.dismiss(a)
        if optimizer == "host":
            for d in c.daemons:
                until(lambda d=d: not any(g["allocations"] for g in d.status()["gpus"]), what="the end of the windows")


# option, what the fake NCCL does, the way that is used in the end, and what status says
BETWEEN = {"nccl": ("nccl", {}, "nccl", ""), "copies": ("copies", {}, "copies", ""),
           "no_nccl": ("auto", {"FAKE_GPU_NCCL_NONE": 1}, "copies", "libnccl.so.2"),
           "a_call_is_refused": ("nccl", {"FAKE_GPU_NCCL_FAILS": 9}, "copies", "the call is refused"),
           "a_member_breaks": ("nccl", {"FAKE_GPU_NCCL_BREAKS": 9}, "copies", "a member is gone")}


@cases_of([(b, o) for b in BETWEEN for o in ("host", "device")], "{0[0]}_states_{0[1]}")
def same_bits_between_gpus(what):
    """Bytes go by NCCL or by copies, also when NCCL fails in the middle of training."""
    between, optimizer = what
    option, fake, end, why = BETWEEN[between]
    expected = in_host_memory("four_ranks", "bf16", grad="bf16", reduce="bf16")
    with two_gpus(daemon=fake, gpu_collectives=option, owners="n0*2 n1*2", optimizer=optimizer) as c:
        ranks = attach_spread(c, SPREAD["a_gpu_each"], "bf16")
        assert outcome(c, ranks) == expected
        for d in c.daemons:
            told = d.status()["cuda"]["between_gpus"]
            assert told["by"] == end and why in (told["why"] or ""), told
            assert (told["moves_by_nccl"] > 0) == (option == "nccl"), told
            assert ("Between GPUs: NCCL 2.28.9" if end == "nccl" else "Between GPUs: copies") in d.ctl_run("status").stdout


@case
def a_rank_on_one_of_two_gpus_is_killed():
    """Its successor is on the other GPU; the step ends with the same bits."""
    expected = in_host_memory("four_ranks", "fp32")
    with two_gpus(owners="n0*2 n1*2") as c:
        ranks = attach_spread(c, SPREAD["a_gpu_each"])
        victim, rest = ranks[1], [ranks[0], *ranks[2:]]
        for a in rest:
            a.start("train", steps=STEPS, micro_batches=2, clip=0.5, sets=SETS, seed=7, patient=True)
        victim.do("fetch", group=0)
        victim.start("fetch", group=1)
        victim.kill()
        c.dismiss(victim)
        heir = c.actor(0, "heir")
        heir.do("connect", job="job", rank=1, world=4, local=2)
        heir.do("layout", groups=LAYOUTS["fp32"])
        heir.do("attach", hold=2, push=2, device="cuda:0")
        heir.start("train", steps=STEPS, micro_batches=2, clip=0.5, sets=SETS, seed=7, patient=True)
        finish_all([heir, *rest])
        assert c.checksum("job")["planes"] == expected[1]


# ---- order -------------------------------------------------------------------------------------

@cases_of(["release", "push", "step"])
def the_step_waits_for_the_gpu_work_before(what):
    """The step does not end before the GPU work of an earlier release or push, or its own, is done."""
    delay = 0.7
    with gpus() as c, environment(FAKE_GPU_DELAY_MS=int(1000 * delay)):
        a, = attach(c, [0], LAYOUTS["fp32"], hold=GROUPS)
        a.do("fetch", group=1)
        begin = time.monotonic()
        gpu_call(a, what)
        if what != "step":
            a.do("step", sets=SETS)
        assert time.monotonic() - begin >= delay, "the step did not wait for the GPU"


@cases_of(["release", "push", "step"])
def work_that_does_not_end_is_named(what):
    """The trainer's error names the work at its deadline, and status names the GPU while others wait; the daemon goes on."""
    placement = [0, 0, 1]
    with gpus(2) as c:
        other = attach_other(c)
        with environment(FAKE_GPU_DELAY_MS=NEVER):
            stuck = c.caller("job", LAYOUTS["fp32"], placement, 1, timeout_ms=DEADLINE_MS)
        rest = [c.caller("job", LAYOUTS["fp32"], placement, rank) for rank in (0, 2)]
        for a in (stuck, *rest):
            finish_all([a]), finish_all([a])
            a.start("attach", hold=2, push=2, device="cuda:0")
        finish_all([stuck, *rest])
        stuck.do("fetch", group=2)
        for a in rest:
            a.start("train", steps=1, sets=SETS, patient=True)
        if what == "release":
            stuck.do("release", group=2)
        elif what == "push":
            stuck.do("grad", group=2)
            stuck.do("push", group=2)
        stuck.start("step", sets=SETS)
        until(lambda: all(waits_for_gpu(d, 1) for d in c.daemons), what="the name of the GPU")
        group = "" if what == "step" else " of group 'block1'"
        expect(stuck.finish(), "EDEADLINE", "the GPU of rank 1", f"the work behind its {what}{group}")
        assert not any(a.ready() for a in rest), "the step ended without rank 1"
        c.dismiss(stuck)
        finish_all(other)
        heir = c.actor(0, "heir")
        heir.do("connect", job="job", rank=1, world=3, local=2)
        heir.do("layout", groups=LAYOUTS["fp32"])
        heir.do("attach", hold=2, push=2, device="cuda:0")
        heir.start("train", steps=1, sets=SETS, patient=True)
        finish_all([heir, *rest])
        for a in [heir, *rest, *other]:
            c.dismiss(a)
        for d in c.daemons:
            until(lambda d=d: memory_of_gpu(d) == 0, what="the end of the windows")


def attach_other(c):
    """A job that must not notice; it trains."""
    ranks = c.ranks("other", small_layout(blocks=1), [0, 1], hold=1, push=1)
    for a in ranks:
        a.start("train", steps=30, sets=SETS)
    return ranks


# ---- ends --------------------------------------------------------------------------------------

@case
def killed_trainers_leave_nothing():
    """Trainers die while their GPUs work; the ranks after them train as if the dead had never been there."""
    expected = in_host_memory("four_ranks", "fp32")
    with gpus(2) as c:
        before = []
        for _ in range(3):
            with environment(FAKE_GPU_DELAY_MS=NEVER):
                ranks = attach(c, PLACEMENTS["four_ranks"], LAYOUTS["fp32"])
            for a in ranks:
                a.do("fetch", group=0)
                a.do("release", group=0)
                push_all(a, 2)
                a.start("step", sets=SETS)
            for a in ranks:
                until(lambda a=a: waits_for_gpu(c[a.socket.endswith("n1.sock")], ranks.index(a)), what="the wait")
            for a in ranks:
                a.kill()
                c.dismiss(a)
            for d in c.daemons:
                until(lambda d=d: memory_of_gpu(d) == 0, what="the memory's return")
                until(lambda d=d: memory_of_gpu(d, "event") == 0, what="the events' end")
            before = before or [d.descriptors() for d in c.daemons]
            for d, was in zip(c.daemons, before):
                until(lambda d=d, was=was: d.descriptors() == was, what="the descriptors to be closed")
        assert outcome(c, attach(c, PLACEMENTS["four_ranks"], LAYOUTS["fp32"])) == expected


@cases_of(["kill", "stop"])
def trainers_find_a_restarted_daemon(how):
    """The restarted daemon has new windows, and the trainers map them by themselves."""
    expected = in_host_memory("four_ranks", "fp32")
    with environment(FAKE_GPU_DELAY_MS=2), gpus(2) as c:
        ranks = attach(c, PLACEMENTS["four_ranks"], LAYOUTS["fp32"])
        for a in ranks:
            a.start("train", steps=STEPS, micro_batches=2, clip=0.5, sets=SETS, seed=7, patient=True)
        until(lambda: c[0].job("job")["version"] >= 3, what="a few steps")
        if how == "kill":
            c[1].kill()
        else:
            c[1].process.terminate()
            assert c[1].process.wait(60 * SLOW) == 0, c[1].log()
        c[1].start()
        finish_all(ranks)
        assert c.checksum("job")["planes"] == expected[1]


# ---- refusals ----------------------------------------------------------------------------------

def refused(c, status, *words, rank=0, placement=(0,), **needs):
    a = c.caller("job", LAYOUTS["fp32"], list(placement), rank)
    finish_all([a]), finish_all([a])
    a.refused(status, "attach", *words, **{"hold": 2, "push": 2, "device": "cuda:0", **needs})
    return a


@case
def a_driver_that_shares_no_memory():
    with gpus(daemon={"FAKE_GPU_ALONE": 1}) as c:
        refused(c, "EGPU", "shares memory with no other process", "host memory")
        assert c[0].alive(), "a trainer's request ended the daemon"


@case
def a_gpu_that_the_daemon_does_not_use():
    with gpus(device="host") as c:
        refused(c, "EGPU", "uses no GPU of UUID", "zeroctl status")
    with gpus() as c, environment(FAKE_GPUS=2):
        refused(c, "EGPU", "uses no GPU of UUID", device="cuda:1")
        train(attach(c, [0], LAYOUTS["fp32"]), 1)


@case
def messages_that_libzero_never_sends():
    with gpus() as c:
        event = Event()
        for gpu, events in ((b"abc", ()), (GPU_0, [b"short"]), (GPU_0, [event.handle] * 65),
                            (b"", [event.handle]), (b"?" * 16, [event.handle])):
            (status, text, _), raw = raw_attach(c, gpu, events)
            assert status != wire.OK and text, (gpu, events)
            raw.close()
        (status, text, _), raw = raw_attach(c, GPU_0, [event.handle])
        assert status == wire.OK, text
        raw.ask("fetch", {1: 0, 2: 0})
        for what, fields in (("push", {1: 1, 2: 1, 4: 0, 8: 2}), ("push", {1: 99, 2: 1, 8: 1}), ("release", {1: 1, 3: 1}),
                             ("release", {1: 0, 3: 99}), ("release", {1: 2**31, 3: 1}), ("step", {1: 1, 4: 2**31})):
            status, text, _ = raw.ask(what, fields)
            assert status != wire.OK and text, (what, status, text)
        for seq in range(200):  # all wait for one event
            raw.send(wire.request(1000 + seq, "push", {1: 1, 2: 1, 3: seq, 4: 0, 8: 1}))
        until(lambda: not raw_is_silent(raw), what="a refusal: waits have a quota")
        raw.close()
        until(lambda: memory_of_gpu(c[0]) == 0, what="the end of the windows")
        (status, text, _), raw = raw_attach(c, GPU_0, [event.handle, bytes(64)])  # one cannot be opened: the session has no events
        assert status == wire.OK, text
        status, text, _ = raw.ask("push", {1: 1, 2: 1, 4: 0, 8: 1})
        assert status != wire.OK and "without events" in text, (status, text)
        raw.close()
        train(c.ranks("other", LAYOUTS["fp32"], [0], hold=2, push=2, device="cuda:0"), 2)


@case
def a_release_is_answered_when_its_event_is_done():
    with gpus() as c:
        event = Event()
        (status, text, _), raw = raw_attach(c, GPU_0, [event.handle])
        assert status == wire.OK, text
        assert raw.ask("fetch", {1: 0, 2: 0})[0] == wire.OK
        raw.send(wire.request(1000, "release", {1: 0, 3: 1}))
        assert raw.ask("fetch", {1: 1, 2: 0})[0] == wire.OK, "fetches do not wait for it"
        assert raw_is_silent(raw), "the release was answered at once"
        event.done_at(1)
        assert raw.reply()[0] == wire.OK


@case
def push_slots_that_do_not_fit_the_gpu():
    with gpus(daemon={"FAKE_GPU_BYTES": 4 << 20}) as c:  # the fake GPU allocates 2 MiB at a time
        first = c.rank("job", LAYOUTS["fp32"], [0, 0], 0, hold=2, push=2, device="cuda:0")
        second = c.rank("job", LAYOUTS["fp32"], [0, 0], 1, hold=2, push=2, device="cuda:0")
        for a in (first, second):
            finish_all([a]), finish_all([a])
        replies = [first.finish(), second.finish()]
        bad, = [r for r in replies if r["status"] != "OK"]
        expect(bad, "ENOMEM", "the push slots of rank", "of job job")
        c.dismiss(first), c.dismiss(second)
        train(c.ranks("other", LAYOUTS["fp32"], [0], hold=2, push=2, device="cuda:0"), 3)


@case
def gpu_windows_bounds_a_user():
    """Gather windows and push slots both count; a job that ends makes room; each user has the same limit."""
    if os.getuid():
        raise Skip("another user needs root")
    layout, needs = LAYOUTS["fp32"], {"hold": 2, "push": 2, "device": "cuda:0"}
    with gpus(gpu_windows=4 << 20) as c:  # a window takes 2 MiB
        first = c.ranks("first", layout, [0], **needs)
        other = c.actor()
        other.do("user", uid=NOBODY)
        other.do("connect", job="other", rank=0, world=1, local=1, timeout_ms=60000 * SLOW)
        other.do("layout", groups=layout)
        other.do("attach", **needs)
        a = c.caller("more", layout, [0], 0)
        finish_all([a]), finish_all([a])
        a.refused("EQUOTA", "attach", "gpu_windows allows 4.0", "user 0", **needs)
        c.dismiss(first[0])
        until(lambda: memory_of_gpu(c[0]) == 2, what="the end of the first job's windows")
        train(c.ranks("more", layout, [0], **needs), 3)
        train([other], 3)


@case
def a_window_that_is_too_small():
    with gpus(window=200000) as c:
        refused(c, "EWINDOW", "set window to at least", hold=GROUPS)
        c.dismiss(c.actors[0])
        until(lambda: memory_of_gpu(c[0]) == 0, what="the end of the windows")


if __name__ == "__main__":
    main()
