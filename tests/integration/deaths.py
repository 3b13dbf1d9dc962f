#!/usr/bin/env python3
"""Trainers and daemons die or stop in the middle of a call. The others' wait shows whom they wait for, their
error names who is missing, no gradient is lost, and nothing of the dead is left."""
import os
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SETS, SLOW, WAIT, Cluster, expect, finish_all, push_all, small_layout, step_all, until  # noqa: E402
from harness import case, cases_of, main  # noqa: E402

LAYOUT = small_layout(blocks=2, width=256)
GROUPS = len(LAYOUT)
DEADLINE_MS = 3000 * WAIT


def waited_for(daemon, job):
    return " ".join(f"{w['for']}: {w['what']};" for w in daemon.job(job)["waiting"])


def in_fetch(victim, other):
    """Fetches while the node that must answer is stopped; the caller lets that node go on."""
    other.stop()
    victim.start("fetch", group=2)
    assert not victim.ready(0.1), "the fetch did not wait"


def in_push(victim, _other=None):
    """One group is pushed, one still lacks a micro-batch, and one is being pushed."""
    victim.do("grad", group=3)
    victim.do("push", group=3)
    victim.do("grad", group=2)
    victim.do("push", group=2, last=False)
    victim.do("grad", group=1)
    victim.start("push", group=1)


def in_step(victim, _other=None):
    in_push(victim)
    victim.finish()
    victim.start("step", sets=SETS)
    assert not victim.ready(0.1), "the step ended without the others"


MOMENTS = {"fetch": in_fetch, "push": in_push, "step": in_step}


class Scene:
    """A job whose last rank is the victim, and another job that must not notice. on_lost="fail": a lost rank
    fails the others' calls."""

    def __init__(self, placement, moment, timeout_ms=DEADLINE_MS, on_lost="wait"):
        self.needs = {"hold": 2, "push": GROUPS, "on_lost": on_lost}
        self.cluster = Cluster(2)
        self.moment, self.placement, self.timeout_ms = moment, placement, timeout_ms

    def __enter__(self):
        c = self.cluster
        try:
            self.before = [(d.descriptors(), d.memory()) for d in c.daemons]
            self.other = c.ranks("other", small_layout(blocks=1), [0, 1], hold=1, push=1)
            self.ranks = c.ranks("job", LAYOUT, self.placement, timeout_ms=self.timeout_ms, **self.needs)
        except BaseException:
            c.__exit__(*sys.exc_info())
            raise
        self.victim, self.rest = self.ranks[-1], self.ranks[:-1]
        self.name = f"rank {len(self.ranks) - 1}"
        return self

    def __exit__(self, *error):
        self.cluster.__exit__(*error)

    def hit(self, how):
        other = self.cluster[1 - self.placement[-1]]
        MOMENTS[self.moment](self.victim, other)
        os.kill(self.victim.pid, how)
        if how == signal.SIGKILL:
            self.victim.process.wait()
        other.go_on()

    def others_work(self):
        """The job's other ranks push all groups and call zero_step(); the other job trains."""
        self.others_push()
        self.others_step()

    def others_push(self):
        for a in self.rest:
            a.do("fetch", group=0)
            a.do("release", group=0)
            for g in range(GROUPS):
                a.do("grad", group=g)
                a.do("push", group=g)

    def others_step(self):
        for a in self.rest:
            a.start("step", sets=SETS)
        for a in self.other:
            a.start("train", steps=30, sets=SETS)

    def named(self):
        """Every node's status names the victim while the others wait."""
        for d in self.cluster.daemons:
            until(lambda d=d: self.name in waited_for(d, "job"), DEADLINE_MS / 1000,
                  f"'{self.name}' in the waiting list of {d.name}")

    def errors(self, status):
        for a in self.rest:
            expect(a.finish(), status, self.name)
        finish_all(self.other)

    def replace(self):
        """A successor attaches; the others' step is void, and all replay it."""
        c, n = self.cluster, len(self.ranks)
        heir = c.actor(self.placement[-1], "heir")
        heir.do("connect", job="job", rank=n - 1, world=n, local=self.placement.count(self.placement[-1]))
        heir.do("layout", groups=LAYOUT)
        heir.do("attach", **self.needs)
        for a in self.rest:
            until(lambda a=a: a.ask("step", sets=SETS)["status"] in ("EABORTED",), what="the abort of the attempt")
        self.train([*self.rest, heir], 1)
        return heir

    def train(self, ranks, steps):
        version = self.cluster[0].job("job")["version"]
        for a in ranks:
            a.start("train", steps=steps, sets=SETS)
        finish_all(ranks)
        assert self.cluster.checksum("job")["version"] == version + steps

    def all_gone(self):
        """Sessions, jobs and descriptors return to where they were."""
        for a in self.cluster.actors:
            a.end()
        for d in self.cluster.daemons:
            until(lambda d=d: not d.job("job")["sessions"] and not d.job("other")["sessions"], what="the sessions' end")
        for job in ("job", "other"):
            self.cluster[0].ctl("drop", job)
        for d, (descriptors, memory) in zip(self.cluster.daemons, self.before):
            until(lambda d=d, n=descriptors: d.descriptors() <= n + 1, what=f"descriptors of {d.name}")
            s = d.status()
            assert s["jobs"] == [] and s["memory"]["state_used"] == 0, s["memory"]
            assert SLOW > 1 or d.memory() < memory + 16384, (memory, d.memory())


@cases_of([(m, p) for m in MOMENTS for p in ([0, 1], [0, 0])], "{0[0]}_{0[1]}")
def killed_in(what):
    """The others' calls fail at once, not at their deadline; a successor takes the dead rank's place."""
    moment, placement = what
    with Scene(placement, moment, timeout_ms=60000 * SLOW, on_lost="fail") as s:
        s.others_push()
        if moment != "step":
            s.others_step()
        s.hit(signal.SIGKILL)
        begun = time.monotonic()
        if moment == "step":
            s.others_step()
        s.errors("ELOSTRANK")
        for a in s.rest:
            a.refused("ELOSTRANK", "norm", s.name)
        assert time.monotonic() - begun < 30 * SLOW, "they waited for a deadline"
        s.replace()
        s.all_gone()


LEFT_IN = {"step": lambda a: a.start("step", sets=SETS), "norm": lambda a: a.start("norm"),
           "norms": lambda a: a.start("norms", plane="grad", first=0, count=1)}


@cases_of([(call, p) for call in LEFT_IN for p in ([0, 0], [0, 0, 1], [0, 1, 1])], "{0[0]}_{0[1]}")
def left_in_order(what):
    """A rank that leaves by zero_close() is a lost rank for those who wait, and for those who call later, though they
    wait for successors."""
    call, placement = what
    n = len(placement)
    with Cluster(max(placement) + 1) as c:
        *rest, leaver = c.ranks("job", LAYOUT, placement, hold=2, push=GROUPS, timeout_ms=60000 * SLOW)
        begun = time.monotonic()
        LEFT_IN[call](rest[0])
        assert not rest[0].ready(0.3), "it did not wait"
        leaver.do("close")
        expect(rest[0].finish(), "ELOSTRANK", f"rank {n - 1} has left the job")
        for a in rest:
            a.refused("ELOSTRANK", "step", f"rank {n - 1} has left the job", sets=SETS)
            a.do("fetch", group=0)  # which waits for nobody
            a.do("release", group=0)
        assert time.monotonic() - begun < 30 * SLOW, "they waited for a deadline"
        leaver.do("connect", job="job", rank=n - 1, world=n, local=placement.count(placement[-1]))
        leaver.do("layout", groups=LAYOUT)
        leaver.do("attach", hold=2, push=GROUPS)
        for a in rest:
            until(lambda a=a: a.ask("step", sets=SETS)["status"] == "EABORTED", what="the next attempt")  # its node hears of it
        step_all([*rest, leaver], sets=SETS)


@cases_of([[0, 0], [0, 1]])
def left_with_answers_unread(placement):
    """A rank that closes while prefetches are on their way has left in order, so others fetch on."""
    with Cluster(max(placement) + 1) as c:
        one, two = c.ranks("job", LAYOUT, placement, hold=2, push=GROUPS, timeout_ms=60000 * SLOW, on_lost="fail")
        for again in range(20):
            for g in range(1, GROUPS):
                two.do("prefetch", group=g)
            two.do("close")
            until(lambda: one.ask("step", sets=SETS)["status"] == "ELOSTRANK", what="the loss")
            one.refused("ELOSTRANK", "step", "rank 1 has left the job", sets=SETS)
            one.do("fetch", group=0)
            one.do("release", group=0)
            two = c.rank("job", LAYOUT, placement, 1, incarnation=again + 1, hold=2, push=GROUPS, on_lost="fail")
            until(lambda: one.ask("step", sets=SETS)["status"] == "EABORTED", what="the next attempt")


@case
def left_while_another_waits_for_a_slot():
    with Cluster(1) as c:
        one, two = c.ranks("job", LAYOUT, [0, 0], hold=2, push=1, timeout_ms=60000 * SLOW)
        one.do("grad", group=0)
        one.do("push", group=0)
        one.start("grad", group=1)
        assert not one.ready(0.3), "there was a slot"
        two.do("close")
        expect(one.finish(), "ELOSTRANK", "rank 1 has left the job")


@cases_of([[0, 0], [0, 1]])
def left_after_a_conflict(placement):
    """Who is left hears of it, however the others have not agreed."""
    with Cluster(max(placement) + 1) as c:
        one, two = c.ranks("job", LAYOUT, placement, hold=2, push=GROUPS, timeout_ms=60000 * SLOW)
        one.start("step", sets=SETS)
        assert not one.ready(0.3), "it did not wait"
        two.refused("ECONFLICT", "step", "different values", sets=SETS[:1])
        two.do("close")
        expect(one.finish(), "ELOSTRANK", "rank 1 has left the job")


@case
def left_by_a_refusal_to_attach():
    """The job has started with the rank, and its node does not let it in."""
    with Cluster(1) as c:
        one, two = (c.caller("job", LAYOUT, [0, 0], rank, timeout_ms=60000 * SLOW) for rank in range(2))
        finish_all([one, one, two, two])
        one.start("attach", hold=2, push=GROUPS)
        assert not one.ready(0.3), "it did not wait"
        two.refused("ECONFLICT", "attach", "bf16", hold=2, push=GROUPS, grad="bf16")
        finish_all([one])
        one.refused("ELOSTRANK", "step", "rank 1 has left the job", sets=SETS)


@cases_of([[0, 0], [0, 1]])
def left_at_the_end(placement):
    """Where nobody waits for it: the others read the last step's values, and the job stands."""
    with Cluster(2) as c:
        one, two = c.ranks("job", LAYOUT, placement, hold=2, push=GROUPS)
        step_all([one, two], sets=SETS)
        two.do("close")
        for g in range(GROUPS):
            one.do("fetch", group=g)
            one.do("release", group=g)
        one.do("norms", plane="master", first=0, count=1)
        one.do("get", tensor=0, plane="master", count=8)
        one.do("close")
        assert c[0].job("job")["version"] == 1
        again = c.ranks("job", LAYOUT, [1], hold=2, push=GROUPS)
        step_all(again, sets=SETS)


@cases_of([[0, 0, 0], [0, 1, 0]])
def killed_while_others_wait_elsewhere(placement):
    """The others wait in zero_norm(), and in zero_grad() for a slot that a rank keeps because it does not push."""
    with Cluster(2) as c:
        one, two, victim = c.ranks("job", LAYOUT, placement, hold=1, push=1, timeout_ms=60000 * SLOW, on_lost="fail")
        one.start("norm")
        two.do("grad", group=0)
        two.do("push", group=0)
        two.start("grad", group=1)
        begun = time.monotonic()
        assert not one.ready(0.1) and (placement[1] == 1 or not two.ready(0.1))
        victim.kill()
        expect(one.finish(), "ELOSTRANK", "rank 2")
        reply = two.finish()
        if placement[1] == 1:  # alone on its node: no slot waits for others
            two.do("push", group=1)
            two.refused("ELOSTRANK", "step", "rank 2", sets=SETS)
        else:
            expect(reply, "ELOSTRANK", "rank 2")
        assert time.monotonic() - begun < 30 * SLOW, "they waited for a deadline"
        heir = c.actor(placement[2], "heir")
        heir.do("connect", job="job", rank=2, world=3, local=placement.count(placement[2]))
        heir.do("layout", groups=LAYOUT)
        heir.do("attach", hold=1, push=1, on_lost="fail")
        for a in (one, two):
            until(lambda a=a: a.ask("step", sets=SETS)["status"] == "EABORTED", what="the next attempt")
        for a in (one, two, heir):
            a.start("train", steps=2, sets=SETS)
        finish_all([one, two, heir])


@cases_of([[0, 1], [0, 1, 1]])
def killed_in_zero_norm(placement):
    """The rank that takes its place asks for the norm anew, and no rank is told the norm before."""
    with Cluster(2, log_level="debug") as c:
        actors = c.ranks("job", LAYOUT, placement, hold=2, push=GROUPS, timeout_ms=60000 * SLOW)
        for a in actors:
            push_all(a, GROUPS)
        for a in actors[1:]:
            a.start("norm")
            assert not a.ready(0.1)
        actors[-1].kill()
        heir = actors[-1] = c.actor(placement[-1], "heir")
        heir.do("connect", job="job", rank=len(placement) - 1, world=len(placement), local=placement.count(1))
        heir.do("layout", groups=LAYOUT)
        heir.do("attach", hold=2, push=GROUPS)
        actors[0].start("norm")
        assert not actors[0].ready(0.3), "the norm was told without a rank"
        push_all(heir, GROUPS)
        heir.start("norm")
        assert len({reply["norm"] for reply in finish_all([heir, *actors[:-1]])}) == 1
        step_all(actors, sets=SETS)
        assert c[0].job("job")["version"] == 1


@cases_of(["fetch", "push"])
def stopped_in(moment):
    """A stopped rank holds up only its own job, which names it; when the rank goes on, so does the job."""
    with Scene([0, 1], moment) as s:
        s.hit(signal.SIGSTOP)
        s.others_work()
        s.named()
        s.errors("EDEADLINE")
        s.victim.go_on()
        s.victim.finish()
        if moment == "push":
            s.victim.start("step", sets=SETS)
            for a in s.rest:
                a.start("step", sets=SETS)
            finish_all([s.victim, *s.rest])
        s.all_gone()


@case
def stopped_in_step():
    """The rank is stopped after its zero_step(): the others end that step too, and wait for the rank in the next."""
    with Scene([0, 0, 1], "step") as s:
        s.hit(signal.SIGSTOP)
        s.others_work()
        finish_all(s.rest)
        for a in s.rest:
            a.start("step", sets=SETS)
        s.named()
        s.errors("EDEADLINE")
        s.victim.go_on()
        assert s.victim.finish()["version"] == 1
        for a in s.ranks:
            a.start("step", sets=SETS)
        assert {r["version"] for r in finish_all(s.ranks)} == {2}
        s.all_gone()


@case
def stopped_while_it_holds_groups():
    """A stopped process keeps the groups that it holds; updates do not wait for it."""
    with Cluster(1) as c:
        ranks = c.ranks("job", small_layout("bf16"), [0, 0], hold=-1, push=-1, grad="bf16")
        reader = ranks[1]
        for g in range(5):
            reader.do("fetch", group=g)
        for _ in range(3):
            for a in ranks:
                for g in range(5):
                    a.do("grad", group=g)
                    a.do("push", group=g)
            step_all(ranks)
        reader.start("fetch", group=0)
        reader.stop()
        other, = c.ranks("other", small_layout("bf16"), [0], hold=-1, push=-1, grad="bf16")
        other.do("train", steps=10, sets=SETS)
        reader.go_on()
        reader.good(reader.finish())


@cases_of(["fetch", "push", "step"])
def killed_by_turns(moment):
    """Many deaths in a row leak nothing."""
    with Cluster(1) as c:
        c.ranks("keep", small_layout(blocks=1), [0], hold=1, push=1)
        sizes = []
        for i in range(12):
            a, = c.ranks("mortal", LAYOUT, [0], hold=2, push=GROUPS)
            if moment != "fetch":
                MOMENTS["push"](a)
            a.start(moment if moment != "push" else "grad", group=0, sets=SETS)
            a.kill()
            until(lambda: not c[0].job("mortal")["sessions"], what="the session's end")
            if i in (3, 11):
                sizes.append((c[0].descriptors(), c[0].memory()))
        # one more: if a rank dies during a gather, its job's window stays until the next rank's session
        until(lambda: c[0].descriptors() <= sizes[0][0] + 1, what=f"return of descriptors, {sizes}")
        assert SLOW > 1 or sizes[1][1] <= sizes[0][1] + 2048, sizes


# ---- ranks that are late -------------------------------------------------------------------------

LATE_MS = 1200 * WAIT  # longer than all nodes need to learn who is late


def late_cluster(rank_wait_ms=600000):
    return Cluster(2, wait_ms=LATE_MS, rank_wait_ms=rank_wait_ms)


def goes_on_waiting(actor):
    assert not actor.ready(2.5 * LATE_MS / 1000), "the wait ended at the deadline"


def attached(c, placement):
    return c.ranks("job", LAYOUT, placement, timeout_ms=0, hold=2, push=GROUPS)


@cases_of([[0, 1], [0, 0]])
def a_busy_rank_is_waited_for(placement):
    """In zero_step(), and in zero_grad() behind a push that the busy rank holds up."""
    with late_cluster() as c:
        a, b = c.ranks("job", LAYOUT, placement, timeout_ms=0, hold=2, push=1)
        for g in range(2):
            a.start("grad", group=g)
            a.start("push", group=g)
        a.start("step", sets=SETS)
        replies = 4 if placement == [0, 1] else 2
        finish_all([a] * replies)
        goes_on_waiting(a)
        for g in range(2):
            b.do("grad", group=g)
            b.do("push", group=g)
        b.start("step", sets=SETS)
        finish_all([a] * (5 - replies) + [b])


@case
def a_callers_own_timeout_is_not_extended():
    with late_cluster() as c:
        a, _ = c.ranks("job", LAYOUT, [0, 1], timeout_ms=LATE_MS, hold=2, push=GROUPS)
        a.refused("EDEADLINE", "step", "rank 1 on n1", "last call zero_attach", f"within {LATE_MS / 1000:.1f} s", sets=SETS)


@case
def a_rank_that_makes_no_call_ends_the_wait():
    with late_cluster(rank_wait_ms=2 * LATE_MS) as c:
        a, b = attached(c, [0, 1])
        b.do("fetch", group=0)
        a.refused("EDEADLINE", "step", "rank 1 on n1", "last call zero_fetch", sets=SETS)
        b.start("step", sets=SETS)
        a.start("step", sets=SETS)
        finish_all([a, b])


@case
def a_stopped_process_ends_the_wait():
    """An open session does not prove that a rank lives."""
    with late_cluster() as c:
        a, b = attached(c, [0, 1])
        b.stop()
        a.refused("EDEADLINE", "step", "rank 1 on n1", "its process is stopped", sets=SETS)


@case
def a_successor_comes_while_a_child_has_the_connection():
    with Cluster(1) as c:
        _, b = c.ranks("job", LAYOUT, [0, 0], hold=2, push=GROUPS)
        child = b.do("fork")["pid"]
        try:
            b.kill()
            heir = c.rank("job", LAYOUT, [0, 0], 1, hold=2, push=GROUPS)
            finish_all([heir] * 3)
        finally:
            os.kill(child, signal.SIGKILL)


@cases_of([(end, p) for end in ("kill", "close") for p in ([0, 0], [0, 1])], "{0[0]}_{0[1]}")
def a_child_of_a_rank_does_not_keep_its_place(what):
    """The process that attached decides, though the child has its connection open."""
    end, placement = what
    needs = {"hold": 2, "push": GROUPS, "on_lost": "fail"}
    with Cluster(max(placement) + 1) as c:
        a, b = c.ranks("job", LAYOUT, placement, timeout_ms=60000 * SLOW, **needs)
        child = b.do("fork")["pid"]
        try:
            a.start("step", sets=SETS)
            assert not a.ready(0.3), "it did not wait"
            b.kill() if end == "kill" else b.do("close")
            expect(a.finish(), "ELOSTRANK", "rank 1")
            heir = c.rank("job", LAYOUT, placement, 1, **needs)
            finish_all([heir] * 3)
            until(lambda: a.ask("step", sets=SETS)["status"] == "EABORTED", what="the next attempt")
            step_all([a, heir], sets=SETS)
        finally:
            os.kill(child, signal.SIGKILL)


@case
def a_lost_rank_is_waited_for_until_the_deadline():
    with late_cluster() as c:
        a, b = attached(c, [0, 1])
        b.kill()
        a.refused("EDEADLINE", "step", "rank 1", "lost", sets=SETS)


@case
def a_rank_that_comes_late_is_waited_for():
    with late_cluster() as c:
        first, last = (c.caller("job", LAYOUT, [0, 1], rank, timeout_ms=0) for rank in range(2))
        finish_all([first, first, last, last])
        first.start("attach", hold=2, push=GROUPS)
        goes_on_waiting(first)
        last.start("attach", hold=2, push=GROUPS)
        finish_all([first, last])


@case
def a_rank_that_never_comes_ends_the_wait():
    """A rank whose attach timed out gives up its place: another session can take it."""
    with late_cluster(rank_wait_ms=2 * LATE_MS) as c:
        first = c.caller("job", LAYOUT, [0, 1], 0, timeout_ms=0)
        finish_all([first, first])
        first.refused("EDEADLINE", "attach", "rank 1", "to attach", hold=2, push=GROUPS)
        attached(c, [0, 1])


@case
def a_rank_whose_daemon_was_restarted_is_waited_for():
    """The rank is busy; libzero attaches it again at its next call."""
    with late_cluster() as c:
        a, b = attached(c, [0, 1])
        c[1].restart()
        until(c[0].peers_up, what="the link")
        a.start("step", sets=SETS)
        goes_on_waiting(a)
        b.start("step", sets=SETS)
        for r in (a, b):
            reply = r.finish()
            if reply["status"] == "EABORTED":
                r.start("step", sets=SETS)
            else:
                r.good(reply)
        for r in (a, b):
            while r.asked:
                finish_all([r])


# ---- daemons ---------------------------------------------------------------------------------

@case
def peer_daemon_killed():
    """Ranks wait for the node; at their deadline the error names it."""
    with Cluster(2, drain_ms=200) as c:
        a, b = c.ranks("job", LAYOUT, [0, 1], hold=2, push=GROUPS, timeout_ms=2000 * WAIT)
        a.start("step", sets=SETS)
        c[1].kill()
        b.start("step", sets=SETS)
        expect(a.finish(), "EDEADLINE", "n1")
        expect(b.finish(), "EDEADLINE", c[1].socket)
        until(lambda: not c[0].peers_up(), what="the peer to be down in status")
        peer = next(p for p in c[0].status()["peers"] if p["node"] == "n1")
        assert peer["why"], peer
        a.refused("EDEADLINE", "fetch", "n1", group=2)


@case
def peer_daemon_killed_in_fetch():
    with Cluster(2) as c:
        a, _ = c.ranks("job", LAYOUT, [0, 1], hold=2, push=GROUPS, timeout_ms=DEADLINE_MS)
        in_fetch(a, c[1])
        c[1].kill()
        reply = a.finish()
        assert reply["status"] in ("EPEER", "EDEADLINE", "ELOSTRANK") and "n1" in reply["text"], reply


@case
def peer_daemon_stopped():
    """Missing heartbeats reveal it: the job names the node, the daemon keeps answering, and the link is made again."""
    with Cluster(2) as c:
        a, _ = c.ranks("job", LAYOUT, [0, 1], hold=2, push=GROUPS, timeout_ms=10000 * WAIT)
        c[1].stop()
        a.start("step", sets=SETS)
        until(lambda: "n1" in waited_for(c[0], "job"), 9 * WAIT, "its name in status")
        expect(a.finish(), "EDEADLINE", "n1")
        c[0].status()
        c[1].go_on()
        until(c[0].peers_up, what="the link")


@case
def own_daemon_killed():
    """A rank that waits for its own daemon gets an error that names the socket; views stay mapped."""
    with Cluster(1) as c:
        a, = c.ranks("job", LAYOUT, [0], hold=2, push=GROUPS, timeout_ms=DEADLINE_MS)
        a.do("fetch", group=0)
        c[0].process.kill()
        c[0].process.wait()
        a.refused("EDEADLINE", "fetch", "rank 0", "n0.sock", group=1)
        a.do("view", group=0)


@case
def daemon_stops_in_a_step():
    """SIGTERM in the middle of a step: clients get an error, and the daemon exits with 0."""
    with Cluster(2, drain_ms=200) as c:
        a, _ = c.ranks("job", LAYOUT, [0, 1], hold=2, push=GROUPS, timeout_ms=DEADLINE_MS)
        a.start("step", sets=SETS)
        c[0].process.terminate()
        expect(a.finish(), "EDEADLINE", "rank 0", "n0.sock")
        assert c[0].process.wait(15 * SLOW) == 0, c[0].log()


@case
def daemon_stops_with_an_unread_gradient():
    """A stopping daemon does not wait for an owner that has no receive buffer left for its gradient."""
    with Cluster(2, drain_ms=0, reduce_buffers=1) as c:
        _, a = c.ranks("job", LAYOUT, [0, 1], hold=1, push=GROUPS)
        push_all(a, GROUPS)
        a.start("step", sets=SETS)
        assert not a.ready(0.1), "the step ended without the other rank"
        c[1].process.terminate()
        assert c[1].process.wait(15 * SLOW) == 0, c[1].log()


@case
def daemon_dies_with_unread_gradients():
    """An owner forgets the gradients offered by the dead daemon, but not those of its next process."""
    with Cluster(2, reduce_buffers=1) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], hold=2, push=GROUPS, timeout_ms=10000 * SLOW)
        push_all(ranks[1], GROUPS)
        ranks[1].start("step", sets=SETS)
        assert not ranks[1].ready(0.1), "the step ended without the other rank"
        c[1].kill()
        c[1].restart()
        expect(ranks[1].finish(), "EABORTED")
        for a in ranks:
            a.start("train", steps=1, sets=SETS, patient=True)
        finish_all(ranks)


if __name__ == "__main__":
    main()
