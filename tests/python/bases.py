#!/usr/bin/env python3
"""Frozen weights of which a node has one copy: who shares it, who fills it, and what is refused."""
import contextlib
import hashlib
import mmap
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading

from common import LIBRARY, PACKAGE, SETS, Cluster, raises, small_layout, together, zerod
from cluster import REPLY_S, spawn, until
from harness import case, cases_of, main
from wire import OK, Raw, request

MIB = 1 << 20
PAGE = os.urandom(4096)
EINVAL, EORDER, ECONFLICT = (_kind.code for _kind in (zerod.errors.Invalid, zerod.Order, zerod.Conflict))


@contextlib.contextmanager
def files(*contents):
    """Paths of files with these contents, which anybody may read."""
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        os.chmod(directory, 0o755)
        paths = [os.path.join(directory, f"{i}.bin") for i in range(len(contents))]
        for path, content in zip(paths, contents):
            with open(path, "wb") as f:
                f.write(content)
        yield paths


def connect(cluster, job=None, rank=0, world=1):
    return zerod.connect(job or f"job{os.urandom(4).hex()}", rank, world, socket=cluster[0].socket, timeout=60)


def bases(cluster):
    return cluster[0].status()["bases"]


def share(processes, memory="memfd:zerod-base"):
    """The sum of the processes' shares (PSS) of the memory of bases, or of other memory, in bytes."""
    total = 0
    for pid in processes:
        with open(f"/proc/{pid}/smaps", encoding="utf-8") as f:
            ours = False
            for line in f:
                word = line.split()
                if "-" in word[0]:
                    ours = memory in line
                elif ours and word[0] == "Pss:":
                    total += int(word[1]) * 1024
    return total


# ---- sharing ------------------------------------------------------------------------

@case
def files_are_what_they_were():
    contents = os.urandom(3 * MIB + 5), b"x", os.urandom(4096)
    with Cluster(1) as c, files(*contents) as paths, connect(c) as client:
        views = client.base(paths)
        assert [bytes(v) for v in views] == list(contents)
        with open(paths[0], "r+b") as f:
            f.write(b"other")
        assert bytes(views[0]) == contents[0]
        client.close()
        assert bytes(views[0]) == contents[0], "a view outlives its client"
        until(lambda: not bases(c), what="the end of the base")


RANK = """
import sys, zerod
job, rank, world, path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
client = zerod.connect(job, rank, world)
view, = client.base([path])
sum(view[::4096])
layout = zerod.Layout()
layout.tensor(layout.group("adapter", "fp32"), "a", [8])
client.attach(layout)
print("there", flush=True)
sys.stdin.readline()
client.close()
"""


def start(cluster, job, rank, world, path, program=RANK):
    environment = {**os.environ, "PYTHONPATH": PACKAGE, "ZEROD_LIBRARY": LIBRARY, "ZEROD_SOCKET": cluster[0].socket}
    process = spawn([sys.executable, "-B", "-c", program, job, str(rank), str(world), path], env=environment,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    cluster.others.append(process)
    return process


@case
def forty_processes_hold_one_copy_and_count_as_one_job():
    size = 64 * MIB
    with Cluster(1, job_limit=2) as c, files(os.urandom(size)) as (path,):
        processes = [start(c, "ranks", rank, 8, path) for rank in range(8)]
        processes += [start(c, f"lora{i}", 0, 1, path) for i in range(32)]
        for process in processes:
            assert process.stdout.readline() == "there\n"
        held = share([c[0].process.pid] + [p.pid for p in processes])
        assert 0.95 * size <= held <= 1.05 * size, f"{held / size:.2f} copies"  # each share is rounded down
        base, = bases(c)
        assert (base["bytes"], base["uses"], base["whole"]) == (size, 40, True), base
        with connect(c) as client, connect(c) as other:
            client.attach(small_layout())
            with raises(zerod.Quota, "job_limit"):
                other.attach(small_layout())
        for process in processes:
            process.communicate("\n", timeout=REPLY_S)


# ---- finished jobs ------------------------------------------------------------------

def jobs(cluster):
    return sorted(j["job"] for j in cluster[0].status()["jobs"])


def made(cluster, name, path=None, finish=True):
    """A job of one rank on the base of this file."""
    with connect(cluster, name) as client:
        if path:
            client.base([path])
        client.attach(small_layout())
        client.step(SETS)
        if finish:
            client.finish()
    if finish:
        until(lambda: f"job {name}: finished" in cluster[0].log() and not cluster[0].job(name)["sessions"],
              what=f"{name} to be finished")


@case
def finished_job_that_shares_its_place_is_not_dropped_for_another():
    with Cluster(1, job_limit=2) as c, files(PAGE, b"x") as (a, b):
        made(c, "first", a)
        made(c, "paused", a, finish=False)
        made(c, "second", b)
        made(c, "third")
        assert jobs(c) == ["first", "paused", "third"]
    with Cluster(1, job_limit=1) as c, files(PAGE) as (path,):
        made(c, "first", path)
        made(c, "paused", path, finish=False)
        with connect(c, "more") as client, raises(zerod.Quota, "job_limit"):
            client.attach(small_layout())
        assert jobs(c) == ["first", "paused"]


@case
def finished_jobs_on_one_base_are_not_dropped_for_a_job_that_never_fits():
    """They are more than job_limit, and count once."""
    with Cluster(1, job_limit=2, memory_limit="8M") as c, files(PAGE) as (path,):
        names = ["first", "second", "third"]
        for name in names:
            made(c, name, path)
        large = zerod.Layout()
        large.tensor(large.group("g", "fp32"), "w", [4 * MIB])
        with connect(c, "large") as client, raises(zerod.Quota, "memory_limit"):
            client.attach(large)
        assert jobs(c) == names


@case
def finished_jobs_on_one_base_leave_together():
    with Cluster(1, job_limit=1) as c, files(PAGE) as (path,):
        for name in ("first", "second"):
            made(c, name, path)
        made(c, "third")
        assert jobs(c) == ["third"]


@case
def finished_job_on_a_full_base_leaves_for_one_that_joins():
    with Cluster(1) as c, files(PAGE) as (path,):
        made(c, "alone")
        names = [f"job{i:02}" for i in range(64)]
        for name in names:
            made(c, name, path, finish=name == "job40")
        made(c, "more", path)
        assert jobs(c) == ["alone", *names[:40], *names[41:], "more"]


# ---- whose base it is ---------------------------------------------------------------

@case
def job_keeps_to_its_base():
    with Cluster(1) as c, files(b"a" * 5000, b"b" * 5000) as (a, b):
        with connect(c, "job") as client:
            client.base([a])
            client.attach(small_layout())
            client.step(SETS)
        with connect(c, "job") as client:
            client.base([b])
            with raises(zerod.LayoutMismatch, "base", "other contents"):
                client.attach(small_layout())
        with connect(c, "job") as client, raises(zerod.LayoutMismatch, "base none"):
            client.attach(small_layout())
        with connect(c, "job") as client:
            client.base([a])
            client.attach(small_layout())
            assert client.version == 1


@case
def ranks_name_the_same_contents():
    with Cluster(1) as c, files(b"a" * 5000, b"b" * 5000) as paths:
        found = []

        def rank(i):
            with connect(c, "job", i, 2) as client:
                client.base([paths[i]])
                with raises(zerod.LayoutMismatch, "base"):
                    client.attach(small_layout())
                found.append(i)
        threads = [threading.Thread(target=rank, args=(i,)) for i in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(REPLY_S)
        assert sorted(found) == [0, 1]


@case
def base_outlives_the_daemon_in_one_copy():
    content = os.urandom(8 * MIB)
    with Cluster(1) as c, files(content) as (path,), connect(c, "one") as one, connect(c, "two") as two:
        views = [client.base([path])[0] for client in (one, two)]
        for client in (one, two):
            client.attach(small_layout())
        os.unlink(path)
        c[0].process.send_signal(signal.SIGKILL)
        c[0].process.wait()
        assert all(bytes(v) == content for v in views), "the memory stays while there is no daemon"
        c[0].start()
        for client in (one, two):
            assert client.step(SETS).version == 1
        assert all(bytes(v) == content for v in views)
        base, = bases(c)
        assert (base["uses"], base["whole"]) == (2, True)
        held = share([os.getpid()])
        assert held <= 1.05 * len(content), f"{held / len(content):.2f} copies"


@case
def each_node_has_a_copy_of_its_own():
    """Two ranks on one node, one on the other; the copy of a node whose daemon dies comes back from its rank."""
    content = os.urandom(8 * MIB)
    with Cluster(2) as c, files(content) as (path,), contextlib.ExitStack() as stack:
        clients = [stack.enter_context(zerod.connect("job", rank, 3, socket=c[node].socket, timeout=60))
                   for rank, node in enumerate((0, 0, 1))]
        views = [client.base([path])[0] for client in clients]
        together(*(lambda client=client: client.attach(small_layout()) for client in clients))
        uses = [[(b["uses"], b["whole"]) for b in d.status()["bases"]] for d in c.daemons]
        assert uses == [[(2, True)], [(1, True)]], uses
        held = share([os.getpid()])
        assert held <= 2.05 * len(content), f"{held / len(content):.2f} copies"
        os.unlink(path)
        c[1].process.send_signal(signal.SIGKILL)
        c[1].process.wait()
        c[1].start()

        def step(client):
            while True:  # a step that the death aborts is made again
                with contextlib.suppress(zerod.Aborted):
                    return client.step(SETS).version
        assert together(*(lambda client=client: step(client) for client in clients)) == [1] * 3
        assert all(bytes(v) == content for v in views)
        base, = c[1].status()["bases"]
        assert (base["uses"], base["whole"]) == (1, True)


@case
def daemon_that_starts_again_before_attach_gets_the_base():
    with Cluster(1) as c, files(PAGE) as (path,), connect(c, "job") as client:
        view, = client.base([path])
        os.unlink(path)
        c[0].restart()
        client.attach(small_layout())
        assert bytes(view) == PAGE and bases(c)[0]["whole"]


# ---- filling ------------------------------------------------------------------------

def ask(raw, content, filled=0, size=None):
    """(status, whether to fill, descriptor)."""
    hashed = hashlib.blake2b(content, digest_size=32).digest()
    status, _, fields = raw.ask("open_base", {1: hashed, 2: len(content) if size is None else size, 3: filled})
    return status, bool(fields.get(13, [b""])[0]), raw.fds[-1] if status == OK else None


def filler(cluster, content):
    """(connection, descriptor) of a client that has to fill the base of this content."""
    raw = Raw(cluster[0].socket)
    raw.hello("filler", 0, 1)
    status, fill, fd = ask(raw, content)
    assert (status, fill) == (OK, True)
    return raw, fd


@contextlib.contextmanager
def waiting(cluster, content=PAGE):
    """A client that waits for the base of this content; leaves when the base has come to the client."""
    with files(content) as (path,):
        found = []

        def wait():
            with connect(cluster) as client:
                found.append(bytes(client.base([path])[0]))
        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: bases(cluster)[0]["uses"] == 2, what="a second client")
        yield
        thread.join(REPLY_S)
        assert found == [content]


@case
def next_client_fills_when_the_filler_dies():
    with Cluster(1) as c:
        raw, fd = filler(c, PAGE)
        with waiting(c):
            os.write(fd, b"half")
            raw.close()


@cases_of({"shrinks": (b"", "changes while it is read"), "grows": (PAGE + b"x", "changes while it is read"),
           "changes": (os.urandom(4096), "has changed")}.items(), "{0[0]}")
def file_that(what):
    """Between the hash of the file and the copy into the base."""
    content, words = what[1]
    with Cluster(1) as c, files(PAGE) as (path,):
        raw, _ = filler(c, PAGE)
        refused = []

        def wait():
            with connect(c) as client:
                with raises(zerod.Conflict, words):
                    client.base([path])
                refused.append(path)
        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: bases(c)[0]["uses"] == 2, what="a second client")
        with open(path, "wb") as f:
            f.write(content)
        raw.close()
        thread.join(REPLY_S)
        assert refused
        until(lambda: not bases(c), what="the end of the base")


def in_child(function, uid=65534):
    """Runs the function in a process of another user."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.setuid(uid)
            function()
            os._exit(0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@case
def users_share_nothing():
    with Cluster(1) as c, files(PAGE) as (path,), connect(c) as client:
        client.base([path])
        assert in_child(lambda: filler(c, PAGE)) == 0, "the other user got the memory of the first"


ZEROS = bytes(96 * MIB)


def leave_while_it_is_hashed(raw, fd):
    os.write(fd, ZEROS)
    raw.send(request(2, "open_base", {1: hashlib.blake2b(ZEROS, digest_size=32).digest(), 2: len(ZEROS), 3: 1}))
    raw.close()


@case
def filler_that_leaves_while_its_base_is_hashed_leaves_it_to_others():
    with Cluster(1) as c:
        raw, fd = filler(c, ZEROS)
        with waiting(c, ZEROS):
            leave_while_it_is_hashed(raw, fd)
        until(lambda: not bases(c), what="the end of the base")
        raw, fd = filler(c, ZEROS)
        leave_while_it_is_hashed(raw, fd)  # and nobody is left; the daemon ends in order at the end of the block


@case
def wrong_contents_are_refused():
    with Cluster(1) as c:
        raw, fd = filler(c, PAGE)
        with waiting(c):
            os.write(fd, b"something else")
            assert ask(raw, PAGE, 1)[0] == ECONFLICT
            raw.close()
        until(lambda: not bases(c), what="the end of the base")


@case
def memory_that_the_filler_maps_is_refused():
    with Cluster(1) as c:
        raw, fd = filler(c, PAGE)
        os.write(fd, PAGE)
        mapped = mmap.mmap(fd, 4096)
        assert ask(raw, PAGE, 1)[0] == EORDER
        mapped.close()
        raw.close()


@case
def nobody_writes_to_a_whole_base():
    with Cluster(1) as c:
        raw, fd = filler(c, PAGE)
        os.write(fd, PAGE)
        status, fill, passed = ask(raw, PAGE, 1)
        assert (status, fill) == (OK, False)
        for descriptor in (fd, passed, os.open(f"/proc/self/fd/{fd}", os.O_RDWR)):
            with raises(PermissionError):
                os.pwrite(descriptor, b"x", 0)
            with raises(PermissionError):
                os.ftruncate(descriptor, 1)
            with raises(PermissionError):
                mmap.mmap(descriptor, 4096)
        raw.close()


@case
def odd_requests_are_refused():
    with Cluster(1) as c:
        raw = Raw(c[0].socket)
        raw.hello("job", 0, 1)
        for fields in ({1: b"short", 2: 1}, {1: b"h" * 32, 2: 0}, {1: b"h" * 32, 2: (1 << 50) + 1}, {}):
            assert raw.ask("open_base", fields)[0] == EINVAL, fields
        assert ask(raw, PAGE, 1)[0] == EORDER, "filled before it was asked to"
        assert ask(raw, PAGE)[:2] == (OK, True)
        assert ask(raw, PAGE)[0] == EORDER, "asked twice"
        assert ask(raw, b"another")[0] == EORDER
        assert ask(raw, PAGE, 1, size=8192)[0] == EORDER, "of another size"
        raw.close()
        until(lambda: not bases(c), what="the end of the base")


@case
def holes_are_refused_and_not_hashed():
    """They cost a client nothing: all that a node may spare would take it hours."""
    with open("/proc/meminfo", encoding="utf-8") as f:
        spare = int(re.search(r"MemAvailable: *(\d+)", f.read()).group(1)) * 1024
    with Cluster(1) as c:
        for size in (3 * MIB, spare // 4):
            raw = Raw(c[0].socket)
            raw.hello("filler", 0, 1)
            status, fill, fd = ask(raw, b"", size=size)
            assert (status, fill) == (OK, True)
            os.pwrite(fd, PAGE, MIB)
            hashed = hashlib.blake2b(b"", digest_size=32).digest()
            status, text, _ = raw.ask("open_base", {1: hashed, 2: size, 3: 1})
            assert status == EINVAL and "holes" in text, (status, text)
            raw.close()
        raw, fd = filler(c, bytes(3 * MIB))
        os.write(fd, bytes(3 * MIB))
        assert ask(raw, bytes(3 * MIB), 1)[0] == OK
        raw.close()


# ---- what is refused ----------------------------------------------------------------

@case
def base_limit_bounds_a_user():
    with Cluster(1, base_limit=2 * MIB) as c, files(os.urandom(2 * MIB), b"x", os.urandom(2 * MIB)) as paths:
        with connect(c) as first, connect(c) as second, connect(c) as third:
            first.base(paths[:1])
            second.base(paths[:1])
            with raises(zerod.Quota, "base_limit allows 2.0"):
                third.base(paths[1:2])
        until(lambda: not bases(c), what="the end of the base")
        with connect(c) as client:
            client.base(paths[2:])


@case
def file_that_the_user_may_not_read_is_refused():
    """Also by a descriptor without the right to read."""
    def refused(c, path):
        for name in (path, f"/proc/self/fd/{os.open(path, os.O_PATH)}"):
            with connect(c) as client, raises(zerod.InputOutput, "cannot open", "Permission denied"):
                client.base([name])
    with Cluster(1) as c, files(PAGE) as (path,):
        os.chmod(path, 0o600)
        assert in_child(lambda: refused(c, path)) == 0


@case
def files_that_are_too_large_or_none_are_refused():
    """At once: the client reads nothing of them."""
    with Cluster(1) as c, files(b"x", b"x") as (sparse, good), connect(c) as client:
        os.mkfifo(good + ".fifo")
        os.symlink(good + ".loop", good + ".loop")
        for path, kind, word in ((good + ".fifo", zerod.errors.Invalid, "regular"), (os.path.dirname(good), zerod.errors.Invalid, "regular"),
                                 (good + ".loop", zerod.InputOutput, "cannot open")):
            with raises(kind, word):
                client.base([good, path])
        for size in (1 << 60, (1 << 63) - 1):
            os.truncate(sparse, size)
            for paths in ([sparse], [good, sparse], [sparse] * 3):
                with raises(zerod.NoSharedMemory, "larger than", "this node"):
                    client.base(paths)
        with raises(ValueError, "1 to 1024"):
            client.base([good] * 1025)
        assert len(client.base([good] * 1024)) == 1024


@case
def files_and_calls_that_make_no_sense():
    with Cluster(1) as c, files(b"", b"x") as (empty, good), connect(c) as client:
        for path, kind, word in ((empty, zerod.errors.Invalid, "empty"), ("/dev/zero", zerod.errors.Invalid, "regular"),
                                 (good + ".no", zerod.InputOutput, "cannot open")):
            with raises(kind, word):
                client.base([path])
        with raises(ValueError, "1 to 1024"):
            client.base([])
        with raises(TypeError, "list"):
            client.base(good)
        client.base([good])
        with raises(zerod.Order, "one base"):
            client.base([good])
        with connect(c) as other:
            other.attach(small_layout())
            with raises(zerod.Order, "before zero_attach"):
                other.base([good])


if __name__ == "__main__":
    main()
