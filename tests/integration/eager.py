#!/usr/bin/env python3
"""Eager groups are updated as soon as their gradients are complete, ahead of the decision. The bits are those of a job
without eager groups, whatever becomes of the step: committed, skipped, aborted, killed."""
import os
import re
import signal
import sys
from collections import Counter

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import Place  # noqa: E402
from cluster import (SETS, SLOW, Cluster, crash_points, end_process, expect, finish_all, group, tensor,  # noqa: E402
                     until)
from fake_gpu import plugin  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402

N = 4  # groups
STILL = [0, 0.9, 0.99, 1e-8, 0]
NEEDS = {"hold": N, "push": -1}
TRAIN = {"sets": SETS, "micro_batches": 2, "seed": 5, "pull": 0}


def layout(eager=True, dtype="fp32", names="abcd", **more):
    """Groups with odd sizes, a frozen tensor and two hyperparameter sets."""
    return [group(g, tensor(f"{g}.w", 181, 397), tensor(f"{g}.f", 130, frozen=True), tensor(f"{g}.b", 129, set=1),
                  dtype=dtype, eager=eager, **more) for g in names]


def ahead(daemon):
    return re.findall(r"has updated ahead group '(\w)'", daemon.log())


def put_back(daemon):
    return re.findall(r"has put back group '(\w)'", daemon.log())


def push(actor, g, step=0, **more):
    actor.do("grad", group=g, step=step, **more)
    actor.do("push", group=g)


def say(ranks, **more):
    for a in ranks:
        a.do("ahead", **{"sets": SETS, **more})


def step(ranks, **more):
    for a in ranks:
        a.start("step", **{"sets": SETS, **more})
    return finish_all(ranks)


def all_ahead(c, groups, before=0):
    for d in c.daemons:
        until(lambda d=d: sorted(ahead(d)[before:]) == sorted(groups), what=f"updates of {groups} ahead on {d.name}")


def one_step(ranks, number, said=True):
    if said:
        say(ranks)
    for g in reversed(range(N)):
        for a in ranks:
            push(a, g, number)
    return step(ranks)


known = {}


def outcome(steps, placement=(0, 1), dtype="fp32", nodes=2):
    """Checksums after so many calls of one_step() in a job without eager groups."""
    key = steps, placement, dtype, nodes
    if key not in known:
        with Cluster(nodes) as c:
            ranks = c.ranks("j", layout(False, dtype), list(placement), **NEEDS)
            for n in range(steps):
                one_step(ranks, n, False)
            known[key] = c.checksum("j")["planes"]
    return known[key]


def ended_as_undisturbed(c, steps, *key, **more):
    told = c.checksum("j")
    assert told["version"] == steps, told
    assert told.get("mirrors", told["planes"]) == told["planes"], told
    assert told["planes"] == outcome(steps, *key, **more), told


# ---- the same bits -----------------------------------------------------------------------------

KINDS = {"one_node": (1, [0, 0], {}), "two_nodes": (2, [0, 1], {}), "mirror": (2, [0, 1], {"mirror": 1}),
         "devices": (2, [0, 1, 1], {"owners": "n0*2 n1*3"}), "others_hold": (3, [2, 2], {"owners": 2})}


@cases_of([(k, dtype) for k in KINDS for dtype in ("fp32", "bf16")], "{0[0]}_{0[1]}")
def eager_training_has_the_bits_of_plain_training(what):
    """All that ranks fetch in every step, and the planes at the end."""
    kind, dtype = what
    nodes, placement, options = KINDS[kind]
    told = []
    for eager in (False, True):
        with Cluster(nodes, log_level="debug", **options) as c:
            ranks = c.ranks("j", layout(eager, dtype), placement, grad=dtype, **NEEDS)
            for a in ranks:
                a.start("train", steps=5, ahead=eager, **TRAIN)
            hashes = [r["hash"] for r in finish_all(ranks)]
            told.append((hashes, c.checksum("j")["planes"]))
            assert bool(ahead(c[0])) == eager, ahead(c[0])
    assert told[0] == told[1], told


@cases_of([1, 2], "{}_nodes")
def every_group_but_the_last_is_updated_before_its_gradient_comes(nodes):
    """Backward order; the last gradient is whole only with the last push of the last rank."""
    placement = list(range(nodes)) * (2 // nodes)
    with Cluster(nodes, log_level="debug") as c:
        ranks = c.ranks("j", layout(), placement, **NEEDS)
        say(ranks)
        for g in (3, 2, 1):
            for a in ranks:
                push(a, g)
        all_ahead(c, "dcb")
        push(ranks[0], 0)
        say(ranks[1:])
        assert not any("a" in ahead(d) for d in c.daemons)
        push(ranks[1], 0)
        all_ahead(c, "abcd")
        assert all("has updated group" not in d.log() for d in c.daemons)
        step(ranks)
        ended_as_undisturbed_of_one(c, ranks, nodes, placement)


def ended_as_undisturbed_of_one(c, ranks, nodes, placement):
    ended_as_undisturbed(c, 1, tuple(placement), nodes=nodes)


@case
def without_a_word_ahead_groups_wait_for_the_decision():
    with Cluster(2, log_level="debug") as c:
        ranks = c.ranks("j", layout(), [0, 1], **NEEDS)
        one_step(ranks, 0, said=False)
        ended_as_undisturbed(c, 1)
        assert not ahead(c[0]) and not ahead(c[1])


@case
def groups_that_are_not_eager_wait_for_the_decision():
    mixed = [g for name in "abcd" for g in layout(name in "bd", names=name)]
    with Cluster(2, log_level="debug") as c:
        ranks = c.ranks("j", mixed, [0, 1], **NEEDS)
        one_step(ranks, 0)
        ended_as_undisturbed(c, 1)
        assert {*ahead(c[0])} <= {*"bd"}, ahead(c[0])


@cases_of([(n, dtype) for n in (1, 2) for dtype in ("fp32", "bf16")], "{0[0]}_nodes_{0[1]}")
def a_group_is_served_as_before_until_the_decision(what):
    """A rank that fetches the group again, or a successor, computes with the version of the step."""
    nodes, dtype = what
    with Cluster(nodes, log_level="debug") as c:
        ranks = c.ranks("j", layout(dtype=dtype), [0, nodes - 1], grad=dtype, hold=1, push=-1)

        def views():
            hashes = []
            for g in range(N):
                for a in ranks:
                    a.do("fetch", group=g)
                    hashes.append(a.do("view", group=g)["hash"])
                    a.do("release", group=g)
            return hashes
        first = views()
        say(ranks)
        for g in range(N):
            for a in ranks:
                push(a, g)
        all_ahead(c, "abcd")
        assert views() == first
        step(ranks)
        assert not {*views()} & {*first}


# ---- steps that end otherwise -------------------------------------------------------------------------


@cases_of([1, 2], "{}_nodes")
def a_skipped_step_is_undone(nodes):
    """The last gradient is not finite; the others were updated ahead."""
    with Cluster(nodes, log_level="debug") as c:
        ranks = c.ranks("j", layout(), [0, nodes - 1], **NEEDS)
        before = c.checksum("j")
        say(ranks)
        for g in (3, 2, 1):
            for a in ranks:
                push(a, g)
        all_ahead(c, "bcd")
        for a in ranks:
            push(a, 0, bad="nan")
        assert {r["skipped"] for r in step(ranks)} == {True}
        assert c.checksum("j") == before
        for d in c.daemons:
            assert {*"bcd"} <= {*put_back(d)}, put_back(d)
        for n in range(2):
            one_step(ranks, n)
        ended_as_undisturbed(c, 2, (0, nodes - 1), nodes=nodes)


@case
def gradients_that_ranks_give_up_are_forgotten():
    """By a step without sets, which updates nothing."""
    with Cluster(2, log_level="debug") as c:
        ranks = c.ranks("j", layout(), [0, 1], **NEEDS)
        before = c.checksum("j")
        at_half(c, ranks)
        assert {r["skipped"] for r in step(ranks, sets=[])} == {True}
        assert c.checksum("j") == before
        one_step(ranks, 0)
        ended_as_undisturbed(c, 1)


@case
def a_tensor_without_a_gradient_stays_as_it_is():
    told = []
    for eager in (False, True):
        with Cluster(2) as c:
            ranks = c.ranks("j", layout(eager), [0, 1], **NEEDS)
            for n, mask in enumerate([[1, 0, 0], [0, 0, 1], [1, 0, 1]]):
                if eager:
                    say(ranks)
                for a in ranks:
                    a.do("grad", group=2, step=n)
                    a.do("push", group=2, present=mask)
                step(ranks)
            told.append(c.checksum("j")["planes"])
    assert told[0] == told[1]


def at_half(c, ranks, number=0):
    """Two groups are updated ahead, of a third there is one rank's gradient."""
    c.checksum("j")  # the step before is over everywhere
    before = [Counter(ahead(d)) for d in c.daemons]
    say(ranks)
    for g in (3, 2):
        for a in ranks:
            push(a, g, number)
    push(ranks[0], 1, number)
    for d, had in zip(c.daemons, before):
        copies = 1 + int(d.options.get("mirror", 0))
        until(lambda d=d, had=had, n=copies: Counter(ahead(d)) - had == Counter("cd" * n), what="updates ahead")


@cases_of([(w, m) for w in ("coordinator", "other", "both") for m in (0, 1)], "{0[0]}_{0[1]}_mirrors")
def daemon_killed_while_groups_are_ahead(what):
    who, mirror = what
    with Cluster(2, log_level="debug", mirror=mirror) as c:
        ranks = c.ranks("j", layout(), [0, 1], **NEEDS)
        one_step(ranks, 0)
        at_half(c, ranks, 1)
        coordinator = c.coordinator("j")
        victims = [d for d in c.daemons if who == "both" or (d is coordinator) == (who == "coordinator")]
        for d in victims:
            d.kill()
        for d in victims:
            d.start()
        aborted(ranks)
        for n in (1, 2):
            one_step(ranks, n)
        ended_as_undisturbed(c, 3)


def aborted(ranks):
    for a in ranks:
        a.start("norm")
    for a in ranks:
        expect(a.finish(), "EABORTED")


@cases_of(["killed", "killed_and_moved"])
def rank_killed_while_groups_are_ahead(how):
    """A successor on the same node owes only what is missing; on another node the attempt is void, and what is ahead
    is put back."""
    moved = how != "killed"
    with Cluster(2, log_level="debug") as c:
        ranks = c.ranks("j", layout(), [0, 1], **NEEDS)
        at_half(c, ranks)
        ranks[0].kill()
        c.dismiss(ranks[0])
        heir = c.rank("j", layout(), [1 if moved else 0, 1], 0, incarnation=1, **NEEDS)
        finish_all([heir] * 3)
        ranks[0] = heir
        if moved:
            aborted(ranks[1:])
            one_step(ranks, 0)
            told = c.checksum("j")
            assert told["planes"] == outcome(1, (1, 1)), told
            assert sorted(put_back(c[0])) == ["c", "d"], put_back(c[0])
            return
        say(ranks)
        heir.do("fetch", group=2)
        for g in (1, 0):  # the daemon may not have taken the dead rank's push of group 1; else this one changes nothing
            for a in ranks:
                push(a, g)
        step(ranks)
        ended_as_undisturbed(c, 1)
        assert not put_back(c[0]) + put_back(c[1])


@case
def a_daemon_that_stops_in_order_keeps_no_update_ahead():
    """With one rank stopped the step cannot end, so the stop does not wait for it."""
    with Cluster(1, log_level="debug", drain_ms=200) as c:
        ranks = c.ranks("j", layout(), [0, 0], **NEEDS)
        at_half(c, ranks)
        assert end_process(c[0].process, 15 * SLOW), c[0].log()[-2000:]
        c[0].start()
        aborted(ranks)
        one_step(ranks, 0)
        ended_as_undisturbed(c, 1, (0, 0), nodes=1)


@cases_of(["ahead.kept", "ahead.undone", "coordinator.ahead", "update.torn", "update.valid", "update.begin",
           "update.finish", "vote.recorded"])
def daemon_killed_at(point):
    """Without a sum of the step, with a part of it, or with all of it ahead; or while a reader has it put back."""
    if not crash_points():
        raise Skip("the daemon was built without crash points")
    steps, train = 200 if point == "ahead.undone" else 4, {**TRAIN, "micro_batches": 1, "patient": True}
    with Cluster(2, start=False) as c:
        victim = c.coordinator("j")
        for d in c.daemons:
            d.start(crash=f"{point}:3" if d is victim else None)
        c.wait_up()
        ranks = c.ranks("j", layout(), [0, 1], **NEEDS)
        for a in ranks:
            a.start("train", steps=steps, ahead=True, **train)
        while point == "ahead.undone" and victim.alive() and not ranks[0].ready():
            victim.ctl_run("checksum", "j")
        assert victim.process.wait(60 * SLOW) == -signal.SIGKILL, victim.log()[-1000:]
        victim.start()
        assert {r["version"] for r in finish_all(ranks)} == {steps}
        told = c.checksum("j")["planes"]
    with Cluster(2) as c:
        ranks = c.ranks("j", layout(False), [0, 1], **NEEDS)
        for a in ranks:
            a.start("train", steps=steps, **train)
        finish_all(ranks)
        assert c.checksum("j")["planes"] == told


# ---- readers -----------------------------------------------------------------------------------------

READS = {"get": lambda c, a: a.do("get", tensor=9, plane="exp_avg", count=5)["values"],
         "checksum": lambda c, a: c.checksum("j")["planes"]}


@cases_of([(r, n) for r in READS for n in (1, 2)], "{0[0]}_{0[1]}_nodes")
def a_reader_finds_the_values_before_the_step(what):
    """Updates ahead end for this step, which has the same bits."""
    read, nodes = what
    with Cluster(nodes, log_level="debug") as c:
        ranks = c.ranks("j", layout(), [0, nodes - 1], **NEEDS)
        before = READS[read](c, ranks[0])
        at_half(c, ranks)
        assert READS[read](c, ranks[0]) == before
        push(ranks[1], 1)
        for a in ranks:
            push(a, 0)
        step(ranks)
        assert sum(len(put_back(d)) for d in c.daemons) >= 1
        ended_as_undisturbed(c, 1, (0, nodes - 1), nodes=nodes)
        assert READS[read](c, ranks[0]) != before


@cases_of([0, 16], "{}_mib")
def a_checkpoint_has_the_values_before_the_step(memory):
    """With memory for a copy and without."""
    with Place() as place, Cluster(2, log_level="debug", checkpoint_memory=f"{memory}M") as c:
        ranks = c.ranks("j", layout(), [0, 1], **NEEDS)
        one_step(ranks, 0)
        before = c.checksum("j")["planes"]
        at_half(c, ranks, 1)
        path = c[0].ctl("checkpoint", "j", place)["path"]
        push(ranks[1], 1, 1)
        for a in ranks:
            push(a, 0, 1)
        step(ranks)
        ended_as_undisturbed(c, 2)
        for a in ranks:
            a.do("close")
        c[0].ctl("restore", "j", path)
        assert c.checksum("j")["planes"] == before


@case
def a_lost_node_is_filled_from_its_mirror_while_groups_are_ahead():
    with Cluster(2, log_level="debug", mirror=1) as c:
        ranks = c.ranks("j", layout(), [0, 0], **NEEDS)
        one_step(ranks, 0)
        at_half(c, ranks, 1)
        lost = c[1]
        lost.kill()
        for f in lost.state_files():
            os.remove(f"{lost.options['state_dir']}/{f}")
        lost.start()
        aborted(ranks)
        for n in (1, 2):
            one_step(ranks, n)
        ended_as_undisturbed(c, 3, (0, 0))


# ---- on a GPU ------------------------------------------------------------------------------------------


@cases_of(["commit", "skip", "read"])
def states_on_a_gpu(end):
    """A fake GPU: a daemon that touches its memory by the CPU dies."""
    with Cluster(2, log_level="debug", per_node={0: {"optimizer": "device", "cuda_plugin": plugin()}}) as c:
        ranks = c.ranks("j", layout(dtype="bf16"), [0, 1], grad="fp32", **NEEDS)
        before = c.checksum("j")
        at_half(c, ranks)
        if end == "read":
            assert c.checksum("j") == before
        push(ranks[1], 1)
        for a in ranks:
            push(a, 0, **({"bad": "nan"} if end == "skip" else {}))
        assert {r["skipped"] for r in step(ranks)} == {end == "skip"}
        if end == "skip":
            assert c.checksum("j") == before
            one_step(ranks, 0)
        ended_as_undisturbed(c, 1, dtype="bf16")


# ---- refusals --------------------------------------------------------------------------------------------


@case
def what_cannot_be_known_ahead_is_refused_by_name():
    with Cluster(1) as c:
        a, = c.ranks("j", layout(), [0], **NEEDS)
        a.refused("EINVAL", "ahead", "clip_norm", "eager", sets=SETS, clip=1.0)
        a.refused("EINVAL", "ahead", "loss_scale", sets=SETS, loss_scale=8.0)
        a.refused("EINVAL", "ahead", "growth_interval", sets=SETS, growth_interval=5)
        a.refused("EINVAL", "ahead", "no hyperparameter sets", sets=[])
        one_step([a], 0)
        b, = c.ranks("k", layout(False), [0], **NEEDS)
        b.refused("EINVAL", "ahead", "zero_layout_eager", sets=SETS)


@cases_of([1, 2], "{}_nodes")
def a_step_ends_as_was_said_or_not_at_all(nodes):
    other = [[2e-2, *SETS[0][1:]], SETS[1]]
    with Cluster(nodes) as c:
        ranks = c.ranks("j", layout(), [0, nodes - 1], **NEEDS)
        say(ranks)
        for g in range(N):
            for a in ranks:
                push(a, g)
        for a in ranks:
            a.start("step", sets=other)
        for a in ranks:
            expect(a.finish(), "ECONFLICT", "lr 0.01", "0.02")
        step(ranks)
        ended_as_undisturbed(c, 1, (0, nodes - 1), nodes=nodes)


@case
def all_ranks_choose_the_same_groups():
    with Cluster(1) as c:
        a = c.rank("j", layout(), [0, 0], 0, **NEEDS)
        b = c.rank("j", layout(False), [0, 0], 1, **NEEDS)
        for r in (a, b):
            finish_all([r] * 2)
            expect(r.finish(), "ELAYOUT", "group 0 'a'", "eager")


@case
def a_job_goes_on_under_the_same_choice_only():
    with Cluster(1) as c:
        a, = c.ranks("j", layout(), [0], **NEEDS)
        one_step([a], 0)
        a.kill()
        b = c.rank("j", layout(False), [0], 0, incarnation=1, **NEEDS)
        finish_all([b] * 2)
        expect(b.finish(), "ELAYOUT", "eager")


@case
def old_values_are_counted():
    """Three planes of what is trainable, and an fp32 group is served beside its master weights."""
    with Cluster(1) as c:
        for name, eager in (("j", True), ("k", False)):
            c.ranks(name, layout(eager), [0], **NEEDS)
        bytes_of = {name: c[0].ctl("shards", name)["jobs"][0]["groups"][0]["shards"][0]["bytes"] for name in "jk"}
        more = bytes_of["j"]
        assert more["old"] == 3 * more["grad"] and more["serve"] == more["master"], bytes_of
        assert bytes_of["k"]["serve"] == 0 and "old" not in bytes_of["k"], bytes_of


if __name__ == "__main__":
    main()
