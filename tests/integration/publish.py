#!/usr/bin/env python3
"""zeroctl publish: whole versions of a job that trains, as directories of safetensors files, whatever happens meanwhile."""
import contextlib
import json
import os
import random
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import BIG, TRAIN, Place, read_safetensors, train, write_safetensors  # noqa: E402
from cluster import REPLY_S, Cluster, Tools, finish_all, group, small_layout, spawn, tensor, until  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402
from mounts import private_mounts, small_disks  # noqa: E402

LAYOUT = small_layout(blocks=2, width=250)  # more than 1 MB in fp32, less in 16 bits
NEEDS = {"hold": 2, "push": 2}
INDEX = "model.safetensors.index.json"
NOBODY = 65534


def versions(directory):
    return sorted(int(name[8:]) for name in os.listdir(directory) if name.startswith("version-"))


def partial(directory):
    return [name for name in os.listdir(directory) if name.startswith(".") and name != ".publish"]


def read_version(directory, version, job="job"):
    """{name: (dtype, shape, bytes)} of a published version, which must be whole, and its other files."""
    path = f"{directory}/version-{version:08d}"
    with open(f"{path}/{INDEX}", encoding="utf-8") as f:
        index = json.load(f)
    assert sorted(os.listdir(path)) == sorted(index["metadata"]["files"]), os.listdir(path)
    names = sorted(set(index["weight_map"].values()))
    n = len(names)
    assert names == (["model.safetensors"] if n == 1 else [f"model-{i + 1:05d}-of-{n:05d}.safetensors" for i in range(n)])
    found = {}
    for name in names:
        header, body = read_safetensors(f"{path}/{name}")
        assert header.pop("__metadata__") == {"format": "pt", "job": job, "version": str(version)}
        assert max(entry["data_offsets"][1] for entry in header.values()) == len(body)
        for key, entry in header.items():
            assert index["weight_map"][key] == name
            found[key] = entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])]
    assert len(found) == len(index["weight_map"])
    assert index["metadata"]["total_size"] == sum(len(data) for _, _, data in found.values())
    return found, sorted(set(os.listdir(path)) - {*names, INDEX})


def exported(daemon, job, path):
    """The same of a job that stands still, by way of the ranks' parameters."""
    daemon.ctl("export", job, path, "--dtype", "serve")
    header, body = read_safetensors(path)
    header.pop("__metadata__")
    os.unlink(path)
    return {key: (e["dtype"], e["shape"], body[slice(*e["data_offsets"])]) for key, e in header.items()}


class Publisher:
    """zeroctl publish, while something else goes on."""

    def __init__(self, c, directory, *arguments, node=0):
        self.process = spawn([Tools.zeroctl, "--socket", c[node].socket, "publish", "job", directory, *map(str, arguments)],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        c.others.append(self.process)
        self.directory = directory

    def wrote(self, newest):
        """Waits for a version of this number, or a newer one."""
        def there():
            assert self.process.poll() is None, self.process.stderr.read()
            return os.path.isdir(self.directory) and versions(self.directory)[-1:] >= [newest]
        until(there, what=f"version {newest} in {self.directory}")

    def begins(self):
        """Waits until a version is being written."""
        until(lambda: os.path.isdir(self.directory) and partial(self.directory), what="a version that is written")

    def send(self, number):
        self.process.send_signal(number)

    def end(self, number=signal.SIGTERM):
        """What it said; it ends by the signal."""
        self.send(number)
        said = self.process.communicate(timeout=REPLY_S)[1]
        assert self.process.returncode == -number, (self.process.returncode, said)
        return said


class Training:
    """Ranks that train until the block ends."""

    def __init__(self, c, layout=LAYOUT, placement=(0, 1)):
        self.c, self.file = c, f"{c.directory}/until"
        self.ranks = c.ranks("job", layout, list(placement), **NEEDS)

    def aim(self, version):
        with open(self.file, "w", encoding="ascii") as f:
            f.write(str(version))

    def __enter__(self):
        self.aim(1 << 40)
        for a in self.ranks:
            a.start("train", until=self.file, patient=True, **TRAIN)
        return self

    def version(self):
        return until(lambda: self.c[0].job("job"), what="the job")["version"]

    def goes_on(self, steps=5):
        wanted = self.version() + steps
        until(lambda: self.version() >= wanted, what="more steps")

    def __exit__(self, kind, *_):
        for a in self.ranks:
            a.stop()  # none may be past the version that all stop at
        self.aim(self.version() + 5)
        for a in self.ranks:
            a.go_on()
        if not kind:
            finish_all(self.ranks)


@contextlib.contextmanager
def copied(directory):
    """Files that go along with each version."""
    paths = [f"{directory}/config.json", f"{directory}/tokenizer"]
    for path in paths:
        with open(path, "w", encoding="ascii") as f:
            f.write(path)
    yield paths


@cases_of([("fp32", 2), ("bf16", 1), ("fp16", 2)], "{0[0]}_on_{0[1]}")
def versions_are_whole(what):
    """Each version published while a job trains is what a second job has after the same steps."""
    dtype, nodes = what
    layout = [*small_layout(dtype, blocks=2, width=250), group("odd", tensor("../../out", 7), tensor("/x\"y", 3), dtype=dtype)]
    with Place() as d, Cluster(nodes) as c, copied(d) as files:
        with Training(c, layout, [0, nodes - 1]):
            a = Publisher(c, f"{d}/out", *files, "--every", 4, "--shard-size", 1, node=nodes - 1)
            a.wrote(30)
            assert a.end() == ""
        ranks, at = c.ranks("again", layout, [0, nodes - 1], **NEEDS), 0
        found = versions(f"{d}/out")
        assert os.readlink(f"{d}/out/latest") == f"version-{found[-1]:08d}" and not partial(f"{d}/out")
        for before, version in zip([-1, *found], found[:6]):
            assert version // 4 > before // 4, found
            if version > at:
                train(ranks, version - at)
                at = version
            tensors, others = read_version(f"{d}/out", version)
            assert tensors == exported(c[0], "again", f"{d}/x") and others == ["config.json", "tokenizer"], others
        shards = sum(name.startswith("model-") for name in os.listdir(f"{d}/out/latest"))
        assert shards == (2 if dtype == "fp32" else 0), shards
        with open(f"{d}/out/latest/config.json", encoding="ascii") as f:
            assert f.read() == files[0]
        assert sorted(os.listdir(d)) == ["config.json", "out", "tokenizer"]


@case
def once():
    """Without --every: the newest version, and no version twice."""
    with Place() as d, Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 3)
        r = c[1].ctl("publish", "job", d)
        assert (r["job"], r["version"], r["file"]) == ("job", 3, f"{d}/version-00000003"), r
        tensors, _ = read_version(d, 3)
        assert tensors == exported(c[0], "job", f"{d}/x") and r["bytes"] == sum(len(t[2]) for t in tensors.values())
        r = c[0].ctl_run("publish", "job", d)
        assert r.returncode == 1 and "is at version 3" in r.stderr, r
        train(ranks, 1)
        c[0].ctl("publish", "job", d)
        assert versions(d) == [3, 4] and os.readlink(f"{d}/latest") == "version-00000004"


@case
def bytes_keep_their_type():
    """In a group of bytes a shape counts bytes, and offsets count words."""
    put = {"frozen": True, "init": "put", "value": 0}
    layout = [group("q", tensor("q", 37, 3, **put), tensor("one", 1, **put), tensor("r", 5, **put),
                    dtype="uint8"), group("w", tensor("w", 9), dtype="bf16")]
    values, header, at = bytes(range(135)), {}, 0
    for name, shape, dtype, size in (("q", [37, 3], "U8", 111), ("one", [1], "U8", 1), ("r", [5], "U8", 5), ("w", [9], "BF16", 18)):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    with Place() as d, Cluster(2) as c:
        c.ranks("job", layout, [0, 1], **NEEDS)
        write_safetensors(f"{d}/in", header, values)
        c[0].ctl("import", "job", f"{d}/in")
        c[0].ctl("publish", "job", f"{d}/out")
        found, _ = read_version(f"{d}/out", 0)
        assert found == {k: (e["dtype"], e["shape"], values[slice(*e["data_offsets"])]) for k, e in header.items()}, found


@case
def a_killed_publisher_leaves_whole_versions():
    """The next one deletes the rest, and goes on above what is there."""
    draw = random.Random(5)
    with Place() as d, Cluster(2) as c, Training(c, BIG) as t:
        left = 0
        for _ in range(12):
            a = Publisher(c, d, "--every", 1, "--keep", 3, "--shard-size", 4)
            a.begins()
            with contextlib.suppress(subprocess.TimeoutExpired):
                a.process.wait(draw.uniform(0, 0.3))
            a.end(signal.SIGKILL)
            left += len(partial(d))
            for version in versions(d):
                read_version(d, version)
        assert left > 0, "no kill fell into a version"
        newest = (versions(d) or [0])[-1]
        a = Publisher(c, d, "--every", 1, "--keep", 3, "--shard-size", 4)
        a.wrote(newest + 1)
        a.end()
        assert partial(d) == [] and len(versions(d)) <= 3, os.listdir(d)
        assert os.readlink(f"{d}/latest") == f"version-{versions(d)[-1]:08d}"
        read_version(d, versions(d)[-1])
        t.goes_on()


@cases_of([signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def a_signal_ends_in_order(number):
    if signal.getsignal(number) == signal.SIG_IGN:  # of nohup: the command would ignore the signal, too
        signal.signal(number, signal.SIG_DFL)
    with Place() as d, Cluster(1) as c:
        with Training(c, BIG, [0, 0]) as t:
            a = Publisher(c, f"{d}/out", "--every", 1)
            a.begins()
            a.send(signal.SIGSTOP)
            t.goes_on()  # while the version is held
            a.send(number)
            a.send(signal.SIGCONT)
            a.end(number)
            assert partial(f"{d}/out") == [], os.listdir(f"{d}/out")
            for version in versions(f"{d}/out"):
                read_version(f"{d}/out", version)
        version = c[0].job("job")["version"]
        a = Publisher(c, f"{d}/waits", "--every", version)
        a.wrote(version)
        until(lambda: (c[0].job("job")["readers"] or {"held": 1})["held"] == 0, what="the wait for the next version")
        a.end(number)
        assert versions(f"{d}/waits") == [version]


@case
def the_oldest_go():
    """--keep deletes what publish wrote, and nothing else."""
    with Place() as d, Cluster(1) as c:
        ranks = c.ranks("job", LAYOUT, [0], **NEEDS)

        def publish(keep, job="job"):
            train(ranks, 1)
            r = c[0].ctl_run("publish", job, d, "--keep", str(keep))
            return r.returncode, r.stderr

        for _ in range(4):
            assert publish(0) == (0, "")
        for name in ("version-1", "version-00000002.bak", "notes"):
            os.mkdir(f"{d}/{name}")
        os.makedirs(f"{d}/elsewhere/inner")
        os.rename(f"{d}/version-00000001", f"{d}/elsewhere/one")
        os.symlink("elsewhere/one", f"{d}/version-00000001")
        with open(f"{d}/version-00000003/score", "w", encoding="ascii"):
            pass
        code, said = publish(2)
        assert code == 0 and "version-00000001 is kept" in said and "version-00000003 is kept" in said, said
        assert {*os.listdir(d)} == {"version-1", "version-00000002.bak", "notes", "elsewhere", "version-00000001",
                                    "version-00000003", "version-00000004", "version-00000005", "latest", ".publish"}
        os.unlink(f"{d}/version-00000003/score")
        assert len(os.listdir(f"{d}/elsewhere/one")) == 2
        code, said = publish(1)
        assert code == 0 and "00000003" not in said and not os.path.exists(f"{d}/version-00000003"), said
        with open(f"{d}/version-00000006/{INDEX}", "r+", encoding="ascii") as f:
            text = f.read().replace('"job": "job"', '"job": "jab"')
            f.seek(0)
            f.write(text)
        code, said = publish(1)
        assert code == 1 and "a directory of its own" in said and os.path.exists(f"{d}/version-00000006"), said


@case
def a_full_disk():
    private_mounts()
    with Place() as d, Cluster(2) as c, small_disks([f"{d}/small"], "1m"), Training(c) as t:
        for more in (), ("--every", "1"):
            r = c[0].ctl_run("publish", "job", f"{d}/small", *more)
            assert r.returncode == 1 and "No space left" in r.stderr, r
            assert os.listdir(f"{d}/small") == [".publish"], os.listdir(f"{d}/small")
        t.goes_on()
        until(lambda: c[0].job("job")["readers"] is None, what="the end of the copies")


@case
def bad_places_and_files():
    with Place() as d, Cluster(1) as c, copied(d) as files:
        ranks = c.ranks("job", LAYOUT, [0], **NEEDS)

        def refused(word, *arguments, user=None):
            r = c[0].ctl_run("publish", *arguments, user=user)
            assert r.returncode in (1, 2) and word in r.stderr, r

        refused("No such file", "job", f"{d}/none/out")
        refused("Not a directory", "job", files[0])
        refused("no job 'jab'", "jab", f"{d}/out", "--timeout", "1")
        refused("none/x", "job", f"{d}/out", f"{d}/none/x")
        refused("no file", "job", f"{d}/out", files[0], d)
        refused("File exists", "job", f"{d}/out", files[0], files[0])
        os.mkfifo(f"{d}/fifo")
        refused("no file", "job", f"{d}/out", f"{d}/fifo")
        with open(os.fsencode(f"{d}/") + b"\xff", "w", encoding="ascii"):
            pass
        refused("cannot be copied", "job", f"{d}/out", os.fsdecode(os.fsencode(f"{d}/") + b"\xff"))
        refused("every is at least 1", "job", f"{d}/out", "--every", "0")
        assert os.listdir(f"{d}/out") == [".publish"], os.listdir(f"{d}/out")
        os.makedirs(f"{d}/held/latest")
        refused("held/latest: File exists", "job", f"{d}/held")
        a = Publisher(c, f"{d}/two", "--every", 1)
        a.wrote(0)
        refused("another zeroctl publish", "job", f"{d}/two")
        a.end()
        if os.getuid():
            raise Skip("another user needs root")
        os.chmod(d, 0o777)
        refused("belongs to", "job", f"{d}/stranger", user=NOBODY)
        os.chmod(d, 0o755)
        c.dismiss(ranks[0])
        theirs = c.actor()
        theirs.do("user", uid=NOBODY)
        theirs.do("connect", job="theirs", rank=0, world=1, local=1)
        theirs.do("layout", groups=LAYOUT)
        theirs.do("attach", **NEEDS)
        refused("Permission denied", "theirs", f"{d}/out", user=NOBODY)
        refused("Permission denied", "theirs", f"{d}/new", user=NOBODY)
        assert os.listdir(f"{d}/out") == [".publish"] and not os.path.exists(f"{d}/new")


@case
def a_daemon_dies_under_a_publisher():
    with Place() as d, Cluster(3, mirror=1) as c, Training(c, placement=[0, 0]) as t:
        a = Publisher(c, d, "--every", 3, node=2)
        a.wrote(3)
        for node in (2, 1):
            c[node].restart()
            t.goes_on()
            a.wrote(versions(d)[-1] + 1)
        a.end()
        for version in versions(d):
            read_version(d, version)


@case
def a_job_that_is_gone_is_looked_for():
    """A restored job is published on above what is there; one that stays away is named."""
    with Place() as d, Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        path = c[0].ctl("checkpoint", "job", f"{d}")["path"]
        a = Publisher(c, f"{d}/out", "--every", 1, "--timeout", 30)
        train(ranks, 2)
        a.wrote(4)
        for r in ranks:
            c.dismiss(r)
        c[0].ctl("restore", "job", path)
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 3)
        a.wrote(5)
        read_version(f"{d}/out", 5)
        a.end()
        for r in ranks:
            c.dismiss(r)
        a = Publisher(c, f"{d}/out", "--every", 1, "--timeout", 2)
        until(lambda: c[0].job("job")["readers"], what="the reader")
        c[0].ctl("drop", "job")
        said = a.process.communicate(timeout=REPLY_S)[1]
        assert a.process.returncode == 1 and "job 'job'" in said, said


if __name__ == "__main__":
    main()
