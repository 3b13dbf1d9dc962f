#!/usr/bin/env python3
"""Checkpoints that are damaged, truncated, half written or another user's are refused; the previous checkpoint stays
intact."""
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import BIG, LAYOUT, Place, end, partial, planes, taken, train, whole  # noqa: E402
from cluster import REPLY_S, SETS, SLOW, Cluster, Tools, crash_points, libc, small_layout, until  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402
from mounts import private_mounts, small_disk  # noqa: E402

TRIES = 12  # until a kill falls into a write of milliseconds


# ---- damaged files ------------------------------------------------------------------------

def refused(daemon, path, *words, job="job"):
    r = daemon.ctl_run("restore", job, path)
    assert r.returncode == 1, f"{path} was restored: {r}"
    for word in words:
        assert word in r.stderr, f"'{word}' is not in '{r.stderr}'"
    assert daemon.job(job) is None


@case
def flipped_bits():
    """A bit flipped anywhere in any file is found, the error names the file, and nothing is restored."""
    generator = random.Random(os.environ.get("TESTS_SEED", "checkpoints"))
    with Place() as d:
        path, sums = taken(d)
        with Cluster(1) as c:
            for name in sorted(os.listdir(path)):
                with open(f"{path}/{name}", "rb") as f:
                    good = f.read()
                for _ in range(12):
                    bit = generator.randrange(8 * len(good))
                    bad = bytearray(good)
                    bad[bit // 8] ^= 1 << bit % 8
                    with open(f"{path}/{name}", "wb") as f:
                        f.write(bad)
                    refused(c[0], path, name)
                with open(f"{path}/{name}", "wb") as f:
                    f.write(good)
            assert c[0].status()["memory"]["state_used"] == 0
            c[0].ctl("restore", "job", path)
            assert c.checksum("job") == sums


@case
def directory_that_is_no_checkpoint():
    with Place() as d, Cluster(1) as c:
        for path in (d, "/tmp"):
            refused(c[0], path, "no checkpoint", "DIR/JOB-VERSION", "zeroctl checkpoints")


@case
def truncated_and_missing_files():
    with Place() as d:
        path, _ = taken(d)
        with Cluster(2) as c:
            for name in sorted(os.listdir(path)):
                shutil.move(f"{path}/{name}", f"{d}/aside")
                refused(c[0], path, name, *(["n1 wrote it"] if name.startswith("shard-00001") else []))
                shutil.copy(f"{d}/aside", f"{path}/{name}")
                os.chmod(f"{path}/{name}", 0o600)
                os.truncate(f"{path}/{name}", os.path.getsize(f"{path}/{name}") // 2)
                refused(c[1], path, name)
                shutil.copy(f"{d}/aside", f"{path}/{name}")
            c[0].ctl("restore", "job", path)


@case
def files_of_another_checkpoint():
    """The shards are intact, but of two steps."""
    with Place() as d, Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], hold=2, push=2)
        for _ in range(2):
            train(ranks, 1)
            c[0].ctl("checkpoint", "job", d)
        end(ranks)
        c[0].ctl("drop", "job")
        shutil.copy(f"{d}/job-1/shard-00001-of-00002", f"{d}/job-2/shard-00001-of-00002")
        refused(c[0], f"{d}/job-2", "shard-00001-of-00002", "another checkpoint")


@case
def each_node_writes_to_its_own_disk():
    """Each node's directory has only its own shard; brought together they are a checkpoint."""
    with Place() as d, Cluster(2, start=False) as c:
        for n, x in enumerate(c.daemons):
            os.mkdir(f"{d}/disk{n}")
            x.start(wrapper=["unshare", "-m", "sh", "-c",
                             f'mount --make-rprivate / && mount --bind "{d}/disk{n}" /mnt && exec "$@"', "sh"])
        for x in c.daemons:
            try:
                until(x.peers_up, what="readiness")
            except AssertionError as e:
                raise Skip("no mount namespaces here") from e
        train(c.ranks("job", LAYOUT, [0, 1], hold=2, push=2), 1)
        sums = c.checksum("job")
        r = subprocess.run(["nsenter", f"--mount=/proc/{c[0].process.pid}/ns/mnt", os.path.abspath(Tools.zeroctl), "--socket",
                            c[0].socket, "checkpoint", "job", "/mnt"], stdin=subprocess.DEVNULL, capture_output=True,
                           text=True, timeout=REPLY_S, check=False)
        assert r.returncode == 0 and "/mnt/job-1" in r.stdout, r
        assert len(os.listdir(f"{d}/disk0/job-1")) == len(os.listdir(f"{d}/disk1/job-1")) == 3
        with Cluster(2) as other:
            refused(other[0], f"{d}/disk0/job-1", "shard-00001-of-00002 is missing", "node n1 wrote it")
            shutil.copy(f"{d}/disk1/job-1/shard-00001-of-00002", f"{d}/disk0/job-1")
            other[0].ctl("restore", "job", f"{d}/disk0/job-1")
            assert other.checksum("job") == sums


def not_taken(daemon, directory, *what, command="checkpoint", **options):
    r = daemon.ctl_run(command, "job", directory, **options)
    assert r.returncode == 1 and all(text in r.stderr for text in (*what, "checkpoint_dir", "ReadWritePaths=")), r


@case
def directory_that_the_client_does_not_see():
    """A daemon has a directory of its own where the client sees another one, as a systemd unit has its own /tmp. The
    node that is asked compares, whichever node coordinates the job; the other one knows systemd's by its name."""
    with Place() as d, Cluster(2, start=False) as c:
        tmp, private = f"{d}/tmp", f"{d}/private"
        unit, units = f"{d}/unit", f"{d}/systemd-private-1-zerod.service/tmp"
        for path in (tmp, private, f"{private}/only-there", unit, units):
            os.makedirs(path)
        for daemon, of, at in ((c[0], private, tmp), (c[1], units, unit)):
            daemon.start(wrapper=["unshare", "-m", "sh", "-c", f'mount --make-rprivate / && mount --bind "{of}" "{at}" && '
                                  'exec "$@"', "sh"])
        try:
            until(c[0].peers_up, what="readiness")
            until(c[1].peers_up, what="readiness")
        except AssertionError as e:
            raise Skip("no mount namespaces here") from e
        ranks = c.ranks("job", LAYOUT, [0, 1], hold=2, push=2)
        train(ranks, 1)
        for path in (tmp, f"{tmp}/new", f"{tmp}/only-there"):
            not_taken(c[0], path, f"does not see the {tmp} that you see")
        r = c[0].ctl_run("checkpoint", "job", tmp, "--every", "1")
        assert r.returncode == 1 and "does not see" in r.stderr, r
        train(ranks, 1)
        assert os.listdir(private) == ["only-there"] and not os.listdir(tmp)
        not_taken(c[0], unit, "node n1: ", "made for zerod's unit")
        assert not os.listdir(units)
        path = c[0].ctl("checkpoint", "job", d)["path"]
        for seen in ("", "1:2", "1:2 relative", "1:2 /nowhere", f"x:y {d}", f"1:2 {d}/below"):
            wish = json.dumps({"job": "job", "directory": d, "seen": seen})
            reply = ranks[0].ask("query", what="checkpoint", argument=wish)
            assert reply["status"] == "EINVAL" and "DEVICE:INODE PATH" in reply["text"], (seen, reply)
        end(ranks)
        shutil.copytree(path, f"{tmp}/saved")
        not_taken(c[0], f"{tmp}/saved", "No such file", command="restore")


@case
def directory_that_does_not_outlive_the_states():
    """Neither state_dir nor the rest of its memory; whether or not the client says what it sees."""
    with Place() as d, Cluster(1) as c:
        train(c.ranks("job", LAYOUT, [0, 0], hold=2, push=2), 1)
        states = c[0].options["state_dir"]
        os.symlink(states, f"{d}/link")
        for path in (states, f"{states}/new", f"{d}/link", f"{d}/link/new"):
            not_taken(c[0], path, "lies in state_dir or its memory")
        if subprocess.run(["stat", "-f", "-c", "%T", states], capture_output=True, check=True).stdout == b"tmpfs\n":
            not_taken(c[0], f"{c.directory}/new", "lies in state_dir or its memory")
        assert not os.path.exists(f"{states}/new") and not os.path.exists(f"{c.directory}/new")


@case
def missing_path_is_not_made():
    """zerod makes the last directory alone: a whole path is missing where a disk is not mounted."""
    with Place() as d, Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], hold=2, push=2)
        train(ranks, 1)
        not_taken(c[0], f"{d}/a/b", "only the last part")
        assert not os.listdir(d)
        assert c[0].ctl("checkpoint", "job", f"{d}/a")["path"] == f"{d}/a/job-1"
        def error_of(asks):
            """Of a checkpoint that begins once the coordinator has ended the one before."""
            until(lambda: ranks[0].ask("query", **asks)["status"] != "EBUSY", what="the end of the one before")
            progress = {"what": "progress", "argument": "job"}
            until(lambda: ranks[0].do("query", **progress)["answer"]["over"], what="the refusal")
            return ranks[0].do("query", **progress)["answer"]["error"]

        # asked without a word about what the client sees, the owners refuse by themselves
        for path, why in ((f"{d}/b/c", "only the last part"), (f"{c[0].options['state_dir']}/x", "state_dir")):
            asks = {"what": "checkpoint", "argument": json.dumps({"job": "job", "directory": path})}
            assert why in error_of(asks), why
        assert os.listdir(d) == ["a"]


# ---- disks and daemons that fail ---------------------------------------------------------------------

def reserved(path, size):
    """Whether the file system had room to make the file this large."""
    with open(path, "ab") as f:
        try:
            os.posix_fallocate(f.fileno(), 0, size)
            return True
        except OSError as e:
            if e.errno != errno.ENOSPC:
                raise
            return False


@case
def full_disk():
    """Each node's shard fits on the disk, both do not: the older checkpoint stays intact."""
    private_mounts()
    with Place() as d, Cluster(2) as c:
        ranks = c.ranks("job", BIG, [0, 1], hold=2, push=2)
        train(ranks, 1)
        path = c[0].ctl("checkpoint", "job", d)["path"]
        size = sum(os.path.getsize(f"{path}/{f}") for f in os.listdir(path))
        # the daemons run in this mount namespace, so they see a later mount too
        os.mkdir(f"{d}/full")
        small_disk(f"{d}/full", size * 5 // 2)
        try:
            first, sums = c[0].ctl("checkpoint", "job", f"{d}/full")["path"], c.checksum("job")
            assert reserved(f"{d}/full/ballast", size * 3 // 4)
            train(ranks, 1)
            r = c[1].ctl_run("checkpoint", "job", f"{d}/full")
            assert r.returncode == 1 and "No space left" in r.stderr and "make room" in r.stderr, r
            until(lambda: not partial(f"{d}/full"), what="deletion of the partial checkpoint")
            # its room is free when no daemon has its files open any more
            until(lambda: reserved(f"{d}/full/ballast", size * 5 // 4), what="the room of the partial checkpoint")
            r = c[1].ctl_run("checkpoint", "job", f"{d}/full")
            assert r.returncode == 1 and "keep fewer" in r.stderr, r
            train(ranks, 1)
            assert whole(f"{d}/full") == ["ballast", "job-1"]
            end(ranks)
            c[0].ctl("restore", "again", first)
            assert planes(c, "again") == sums["planes"]
        finally:
            subprocess.run(["umount", "-l", f"{d}/full"], check=True)


@cases_of([0, 1])
def killed_while_it_writes(victim):
    """A killed coordinator or owner leaves nothing that is taken for a checkpoint; the next checkpoint deletes the
    remains."""
    with Place() as d, Cluster(2, checkpoint_memory=1) as c:
        ranks = c.ranks("job", BIG, [0, 1], hold=2, push=2)
        train(ranks, 1)
        path, sums = c[0].ctl("checkpoint", "job", d)["path"], c.checksum("job")
        train(ranks, 1)
        end(ranks)
        caught = 0
        for _ in range(TRIES):
            asked = subprocess.Popen([Tools.zeroctl, "--socket", c[1 - victim].socket, "checkpoint", "job", d],
                                     stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            while not partial(d) and asked.poll() is None:
                time.sleep(0.001)
            c[victim].kill()
            said = asked.communicate(timeout=60 * SLOW)[1]
            if asked.returncode == 0:  # the kill came too late
                shutil.rmtree(f"{d}/job-2")
            else:
                assert asked.returncode == 1 and f"n{victim}" in said, said
                caught += 1
            for name in partial(d):
                r = c[1 - victim].ctl_run("restore", "half", f"{d}/{name}")
                assert r.returncode == 1, r
            c[victim].start()
            for x in c.daemons:
                until(x.peers_up, what=f"readiness of {x.name}")
            if caught == 3:
                break
        assert caught, "no kill fell into a checkpoint"
        c[0].ctl("restore", "again", path)
        assert planes(c, "again") == sums["planes"] and whole(d) == ["job-1"]
        ranks = c.ranks("job", BIG, [0, 1], hold=2, push=2)
        c[0].ctl("checkpoint", "job", d)
        assert whole(d) == ["job-1", "job-2"] and not partial(d), os.listdir(d)


def same_or(values, *sums):
    assert values in sums, f"{values} is none of {sums}"


@cases_of(["checkpoint.block", "checkpoint.shard", "checkpoint.filled", "checkpoint.named", "checkpoint.thinned",
           "restore.filled", "restore.named"])
def killed_at(point):
    """A kill at any stage, on either node: complete checkpoints are right, and the repeated command succeeds."""
    if point not in crash_points():
        raise Skip("the daemon was built without crash points")
    with Place() as d, Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], hold=2, push=2)
        sums = {}
        for version in (1, 2):
            train(ranks, 1)
            c[0].ctl("checkpoint", "job", d)
            sums[version] = planes(c)
        train(ranks, 1)
        end(ranks)
        sums[3] = planes(c)
        order = ["restore", "job", f"{d}/job-1"] if point.startswith("restore") else ["checkpoint", "job", d, "--keep", "2"]
        died = 0
        for victim in (1, 0):
            c[victim].process.kill()
            c[victim].process.wait()
            c[victim].start(crash=point)
            for x in c.daemons:
                until(x.peers_up, what=f"readiness of {x.name}")
            r = c[1 - victim].ctl_run(*order)
            if c[victim].alive():  # the other node did the work alone
                assert r.returncode == 0, r
                c[victim].process.kill()
            else:
                died += 1
            c[victim].process.wait()
            c[victim].start()
            for x in c.daemons:
                until(x.peers_up, what=f"readiness of {x.name}")
            for name in whole(d):
                c[0].ctl("restore", "copy", f"{d}/{name}")
                assert planes(c, "copy") == sums[int(name.rpartition("-")[2])]
            if point == "restore.filled":
                same_or(planes(c), sums[3], sums[1])
            c[0].ctl(*order)
            assert not partial(d) and planes(c) == sums[1 if point.startswith("restore") else 3]
            c[0].ctl("checkpoint", "job", d)
        assert died, "no daemon has reached the crash point"


@cases_of(["drop", "stop"])
def dropped_or_stopped_while_it_writes(how):
    """The drop of the job, or the stop of a daemon, ends the checkpoint and deletes its files."""
    with Place() as d, Cluster(2, checkpoint_memory=1) as c:
        ranks = c.ranks("job", BIG, [0, 1], hold=2, push=2)
        train(ranks, 1)
        asked = subprocess.Popen([Tools.zeroctl, "--socket", c[0].socket, "checkpoint", "job", d],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: partial(d) or asked.poll() is not None, what="a partial checkpoint")
        if how == "drop":
            c[1].ctl("drop", "job")
        else:
            c[1].process.send_signal(signal.SIGTERM)
            assert c[1].process.wait(15 * SLOW) == 0, c[1].log()
        asked.wait(60 * SLOW)
        until(lambda: not partial(d), what="deletion of the partial checkpoint")
        assert c[0].status()["node"] == "n0"


# ---- users -----------------------------------------------------------------------------------------------

NOBODY = 65534


def as_nobody(daemon, *arguments):
    return subprocess.run([Tools.zeroctl, "--socket", daemon.socket, *arguments], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60 * SLOW, check=False, user=NOBODY, group=NOBODY,
                          extra_groups=[])


def job_of_nobody(c, name):
    a = c.actor(0, "nobody's rank")
    a.do("user", uid=NOBODY)
    a.do("connect", job=name, rank=0, world=1)
    a.do("layout", groups=small_layout(blocks=1))
    a.do("attach", hold=2, push=2)
    a.do("train", steps=1, sets=SETS)
    return a


@case
def other_users_are_kept_to_checkpoint_dir():
    """For other users zerod writes and reads only below checkpoint_dir, and only their own jobs and checkpoints."""
    if os.geteuid():
        raise Skip("only root can be two users")
    with Place() as d:
        with Cluster(1) as c:
            job_of_nobody(c, "theirs")
            r = as_nobody(c[0], "checkpoint", "theirs", f"{d}/x")
            assert r.returncode == 1 and "checkpoint_dir" in r.stderr and not os.listdir(d), r
        os.mkdir(f"{d}/root")
        os.mkdir(f"{d}/outside")
        os.symlink(f"{d}/outside", f"{d}/root/link")
        with Cluster(1, checkpoint_dir=f"{d}/root") as c:
            rank = job_of_nobody(c, "theirs")
            mine, = c.ranks("mine", small_layout(blocks=1), [0], hold=2, push=2)
            for path in (f"{d}/outside", f"{d}/root/link", f"{d}/root/link/x", f"{d}/rootless", "/etc"):
                r = as_nobody(c[0], "checkpoint", "theirs", path)
                assert r.returncode == 1 and not os.listdir(f"{d}/outside"), (path, r)
            for path in ("relative", f"{d}/root/../outside", f"{d}/root/./x", f"{d}/root/a\nb"):
                reply = rank.ask("query", what="checkpoint", argument=json.dumps({"job": "theirs", "directory": path}))
                assert reply["status"] == "EINVAL", (path, reply)
            r = as_nobody(c[0], "checkpoint", "mine", f"{d}/root/x")
            assert r.returncode == 1 and "EPERM" in r.stderr, r
            r = as_nobody(c[0], "checkpoint", "theirs", f"{d}/root/a/b")
            assert r.returncode == 1 and "only the last part" in r.stderr, r
            assert as_nobody(c[0], "checkpoint", "theirs", f"{d}/root/a").returncode == 0
            path = f"{d}/root/a/theirs-1"
            assert os.stat(path).st_mode & 0o777 == 0o700
            mine.do("train", steps=1, sets=SETS)
            c[0].ctl("checkpoint", "mine", f"{d}/root/a")
            r = as_nobody(c[0], "checkpoints", f"{d}/root/a", "--verify")
            assert r.returncode == 0 and "theirs" in r.stdout and "mine" not in r.stdout, r
            r = as_nobody(c[0], "checkpoints", f"{d}/outside")
            assert r.returncode == 1 and "checkpoint_dir" in r.stderr, r
            r = rank.ask("query", what="verify", argument=json.dumps({"directory": f"{d}/root/a/mine-1"}))
            assert r["status"] == "EPERM", r
            r = as_nobody(c[0], "restore", "copy", f"{d}/root/a/mine-1")
            assert r.returncode == 1 and "belongs to user 0" in r.stderr, r
            assert as_nobody(c[0], "restore", "copy", path).returncode == 0
            assert c[0].job("copy")["uid"] == NOBODY and planes(c, "copy") == planes(c, "theirs")
            os.chmod(f"{path}/manifest.json", 0o666)
            r = as_nobody(c[0], "restore", "copy2", path)
            assert r.returncode == 1 and "users other than zerod's" in r.stderr, r


if __name__ == "__main__":
    main()
