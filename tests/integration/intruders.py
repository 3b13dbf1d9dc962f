#!/usr/bin/env python3
"""Clients attach where they do not belong: to another user's job, as a rank that is taken, with another world size.
Whatever they claim and however they end, the running job does not notice."""
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import Place  # noqa: E402
from cluster import SETS, SLOW, Cluster, finish_all, group, small_layout, until  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402
import wire  # noqa: E402

LAYOUT = [group("a", {"name": "wa", "shape": [1000]}), group("b", {"name": "wb", "shape": [3000]})]
NEEDS = {"hold": 2, "push": 2}
OWNER, STRANGER = 65534, 12345
HIGHEST = 0xffffffff


def train(ranks, steps=2):
    for a in ranks:
        a.start("train", steps=steps, sets=SETS)
    return finish_all(ranks)


def rank_of(c, uid, node, rank, world, job="job", incarnation=0, **needs):
    """An actor of that user, attaching; the caller collects the reply."""
    if os.getuid():
        raise Skip("another user needs root")
    a = c.actor(node, f"rank {rank} of user {uid}")
    a.do("user", uid=uid)
    a.do("connect", job=job, rank=rank, world=world, local=1, timeout_ms=20000 * SLOW, incarnation=incarnation)
    a.do("layout", groups=LAYOUT)
    a.start("attach", **{**NEEDS, **needs})
    return a


def attach_fields(incarnation=0, on_lost=0):
    return {1: wire.layout_message(LAYOUT), 2: 2, 3: 2, 4: 1, 5: 1, 6: incarnation, 7: on_lost}


# ---- other users' ranks -----------------------------------------------------------------

@case
def another_users_rank_is_not_fenced():
    with Cluster(2) as c:
        ranks = [rank_of(c, OWNER, n, n, 2) for n in (0, 1)]
        finish_all(ranks)
        for node in (0, 1):
            for rank in (0, 1):
                a = rank_of(c, STRANGER, node, rank, 2, incarnation=HIGHEST)
                assert a.finish()["status"] == "EPERM"
                c.dismiss(a)
        train(ranks)


@case
def another_users_rank_that_attaches_is_not_fenced():
    with Cluster(2) as c:
        first = rank_of(c, OWNER, 0, 0, 2)
        until(lambda: c[0].job("job"), what="the job")
        assert rank_of(c, STRANGER, 0, 0, 2, incarnation=HIGHEST).finish()["status"] == "EPERM"
        second = rank_of(c, OWNER, 1, 1, 2)
        finish_all([first, second])
        train([first, second])


@case
def a_claim_with_another_layout_fences_nobody():
    """A later incarnation that is refused ends no session."""
    with Cluster(1) as c:
        ranks = c.ranks("job", LAYOUT, [0, 0], **NEEDS)
        a = c.actor(0)
        a.do("connect", job="job", rank=1, world=2, local=2, incarnation=9, timeout_ms=5000 * SLOW)
        a.do("layout", groups=small_layout(blocks=2))
        a.refused("ELAYOUT", "attach", **NEEDS)
        train(ranks)


# ---- sessions that end before their answer -------------------------------------------------

@cases_of(["bye", "death"])
def claims_that_end_before_their_answer(how):
    """A session that claims a taken rank and ends at once does not disturb the rank."""
    with Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], on_lost="fail", **NEEDS)
        for i in range(200):
            node = i % 2
            raw = wire.Raw(c[node].socket)
            raw.hello("job", node, 2, local=1)
            claim = wire.request(2, "attach", attach_fields())
            raw.send(claim + (wire.request(3, "bye") if how == "bye" else b""))
            raw.close()
        train(ranks)
        until(lambda: not any(w["for"].startswith("rank") for w in c[0].job("job")["waiting"]), what="the end of claims")


@case
def claims_that_end_while_another_attaches():
    """Two sessions claim a rank and wait for the job to start. One of them ends; the other is attached."""
    with Cluster(2, start=False) as c:
        c[0].start()
        until(lambda: c[0].ctl_run("status").returncode == 0, what="the daemon")
        raws = []
        for _ in range(2):
            raws.append(wire.Raw(c[0].socket, timeout=60 * SLOW))
            raws[-1].hello("job", 0, 2, local=1, timeout_ms=50000 * SLOW)
            raws[-1].send(wire.request(2, "attach", attach_fields()))
        c[0].status()
        raws[1].close()
        c[0].status()
        c[1].start()
        c.wait_up()
        other = c.rank("job", LAYOUT, [0, 1], 1, **NEEDS)
        while other.asked:
            finish_all([other])
        status, text, _ = raws[0].reply()
        assert status == wire.OK, text
        raws[0].close()


# ---- other world sizes ---------------------------------------------------------------------------

def outsider(c, node):
    """A session of another world size, which waits for the running ranks to leave."""
    raw = wire.Raw(c[node].socket, timeout=60 * SLOW)
    raw.hello("job", 2, 3, local=1, timeout_ms=50000 * SLOW)
    raw.send(wire.request(2, "attach", attach_fields()))
    return raw


def waits(c, word):
    return any(word in w["what"] for d in c.daemons for w in d.job("job")["waiting"])


@case
def successor_attaches_before_waiting_ranks_of_another_world_size():
    with Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        raw = outsider(c, 0)
        until(lambda: waits(c, "world size 3"), what="the outsider's name")
        ranks[1].kill()
        until(lambda: not c[1].job("job")["sessions"], what="the session's end")
        heir = c.rank("job", LAYOUT, [0, 1], 1, **NEEDS)
        while heir.asked:
            finish_all([heir])
        train([ranks[0], heir])
        raw.close()


@case
def restarted_node_attaches_before_waiting_ranks_of_another_world_size():
    """The ranks of a restarted node attach again, although ranks of another world size wait for them to leave."""
    with Cluster(2) as c:
        coordinator = c.daemons.index(c.coordinator("job"))
        ranks = c.ranks("job", LAYOUT, [1 - coordinator, 1 - coordinator], timeout_ms=60000 * SLOW, **NEEDS)
        raw = outsider(c, coordinator)
        until(lambda: waits(c, "world size 3"), what="the outsider's name")
        c[1 - coordinator].restart()
        for a in ranks:
            a.start("train", steps=3, sets=SETS, patient=True)
        finish_all(ranks)
        raw.close()


# ---- nothing is left ------------------------------------------------------------------------------

@case
def jobs_that_cannot_be_opened_are_forgotten():
    """Sessions that ask for new jobs while a node is away leave nothing behind: at most 20 KiB each, less than what a
    job's coordinator takes.  glibc may keep what those that waited at one time took."""
    with Cluster(2) as c:
        c[1].stop()
        until(lambda: not c[0].peers_up(), 60 * SLOW, "the link's end")

        before = c[0].memory()
        for i in range(800):
            raw = wire.Raw(c[0].socket)
            raw.hello(f"name{i}", 0, 1)
            raw.send(wire.request(2, "attach", attach_fields()))
            raw.close()
            if i % 25 == 24 and SLOW == 1:  # sanitizers keep what was freed
                until(lambda: c[0].memory() < before + 16384, what=f"memory near {before} KiB")
        assert c[0].status()["jobs"] == []


# ---- restores ----------------------------------------------------------------------------------------

@case
def attach_while_a_job_of_that_name_is_restored():
    """Nobody is attached to a job that the restore then replaces."""
    with Place() as place, Cluster(2, checkpoint_dir=place) as c:
        name = next(n for n in (f"job{i}" for i in range(99)) if c.coordinator(n) is c[0])
        rank = c.ranks(name, LAYOUT, [0], **NEEDS)[0]
        train([rank])
        path = c[0].ctl("checkpoint", name, place)["path"]
        rank.end()
        until(lambda: not c[0].job(name)["sessions"], what="the session's end")
        c[0].ctl("drop", name)
        os.kill(c[1].process.pid, signal.SIGSTOP)
        restore = wire.Raw(c[0].socket)
        restore.hello()
        status, text, _ = restore.ask("query", {1: "restore", 2: f'{{"job":"{name}","directory":"{path}"}}'})
        assert status == wire.OK, text
        a = rank_of(c, STRANGER, 0, 0, 1, job=name)
        refused = a.ready(4)  # less than the stopped node's heartbeat timeout
        c[1].go_on()
        reply = a.finish()
        assert refused and reply["status"] == "EBUSY" and "restore" in reply["text"], reply
        until(lambda: c[0].job(name) and c[0].job(name)["version"] == 2, what="the restored job")
        restore.close()


@case
def restores_at_once_do_not_pass_the_job_limit():
    with Place() as place, Cluster(2, checkpoint_dir=place, job_limit=2) as c:
        rank = c.ranks("job", LAYOUT, [0], **NEEDS)[0]
        train([rank])
        path = c[0].ctl("checkpoint", "job", place)["path"]
        c[1].stop()
        raws = []
        for i in range(5):
            raws.append(wire.Raw(c[0].socket, timeout=20 * SLOW))
            raws[-1].hello()
            raws[-1].send(wire.request(2, "query", {1: "restore", 2: f'{{"job":"more{i}","directory":"{path}"}}'}))
        c[0].status()
        c[1].go_on()
        for i, raw in enumerate(raws):
            assert raw.reply()[0] == wire.OK
            raw.seq = 2
            until(lambda i=i, raw=raw: b'"over":true' in raw.ask("query", {1: "progress", 2: f"more{i}"})[2][9][0],
                  what="the restore's end")
            raw.close()
        assert len(c[0].status()["jobs"]) <= 2, c[0].status()["jobs"]


if __name__ == "__main__":
    main()
