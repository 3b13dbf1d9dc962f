#!/usr/bin/env python3
"""The owners change while jobs train: shards move, trainers see a pause, and the bits are those of a
job whose owners never changed."""
import json
import os
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import REPLY_S, Cluster, Tools, crash_points, finish_all, until  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402
from moments import (LAYOUT, NEEDS, STEPS, TRAIN, Endless, all_aborted, all_step, as_undisturbed, go_to,  # noqa: E402
                     start_step, train)


def can_vote(c):
    for d in c.daemons:
        until(lambda d=d: d.ctl("members")["voter"], what=f"the vote of {d.name}")


def epoch(daemon):
    """It may be starting anew just now."""
    r = daemon.ctl_run("--json", "members")
    return json.loads(r.stdout)["epoch"] if r.returncode == 0 else -1


def owners(daemon):
    """It may be starting anew just now."""
    r = daemon.ctl_run("--json", "jobs")
    jobs = json.loads(r.stdout)["jobs"] if r.returncode == 0 else []
    return next((job["owners"] for job in jobs if job["job"] == "job"), None)


def lies_on(c, names, nodes=None):
    """All states are in their place, and no other is left anywhere."""
    for d in nodes or c.daemons:
        until(lambda d=d: owners(d) == names, what=f"{names} as owners on {d.name}")
    for d in c.daemons:
        if d.alive():
            until(lambda d=d: bool([f for f in d.state_files() if f.endswith(".state")]) == (d.name in names),
                  what=f"the state files of {d.name}")
            until(lambda d=d: d.ctl_run("checksum", "job").returncode == 0, what=f"all nodes' answers to {d.name}")


CHANGES = {"add": (2, "add-node", "n2", ["n0", "n2", "n1"]), "remove": (3, "remove-node", "n1", ["n0", "n2"]),
           "remove_first": (2, "remove-node", "n0", ["n1"])}
DEVICES = {"add_devices": ("n0*2 n1", "add-node", "n2", ["n0", "n0", "n2", "n1"]),
           "remove_devices": ("n0*2 n1*3 n2*2", "remove-node", "n1", ["n0", "n0", "n2", "n2"])}


@cases_of([(c, m, mirror) for c in CHANGES for m in ("idle", "forward", "pushed") for mirror in (0, 1)] +
          [(c, "pushed", mirror) for c in DEVICES for mirror in (0, 1)], "{0[0]}_{0[1]}_mirror_{0[2]}")
def changed(what):
    """Between two steps, and at the end of one that has begun."""
    (first, command, node, names), moment, mirror = {**CHANGES, **DEVICES}[what[0]], what[1], what[2]
    with Cluster(3, owners=first, mirror=mirror) as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        go_to(ranks, moment, 2)
        c[0].ctl("--no-wait", command, node)
        if moment == "pushed":
            all_step(ranks, 3)
        elif moment != "idle":
            all_aborted(ranks, 2)
        for a in ranks:
            a.start("train", steps=STEPS - 2 - (moment == "pushed"), patient=True, **{**TRAIN, "keep": False})
        finish_all(ranks)
        lies_on(c, names)
        as_undisturbed(c, [0, 1])


def chunk(daemon):
    """That of its state files (struct file_header); 0: it has none."""
    chunks = set()
    for name in daemon.state_files():
        if name.endswith(".state"):
            with open(f"{daemon.options['state_dir']}/{name}", "rb") as f:
                chunks.add(struct.unpack("=8s6I", f.read(32))[4])
    assert len(chunks) <= 1, f"{daemon.name}: {chunks}"
    return chunks.pop() if chunks else 0


@case
def nodes_of_different_chunks():
    """They share a job and mirror each other.  A state file keeps its chunk when its daemon comes back with another
    one, killed in an update too; a shard that moves takes the chunk of the node where it is made."""
    with Cluster(3, owners=2, mirror=1, per_node={i: {"chunk": n} for i, n in enumerate((128, 640, 384))}) as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        assert [chunk(d) for d in c.daemons] == [128, 640, 0]
        go_to(ranks, "pushed", 2)
        for rank, a in enumerate(ranks):
            start_step(a, rank, 3)
        until(lambda: any(a.ready() for a in ranks), what="the decision")
        for d, n in zip(c.daemons, (1280, 256, 512)):
            d.kill()
            d.options["chunk"] = n
        for d in c.daemons:
            d.start()
        c.wait_up()
        for a in ranks:
            reply = a.finish()
            assert reply["status"] in ("OK", "EABORTED") and a.ask("version")["version"] == 3, reply
        assert [chunk(d) for d in c.daemons] == [128, 640, 0]
        can_vote(c)
        c[0].change_owners("add-node", "n2")
        for a in ranks:
            a.start("train", steps=STEPS - 3, patient=True, **{**TRAIN, "keep": False})
        finish_all(ranks)
        lies_on(c, ["n0", "n2", "n1"])
        assert [chunk(d) for d in c.daemons] == [1280, 256, 512]
        as_undisturbed(c, [0, 1])


def asks(daemon, *words):
    """zeroctl, not waited for."""
    return subprocess.Popen([Tools.zeroctl, "--socket", daemon.socket, *words], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def move_of(daemon):
    """What the node tells of the job's move; None if it does not move, or while the daemon starts anew."""
    r = daemon.ctl_run("--json", "status")
    jobs = json.loads(r.stdout)["jobs"] if r.returncode == 0 else []
    return next((job["move"] for job in jobs if job["state"] == "moving"), None)


@case
def followed():
    """zeroctl comes back when all is in its place; until then it is said how far that is, and who is waited for."""
    with Cluster(3) as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 2], **NEEDS)
        train(ranks, STEPS)
        for a in ranks:
            c.dismiss(a)
        c[1].kill()
        r = c[0].ctl_run("--timeout", "2", "remove-node", "n1")
        assert r.returncode == 1 and "nothing has moved" in r.stderr and "n1" in r.stderr, r
        for d in (c[0], c[2]):
            until(lambda d=d: move_of(d) and move_of(d)["total"] > 0, what=f"the move as {d.name} tells it")
            assert "from the owners of epoch 0 to those of epoch 1" in d.ctl_run("status").stdout or not move_of(d)
        c[1].start()

        def followed_back():
            r = c[2].ctl_run("add-node", "n1")
            assert r.returncode == 0 or "is not reachable from here" in r.stderr, r
            return r.returncode == 0
        until(followed_back, what="the link with n1, and all in its place")
        for d in c.daemons:
            until(lambda d=d: d.job("job")["move"] is None, what=f"the end of the move on {d.name}")
            assert len(d.job("job")["owners"]) == 3, d.job("job")
            assert len([f for f in d.state_files() if f.endswith(".state")]) == 1, d.state_files()
        as_undisturbed(c, [0, 2])


@case
def slow_node_is_asked_first():
    """What a removed node has may be newer than what the others have: they do not go by that before it has told."""
    with Cluster(3, mirror=1, per_node={2: {"delay_ms": 300}}) as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        waited = "node n2 has not said what it has of the job: it is waited for"
        for _ in range(5):  # whether its link stands before the others are ready is chance
            c[0].ctl("remove-node", "n2")
            if waited in c[0].log() + c[1].log():
                break
            c[0].ctl("add-node", "n2")
        else:
            raise Skip("the link came too late each time")
        assert "going on without it" not in c[0].log() + c[1].log()
        train(ranks, STEPS - 2, patient=True)
        lies_on(c, ["n0", "n1"])
        as_undisturbed(c, [0, 1])


@case
def taken_over():
    """Of a node that is dead for good its mirror has all; when it comes back after all it has no say."""
    with Cluster(2, mirror=1) as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 0], **NEEDS)
        train(ranks, 2)
        c[1].kill()
        c[0].ctl("takeover", "--node-is-dead", "n1")
        train(ranks, 2, patient=True)
        c[1].start()
        c.wait_up()
        train(ranks, STEPS - 4, patient=True)
        lies_on(c, ["n0"])
        as_undisturbed(c, [0, 0])


@case
def by_majority_without_one():
    """Two of three take the place of the third."""
    with Cluster(3, mirror=1) as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 0], **NEEDS)
        train(ranks, 2)
        c[1].kill()
        c[0].ctl("remove-node", "n1")
        train(ranks, STEPS - 2, patient=True)
        lies_on(c, ["n0", "n2"], [c[0], c[2]])


@case
def what_one_node_went_on_with_is_waited_for():
    """Those left have the job as it was before; it has gone on with a node that is away, by a list between."""
    with Cluster(3, owners=2, mirror=1) as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [2, 2], **NEEDS)
        train(ranks, 2)
        c[1].kill()
        c[2].ctl("remove-node", "n1")
        train(ranks, 2, patient=True)
        c[0].kill()
        c[1].start()
        comes(c, 1)
        c[1].change_owners("add-node", "n1")
        comes(c, 2)
        c[1].change_owners("remove-node", "n0")
        until(lambda: "node n0 may have steps of it that no other node has" in c[1].log(), what="the wait for n0")
        c[0].start()
        train(ranks, STEPS - 4, patient=True)
        lies_on(c, ["n1"])
        as_undisturbed(c, [2, 2])


def comes(c, number):
    """On all nodes that are there, and these can choose the next one."""
    for d in c.daemons:
        if d.alive():
            until(lambda d=d: epoch(d) == number and d.ctl("members")["majority"], what=f"epoch {number} on {d.name}")


def asked_for_elsewhere(c):
    """n0 was the only owner when it was lost, and is none any more; the job is asked for by others."""
    c[0].kill()
    c[1].change_owners("add-node", "n1")
    comes(c, 1)
    c[1].change_owners("remove-node", "n0")
    comes(c, 2)
    heirs = [c.caller("job", LAYOUT, [1, 2], r, incarnation=1) for r in range(2)]
    for a in heirs:
        finish_all([a]), finish_all([a])
    for a in heirs:
        a.start("attach", **NEEDS)
    until(lambda: "it may be on node n0" in c[1].log(), what="the wait for n0")
    return heirs


@case
def job_of_a_node_that_is_away_is_not_made_anew():
    """Of those left none has any of it, as of a job that there has never been."""
    with Cluster(3, owners=1) as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [1, 2], **NEEDS)
        train(ranks, 2)
        for a in ranks:
            c.dismiss(a)
        heirs = asked_for_elsewhere(c)
        c[0].start()
        finish_all(heirs)
        train(heirs, STEPS - 2, patient=True)
        lies_on(c, ["n1"])
        as_undisturbed(c, [1, 2])


@case
def job_is_made_without_those_that_are_declared_dead():
    with Cluster(3, owners=1) as c:
        can_vote(c)
        heirs = asked_for_elsewhere(c)
        c[1].ctl("takeover", "--node-is-dead", "n0")
        finish_all(heirs)
        train(heirs, STEPS, patient=True)
        assert "nothing to take over" in c[1].ctl_run("takeover", "--node-is-dead", "n0").stderr
        c[0].start()
        c.wait_up()
        lies_on(c, ["n1"])
        as_undisturbed(c, [1, 2])


def fails(c, daemon, *words):
    """A change that is taken back; zeroctl comes back when that is done."""
    r = daemon.ctl_run(*words)
    assert r.returncode == 1 and "the move was taken back" in r.stderr, r
    return r.stderr


@cases_of((0, 1), "mirror_{}")
def taken_back(mirror):
    """A node that has no room for its part stops the move: the list before comes back by itself, in a new epoch."""
    with Cluster(3, owners=2, mirror=mirror, per_node={2: {"memory_limit": 4096}}) as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        for a in ranks:
            a.start("train", steps=STEPS - 2, patient=True, **{**TRAIN, "keep": False})
        why = fails(c, c[0], "add-node", "n2")
        assert "node n2" in why and "job" in why and "memory_limit" in why, why
        finish_all(ranks)
        v = c[0].ctl("members")
        assert (v["epoch"], v["owners"]) == (2, ["n0", "n1"]), v
        lies_on(c, ["n0", "n1"])
        as_undisturbed(c, [0, 1])


@case
def idle_job_is_taken_back():
    """Asked of the node that has no room; what was done already, of the others too, comes to nothing."""
    with Cluster(3, owners=2, per_node={2: {"memory_limit": 4096}}) as c:
        can_vote(c)
        for name in ("job", "another", "third"):
            ranks = c.ranks(name, LAYOUT, [0, 1], **NEEDS)
            train(ranks, STEPS)
            for a in ranks:
                c.dismiss(a)
        sums = [c.checksum(name) for name in ("job", "another", "third")]
        fails(c, c[2], "add-node", "n2")
        assert c[2].ctl("members")["owners"] == ["n0", "n1"]
        lies_on(c, ["n0", "n1"])
        assert sums == [c.checksum(name) for name in ("job", "another", "third")]


@case
def taken_back_where_room_is_short():
    """What was filled for the move makes room for what comes back: there is room for two states, not for three."""
    with Cluster(3, owners=2, per_node={2: {"memory_limit": 4096}}) as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, STEPS)
        for a in ranks:
            c.dismiss(a)
        for d in c.daemons[:2]:
            d.options["memory_limit"] = int(2.2 * d.status()["memory"]["state_used"])
            d.restart()
        c.wait_up()
        fails(c, c[0], "add-node", "n2")
        lies_on(c, ["n0", "n1"])
        as_undisturbed(c, [0, 1])


@cases_of(("fill.drafted", "fill.filled", "restore.named", "move.whole", "move.placed", "move.dropped"), "{}")
def killed_while_it_is_taken_back(point):
    """Whoever is killed when: the list before comes back, and the job with it."""
    if point not in crash_points():
        raise Skip("the daemon was built without that crash point")
    with Cluster(3, owners=2, start=False, per_node={2: {"memory_limit": 4096}}) as c:
        victim = c.coordinator("job") if point == "move.whole" else c[0]
        crash = point if point.startswith("move") else f"{point}:2"
        for d in c.daemons:
            d.start(crash=crash if d is victim else None)
        c.wait_up()
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [1, 1], **NEEDS)
        train(ranks, STEPS)
        for a in ranks:
            c.dismiss(a)
        others = [d for d in c.daemons if d is not victim]
        for _ in range(2):  # at first the victim may have filled nothing when n2 refuses
            following = asks(others[0], "add-node", "n2")
            until(lambda: not victim.alive() or following.poll() is not None, what="the kill")
            if not victim.alive() or point.startswith("move"):
                break
            assert following.wait() == 1 and "taken back" in following.communicate()[1]
        until(lambda: not victim.alive(), what=f"the kill at {point}")
        victim.start()
        said = following.communicate(timeout=REPLY_S)[1]
        assert following.returncode == 1 and "taken back" in said, said
        assert others[0].ctl("members")["owners"] == ["n0", "n1"]
        lies_on(c, ["n0", "n1"])
        as_undisturbed(c, [1, 1])


@case
def takeover_is_not_taken_back():
    """The list before is not there any more: it is said what is wrong, and waited for."""
    with Cluster(2, mirror=1, start=False, memory_limit=7 << 20) as c:
        c.start()
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 0], **NEEDS)
        train(ranks, STEPS)
        for a in ranks:
            c.dismiss(a)
        c[1].kill()
        r = c[0].ctl_run("--timeout", "3", "takeover", "--node-is-dead", "n1")
        assert r.returncode == 1 and "memory_limit" in r.stderr and "start its daemon again" in r.stderr, r
        assert c[0].ctl("members")["epoch"] == 1
        c[0].kill()
        c[0].options["memory_limit"] = 0
        c[0].start()
        until(lambda: c[0].ctl_run("status").returncode == 0, what="n0")
        lies_on(c, ["n0"], [c[0]])
        assert c[0].ctl("checksum", "job")["version"] == STEPS


@cases_of(CHANGES)
def nobody_is_attached(what):
    """A job moves though no rank asks for it, and is found where it lies now."""
    first, command, node, names = CHANGES[what]
    with Cluster(3, owners=first) as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, STEPS)
        for a in ranks:
            c.dismiss(a)
        c[0].ctl(command, node)
        lies_on(c, names)
        as_undisturbed(c, [0, 1])


@cases_of((0, 1), "mirror_{}")
def changed_back(mirror):
    """A move is broken off for another one: what it has filled was never the job's, and does not count."""
    if not crash_points():
        raise Skip("the daemon was built without crash points")
    with Cluster(3, start=False, mirror=mirror) as c:
        for d, crash in zip(c.daemons, (None, "fill.drafted", None)):
            d.start(crash=crash)
        c.wait_up()
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 2], **NEEDS)
        train(ranks, 2)
        c[0].change_owners("remove-node", "n0")
        until(lambda: not c[1].alive(), what="the kill")
        until(lambda: (move_of(c[2]) or {"total": 0})["total"], what="what n2 is to fill")
        c[0].change_owners("add-node", "n0")
        c[1].start()
        train(ranks, STEPS - 2, patient=True)
        lies_on(c, c[0].ctl("members")["owners"])
        as_undisturbed(c, [0, 2])


@case
def changes_under_training():
    """Each list of owners has the job while ranks train, and steps end by each of them."""
    with Cluster(3, mirror=1) as c:
        can_vote(c)
        training = Endless(c, c.ranks("job", LAYOUT, [0, 1, 2], **NEEDS))
        for i in range(6):
            training.goes_on()
            for d in c.daemons:
                until(lambda d=d: d.ctl_run("ping").returncode == 0 and d.peers_up(), what=f"links of {d.name}")
            names, away = {"n0", "n1", "n2"}, f"n{(i // 2 + 1) % 3}"
            c[i % 3].change_owners("add-node" if i % 2 else "remove-node", away)
            if i % 2 == 0:
                names.remove(away)
            for d in c.daemons:
                until(lambda d=d, i=i: epoch(d) == i + 1, what=f"epoch {i + 1} on {d.name}")
                until(lambda d=d, names=names: set(owners(d) or ()) == names, what=f"{names} as owners on {d.name}")
        training.goes_on()
        version, _ = training.end()
        as_undisturbed(c, [0, 1, 2], version)


if __name__ == "__main__":
    main()
