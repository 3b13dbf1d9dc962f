#!/usr/bin/env python3
"""The owner list changes while jobs train: shards move, trainers see a pause, and the job has the bits of one
whose owners never changed."""
import json
import os
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import REPLY_S, WAIT, Cluster, Tools, crash_points, expect, finish_all, until  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402
from moments import (LAYOUT, NEEDS, STEPS, TRAIN, Endless, all_aborted, all_step, as_undisturbed, can_vote, go_to,  # noqa: E402
                     lies_on, owners, start_step, train)


def epoch(daemon):
    """The daemon's epoch; -1 while it starts anew."""
    r = daemon.ctl_run("--json", "members")
    return json.loads(r.stdout)["epoch"] if r.returncode == 0 else -1


CHANGES = {"add": (2, "add-node", "n2", ["n0", "n2", "n1"]), "remove": (3, "remove-node", "n1", ["n0", "n2"]),
           "remove_first": (2, "remove-node", "n0", ["n1"])}
DEVICES = {"add_devices": ("n0*2 n1", "add-node", "n2", ["n0", "n0", "n2", "n1"]),
           "remove_devices": ("n0*2 n1*3 n2*2", "remove-node", "n1", ["n0", "n0", "n2", "n2"])}


@cases_of([(c, m, mirror) for c in CHANGES for m in ("idle", "forward", "pushed") for mirror in (0, 1)] +
          [(c, "pushed", mirror) for c in DEVICES for mirror in (0, 1)], "{0[0]}_{0[1]}_mirror_{0[2]}")
def changed(what):
    """The list changes between two steps, or in a step, which then ends or aborts."""
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


@case
def views_outlast_the_only_owners_state():
    """A rank computes on what it maps of the old state while that is deleted."""
    with Cluster(2, owners=1) as c:
        can_vote(c)
        a, = c.ranks("job", LAYOUT, [0], hold=-1, push=-1)
        train([a], 2)
        for g in range(len(LAYOUT)):
            a.do("fetch", group=g)
        assert c[0].job("job")["gather"]["window_bytes"] == 0
        seen = [a.do("view", group=g)["hash"] for g in range(len(LAYOUT))]
        c[0].ctl("--no-wait", "add-node", "n1")
        until(lambda: "deleted its state of epoch 0" in c[0].log(), what="the end of the old state")
        assert [a.do("view", group=g)["hash"] for g in range(len(LAYOUT))] == seen
        all_aborted([a], 2)
        train([a], STEPS - 2, patient=True)
        as_undisturbed(c, [0])


def chunk(daemon):
    """Chunk size of the daemon's state files (struct file_header); 0: it has none."""
    chunks = set()
    for name in daemon.state_files():
        if name.endswith(".state"):
            with open(f"{daemon.options['state_dir']}/{name}", "rb") as f:
                chunks.add(struct.unpack("=8s6I", f.read(32))[4])
    assert len(chunks) <= 1, f"{daemon.name}: {chunks}"
    return chunks.pop() if chunks else 0


@case
def nodes_with_different_chunk_sizes():
    """Nodes with different chunk sizes share a job and mirror each other.  A state file keeps its chunk size when its
    daemon restarts with another one, even after a kill in an update; a shard that moves gets its new node's."""
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
    """Starts zeroctl and does not wait for it."""
    return subprocess.Popen([Tools.zeroctl, "--socket", daemon.socket, *words], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def move_of(daemon):
    """The job's move in the node's status; None if the job does not move, or while the daemon starts anew."""
    told, _ = daemon.query("status")
    return next((job["move"] for job in (told["jobs"] if told else []) if job["state"] == "moving"), None)


@case
def zeroctl_follows_a_move():
    """zeroctl returns when all shards are in place. Until then status shows the progress, and a timeout names the node
    that the move waits for."""
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
            until(lambda d=d: move_of(d) and move_of(d)["total"] > 0, what=f"the move in the status of {d.name}")
            assert "from the owners of epoch 0 to those of epoch 1" in d.ctl_run("status").stdout or not move_of(d)
        c[1].start()

        def followed_back():
            r = c[2].ctl_run("add-node", "n1")
            assert r.returncode == 0 or "is not reachable from here" in r.stderr, r
            return r.returncode == 0
        until(followed_back, what="the link with n1, and the end of the move")
        for d in c.daemons:
            until(lambda d=d: d.job("job")["move"] is None, what=f"the end of the move on {d.name}")
            assert len(d.job("job")["owners"]) == 3, d.job("job")
            assert len([f for f in d.state_files() if f.endswith(".state")]) == 1, d.state_files()
        as_undisturbed(c, [0, 2])


@case
def move_waits_for_a_removed_nodes_answer():
    """A removed node may have newer states than the others, so the move does not begin before it has answered."""
    with Cluster(3, mirror=1, per_node={2: {"delay_ms": 300}}) as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        waited = "node n2 has not said what it has of the job: waiting for the node"
        for _ in range(5):  # it is chance whether its link is up before the others are ready
            c[0].ctl("remove-node", "n2")
            if waited in c[0].log() + c[1].log():
                break
            c[0].ctl("add-node", "n2")
        else:
            raise Skip("the link came too late each time")
        assert "going on without the node" not in c[0].log() + c[1].log()
        train(ranks, STEPS - 2, patient=True)
        lies_on(c, ["n0", "n1"])
        as_undisturbed(c, [0, 1])


@case
def taken_over():
    """The mirror has all states of the dead node. If that node comes back after all, it accepts the new list."""
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
def majority_removes_a_dead_node():
    """Two of three nodes remove the third, and hold its shards."""
    with Cluster(3, mirror=1) as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 0], **NEEDS)
        train(ranks, 2)
        c[1].kill()
        c[0].ctl("remove-node", "n1")
        train(ranks, STEPS - 2, patient=True)
        lies_on(c, ["n0", "n2"], [c[0], c[2]])


@case
def job_waits_for_the_node_with_its_newest_steps():
    """The nodes that are up have an older state of the job: under a list in between it trained on a node that is away."""
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
        until(lambda: "node n0 may have steps of the job that no other node has" in c[1].log(), what="the wait for n0")
        c[0].start()
        train(ranks, STEPS - 4, patient=True)
        lies_on(c, ["n1"])
        as_undisturbed(c, [2, 2])


def comes(c, number):
    """Waits for the epoch on all nodes that are up, and for a majority that can choose the next one."""
    for d in c.daemons:
        if d.alive():
            until(lambda d=d: epoch(d) == number and d.ctl("members")["majority"], what=f"epoch {number} on {d.name}")


@cases_of([(how, mirror) for how in ("all_at_once", "one_by_one") for mirror in (0, 1)], "{0[0]}_mirror_{0[1]}")
def the_cluster_grows(what):
    """A machine comes to `peers`, whose owners are the default: the job stays where it is until the machine is made
    an owner."""
    how, mirror = what
    with Cluster(3, start=False, mirror=mirror) as c:
        old = c.daemons[:2]
        grown = c[0].options["peers"]
        for d in old:
            d.options["peers"] = " ".join(grown.split()[:2])
            d.start()
        for d in old:
            until(lambda d=d: d.peers_up() and d.ctl("members")["voter"], what=f"the vote of {d.name}")
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        for d in old:
            if how == "all_at_once":
                d.kill()
        for d in old:
            if how == "one_by_one":
                d.kill()
            d.options["peers"] = grown
            d.start()
        train(ranks, 1, patient=True)
        lies_on(c, ["n0", "n1"], old)
        c[2].start()
        can_vote(c)
        assert [d.ctl("members")["owners"] for d in c.daemons] == [["n0", "n1"]] * 3
        train(ranks, 1, patient=True)
        c[2].change_owners("add-node", "n2")
        train(ranks, STEPS - 4, patient=True)
        lies_on(c, ["n0", "n2", "n1"])
        as_undisturbed(c, [0, 1])
        assert not any("other owners for epoch" in d.log() for d in c.daemons)


@case
def one_node_grows():
    """A cluster of one has no record of its owners: a node that would lose its jobs to the default of `owners` does not
    start, and says what to set."""
    with Cluster(2, start=False) as c:
        grown = {k: c[0].options.pop(k) for k in ("peers", "key_file")}
        c[0].start()
        until(lambda: c[0].ctl_run("members").returncode == 0, what="n0")
        ranks = c.ranks("job", LAYOUT, [0, 0], **NEEDS)
        train(ranks, 2)
        c[0].kill()
        c[0].options.update(grown)
        c[0].start()
        assert c[0].process.wait(REPLY_S) == 1
        assert "is cut for 1 owners, and `owners` says 2: set `owners`" in c[0].log()
        for d in c.daemons:
            d.options["owners"] = "n0"
            d.start()
        c.wait_up()
        can_vote(c)
        train(ranks, 2, patient=True)
        c[0].change_owners("add-node", "n1")
        train(ranks, STEPS - 4, patient=True)
        lies_on(c, ["n0", "n1"])
        as_undisturbed(c, [0, 0])


@cases_of(["the_same_layout", "another_layout"])
def what_a_killed_opening_left_stops_no_job(layout):
    """The opening's node comes back when a job of that name has steps, and becomes an owner again."""
    with Cluster(3, owners=2) as c:
        can_vote(c)
        left = LAYOUT if layout == "the_same_layout" else LAYOUT[:-1]
        a = c.rank("job", left, [0, 1], 0, **NEEDS)  # waits for the other rank
        for d in c.daemons[:2]:
            until(lambda d=d: any(f.endswith(".state") for f in d.state_files()), what=f"the state on {d.name}")
        c.dismiss(a)
        for d in c.daemons[:2]:
            d.kill()
        for f in c[0].state_files():
            os.remove(f"{c[0].options['state_dir']}/{f}")
        c[0].start()
        until(lambda: c[0].ctl_run("members").returncode == 0 and c[0].ctl("members")["majority"], what="n0")
        c[0].change_owners("remove-node", "n1")
        ranks = c.ranks("job", LAYOUT, [0, 0], **NEEDS)
        train(ranks, 2)
        c[1].start()
        c[0].change_owners("add-node", "n1")
        train(ranks, STEPS - 2, patient=True)
        lies_on(c, ["n0", "n1"])
        as_undisturbed(c, [0, 0])


def attach_after_the_only_owner_was_removed(c):
    """n0 is lost as the only owner and removed from the list; ranks on other nodes attach to the job, and wait."""
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
    until(lambda: "the job may be on node n0" in c[1].log(), what="the wait for n0")
    return heirs


@case
def attach_waits_for_a_change_of_owners():
    """No job is created meanwhile; the first attach waits within its own deadline, which names the change."""
    with Cluster(3, owners=1) as c:
        can_vote(c)
        late = c.caller("late", LAYOUT, [0], 0, timeout_ms=2000 * WAIT)
        ranks = [c.caller("job", LAYOUT, [0, 0], r) for r in range(2)]
        for a in (late, *ranks):
            finish_all([a]), finish_all([a])
        for d in c.daemons[1:]:
            d.stop()  # the change waits for a second vote
        changes = asks(c[0], "--no-wait", "add-node", "n2")

        def change_is_there():
            if "another change of the owners is in progress" in \
                    c[0].ctl_run("--timeout", "1", "--no-wait", "add-node", "n2").stderr:
                return True
            assert changes.poll() is None, changes.communicate()
            time.sleep(0.5 * WAIT)  # the question itself was the change: the first zeroctl asks again meanwhile
            return False
        until(change_is_there, what="the change")
        late.start("attach", **NEEDS)
        told = expect(late.finish(), "EDEADLINE")["text"]
        assert "the owners are being changed" in told or "to come up" in told, told  # a stopped node's link is cut at some time
        for a in ranks:
            a.start("attach", **NEEDS)
        assert not ranks[0].ready(0.2), ranks[0].finish()
        for d in c.daemons[1:]:
            d.go_on()
        assert changes.wait(REPLY_S) == 0, changes.communicate()
        finish_all(ranks)
        train(ranks, STEPS, patient=True)
        lies_on(c, ["n0", "n2"])
        as_undisturbed(c, [0, 0])


@case
def job_waits_for_its_removed_only_owner():
    """The nodes that are up have nothing of the job, and must not take it for a new one."""
    with Cluster(3, owners=1) as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [1, 2], **NEEDS)
        train(ranks, 2)
        for a in ranks:
            c.dismiss(a)
        heirs = attach_after_the_only_owner_was_removed(c)
        c[0].start()
        finish_all(heirs)
        train(heirs, STEPS - 2, patient=True)
        lies_on(c, ["n1"])
        as_undisturbed(c, [1, 2])


@case
def takeover_of_the_only_owner_lets_the_job_begin_anew():
    with Cluster(3, owners=1) as c:
        can_vote(c)
        heirs = attach_after_the_only_owner_was_removed(c)
        c[1].ctl("takeover", "--node-is-dead", "n0")
        finish_all(heirs)
        train(heirs, STEPS, patient=True)
        assert "nothing to take over" in c[1].ctl_run("takeover", "--node-is-dead", "n0").stderr
        c[0].start()
        c.wait_up()
        lies_on(c, ["n1"])
        as_undisturbed(c, [1, 2])


def fails(c, daemon, *words):
    """Asks for a change that is taken back; zeroctl returns when that is done."""
    r = daemon.ctl_run(*words)
    assert r.returncode == 1 and "the move was taken back" in r.stderr, r
    return r.stderr


@cases_of((0, 1), "mirror_{}")
def taken_back(mirror):
    """A node without room for its shards fails the move: the previous list returns by itself, in a new epoch."""
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
def move_of_idle_jobs_is_taken_back():
    """The node without room is asked for the change; moves of other jobs, even complete ones, are undone too."""
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
def taken_back_with_room_for_two_states():
    """The states filled for the failed move are deleted before the old list's are made: there is no room for three."""
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
    """A node dies while a move is taken back: the previous list still returns, and the job with it."""
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
        for _ in range(2):  # the first time n2 may refuse before the victim has filled anything
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
    """A takeover cannot return to the previous list: the job stops, and zeroctl says what the node lacks."""
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
def idle_job_moves(what):
    """A job without ranks moves too, and is found at its new owners."""
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
def changed_again_during_a_move(mirror):
    """A second change breaks off a move: states that the first one was filling are never used."""
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
        until(lambda: (move_of(c[2]) or {"total": 0})["total"], what="the fill of n2")
        c[0].change_owners("add-node", "n0")
        c[1].start()
        train(ranks, STEPS - 2, patient=True)
        lies_on(c, c[0].ctl("members")["owners"])
        as_undisturbed(c, [0, 2])


@case
def changes_under_training():
    """Ranks train through several changes, and complete steps under each list."""
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
