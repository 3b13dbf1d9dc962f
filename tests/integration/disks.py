#!/usr/bin/env python3
"""A disk that does not answer holds up whoever needs it, and nobody else: the daemon lives through changes of owners,
stops in order, and serves everybody else meanwhile."""
import contextlib
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import LAYOUT, Place, end, partial, planes, train, whole  # noqa: E402
from cluster import REPLY_S, SETS, SLOW, WAIT, Cluster, Tools, ask_to_end, end_process, ended_cleanly, finish_all, spawn, until  # noqa: E402
from fake_gpu import plugin  # noqa: E402
from harness import case, cases_of, main  # noqa: E402
from moments import can_vote  # noqa: E402

NOBODY = 65534


class Disk(Place):
    """A directory on a disk that answers, or does not."""

    def __enter__(self):
        super().__enter__()
        self.gates = tempfile.mkdtemp(prefix="zerod-gate-", dir="/dev/shm")
        self.gate = f"{self.gates}/gate"
        return self

    def __exit__(self, *_):
        self.answer()
        super().__exit__()
        with contextlib.suppress(OSError):
            for mark in glob.glob(f"{self.gate}*"):
                os.unlink(mark)
            os.rmdir(self.gates)

    def block(self):
        with open(self.gate, "x", encoding="ascii"):
            pass

    def answer(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.gate)

    def held(self):
        """How many threads wait for it."""
        return len(glob.glob(f"{self.gate}.*"))

    def wrapper(self, name="", directory=None):
        """For a daemon; name: a host that is looked up in vain meanwhile; directory: the disk's, else this one's."""
        library = os.path.join(os.path.dirname(os.path.abspath(Tools.actor)), "zerod-slow-disk.so")
        asan = os.environ.get("ASAN_OPTIONS", "")
        return ["env", f"LD_PRELOAD={library}", f"SLOW_DISK={directory or self.path}", f"SLOW_DISK_GATE={self.gate}",
                f"SLOW_NAME={name}", f"ASAN_OPTIONS={asan}:verify_asan_link_order=0"]


def cluster(disk, nodes, **options):
    c = Cluster(nodes, start=False, **options)
    for d in c.daemons:
        d.wrapper = disk.wrapper()
    try:
        c.start()
    except BaseException:
        c.show()
        c.end()
        raise
    return c


def begin_checkpoint(c, disk, job="job", node=0, held=1):
    """Orders a checkpoint, which waits for the disk."""
    ctl = spawn([Tools.zeroctl, "--socket", c[node].socket, "checkpoint", job, disk.path],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    c.others.append(ctl)
    until(lambda: disk.held() >= held, what="the checkpoint to wait for the disk")
    return ctl


def theirs(c, job):
    """A job of another user, without ranks."""
    ranks = [c.actor(node) for node in (0, 1)]
    for rank, a in enumerate(ranks):
        a.do("user", uid=NOBODY)
        a.do("connect", job=job, rank=rank, world=2, local=1)
        a.do("layout", groups=LAYOUT)
        a.start("attach", hold=2, push=2)
    finish_all(ranks)
    train(ranks, 1)
    end(ranks)


def doctor(daemon):
    """The findings of all nodes."""
    r = daemon.ctl_run("--json", "doctor")
    return [f for node in json.loads(r.stdout)["nodes"] for f in node["findings"]]


# ---- the daemon lives ----------------------------------------------------------------------------

@case
def change_of_owners_does_not_wait_for_a_checkpoint():
    with Disk() as disk, cluster(disk, 3) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], hold=2, push=2)
        train(ranks, 2)
        disk.block()
        ctl = begin_checkpoint(c, disk, held=3)
        c[0].change_owners("remove-node", "n2")
        train(ranks, 1)
        _, text = ctl.communicate(timeout=REPLY_S)
        assert ctl.returncode, text
        assert all(d.alive() for d in c.daemons), "a daemon ended"
        assert disk.held() == 3, "the disk has answered"
        r = c[0].ctl_run("checkpoint", "job", disk.path)
        assert r.returncode and "disk has not answered yet: try again" in r.stderr, r.stderr
        assert whole(disk.path) == []
        ctl = begin_checkpoint(c, disk, held=3)
        time.sleep(0.5)  # the owners say that they are busy
        assert ctl.poll() is None
        disk.answer()
        _, text = ctl.communicate(timeout=REPLY_S)
        assert ctl.returncode == 0, text
        assert whole(disk.path) == ["job-3"] and not partial(disk.path)
        train(ranks, 1)


@cases_of(["host", "device"])
def stop_leaves_a_checkpoint(place):
    """States are saved, those on GPUs too; the checkpoint is no whole one, and the next one clears it up."""
    gpu = {"optimizer": "device", "cuda_plugin": plugin()} if place == "device" else {}
    with Disk() as disk, cluster(disk, 1, **gpu) as c:
        ranks = c.ranks("job", LAYOUT, [0, 0], hold=2, push=2)
        train(ranks, 2)
        sums = planes(c)
        end(ranks)
        disk.block()
        begin_checkpoint(c, disk)
        assert end_process(c[0].process, 30 * SLOW), c[0].log()[-2000:]
        assert "to write the checkpoint of job" in c[0].log() or "cancelled checkpoint of job" in c[0].log()
        assert whole(disk.path) == [] and partial(disk.path) == [".job-2.partial"]
        disk.answer()
        c[0].start()
        c.wait_up()
        assert planes(c) == sums
        c[0].ctl("checkpoint", "job", disk.path)
        assert whole(disk.path) == ["job-2"] and not partial(disk.path)


@case
def stop_leaves_a_restore():
    with Disk() as disk, cluster(disk, 1) as c:
        ranks = c.ranks("job", LAYOUT, [0, 0], hold=2, push=2)
        train(ranks, 2)
        sums = planes(c)
        c[0].ctl("checkpoint", "job", disk.path)
        end(ranks)
        disk.block()
        c.others.append(spawn([Tools.zeroctl, "--socket", c[0].socket, "restore", "job", f"{disk.path}/job-2"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        until(disk.held, what="the restore to wait for the disk")
        assert end_process(c[0].process, 30 * SLOW), c[0].log()[-2000:]
        disk.answer()
        c[0].start()
        c.wait_up()
        assert planes(c) == sums


@cases_of(["host", "device"])
def stop_leaves_a_recording(place):
    """States are saved, those on GPUs too.  The file in log_dir cannot be opened before somebody reads it."""
    gpu = {"optimizer": "device", "cuda_plugin": plugin()} if place == "device" else {}
    with Cluster(1, wait_ms=1500 * WAIT, **gpu) as c:
        ranks = c.ranks("job", LAYOUT, [0, 0], timeout_ms=0, hold=2, push=2)
        train(ranks, 2)
        sums = planes(c)
        fifo = f"{c[0].options['log_dir']}/.n0.part"
        os.makedirs(os.path.dirname(fifo), 0o700)
        os.mkfifo(fifo, 0o600)
        ranks[1].stop()
        ranks[0].refused("EDEADLINE", "step", "rank 1", sets=SETS)
        ranks[1].go_on()
        end(ranks)
        assert end_process(c[0].process, 30 * SLOW), c[0].log()[-2000:]
        assert "to write to log_dir about job job" in c[0].log() and "the stop leaves that work as it is" in c[0].log()
        c[0].start()
        c.wait_up()
        assert planes(c) == sums


@case
def stop_waits_for_states_that_are_made():
    """However long they take, for their making ends by itself."""
    with Disk() as disk, Cluster(1, start=False) as c:
        c[0].wrapper = disk.wrapper(directory=c[0].options["state_dir"])
        c.start()
        disk.block()
        a = c.caller("job", LAYOUT, [0], 0)
        finish_all([a]), finish_all([a])
        a.start("attach", hold=2, push=2)
        until(disk.held, what="the making of the state")
        ask_to_end(c[0].process)
        for times in (1, 2):  # each time its time is over
            until(lambda n=times: c[0].log().count("the stop waits for 1 states that are being made") == n, 60 * SLOW,
                  "the stop to name what it waits for")
            assert c[0].alive(), c[0].log()[-2000:]
        disk.answer()
        assert ended_cleanly(c[0].process, 30 * SLOW), c[0].log()[-2000:]


@case
def stop_leaves_the_look_up_of_a_name():
    with Disk() as disk, Cluster(2, start=False) as c:
        c[0].wrapper = disk.wrapper("localhost")
        c[0].options["peers"] = c[0].options["peers"].replace("n1=127.0.0.1", "n1=localhost")
        c.start()
        disk.block()
        c[1].kill()
        until(disk.held, what="a look-up of the peer")
        assert end_process(c[0].process, 30 * SLOW), c[0].log()[-2000:]
        assert "leaves the look-up" in c[0].log()


@case
def change_of_owners_is_refused_for_a_disk_of_votes():
    """Where a node's restart would wait for a disk, it refuses the change by the disk's name; zeroctl asks again.
    Two of three nodes wait, as two votes without the one that refuses are enough."""
    with Disk() as disk, Cluster(3, start=False, per_node={n: {"membership_dir": f"{disk.path}/n{n}"}
                                                           for n in (1, 2)}) as c:
        for n in (1, 2):
            os.mkdir(f"{disk.path}/n{n}")
            c[n].wrapper = disk.wrapper()
        c.start()
        can_vote(c)  # else a first vote may wait for the disk, too
        disk.block()
        drains = [spawn([Tools.zeroctl, "--socket", c[n].socket, "drain", f"n{n}"], stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL) for n in (1, 2)]
        c.others += drains
        until(lambda: disk.held() == 2, what="the drains to wait for the disk")
        until(lambda: sum(f["check"] == "lane votes" for f in doctor(c[0])) == 2, what="the doctor's warnings")
        for drain in drains:
            drain.kill()
        change = spawn([Tools.zeroctl, "--socket", c[0].socket, "--no-wait", "remove-node", "n1"],
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        c.others.append(change)
        said = change.stderr.readline()
        assert re.search("node n[12] waits to write membership_dir: try again", said), said
        disk.answer()
        _, text = change.communicate(timeout=REPLY_S)
        assert change.returncode == 0, text
        c.wait_up()


@case
def change_of_owners_names_the_node_that_writes_no_vote():
    with Disk() as disk, Cluster(2, start=False, per_node={1: {"membership_dir": disk.path}}) as c:
        c[1].wrapper = disk.wrapper()
        c.start()
        can_vote(c)
        disk.block()
        r = c[0].ctl_run("--timeout", "3", "remove-node", "n1")
        assert r.returncode != 0, r.stdout
        assert "waiting for node n1: to write a vote to membership_dir" in r.stderr, r.stderr
        disk.answer()


# ---- nobody else waits -------------------------------------------------------------------------------

@case
def disks_of_one_user_hold_up_nobody_else():
    """More checkpoints wait for the disk than a user has threads. Meanwhile for others: a look at the node, a link to
    a peer that `peers` names by host, votes, a new job, its checkpoint on another disk, its end."""
    with Disk() as disk, Place() as other, Cluster(2, start=False, checkpoint_dir=os.path.dirname(disk.path)) as c:
        for d in c.daemons:
            d.wrapper = disk.wrapper()
            d.options["peers"] = d.options["peers"].replace("127.0.0.1", "localhost")
        c.start()
        os.chmod(disk.path, 0o777)
        jobs = [f"job{i}" for i in range(6)]
        for job in jobs:
            theirs(c, job)
        disk.block()
        for i, job in enumerate(jobs):
            last = begin_checkpoint(c, disk, job, held=2 * min(i + 1, 4))
        mine = c.ranks("mine", LAYOUT, [0, 1], hold=2, push=2)
        train(mine, 2)
        said = last.stderr.readline()
        assert "a disk is late, or checkpoints and restores" in said, said
        found = until(lambda: [f["found"] for f in doctor(c[0]) if f["check"] == "lane checkpoints"],
                      what="the doctor's warning")
        assert len(found) == 2 and all("to write the checkpoint of job" in f and f"of user {NOBODY}; 3 others are at "
                                       "work, and 2 wait for their turn" in f for f in found), found
        c[0].ctl("checkpoint", "mine", other)
        assert whole(other) == ["mine-2"]
        end(mine)
        c[1].restart()
        c.wait_up()
        mine = c.ranks("mine", LAYOUT, [0, 1], hold=2, push=2)
        train(mine, 1)
        end(mine)
        c[0].ctl("drop", "mine")
        c[0].change_owners("remove-node", "n1")
        disk.answer()


if __name__ == "__main__":
    main()
