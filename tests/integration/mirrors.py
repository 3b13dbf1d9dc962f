#!/usr/bin/env python3
"""mirror = 1: a second node holds a copy of every owner's shards, and fills the first again when that loses them."""
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SETS, Cluster, crash_points, finish_all, until  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402
from moments import (LAYOUT, MOMENTS, NEEDS, STEPS, TRAIN, all_aborted, as_undisturbed, go_to, lose, start_step, train,  # noqa: E402
                     victims)

PLACEMENTS = ([0, 1], [0, 1, 1], [0, 1, 2], [0, 0, 2])


def placed(placements):
    return cases_of(placements, "{}")


@placed(PLACEMENTS)
def same_bits(placement):
    """Mirrors equal their owners' shards, and both equal the states of a job without mirrors."""
    with Cluster(max(placement) + 1, mirror=1) as c:
        train(c.ranks("job", LAYOUT, placement, **NEEDS), STEPS)
        assert "mirrors" in c.checksum("job")
        as_undisturbed(c, placement)


def needs_crash_points():
    if not crash_points():
        raise Skip("the daemon was built without crash points")


@cases_of([(m, w, "n0 n1") for m in (*MOMENTS, "voting") for w in ("coordinator", "other")] +
          [("pushed", w, "n0*2 n1*3") for w in ("coordinator", "other")], "{0[0]}_{0[1]}_{0[2]}")
def node_lost(what):
    """A node loses all its states in the middle of a step, and gets them back from the other node."""
    moment, who, owners = what
    with Cluster(2, mirror=1, owners=owners) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        go_to(ranks, "pushed" if moment == "voting" else moment, 2)
        if moment == "voting":
            start_step(ranks[0], 0, 3)
        for d in victims(c, who):
            lose(d)
        if moment != "idle":
            all_aborted(ranks, 2)
        train(ranks, STEPS - 2, patient=True)
        as_undisturbed(c, [0, 1])


@cases_of(("coordinator", "other"), "{}")
def idle_job_is_filled_again(who):
    """A node gets the states of an idle job back as soon as it is up."""
    with Cluster(2, mirror=1) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, STEPS)
        for a in ranks:
            c.dismiss(a)
        d = victims(c, who)[0]
        lose(d)
        until(lambda: d.ctl_run("status").returncode == 0, what=f"daemon {d.name}")
        until(lambda: len([f for f in d.state_files() if f.endswith(".state")]) == 2, what="the lost state files")
        until(lambda: d.job("job") and d.job("job")["move"] is None, what="the end of the fill")
        as_undisturbed(c, [0, 1])


@cases_of(("coordinator", "other"), "{}")
def lost_after_a_put(who):
    """The coordinator learned of the states before clients put values into them."""
    with Cluster(2, mirror=1) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        for name in ("export", "import"):
            c[0].ctl(name, "job", f"{c.directory}/job.safetensors")
        train(ranks, 1)
        for a in ranks:
            c.dismiss(a)
        d = victims(c, who)[0]
        lose(d)
        until(lambda: all(o.ctl_run("status").returncode == 0 and o.peers_up() for o in c.daemons), what="the links")
        until(lambda: "mirrors" in (d.query("checksum", "job")[0] or {}),
              what="the end of the fill")
        told = c.checksum("job")
        assert told["mirrors"] == told["planes"], told


@cases_of(("fill.drafted", "fill.filled", "restore.named"), "{}")
def killed_while_it_is_filled(point):
    """A half-filled state is never used: the fill begins again, or it was complete."""
    needs_crash_points()
    with Cluster(2, mirror=1) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        lose(c[1], crash=point)
        until(lambda: not c[1].alive(), what=f"the kill at {point}")
        c[1].start()
        train(ranks, STEPS - 2, patient=True)
        as_undisturbed(c, [0, 1])


@case
def source_killed_while_it_sends():
    """The source is the only node with all states; it restarts with them."""
    needs_crash_points()
    with Cluster(2, start=False, mirror=1) as c:
        c[0].start(crash="fill.sending:3")
        c[1].start()
        c.wait_up()
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        lose(c[1])
        until(lambda: not c[0].alive(), what="the kill")
        c[0].start()
        train(ranks, STEPS - 2, patient=True)
        as_undisturbed(c, [0, 1])


@cases_of((None, "decision.heard", "update.begin"), "{}")
def put_while_a_mirror_is_away(point):
    """The put fails with an error. The mirror has missed the put, and perhaps the step before; it is filled again
    before the next step."""
    if point:
        needs_crash_points()
    with Cluster(2, start=False, mirror=1) as c:
        here = c.coordinator("job")
        placement = [c.daemons.index(here)]
        away = c[1 - placement[0]]
        here.start()
        away.start(crash=point)
        c.wait_up()
        ranks = c.ranks("job", LAYOUT, placement, **NEEDS)
        train(ranks, 1)
        if point:
            until(lambda: not away.alive(), what=f"the kill at {point}")
        else:
            away.kill()
        until(lambda: not any(p["up"] for p in here.status()["peers"] if not p["self"]), what="the end of the link")
        ranks[0].refused("EPEER", "put", tensor=0, plane="master", first=0, values=[1, 2, 3, 4])
        away.start()
        train(ranks, 1, patient=True)
        told = c.checksum("job")
        assert told["mirrors"] == told["planes"], told


@case
def nodes_lost_under_training():
    """Nodes are lost one after the other, each after the previous one has its states again."""
    with Cluster(3, mirror=1) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1, 2], **NEEDS)
        for a in ranks:
            a.start("train", steps=100, patient=True, **TRAIN)
        for i in range(6):
            lose(c[i % 3])
            known = c[(i + 1) % 3].job("job")["version"]  # a step with all votes is carried out without the lost node
            c.wait_up()
            until(lambda: c[(i + 1) % 3].job("job")["version"] > known + 1 or all(a.ready() for a in ranks), seconds=15, what="a step")
        finish_all(ranks)
        as_undisturbed(c, [0, 1, 2], 100)


if __name__ == "__main__":
    main()
