#!/usr/bin/env python3
"""zero_tensor_norms(): the norms of tensors, which owners compute: the same bits wherever tensors lie, one version, and
what asks alone, too early or in vain."""
import functools
import json
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import cluster  # noqa: E402
from cluster import SLOW, WAIT, Cluster, expect, finish_all, group, push_all, step_all, tensor, until  # noqa: E402
from harness import case, cases_of, main  # noqa: E402
from moments import Endless  # noqa: E402
import wire  # noqa: E402

SGD = ["sgd", 0.1, 0, 0, 0.01]
SETS = [*cluster.SETS, SGD]
PAGE = 512  # tensors of one answer
PLACED = [[0, 0], [0, 1]]
GRAD = 6  # of enum zero_plane
# The gradient itself is the first moment after a step with these.
GRADIENT = [[0.0, 0.0, 0.99, 1e-8, 0.0]] * 2 + [SGD]
PLANES = ("grad", "master", "moment1", "moment2")


def layout():
    """A tensor of several owners, odd sizes, what has no gradient, no moments or no norm."""
    return [group("a", tensor("wide", 211, 401), tensor("odd", 129), tensor("none", 0), tensor("still", 300, frozen=True)),
            group("s", tensor("plain", 77, 3, set=2), optimizer="sgd"),
            group("h", tensor("half", 5001), tensor("untouched", 40), dtype="bf16", divisor=3.0),
            group("q", {**tensor("bytes", 999, frozen=True), "init": "zeros"}, dtype="int8")]


NAMES = [t["name"] for g in layout() for t in g["tensors"]]
TENSORS = len(NAMES)


def push_some(a, **fields):
    push_all(a, 2, **fields)
    a.do("grad", group=2, **fields)
    a.do("push", group=2, present=[1, 0])


def norms(a, plane, first=0, count=TENSORS):
    return a.do("norms", plane=plane, first=first, count=count)["norms"]


def by_get(a, plane):
    """The norms of what zero_get() reads."""
    told = []
    for i, t in enumerate(t for g in layout() for t in g["tensors"]):
        r = a.ask("get", tensor=i, plane=plane, count=math.prod(t["shape"]))
        told.append(math.sqrt(math.fsum(x * x for x in r["values"])) if r["status"] == "OK" and t["name"] != "bytes" else 0.0)
    return told

# ---- what they are -------------------------------------------------------------------------


def undisturbed(c, nodes):
    """Norms of each plane, and the global norm, of one step of two ranks, asked on the last node."""
    ranks = c.ranks("j", layout(), [0, nodes - 1], hold=3, push=-1)
    push_all_ranks(ranks)
    told = {"grad": norms(ranks[1], "grad")}
    for a in ranks:
        a.start("norm")
    told["all"] = [r["norm"] for r in finish_all(ranks)]
    step_all(ranks, sets=SETS)
    told.update((p, norms(ranks[0], p)) for p in PLANES[1:])
    return told


def push_all_ranks(ranks, **fields):
    """The asking rank need not be the last one to push: nobody else asks."""
    for a in ranks:
        push_some(a, **fields)
    for a in ranks[:-1]:
        a.start("norms", plane="grad", first=0, count=1)
    for a in ranks[-1:]:
        a.do("norms", plane="grad", first=0, count=1)
    finish_all(ranks[:-1])


PLACES = {"2_nodes": (2, {}), "3_nodes": (3, {}), "2_nodes_mirrored": (2, {"mirror": 1}),
          "5_owners": (2, {"owners": "n0*2 n1*3"})}


@functools.cache
def on_one_node():
    with Cluster(1) as c:
        return undisturbed(c, 1)


@cases_of(PLACES, "{}")
def same_bits(where):
    nodes, options = PLACES[where]
    told = on_one_node()
    with Cluster(nodes, **options) as c:
        assert undisturbed(c, nodes) == told
    assert all(told["grad"][NAMES.index(n)] == 0 for n in ("none", "still", "untouched", "bytes")), told
    assert all(told["grad"][NAMES.index(n)] > 0 for n in ("wide", "odd", "plain", "half")), told


@cases_of([1, 3], "{}_nodes")
def as_what_clients_read(nodes):
    """Also of gradients: with this set, a step leaves the gradient in the first moment."""
    with Cluster(nodes) as c:
        ranks = c.ranks("j", layout(), [0, nodes - 1], hold=3, push=-1)
        push_all_ranks(ranks)
        grad = norms(ranks[0], "grad")
        for a in ranks:
            a.start("norm")
        together = finish_all(ranks)[0]["norm"]
        step_all(ranks, sets=GRADIENT)
        moment = by_get(ranks[0], "moment1")
        for name, ours, theirs in zip(NAMES, grad, moment):
            if name != "plain":  # sgd has no moment
                assert math.isclose(ours, theirs, rel_tol=1e-6), (name, ours, theirs)
        assert math.isclose(math.hypot(*grad), together, rel_tol=1e-14), (grad, together)
        for plane in PLANES[1:]:
            for name, ours, theirs in zip(NAMES, norms(ranks[1], plane), by_get(ranks[1], plane)):
                assert math.isclose(ours, theirs, rel_tol=1e-12), (plane, name, ours, theirs)


@case
def of_one_tensor_it_is_the_global_norm():
    """The same bits, also where the divisor is no power of two."""
    with Cluster(2) as c:
        ranks = c.ranks("j", [group("g", tensor("w", 70001), divisor=3.0)], [0, 1], hold=1, push=-1)
        for scale in (1, 1e-30, 1e30):
            for a in ranks:
                push_all(a, 1, scale=scale)
                a.start("norm")
            one, = {r["norm"] for r in finish_all(ranks)}
            assert norms(ranks[1], "grad", 0, 1) == [one]
            step_all(ranks, sets=SETS)


@case
def not_finite():
    with Cluster(2) as c:
        ranks = c.ranks("j", layout(), [0, 1], hold=3, push=-1)
        push_some(ranks[0])
        ranks[1].do("grad", group=0, at=84736 + 55, bad="inf")
        ranks[1].do("push", group=0)
        ranks[1].start("norm")
        told = norms(ranks[0], "grad")
        assert [n for n, x in zip(NAMES, told) if x is None] == ["odd"], told
        ranks[0].start("norm")
        finish_all(ranks)


def many(n):
    """Groups whose borders are no borders of pages."""
    left, groups = n, []
    while left:
        size = min(left, 300)
        groups.append(group(f"g{len(groups)}", *({**tensor(f"t{n - left + i}", 1 + (n - left + i) % 300), "init": "constant",
                                                  "value": 1.0 + (n - left + i) % 7} for i in range(size))))
        left -= size
    return groups


@cases_of([1, 3], "{}_nodes")
def more_than_a_page(nodes):
    n = 2 * PAGE + 77
    with Cluster(nodes) as c:
        a, = c.ranks("j", many(n), [0], hold=1, push=1)
        told = norms(a, "master", 0, n)
        for i, x in enumerate(told):
            assert math.isclose(x, (1.0 + i % 7) * math.sqrt(1 + i % 300), rel_tol=1e-15), (i, x)
        for first, count in ((0, 0), (n, 0), (PAGE - 1, 2), (299, PAGE + 2), (n - 1, 1)):
            assert norms(a, "master", first, count) == told[first:first + count], (first, count)
        push_all(a, 1)
        told = norms(a, "grad", 0, n)
        assert all(told[:300]) and not any(told[300:])
        step_all([a], sets=SETS)


@cases_of([1, 2], "{}_nodes")
def of_one_version_while_a_job_trains(nodes):
    """All tensors of one shape have the same values in any version, because weight decay alone changes them."""
    n = 3 * PAGE
    same = [group(f"g{i}", *({**tensor(f"t{i}.{k}", 40), "init": "constant", "value": 1.0} for k in range(n // 8)))
            for i in range(8)]
    with Cluster(nodes) as c:
        ranks = c.ranks("job", same, [0, nodes - 1], hold=2, push=-1)
        watcher = c.actor(0, "watcher")
        watcher.do("connect", job="job", rank=-1)
        watcher.do("attach", observer=True)
        seen, whole, training = set(), [], Endless(c, ranks, scale=0)

        def ask():
            told = watcher.ask("norms", plane="master", first=0, count=PAGE)
            assert told["status"] == "OK", told
            value, = set(told["norms"])
            seen.add(value)
            told = watcher.ask("norms", plane="master", first=0, count=n)
            assert told["status"] in ("OK", "EBUSY"), told  # EBUSY: another version for each page
            if told["status"] == "OK":
                assert len(told["norms"]) == n and len(set(told["norms"])) == 1, told
                whole.append(told)
            return len(seen) >= 5
        until(ask, 60 * SLOW, "five versions")
        training.end()
        until(lambda: ask() and whole, 60 * SLOW, "all pages of one version")

# ---- who asks, and when ----------------------------------------------------------------------


@cases_of(PLACED, "{0[0]}_{0[1]}")
def a_rank_asks_alone(placement):
    """It waits for the last push of all ranks, whether those end the step or not; the others notice nothing."""
    with Cluster(2) as c:
        a, b = c.ranks("j", layout(), placement, hold=3, push=-1)
        push_some(a)
        b.do("grad", group=0)
        b.do("push", group=0, last=False)
        a.start("norms", plane="grad", first=0, count=TENSORS)
        assert not a.ready(0.3), a.finish()
        b.do("grad", group=0, micro_batch=1)
        b.do("push", group=0)
        assert not a.ready(0.3), a.finish()
        b.start("step", sets=SETS)
        told = a.finish()["norms"]
        assert told[0] > 0 and told[1] > 0, told
        assert norms(a, "grad") == told
        a.start("step", sets=SETS)
        assert {r["version"] for r in finish_all([a, b])} == {1}


@case
def deadline_names_the_rank_that_has_not_pushed():
    """Asked again, with the same tensors or others, the call waits on; the step may be ended instead."""
    with Cluster(2) as c:
        a, b = c.ranks("j", layout(), [0, 1], hold=3, push=-1, timeout_ms=1500 * WAIT)
        push_some(a)
        for _ in range(6):  # more often than a client may have calls in progress
            a.refused("EDEADLINE", "norms", "rank 1", "pushed 0 gradients", plane="grad", first=0, count=TENSORS)
        a.refused("EDEADLINE", "norms", "rank 1", plane="grad", first=1, count=2)
        a.start("norms", plane="grad", first=0, count=2)
        push_some(b)
        b.start("step", sets=SETS)
        told = a.finish()
        b.finish()  # or its deadline
        now = norms(a, "grad", 0, 2)
        assert all(now) and (told["status"] == "EDEADLINE" or told["norms"] == now), (told, now)
        step_all([a, b], sets=SETS)


@cases_of(PLACED, "{0[0]}_{0[1]}")
def a_norm_or_a_step_after_a_deadline(placement):
    """A rank whose zero_norm() met its deadline is free to end the step, and one whose call is refused to call again."""
    with Cluster(2) as c:
        a, b = c.ranks("j", layout(), placement, hold=3, push=-1, timeout_ms=1500 * WAIT)
        push_some(a)
        a.refused("EDEADLINE", "norm", "rank 1")
        a.refused("EDEADLINE", "norms", "rank 1", plane="grad", first=0, count=1)
        a.start("step", sets=SETS)
        push_some(b)
        step_again(a, b)
        assert c.checksum("j")["version"] == 1


def step_again(a, b):
    """Ends the step however often a slow machine lets the deadline pass, or knows the late rank's old call still."""
    b.start("step", sets=SETS)
    late = [a, b]
    for _ in range(20):
        replies = [(r, r.finish()) for r in late]
        for _, reply in replies:
            expect(reply, reply["status"] if reply["status"] in ("OK", "ECONFLICT") else "EDEADLINE")
        late = [r for r, reply in replies if reply["status"] != "OK"]
        if not late:
            return
        for r in late:
            r.start("step", sets=SETS)
    raise AssertionError("the step does not end")


@case
def asked_again_after_a_deadline():
    """A call of several pages, whose first page is answered each time, is not in progress more than once."""
    n = 2 * PAGE + 77
    with Cluster(2) as c:
        a, b = c.ranks("j", many(n), [0, 1], hold=1, push=-1, timeout_ms=1000 * WAIT)
        push_all(a, 4)
        push_all(b, 2)
        for _ in range(6):  # more often than a client may have calls in progress
            a.refused("EDEADLINE", "norms", "rank 1", plane="grad", first=0, count=n)
        a.do("get", tensor=0, plane="master", count=1)
        for g in (2, 3):
            b.do("grad", group=g)
            b.do("push", group=g)
        assert all(norms(a, "grad", 0, n))
        step_all([a, b], sets=SETS)


class RawRank:
    """A rank that pushes nothing, whose messages the test writes."""

    def __init__(self, c, node, rank, timeout_ms):
        self.raw = wire.Raw(c[node].socket, timeout=60 * WAIT)
        self.raw.hello("j", rank, 2, timeout_ms=timeout_ms)
        self.raw.send(wire.request(100, "attach", {1: wire.layout_message([group("a", tensor("w", 211))]), 2: 1, 3: 1, 4: 1, 5: 1}))

    def attached(self):
        status, text, told = self.raw.reply()
        assert status == wire.OK, text
        self.attempt, self.raw.seq = wire.decode(told[5][0])[2][0], 100
        return self

    def send(self, *calls):
        """At once: no deadline comes in between."""
        fields = {"norms": {1: GRAD, 2: 0, 3: 1, 4: self.attempt}, "step": {1: self.attempt, 2: wire.message({})},
                  "norm": {1: self.attempt}, "all_reduce": {1: self.attempt, 3: "loss", 4: 1, 5: 1.0}}
        self.raw.send(b"".join(wire.request(self.raw.seq + i, call, fields[call]) for i, call in enumerate(calls, 1)))
        self.raw.seq += len(calls)

    def reply(self, *words, status=wire.OK):
        told, text, _ = self.raw.reply()
        assert told == status and all(w in text for w in words), (told, text)

    def ask(self, what, *words, status=wire.OK):
        self.send(what)
        self.reply(*words, status=status)


def raw_ranks(c, placement, *timeouts_ms):
    ranks = [RawRank(c, node, rank, ms * WAIT) for rank, (node, ms) in enumerate(zip(placement, timeouts_ms))]
    return [r.attached() for r in ranks]


@cases_of(PLACED, "{0[0]}_{0[1]}")
def not_after_the_step(placement):
    """A rank whose zero_step() met its deadline may only call zero_step() again, and the step may be decided without it."""
    with Cluster(2) as c:
        a, b = raw_ranks(c, placement, 800, 60000)
        for first in ("norms", "norm", "all_reduce"):
            a.ask("step", "rank 1", status=wire.EDEADLINE)
            for what in (first, "norms", "norm", "all_reduce"):
                a.ask(what, "zero_step", status=wire.EORDER)
            a.send("step", first)
            a.reply(status=wire.EORDER)
            a.reply("rank 1", status=wire.EDEADLINE)
            b.ask("step")
            a.ask("step")
            a.attempt += 1
            b.attempt += 1
        assert c.checksum("j")["version"] == 0  # steps without sets


@cases_of(PLACED, "{0[0]}_{0[1]}")
def together_with_all_reduce(placement):
    """The one needs no other rank's call, the other waits for it, and a deadline names the rank and where it is."""
    with Cluster(2) as c:
        a, b = raw_ranks(c, placement, 60000, 2000)
        a.send("norms")
        b.ask("all_reduce", "rank 0", "in zero_tensor_norms", status=wire.EDEADLINE)
        b.ask("norms")
        a.reply()
        b.send("all_reduce")
        a.ask("norms")
        a.ask("all_reduce")
        b.reply()
        a.send("step")
        b.ask("step")
        a.reply()


@cases_of(PLACED, "{0[0]}_{0[1]}")
def a_reduction_that_is_over_is_told_after_a_rank_has_left(placement):
    """One rank has the result: the other, whose call met its deadline, finds it too."""
    with Cluster(2) as c:
        a, b = raw_ranks(c, placement, 2000, 60000)
        a.ask("all_reduce", "rank 1", status=wire.EDEADLINE)
        b.ask("all_reduce")
        b.raw.ask("bye")
        b.raw.close()
        a.ask("norm", "rank 1 has left", status=wire.ELOSTRANK)
        a.ask("all_reduce")


@case
def a_step_that_was_refused_here_and_is_decided():
    """The coordinator has the node's step with the values that it named first; the norms that the rank waits for end with the step."""
    with Cluster(2) as c:
        a, b = c.ranks("j", layout(), [0, 1], hold=3, push=-1, timeout_ms=1500 * WAIT)
        for version in (1, 2, 3):
            push_some(a)
            a.refused("EDEADLINE", "step", "rank 1", sets=SETS)
            a.refused("ECONFLICT", "step", "different values", sets=GRADIENT)
            a.start("norms", plane="grad", first=0, count=TENSORS)
            push_some(b)
            b.do("step", sets=SETS)
            reply = a.finish()
            assert reply["status"] in ("OK", "EABORTED", "EDEADLINE"), reply
            assert c.checksum("j")["version"] == version
            if reply["status"] != "EABORTED":
                assert a.do("step", sets=SETS)["version"] == version


@case
def nothing_is_pushed_afterwards():
    with Cluster(1) as c:
        a, = c.ranks("j", layout(), [0], hold=3, push=-1)
        a.do("grad", group=0)
        a.do("push", group=0, last=False)
        a.do("grad", group=1)
        a.refused("EORDER", "norms", "zero_push", plane="grad", first=0, count=1)
        a.do("push", group=1)
        assert norms(a, "grad")[0] > 0
        a.do("grad", group=0, micro_batch=1)
        a.do("push", group=0)
        a.refused("EORDER", "step", sets=SETS)


@case
def what_is_refused():
    with Cluster(2) as c:
        a, = c.ranks("j", layout(), [0], hold=3, push=-1)
        for plane in ("serve", "step", "set", "moment3", 0, 99):
            name = plane if isinstance(plane, str) else f"unknown ({plane})"
            a.refused("EINVAL", "norms", f"plane {name}", "no norms", plane=plane, first=0, count=1)
        a.refused("ERANGE", "norms", plane="master", first=0, count=TENSORS + 1)
        a.refused("ERANGE", "norms", plane="master", first=TENSORS + 1, count=0)
        b = c.actor(1, "observer")
        b.do("connect", job="j", rank=-1)
        b.refused("ENOTATTACHED", "norms", plane="master", first=0, count=1)
        b.do("attach", observer=True)
        b.refused("EPERM", "norms", "observer", plane="grad", first=0, count=1)
        assert norms(b, "master") == norms(a, "master")
        c[0].ctl("drop", "j")
        expect(b.ask("norms", plane="master", first=0, count=1), "ENOJOB")

# ---- daemons and ranks die -------------------------------------------------------------------


@cases_of(PLACED, "{0[0]}_{0[1]}")
def a_rank_dies_meanwhile(placement):
    """The successor pushes what is missing, and the waiting call gets the norms of an undisturbed step."""
    with Cluster(2) as c:
        a, b = c.ranks("j", layout(), placement, hold=3, push=-1)
        push_some(a)
        push_all(b, 1)
        a.start("norms", plane="grad", first=0, count=TENSORS)
        b.kill()
        assert not a.ready(0.3), a.finish()
        heir = c.rank("j", layout(), placement, 1, incarnation=1, hold=3, push=-1)
        for _ in range(3):
            heir.finish()
        heir.do("grad", group=1, rank=1)
        heir.do("push", group=1)
        heir.do("grad", group=2, rank=1)
        heir.do("push", group=2, present=[1, 0])
        heir.start("step", sets=SETS)
        told = a.finish()["norms"]
        assert told == on_one_node()["grad"]
        step = a.ask("step", sets=SETS)
        assert step["status"] == "OK" and heir.finish()["version"] == 1, step


@cases_of([0, 1], "n{}")
def a_daemon_dies_meanwhile(victim):
    """The rank that waits for gradients is told to repeat the step; a rank that asks for weights may ask again."""
    with Cluster(2) as c:
        ranks = c.ranks("j", layout(), [0, 1], hold=3, push=-1)
        push_all_ranks(ranks)
        step_all(ranks, sets=SETS)
        before = norms(ranks[0], "master")
        push_some(ranks[0])
        push_all(ranks[1], 1)
        ranks[0].start("norms", plane="grad", first=0, count=TENSORS)
        assert not ranks[0].ready(0.3)
        c[victim].kill()
        c[victim].start()
        ranks[1].start("norms", plane="grad", first=0, count=1)
        for a in ranks:
            expect(a.finish(), "EABORTED")

        def again():
            reply = ranks[1].ask("norms", plane="master", first=0, count=TENSORS)
            if reply["status"] not in ("EPEER", "EBUSY", "EABORTED"):
                expect(reply, "OK")
            return reply["status"] == "OK" and reply["norms"] == before
        until(again, what="the norms of the weights")
        push_all_ranks(ranks)
        assert {r["version"] for r in step_all(ranks, sets=SETS)} == {2}


@case
def owners_change_meanwhile():
    """The rank that waits for gradients is told to repeat the step; weights have the same norms with the new owners."""
    with Cluster(2) as c:
        ranks = c.ranks("j", layout(), [0, 0], hold=3, push=-1)
        before = norms(ranks[0], "master")
        push_some(ranks[0])
        ranks[0].start("norms", plane="grad", first=0, count=TENSORS)
        assert not ranks[0].ready(0.3)
        ranks[1].do("fetch", group=0)
        c[0].change_owners("remove-node", "n1")
        # zero_norm() would complete the gradients if it came before the change
        def meets_the_change():
            reply = ranks[1].ask("fetch", group=1)
            if reply["status"] == "OK":
                ranks[1].do("release", group=1)
            return reply["status"] == "EABORTED"
        until(meets_the_change, what="the change")
        expect(ranks[0].finish(), "EABORTED")
        until(lambda: ranks[1].ask("norms", plane="master", first=0, count=TENSORS).get("norms") == before,
              what="the norms")
        push_all_ranks(ranks)
        step_all(ranks, sets=SETS)


@case
def a_daemon_dies_under_an_observer():
    """An owner's death ends the call with the node's name, and the next call succeeds when the node is back."""
    with Cluster(2) as c:
        c.ranks("j", layout(), [0], hold=3, push=-1)
        watcher = c.actor(0, "watcher")
        watcher.do("connect", job="j", rank=-1, timeout_ms=60000)
        watcher.do("attach", observer=True)
        before = norms(watcher, "master")
        c[1].stop()
        watcher.start("norms", plane="master", first=0, count=TENSORS)
        assert not watcher.ready(0.3)
        c[1].go_on()
        c[1].kill()
        reply = watcher.finish()
        if reply["status"] != "OK":
            expect(reply, "EPEER", "n1")
        expect(watcher.ask("norms", plane="master", first=0, count=TENSORS), "EPEER", "n1")
        c[1].start()
        c.wait_up()
        until(lambda: watcher.ask("norms", plane="master", first=0, count=TENSORS).get("norms") == before,
              what="the norms")


@case
def eager_groups():
    """Sums of groups that are updated ahead stay readable, and the update goes on."""
    told = []
    for eager in (False, True):
        with Cluster(2) as c:
            groups = [{**g, "eager": eager} for g in layout() if g["name"] == "a"]
            ranks = c.ranks("j", groups, [0, 1], hold=1, push=-1)
            for a in ranks:
                if eager:
                    a.do("ahead", sets=SETS)
                push_all(a, 1)
            grad = norms(ranks[0], "grad", 0, 4), norms(ranks[1], "grad", 0, 4)
            step_all(ranks, sets=SETS)
            told.append((grad, norms(ranks[0], "master", 0, 4), json.dumps(c.checksum("j")["planes"])))
    assert told[0] == told[1], told


@case
def tensors_that_are_read_in_pieces():
    """Norms and the checksum of three million elements, over several groups, have the same bits on any nodes."""
    large = [group("l", tensor("small", 131), tensor("large", 1025, 3001)), group("m", tensor("more", 70001))]
    told = []
    for nodes in (1, 2, 3):
        with Cluster(nodes) as c:
            a, = c.ranks("job", large, [0], hold=1, push=1)
            told.append((norms(a, "master", count=3), c.checksum("job")["planes"]))
    assert told[0] == told[1] == told[2], told
    for norm, elements in zip(told[0][0], (131, 1025 * 3001, 70001)):
        assert abs(norm / math.sqrt(elements) / 0.5 - 1) < 0.2, told  # normal, with a deviation of 0.5


if __name__ == "__main__":
    main()
