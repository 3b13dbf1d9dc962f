#!/usr/bin/env python3
"""zeroctl drain: a node loses its shards and its ranks while the others train, and may then be powered off; the job
has the bits of one whose owners never changed."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import REPLY_S, WAIT, Cluster, Tools, finish_all, spawn, until  # noqa: E402
from harness import case, cases_of, main  # noqa: E402
from moments import LAYOUT, NEEDS, STEPS, TRAIN, Endless, as_undisturbed, can_vote, lies_on, train  # noqa: E402


def asks(daemon, *words):
    return spawn([Tools.zeroctl, "--socket", daemon.socket, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def drained(daemon):
    return daemon.ctl("status")["drained"]


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
        c[2].kill()
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
        refused(c[0].ctl_run("--timeout", "2", "drain", "n1"), "n1")
    with Cluster(1) as c:
        refused(c[0].ctl_run("drain", "n0"), "the only owner")


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
