#!/usr/bin/env python3
"""Deferred sums: if a gradient lies completely on the GPU of its states, no sum of it is written, and the update adds
it up.  The bits are those of states and windows in host memory, whatever happens between push and update.  The sum is
written as usual if somebody else reads it, or if reading the parts a second time costs more.

The GPU is a fake one: a daemon that touches its memory by the CPU dies."""
import contextlib
import os
import sys
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


# ---- between push and update ------------------------------------------------------------------------

def push(a, step, groups=GROUPS, **fields):
    for g in range(groups):
        a.do("grad", group=g, seed=SEED, step=step, **(fields if g == 0 else {}))
        a.do("push", group=g, last=True)


def step_by_hand(ranks, **fields):
    for a in ranks:
        a.start("step", sets=SETS, clip=0.5, **fields)
    return finish_all(ranks)


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


@case
def norms_of_tensors_before_the_step():
    """Deferred sums are written first, and the step is the same."""
    told = []
    for where in (None, "cuda:0"):
        with gpus() if where else Cluster(1) as c:
            ranks = attach(c, [0, 0], "bf16", where, grad="bf16", reduce="bf16", timeout_ms=60000 * SLOW)
            norms, tensors = [], sum(len(g["tensors"]) for g in LAYOUTS["bf16"])
            for step in range(3):
                for a in ranks:
                    push(a, step)
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
        push(a, 0)
        until(lambda: deferred(c) == [GROUPS], what="the norms")
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


@cases_of(["before", "in"])
def a_rank_is_killed(when):
    """The rank dies between its push and the step, or while others wait for it in the step. Its successor ends the step
    with the gradients that were pushed."""
    expected = in_host_memory([0, 0], "bf16", {"grad": "bf16", "reduce": "bf16"}, {})
    with gpus() as c:
        ranks = attach(c, [0, 0], "bf16", grad="bf16", reduce="bf16")
        train(ranks, 2)
        for a in ranks:
            push(a, 2)
        until(lambda: deferred(c) == [3 * GROUPS], what="the norms")
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


@case
def all_ranks_are_killed():
    """The pushed gradients are kept, the dead ranks' push slots are not: successors may need that GPU memory."""
    expected = in_host_memory([0, 0], "bf16", {"grad": "bf16", "reduce": "bf16"}, {})
    with gpus() as c:
        ranks = attach(c, [0, 0], "bf16", grad="bf16", reduce="bf16")
        for a in ranks:
            push(a, 0)
        until(lambda: deferred(c) == [GROUPS], what="the norms")
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
        until(lambda: deferred(c)[0] == 3 * each > 0, what="the norms")
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
        until(lambda: deferred(c) == [3 * GROUPS], what="the norms")
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
