#!/usr/bin/env python3
"""Hyperparameter sets, pushes in any order, skipped steps and private views."""
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import WAIT, Cluster, expect, finish_all, group, step_all, tensor, until  # noqa: E402
from harness import case, cases_of, main  # noqa: E402

LAYOUT = [group("a", tensor("wa", 30000), tensor("still", 10, frozen=True)),
          group("b", tensor("wb", 3000, set=1))]
STILL, STRONG = [0.0, 0.9, 0.99, 1e-8, 0.0], [0.5, 0.9, 0.99, 1e-8, 0.1]
WA, STILL_TENSOR, WB = 0, 1, 2


def push_all(ranks, groups=2):
    for a in ranks:
        for g in range(groups):
            a.do("grad", group=g)
            a.do("push", group=g)


def values(a):
    return {t: a.do("get", tensor=t, plane="master", count=50)["values"] for t in (WA, WB)}


def moved(a, before):
    """For each of the two trainable tensors: whether it changed."""
    after = values(a)
    return [after[t] != before[t] for t in (WA, WB)]

# ---- hyperparameter sets -------------------------------------------------------------------


@case
def sets_from_the_layout_and_by_put():
    """A tensor's set is first the layout's; a set that is put applies from then on, already in the current step."""
    with Cluster(2) as c:
        ranks = c.ranks("j", LAYOUT, [0, 1], hold=2, push=2)
        a, b = ranks
        assert [b.do("get", tensor=t, plane="set")["values"] for t in (WA, WB)] == [[0], [1]]
        before = values(a)
        push_all(ranks)
        step_all(ranks, sets=[STILL, STRONG])
        assert moved(a, before) == [False, True]
        before = values(a)
        push_all([a])
        b.do("put", tensor=WA, plane="set", values=[1])
        b.do("put", tensor=WB, plane="set", values=[0])
        push_all([b])
        step_all(ranks, sets=[STILL, STRONG])
        assert moved(a, before) == [True, False]
        assert [a.do("get", tensor=t, plane="set")["values"] for t in (WA, WB)] == [[1], [0]]


@case
def set_put_after_the_norm():
    """A set may be chosen after zero_norm(), for instance a learning rate that depends on the norm."""
    with Cluster(2) as c:
        ranks = c.ranks("j", LAYOUT, [0, 1], hold=2, push=2)
        before = values(ranks[0])
        push_all(ranks)
        for a in ranks:
            a.start("norm")
        finish_all(ranks)
        ranks[0].do("put", tensor=WA, plane="set", values=[1])
        step_all(ranks, sets=[STILL, STRONG])
        assert moved(ranks[0], before) == [True, True]


@case
def step_without_a_tensors_set():
    """Every rank's error names the tensor whose set is missing; gradients stay, and another zero_step() ends the step."""
    with Cluster(2) as c:
        ranks = c.ranks("j", LAYOUT, [0, 0, 1], hold=2, push=2)
        before = values(ranks[0])
        push_all(ranks)
        for a in ranks:
            a.start("step", sets=[STRONG])
        for a in ranks:
            expect(a.finish(), "EINVAL", "'wb'", "set 1")
        step_all(ranks, sets=[STILL, STRONG])
        assert moved(ranks[0], before) == [False, True]
        ranks[1].do("put", tensor=WA, plane="set", values=[200])
        for a in ranks:
            a.start("step", sets=[STILL, STRONG])
        for a in ranks:
            expect(a.finish(), "EINVAL", "'wa'", "set 200")
        ranks[2].do("put", tensor=WA, plane="set", values=[0])
        assert {r["version"] for r in step_all(ranks, sets=[STILL, STRONG])} == {2}


@case
def wrong_puts_of_sets():
    with Cluster(2) as c:
        a, b = c.ranks("j", LAYOUT, [0, 1], hold=2, push=2, timeout_ms=2000 * WAIT)
        a.refused("ERANGE", "put", "256", tensor=WA, plane="set", values=[256])
        a.refused("ERANGE", "put", tensor=WA, plane="set", first=1, values=[1])
        a.refused("EINVAL", "put", "frozen", tensor=STILL_TENSOR, plane="set", values=[1])
        a.refused("EDEADLINE", "step", "rank 1", sets=[STILL, STRONG])
        a.refused("EORDER", "put", "zero_step", tensor=WA, plane="set", values=[1])
        b.do("put", tensor=WA, plane="set", values=[1])
        step_all([a, b], sets=[STILL, STRONG])
        a.do("put", tensor=WA, plane="set", values=[0])

# ---- the order of updates ------------------------------------------------------------------


@cases_of([1, 2], "{}_owners")
def groups_are_updated_in_the_order_in_which_ranks_use_them(owners):
    """Also where no rank is, and from the first step on: the forward pass waits for its first group alone."""
    n = 6
    with Cluster(owners, log_level="debug") as c:
        a, = c.ranks("j", [group(f"g{i}", tensor(f"t{i}", 100000)) for i in range(n)], [0], hold=n, push=n)
        for step, order in enumerate([[3, 0, 5, 1, 4, 2], [2, 5, 0, 3, 1, 4], [2, 5, 0]]):
            for g in order + order[::-1]:
                a.do("fetch", group=g)
                a.do("release", group=g)
            push_all([a], n)
            step_all([a], sets=[STRONG, STRONG])
            expected = (order + [g for g in [2, 5, 0, 3, 1, 4] if g not in order])[:n]
            for d in c.daemons:
                until(lambda d=d, step=step: len(updated(d)) == n * (step + 1), what="the updates")
                assert updated(d)[-n:] == expected, (updated(d), expected)


def updated(daemon):
    return [int(g) for g in re.findall(r"has updated group 'g(\d)'", daemon.log())]


# ---- pushes --------------------------------------------------------------------------------


def many(n):
    return [group(f"g{i}", tensor(f"t{i}", 3000)) for i in range(n)]


@case
def push_of_nothing_needs_no_gradient_memory():
    layout = [group("two", tensor("x", 100), tensor("y", 100))]
    with Cluster(2) as c:
        a, b = c.ranks("j", layout, [0, 1], hold=1, push=1)
        a.refused("EORDER", "push", "zero_grad", group=0, present=[0, 1])
        for _ in range(100):
            a.do("push", group=0, present=[0, 0], last=False)
        a.do("push", group=0, present=[0, 0])
        a.refused("EORDER", "push", "last", group=0, present=[0, 0])
        b.do("grad", group=0)
        b.do("push", group=0)
        assert step_all([a, b], sets=[STRONG])[0]["grad_norm"] > 0


@case
def ranks_with_different_modules_in_opposite_orders():
    """With one push slot each: ranks first say which groups they lack, so no slot waits for those."""
    n = 6
    with Cluster(2) as c:
        ranks = c.ranks("j", many(n), [0, 0, 1], hold=1, push=1)
        for step in range(3):
            own = [range(n // 2), range(n - 1, n // 2 - 1, -1), range(0, n, 2)]
            for a, groups in zip(ranks, own):
                for g in set(range(n)) - set(groups):
                    a.do("push", group=g, present=[0])
                for g in groups:
                    a.start("grad", group=g, step=step)
                    a.start("push", group=g)
            for a in ranks:
                while a.asked:
                    finish_all([a])
            assert {r["version"] for r in step_all(ranks, sets=[STRONG])} == {step + 1}

@case
def ranks_that_push_pairs_of_groups_in_opposite_order():
    """With one push slot each: of two gradients that wait for each other the daemon copies one out of its slot."""
    n = 6
    with Cluster(1) as c:
        sums = []
        for job, cross in (("straight", 0), ("crossed", 1)):
            ranks = c.ranks(job, many(n), [0, 0, 0], hold=1, push=1)
            for step in range(3):
                for r, a in enumerate(ranks):
                    for g in range(n):
                        a.start("grad", group=g ^ (cross & r), step=step)
                        a.start("push", group=g ^ (cross & r))
                for a in ranks:
                    while a.asked:
                        finish_all([a])
                step_all(ranks, sets=[STRONG])
            sums.append(c.checksum(job)["checksum"])
        assert sums[0] == sums[1], "the order of pushes changed the result"


@case
def deadlocked_push_orders_end_with_the_groups_name():
    with Cluster(1) as c:
        a, b = c.ranks("j", many(8), [0, 0], hold=1, push=1, timeout_ms=2000 * WAIT)
        for g in range(8):
            for r, group_of in ((a, g), (b, 7 - g)):
                r.start("grad", group=group_of)
                r.start("push", group=group_of)
        for r in (a, b):
            replies = [r.finish() for _ in range(16)]
            assert any(x["status"] == "EDEADLINE" and "group 'g" in x["text"] for x in replies)

@case
def step_refuses_a_gradient_that_was_not_pushed():
    """zero_norm() and zero_step() name the group; a push without tensors returns the gradient memory."""
    with Cluster(1) as c:
        a, = c.ranks("j", LAYOUT, [0], hold=2, push=2)
        a.do("grad", group=1)
        a.do("push", group=1)
        a.do("grad", group=0)
        for end in ("norm", "step"):
            a.refused("EORDER", end, "group 0 'a'", "not pushed", sets=[STILL, STRONG])
        a.do("push", group=0, present=[0, 0])
        assert a.do("step", sets=[STILL, STRONG])["version"] == 1


@cases_of([(end, p) for end in ("norm", "step") for p in ([0, 0], [0, 1])], "{0[0]}_{0[1]}")
def a_call_that_others_wait_in_is_named(what):
    """As far as the late rank's node hears of the others' calls."""
    end, placement = what
    call = f"zero_{end}" if placement == [0, 0] else "zero_norm or zero_step"
    with Cluster(max(placement) + 1) as c:
        a, _ = c.ranks("j", LAYOUT, placement, hold=1, push=1, timeout_ms=1500 * WAIT)
        a.refused("EDEADLINE", end, "rank 1", f" {call} (pushed 0 gradients", sets=[STILL, STRONG])


@case
def a_group_that_nobody_pushes_is_reported():
    with Cluster(2) as c:
        ranks = c.ranks("j", LAYOUT, [0, 1], hold=2, push=2)

        def updated():
            groups = c[0].ctl("shards", "j")["jobs"][0]["groups"]
            return [{s["last_updated"] for s in g["shards"]} for g in groups]

        def warnings():
            return [line for d in c.daemons for line in d.log().splitlines() if "no rank has pushed" in line]

        for _ in range(20):
            push_all(ranks, groups=1)
            step_all(ranks, sets=[STRONG, STRONG])
        assert updated() == [{20}, {None}], updated()
        assert len(warnings()) == 1 and "group 'b' in the last 8 steps" in warnings()[0], warnings()
        push_all(ranks[1:])
        step_all(ranks, sets=[STRONG, STRONG])
        assert updated() == [{21}, {21}], updated()


@case
def steps_without_a_finite_gradient_are_counted():
    """A training loop can stop by the count; the log has a line for each power of two only."""
    with Cluster(1) as c:
        a, = c.ranks("j", LAYOUT, [0], hold=2, push=2)
        for n in range(1, 41):
            a.do("grad", group=0, bad="nan")
            a.do("push", group=0)
            reply = a.do("step", sets=[STRONG, STRONG])
            assert reply["skipped"] and reply["skips"] == n and reply["version"] == 0, reply
        assert c[0].log().count("step skipped") == 6, "the 1st, 2nd, 4th, ..., 32nd"
        assert a.do("step", sets=[])["skips"] == 40, "a step without sets must not change the count"
        push_all([a])
        assert a.do("step", sets=[STRONG, STRONG])["skips"] == 0


@case
def first_values_from_rank_0():
    """Rank 0 puts the first values; the others wait for it in a step without an update."""
    layout = [group("g", {**tensor("t", 3), "init": "put"})]
    with Cluster(2) as c:
        ranks = c.ranks("j", layout, [0, 1, 1], hold=1, push=1)
        for a in ranks[1:]:
            a.start("step", sets=[])
        assert not ranks[1].ready(0.3), "rank 0 has not put yet"
        ranks[0].do("put", tensor=0, plane="master", values=[1, 2, 3])
        ranks[0].start("step", sets=[])
        assert {(r["version"], r["skipped"]) for r in finish_all(ranks)} == {(0, True)}
        for a in ranks:
            a.do("fetch", group=0)
            assert a.do("view", group=0, values=True)["values"][:3] == [1, 2, 3]

# ---- private views -------------------------------------------------------------------------


@case
def get_after_a_step_reads_that_step():
    """Even if the owner hears of the decision later than the reader's node."""
    layout = [group(f"g{i}", tensor(f"t{i}", 1000)) for i in range(4)]
    with Cluster(2, delay_ms=40) as c:
        ranks = c.ranks("read", layout, [0, 1], hold=1, push=4)
        for n in range(1, 21):
            push_all(ranks, 4)
            for a in ranks:
                a.start("step", sets=[STILL])
                a.start("get", tensor=n % 4, plane="step", count=1)
            finish_all(ranks)
            assert [a.good(a.finish())["values"] for a in ranks] == [[n], [n]], f"after step {n}"


def mapped_windows(pid):
    with open(f"/proc/{pid}/maps", encoding="ascii") as f:
        return [line for line in f if "zerod-gather" in line or "zerod-serve" in line or ".state" in line]


@cases_of([("bf16", 1), ("bf16", 2), ("fp32", 1)], "{0[0]}_{0[1]}")
def writes_to_a_private_view_stay_private(what):
    dtype, nodes = what
    layout = [group(g, tensor("t" + g, 5000), dtype=dtype) for g in "abc"]
    with Cluster(nodes) as c:
        ranks = c.ranks("j", layout, [0, 0], hold=3, push=1, grad=dtype, private=True)
        a, b = ranks
        for step in range(2):
            for g in range(3):
                a.do("fetch", group=g)
            true = [a.do("view", group=g)["hash"] for g in range(3)]
            a.do("scribble", group=1)
            assert a.do("view", group=1)["hash"] != true[1]
            assert [a.do("view", group=g)["hash"] for g in (0, 2)] == [true[0], true[2]]
            for g in range(3):
                b.do("fetch", group=g)
            assert [b.do("view", group=g)["hash"] for g in range(3)] == true
            a.do("release", group=1)
            a.do("fetch", group=1)
            assert a.do("view", group=1)["hash"] == true[1]
            a.do("scribble", group=2)
            for r in ranks:
                r.do("grad", group=0, step=step)
                r.do("push", group=0)
            step_all(ranks, sets=[STRONG])
        assert not mapped_windows(a.pid), "a step ends all views"
        a.do("fetch", group=0)
        assert len(mapped_windows(a.pid)) == 1, "only the held group may be mapped"


if __name__ == "__main__":
    main()
