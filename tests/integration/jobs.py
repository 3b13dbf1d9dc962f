#!/usr/bin/env python3
"""Several jobs and users at once, and what zeroctl shows of them."""
import hashlib
import json
import os
import re
import select
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SETS, SLOW, Cluster, Tools, crash_points, expect, finish_all, group, of_nodes, small_layout, spawn, tensor, until  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402

NOBODY = 65534


def train(actors, steps, **fields):
    for a in actors:
        a.start("train", steps=steps, sets=SETS, **fields)
    return finish_all(actors)


def as_user(c, uid, node=0):
    if os.getuid():
        raise Skip("another user needs root")
    a = c.actor(node, f"user {uid}")
    a.do("user", uid=uid)
    return a


# ---- several at once -----------------------------------------------------------------

@case
def jobs_do_not_disturb_each_other():
    """Three jobs at once end with the checksums they have alone."""
    def run(names):
        with Cluster(2) as c:
            jobs = {n: c.ranks(n, small_layout(blocks=1 + i), [0, 1], hold=2, push=2)
                    for i, n in enumerate(("one", "two", "three")) if n in names}
            for i, ranks in enumerate(jobs.values()):
                for a in ranks:
                    a.start("train", steps=15, sets=SETS, micro_batches=2, clip=1, seed=3)
            for ranks in jobs.values():
                finish_all(ranks)
            return {n: c.checksum(n)["planes"] for n in jobs}
    together = run(("one", "two", "three"))
    for name, planes in together.items():
        assert run((name,))[name] == planes, name


@case
def rank_sets():
    """Groups of a subset of the ranks, each with its own divisor, as tensor-parallel ranks use them."""
    layout = [group("left", tensor("l", 3000), ranks=[0], divisor=1), group("right", tensor("r", 3000), ranks=[1]),
              group("both", tensor("b", 3000))]
    with Cluster(2) as c:
        ranks = c.ranks("sets", layout, [0, 1], hold=2, push=2)
        ranks[1].refused("ERANK", "grad", "rank 1", group=0)
        before = c.checksum("sets")
        told = train(ranks, 5)
        assert told[0]["hash"] == told[1]["hash"] and c.checksum("sets") != before


@case
def put_reaches_every_node():
    """Ranks of other nodes get the new values with their next fetch, and every client may read planes."""
    with Cluster(3) as c:
        a, b = c.ranks("job", small_layout(width=256), [0, 1], hold=1, push=1)
        b.do("fetch", group=1)
        old = b.do("view", group=1)["hash"]
        b.do("release", group=1)
        a.do("put", tensor=2, plane="master", first=10, values=[1.5, -2.25, 3.0])
        b.do("fetch", group=1)
        assert b.do("view", group=1)["hash"] != old
        values = b.do("view", group=1, values=True)["values"]
        assert values[10:13] == [1.5, -2.25, 3.0], values[:16]
        observer = c.actor(2)
        observer.do("connect", job="job", rank=-1)
        observer.do("attach", observer=True)
        assert observer.do("get", tensor=2, plane="master", first=10, count=3)["values"] == [1.5, -2.25, 3.0]
        assert observer.do("get", tensor=2, plane="step", count=1)["values"] == [0]


@case
def checksum_is_of_one_version():
    """A checksum taken while the job steps is that of the job stopped at the same version."""
    steps = 12

    def ranks_of(c):
        return c.ranks("job", small_layout(), [0, 1], hold=2, push=2)
    with Cluster(2) as c:
        ranks, sums = ranks_of(c), {}
        for _ in range(steps):
            train(ranks, 1, first_step=len(sums))
            told = c.checksum("job")
            sums[told["version"]] = told
    assert sorted(sums) == list(range(1, steps + 1))
    with Cluster(2, delay_ms=20) as c:
        ranks, seen = ranks_of(c), set()
        for step in range(steps):
            for a in ranks:
                a.start("train", steps=1, sets=SETS, first_step=step)
            while not all(a.ready() for a in ranks):
                told, why = c[step % 2].query("checksum", "job")
                assert told or "different versions" in why, why
                told = told or {"version": 0}
                assert told["version"] == 0 or told == sums[told["version"]], (told, sums[told["version"]])
                seen.add(told["version"])
            finish_all(ranks)
        assert len(seen) > 1, seen


@case
def checksum_covers_everything():
    """A change of any plane, a tensor's step count and set included, changes that plane's sum and the total."""
    with Cluster(3, mirror=1) as c:
        ranks = c.ranks("job", small_layout(width=256), [0, 1], hold=2, push=2)
        train(ranks, 1)
        was = c.checksum("job")
        for plane, values in (("master", [1.5]), ("exp_avg", [0.25]), ("exp_avg_sq", [0.125]), ("step", [7]), ("set", [1])):
            ranks[0].do("put", tensor=2, plane=plane, values=values)
            told = c.checksum("job")
            assert told["mirrors_agree"] and told["mirrors"] == told["planes"], told
            assert told["checksum"] != was["checksum"]
            assert {p for p in told["planes"] if told["planes"][p] != was["planes"][p]} == {plane}, (plane, told, was)
            was = told


@case
def load_into_another_partition():
    """Planes written into a job with other owners continue bit for bit."""
    planes = ("master", "exp_avg", "exp_avg_sq", "step")
    layout = small_layout(blocks=1)

    def sizes():
        for g in layout:
            for t in g["tensors"]:
                n = 1
                for extent in t["shape"]:
                    n *= extent
                yield n, t.get("frozen")
    with Cluster(2) as c:
        ranks = c.ranks("from", layout, [0, 1], hold=2, push=2)
        train(ranks, 3)
        saved = [[p, t, ranks[0].do("get", tensor=t, plane=p, count=1 if p == "step" else n)["values"]]
                 for t, (n, frozen) in enumerate(sizes()) for p in planes if n and not (frozen and p != "master")]
        train(ranks, 2, seed=9)
        expected = c.checksum("from")["planes"]
    with Cluster(3) as c:
        ranks = c.ranks("to", layout, [0, 1], hold=2, push=2)
        for plane, t, values in saved:
            ranks[1].do("put", tensor=t, plane=plane, values=values)
        train(ranks, 2, seed=9, first_step=3)
        assert c.checksum("to")["planes"] == expected


@case
def ranks_leave_and_come_back():
    """The state outlives its trainers: other processes continue from it."""
    def ended_with(pause):
        with Cluster(2) as c:
            ranks = c.ranks("job", small_layout(), [0, 1], hold=2, push=2)
            train(ranks, 4)
            if pause:
                for a in ranks:
                    a.do("close")
                    a.end()
                until(lambda: all(not d.job("job")["sessions"] for d in c.daemons), what="the sessions' end")
                ranks = c.ranks("job", small_layout(), [0, 1], hold=2, push=2)
                assert ranks[0].do("version")["version"] == 4
            train(ranks, 4)
            return c.checksum("job")["planes"]
    assert ended_with(True) == ended_with(False)


def come(c, world):
    """Ranks of this world size begin to attach."""
    ranks = [c.actor(r % 2, f"{r} of {world}") for r in range(world)]
    for r, a in enumerate(ranks):
        a.do("connect", job="job", rank=r, world=world, local=(world + 1 - r % 2) // 2)
        a.do("layout", groups=small_layout())
        a.start("attach", hold=2, push=2)
    return ranks


@case
def the_world_grows_and_shrinks():
    """Ranks of another world size wait until the old ones leave, and status shows it; the state does not move."""
    def ended_with(waiting):
        with Cluster(2) as c:
            ranks = come(c, 2)
            finish_all(ranks)
            train(ranks, 2)
            for world in (3, 1):
                fresh = come(c, world) if waiting else []
                if waiting:
                    until(lambda w=world: f"ranks of world size {w} wait" in str(c[1].job("job")["waiting"]),
                          what="the waiting ranks in the status")
                    assert not any(a.ready() for a in fresh)
                    train(ranks, 2)
                else:
                    train(ranks, 2)
                for a in ranks:
                    a.do("close")
                ranks = fresh or come(c, world)
                finish_all(ranks)
                train(ranks, 2)
            return c.checksum("job")["planes"]
    assert ended_with(True) == ended_with(False)


@case
def ranks_of_two_world_sizes_attach_at_once():
    with Cluster(2) as c:
        one, other = c.actor(0, "one"), c.actor(1, "other")
        for a, rank, world in ((one, 0, 2), (other, 2, 3)):
            a.do("connect", job="job", rank=rank, world=world, local=1)
            a.do("layout", groups=small_layout())
        one.start("attach", hold=2, push=2)
        until(lambda: c[0].job("job"), what="the job")
        other.refused("ECONFLICT", "attach", "the rank has world size 3, but others have 2", hold=2, push=2)


# ---- users ------------------------------------------------------------------------------

@case
def job_of_another_user():
    with Cluster(2) as c:
        mine = as_user(c, NOBODY)
        mine.do("connect", job="theirs", rank=0, world=1)
        mine.do("layout", groups=small_layout())
        mine.do("attach", hold=2, push=2)
        assert c[0].job("theirs")["uid"] == NOBODY
        stranger = as_user(c, 12345)
        stranger.do("connect", job="theirs", rank=-1)
        stranger.refused("EPERM", "attach", str(NOBODY), observer=True)
        for what in ("checksum", "shards", "drop"):
            stranger.refused("EPERM", "query", str(NOBODY), what=what, argument="theirs")
        assert stranger.do("query", what="shards")["answer"]["jobs"] == []
        rank = as_user(c, 12345, 1)
        rank.do("connect", job="theirs", rank=0, world=1, timeout_ms=5000)
        rank.do("layout", groups=small_layout())
        rank.refused("EPERM", "attach", hold=2, push=2)
        train([mine], 3)
        owner = as_user(c, NOBODY, 1)
        owner.do("connect", job="theirs", rank=-1)
        owner.do("attach", observer=True)
        assert owner.do("query", what="checksum", argument="theirs")["answer"]["version"] == 3
        assert [j["job"] for j in owner.do("query", what="shards")["answer"]["jobs"]] == ["theirs"]
        c.checksum("theirs")  # root may


@case
def two_users_at_once():
    with Cluster(2, job_limit=1) as c:
        jobs = []
        for uid in (NOBODY, 12345):
            ranks = [as_user(c, uid, node) for node in (0, 1)]
            for r, a in enumerate(ranks):
                a.do("connect", job=f"of{uid}", rank=r, world=2, local=1)
                a.do("layout", groups=small_layout())
                a.start("attach", hold=2, push=2)
            finish_all(ranks)
            jobs.append(ranks)
        for ranks in jobs:
            for a in ranks:
                a.start("train", steps=10, sets=SETS)
        for ranks in jobs:
            finish_all(ranks)
        more = as_user(c, NOBODY)
        more.do("connect", job="second", rank=0, world=1)
        more.do("layout", groups=small_layout())
        more.refused("EQUOTA", "attach", "job_limit", hold=2, push=2)


# ---- finished jobs ---------------------------------------------------------------------

def made(c, name, uid=NOBODY, leaves=None, **layout):
    """A job of two ranks that train and leave. leaves: for each rank the `keep` of its zero_finish(), or None for no call."""
    ranks = [as_user(c, uid, node) for node in (0, 1)]
    for r, a in enumerate(ranks):
        a.do("connect", job=name, rank=r, world=2, local=1)
        a.do("layout", groups=small_layout(**layout))
        a.start("attach", hold=2, push=2)
    finish_all(ranks)
    train(ranks, 2)
    for a, keep in zip(ranks, leaves or (None, None)):
        if keep is not None:
            a.do("finish", keep=keep)
        a.do("close")


def names(daemon):
    return sorted(job["job"] for job in daemon.status()["jobs"])


def job_is_finished(c, name):
    """Finished, and no session has the job any more: a job with a session keeps its place."""
    until(lambda: f"job {name}: finished" in "".join(d.log() for d in c.daemons), what=f"{name} to be finished")
    for d in [d for d in c.daemons if d.alive()]:
        until(lambda d=d: not d.job(name)["sessions"], what=f"the sessions of {name} on {d.name} to end")


@case
def job_limit_drops_the_job_that_finished_first():
    """Only finished jobs of the same user are dropped for a new one."""
    with Cluster(2, job_limit=3) as c:
        made(c, "theirs", uid=12345, leaves=(True, True))
        made(c, "paused")
        for name in ("first", "second"):
            made(c, name, leaves=(True, True))
            job_is_finished(c, name)
        made(c, "third", leaves=(True, False))
        until(lambda: all(names(d) == ["paused", "second", "theirs", "third"] for d in c.daemons), what="the drop of first")
        assert "job first: dropped" in c[0].log() + c[1].log()


@case
def memory_limit_drops_a_finished_job():
    with Cluster(2, memory_limit="8M") as c:
        made(c, "first", width=256, leaves=(True, True))
        job_is_finished(c, "first")
        made(c, "second", width=256)
        assert all(names(d) == ["second"] for d in c.daemons)


@case
def a_finished_job_with_new_ranks_is_not_dropped():
    """Not even while one of its ranks still waits for the other."""
    with Cluster(2, job_limit=1) as c:
        made(c, "first", leaves=(True, True))
        job_is_finished(c, "first")
        ranks = [as_user(c, NOBODY, node) for node in (0, 1)]
        for r, a in enumerate(ranks):
            a.do("connect", job="first", rank=r, world=2, local=1)
            a.do("layout", groups=small_layout())
        ranks[0].start("attach", hold=2, push=2)
        until(lambda: all(d.status()["jobs"][0]["waiting"] for d in c.daemons), what="the wait for rank 1")
        for node in (0, 1):
            for name in ("a", "b", "c", "d"):  # coordinated by either node
                more = as_user(c, NOBODY, node)
                more.do("connect", job=name, rank=0, world=1)
                more.do("layout", groups=small_layout())
                more.refused("EQUOTA", "attach", "job_limit", hold=2, push=2)
        ranks[1].start("attach", hold=2, push=2)
        finish_all(ranks)
        train(ranks, 1)
        assert names(c[0]) == ["first"]


@case
def a_job_that_never_fits_drops_no_finished_job():
    with Cluster(2, memory_limit="8M") as c:
        for name in ("first", "second"):
            made(c, name, width=128, leaves=(True, True))
            job_is_finished(c, name)
        more = as_user(c, NOBODY)
        more.do("connect", job="large", rank=0, world=1)
        more.do("layout", groups=small_layout(width=1024))
        more.refused("EQUOTA", "attach", "memory_limit", hold=2, push=2)
        assert all(names(d) == ["first", "second"] for d in c.daemons)


@case
def a_job_that_no_rank_keeps_is_dropped_with_the_last_rank():
    with Cluster(2) as c:
        made(c, "gone", leaves=(False, False))
        until(lambda: names(c[0]) == names(c[1]) == [], what="the drop")
        made(c, "kept", leaves=(False, True))
        job_is_finished(c, "kept")
        assert names(c[0]) == names(c[1]) == ["kept"]


@cases_of(["dies", "says_nothing"])
def a_job_is_not_finished_when_a_rank(what):
    """The job is not dropped, so the next job is refused."""
    with Cluster(1, job_limit=1) as c:
        ranks = c.ranks("job", small_layout(), [0, 0], hold=2, push=2)
        train(ranks, 1)
        for a in ranks:
            a.do("finish", keep=False)
        if what == "dies":
            ranks[0].kill()
        else:
            ranks[0].do("close")
            ranks[0].do("connect", job="job", rank=0, world=2, local=2)
            ranks[0].do("layout", groups=small_layout())
            ranks[0].start("attach", hold=2, push=2)
            ranks[0].finish()
            ranks[0].do("close")
        ranks[1].do("close")
        more = c.actor()
        more.do("connect", job="more", rank=0, world=1)
        more.do("layout", groups=small_layout())
        more.refused("EQUOTA", "attach", "job_limit", hold=2, push=2)
        assert names(c[0]) == ["job"]


# ---- drop ----------------------------------------------------------------------------------

@case
def drop():
    """Clients of a dropped job get an error, its memory is freed, and its name can be used again."""
    with Cluster(2) as c:
        ranks = c.ranks("job", small_layout(), [0, 1], hold=2, push=2)
        train(ranks, 2)
        ranks[0].do("fetch", group=0)
        ranks[0].start("step", sets=SETS)
        assert c[1].ctl("drop", "job") == {"job": "job", "dropped": True, "untold": []}
        for d in c.daemons:
            assert d.state_files() == [".lock"] and d.status()["memory"]["state_used"] == 0, d.state_files()
        expect(ranks[0].finish(), "ENOJOB", "dropped")
        ranks[1].refused("ENOJOB", "fetch", group=0)
        for d in c.daemons:
            until(lambda d=d: d.status()["memory"]["state_used"] == 0, what=f"memory of {d.name}")
            assert d.status()["jobs"] == []
        r = c[0].ctl_run("drop", "job")
        assert r.returncode == 1 and "job" in r.stderr, r
        again = c.ranks("job", small_layout(blocks=1), [1], hold=2, push=2)
        assert again[0].do("version")["version"] == 0
        train(again, 2)


@cases_of([(n, mirror, name, again) for n in (2, 3) for mirror in (0, 1) for name in ("a", "job")
           for again in (False, True)], "{0[0]}_nodes_mirror_{0[1]}_{0[2]}_{0[3]}")
def drop_while_a_node_is_away(what):
    """A dropped job stays dropped: a node that was away drops it when it comes up, and only then the name is free."""
    nodes, mirror, name, again = what
    with Cluster(nodes, mirror=mirror, owners=2) as c:
        ranks = c.ranks(name, small_layout(), [0, 1], hold=2, push=2)
        train(ranks, 2)
        c.dismiss(ranks[0]), c.dismiss(ranks[1])
        asked = c[nodes - 1] if nodes == 3 else c[0]  # n2 owns no shards
        until(lambda: name in [job["job"] for job in asked.status()["jobs"]], what="the job on the node that is asked")
        c[1].kill()
        told = asked.ctl("drop", name)
        assert told == {"job": name, "dropped": True, "untold": ["n1"]}, told
        assert not any(f.endswith(".state") for f in c[0].state_files()), c[0].state_files()
        if again:
            asked.restart()
            c[0].restart() if asked is not c[0] else None
            until(lambda: c[0].ctl_run("status").returncode == 0, what="the daemon that dropped it")
        early = c.caller(name, small_layout(blocks=1), [0], 0)
        finish_all([early]), finish_all([early])
        if c.coordinator(name) is c[0]:
            early.refused("EBUSY", "attach", "node n1, which is away", hold=2, push=2)
        c.dismiss(early)
        c[1].start()
        c.wait_up()
        for d in c.daemons:
            until(lambda d=d: d.state_files() == [".lock"], what=f"the end of what {d.name} has")
            assert d.status()["jobs"] == [], d.status()["jobs"]
        train(c.ranks(name, small_layout(blocks=1), [0, 1], hold=2, push=2), 2)
        told = c[0].ctl("drop", name)
        assert told["untold"] == [], told


def note(job, nodes, uid):
    """(name, text) of the file in which a node remembers a drop; daemon/cluster/drop/drop.c."""
    return (f"{job}-{hashlib.blake2b(job.encode(), digest_size=16).hexdigest()}.0.drop", f"{job}\n{nodes} \n{uid}\n")


def remember(daemons, uids):
    """As if that many jobs, each of a user, had been dropped and n2 had heard of none."""
    for d in daemons:
        for i, uid in enumerate(uids):
            name, text = note(f"old{i}", "n2", uid)
            with open(f"{d.options['state_dir']}/{name}", "w", encoding="utf-8",
                      opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
                f.write(text)


def notes(daemon):
    return [f for f in daemon.state_files() if f.endswith(".drop")]


def started_with_drops(c, uids):
    """n2 is away, and the others remember those drops."""
    c[2].kill()
    for d in c.daemons[:2]:
        d.kill()
    remember(c.daemons[:2], uids)
    for d in c.daemons[:2]:
        d.start()
    for d in c.daemons[:2]:
        until(lambda d=d: d.ctl_run("status").returncode == 0 and any(p["up"] and not p["self"] for p in d.status()["peers"]),
              what=f"{d.name}'s link")


@cases_of([("all", 4096), ("user", 1024)], "of_{0[0]}")
def drops_that_a_node_has_not_heard_of_are_bounded(what):
    """The next one is refused and loses nothing; when the node is back, it is not."""
    whose, most = what
    if os.getuid():
        raise Skip("another user needs root")
    with Cluster(3, owners=2) as c:
        made(c, "job")
        uids = [NOBODY] * most if whose == "user" else [1000 + i % 8 for i in range(most)]
        started_with_drops(c, uids[:-1])
        made(c, "last")
        for d in c.daemons[:2]:
            until(lambda d=d: names(d) == ["job", "last"], what="the job is taken up")
        assert c[0].ctl("drop", "last")["untold"] == ["n2"]
        if whose == "all":
            assert [len(notes(d)) for d in c.daemons[:2]] == [most, most]
        for d in c.daemons[:2]:
            r = d.ctl_run("drop", "job", user=NOBODY)
            assert r.returncode == 1 and "EQUOTA" in r.stderr and "start the daemon of node n2" in r.stderr, r
            assert names(d) == ["job"] and any(f.startswith("job-") for f in d.state_files()), d.state_files()
        if whose == "user":  # another one's are not counted
            made(c, "theirs", uid=12345)
            assert c[1].ctl("drop", "theirs")["untold"] == ["n2"]
        c[2].start()
        c.wait_up()
        for d in c.daemons:
            until(lambda d=d: not notes(d), what=f"the end of what {d.name} remembers")
        assert c[2].ctl("drop", "job")["untold"] == []
        assert all(d.state_files() == [".lock"] for d in c.daemons)


@case
def drops_beyond_the_bound_by_ranks():
    """Ranks that want their job dropped leave it finished, and no finished job gives its place."""
    with Cluster(3, owners=2, job_limit=1) as c:
        started_with_drops(c, [NOBODY] * 1024)
        made(c, "job", leaves=(False, False))
        job_is_finished(c, "job")
        assert "cannot be dropped, although its ranks asked for it" in c[0].log() + c[1].log()
        more = as_user(c, NOBODY)
        more.do("connect", job="more", rank=0, world=1)
        more.do("layout", groups=small_layout())
        more.refused("EQUOTA", "attach", "job_limit", hold=2, push=2)
        assert names(c[0]) == names(c[1]) == ["job"]


@case
def drops_are_forgotten_with_a_node_that_is_declared_dead():
    with Cluster(3, mirror=1) as c:
        ranks = c.ranks("job", small_layout(), [0, 1], hold=2, push=2)
        for a in ranks:
            c.dismiss(a)
        for d in c.daemons:
            until(lambda d=d: json.loads(d.ctl_run("--json", "members").stdout)["voter"], what=f"the vote of {d.name}")
        c[2].kill()
        assert c[0].ctl("drop", "job")["untold"] == ["n2"]
        assert [len(notes(d)) for d in c.daemons[:2]] == [1, 1]
        c[0].change_owners("takeover", "--node-is-dead=n2")
        for d in c.daemons[:2]:
            until(lambda d=d: not notes(d), what=f"the end of what {d.name} remembers")


@case
def drop_needs_an_owner():
    """A drop is refused if no node that holds shards is reachable."""
    with Cluster(2, owners=1) as c:
        train(c.ranks("job", small_layout(), [1], hold=2, push=2), 1)
        c[0].kill()
        until(lambda: not c[1].peers_up(), what="the end of the link")
        r = c[1].ctl_run("drop", "job")
        assert r.returncode == 1 and "no node that holds shards is reachable" in r.stderr, r
        c[0].start()
        c.wait_up()
        assert c.checksum("job")["version"] == 1


@cases_of(["drop.noted", "drop.deleted"])
def drop_survives_the_daemon(point):
    """A daemon that is killed while it drops a job finishes the drop at its next start."""
    if not crash_points():
        raise Skip("the daemon was built without crash points")
    with Cluster(2, start=False) as c:
        c[0].start(crash=point)
        c[1].start()
        c.wait_up()
        ranks = c.ranks("job", small_layout(), [0, 1], hold=2, push=2)
        train(ranks, 2)
        c[0].ctl_run("drop", "job")
        until(lambda: not c[0].alive(), what="the daemon's death")
        c[0].start()
        c.wait_up()
        for d in c.daemons:
            until(lambda d=d: d.state_files() == [".lock"], what=f"the end of what {d.name} has")


def has_state(actor):
    """Whether the process has memory of a state file that it maps."""
    with open(f"/proc/{actor.pid}/maps", encoding="utf-8") as maps:
        begin = [int(line.split("-")[0], 16) for line in maps if ".state" in line]
    with open(f"/proc/{actor.pid}/mem", "rb", buffering=0) as memory:
        try:
            return bool(begin) and len(os.pread(memory.fileno(), 1, begin[0])) > 0
        except OSError:  # a read by the process itself would be SIGBUS
            return False


@cases_of(["bf16", "fp32"])
def drop_under_idle_clients(dtype):
    """Clients that stay attached, or hold served parameters, do not keep a dropped job's state."""
    with Cluster(1) as c:
        ranks = c.ranks("job", small_layout(dtype), [0, 0], hold=-1, push=-1, grad=dtype)
        for g in range(5):
            ranks[1].do("fetch", group=g)
        assert has_state(ranks[1]) == (dtype == "fp32")
        ranks[0].stop()
        observer = c.actor()
        observer.do("connect", job="job", rank=-1)
        observer.do("attach", observer=True)
        c[0].ctl("drop", "job")
        until(lambda: c[0].status()["memory"]["state_used"] == 0, what="the memory's return")
        if dtype == "bf16":
            assert ranks[1].do("view", group=0)["hash"], "the served parameters are gone"
        else:
            assert not has_state(ranks[1]), "the served parameters lie in the state, and go with it"
        observer.refused("ENOJOB", "get", tensor=0, plane="master", count=1)
        c.ranks("job", small_layout(blocks=1), [0], hold=1, push=1)
        ranks[0].go_on()
        for a in ranks:
            a.refused("ENOJOB", "step", sets=SETS)
            a.end()


@case
def drop_under_training():
    with Cluster(2, delay_ms=20) as c:
        for i in range(6):
            ranks = c.ranks("job", small_layout(width=128), [0, 1], hold=2, push=2)
            for a in ranks:
                a.start("train", steps=1000, sets=SETS)
            until(lambda: c[0].job("job") and c[0].job("job")["attempt"] > i // 2, what="a few steps")
            c[i % 2].ctl("drop", "job")
            for a in ranks:
                reply = a.finish()
                assert reply["status"] == "ENOJOB", reply
                a.end()
        for d in c.daemons:
            until(lambda d=d: d.status()["memory"]["state_used"] == 0, what=f"memory of {d.name}")


# ---- zeroctl -----------------------------------------------------------------------------------

def has(answer, *fields):
    for f in fields:
        assert f in answer, f"no '{f}' in {list(answer)}"


@case
def json_shapes():
    with Cluster(2) as c:
        ranks = c.ranks("job", small_layout(), [0, 1], hold=2, push=2)
        train(ranks, 12, clip=1)
        for d in c.daemons:
            s = d.status()
            has(s, "node", "version", "uptime_s", "socket", "state_dir", "device", "peers", "jobs", "memory")
            has(s["memory"], "state_used", "state_quota", "resident")
            assert [p["node"] for p in s["peers"]] == ["n0", "n1"]
            for p in s["peers"]:
                has(p, "address", "owner", "self", "up", "why", "bulk", "bulk_detail", "round_trip_s", "sent", "received")
                has(p["sent"], "gather", "reduce", "state", "control")
            job, = d.ctl("jobs")["jobs"]
            has(job, "coordinator", "ranks", "steps_per_s", "waiting", "gather", "reduce", "planes", "zero_formula",
                "sessions", "loss_scale", "skipped", "attempt", "owners")
            assert (job["job"], job["version"], job["world_size"], job["state"]) == ("job", 12, 2, "running"), job
            assert job["steps_per_s"] > 0 and job["grad_norm"] > 0, job
            ping, = d.ctl("ping")["peers"]
            assert ping["up"] and 0 < ping["round_trip_s"] < 5, ping
            has(c.checksum("job"), "job", "version", "checksum", "planes")
            groups = d.ctl("shards", "job")["jobs"][0]["groups"]
            assert len(groups) == 5 and {s["version"] for g in groups for s in g["shards"]} == {12}, groups
            assert {s["place"] for g in groups for s in g["shards"]} == {"host"}, groups
            assert len(d.ctl("shards")["jobs"]) == 1
            options = {o["name"]: o for o in d.ctl("config")["options"]}
            assert options["node"]["value"] == d.name and ".conf" in options["node"]["source"], options["node"]
            assert options["chunk"]["source"] == "default" and options["chunk"]["doc"], options["chunk"]
        assert not any("key" in o["name"] and len(o["value"]) == 64 for o in options.values()), "the key is shown"


@case
def output_for_people():
    with Cluster(2) as c:
        train(c.ranks("job", small_layout(), [0, 1], hold=2, push=2), 3)
        for command, words in ((["status"], ["node n0", "n1", "up", "job", "window", "ZeRO"]), (["jobs"], ["job", "2/2"]),
                               (["wait", "job", "--for", "running", "--step", "3"], ["job", "2/2"]),
                               (["shards", "job"], ["block0", "n1", "adamw", "moments"]), (["ping"], ["n1"]),
                               (["checksum", "job"], [c.checksum("job")["checksum"]]),
                               (["config"], ["state_dir", "default", ".conf"]), (["top", "--once"], ["job"]),
                               (["drop", "job"], ["job"])):
            r = c[0].ctl_run(*command)
            assert r.returncode == 0, (command, r.stderr)
            for word in words:
                assert word.lower() in r.stdout.lower(), f"'{word}' is not in {command}: {r.stdout}"


@cases_of([(["statsu"], 2, "status"), (["drop"], 2, "JOB"), (["checksum", "nojob"], 1, "nojob"),
           (["--socket", "/nowhere", "status"], 3, "/nowhere"), (["status", "more"], 2, "more"),
           (["--timeout", "0", "status"], 2, "timeout"), (["wait", "job", "--for", "ever"], 2, "ever"),
           (["--timeout", "1", "wait", "nojob"], 1, "no job 'nojob'")], "{0[0][0]}_{0[1]}")
def exit_codes(what):
    arguments, code, word = what
    with Cluster(1) as c:
        r = c[0].ctl_run(*arguments)
        assert r.returncode == code and word in r.stderr, (r.returncode, r.stderr)


@case
def wait_outlives_a_daemon():
    """zeroctl wait begins before the job is there, and asks the daemon that comes after the one that was killed."""
    def is_between_queries(zeroctl):
        with open(f"/proc/{zeroctl.pid}/wchan", encoding="ascii") as f:
            return "nanosleep" in f.read()

    with Cluster(2) as c:
        waits = [spawn([Tools.zeroctl, "--socket", c[0].socket, "--timeout", timeout, "wait", "job", *more],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                 for timeout, more in ((str(120 * SLOW), ["--step", "3"]), ("8", ["--for", "idle"]))]
        for w in waits:
            until(lambda w=w: is_between_queries(w), what="the first answer to zeroctl wait")
        c[0].kill()
        _, text = waits[1].communicate(timeout=60 * SLOW)
        assert waits[1].returncode == 1 and "zerod says nothing about job 'job'" in text, text
        c[0].start()
        c.wait_up()
        train(c.ranks("job", small_layout(), [0, 1], hold=2, push=2), 3)
        out, text = waits[0].communicate(timeout=60 * SLOW)
        assert waits[0].returncode == 0 and "job" in out, (out, text)


@case
def status_while_a_rank_is_late():
    """Both nodes show the late rank and what it owes."""
    with Cluster(2) as c:
        ranks = c.ranks("job", small_layout(), [0, 1], hold=2, push=2)
        ranks[1].do("grad", group=2)
        ranks[1].do("push", group=2)
        ranks[0].start("step", sets=SETS)
        for d in c.daemons:
            until(lambda d=d: any("rank 1 on n1" in w["for"] and "block1" in w["what"] and w["since_s"] >= 0
                                  for w in d.job("job")["waiting"]), what="the name of the late rank")
        r = c[0].ctl_run("jobs")
        assert "rank 1 on n1" in r.stdout, r.stdout
        r = c[0].ctl_run("--timeout", "1", "wait", "job", "--step", "1")
        assert r.returncode == 1 and "running at step 0, and waits for rank 1 on n1" in r.stderr, r.stderr
        ranks[1].start("step", sets=SETS)
        finish_all(ranks)
        until(lambda: not c[0].job("job")["waiting"], what="an empty waiting list")


@case
def job_that_stands_is_stalled():
    """All ranks are attached, and one does not step: after ten usual steps, and 10 s, the job no longer counts as running."""
    with Cluster(2) as c:
        ranks = c.ranks("job", small_layout(), [0, 1], hold=2, push=2)
        train(ranks, 3)
        assert c[0].job("job")["state"] == "running" and c[0].job("job")["steps_per_s"] > 0
        ranks[0].start("train", steps=1, first_step=3, sets=SETS)
        for d in c.daemons:
            until(lambda d=d: d.job("job")["state"] == "stalled", what="stalled")
            assert d.job("job")["steps_per_s"] == 0
        r = c[0].ctl_run("--timeout", "1", "wait", "job")  # all ranks are attached
        assert r.returncode == 0, r.stderr
        ranks[1].start("train", steps=1, first_step=3, sets=SETS)
        finish_all(ranks)
        for d in c.daemons:
            until(lambda d=d: d.job("job")["state"] == "running", what="running")


def attached(c, job, placement, **needs):
    """Ranks of a job; the first one's standard error is a pipe."""
    ranks = [c.caller(job, small_layout(), placement, r, stderr=None if r else subprocess.PIPE) for r in range(len(placement))]
    finish_all(ranks), finish_all(ranks)
    for a in ranks:
        a.start("attach", **needs)
    finish_all(ranks)
    return ranks


@case
def ranks_that_wait_say_for_whom():
    """In an attach, a gather, a step and a push whose slot is wanted again; and when the daemon is away."""
    def said(a, *words):
        until(lambda: select.select([a.process.stderr], [], [], 0)[0], what=f"words of {a.name}")
        line = a.process.stderr.readline().decode()
        assert all(word in line for word in (f"zerod: rank 0 of job '{a.name.split()[-1]}' has waited", *words)), line
    with Cluster(2) as c, Cluster(1) as alone:
        attaching = c.caller("attaching", small_layout(), [0, 1], 0, stderr=subprocess.PIPE)
        finish_all([attaching]), finish_all([attaching])
        stepping = attached(c, "stepping", [0, 1], hold=2, push=2)
        pushing = attached(c, "pushing", [0, 0], hold=2, push=1)
        lost = attached(alone, "lost", [0], hold=2, push=2)
        attaching.start("attach", hold=2, push=2)
        stepping[0].start("step", sets=SETS)
        pushing[0].do("grad", group=3)
        pushing[0].do("push", group=3)
        pushing[0].start("grad", group=2)
        alone[0].kill()
        lost[0].start("fetch", group=0)
        said(attaching, "for rank 1", ": to attach")
        said(stepping[0], "for rank 1 on n1: zero_norm or zero_step")
        said(pushing[0], "for rank 1 on n0: ", "gradient of group 'block2'")
        said(lost[0], "for zerod: ", "is zerod running?")
        for a in (attaching, stepping[0], pushing[0], lost[0]):
            a.kill()


@case
def verdict_and_one_line_a_cause():
    """A node dies with its ranks: the verdict names it, and the others' waits for its ranks are no causes of their own."""
    with Cluster(3) as c:
        ranks = c.ranks("job", small_layout(), [0, 1, 2, 2], hold=2, push=2)
        train(ranks, 3)
        for a in ranks[:2]:
            a.start("train", steps=1, first_step=3, sets=SETS)
        until(lambda: any("rank 3" in w["for"] for w in c[0].job("job")["waiting"]), what="the wait for n2's ranks")
        c[2].kill()
        for d in c.daemons[:2]:
            # until the coordinator has told who waits, too
            until(lambda d=d: max([w["since_s"] for w in d.job("job")["waiting"]], default=0) > 2, what="the cause")
            status = d.status()
            assert [w["for"] for w in status["jobs"][0]["waiting"]] == ["node n2"], status["jobs"][0]["waiting"]
            assert status["jobs"][0]["state"] == "incomplete" and status["jobs"][0]["steps_per_s"] == 0, status["jobs"][0]
            assert status["verdict"] == "error" and list(status)[:2] == ["verdict", "findings"], status
            assert [(f["check"], f["state"], bool(f["advice"])) for f in of_nodes(status, "n1", "n2")] == [
                ("ZerodNodeDown", "error", True)], status["findings"]
            lines = d.ctl_run("jobs").stdout.splitlines()
            assert len(lines) == 3 and "for node n2: to come up again" in lines[2], lines
        c[1].process.terminate()
        c[1].process.wait()
        until(lambda: [p["goodbye"] for p in c[0].status()["peers"]] == [None, "stopped", None], what="the goodbye")
        for command in ("status", "top"):
            assert re.search(r"^n1 .* stopped ", c[0].ctl_run(command).stdout, re.M), command
        assert [f["check"] for f in of_nodes(c[0].status(), "n1", "n2")] == ["ZerodNodeDown", "ZerodNodeStopped"]
        c[2].start()
        c[1].start()
        c.wait_up()
        until(lambda: not of_nodes(c[0].status(), "n1", "n2"), what="that no node is named")
        for a in ranks:
            a.kill()


@case
def state_follows_the_attached_ranks():
    with Cluster(2) as c:
        a, b = c.ranks("job", small_layout(), [0, 1], hold=2, push=2)

        def becomes(state):
            for d in c.daemons:
                until(lambda d=d: d.job("job")["state"] == state, what=state)
        becomes("running")
        a.do("close")
        becomes("incomplete")
        b.do("close")
        becomes("idle")
        c[0].restart()
        c.wait_up()
        becomes("idle")


@case
def ping_fails_without_the_peer():
    with Cluster(2) as c:
        c[1].process.terminate()
        c[1].process.wait()
        until(lambda: not c[0].peers_up(), what="the peer's end")
        r = c[0].ctl_run("--json", "ping")
        assert r.returncode == 1, r
        peer, = json.loads(r.stdout)["peers"]
        assert not peer["up"] and peer["round_trip_s"] is None, peer


@case
def plain_zerod():
    """Without configuration: one node, under $XDG_RUNTIME_DIR, and zeroctl finds it there."""
    with Cluster(1, start=False) as c:
        home = f"{c.directory}/user"
        os.mkdir(home, 0o700)
        user = {}
        if os.getuid() == 0:
            os.chown(home, NOBODY, NOBODY)
            user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ZEROD")}
        environment["XDG_RUNTIME_DIR"] = home
        if subprocess.run([Tools.zerod, "--version"], capture_output=True, check=False, **user).returncode:
            raise Skip("the build tree is not readable for another user")
        log = open(f"{c.directory}/plain.log", "wb")
        daemon = spawn([Tools.zerod], env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **user)
        c.others.append(daemon)

        def ctl():
            r = subprocess.run([Tools.zeroctl, "--json", "status"], env=environment, capture_output=True, text=True,
                               timeout=30 * SLOW, check=False)
            return json.loads(r.stdout) if r.returncode == 0 else None
        s = until(ctl, what="the plain daemon")
        assert s["socket"] == f"{home}/zerod.sock" and s["state_dir"] == f"{home}/zerod", s
        daemon.terminate()
        assert daemon.wait(15 * SLOW) == 0
        assert not os.path.exists(f"{home}/zerod.sock")


if __name__ == "__main__":
    main()
