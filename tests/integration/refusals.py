#!/usr/bin/env python3
"""Wrong calls of trainers: each gets an error that names its cause, and the others go on."""
import contextlib
import os
import select
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import Place  # noqa: E402
from cluster import SETS, SLOW, WAIT, Cluster, expect, finish_all, group, small_layout, step_all, tensor, until  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402
import wire  # noqa: E402

TWO = [group("a", tensor("wa", 1000)), group("b", tensor("wb", 3000))]


def refused_attach(c, node, status, *words, job, rank, world, layout, attach=None, **connect):
    a = c.actor(node)
    a.do("connect", job=job, rank=rank, world=world, timeout_ms=2000 * WAIT, **connect)
    a.do("layout", groups=layout)
    a.refused(status, "attach", *words, **(attach or {"hold": 1, "push": 1}))
    a.end()


def still_trains(ranks):
    for a in ranks:
        a.start("train", steps=2, sets=SETS)
    finish_all(ranks)

# ---- attaching ---------------------------------------------------------------------

DIFFERENT = {
    "shape": ([group("a", tensor("wa", 1000)), group("b", tensor("wb", 30, 100))], ["wb"]),
    "name": ([group("a", tensor("wa", 1000)), group("b", tensor("wc", 3000))], ["wb", "wc"]),
    "group_name": ([group("a", tensor("wa", 1000)), group("x", tensor("wb", 3000))], ["x"]),
    "dtype": ([group("a", tensor("wa", 1000)), group("b", tensor("wb", 3000), dtype="bf16")], ["b", "bf16"]),
    "frozen": ([group("a", tensor("wa", 1000, frozen=True)), group("b", tensor("wb", 3000))], ["wa", "frozen"]),
    "one_more": ([*TWO, group("c", tensor("wc", 1))], ["3"]),
    "init": ([group("a", tensor("wa", 1000, seed=77)), group("b", tensor("wb", 3000))], ["wa"]),
}


@cases_of(DIFFERENT)
def layout_differs_in(what):
    """Both ranks fail at once with the first difference; then they may attach with one layout."""
    layout, words = DIFFERENT[what]
    with Cluster(2) as c:
        first = c.actor(0)
        first.do("connect", job="j", rank=0, world=2)
        first.do("layout", groups=TWO)
        first.start("attach", hold=1, push=1)
        until(lambda: c[0].job("j"), what="the job")
        refused_attach(c, 1, "ELAYOUT", "rank 1", *words, job="j", rank=1, world=2, layout=layout)
        expect(first.finish(), "ELAYOUT", "rank 1", *words)
        for d in c.daemons:
            until(lambda d=d: not d.job("j"), what=f"the end of the job on {d.name}")
        second = c.actor(1)
        second.do("connect", job="j", rank=1, world=2)
        for a in (first, second):
            a.do("layout", groups=layout)
            a.start("attach", hold=1, push=1)
        finish_all([first, second])
        still_trains([first, second])


@case
def layouts_that_differ_at_once():
    """Both fail, whichever the coordinator hears first, also while the job is being created."""
    with Cluster(2, delay_ms=30) as c:
        for _ in range(5):
            ranks = [c.actor(node) for node in (0, 1)]
            for rank, (a, layout) in enumerate(zip(ranks, (TWO, DIFFERENT["shape"][0]))):
                a.do("connect", job="j", rank=rank, world=2)
                a.do("layout", groups=layout)
            for a in ranks:
                a.start("attach", hold=1, push=1)
            for a in ranks:
                expect(a.finish(), "ELAYOUT", "wb")
                a.end()
        for d in c.daemons:
            until(lambda d=d: not d.job("j"), what=f"the end of the job on {d.name}")


@case
def a_stranger_with_another_layout_ends_no_job():
    with Cluster(2) as c:
        ranks = c.ranks("j", TWO, [0, 1], hold=1, push=1)
        still_trains(ranks)
        refused_attach(c, 1, "ELAYOUT", "zeroctl drop", job="j", rank=1, world=2, layout=DIFFERENT["shape"][0])
        still_trains(ranks)


@case
def two_clients_one_rank():
    with Cluster(2) as c:
        ranks = c.ranks("j", TWO, [0, 1], hold=1, push=1)
        for node in (0, 1):
            refused_attach(c, node, "ERANK", "rank 1", f"process {ranks[1].pid} on node n1", job="j", rank=1, world=2,
                           layout=TWO)
        still_trains(ranks)


@case
def two_clients_one_rank_while_attaching():
    """Two clients claim a rank before the job has started: one is refused."""
    with Cluster(2) as c:
        claims = [c.actor(node) for node in (0, 1)]
        for a in claims:
            a.do("connect", job="j", rank=0, world=2, timeout_ms=20000)
            a.do("layout", groups=TWO)
            a.start("attach", hold=1, push=1)
        other = c.actor(0)
        other.do("connect", job="j", rank=1, world=2)
        other.do("layout", groups=TWO)
        other.do("attach", hold=1, push=1)
        replies = sorted((a.finish() for a in claims), key=lambda r: r["status"])
        expect(replies[0], "ERANK", "rank 0")
        assert replies[1]["status"] == "OK", replies


@case
def world_size_differs():
    with Cluster(1) as c:
        ranks = c.ranks("j", TWO, [0, 0], hold=1, push=1)
        refused_attach(c, 0, "EDEADLINE", "of 2", "world size 3", job="j", rank=2, world=3, layout=TWO)
        still_trains(ranks)


@case
def reduce_dtype_differs():
    with Cluster(1) as c:
        a = c.actor()
        a.do("connect", job="j", rank=0, world=2, timeout_ms=20000)
        a.do("layout", groups=TWO)
        a.start("attach", hold=1, push=1)
        refused_attach(c, 0, "ECONFLICT", "reduce_dtype", "bf16", "fp32", job="j", rank=1, world=2, layout=TWO,
                       attach={"hold": 1, "push": 1, "reduce": "bf16"})


@case
def status_shows_a_rank_that_waits_for_a_node():
    """The job does not exist yet; status names the attaching rank and the node that it waits for."""
    with Cluster(2) as c:
        c[1].kill()
        until(lambda: not c[0].peers_up(), what="the peer's end in status")
        a = c.actor(0)
        a.do("connect", job="j", rank=0, world=1, timeout_ms=60000)
        a.do("layout", groups=TWO)
        a.start("attach", hold=1, push=1)
        until(lambda: c[0].status()["attaching"], what="the rank in status")
        wait, = c[0].status()["attaching"]
        assert (wait["job"], wait["rank"], wait["pid"], wait["for"]) == ("j", 0, a.pid, "node n1"), wait
        assert f"j: rank 0 (pid {a.pid}): attaching" in c[0].ctl_run("status").stdout
        c[1].start()
        a.good(a.finish())
        assert c[0].status()["attaching"] == []


@case
def ranks_that_do_not_come_are_named():
    with Cluster(2) as c:
        refused_attach(c, 0, "EDEADLINE", "rank 1", "attach", job="j", rank=0, world=3, layout=TWO)


@case
def bad_connections():
    with Cluster(1) as c:
        a = c.actor()
        a.refused("ERANK", "connect", "5", job="j", rank=5, world=2)
        a.refused("ERANK", "connect", job="j", rank=1, world=0)
        a.refused("EINVAL", "connect", "name", job="../etc", rank=0, world=1)
        a.refused("EINVAL", "connect", job="x" * 300, rank=0, world=1)
        a.refused("ECLOSED", "connect", "/nowhere", "running", job="j", rank=0, world=1, socket="/nowhere")
        a.do("connect", job="none", rank=-1)
        a.refused("ENOJOB", "attach", "none", observer=True)


@case
def bad_layouts():
    with Cluster(1) as c:
        a = c.actor()
        a.do("connect", job="j", rank=0, world=1)
        for groups in ([group("g", tensor("t", 1), tensor("t", 2))], [group("g", tensor("t", *[2] * 9))],
                       [group("", tensor("t", 1))], [group("g", tensor("t", 1 << 40, 1 << 20))], []):
            reply = a.ask("layout", groups=groups)
            if reply["status"] == "OK":
                reply = a.ask("attach", hold=1, push=1)
            assert reply["status"] in ("EINVAL", "ERANGE") and reply["text"], (groups, reply)


@case
def malformed_layouts():
    """The daemon checks what libzero would not send."""
    with Cluster(1) as c:
        for groups in ([{"name": "g", "tensors": [{"name": "t", "shape": [1 << 62, 1 << 62]}]}],
                       [{"name": "g", "tensors": [{"name": "t", "shape": [1] * 40}]}],
                       [{"name": "g", "tensors": [{"name": "t", "shape": [1]}] * 2}],
                       [{"name": "g" * 5000, "tensors": [{"name": "t", "shape": [1]}]}]):
            raw = wire.Raw(c[0].socket)
            raw.hello("lies", 0, 1)
            status, text, _ = raw.ask("attach", {1: wire.layout_message(groups), 2: 1, 3: 1, 4: 1, 5: 1})
            assert status != wire.OK and text, (status, text)
            raw.close()
        assert c[0].job("lies") is None

# ---- the window ----------------------------------------------------------------------

@case
def window_too_small():
    """The error says how much is needed, and that much suffices."""
    layout = [group(f"g{i}", tensor(f"t{i}", 10000)) for i in range(6)]
    with Cluster(2, window=45000) as c:
        refused_attach(c, 0, "EWINDOW", "window", "at least", job="j", rank=0, world=1, layout=layout,
                       attach={"hold": 3, "push": 1})
        a = c.actor(0)
        a.do("connect", job="j", rank=0, world=1)
        a.do("layout", groups=layout)
        text = a.refused("EWINDOW", "attach", hold=3, push=1)["text"]
        needed = int(text.split("at least ")[1].split()[0])
    with Cluster(2, window=needed) as c:
        a, = c.ranks("j", layout, [0], hold=3, push=1)
        for g in range(3):
            a.do("fetch", group=g)


@case
def window_of_all_local_ranks():
    """A rank that declares more groups than the first rank of the node did is refused."""
    layout = [group(f"g{i}", tensor(f"t{i}", 10000)) for i in range(6)]
    with Cluster(2) as c:
        a = c.actor(0)
        a.do("connect", job="j", rank=0, world=2, local=2, timeout_ms=20000)
        a.do("layout", groups=layout)
        a.start("attach", hold=1, push=1)
        refused_attach(c, 0, "EWINDOW", "at least", job="j", rank=1, world=2, layout=layout,
                       attach={"hold": 4, "push": 1}, local=2)


@case
def more_held_than_declared():
    with Cluster(2) as c:
        a, = c.ranks("j", small_layout(), [0], hold=2, push=1)
        a.do("fetch", group=0)
        a.do("fetch", group=1)
        a.refused("EHELD", "fetch", "2 groups", "hold_groups", group=2)
        a.do("release", group=0)
        a.do("fetch", group=2)


@case
def opposite_orders_in_the_smallest_window():
    """Two ranks of a node fetch in opposite orders through a window of two slabs."""
    layout = [group(f"g{i}", tensor(f"t{i}", 20000)) for i in range(6)]
    with Cluster(2) as c:
        ranks = c.ranks("j", layout, [0, 0], hold=1, push=1)
        assert c[0].job("j")["gather"]["slots"] == 2
        for _ in range(20):
            for i in range(6):
                for a, g in zip(ranks, (i, 5 - i)):
                    a.start("fetch", group=g)
                    a.start("view", group=g)
                    a.start("release", group=g)
            for a in ranks:
                while a.asked:
                    finish_all([a])
            step_all(ranks, sets=[SETS[0]])

# ---- calls out of order ----------------------------------------------------------------

@cases_of([(0, 0, True), (1, 0, True), (1, 1, False), (0, None, True), (-1, None, True), (-2, None, False), (1, None, False)])
def a_client_speaks_other_protocols(what):
    """The newest and the oldest that it speaks, from the daemon's newest; None: it says the newest alone."""
    newest, oldest, common = what
    newest += wire.PROTOCOL
    with Cluster(1) as c:
        raw = wire.Raw(c[0].socket)
        status, text, fields = raw.hello(protocol=newest, oldest=0 if oldest is None else oldest + wire.PROTOCOL)
        if common:
            assert status == wire.OK and wire.decode(fields[4][0])[1] == [min(newest, wire.PROTOCOL)], (text, fields)
        else:
            assert status == 3 and f"to {newest}: they may be one release apart" in text, (status, text)
        raw.close()


@case
def calls_without_attach():
    with Cluster(1) as c:
        a = c.actor()
        a.do("connect", job="j", rank=0, world=1)
        for do in ("fetch", "prefetch", "release", "grad", "push", "norm", "norms", "step", "put", "get"):
            a.refused("ENOTATTACHED", do, sets=SETS, values=[1], plane="master")
        raw = wire.Raw(c[0].socket)
        raw.hello("j", 0, 1)
        for what, fields in (("fetch", {1: 0}), ("release", {1: 0}), ("push", {1: 0}), ("norm", {}), ("get", {1: 0}), ("norms", {1: 6, 3: 1}),
                             ("put", {1: 0}), ("step", {2: wire.message({1: b"", 3: 1.0})})):
            status, text, _ = raw.ask(what, fields)
            assert status != wire.OK and text, (what, status, text)
        raw.close()


@case
def reductions_out_of_turn():
    """The daemon answers none that has not been made: not even the number before the first."""
    with Cluster(1) as c:
        raw = wire.Raw(c[0].socket)
        raw.hello("j", 0, 1)
        status, text, fields = raw.ask("attach", {1: wire.layout_message(TWO), 2: 1, 3: 1, 4: 1, 5: 1})
        assert status == wire.OK, text
        attempt = wire.decode(fields[5][0])[2][0]
        for number, expected in ((2**32 - 1, wire.EORDER), (1, wire.EORDER), (0, wire.OK), (0, wire.OK), (2**32 - 1, wire.EORDER)):
            status, text, _ = raw.ask("all_reduce", {1: attempt, 2: number, 3: "loss", 4: 0, 5: 1.0})
            assert status == expected, (number, status, text)
        raw.close()


@case
def unknown_groups_and_ranges():
    with Cluster(2) as c:
        a, = c.ranks("j", TWO, [0], hold=2, push=2)
        for do in ("fetch", "release", "prefetch", "grad", "push"):
            a.refused("ENOGROUP", do, group=2)
        a.refused("ENOGROUP", "get", tensor=9, plane="master")
        a.refused("ERANGE", "get", tensor=0, plane="master", first=999, count=2)
        a.refused("ERANGE", "get", tensor=0, plane="master", first=(1 << 62), count=2)
        a.refused("ERANGE", "put", tensor=0, plane="master", first=1000, values=[1.0])
        a.refused("EINVAL", "get", "plane grad", tensor=0, plane="grad")
        a.refused("EINVAL", "put", tensor=0, plane="serve", values=[1.0])
        a.refused("EINVAL", "get", tensor=0, plane=77)
        still_trains_one_set(a)


def still_trains_one_set(a):
    a.do("train", steps=2, sets=[SETS[0]])


@case
def release_without_fetch():
    with Cluster(2) as c:
        a, = c.ranks("j", TWO, [0], hold=1, push=1)
        a.refused("ENOTHELD", "release", group=0)
        a.do("fetch", group=0)
        a.do("release", group=0)
        a.refused("ENOTHELD", "release", group=0)
        a.do("fetch", group=0)
        a.do("step", sets=[SETS[0]])
        a.refused("ENOTHELD", "release", group=0)
        still_trains_one_set(a)


def raw_rank(c, layout, push=1):
    """A rank whose messages the test writes; and its session's fields."""
    raw = wire.Raw(c[0].socket)
    raw.hello("raw", 0, 1)
    status, text, fields = raw.ask("attach", {1: wire.layout_message(layout), 2: 2, 3: push, 4: 1, 5: 1})
    assert status == wire.OK, text
    return raw, wire.decode(fields[5][0])


PUSHES = {  # fields of Push: group, attempt (None: the right one), micro_batch, slot, last, present
    "group": ({1: 7}, "group"),
    "slot": ({1: 0, 4: 1}, "slot"),
    "slot_far": ({1: 0, 4: 0xffffffff}, "slot"),
    "micro_batch": ({1: 0, 3: 5}, "micro-batch"),
    "mask": ({1: 0, 6: b"\1\1\1"}, "mask"),
    "old_attempt": ({1: 0, 2: 0}, "attempt"),
    "future_attempt": ({1: 0, 2: 1 << 40}, "attempt"),
}


@cases_of(PUSHES)
def push_out_of_range(what):
    with Cluster(1) as c:
        raw, session = raw_rank(c, TWO)
        attempt = session.get(2, [0])[0]
        fields, word = PUSHES[what]
        status, text, _ = raw.ask("push", {2: attempt, 5: 1, **fields})
        assert status != wire.OK and word in text, (status, text)
        raw.close()
        a = c.actor()
        a.do("connect", job="raw", rank=0, world=1)
        a.do("layout", groups=[group(g["name"], {"name": g["tensors"][0]["name"], "shape": g["tensors"][0]["shape"]})
                               for g in TWO])
        a.do("attach", hold=1, push=1)
        a.do("train", steps=1, sets=[SETS[0]])


@case
def push_twice():
    with Cluster(1) as c:
        raw, session = raw_rank(c, TWO, push=2)
        push = {1: 0, 2: session[2][0], 5: 1}
        assert [raw.ask("push", push)[0] for _ in range(2)] == [wire.OK] * 2  # a repeated push is accepted
        status, text, _ = raw.ask("push", {**push, 3: 1})
        assert status and "last gradient" in text, (status, text)
        raw.close()


@case
def hyperparameters_out_of_range():
    with Cluster(1) as c:
        a, = c.ranks("j", TWO, [0], hold=1, push=1)
        for sets, word in (([[-1, 0.9, 0.9, 1e-8, 0]], "lr"), ([[1, 1.0, 0.9, 1e-8, 0]], "beta"),
                           ([[1, 0.9, 0.9, -1, 0]], "eps"), ([[1, 0, 0, 0, 0]], "NaN")):
            a.refused("EINVAL", "step", word, sets=sets)
        a.refused("EINVAL", "step", "clip", sets=[SETS[0]], clip=-1.0)
        a.refused("EINVAL", "step", "loss_scale", sets=[SETS[0]], loss_scale=-2.0)
        still_trains_one_set(a)


@cases_of([[0, 0], [0, 1]], "{0[1]}")
def ranks_pass_different_values(placement):
    """On one node and on two, the error names the rank that differs."""
    with Cluster(2) as c:
        one, two = c.ranks("j", TWO, placement, hold=1, push=1, timeout_ms=2000 * WAIT)
        one.start("step", sets=[SETS[0]])
        two.start("step", sets=[[0.5, 0.9, 0.99, 1e-8, 0.1]])
        replies = [a.finish() for a in (one, two)]
        told = [r for r in replies if r["status"] == "ECONFLICT"]
        assert told and all("lr" in r["text"] and "rank" in r["text"] for r in told), replies
        assert all(r["status"] in ("ECONFLICT", "EDEADLINE") for r in replies), replies


@cases_of([([0, 0], "norm"), ([0, 0], "step"), ([0, 1], "norm"), ([0, 1], "step")], "{0[0]}_{0[1]}")
def norm_of_one_rank_and_step_of_another(what):
    """Whoever calls second hears of both calls at once, and goes on by the other one."""
    placement, first = what
    second = "step" if first == "norm" else "norm"
    with Cluster(max(placement) + 1) as c:
        one, two = c.ranks("j", TWO, placement, hold=1, push=1, timeout_ms=60000 * SLOW)
        one.start(first, sets=[SETS[0]])
        assert not one.ready(0.3), "it did not wait"
        two.refused("ECONFLICT", second, f"rank 1 calls zero_{second} while rank 0 calls zero_{first}", sets=[SETS[0]])
        two.start(first, sets=[SETS[0]])
        finish_all([one, two])

# ---- numbers ---------------------------------------------------------------------------

@cases_of([(b, d) for b in ("nan", "inf") for d in ("fp32", "bf16", "fp16")], "{0[0]}_{0[1]}")
def not_finite(what):
    """The step is skipped on every owner, visibly; parameters, moments and step counts stay."""
    bad, dtype = what
    layout = small_layout(dtype, blocks=1, width=256)
    with Cluster(3) as c:
        ranks = c.ranks("j", layout, [0, 1], hold=1, push=3, grad=dtype)
        before = c.checksum("j")["planes"]
        for i, a in enumerate(ranks):
            for g in range(3):
                a.do("grad", group=g, **({"bad": bad, "at": 4000} if i == 1 and g == 1 else {}))
                a.do("push", group=g)
        told = step_all(ranks, clip=1, loss_scale=4, growth_interval=100)
        assert all(t["skipped"] and t["version"] == 0 for t in told), told
        if dtype == "fp16":
            assert all(t["loss_scale"] == 2 for t in told), told
        assert c.checksum("j")["planes"] == before
        for d in c.daemons:
            job = d.job("j")
            assert (job["skipped"], job["skipped_in_a_row"], job["version"]) == (1, 1, 0), job
        still_trains(ranks)
        assert {(d.job("j")["skipped"], d.job("j")["skipped_in_a_row"]) for d in c.daemons} == {(1, 0)}
        assert c.checksum("j")["version"] == 2


@case
def a_sum_beyond_the_range_of_the_wire_is_not_finite():
    """65,504 is the largest fp16.  Each gradient is finite; the node's own range overflows like all others."""
    with Cluster(2) as c:
        ranks = c.ranks("j", TWO, [0, 0], hold=1, push=2, reduce="fp16")
        before = c.checksum("j")["planes"]
        for large, skipped in (("40000", True), ("30000", False)):
            for a in ranks:
                for g in range(len(TWO)):
                    a.do("grad", group=g, **({"bad": large, "at": 1} if g == 0 else {}))
                    a.do("push", group=g)
            assert all(t["skipped"] == skipped for t in step_all(ranks, sets=[SETS[0]] * 2))
            assert (c.checksum("j")["planes"] == before) == skipped


@case
def norm_reports_a_gradient_that_is_not_finite():
    with Cluster(2) as c:
        ranks = c.ranks("j", TWO, [0, 1], hold=1, push=2)
        for i, a in enumerate(ranks):
            a.do("grad", group=0, **({"bad": "nan"} if i else {}))
            a.do("push", group=0)
            a.start("norm")
        assert all(not r["finite"] for r in finish_all(ranks))
        assert all(t["skipped"] for t in step_all(ranks, sets=[SETS[0]]))


@case
def tiny_tensors():
    """Empty and one-element tensors, empty groups, and groups smaller than the owners."""
    layout = [group("none", tensor("n", 0)), group("nothing"), group("one", tensor("o", 1)), group("scalar", tensor("s")),
              group("three", tensor("t", 3), tensor("e", 0, 5), tensor("u", 1, 1))]
    with Cluster(5) as c:
        ranks = c.ranks("j", layout, [0, 3], hold=-1, push=-1)
        for a in ranks:
            for g in range(len(layout)):
                a.do("fetch", group=g)
                assert a.do("view", group=g)["hash"]
            for g in (2, 3, 4):
                a.do("grad", group=g)
                a.do("push", group=g)
        before = [ranks[0].do("get", tensor=t, plane="master", count=n)["values"] for t, n in ((1, 1), (3, 3))]
        told = step_all(ranks, sets=[SETS[0]])
        assert told[0]["version"] == 1 and not told[0]["skipped"], told
        after = [ranks[1].do("get", tensor=t, plane="master", count=n)["values"] for t, n in ((1, 1), (3, 3))]
        assert all(x != y for b, a in zip(before, after) for x, y in zip(b, a)), (before, after)
        still = c.checksum("j")
        for a in ranks:
            a.start("train", steps=2, sets=[SETS[0]], micro_batches=2)
        finish_all(ranks)
        assert c.checksum("j")["version"] == 3 and c.checksum("j") != still


@case
def step_without_gradients():
    """Such a step updates nothing, and advances the version."""
    with Cluster(2) as c:
        ranks = c.ranks("j", TWO, [0, 1], hold=1, push=1)
        before = c.checksum("j")["checksum"]
        told = step_all(ranks, sets=[SETS[0]], clip=1)
        assert told[0]["version"] == 1 and told[0]["grad_norm"] == 0, told
        assert c.checksum("j")["checksum"] == before


@case
def frozen_groups_take_no_gradient():
    layout = [group("still", tensor("s", 100, frozen=True)), group("w", tensor("w", 100))]
    with Cluster(2) as c:
        a, = c.ranks("j", layout, [0], hold=2, push=2)
        a.refused("EINVAL", "grad", "trainable", group=0)
        before = a.do("get", tensor=0, plane="master", count=100)["values"]
        still_trains_one_set(a)
        assert a.do("get", tensor=0, plane="master", count=100)["values"] == before

# ---- quotas ------------------------------------------------------------------------------

@case
def memory_limit():
    with Cluster(2, memory_limit="8M") as c:
        keep = c.ranks("fits", TWO, [0, 1], hold=1, push=1)
        big = [group("g", tensor("t", 4_000_000))]
        refused_attach(c, 0, "EQUOTA", "quota", "8388608", job="big", rank=0, world=1, layout=big)
        assert all(d.job("big") is None for d in c.daemons)
        still_trains_two(keep)
        used = c[0].status()["memory"]
        assert 0 < used["state_used"] <= used["state_quota"] == 8 << 20, used


@case
def memory_limit_counts_layouts():
    """A layout of 100,000 empty tensors takes memory: a second such job is refused until the first is dropped."""
    layout = wire.layout_message([{"name": "g", "tensors": [{"name": f"t{i}", "shape": [0]} for i in range(100_000)]}])
    attach = {1: layout, 2: 1, 3: 1, 4: 1, 5: 1}
    with Cluster(1, memory_limit="64M") as c:
        raws = [wire.Raw(c[0].socket) for _ in range(3)]
        for i, raw in enumerate(raws):
            raw.hello(f"many{i}", 0, 1, timeout_ms=60000 * WAIT)
        assert raws[0].ask("attach", attach)[0] == wire.OK
        assert c[0].status()["memory"]["state_used"] > 50_000_000
        status, text, _ = raws[1].ask("attach", attach)
        assert status != wire.OK and "layout" in text and "memory_limit" in text, (status, text)
        raws[0].close()
        c[0].ctl("drop", "many0")
        until(lambda: c[0].status()["memory"]["state_used"] == 0, what="room")
        assert raws[2].ask("attach", attach)[0] == wire.OK
        for raw in raws[1:]:
            raw.close()


@case
def layouts_of_waiting_ranks():
    """Ranks wait for jobs that never start: equal layouts are stored once, different ones up to a limit per user, and all
    their memory is freed."""
    n, jobs = 40_000, 14
    copy = n * (171 + 108)
    layouts = [wire.layout_message([{"name": "g", "tensors": [{"name": f"{i:02}.{t:05}{'x' * 100}", "shape": [0]}
                                                              for t in range(n)]}]) for i in range(jobs)]

    def wait(job, rank, layout):
        raw = wire.Raw(c[0].socket)
        raw.hello(job, rank, 64, timeout_ms=600_000)
        raw.send(wire.request(2, "attach", {1: layout, 2: 1, 3: 1, 4: 1, 5: 1}))
        return raw

    def used():
        return c[0].status()["memory"]["state_used"]

    with Cluster(1, memory_limit="1G") as c:
        raws = [wait("job0", rank, layouts[0]) for rank in range(4)]
        until(lambda: used() > 2 * copy, what="the ranks")
        assert used() < 4 * copy, (used(), copy)
        raws += [wait(f"job{i}", 0, layouts[i]) for i in range(1, jobs)]
        refused = {wire.WAITS: 0}  # the others hear that they wait
        while wire.WAITS in refused:
            ready, _, _ = select.select([raw.socket for raw in raws], [], [], 300 * WAIT)
            refused = next(raw for raw in raws if raw.socket in ready).frame()
        assert refused[2] != [wire.OK] and b"layout takes" in refused[3][0], refused
        assert used() < 2 * (256 << 20), used()  # with the jobs and their states
        for raw in raws:
            raw.close()
        for i in range(jobs):
            c[0].ctl_run("drop", f"job{i}")
        until(lambda: used() == 0, what="room")


def still_trains_two(ranks):
    for a in ranks:
        a.start("train", steps=2, sets=[SETS[0]])
    finish_all(ranks)


@case
def job_limit():
    with Cluster(2, job_limit=2) as c:
        keep = c.ranks("one", TWO, [0], hold=1, push=1)
        c.ranks("two", TWO, [1], hold=1, push=1)
        refused_attach(c, 0, "EQUOTA", "job_limit", job="three", rank=0, world=1, layout=TWO)
        c[0].ctl("drop", "two")
        c.ranks("three", TWO, [0], hold=1, push=1)
        still_trains_two(keep)


def holds(daemon):
    """What a node has of jobs."""
    return sorted(j["job"] for j in daemon.status()["jobs"]), daemon.state_files()


@cases_of([0, 1])
def what_one_node_refuses_all_nodes_forget(node):
    with Cluster(2, per_node={node: {"job_limit": 1}}) as c:
        keep = c.ranks("one", TWO, [0], hold=1, push=1)
        before = [holds(d) for d in c.daemons]
        for i in (0, 1):
            refused_attach(c, i, "EQUOTA", f"node n{node}", "job_limit", job="more", rank=0, world=1, layout=TWO)
        for d, had in zip(c.daemons, before):
            until(lambda d=d, had=had: holds(d) == had, what=f"the end of the job on {d.name}")
        still_trains_two(keep)
        c[0].ctl("drop", "one")
        assert [d.status()["memory"]["state_used"] for d in c.daemons] == [0, 0]
        still_trains_two(c.ranks("more", [group("g", tensor("other", 77))], [1], hold=1, push=1))


@case
def an_opening_that_was_killed_leaves_nothing():
    """One node has its part of a job that no rank has ever worked on, and the other node has none."""
    with Cluster(2) as c:
        a = c.rank("job", TWO, [0, 1], 0, hold=1, push=1)  # waits for the other rank
        for d in c.daemons:
            until(lambda d=d: any(f.endswith(".state") for f in d.state_files()), what=f"the state on {d.name}")
        c.dismiss(a)
        for d in c.daemons:
            d.kill()
        gone = c.coordinator("job")
        for f in gone.state_files():
            os.remove(f"{gone.options['state_dir']}/{f}")
        c.start()
        for d in c.daemons:
            until(lambda d=d: holds(d) == ([], [".lock"]), what=f"the end of what is left on {d.name}")


@case
def session_limit():
    with Cluster(1, session_limit=8) as c:
        keep = c.ranks("j", TWO, [0], hold=1, push=1)
        held = [wire.Raw(c[0].socket) for _ in range(7)]
        for raw in held[:3]:
            raw.hello()
        turned = wire.Raw(c[0].socket)
        assert turned.closed(), "one session above the limit"
        still_trains_two(keep)
        for raw in held:
            raw.close()
        until(lambda: c[0].ctl_run("status").returncode == 0, what="room for a session")
        assert "session_limit" in c[0].log()


@case
def open_files_bound_sessions():
    """More clients than descriptors: states, links and checkpoints have theirs all the same."""
    with Place() as place, Cluster(2, start=False) as c:
        for d in c.daemons:
            d.start(["prlimit", "--nofile=300:300"])
        c.wait_up()
        keep = c.ranks("j", TWO, [0, 1], hold=1, push=1)
        held = [wire.Raw(c[0].socket) for _ in range(400)]
        for raw in held:
            with contextlib.suppress(EOFError, OSError):  # cut off, or not accepted
                raw.socket.settimeout(5)
                raw.hello()
        still_trains_two(keep)
        c[1].ctl("checkpoint", "j", place)
        for raw in held:
            raw.close()
        assert "there is room for 14 sessions" in c[0].log()


@case
def out_of_shared_memory():
    """The tmpfs of the state directory is too small for a job: that job is refused, the others go on."""
    if os.getuid():
        raise Skip("mounting needs root")
    with Cluster(1, start=False) as c:
        path = c[0].options["state_dir"]
        os.mkdir(path, 0o700)
        script = f'mount -t tmpfs -o size=6m,mode=0700 tmpfs "{path}" && exec "$@"'
        if os.system(f"unshare -m sh -c 'mount -t tmpfs tmpfs \"{path}\"' 2>/dev/null"):
            raise Skip("nobody may mount on this machine")
        c[0].start(wrapper=["unshare", "-m", "sh", "-c", script, "sh"])
        until(c[0].peers_up, what="readiness")
        keep = c.ranks("fits", TWO, [0], hold=1, push=1)
        for _ in range(2):
            refused_attach(c, 0, "ESHM", "64000000", job="big", rank=0, world=1,
                           layout=[group("g", tensor("t", 4_000_000))])
        assert c[0].job("big") is None
        still_trains_two(keep)


if __name__ == "__main__":
    main()
