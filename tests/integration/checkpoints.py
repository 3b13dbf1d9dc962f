#!/usr/bin/env python3
"""Checkpoints: taken while a job trains they change nothing; restored at any number of nodes they
give the same bits and training goes on from there; damaged, cut and half-written ones are refused."""
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SETS, SLOW, Cluster, Tools, finish_all, libc, small_layout, until  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402

CLONE_NEWNS = 0x20000
LAYOUT = small_layout(blocks=3, width=120)
TRAIN = {"sets": SETS, "clip": 0.5, "seed": 11}


class Place:
    """A directory for checkpoints that goes with the block."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="zerod-ckpt-", dir="/dev/shm")
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)


def start_training(ranks, steps, **fields):
    for a in ranks:
        a.start("train", steps=steps, **{**TRAIN, **fields})


def train(ranks, steps, **fields):
    start_training(ranks, steps, **fields)
    return finish_all(ranks)


def planes(cluster, job="job"):
    return cluster.checksum(job)["planes"]


def undisturbed(steps, nodes=2, layout=None, placement=(0, 1), **needs):
    with Cluster(nodes) as c:
        ranks = c.ranks("job", layout or LAYOUT, list(placement), hold=2, push=2, **needs)
        train(ranks, steps)
        return planes(c)


def whole(directory):
    return sorted(n for n in os.listdir(directory) if not n.startswith("."))


def partial(directory):
    return sorted(n for n in os.listdir(directory) if n.startswith("."))


def end(ranks):
    """Their sessions end in order."""
    for a in ranks:
        a.do("close")
        a.end()


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
        text = c[0].ctl_run("checkpoint", "job", d)
        assert text.returncode == 0 and "version 3" in text.stdout and "may wait for about" in text.stderr, text


@cases_of([("full", 0, "fp32"), ("tight", 1, "fp32"), ("bf16", 0, "bf16")], "{0[0]}")
def training_goes_on(how):
    """Checkpoints one after the other while two ranks train: the same bits as without them, and each
    of them is one step of that training."""
    _, memory, dtype = how
    layout, needs = small_layout(dtype, blocks=3, width=120), {"grad": dtype}
    steps = 60
    expected = undisturbed(steps, layout=layout, **needs)
    with Place() as d:
        with Cluster(2, checkpoint_memory=memory, threads=2) as c:
            ranks = c.ranks("job", layout, [0, 1], hold=2, push=2, **needs)
            start_training(ranks, steps)
            versions = set()
            while not all(a.ready() for a in ranks):
                versions.add(c[len(versions) % 2].ctl("checkpoint", "job", d)["version"])
            finish_all(ranks)
            assert planes(c) == expected
            assert len(versions) > 2, "too few checkpoints for this to show anything"
        middle = sorted(versions)[len(versions) // 2]
        with restored(f"{d}/job-{middle}", 3) as c:
            ranks = c.ranks("job", layout, [0, 1], hold=2, push=2, **needs)
            assert {a.do("version")["version"] for a in ranks} == {middle}
            train(ranks, steps - middle)
            assert planes(c) == expected


@case
def blocks_and_buffers():
    """A state of many blocks through the smallest buffer, and a step in between."""
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

@cases_of([1, 2, 3])
def restored_at(nodes):
    """Taken at two nodes, read at one, two and three: the same state, and the same training."""
    expected = undisturbed(7)
    with Place() as d:
        with Cluster(2) as c:
            ranks = c.ranks("job", LAYOUT, [0, 1], hold=2, push=2)
            train(ranks, 4)
            c[0].ctl("checkpoint", "job", d)
            sums = c.checksum("job")
        with restored(f"{d}/job-4", nodes) as c:
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
def replaces_what_is_there():
    """Not while ranks are attached; then the job is what it was, also after a restart."""
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
def blobs_come_back():
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


# ---- keep, and every ----------------------------------------------------------------------------

@case
def keeps_the_newest():
    with Place() as d, Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], hold=2, push=2)
        other = c.ranks("job-2", small_layout(blocks=1), [0], hold=2, push=2)
        c[0].ctl("checkpoint", "job-2", d)
        for i in range(5):
            c[0].ctl("checkpoint", "job", d, "--keep", "2")
            train(ranks, 1)
        assert whole(d) == ["job-2-0", "job-3", "job-4"] and not partial(d), os.listdir(d)
        end(other)


@case
def every_so_many_steps():
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
        until(lambda: whole(d) == ["job-6", "job-9"], what="the end of the oldest")
        c[0].ctl("checkpoint", "job", d, "--every", "0")
        train(ranks, 6)
        assert whole(d) == ["job-6", "job-9"]


# ---- what must not be used ------------------------------------------------------------------------

def taken(directory, nodes=2, steps=2, layout=None):
    """A checkpoint and the checksum of what it holds."""
    with Cluster(nodes) as c:
        ranks = c.ranks("job", layout or LAYOUT, [i % nodes for i in range(2)], hold=2, push=2)
        train(ranks, steps)
        path = c[0].ctl("checkpoint", "job", directory)["path"]
        return path, c.checksum("job")


def refused(daemon, path, *words, job="job"):
    r = daemon.ctl_run("restore", job, path)
    assert r.returncode == 1, f"{path} was restored: {r}"
    for word in words:
        assert word in r.stderr, f"'{word}' is not in '{r.stderr}'"
    assert daemon.job(job) is None


@case
def flipped_bits():
    """At random places of every file: each is found, and named; nothing comes of it."""
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
def cut_and_missing_files():
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
    """Whole shards, but not of one step."""
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
def disks_of_their_own():
    """Each node's directory has its shard alone: it is a checkpoint when they are together."""
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
        assert c[0].ctl("checkpoint", "job", "/mnt")["path"] == "/mnt/job-1"
        assert len(os.listdir(f"{d}/disk0/job-1")) == len(os.listdir(f"{d}/disk1/job-1")) == 3
        with Cluster(2) as other:
            refused(other[0], f"{d}/disk0/job-1", "shard-00001-of-00002 is missing", "node n1 wrote it")
            shutil.copy(f"{d}/disk1/job-1/shard-00001-of-00002", f"{d}/disk0/job-1")
            other[0].ctl("restore", "job", f"{d}/disk0/job-1")
            assert other.checksum("job") == sums


# ---- disks and daemons that fail ---------------------------------------------------------------------

BIG = small_layout(blocks=4, width=700)


def private_mounts():
    """What is mounted from here on is seen by this process and what it starts, and goes with them."""
    if libc.unshare(CLONE_NEWNS) or subprocess.run(["mount", "--make-rprivate", "/"], check=False).returncode:
        raise Skip("no mount namespaces here")


def small_disk(directory, size):
    r = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", directory], check=False,
                       capture_output=True, text=True)
    if r.returncode:
        raise Skip(f"no tmpfs can be mounted: {r.stderr}")


@case
def full_disk():
    """The nodes' shards fit one by one, but not together: the older checkpoint stays as it is."""
    private_mounts()
    with Place() as d, Cluster(2) as c:
        ranks = c.ranks("job", BIG, [0, 1], hold=2, push=2)
        train(ranks, 1)
        path = c[0].ctl("checkpoint", "job", d)["path"]
        size = sum(os.path.getsize(f"{path}/{f}") for f in os.listdir(path))
        # daemons see what is mounted in their namespace, whenever
        os.mkdir(f"{d}/full")
        small_disk(f"{d}/full", size * 5 // 2)
        try:
            first, sums = c[0].ctl("checkpoint", "job", f"{d}/full")["path"], c.checksum("job")
            with open(f"{d}/full/ballast", "wb") as f:
                os.posix_fallocate(f.fileno(), 0, size * 3 // 4)
            train(ranks, 1)
            r = c[1].ctl_run("checkpoint", "job", f"{d}/full")
            assert r.returncode == 1 and "No space left" in r.stderr and "make room" in r.stderr, r
            until(lambda: not partial(f"{d}/full"), what="the end of what was half written")
            with open(f"{d}/full/ballast", "ab") as f:
                os.posix_fallocate(f.fileno(), 0, size * 5 // 4)
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
    """Neither a coordinator nor another owner leaves anything that is taken for a checkpoint; a later
    one clears it away."""
    with Place() as d, Cluster(2, checkpoint_memory=1) as c:
        ranks = c.ranks("job", BIG, [0, 1], hold=2, push=2)
        train(ranks, 1)
        path, sums = c[0].ctl("checkpoint", "job", d)["path"], c.checksum("job")
        train(ranks, 1)
        end(ranks)
        for _ in range(3):
            asked = subprocess.Popen([Tools.zeroctl, "--socket", c[1 - victim].socket, "checkpoint", "job", d],
                                     stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            until(lambda: partial(d) or asked.poll() is not None, what="a partial checkpoint")
            c[victim].process.kill()
            c[victim].process.wait()
            said = asked.communicate(timeout=60 * SLOW)[1]
            assert asked.returncode == 1 and f"n{victim}" in said, said
            for name in partial(d):
                r = c[1 - victim].ctl_run("restore", "half", f"{d}/{name}")
                assert r.returncode == 1, r
            c[victim].start()
            for x in c.daemons:
                until(x.peers_up, what=f"readiness of {x.name}")
        c[0].ctl("restore", "again", path)
        assert planes(c, "again") == sums["planes"] and whole(d) == ["job-1"]
        ranks = c.ranks("job", BIG, [0, 1], hold=2, push=2)
        c[0].ctl("checkpoint", "job", d)
        assert whole(d) == ["job-1", "job-2"] and not partial(d), os.listdir(d)


@cases_of(["drop", "stop"])
def ended_while_it_writes(how):
    """A job that is dropped, or a daemon that is stopped, breaks the checkpoint off and clears it away."""
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
        until(lambda: not partial(d), what="the end of what was half written")
        assert c[0].status()["node"] == "n0"


# ---- whose -----------------------------------------------------------------------------------------------

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
def users():
    """zerod writes and reads for others only what lies below checkpoint_dir, and what is theirs."""
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
            assert as_nobody(c[0], "checkpoint", "theirs", f"{d}/root/a/b").returncode == 0
            path = f"{d}/root/a/b/theirs-1"
            assert os.stat(path).st_mode & 0o777 == 0o700
            mine.do("train", steps=1, sets=SETS)
            c[0].ctl("checkpoint", "mine", f"{d}/root/a/b")
            r = as_nobody(c[0], "restore", "copy", f"{d}/root/a/b/mine-1")
            assert r.returncode == 1 and "belongs to user 0" in r.stderr, r
            assert as_nobody(c[0], "restore", "copy", path).returncode == 0
            assert c[0].job("copy")["uid"] == NOBODY and planes(c, "copy") == planes(c, "theirs")
            os.chmod(f"{path}/manifest.json", 0o666)
            r = as_nobody(c[0], "restore", "copy2", path)
            assert r.returncode == 1 and "others" in r.stderr, r


# ---- export and import ---------------------------------------------------------------------------------------

def read_safetensors(path):
    with open(path, "rb") as f:
        data = f.read()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    return header, data[8 + length:]


def write_safetensors(path, header, body=b"", length=None):
    text = json.dumps(header).encode() if isinstance(header, dict) else header
    with open(path, "wb") as f:
        f.write((len(text) if length is None else length).to_bytes(8, "little") + text + body)


@cases_of(["fp32", "bf16", "fp16"])
def export_and_import(dtype):
    """What is exported is imported again, to the bit, into a job that had other values."""
    layout = small_layout(dtype, blocks=2, width=90)
    with Place() as d, Cluster(2) as c:
        ranks = c.ranks("job", layout, [0, 1], hold=2, push=2, grad=dtype)
        train(ranks, 2)
        answer = c[1].ctl("export", "job", f"{d}/a.safetensors")
        header, body = read_safetensors(f"{d}/a.safetensors")
        assert answer["version"] == 2 and header["__metadata__"]["version"] == "2"
        assert answer["tensors"] == len(header) - 1 and answer["bytes"] == len(body)
        assert header["wte"]["shape"] == [37, 90] and header["wte"]["dtype"] == "F32"
        begin = header["wte"]["data_offsets"][0]
        values = ranks[0].do("get", tensor=0, plane="master", count=37 * 90)["values"]
        assert list(struct.unpack(f"<{37 * 90}f", body[begin:begin + 4 * 37 * 90])) == values
        r = c[0].ctl("export", "job", f"{d}/s.safetensors", "--dtype", "serve")
        word = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}[dtype]
        assert read_safetensors(f"{d}/s.safetensors")[0]["wte"]["dtype"] == word
        before = planes(c)
        train(ranks, 1)
        moments = planes(c)
        c[0].ctl("import", "job", f"{d}/a.safetensors")
        after = planes(c)
        assert after["master"] == before["master"] and after["exp_avg"] == moments["exp_avg"]
        c[1].ctl("import", "job", f"{d}/s.safetensors")
        c[1].ctl("export", "job", f"{d}/t.safetensors", "--dtype", "serve")
        assert read_safetensors(f"{d}/s.safetensors")[1] == read_safetensors(f"{d}/t.safetensors")[1]
        assert sorted(os.listdir(d)) == ["a.safetensors", "s.safetensors", "t.safetensors"]


@case
def export_of_a_job_that_steps():
    with Place() as d, Cluster(1) as c:
        a, = c.ranks("job", BIG, [0], hold=2, push=2)
        asked = subprocess.Popen([Tools.zeroctl, "--socket", c[0].socket, "export", "job", f"{d}/a.safetensors"],
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        while asked.poll() is None:
            a.do("step", sets=SETS)
        assert asked.returncode == 1 and not os.listdir(d), os.listdir(d)
        said = asked.communicate()[1]
        assert "from version" in said, said


def hostile_headers(header, body):
    """(what is wrong, header, body, length)"""
    one = {"wte": header["wte"]}
    entry = header["wte"]

    def changed(**fields):
        return {"wte": {**entry, **fields}}

    yield "is no safetensors file", one, body, 1 << 62
    yield "is no safetensors file", one, body, len(json.dumps(one)) + len(body) + 1
    yield "no JSON object", b"[1, 2]", body, None
    yield "no JSON object", b'{"a": ', body, None
    yield "no JSON object", b'{"a": 1, "a": 2}', body, None
    yield "no JSON object", b"[" * 100000, body, None
    yield "dtype", {"wte": 7}, body, None
    yield "not known", changed(dtype="F31"), body, None
    yield "shape", changed(shape=[-1]), body, None
    yield "shape", changed(shape=[1] * 9), body, None
    yield "shape", changed(shape=[1 << 40, 1 << 40]), body, None
    yield "shape makes", changed(shape=[37]), body, None
    yield "does not lie", changed(data_offsets=[8, 0]), body, None
    yield "does not lie", changed(data_offsets=[0, 1 << 60]), body, None
    yield "does not lie", changed(data_offsets=[0]), body, None
    yield "hole", changed(data_offsets=[4, len(body) + 4]), body + b"hole", None
    yield "belong to no tensor", one, body + b"x", None
    yield "overlaps", {"wte": entry, "wpe": entry}, body, None


@case
def import_of_hostile_files():
    layout = small_layout(blocks=1)
    with Place() as d, Cluster(1) as c:
        c.ranks("job", layout, [0], hold=2, push=2)
        c[0].ctl("export", "job", f"{d}/good")
        header, body = read_safetensors(f"{d}/good")
        sums = planes(c)
        begin, end_ = header["wte"]["data_offsets"]
        assert begin == 0
        for word, bad, data, length in hostile_headers(header, body[:end_]):
            write_safetensors(f"{d}/bad", bad, data, length)
            r = c[0].ctl_run("import", "job", f"{d}/bad")
            assert r.returncode == 1 and word in r.stderr, (word, r)
        for word, change in (("no tensor 'wte', which the job", lambda h: h.update(wtf=h.pop("wte"))),
                             ("no tensor 'more', which the file", lambda h: h.update(
                                 more={"dtype": "F32", "shape": [0], "data_offsets": [len(body)] * 2})),
                             ("another shape", lambda h: h["wte"].update(shape=h["wte"]["shape"][::-1])),
                             ("is I32", lambda h: h["wte"].update(dtype="I32"))):
            bad = json.loads(json.dumps(header))
            change(bad)
            write_safetensors(f"{d}/bad", bad, body)
            r = c[0].ctl_run("import", "job", f"{d}/bad")
            assert r.returncode == 1 and word in r.stderr, (word, r)
        for path in (f"{d}/none", d, "/dev/null"):
            assert c[0].ctl_run("import", "job", path).returncode == 1
        assert planes(c) == sums


if __name__ == "__main__":
    main()
