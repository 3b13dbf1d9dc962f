#!/usr/bin/env python3
"""Deferred sums: if a gradient lies completely on the GPU of its states, no sum of it is written, and the update adds
it up.  The bits are those of states and windows in host memory, whatever happens between push and update.  The sum is
written as usual if somebody else reads it, or if reading the parts a second time costs more.  Until the step ends, or
a rank needs its slot for another micro-batch, a push that may be followed by others waits.

The GPU is a fake one: a daemon that touches its memory by the CPU dies."""
import contextlib
import os
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SETS, SLOW, WAIT, Cluster, crash_points, end_process, expect, finish_all, small_layout, until  # noqa: E402
from fake_gpu import environment, plugin  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402

STEPS, SEED = 5, 7
TRAIN = {"clip": 0.5, "sets": SETS, "seed": SEED, "pull": 0}
LAYOUTS = {t: small_layout(t, blocks=2, width=200) for t in ("fp32", "bf16", "fp16")}
GROUPS = len(LAYOUTS["fp32"])
ON_GPU = {"device": "cuda", "optimizer": "device"}
BF16 = {"grad": "bf16", "reduce": "bf16"}
known = {}


@contextlib.contextmanager
def gpus(nodes=1, **options):
    """A cluster whose nodes have their states on a GPU; actors find the plugin."""
    with environment(ZEROD_CUDA_PLUGIN=plugin()), Cluster(nodes, **{**ON_GPU, **options}) as c:
        yield c


def attach(c, placement, dtype, windows="cuda:0", **needs):
    """Attaches all ranks, with a push slot for each group."""
    where = {"device": windows} if windows else {}
    return c.ranks("job", LAYOUTS[dtype], placement, **{"hold": 2, "push": -1, **where, **needs})


def train(ranks, steps=STEPS, **more):
    for a in ranks:
        a.start("train", steps=steps, **TRAIN, **more)
    return {r["hash"] for r in finish_all(ranks)}


def in_host_memory(placement, dtype, needs, more):
    key = str((placement, dtype, needs, more))
    if key not in known:
        with Cluster(max(placement) + 1) as c:
            seen = train(attach(c, placement, dtype, None, **needs), **more)
            known[key] = seen, c.checksum("job")["planes"]
    return known[key]


def deferred(c):
    """By node: how many sums of the job were left to the update."""
    return [d.job("job")["reduce"]["deferred"] for d in c.daemons]


def same(c, placement, dtype="bf16", windows="cuda:0", push=-1, more=None, **needs):
    more = more or {}
    ranks = attach(c, placement, dtype, windows, push=push, **needs)
    seen = train(ranks, **more)
    told = c.checksum("job")
    assert (seen, told["planes"]) == in_host_memory(placement, dtype, needs, more), told
    return deferred(c)


# ---- when a sum is deferred ----------------------------------------------------------------------------------------

TAKEN = {"one_bf16": ([0], "bf16", "bf16"), "two_bf16": ([0, 0], "bf16", "bf16"), "three_bf16": ([0, 0, 0], "bf16", "bf16"),
         "one_fp32": ([0], "fp32", "fp32"), "one_fp32_as_bf16": ([0], "fp32", "bf16"),
         "two_fp16": ([0, 0], "fp16", "fp32"), "two_fp16_as_fp16": ([0, 0], "fp16", "fp16"), "two_bf16_as_fp32": ([0, 0], "bf16", "fp32")}


@cases_of(list(TAKEN))
def deferred_to_the_update(name):
    placement, grad, wire = TAKEN[name]
    with gpus() as c:
        assert same(c, placement, grad, grad=grad, reduce=wire) == [STEPS * GROUPS]


@case
def deferred_on_several_owners():
    """Two owners of one node defer; an owner on another node receives its part as usual."""
    with gpus(owners="n0*2", threads=4) as c:
        got = same(c, [0, 0], grad="bf16", reduce="bf16")
        assert got[0] > STEPS * GROUPS, got
    with gpus(2) as c:
        got = same(c, [0], grad="bf16", reduce="bf16")
        assert got[0] >= STEPS and got[1] == 0, got


NOT_TAKEN = {
    "slots_that_others_wait_for": dict(placement=[0, 0], push=2),
    "windows_in_host_memory": dict(placement=[0], windows=None),
    "more_to_read_than_the_sum": dict(placement=[0, 0, 0, 0]),
    "as_much_to_read_as_the_sum": dict(placement=[0, 0], dtype="fp32", grad="fp32", reduce="fp32"),
    "two_micro_batches": dict(placement=[0, 0], more={"micro_batches": 2}),
    "two_open_micro_batches": dict(placement=[0, 0], more={"micro_batches": 2, "open": True}),
}


@cases_of(list(NOT_TAKEN))
def not_deferred(name):
    with gpus() as c:
        assert same(c, **{"grad": "bf16", "reduce": "bf16", **NOT_TAKEN[name]}) == [0]


@cases_of([("two_nodes", {}), ("a_mirror", {"mirror": 1}), ("states_in_host_memory", {"optimizer": "host"})], "{0[0]}")
def not_deferred_with(what):
    name, options = what
    nodes = 1 if name == "states_in_host_memory" else 2
    with gpus(nodes, **options) as c:
        assert same(c, [0, 1] if name == "two_nodes" else [0], grad="bf16", reduce="bf16") == [0] * nodes


@cases_of([True, False], "last_{}")
def more_groups_than_a_rank_has_events(last):
    """A push that waits for the step's end gives its event back before."""
    layout = small_layout("bf16", blocks=80, width=20)
    with gpus() as c:
        a, = c.ranks("job", layout, [0], hold=2, push=-1, device="cuda:0", **BF16)
        train([a], 2, open=not last)
        assert deferred(c) == [2 * len(layout)]


# ---- how many slots a rank has that leaves their number to the service -----------------------------------------------

AUTO = -2


def slots(c, job="job"):
    return [s["push_slots"] for d in c.daemons for s in d.job(job)["sessions"]]


@case
def a_slot_for_each_group_where_the_update_adds_up():
    with gpus() as c:
        assert same(c, [0], push=AUTO, more={"open": True}, **BF16) == [STEPS * GROUPS]
        assert slots(c) == [GROUPS] and "rank 0 has a push slot for each group" in c[0].log()


ELSEWHERE = {"two_ranks": dict(placement=[0, 0]), "windows_in_host_memory": dict(placement=[0], windows=None),
             "states_in_host_memory": dict(placement=[0], optimizer="host"), "a_mirror": dict(placement=[0], nodes=2, mirror=1)}


@cases_of(list(ELSEWHERE))
def two_slots_with(what):
    """More would take memory, and save nothing."""
    given = dict(ELSEWHERE[what])
    placement, windows, nodes = given.pop("placement"), given.pop("windows", "cuda:0"), given.pop("nodes", 1)
    with gpus(nodes, **given) as c:
        attach(c, placement, "bf16", windows, push=AUTO, **BF16)
        assert set(slots(c)) == {2}, slots(c)
        assert "push slot" not in c[0].log()


FULL = {"the_gpu_is_full": (18 << 20, 200, {}), "the_user_has_no_more": (1 << 30, 450, {"gpu_windows": 5 << 20})}


@cases_of(list(FULL))
def two_slots_where(what):
    """That is no error, and the log says why.  A rank that names a number gets it, or hears why not."""
    total, width, options = FULL[what]
    layout = small_layout("bf16", blocks=5, width=width)
    with environment(FAKE_GPU_BYTES=total), gpus(**options) as c:
        a, = c.ranks("job", layout, [0], hold=1, push=AUTO, device="cuda:0", **BF16)
        assert slots(c) == [2]
        assert "rank 0 has 2 push slots: a slot for each group takes" in c[0].log()
        train([a], 2)


@case
def a_daemon_that_starts_again_chooses_anew():
    """The rank had a slot for each group, and finds a daemon that has no memory for them."""
    needs, layout = {"push": AUTO, **BF16}, small_layout("bf16", blocks=5, width=450)
    with gpus() as c:
        a, = c.ranks("job", layout, [0], hold=1, device="cuda:0", **needs)
        train([a], 2)
        assert slots(c) == [len(layout)]
        stop(c[0])
        c[0].options["gpu_windows"] = 5 << 20
        c[0].start()
        train([a], 2, patient=True)
        assert slots(c) == [2]
        found = c.checksum("job")["planes"]
    with Cluster(1) as c:
        a, = c.ranks("job", layout, [0], hold=1, **{**needs, "push": 2})
        train([a], 4)
        assert c.checksum("job")["planes"] == found


# ---- what follows is not known ---------------------------------------------------------------------

@cases_of(["one_bf16", "three_bf16", "one_fp32_as_bf16"])
def deferred_when_the_step_ends(name):
    placement, grad, wire = TAKEN[name]
    with gpus() as c:
        assert same(c, placement, grad, grad=grad, reduce=wire, more={"open": True}) == [STEPS * GROUPS]


@case
def deferred_as_long_as_steps_have_one_micro_batch():
    """A step that follows one of several micro-batches keeps no slot until its end."""
    told = []
    for where in (None, "cuda:0"):
        with gpus() if where else Cluster(1) as c:
            ranks = attach(c, [0, 0], "bf16", where, grad="bf16", reduce="bf16")
            counts = []
            for micro_batches in (1, 2, 2, 1, 1):
                seen = train(ranks, 1, micro_batches=micro_batches, open=True)
                counts.append(deferred(c)[0])
            told.append((seen, c.checksum("job")))
    assert counts == [GROUPS, GROUPS, GROUPS, GROUPS, 2 * GROUPS], counts
    assert told[0] == told[1], told


@contextlib.contextmanager
def launches(**options):
    """A cluster, and how many reductions its GPU was given so far."""
    with tempfile.TemporaryDirectory() as directory, environment(FAKE_GPU_REDUCES=f"{directory}/reduces"), \
            gpus(**options) as c:
        yield c, lambda: os.path.getsize(f"{directory}/reduces") if os.path.exists(f"{directory}/reduces") else 0


@cases_of([2, 16], "{}_blocks")
def one_launch_takes_the_norm(blocks):
    """However many groups there are, whether pushes say that they are the last, and whether a norm is asked for."""
    layout = small_layout("bf16", blocks=blocks, width=20)
    with launches() as (c, count):
        a, = c.ranks("job", layout, [0], hold=2, push=-1, device="cuda:0", grad="bf16", reduce="bf16")
        for step in range(4):
            push(a, step, len(layout), last=step % 2 == 0)
            a.do("fetch", group=0)  # the daemon has had the pushes
            assert count() == step, "a push began work on the GPU"
            if step > 1:
                a.do("norm")
                assert count() == step + 1
            step_by_hand([a])
            assert count() == step + 1, count()
        assert deferred(c) == [4 * len(layout)]


# ---- between push and update ------------------------------------------------------------------------

def push_one(a, group, step=0, last=True, **fields):
    a.do("grad", group=group, seed=SEED, step=step, **fields)
    a.do("push", group=group, last=last)


def push(a, step, groups=GROUPS, last=True, **fields):
    for g in range(groups):
        push_one(a, g, step, last, **(fields if g == 0 else {}))


def step_by_hand(ranks, **fields):
    for a in ranks:
        a.start("step", sets=SETS, clip=0.5, **fields)
    return finish_all(ranks)


def sums_of(do):
    """The states after a step of one rank with windows in host memory, and on the GPU, where pushes wait."""
    told = []
    for where in (None, "cuda:0"):
        with gpus() if where else Cluster(1) as c:
            a, = attach(c, [0], "bf16", where, grad="bf16", reduce="bf16", timeout_ms=20000 * SLOW)
            do(a)
            step_by_hand([a])
            told.append(c.checksum("job")["planes"])
    return told


@case
def an_empty_push_behind_one_that_waits():
    def pushes(a):
        push(a, 0, last=False)
        a.do("push", group=0, last=False, present=[False])
        a.do("push", group=1, last=True, present=[False])
    there, here = sums_of(pushes)
    assert there == here


@case
def more_requests_than_places_behind_a_push_that_waits():
    """libzero remembers a request until its answer; the answer to such a push comes with the step."""
    def pushes(a):
        push(a, 0, last=False)
        for _ in range(2100):
            a.do("fetch", group=1)
            a.do("release", group=1)
    there, here = sums_of(pushes)
    assert there == here


@case
def no_gradient_is_begun_behind_the_norm():
    """The slot is kept until the step: the call is refused by name, and not at its deadline."""
    with gpus() as c:
        a, = attach(c, [0], "bf16", grad="bf16", reduce="bf16", timeout_ms=20000 * SLOW)
        push(a, 0, last=False)
        a.do("norm")
        a.refused("EORDER", "grad", "before the next one", group=0, seed=SEED, step=0)
        step_by_hand([a])


@case
def norm_before_the_step():
    """zero_norm() may be called repeatedly. Deferred pushes are acknowledged at the step, which does not wait for that."""
    told = []
    for where in (None, "cuda:0"):
        with gpus() if where else Cluster(1) as c:
            ranks = attach(c, [0, 0], "bf16", where, grad="bf16", reduce="bf16", timeout_ms=60000 * SLOW)
            norms = []
            for step in range(3):
                for a in ranks:
                    push(a, step)
                for _ in range(2):
                    for a in ranks:
                        a.start("norm")
                    norms.append([(r["norm"], r["finite"]) for r in finish_all(ranks)])
                step_by_hand(ranks)
            told.append((norms, c.checksum("job")))
            assert deferred(c) == [3 * GROUPS if where else 0]
    assert told[0] == told[1], told


@cases_of([True, False], "last_{}")
def norms_of_tensors_before_the_step(last):
    """Deferred sums are written first, and the step is the same."""
    told = []
    for where in (None, "cuda:0"):
        with gpus() if where else Cluster(1) as c:
            ranks = attach(c, [0, 0], "bf16", where, grad="bf16", reduce="bf16", timeout_ms=60000 * SLOW)
            norms, tensors = [], sum(len(g["tensors"]) for g in LAYOUTS["bf16"])
            for step in range(3):
                for a in ranks:
                    push(a, step, last=last)
                for plane in ("grad", "master", "grad") if step < 2 else ("master",):
                    for a in ranks:
                        a.start("norms", plane=plane, first=0, count=tensors)
                    norms.append([r["norms"] for r in finish_all(ranks)])
                step_by_hand(ranks)
            assert norms[0] == norms[2] and any(norms[0][0]), norms
            told.append((norms, c.checksum("job")))
            assert deferred(c) == [3 * GROUPS if where else 0]
    assert told[0] == told[1], told


@case
def a_push_has_no_deadline_before_its_step():
    """Between its first push and the step a trainer may take longer than the timeout of a call."""
    with gpus() as c:
        a, = attach(c, [0], "bf16", grad="bf16", reduce="bf16", timeout_ms=3000 * WAIT)
        push(a, 0, GROUPS - 1)
        push_one(a, GROUPS - 1, last=False)
        until(lambda: deferred(c) == [GROUPS - 1], what="the sums")
        time.sleep(3.5 * WAIT)
        assert step_by_hand([a])[0]["version"] == 1
        push(a, 1)
        assert step_by_hand([a])[0]["version"] == 2


@case
def a_step_that_is_skipped():
    """A skipped step discards its gradients, and the next step uses their memory again."""
    told = []
    for where in (None, "cuda:0"):
        with gpus() if where else Cluster(1) as c:
            ranks = attach(c, [0, 0], "bf16", where, grad="bf16", reduce="bf16")
            replies = []
            for step in range(4):
                for i, a in enumerate(ranks):
                    push(a, step, **({"bad": "nan"} if step % 2 and i else {}))
                replies.append([(r["version"], r["skipped"]) for r in step_by_hand(ranks)])
            told.append((replies, c.checksum("job")))
    assert told[0] == told[1], told
    assert told[0][0][1] == [(1, True)] * 2 and told[0][0][3] == [(2, True)] * 2, told[0][0]


def heir_of(c, rank, world):
    heir = c.actor(0, "heir")
    heir.do("connect", job="job", rank=rank, world=world, local=world)
    heir.do("layout", groups=LAYOUTS["bf16"])
    heir.do("attach", hold=2, push=-1, device="cuda:0", grad="bf16", reduce="bf16")
    return heir


@cases_of([("before", True), ("in", True), ("before", False), ("in", False)], "{0[0]}_last_{0[1]}")
def a_rank_is_killed(what):
    """The rank dies between its push and the step, or while others wait for it in the step. Its successor ends the step
    with the gradients that were pushed."""
    when, last = what
    expected = in_host_memory([0, 0], "bf16", {"grad": "bf16", "reduce": "bf16"}, {})
    with gpus() as c:
        ranks = attach(c, [0, 0], "bf16", grad="bf16", reduce="bf16")
        train(ranks, 2)
        for a in ranks:
            push(a, 2, last=last)
            a.do("fetch", group=0)
            a.do("release", group=0)
        until(lambda: deferred(c) == [(3 if last else 2) * GROUPS], what="the sums")
        if when == "in":
            ranks[0].start("step", sets=SETS, clip=0.5)
        ranks[1].kill()
        c.dismiss(ranks[1])
        ranks[1] = heir_of(c, 1, 2)
        if when == "before":
            ranks[0].start("step", sets=SETS, clip=0.5)
        ranks[1].start("step", sets=SETS, clip=0.5)
        assert [r["version"] for r in finish_all(ranks)] == [3, 3]
        train(ranks, STEPS - 3)
        assert c.checksum("job")["planes"] == expected[1]


@cases_of([True, False], "last_{}")
def all_ranks_are_killed(last):
    """The pushed gradients are kept, the dead ranks' push slots are not: successors may need that GPU memory."""
    expected = in_host_memory([0, 0], "bf16", {"grad": "bf16", "reduce": "bf16"}, {})
    with gpus() as c:
        ranks = attach(c, [0, 0], "bf16", grad="bf16", reduce="bf16")
        for a in ranks:
            push(a, 0, last=last)
            a.do("fetch", group=0)
        until(lambda: deferred(c) == [GROUPS if last else 0], what="the sums")
        for a in ranks:
            a.kill()
            c.dismiss(a)
        until(lambda: not any("push slots" in a["what"] for g in c[0].status()["gpus"] for a in g["allocations"]),
              what="the release of the memory")
        ranks = attach(c, [0, 0], "bf16", grad="bf16", reduce="bf16")
        train(ranks)
        assert c.checksum("job")["planes"] == expected[1]


@case
def a_node_is_lost_before_the_step():
    """A node is lost before the step: the attempt is void, and the rank pushes its gradients again."""
    needs = {"grad": "bf16", "reduce": "bf16"}
    expected = in_host_memory([0], "bf16", needs, {})
    with gpus(2) as c:
        c[1].options["optimizer"] = "host"
        stop(c[1])
        c[1].start()
        c.wait_up()
        a, = attach(c, [0], "bf16", **needs)
        train([a], 2)
        each = deferred(c)[0] // 2
        push(a, 2)
        until(lambda: deferred(c)[0] == 3 * each > 0, what="the sums")
        c[1].restart()
        a.start("norm")
        expect(a.finish(), "EABORTED")
        train([a], STEPS - 2, patient=True)
        assert c.checksum("job")["planes"] == expected[1]


# ---- an orderly stop ---------------------------------------------------------------------------------

def stop(daemon):
    assert end_process(daemon.process, 15 * SLOW), daemon.log()[-2000:]


@case
def stopped_before_the_step():
    needs = {"grad": "bf16", "reduce": "bf16"}
    expected = in_host_memory([0, 0], "bf16", needs, {})
    with gpus(drain_ms=0) as c:
        ranks = attach(c, [0, 0], "bf16", **needs)
        train(ranks, 2)
        for a in ranks:
            push(a, 2)
        until(lambda: deferred(c) == [3 * GROUPS], what="the sums")
        stop(c[0])
        c[0].start()
        for a in ranks:
            a.start("norm")
        for a in ranks:
            expect(a.finish(), "EABORTED")
        train(ranks, STEPS - 2, patient=True)
        assert c.checksum("job")["planes"] == expected[1]


@case
def stopped_after_its_vote():
    """The step may already be decided: the stop writes the sums with the states, and the next start carries the step out."""
    if not crash_points():
        raise Skip("the daemon was built without crash points")
    needs = {"grad": "bf16", "reduce": "bf16"}
    expected = in_host_memory([0], "bf16", needs, {})
    with gpus(2, start=False) as c:
        away = c.coordinator("job")
        here = next(d for d in c.daemons if d is not away)
        away.options["optimizer"] = "host"
        away.start(crash="coordinator.decided:3")
        here.start()
        c.wait_up()
        a, = attach(c, [c.daemons.index(here)], "bf16", **needs)
        a.start("train", steps=STEPS, patient=True, **TRAIN)
        until(lambda: not away.alive(), what="the kill")
        assert here.job("job")["version"] == 2
        stop(here)
        assert "from GPU memory" in here.log()
        here.start()
        away.start()
        finish_all([a])
        told = c.checksum("job")
        assert told["version"] == STEPS and told["planes"] == expected[1], told


if __name__ == "__main__":
    main()
