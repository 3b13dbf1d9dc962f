#!/usr/bin/env python3
"""zeroctl drain: a node loses its shards and its ranks while the others train, and may then be powered off; the job
has the bits of one whose owners never changed."""
import os
import re
import signal
import subprocess
import sys
import time
import uuid

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import REPLY_S, SLOW, WAIT, Cluster, Tools, end_process, expect, spawn, until  # noqa: E402
from harness import case, cases_of, main  # noqa: E402
from moments import LAYOUT, NEEDS, STEPS, TRAIN, Endless, as_undisturbed, can_vote, lies_on, train  # noqa: E402


def asks(daemon, *words):
    return spawn([Tools.zeroctl, "--socket", daemon.socket, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def drained(daemon):
    return daemon.ctl("status")["drained"]


def drain_file(daemon):
    return f"{daemon.options['membership_dir']}/{daemon.name}.drained"


def text_of(path):
    with open(path, encoding="ascii") as f:
        return f.read()


def start_of(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        return int(f.read().rsplit(")", 1)[1].split()[19])


def newcomer(c, daemon, job="other"):
    a = c.actor(c.daemons.index(daemon))
    a.do("connect", job=job, rank=0, world=1)
    a.do("layout", groups=LAYOUT)
    return a


@case
def a_node_is_emptied_under_training_and_powered_off():
    with Cluster(3) as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        training = Endless(c, ranks)
        training.goes_on()
        r = c[0].ctl_run("drain", "n2")
        assert r.returncode == 0 and r.stdout == "node n2 has no shards and no ranks: it is safe to power off\n", r
        lies_on(c, ["n0", "n1"])
        newcomer(c, c[2]).refused("EBUSY", "attach", "node n2 is drained", "zeroctl undrain n2", **NEEDS)
        training.goes_on()
        assert end_process(c[2].process, 15 * SLOW)
        for d in c.daemons[:2]:
            until(lambda d=d: not d.peers_up(), what=f"the end of n2's link with {d.name}")
            assert d.status()["peers"][2]["goodbye"] == "drained", d.status()["peers"]
            assert "node n2 is stopping in order, drained" in d.log(), d.log()
            assert "drained" in d.ctl_run("status").stdout
        training.goes_on()
        last, _ = training.end()
        c[2].start()
        c.wait_up()
        as_undisturbed(c, [0, 1], last)
        assert drained(c[2]) and not drained(c[0]), "the drain did not outlive the daemon"
        assert "takes no new ranks until zeroctl undrain n2" in c[2].ctl_run("status").stdout
        assert c[1].ctl("drain", "n2") == {"node": "n2", "drained": True, "ranks": []}
        newcomer(c, c[2]).refused("EBUSY", "attach", "node n2 is drained", **NEEDS)
        assert c[1].ctl("undrain", "n2")["drained"] is False
        c[2].restart()
        c.wait_up()
        assert not drained(c[2])
        c[0].ctl("add-node", "n2")
        newcomer(c, c[2]).do("attach", **NEEDS)


@case
def ranks_of_the_node_go_on_and_are_named():
    with Cluster(3) as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        named = f"rank 1 of job job (process {ranks[1].pid})"
        training = Endless(c, ranks)
        training.goes_on()
        r = c[0].ctl_run("--timeout", str(2 * WAIT), "drain", "n1")
        assert r.returncode == 1 and named in r.stderr and "no shards any more" in r.stderr and not r.stdout, r
        lies_on(c, ["n0", "n2"])
        training.goes_on()
        ranks[1].stop()  # it has no session with the next daemon, which knows of it from the file
        c[1].kill()
        c[1].start()
        c.wait_up()
        assert drained(c[1])
        r = c[0].ctl_run("--timeout", str(2 * WAIT), "drain", "n1")
        assert r.returncode == 1 and named in r.stderr, r
        ranks[1].go_on()
        training.goes_on()
        waits = asks(c[2], "--timeout", str(REPLY_S), "drain", "n1")
        assert named in waits.stderr.readline()
        last, _ = training.end()
        as_undisturbed(c, [0, 1], last)
        assert waits.poll() is None, waits.communicate()
        c.dismiss(ranks[1])
        assert waits.wait(REPLY_S) == 0, waits.communicate()
        assert "safe to power off" in waits.communicate()[0]


# A process that says it is rank 1 and was there before.
RESUMES = """
import sys
sys.path.insert(0, sys.argv[1])
import wire
from moments import LAYOUT
raw = wire.Raw(sys.argv[2])
raw.hello("job", 1, 2)
print(*raw.ask("attach", {1: wire.layout_message(LAYOUT), 2: 2, 3: 2, 4: 1, 5: 1, 8: 1})[:2])
"""


@case
def ranks_that_were_there_come_back_and_no_other():
    """Nobody knows of a rank that has no session when the drain begins; its process is older than the drain."""
    with Cluster(2, owners="n0") as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        c[1].restart()
        c.wait_up()
        assert c[0].ctl("drain", "n1")["ranks"] == []
        r = subprocess.run([sys.executable, "-c", RESUMES, sys.path[0], c[1].socket], capture_output=True, text=True, check=True)
        assert "node n1 is drained and takes no new ranks" in r.stdout, r
        train(ranks, 2, patient=True)
        until(lambda: f"job 1 {ranks[1].pid} " in text_of(drain_file(c[1])), what="the line of rank 1")
        ranks[1].stop()
        c[1].restart()
        c.wait_up()
        r = c[0].ctl_run("--timeout", str(2 * WAIT), "drain", "n1")
        assert r.returncode == 1 and f"the end of rank 1 of job job (process {ranks[1].pid})" in r.stderr, r
        ranks[1].go_on()
        train(ranks, STEPS - 4, patient=True)
        as_undisturbed(c, [0, 1])


def ticks_now():
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


@cases_of(("another_boot", "no_boot"), "{}")
def a_drain_of(which):
    """Times of another boot say nothing about a process of this one; a file without a boot is of an earlier release."""
    with Cluster(2, owners="n0") as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 1], timeout_ms=4000 * WAIT, **NEEDS)
        train(ranks, 2)
        c[1].restart()
        c.wait_up()
        c[0].ctl("drain", "n1")
        c[1].kill()
        text = text_of(drain_file(c[1]))
        with open(drain_file(c[1]), "w", encoding="ascii") as f:
            f.write(f"drained since {ticks_now()}\n")
            if which == "another_boot":
                f.write(f"job 1 {ranks[1].pid} {start_of(ranks[1].pid)}\nboot id {uuid.uuid4()}\n")
        c[1].start()
        c.wait_up()
        if which == "another_boot":
            for a in ranks:
                a.start("train", steps=1, **TRAIN)
            expect(ranks[1].finish(), "EDEADLINE", "node n1 is drained")
            assert re.fullmatch(r"drained since \d+\n(job 1 \d+ \d+\n)?boot id [0-9a-f-]{36}\n", text), text
        else:
            train(ranks, STEPS - 2, patient=True)
            as_undisturbed(c, [0, 1])


@case
def drains_and_undrains_at_once():
    """Each waits for its turn."""
    with Cluster(2, owners="n0") as c:
        can_vote(c)
        asked = [asks(c[i % 2], word, "n1") for i in range(12) for word in ("drain", "undrain")]
        told = [(p.wait(REPLY_S), p.communicate()) for p in asked]
        assert all("in progress" not in err for _, (_, err) in told), told
        assert all(p.returncode == 0 for p in asked[1::2]), told
        c[0].ctl("undrain", "n1")
        assert not drained(c[1])


@case
def another_person_ends_the_drain():
    with Cluster(2, owners="n0") as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        waits = asks(c[0], "--timeout", str(REPLY_S), "drain", "n1")
        assert f"waiting for the end of rank 1 of job job (process {ranks[1].pid})" in waits.stderr.readline()
        c[1].kill()
        assert "waiting for its answer: " in waits.stderr.readline()
        c[1].start()
        c.wait_up()
        c[0].ctl("undrain", "n1")
        assert waits.wait(REPLY_S) == 1 and "somebody has ended the drain" in waits.communicate()[1]
        assert not drained(c[1])


@case
def an_interrupted_drain_lasts():
    with Cluster(2) as c:
        can_vote(c)
        c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        waits = asks(c[0], "--timeout", str(REPLY_S), "drain", "n1")
        until(lambda: "waiting for the end of rank 1" in waits.stderr.readline(), what="the wait for rank 1")
        waits.send_signal(signal.SIGINT)
        assert waits.wait(REPLY_S) == -signal.SIGINT
        told = waits.communicate()[1]
        assert "takes no new ranks" in told and "zeroctl undrain n1" in told and "jobs go on moving" not in told, told
        assert drained(c[1])


@case
def a_drain_that_membership_dir_does_not_take():
    with Cluster(2, owners="n0") as c:
        can_vote(c)
        os.mkdir(drain_file(c[1]))
        refused(c[0].ctl_run("drain", "n1"), "node n1 is not drained; membership_dir: Is a directory")
        assert not drained(c[1]) and not os.path.exists(drain_file(c[1]) + ".new")
        os.rmdir(drain_file(c[1]))
        assert c[0].ctl("drain", "n1")["drained"]


def refused(r, *words):
    assert r.returncode == 1 and not r.stdout, r
    for word in words:
        assert word in r.stderr, f"'{word}' is not in: {r.stderr}"


@case
def refusals():
    with Cluster(2, owners=1) as c:
        can_vote(c)
        refused(c[1].ctl_run("drain", "n0"), "node n0 is the only owner", "add-node")
        refused(c[1].ctl_run("drain", "n7"), "there is no node 'n7'")
        refused(c[1].ctl_run("undrain", "n7"), "there is no node 'n7'")
        assert not drained(c[0]) and not drained(c[1])
        c[1].kill()
        until(lambda: not c[0].ctl("members")["majority"], what="the loss of n1")
        refused(c[0].ctl_run("--timeout", "2", "drain", "n1"), "node n1 is not reachable", "zeroctl undrain n1")
    with Cluster(1) as c:
        refused(c[0].ctl_run("drain", "n0"), "the only owner")


@case
def an_owner_that_does_not_answer():
    with Cluster(3) as c:
        can_vote(c)
        c[1].stop()
        try:
            refused(c[0].ctl_run("drain", "n2"), "node n1 does not answer")
        finally:
            c[1].go_on()
        assert not drained(c[2]) and c[0].ctl("members")["epoch"] == 0


@case
def without_room_elsewhere_nothing_changes():
    """Room for what each node has, and not for the rest beside it: the move would be stuck."""
    with Cluster(2, per_node={0: {"memory_limit": 3 << 20}}) as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        refused(c[1].ctl_run("drain", "n1"), "node n0 has no room", "memory_limit")
        assert not drained(c[1]) and c[0].ctl("members")["epoch"] == 0
        train(ranks, STEPS - 2)
        as_undisturbed(c, [0, 1])


@cases_of(("drained", "coordinator"), "{}")
def killed_in_the_middle(who):
    """The moves end as moves do; zeroctl follows them."""
    with Cluster(3, drain_ms=2000, delay_ms=20) as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 0], **NEEDS)
        training = Endless(c, ranks)
        training.goes_on()
        coordinator = c.coordinator("job")
        leaving = next(d for d in c.daemons[1:] if d is not coordinator)
        victim = leaving if who == "drained" else coordinator
        waits = asks(c[0] if victim is not c[0] else leaving, "--timeout", str(REPLY_S), "drain", leaving.name)
        until(lambda: any("restarting with the owners" in d.log() for d in c.daemons), what="the new owners")
        victim.kill()
        victim.start()
        assert waits.wait(REPLY_S) == 0, waits.communicate()
        assert drained(leaving)
        training.goes_on()
        last, _ = training.end()
        lies_on(c, [d.name for d in c.daemons if d is not leaving])
        as_undisturbed(c, [0, 0], last)


if __name__ == "__main__":
    main()
