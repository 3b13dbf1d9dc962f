#!/usr/bin/env python3
"""Trainers die, and successors take their ranks: the job ends with the same bits, a successor learns what it still
owes, and nothing is left of the dead."""
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import wire  # noqa: E402
from cluster import SETS, SLOW, WAIT, Cluster, expect, finish_all, mappings, resident, small_layout, until  # noqa: E402
from harness import case, cases_of, main  # noqa: E402
from moments import (EVERY, GROUPS, LAYOUT, MOMENTS, NEEDS, PLACEMENTS, STEPS, TRAIN, all_step,  # noqa: E402
                     as_undisturbed, go_to, heir_of, kept, push, settle, start_step, train)
from relay import Wires  # noqa: E402


def placed(placements):
    return cases_of(placements, "{}")


# ---- a trainer dies --------------------------------------------------------------------------

@cases_of([(m, p) for m in MOMENTS for p in PLACEMENTS], "{0[0]}_{0[1]}")
def trainer_killed(what):
    """The others wait for the successor and see no error; the successor learns what was accepted."""
    moment, placement = what
    last = len(placement) - 1
    with Cluster(2) as c:
        *rest, victim = c.ranks("job", LAYOUT, placement, **NEEDS)
        for a in rest:
            a.start("train", steps=STEPS, **TRAIN)
        train([victim], 2)
        accepted = go_to([victim], moment, 2)
        victim.kill()
        heir, told = heir_of(c, placement, last)
        assert told["version"] == 2 and told["blob"].startswith(kept(last, 2)), told
        assert told["accepted"] == accepted, (told, accepted)
        train([heir], STEPS - 2)
        for reply in finish_all(rest):
            assert reply["aborts"] == 0, reply
        as_undisturbed(c, placement)


def killed_in_its_step(c, placement):
    """Kills the last rank after its zero_step(); the other ranks."""
    ranks = c.ranks("job", LAYOUT, placement, **NEEDS)
    train(ranks, 1)
    go_to(ranks, "pushed", 1)
    start_step(ranks[-1], len(ranks) - 1, 2)
    assert not ranks[-1].ready(0.3), "the step ended without the others"
    ranks[-1].kill()
    return ranks[:-1]


@placed(PLACEMENTS)
def trainer_killed_after_its_step(placement):
    """A dead rank's zero_step() counts; its successor attaches after the step and learns of the new version."""
    last = len(placement) - 1
    with Cluster(2) as c:
        rest = killed_in_its_step(c, placement)
        all_step(rest, 2)
        heir, told = heir_of(c, placement, last)
        assert told["version"] == 2 and told["blob"] == kept(last, 2) and told["accepted"] == [0] * GROUPS, told
        for a in [*rest, heir]:
            a.start("train", steps=STEPS - 2, **{**TRAIN, "keep": False})
        finish_all([*rest, heir])
        as_undisturbed(c, placement)


@placed(PLACEMENTS)
def successor_waits_for_the_step_of_the_dead_rank(placement):
    last = len(placement) - 1
    with Cluster(2) as c:
        rest = killed_in_its_step(c, placement)
        heir = c.rank("job", LAYOUT, placement, last, incarnation=1, **NEEDS)
        for _ in range(2):
            heir.good(heir.finish())
        assert not heir.ready(0.3), "it attached in the middle of the dead rank's step"
        all_step(rest, 2)
        told = heir.good(heir.finish())
        assert told["version"] == 2 and told["blob"] == kept(last, 2), told


@case
def all_trainers_killed():
    """All ranks die; the service keeps their gradients, and successors push the rest."""
    placement = [0, 1, 1]
    with Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, placement, **NEEDS)
        train(ranks, 2)
        go_to(ranks, "backward", 2)
        for a in ranks:
            a.kill()
        heirs = [c.rank("job", LAYOUT, placement, r, incarnation=1, **NEEDS) for r in range(3)]
        for a in heirs:
            while a.asked:
                a.good(a.finish())
        train(heirs, STEPS - 2)
        as_undisturbed(c, placement)


@case
def killed_again_and_again():
    """Within one step each successor goes on from what all ranks before it have pushed."""
    placement = [0, 1]
    with Cluster(2) as c:
        other, victim = c.ranks("job", LAYOUT, placement, **NEEDS)
        other.start("train", steps=STEPS, **TRAIN)
        for i in range(len(EVERY)):
            for g, m in EVERY[:i + 1]:
                push(victim, g, m, 0)
            settle(victim)
            victim.kill()
            victim, told = heir_of(c, placement, 1, incarnation=i + 1)
            assert sum(told["accepted"]) == i + 1, told
        train([victim], STEPS)
        assert finish_all([other])[0]["aborts"] == 0
        as_undisturbed(c, placement)


@placed(([0, 1], [0, 0]))
def stopped_rank_is_fenced(placement):
    """A successor takes a stopped rank's place; later writes and calls of the old process have no effect."""
    with Cluster(2) as c:
        other, old = c.ranks("job", LAYOUT, placement, **NEEDS)
        other.start("train", steps=STEPS, **TRAIN)
        train([old], 2)
        accepted = go_to([old], "backward", 2)
        old.stop()
        heir, told = heir_of(c, placement, 1)
        assert told["version"] == 2 and told["accepted"] == accepted, told
        old.go_on()
        old.do("smear")
        train([heir], 1)
        old.do("smear")
        old.refused("ERANK", "fetch", "incarnation", group=1)
        for deed in ("fetch", "grad", "norm"):
            old.refused("ECLOSED", deed, "incarnation", group=1)
        train([heir], STEPS - 3)
        finish_all([other])
        as_undisturbed(c, placement)


@case
def a_rank_and_its_successor_both_live():
    """The coordinator loses the link to either one in turn.  Both train; each step has one gradient a rank, and in the
    end the successor has the rank."""
    with Wires(3, owners=1) as c:
        first, second = c.relays
        other, old = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train([other, old], 2)
        first.cut()
        heir, told = heir_of(c, [0, 2], 1)
        assert told["version"] == 2, told
        train([other, heir], 1, patient=True)
        second.cut()
        first.mend()
        train([other, old], 1, patient=True)
        second.mend()
        train([other, heir], 1, patient=True)
        old.refused("ERANK", "fetch", "incarnation", group=1)
        as_undisturbed(c, [0, 2], 5)


@case
def lower_incarnations_are_refused():
    with Cluster(2) as c:
        c.ranks("job", LAYOUT, [0, 1], incarnation=2, **NEEDS)
        for incarnation in (0, 1, 2):
            a = c.rank("job", LAYOUT, [0, 1], 1, incarnation=incarnation, **NEEDS)
            a.finish(), a.finish()
            expect(a.finish(), "ERANK", "rank 1")


@case
def on_lost_rank_fail():
    """Ranks with on_lost="fail" get the error at once, and go on when a successor is there."""
    with Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 0, 1], on_lost="fail", timeout_ms=60000 * SLOW, **NEEDS)
        *rest, victim = ranks
        for a in rest:
            a.start("step", sets=SETS)
        begun = time.monotonic()
        victim.kill()
        for a in rest:
            expect(a.finish(), "ELOSTRANK", "rank 2")
        assert time.monotonic() - begun < 30 * SLOW, "they waited for a deadline"
        heir, _ = heir_of(c, [0, 0, 1], 2, on_lost="fail")
        for a in rest:
            until(lambda a=a: a.ask("step", sets=SETS)["status"] == "EABORTED", what="the next attempt")
        train([*rest, heir], 2)


@case
def deadline_names_the_lost_rank():
    with Cluster(2) as c:
        one, two, victim = c.ranks("job", LAYOUT, [0, 0, 1], timeout_ms=2000 * WAIT, **NEEDS)
        victim.kill()
        go_to([one, two], "pushed", 0)
        for rank, a in enumerate((one, two)):
            start_step(a, rank, 1)
        for d in c.daemons:
            until(lambda d=d: any("rank 2" in w["for"] for w in d.job("job")["waiting"]), what="its name in status")
        for a in (one, two):
            reply = a.finish()
            assert reply["status"] in ("EDEADLINE", "ELOSTRANK") and "rank 2" in reply["text"], reply
        heir, _ = heir_of(c, [0, 0, 1], 2)
        go_to([heir], "pushed", 0)
        all_step([one, two, heir], 1)


# ---- the world size changes ---------------------------------------------------------------------------

def grown(disturb):
    """Checksum after steps of two ranks, then three, then one; disturb: ranks die and daemons restart in between."""
    with Cluster(2) as c:
        version = 0
        for placement in ([0, 1], [0, 1, 1], [1]):
            ranks = c.ranks("job", LAYOUT, placement, **NEEDS)
            assert ranks[0].do("version")["version"] == version
            for a in ranks:
                a.start("train", steps=3, **{**TRAIN, "keep": False})
            version = finish_all(ranks)[0]["version"]
            for a in ranks:
                if not disturb:
                    a.do("close")
                a.end()
            for d in c.daemons:
                until(lambda d=d: not d.job("job")["sessions"], what="the sessions' end")
            if disturb:
                for d in c.daemons:
                    d.restart()
                c.wait_up()
        return c.checksum("job")


@case
def world_size_changes():
    """The world size changes between runs, with the same result whether ranks left or died and daemons restarted."""
    told = grown(False)
    assert told["version"] == 9 and grown(True) == told


@case
def world_size_of_a_running_job():
    """Ranks of another world size wait until the old ranks have left; the error names the rank that they wait for."""
    with Cluster(2) as c:
        old = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(old, 2)
        old[1].end()
        impatient = c.rank("job", LAYOUT, [0, 1, 1], 2, timeout_ms=2000 * WAIT, **NEEDS)
        impatient.finish(), impatient.finish()
        expect(impatient.finish(), "EDEADLINE", "rank 0 of 2", "to leave")
        c.dismiss(impatient)
        new = [c.rank("job", LAYOUT, [0, 1, 1], rank, **NEEDS) for rank in range(3)]
        assert not any(a.ready() and len(a.asked) == 1 for a in new)
        old[0].do("close")
        for a in new:
            while a.asked:
                a.good(a.finish())
            assert a.do("version")["version"] == 2
        for a in new:
            a.start("train", steps=2, **{**TRAIN, "keep": False})
        assert {r["version"] for r in finish_all(new)} == {4}


@case
def job_dropped_while_its_trainers_are_stopped():
    """Trainers whose job was dropped meanwhile get an error, and create no new job."""
    with Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], timeout_ms=10000 * SLOW, **NEEDS)
        train(ranks, 2)
        for a in ranks:
            a.stop()
        for d in c.daemons:
            d.restart()
        c.wait_up()
        c[0].ctl("drop", "job")
        for a in ranks:
            a.start("fetch", group=0)
            a.go_on()
        for a in ranks:
            expect(a.finish(), "ENOJOB")
        assert all(d.status()["jobs"] == [] for d in c.daemons)


# ---- nothing is left --------------------------------------------------------------------------------

def sizes(c, actors):
    pids = [d.process.pid for d in c.daemons] + [a.pid for a in actors]
    return [(len(os.listdir(f"/proc/{p}/fd")), mappings(p), resident(p)) for p in pids]


@case
def attach_given_up():
    """An attach that timed out while the coordinator was away creates no job when the coordinator is back."""
    with Cluster(2) as c:
        away = c.coordinator("job")
        here = 1 - c.daemons.index(away)
        away.kill()
        until(lambda: not any(p["up"] for p in c[here].status()["peers"] if not p["self"]), what="the end of the link")
        a = c.actor(here)
        a.do("connect", job="job", rank=0, world=1, timeout_ms=500)
        a.do("layout", groups=LAYOUT)
        a.refused("EDEADLINE", "attach", away.name, **NEEDS)
        away.start()
        c.wait_up()
        for _ in range(50):  # long enough for a job to be made
            c[here].ctl("ping")
        assert not any(d.status()["jobs"] for d in c.daemons), "the timed-out attach created a job"
        c.ranks("job", LAYOUT, [here], **NEEDS)


def come_and_go(c, actors, count):
    """Sessions of ranks and of observers come and go, some without bye."""
    each = count // 4
    for a in actors:
        a.start("churn", count=each, job=f"churn{actors.index(a)}", rank=0, world=1, **NEEDS)
    for i in range(each * 2):
        raw = wire.Raw(c[i % 2].socket)
        raw.hello("other", i % 2, 2, local=1)
        if i % 8 == 0:
            raw.send(wire.request(raw.seq + 1, "attach", {1: wire.layout_message(small_layout(blocks=1)), 2: 1, 3: 1,
                                                          4: 1, 5: 1}))
        raw.close()
    finish_all(actors)


@case
def connects_and_disconnects():
    """Ten thousand connections leave no memory, mapping or descriptor in daemons and clients."""
    count = 10000 if SLOW == 1 else 2000
    with Cluster(2) as c:
        c.ranks("keep", small_layout(blocks=1), [0, 1], **NEEDS)
        actors = [c.actor(i) for i in range(2)]
        for a in actors:
            a.do("layout", groups=small_layout(blocks=1))
        come_and_go(c, actors, count // 10)
        before = sizes(c, actors)
        come_and_go(c, actors, count)

        def back():
            return all(now[0] <= was[0] and now[1] <= was[1] for now, was in zip(sizes(c, actors), before))
        until(back, what=f"return from {sizes(c, actors)} to {before}")
        if SLOW == 1:
            after = sizes(c, actors)
            assert all(now[2] <= was[2] + 2048 for now, was in zip(after, before)), f"{before} became {after}"


if __name__ == "__main__":
    main()
