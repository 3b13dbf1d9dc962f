#!/usr/bin/env python3
"""A cluster of the release before is upgraded node by node while a job trains.

tests/upgrade/build.sh builds that release.  As long as one node has it, no node uses what it does not know, and each
node can go back; once no node has it, all use what is new."""
import contextlib
import os
import struct
import subprocess
import sys
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
sys.path.insert(0, os.path.join(ROOT, "tests/support"))
from checkpointing import Place  # noqa: E402
from cluster import SLOW, Cluster, Tools, end_process, finish_all, until  # noqa: E402
from harness import case, main  # noqa: E402
from moments import LAYOUT, NEEDS, TRAIN, Endless, as_undisturbed  # noqa: E402

PLACEMENT = [0, 1, 2]
OLD_MESSAGES, NEW_MESSAGES = 9, 10
OLD_FORMAT, TIMES_FORMAT, NEW_FORMAT = 8, 9, 10  # a file that the release before made gets the second
WIRE = {"reduce": "bf16", "accumulate": "wire"}


@contextlib.contextmanager
def release_before():
    """What is started meanwhile is of the release before."""
    new, libraries = (Tools.zerod, Tools.zeroctl, Tools.actor), os.environ.get("LD_LIBRARY_PATH", "")
    r = subprocess.run([f"{ROOT}/tests/upgrade/build.sh"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                       check=False, timeout=900)
    assert r.returncode == 0, r.stdout
    tree = r.stdout.splitlines()[-1]
    Tools.zerod, Tools.zeroctl, Tools.actor = (f"{tree}/{p}" for p in ("daemon/zerod", "client/zeroctl/zeroctl",
                                                                       "tests/support/actor"))
    os.environ["LD_LIBRARY_PATH"] = f"{tree}/client/lib"  # else they load this build's libzero
    try:
        yield
    finally:
        Tools.zerod, Tools.zeroctl, Tools.actor = new
        os.environ["LD_LIBRARY_PATH"] = libraries


def format_of(daemon):
    """Of its state file (struct file_header)."""
    name, = (f for f in daemon.state_files() if f.endswith(".state"))
    with open(f"{daemon.options['state_dir']}/{name}", "rb") as f:
        magic, number = struct.unpack("8sI", f.read(12))
    assert magic == b"zerod.st", magic
    return number


def peer(daemon, of):
    return next(p for p in daemon.status()["peers"] if p["node"] == of.name)


def messages(c):
    """The version on the link of each two nodes."""
    return {(d.name, p["node"]): p["speaks"] for d in c.daemons for p in d.status()["peers"] if not p["self"]}


def stop(c, daemon):
    """Stops the daemon in order; what the others log meanwhile."""
    others = {d: len(d.log()) for d in c.daemons if d is not daemon}
    assert end_process(daemon.process, 15 * SLOW), daemon.log()[-2000:]
    for d in others:
        until(lambda d=d: not peer(d, daemon)["up"], what=f"the end of {daemon.name}'s link with {d.name}")
    return {d: d.log()[at:] for d, at in others.items()}


def as_before(c, new):
    """new: the nodes of the new release."""
    for (a, b), version in messages(c).items():
        assert version == (NEW_MESSAGES if {a, b} <= new else OLD_MESSAGES), (a, b, version)
    for d in c.daemons:
        assert format_of(d) == OLD_FORMAT, d.name
        assert d.job("job").get("last_step_unix_s") is None, d.job("job")
        assert "in order" not in d.log(), d.log()
        if d.name in new:
            grant = d.ctl_run("grant", "job", "65534")
            assert grant.returncode == 1 and "a release that knows no grants" in grant.stderr, grant


def last_steps(c):
    return [d.job("job")["last_step_unix_s"] for d in c.daemons]


def replace(c, training, new, daemon, before):
    """By the release before, or by the new one."""
    logs = stop(c, daemon)
    assert all(f"lost the link with node {daemon.name}" in log for log in logs.values()), logs
    with release_before() if before else contextlib.nullcontext():
        daemon.start()
    (new.discard if before else new.add)(daemon.name)
    c.wait_up()
    training.goes_on()


@case
def node_by_node_under_training():
    """There, back and there again; trainers are of the release before and run on."""
    new = set()
    with release_before():
        cluster = Cluster(3)
    with cluster as c:
        with release_before():
            training = Endless(c, c.ranks("job", LAYOUT, PLACEMENT, **NEEDS))
        training.goes_on()
        as_before(c, new)
        for node, before in ((0, False), (1, False), (1, True), (2, False)):
            replace(c, training, new, c[node], before)
            as_before(c, new)
        begun = int(time.time())
        replace(c, training, new, c[1], False)

        assert set(messages(c).values()) == {NEW_MESSAGES}, messages(c)
        assert c[1].ctl("grant", "job", "65534")["users"] == [65534]
        for d in c.daemons:
            until(lambda d=d: format_of(d) == TIMES_FORMAT, what=f"the new format on {d.name}")
        until(lambda: all(at and begun <= at <= time.time() for at in last_steps(c)), what="the time of the last step")
        logs = stop(c, c[1])
        for d, log in logs.items():
            assert "node n1 is gone after it said that it stops" in log and "lost the link with node n1" not in log, log
            told = peer(d, c[1])
            assert told["goodbye"] == "stopped" and told["why"].startswith("said that it stops; "), told
        c[1].start()
        c.wait_up()
        assert all(peer(d, c[1])["goodbye"] is None for d in logs)
        training.goes_on()
        version, aborts = training.end()
        assert aborts, "no step was interrupted"
        as_undisturbed(c, PLACEMENT, version)

        told = last_steps(c)
        for d in c.daemons:
            assert end_process(d.process, 15 * SLOW), d.log()[-2000:]
        for d in c.daemons:
            d.start()
        c.wait_up()
        assert last_steps(c) == told
        for d in c.daemons:
            age = d.job("job")["step_age_s"]
            assert 0 <= age <= time.time() - told[c.daemons.index(d)] + 1, age


def train_averaged(c, ranks, steps):
    """Ranks of the release before ("o"), which has optimizers "...-ema", and of the new one ("n"), a rank a node; the checksum."""
    actors, values = [], [1e-3, 0.9, 0.999, 1e-8, 0.1, 0]
    says = {"o": ({"optimizer": "adamw-ema"}, {"sets": [["adamw-ema", *values, 0.9]] * 2}),
            "n": ({"ema": True}, {"sets": [["adamw", *values]] * 2, "ema_decay": 0.9})}
    for rank, of in enumerate(ranks):
        with release_before() if of == "o" else contextlib.nullcontext():
            layout = [{**g, **says[of][0]} for g in LAYOUT]
            actors.append(c.caller("job", layout, range(len(ranks)), rank, 60000 * SLOW, 0))
    for a in actors:
        finish_all([a]), finish_all([a])
        a.start("attach", **NEEDS)
    finish_all(actors)
    for a, of in zip(actors, ranks):
        a.start("train", steps=steps, **{**TRAIN, **says[of][1]})
    finish_all(actors)
    for a in actors:
        a.start("close")
    finish_all(actors)
    for a in actors:
        c.dismiss(a)
    return c.checksum("job")["planes"]


@case
def averages_of_both_releases_are_the_same():
    """Between ranks, nodes, states and checkpoints of either release."""
    with Cluster(2) as c:
        expected = {steps: train_averaged(c, "nn", 2) for steps in (2, 4, 6, 8)}
    assert "ema" in expected[2], expected[2]
    with release_before():
        cluster = Cluster(2)
    with Place() as d:
        with cluster as c:
            train_averaged(c, "oo", 2)
            with release_before():
                place = c[0].ctl("checkpoint", "job", d)["path"]
            stop(c, c[0])
            c[0].start()
            c.wait_up()
            assert train_averaged(c, "oo", 2) == expected[4]
            assert train_averaged(c, "nn", 2) == expected[6]
            stop(c, c[1])
            c[1].start()
            c.wait_up()
            assert train_averaged(c, "on", 2) == expected[8]
        with Cluster(2) as c:
            c[0].ctl("restore", "job", place)
            assert c.checksum("job")["planes"] == expected[2]
            assert train_averaged(c, "no", 2) == expected[4]


def refused_before_the_last_node(c, layout, status, text, **more):
    """While a node has the release before, an attach says why it is refused, and leaves nothing.  First both nodes
    have that release, then one."""
    for jobs in ("both", "one"):
        for i in range(4):  # other names have other coordinators
            a = c.caller(f"{jobs}{i}", layout, [0], 0, 20000 * SLOW)
            finish_all([a]), finish_all([a])
            a.refused(status, "attach", text, **NEEDS, **more)
            c.dismiss(a)
        until(lambda: all(d.state_files() == [".lock"] for d in c.daemons), what="the end of what refused jobs have")
        if jobs == "both":
            stop(c, c[0])
            c[0].start()
            c.wait_up()


@case
def whole_tensors_wait_for_the_last_node():
    """The release before would cut them."""
    layout = [{**g, "tensors": [{**t, "whole": t["name"] == "b1.w"} for t in g["tensors"]]} for g in LAYOUT]
    with release_before():
        cluster = Cluster(2)
    with cluster as c:
        refused_before_the_last_node(c, layout, "EINVAL", "tensor 'b1.w' of group 'block1' has an unknown kind")


@case
def narrow_sums_wait_for_the_last_node():
    """The release before would add up in fp32.  It refuses the state of such a job."""
    with release_before():
        cluster = Cluster(2)
    with cluster as c:
        refused_before_the_last_node(c, LAYOUT, "EVERSION", "release that accumulates in fp32 only", **WIRE)
        stop(c, c[1])
        c[1].start()
        c.wait_up()
        for a in c.ranks("job", LAYOUT, [0, 1], **NEEDS, **WIRE):
            c.dismiss(a)
        assert format_of(c[0]) == NEW_FORMAT, "before any step"
        stop(c, c[0])
        with release_before():
            c[0].start()
        until(lambda: "a newer release of zerod wrote it: start that release" in c[0].log(), what="the refusal")


@case
def no_way_back_from_the_new_format():
    """Once all nodes had the new release, the one before refuses the state, says so and leaves it alone."""
    with Cluster(1) as c:
        training = Endless(c, c.ranks("job", LAYOUT, [0], **NEEDS))
        training.goes_on()
        version, _ = training.end()
        for a in list(c.actors):
            c.dismiss(a)
        files = c[0].state_files()
        assert format_of(c[0]) == NEW_FORMAT
        assert end_process(c[0].process, 15 * SLOW)
        with release_before():
            c[0].start()
        until(lambda: "a newer release of zerod wrote it: start that release" in c[0].log(), what="the refusal")
        assert end_process(c[0].process, 15 * SLOW)
        assert c[0].state_files() == files
        c[0].start()
        as_undisturbed(c, [0], version)


if __name__ == "__main__":
    main()
