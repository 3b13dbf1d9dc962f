#!/usr/bin/env python3
"""Daemons die, stop and restart: no committed step is lost, trainers reconnect by themselves, and the job ends with
the same bits."""
import errno
import os
import resource
import shutil
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import Place  # noqa: E402
from cluster import SETS, SLOW, Cluster, end_process, finish_all, small_layout, until  # noqa: E402
from harness import case, cases_of, main  # noqa: E402
from mounts import private_mounts, small_disks  # noqa: E402
from moments import (LAYOUT, MOMENTS, Endless, NEEDS, STEPS, TRAIN, all_aborted, as_undisturbed, can_vote, go_to, kept,  # noqa: E402
                     start_step, train, victims)


# ---- a daemon dies ---------------------------------------------------------------------------

@cases_of([(m, w) for m in (*MOMENTS, "voting") for w in ("coordinator", "other", "both")],
          "{0[0]}_{0[1]}")
def daemon_killed(what):
    """The attempt is void; trainers reconnect by themselves and replay the step."""
    moment, who = what
    with Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        go_to(ranks, "pushed" if moment == "voting" else moment, 2)
        if moment == "voting":
            start_step(ranks[0], 0, 3)
        for d in victims(c, who):
            d.kill()
        for d in victims(c, who):
            d.start()
        if moment != "idle":
            all_aborted(ranks, 2)
        train(ranks, STEPS - 2, patient=True)
        as_undisturbed(c, [0, 1])


@cases_of(["coordinator", "other", "both"])
def daemon_of_several_devices_killed(who):
    """The shards of each device are recovered separately."""
    with Cluster(2, owners="n0*2 n1*3") as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        go_to(ranks, "pushed", 2)
        start_step(ranks[0], 0, 3)
        for d in victims(c, who):
            d.kill()
        for d in victims(c, who):
            d.start()
        all_aborted(ranks, 2)
        train(ranks, STEPS - 2, patient=True)
        as_undisturbed(c, [0, 1])


@cases_of(["coordinator", "other", "both"])
def daemon_killed_in_update(who):
    """The step was decided before the kill: it is committed, and every rank gets its result."""
    layout = small_layout(blocks=2, width=512)
    with Cluster(2) as c:
        ranks = c.ranks("job", layout, [0, 1], **NEEDS)
        train(ranks, 2)
        go_to(ranks, "pushed", 2)
        for rank, a in enumerate(ranks):
            start_step(a, rank, 3)
        until(lambda: ranks[0].ready() or ranks[1].ready(), what="the decision")
        for d in victims(c, who):
            d.restart()
        for a in ranks:
            reply = a.finish()
            assert reply["status"] in ("OK", "EABORTED") and a.ask("version")["version"] == 3, reply
        for a in ranks:
            a.start("train", steps=STEPS - 3, patient=True, **{**TRAIN, "keep": False})
        finish_all(ranks)
        told = c.checksum("job")
    with Cluster(2) as c:
        train(c.ranks("job", layout, [0, 1], **NEEDS), STEPS)
        assert c.checksum("job") == told


@case
def groups_stay_held_until_the_rank_hears_of_the_abort():
    """A rank that computes does not hear of the abort and still reads its group. Another rank of the node, which has
    heard, gets other slabs, also in the next attempt."""
    with Cluster(2) as c:
        busy, other = ranks = c.ranks("job", LAYOUT, [0, 0], **{**NEEDS, "hold": 1})
        train(ranks, 2)
        busy.do("fetch", group=0)
        seen = busy.do("view", group=0)["hash"]
        for _ in range(2):
            c[1].restart()
            all_aborted([other], 2)
            for g in (1, 2, 3):
                other.do("fetch", group=g)
                assert busy.do("view", group=0)["hash"] == seen, f"group {g} is where group 0 was held"
                other.do("release", group=g)
        all_aborted([busy], 2)
        train(ranks, STEPS - 2, patient=True)
        as_undisturbed(c, [0, 0])


@case
def daemons_killed_under_training():
    with Cluster(3) as c:
        training = Endless(c, c.ranks("job", LAYOUT, [0, 1, 2], **NEEDS))
        for i in range(6):
            training.goes_on()
            c[i % 3].restart()
            c.wait_up()
        training.goes_on()
        version, aborts = training.end()
        assert aborts, "no step was interrupted"
        as_undisturbed(c, [0, 1, 2], version)


@case
def crash_loop():
    """A daemon that dies repeatedly during its start loses nothing."""
    with Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        before = c.checksum("job")
        for i in range(10):
            begun = len(c[i % 2].log().splitlines())
            c[i % 2].restart()
            until(lambda: len(c[i % 2].log().splitlines()) >= begun + i // 2, what=f"{i // 2} lines of its log")
        c.wait_up()
        until(lambda: c[0].ctl_run("checksum", "job").returncode == 0, what="a checksum")
        assert c.checksum("job") == before
        train(ranks, STEPS - 2, patient=True)
        as_undisturbed(c, [0, 1])


@case
def upgrade_under_training():
    """After SIGTERM the step in flight ends; trainers see a pause and no error."""
    with Cluster(2) as c:
        training = Endless(c, c.ranks("job", LAYOUT, [0, 1], **NEEDS))
        for i in range(4):
            training.goes_on()
            assert end_process(c[i % 2].process, 15 * SLOW), c[i % 2].log()[-2000:]
            c[i % 2].start()
            c.wait_up()
        training.goes_on()
        version, aborts = training.end()
        assert aborts, "no step was interrupted"
        as_undisturbed(c, [0, 1], version)


@cases_of(["coordinator", "other"])
def drains_the_step_in_flight(who):
    """A stopping daemon waits for the decision, so the step is committed."""
    with Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        go_to(ranks, "pushed", 2)
        start_step(ranks[0], 0, 3)
        d, = victims(c, who)
        d.process.terminate()
        start_step(ranks[1], 1, 3)
        assert [r["version"] for r in finish_all(ranks)] == [3, 3]
        assert d.process.wait(15 * SLOW) == 0, d.log()[-2000:]
        d.start()
        for a in ranks:
            a.start("train", steps=STEPS - 3, patient=True, **{**TRAIN, "keep": False})
        finish_all(ranks)
        as_undisturbed(c, [0, 1])


def peer(daemon, of):
    return next(p for p in daemon.status()["peers"] if p["node"] == of.name)


def ends_having_said_so(daemon, *others):
    assert daemon.process.wait(60 * SLOW) == 0, daemon.log()
    for d in others:
        until(d.alive, what=f"daemon {d.name}")
        until(lambda d=d: d.ctl_run("status").returncode == 0 and peer(d, daemon)["goodbye"] == "stopped",
              what=f"the goodbye of {daemon.name} on {d.name}")


def comes_back(c, training):
    """Node n1 starts again, and training ends as if nothing had been."""
    c[1].start()
    c.wait_up()
    training.goes_on()
    last, _ = training.end()
    as_undisturbed(c, [0, 1], last)


def held_amid_a_step(c):
    """A step in flight that cannot end before rank 0, which is stopped, goes on."""
    ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
    training = Endless(c, ranks)
    training.goes_on()
    ranks[0].stop()
    # Rank 0 may have handed its step in before it stopped: the next step is the one that waits.
    until(lambda: any(w["for"].startswith("rank 0") and w["since_s"] > 2 for w in c[1].job("job")["waiting"]), what="a step in flight")
    return ranks[0], training


@case
def stop_during_a_change_of_owners_is_told():
    with Cluster(3, owners=2, drain_ms=120000 * SLOW) as c:
        can_vote(c)
        held, training = held_amid_a_step(c)  # which holds the change up
        c[0].change_owners("add-node", "n2")
        until(lambda: "restarting with the owners" in c[1].log(), what="the new owners on n1")
        c[1].process.terminate()
        until(lambda: "node n1 is stopping in order" in c[0].log(), what="the goodbye of n1")
        assert "a stop is already in progress" not in c[1].log(), c[1].log()
        assert c[1].alive(), "the stop did not wait for the step in flight"
        held.go_on()
        ends_having_said_so(c[1], c[0], c[2])
        comes_back(c, training)


def stopping_amid_a_step(c):
    """Node n1 stops, and waits for a step that rank 0 holds up; n2 has heard of that."""
    held, training = held_amid_a_step(c)
    c[1].process.terminate()
    until(lambda: "node n1 is stopping in order" in c[2].log(), what="the goodbye of n1")
    return held, training


@case
def stop_is_told_to_a_node_that_comes_back_meanwhile():
    with Cluster(3, owners=2, drain_ms=120000 * SLOW) as c:
        held, training = stopping_amid_a_step(c)
        c[2].restart()
        c.wait_up()
        held.go_on()
        ends_having_said_so(c[1], c[0], c[2])
        comes_back(c, training)


@case
def stop_waits_for_a_node_that_has_just_left_and_starts_again():
    """A node that starts knows no goodbye: without the wait it takes the stop for a failure."""
    with Cluster(3, owners=2, drain_ms=120000 * SLOW) as c:
        held, training = stopping_amid_a_step(c)
        c[2].kill()
        held.go_on()
        time.sleep(0.3)  # in which a stop that does not wait is over
        c[2].start()
        ends_having_said_so(c[1], c[0], c[2])
        comes_back(c, training)


@cases_of(["coordinator", "other"])
def node_that_lost_its_state(who):
    """Errors name the empty node; the other node keeps its states until somebody restores the job."""
    with Cluster(2) as c, Place() as place:
        lost, = victims(c, who)
        other, = (d for d in c.daemons if d is not lost)
        ranks = c.ranks("job", LAYOUT, [0, 1], timeout_ms=10000 * SLOW, **NEEDS)
        train(ranks, 2)
        c[0].ctl("checkpoint", "job", place)
        lost.kill()
        files = other.state_files()
        shutil.rmtree(lost.options["state_dir"])
        lost.start()
        c.wait_up()
        for a in ranks:
            a.start("fetch", group=1)
        for a in ranks:
            reply = a.finish()
            assert reply["status"] not in ("OK", "EABORTED") and lost.name in reply["text"], reply
        late = c.rank("job", LAYOUT, [0, 1], 0, incarnation=1, timeout_ms=10000 * SLOW, **NEEDS)
        late.finish(), late.finish()
        reply = late.finish()
        assert reply["status"] not in ("OK", "EABORTED") and lost.name in reply["text"], reply
        assert other.job("job")["version"] == 2 and other.state_files() == files, (other.job("job"), files)
        for a in (late, *ranks):
            a.end()
        c[0].ctl("restore", "job", f"{place}/job-2")
        train(c.ranks("job", LAYOUT, [0, 1], **NEEDS), STEPS - 2)
        as_undisturbed(c, [0, 1])


# ---- little memory ------------------------------------------------------------------------------

NEED = {"hold": 2, "push": 2}


def begin(c, dtype):
    ranks = c.ranks("job", small_layout(dtype, width=256), [0, 1], grad=dtype, **NEED)
    for a in ranks:
        a.start("train", steps=2, sets=SETS)
    finish_all(ranks)
    return ranks


def go_on(c, ranks):
    for a in ranks:
        a.start("train", steps=2, sets=SETS, patient=True)
    finish_all(ranks)
    return c.checksum("job")


def without_trouble(dtype):
    with Cluster(2) as c:
        return go_on(c, begin(c, dtype))


@cases_of([(dtype, who) for dtype in ("fp32", "bf16") for who in ("coordinator", "other")], "{0[0]}_{0[1]}")
def state_directory_is_full(what):
    """Another program fills the file system while the daemon is away: existing states need no more room."""
    dtype, who = what
    private_mounts()
    with Place() as place, small_disks([f"{place}/0", f"{place}/1"], "64m,mode=0700") as disks, \
            Cluster(2, per_node={i: {"state_dir": disk} for i, disk in enumerate(disks)}) as c:
        ranks = begin(c, dtype)
        d, = victims(c, who)
        d.kill()
        with open(f"{d.options['state_dir']}/filler", "wb", buffering=0) as f:
            try:
                while f.write(bytes(4096)):
                    pass
            except OSError as e:
                assert e.errno == errno.ENOSPC, e
        d.start()
        c.wait_up()
        assert go_on(c, ranks) == without_trouble(dtype)
        for x in c.daemons:
            assert "restore" not in x.log() and "drop" not in x.log(), x.log()


@case
def memory_limit_is_lowered():
    """The new limit is below the states' size: they are taken up, and a new job is refused."""
    with Cluster(2) as c:
        ranks = begin(c, "bf16")
        for d in c.daemons:
            d.kill()
            d.options["memory_limit"] = "100K"
            d.start()
        c.wait_up()
        assert go_on(c, ranks) == without_trouble("bf16")
        assert all("more than memory_limit (102400)" in d.log() for d in c.daemons)
        more = c.caller("more", small_layout(), [0], 0)
        finish_all([more]), finish_all([more])
        more.refused("EQUOTA", "attach", "memory_limit", **NEED)


# Stands in for a kernel without free memory: no file, and so no memfd, may grow beyond 100,000 bytes.
SHORT = """import os, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
os.execv(sys.argv[1], sys.argv[1:])"""


@cases_of([(who, mirror) for who in ("coordinator", "other") for mirror in (0, 1)], "{0[0]}_mirror_{0[1]}")
def state_waits_for_memory(what):
    """A daemon without memory for a state logs that and tries again; no node takes the state for lost."""
    who, mirror = what
    with Cluster(2, mirror=mirror, bulk="tcp") as c:
        ranks = begin(c, "bf16")
        d, = victims(c, who)
        d.kill()
        d.start(wrapper=[sys.executable, "-c", SHORT])
        c.wait_up()
        until(lambda: "memory is short" in d.log(), what="the log line about short memory")
        for a in ranks:
            a.start("train", steps=2, sets=SETS, patient=True)
        other = c[1 - c.daemons.index(d)]
        if who == "other":
            until(lambda: "to have memory for its state" in str(other.job("job")["waiting"]), what="the wait for memory")
        r = d.ctl_run("checksum", "job")
        assert r.returncode == 1 and "waits for memory" in r.stderr, r
        files = d.state_files()
        resource.prlimit(d.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        finish_all(ranks)
        assert c.checksum("job")["planes"] == without_trouble("bf16")["planes"]
        assert d.state_files() == files
        for x in c.daemons:
            assert "zeroctl drop" not in x.log(), x.log()


@cases_of([(who, mirror) for who in (0, 1) for mirror in (0, 1)], "on_node_{0[0]}_mirror_{0[1]}")
def state_that_waits_for_memory_is_dropped(what):
    """The waiting node or another drops the job: the state file goes, and the daemon does not take it up later."""
    who, mirror = what
    with Cluster(2, bulk="tcp", mirror=mirror) as c:
        for a in begin(c, "bf16"):
            c.dismiss(a)
        c[1].kill()
        c[1].start(wrapper=[sys.executable, "-c", SHORT])
        c.wait_up()
        until(lambda: "memory is short" in c[1].log(), what="the log line about short memory")
        files = c[1].state_files()
        r = c[1].ctl_run("drop", "job", user=65534)
        assert r.returncode == 1 and "belongs to user 0" in r.stderr and c[1].state_files() == files, r
        assert c[who].ctl("drop", "job") == {"job": "job", "dropped": True, "untold": []}
        for d in c.daemons:
            assert d.state_files() == [".lock"] and d.status()["memory"]["state_used"] == 0, d.state_files()
        resource.prlimit(c[1].process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        go_on(c, c.ranks("job", small_layout("fp32"), [0, 1], **NEED))


if __name__ == "__main__":
    main()
