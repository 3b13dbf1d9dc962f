#!/usr/bin/env python3
"""Checkpoints: taking one does not change a job that trains; restoring one on any number of nodes gives the
same bits, and training goes on from there."""
import json
import os
import shutil
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import BIG, LAYOUT, Place, end, partial, planes, start_training, train, whole  # noqa: E402
from cluster import SETS, Cluster, finish_all, small_layout, until  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402


def undisturbed(steps, nodes=2, layout=None, placement=(0, 1), **needs):
    with Cluster(nodes) as c:
        ranks = c.ranks("job", layout or LAYOUT, list(placement), hold=2, push=2, **needs)
        train(ranks, steps)
        return planes(c)


def restored(place, nodes, job="job", **options):
    c = Cluster(nodes, **options)
    try:
        answer = c[nodes - 1].ctl("restore", job, place)
        assert answer["status"] == "OK" and answer["operation"] == "restore", answer
    except BaseException:
        c.end()
        raise
    return c


# ---- taken while a job trains ------------------------------------------------------------

@case
def idle_job():
    with Place() as d, Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], hold=2, push=2)
        train(ranks, 3)
        for node in (0, 1):
            answer = c[node].ctl("checkpoint", "job", d)
            assert answer["version"] == 3 and answer["status"] == "OK", answer
            assert answer["path"] == f"{d}/job-3" and whole(d) == ["job-3"] and not partial(d)
        for f in os.listdir(f"{d}/job-3"):
            assert os.stat(f"{d}/job-3/{f}").st_mode & 0o777 == 0o600

        def estimated():
            """The checkpoint may be over before zeroctl asks how long it takes."""
            text = c[0].ctl_run("checkpoint", "job", d)
            assert text.returncode == 0, text
            return "may wait for about" in text.stderr and text.stdout
        assert "version 3" in until(estimated, what="a checkpoint with an estimate")


@cases_of([("full", 0, "fp32"), ("tight", 1, "fp32"), ("bf16", 0, "bf16")], "{0[0]}")
def taken_while_ranks_train(how):
    """Takes checkpoint after checkpoint while two ranks train: the job ends with the bits that it has without
    them, and training resumed from one of them ends with the same bits."""
    _, memory, dtype = how
    layout, needs = small_layout(dtype, blocks=3, width=120), {"grad": dtype}
    steps = 60
    expected = undisturbed(steps, layout=layout, **needs)
    with Place() as d:
        with Cluster(2, checkpoint_memory=memory, threads=2) as c:
            ranks = c.ranks("job", layout, [0, 1], hold=2, push=2, **needs)
            versions = set()
            for _ in range(6):  # at least one of two consecutive rounds gives a new version
                start_training(ranks, steps // 6)
                done = False
                while not done:
                    versions.add(c[len(versions) % 2].ctl("checkpoint", "job", d)["version"])
                    done = all(a.ready() for a in ranks)
                finish_all(ranks)
            assert planes(c) == expected
            assert len(versions) > 2, "too few checkpoints to prove anything"
        middle = sorted(versions)[len(versions) // 2]
        with restored(f"{d}/job-{middle}", 3) as c:
            ranks = c.ranks("job", layout, [0, 1], hold=2, push=2, **needs)
            assert {a.do("version")["version"] for a in ranks} == {middle}
            train(ranks, steps - middle)
            assert planes(c) == expected


@case
def state_larger_than_the_copy_buffer():
    """A state of many blocks goes through the smallest buffer while the job steps."""
    layout = small_layout(blocks=4, width=1100)
    expected = undisturbed(6, nodes=1, layout=layout, placement=(0,))
    with Place() as d:
        with Cluster(1, checkpoint_memory=1) as c:
            a, = c.ranks("job", layout, [0], hold=2, push=2)
            train([a], 2)
            start_training([a], 4)
            answer = c[0].ctl("checkpoint", "job", d)
            assert answer["bytes"] > 2 * answer["buffer_bytes"], answer
            finish_all([a])
            assert planes(c) == expected
        with restored(answer["path"], 2) as c:
            a, = c.ranks("job", layout, [0], hold=2, push=2)
            train([a], 6 - answer["version"])
            assert planes(c) == expected


# ---- restored ------------------------------------------------------------------------------

@cases_of([(1, "", ""), (2, "", ""), (3, "", ""), (1, "n0*2 n1*2", "n0*3"), (3, "n0 n1*2", "n0*2 n2*4")],
          "{0[0]}_{0[1]}_to_{0[2]}")
def restored_on(what):
    """A checkpoint of two nodes, restored on one, two or three: the same state, and the same training after it."""
    nodes, before, after = what
    expected = undisturbed(7)
    with Place() as d:
        with Cluster(2, owners=before) as c:
            ranks = c.ranks("job", LAYOUT, [0, 1], hold=2, push=2)
            train(ranks, 4)
            c[0].ctl("checkpoint", "job", d)
            sums = c.checksum("job")
        with restored(f"{d}/job-4", nodes, owners=after) as c:
            assert c.checksum("job") == sums
            if nodes > 1:
                ranks = c.ranks("job", LAYOUT, [0, 1], hold=2, push=2)
                train(ranks, 3)
                assert planes(c) == expected
            else:
                train(c.ranks("job", LAYOUT, [0, 0], hold=2, push=2), 3)
                assert c.checksum("job")["version"] == 7


@case
def owners_are_fewer_than_nodes():
    with Place() as d:
        with Cluster(3, owners=2) as c:
            ranks = c.ranks("job", LAYOUT, [0, 2], hold=2, push=2)
            train(ranks, 2)
            c[2].ctl("checkpoint", "job", d)
            sums = c.checksum("job")
        with restored(f"{d}/job-2", 3, owners="n1") as c:
            assert c.checksum("job") == sums
            train(c.ranks("job", LAYOUT, [0, 2], hold=2, push=2), 1)


@case
def restore_replaces_an_existing_job():
    """A restore is refused while ranks are attached. Once restored, the job has the checkpoint's state, also after
    a restart."""
    with Place() as d, Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], hold=2, push=2)
        train(ranks, 2)
        c[0].ctl("checkpoint", "job", d)
        then = c.checksum("job")
        train(ranks, 2)
        r = c[0].ctl_run("restore", "job", f"{d}/job-2")
        assert r.returncode == 1 and "attached" in r.stderr, r
        assert c.checksum("job")["version"] == 4
        end(ranks)
        until(lambda: not c[0].job("job")["sessions"] and not c[1].job("job")["sessions"], what="the sessions' end")
        c[1].ctl("restore", "job", f"{d}/job-2")
        assert c.checksum("job") == then
        for x in c.daemons:
            x.process.kill()
            x.process.wait()
        c.start()
        assert c.checksum("job") == then
        train(c.ranks("job", LAYOUT, [0, 1], hold=2, push=2), 1)
        c[0].ctl("restore", "other", f"{d}/job-2")
        assert planes(c, "other") == then["planes"] and c.checksum("job")["version"] == 3
        for job in ("job", "other"):
            c[0].ctl("drop", job)
        for x in c.daemons:
            assert x.status()["memory"]["state_used"] == 0


@case
def blobs_are_restored():
    with Place() as d:
        with Cluster(2) as c:
            ranks = c.ranks("job", LAYOUT, [0, 1], hold=2, push=2)
            for a, blob in zip(ranks, ("ab" * 40, "cd")):
                a.start("step", sets=SETS, blob=blob)
            finish_all(ranks)
            if "blob" not in ranks[0].do("version"):
                raise Skip("the actor does not know blobs")
            c[0].ctl("checkpoint", "job", d)
        with restored(f"{d}/job-1", 3) as c:
            ranks = c.ranks("job", LAYOUT, [2, 0], hold=2, push=2)
            assert [a.do("version")["blob"] for a in ranks] == ["ab" * 40, "cd"]


# ---- --keep and --every ----------------------------------------------------------------------------

@case
def keep_deletes_all_but_the_newest():
    with Place() as d, Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], hold=2, push=2)
        other = c.ranks("job-2", small_layout(blocks=1), [0], hold=2, push=2)
        c[0].ctl("checkpoint", "job-2", d)
        for i in range(5):
            c[0].ctl("checkpoint", "job", d, "--keep", "2")
            known = [job["checkpoint"] for job in (node.job("job") for node in c.daemons) if job["checkpoint"]]
            assert [k["version"] for k in known] == [i], known  # only the job's coordinator knows it
            assert known[0]["age_s"] >= 0 and known[0]["took_s"] >= 0 and known[0]["error"] is None, known
            train(ranks, 1)
        assert whole(d) == ["job-2-0", "job-3", "job-4"] and not partial(d), os.listdir(d)
        end(other)


@case
def every_writes_one_every_n_steps():
    with Place() as d, Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], hold=2, push=2)
        answer = c[1].ctl("checkpoint", "job", d, "--every", "3", "--keep", "2")
        assert answer["every"] == 3 and answer["next_version"] == 3, answer
        seen = set()
        for _ in range(9):
            train(ranks, 1)
            version = c[0].job("job")["version"]
            if version % 3 == 0:
                until(lambda v=version: f"job-{v}" in whole(d), what="a periodic checkpoint")
            seen.update(whole(d))
        assert seen >= {"job-3", "job-6", "job-9"}, seen
        until(lambda: whole(d) == ["job-6", "job-9"], what="deletion of the oldest")
        c[0].ctl("checkpoint", "job", d, "--every", "0")
        train(ranks, 6)
        assert whole(d) == ["job-6", "job-9"]


def listed(daemon, directory, *options, code=0):
    r = daemon.ctl_run("--json", "checkpoints", directory, *options)
    assert r.returncode == code, (r.returncode, r.stderr)
    return {k["name"]: k for k in json.loads(r.stdout)["checkpoints"]}


def flip(path, at):
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 1]))


@case
def checkpoints_are_listed_and_verified():
    """Newest first, with what is missing; --verify finds a flipped bit in any file, and lists the others all the same."""
    with Place() as d, Cluster(2) as c:
        ranks = c.ranks("job", BIG, [0, 1], hold=2, push=2)
        assert not listed(c[0], d)
        for _ in range(3):
            train(ranks, 1)
            c[1].ctl("checkpoint", "job", d)
        os.mkdir(f"{d}/job-7")
        os.mkdir(f"{d}/.job-9.partial")
        found = listed(c[0], d)
        assert list(found) == ["job-3", "job-2", "job-1"], found
        for name, k in found.items():
            size = sum(os.path.getsize(f"{d}/{name}/{f}") for f in os.listdir(f"{d}/{name}") if f.startswith("shard"))
            assert (k["job"], f"job-{k['version']}") == ("job", name) and k["bytes"] == size and 0 <= k["age_s"] < 600, k
            assert k["shards"] == k["shards_here"] == 2 and k["flaw"] is None and "verified" not in k, k
        verified = listed(c[0], d, "--verify")
        assert all(k["verified"] and k["flaw"] is None for k in verified.values()), verified
        one = c[1].ctl_run("checkpoints", f"{d}/job-2", "--verify")
        assert one.returncode == 0 and "verified" in one.stdout and "2/2" in one.stdout, one
        shard = sorted(f for f in os.listdir(f"{d}/job-2") if f.startswith("shard"))[-1]
        flip(f"{d}/job-2/{shard}", os.path.getsize(f"{d}/job-2/{shard}") - 5)
        assert listed(c[0], d)["job-2"]["flaw"] is None, "only --verify reads all"
        verified = listed(c[0], d, "--verify", code=1)
        assert shard in verified["job-2"]["flaw"] and "checksum of block" in verified["job-2"]["flaw"], verified
        assert verified["job-3"]["verified"] and verified["job-1"]["verified"], verified
        os.unlink(f"{d}/job-3/{shard}")
        flip(f"{d}/job-1/manifest.json", 300)
        found = listed(c[0], d, code=1)
        assert found["job-3"]["shards_here"] == 1 and shard in found["job-3"]["flaw"] and "n1" in found["job-3"]["flaw"], found
        assert found["job-1"]["job"] is None and "manifest" in found["job-1"]["flaw"], found
        r = c[0].ctl_run("checkpoints", f"{d}/none")
        assert r.returncode == 1 and "No such file" in r.stderr, r
        for n in range(510):
            os.mkdir(f"{d}/old-{n}", 0o700)
            shutil.copy(f"{d}/job-2/manifest.json", f"{d}/old-{n}")
        told = c[0].ctl_run("checkpoints", d).stdout.splitlines()
        assert len(told) == 1 + 512 + 1 and told[-1] == "1 older ones are left out", told[-3:]


def by_name(c, name):
    return next(d for d in c.daemons if d.name == name)


def coordinator(c):
    """By the owner list in force, which all nodes have taken up."""
    def named():
        jobs = [d.job("job") for d in c.daemons]
        names = {job["coordinator"] for job in jobs if job}
        return len(names) == 1 and all(jobs) and names.pop()
    return by_name(c, until(named, what="a coordinator"))


def schedules(c):
    return {d.name: d.job("job")["schedule"] for d in c.daemons}


def goes_on(c, d, ranks, every):
    """Two more checkpoints are there after twice as many steps."""
    for _ in range(2):
        train(ranks, every)
        version = c[0].job("job")["version"]
        until(lambda v=version: f"job-{v}" in whole(d), what=f"the periodic checkpoint of version {version}")
        until(lambda v=version: {s["last_version"] for s in schedules(c).values()} == {v}, what="all nodes to know it")


@case
def schedule_belongs_to_the_job():
    """It survives changes of owners, and the death of whoever coordinates; every node says when the next is due."""
    with Place() as d, Cluster(3) as c:
        ranks = c.ranks("job", LAYOUT, [1, 2], hold=2, push=2)
        first = coordinator(c)
        first.ctl("checkpoint", "job", d, "--every", "2", "--keep", "3")
        goes_on(c, d, ranks, 2)
        c[1].change_owners("remove-node", first.name)
        second = coordinator(c)
        assert second is not first
        goes_on(c, d, ranks, 2)
        end(ranks)
        for victim in (second, *(x for x in c.daemons if x not in (first, second)), first):
            victim.restart()
            c.wait_up()
            coordinator(c)
            assert {s["every"] for s in schedules(c).values()} == {2}, schedules(c)
        ranks = c.ranks("job", LAYOUT, [1, 2], hold=2, push=2)
        goes_on(c, d, ranks, 2)
        c[1].change_owners("add-node", first.name)
        assert coordinator(c) is first
        goes_on(c, d, ranks, 2)
        for daemon in c.daemons:
            assert all(s["periodic_directory"] is None for s in schedules(c).values()), "a path is its user's"
            for command in ("status", "jobs"):
                text = daemon.ctl_run(command).stdout
                assert "job: a checkpoint every 2 steps; none after version " in text, text
        version = c[0].job("job")["version"]
        assert whole(d) == sorted(f"job-{v}" for v in (version - 4, version - 2, version)), os.listdir(d)


@case
def new_owner_learns_the_schedule():
    """While the list is the first, a node without shards keeps no notes: as an owner it hears from those before it."""
    with Place() as d, Cluster(2, owners="n0") as c:
        ranks = c.ranks("job", LAYOUT, [0, 0], hold=2, push=2)
        c[1].ctl("checkpoint", "job", d, "--every", "2")
        train(ranks, 2)
        until(lambda: whole(d) == ["job-2"], what="the periodic checkpoint")
        assert not any(f.endswith(".schedule") for f in c[1].state_files())
        for command, node in (("add-node", "n1"), ("remove-node", "n0")):
            c[0].change_owners(command, node)
            until(lambda: not c[0].job("job")["move"], what="the move")
        until(lambda: (job := c[1].job("job")) and job["coordinator"] == "n1", what="the new coordinator")
        for version in (4, 6):
            train(ranks, 2)
            until(lambda v=version: f"job-{v}" in whole(d), what=f"the periodic checkpoint of version {version}")


@case
def schedule_that_was_ended_does_not_come_back():
    """Not by a node that was away at the order; nor does a new job have that of a dropped one."""
    with Place() as d, Cluster(3) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], hold=2, push=2)
        at = coordinator(c)
        away = next(x for x in c.daemons if x is not at)
        at.ctl("checkpoint", "job", d, "--every", "2")
        goes_on(c, d, ranks, 2)
        end(ranks)
        away.kill()
        at.ctl("checkpoint", "job", d, "--every", "0")
        at.restart()
        away.start()
        c.wait_up()
        coordinator(c)
        until(lambda: not any(schedules(c).values()), what="all nodes to know the end")
        at.ctl("checkpoint", "job", d, "--every", "2")
        until(lambda: all(schedules(c).values()), what="all nodes to know the schedule")
        away.kill()
        at.ctl_run("drop", "job")
        away.start()
        c.wait_up()
        until(lambda: not any(x.job("job") for x in c.daemons), what="the drop")
        until(lambda: not any(f.endswith((".schedule", ".drop")) for x in c.daemons for f in x.state_files()),
              what="the notes' end")
        train(c.ranks("job", LAYOUT, [0, 1], hold=2, push=2), 4)
        assert not any(schedules(c).values()) and whole(d) == ["job-2", "job-4"], os.listdir(d)


@case
def schedule_survives_a_restore():
    with Place() as d, Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], hold=2, push=2)
        c[0].ctl("checkpoint", "job", d, "--every", "3")
        goes_on(c, d, ranks, 3)
        end(ranks)
        until(lambda: not any(x.job("job")["sessions"] for x in c.daemons), what="the sessions' end")
        c[0].ctl("restore", "job", f"{d}/job-3")
        for x in c.daemons:
            x.kill()
        c.start()
        ranks = c.ranks("job", LAYOUT, [0, 1], hold=2, push=2)
        os.rename(f"{d}/job-6", f"{d}/before")
        until(lambda: coordinator(c).job("job")["schedule"]["next_version"] == 6, what="the coordinator to reckon anew")
        train(ranks, 3)
        until(lambda: "job-6" in whole(d), what="the periodic checkpoint")


if __name__ == "__main__":
    main()
