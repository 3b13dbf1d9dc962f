#!/usr/bin/env python3
"""The owner list changes by a majority or by a person's takeover, and there are never two lists."""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import REPLY_S, Cluster, Tools, small_layout, until  # noqa: E402
from harness import Skip, case, main  # noqa: E402

LAYOUT = small_layout(blocks=2, width=64)


def members(daemon):
    """What the daemon knows of the members; waits while the daemon starts anew with other owners."""
    return json.loads(until(lambda: daemon.ctl_run("--json", "members").stdout, what=f"an answer of {daemon.name}"))


def stands(daemon, epoch, *owners):
    m = members(daemon)
    assert (m["epoch"], m["owners"]) == (epoch, list(owners)), m


def comes_to(daemon, epoch, *owners):
    until(lambda: members(daemon)["epoch"] >= epoch, what=f"epoch {epoch} on {daemon.name}")
    stands(daemon, epoch, *owners)


def votes(daemon):
    return f"{daemon.options['membership_dir']}/{daemon.name}.votes"


def can_vote(*daemons):
    for d in daemons:
        until(lambda d=d: members(d)["voter"], what=f"the vote of {d.name}")


def asks(daemon, *words):
    """Starts zeroctl and does not wait for it."""
    return subprocess.Popen([Tools.zeroctl, "--socket", daemon.socket, *words], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def refused(result, *words):
    assert result.returncode == 1, result
    for word in words:
        assert word in result.stderr, f"'{word}' is not in: {result.stderr}"


def up_again(d, *others):
    d.start()
    for one in (d, *others):
        until(one.peers_up, what=f"links of {one.name}")


@case
def majority_changes_the_list_without_one_node():
    """The node that was away learns the list that the others chose, and a new job has the owners of that list."""
    with Cluster(3, owners=2) as c:
        can_vote(*c.daemons)
        c[2].kill()
        assert c[0].change_owners("remove-node", "n1")["owners"] == ["n0"]
        comes_to(c[1], 1, "n0")
        assert c[1].change_owners("add-node", "n1")["epoch"] == 2
        c[2].start()
        c.wait_up()
        comes_to(c[2], 2, "n0", "n1")
        c[0].change_owners("add-node", "n2")
        for d in c.daemons:
            comes_to(d, 3, "n0", "n2", "n1")
        c.ranks("job", LAYOUT, [0, 2])
        assert c[1].job("job")["owners"] == ["n0", "n2", "n1"], c[1].job("job")


@case
def one_of_two_nodes_waits_for_the_other():
    """A request that timed out is not carried out later; a request that still waits is."""
    with Cluster(2) as c:
        can_vote(*c.daemons)
        c[1].kill()
        until(lambda: not members(c[0])["majority"], what="the loss of n1")
        r = c[0].ctl_run("--timeout", "1", "remove-node", "n1")
        refused(r, "waiting for the votes of n1", "takeover", "1 of 2 nodes can vote, 2 must")
        waiting = asks(c[0], "remove-node", "n0")
        assert "waiting for the votes of n1" in waiting.stderr.readline()
        up_again(c[1], c[0])
        assert waiting.wait(REPLY_S) == 0, waiting.communicate()
        comes_to(c[1], 1, "n1")


@case
def takeover_needs_no_vote_of_the_dead_node():
    with Cluster(2) as c:
        can_vote(*c.daemons)
        c[1].kill()
        until(lambda: not members(c[0])["majority"], what="the loss of n1")
        assert c[0].ctl("takeover", "--node-is-dead", "n1")["owners"] == ["n0"]
        c.rank("job", LAYOUT, [0], 0, attach=True).finish()
        up_again(c[1], c[0])
        comes_to(c[1], 1, "n0")


@case
def takeover_of_a_living_node_is_refused():
    with Cluster(3) as c:
        can_vote(*c.daemons)
        refused(c[0].ctl_run("takeover", "--node-is-dead", "n1"), "n1", "not dead", "remove-node")
        refused(c[0].ctl_run("takeover", "--node-is-dead", "n0"), "not dead")
        assert c[0].ctl_run("takeover").returncode == 2
        stands(c[0], 0, "n0", "n1", "n2")


@case
def senseless_changes_are_refused():
    with Cluster(2, owners=1) as c:
        refused(c[0].ctl_run("add-node", "n0"), "owner already")
        refused(c[0].ctl_run("add-node", "n7"), "n7", "peers")
        refused(c[0].ctl_run("remove-node", "n1"), "not an owner")
        refused(c[0].ctl_run("remove-node", "n0"), "only owner", "add another")
        c[1].kill()
        until(lambda: not members(c[0])["majority"], what="the loss of n1")
        refused(c[0].ctl_run("add-node", "n1"), "not reachable", "start its daemon")
        refused(c[0].ctl_run("takeover", "--node-is-dead", "n1"), "nothing to take over")


@case
def restarts_keep_the_owner_list():
    with Cluster(3) as c:
        can_vote(*c.daemons)
        c[2].change_owners("remove-node", "n0")
        c[2].change_owners("remove-node", "n1")
        for d in c.daemons:
            comes_to(d, 2, "n2")
        for d in c.daemons:
            d.kill()
        c[1].start()  # alone: it reads the owner list from its disk
        until(lambda: c[1].ctl_run("members").returncode == 0, what="n1")
        stands(c[1], 2, "n2")
        c[0].start(), c[2].start()
        c.wait_up()
        c.ranks("job", LAYOUT, [0, 1])
        assert c[0].job("job")["owners"] == ["n2"]
        for d in c.daemons:
            d.kill()
            d.start()
        c.wait_up()
        until(lambda: c[2].job("job") is not None, what="the job")


@case
def two_changes_at_once_are_ordered():
    """Of two changes at once one is made first; the other is refused, or made after it."""
    with Cluster(3) as c:
        can_vote(*c.daemons)
        for _ in range(4):
            c.wait_up()
            before = members(c[0])
            wish = "remove-node" if len(before["owners"]) == 3 else "add-node"
            out = [n for n in ("n0", "n1", "n2") if n not in before["owners"]]
            wishes = [(c[0], "remove-node", "n2"), (c[1], "remove-node", "n1")] if wish == "remove-node" else \
                     [(c[0], "add-node", out[0]), (c[2], "add-node", out[0])]
            running = [asks(d, *words) for d, *words in wishes]
            said = [p.communicate(timeout=REPLY_S)[1] for p in running]
            if all("about to restart" in text for text in said):
                continue  # the nodes still restart after the previous change
            won = [p.returncode == 0 for p in running]
            assert any(won), said
            for ok, text in zip(won, said):
                assert ok or "another change came first" in text or "in progress" in text or "owner" in text, text
            last = max(members(d)["epoch"] for d in c.daemons)
            assert last > before["epoch"], (last, before)
            for d in c.daemons:
                until(lambda d=d: members(d)["epoch"] == last, what=f"epoch {last} on {d.name}")
            assert len({tuple(members(d)["owners"]) for d in c.daemons}) == 1


@case
def damaged_votes_are_refused():
    """The daemon does not start and says what to do; afterwards it learns the list from the others."""
    with Cluster(3) as c:
        can_vote(*c.daemons)
        c[0].change_owners("remove-node", "n2")
        comes_to(c[1], 1, "n0", "n1")
        c[1].kill()
        with open(votes(c[1]), "rb") as f:
            good = f.read()
        for at in (0, 9, 50, len(good) // 2, len(good) - 1):
            bad = bytearray(good)
            bad[at] ^= 4
            with open(votes(c[1]), "wb") as f:
                f.write(bad)
            r = subprocess.run([Tools.zerod, "--config", c[1].config], stdin=subprocess.DEVNULL, capture_output=True,
                               text=True, timeout=REPLY_S, check=False)
            assert r.returncode > 0 and "cannot be used" in r.stderr and "move the file away" in r.stderr, r
            with open(votes(c[1]), "rb") as f:
                assert f.read() == bytes(bad)
        os.rename(votes(c[1]), votes(c[1]) + ".bad")
        up_again(c[1], c[0], c[2])
        can_vote(c[1])
        comes_to(c[1], 1, "n0", "n1")
        c[2].kill()
        assert c[0].change_owners("remove-node", "n1")["epoch"] == 2


@case
def votes_of_another_cluster_are_refused():
    with Cluster(2) as c:
        can_vote(*c.daemons)
        c[0].change_owners("remove-node", "n1")
        comes_to(c[1], 1, "n0")
        c[0].kill()
        c[0].options["owners"] = "n1"
        c[0].configure()
        r = subprocess.run([Tools.zerod, "--config", c[0].config], stdin=subprocess.DEVNULL, capture_output=True,
                           text=True, timeout=REPLY_S, check=False)
        assert r.returncode > 0 and "another cluster" in r.stderr and "add-node" in r.stderr, r


@case
def two_lists_after_mutual_takeovers_are_found():
    with Cluster(2) as c:
        can_vote(*c.daemons)
        c[1].kill()
        until(lambda: not members(c[0])["majority"], what="the loss of n1")
        c[0].ctl("takeover", "--node-is-dead", "n1")
        c[0].kill()
        c[1].start()
        until(lambda: c[1].ctl_run("members").returncode == 0, what="n1")
        c[1].ctl("takeover", "--node-is-dead", "n0")
        c[0].start()
        until(lambda: "other owners for epoch 1" in c[1].log() + c[0].log(), what="the discovery")
        stands(c[0], 1, "n0")
        stands(c[1], 1, "n1")
        c[1].kill()  # as the log says
        os.remove(votes(c[1]))
        up_again(c[1], c[0])
        comes_to(c[1], 1, "n0")


@case
def vote_that_cannot_be_written_is_not_given():
    with Cluster(3) as c:
        can_vote(*c.daemons)
        c[2].kill()
        blocked = f"{c[0].options['membership_dir']}/.n0.votes.new"
        os.mkdir(blocked)
        refused(c[0].ctl_run("remove-node", "n2"), "cannot be written", c[0].options["membership_dir"])
        refused(c[1].ctl_run("--timeout", "2", "remove-node", "n2"), "no answer")
        os.rmdir(blocked)
        assert c[0].change_owners("remove-node", "n2")["owners"] == ["n0", "n1"]
        comes_to(c[1], 1, "n0", "n1")


@case
def other_users_may_read_the_owner_list_and_not_change_it():
    if os.geteuid() != 0:
        raise Skip("needs root")
    with Cluster(1) as c:
        def as_nobody(*words):
            return subprocess.run([Tools.zeroctl, "--socket", c[0].socket, *words], stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=REPLY_S, check=False, user=65534)
        try:
            assert as_nobody("members").returncode == 0
        except PermissionError as why:
            raise Skip(f"nobody cannot run zeroctl here: {why}") from why
        refused(as_nobody("remove-node", "n0"), "only root and the user zerod runs as")


@case
def single_node_writes_no_votes():
    with Cluster(1) as c:
        stands(c[0], 0, "n0")
        refused(c[0].ctl_run("remove-node", "n0"), "only owner")
        assert not os.path.exists(c[0].options["membership_dir"])


if __name__ == "__main__":
    main()
