#!/usr/bin/env python3
"""A base on a GPU: one copy there for all processes of the user, on the fake GPU, whose memory processes can read."""
import contextlib
import ctypes
import hashlib
import os
import select
import signal
import socket
import tempfile
import threading

from common import SETS, raises, small_layout, zerod
from bases import EINVAL, EORDER, MIB, PAGE, ask, bases, connect, files, in_child, share, start
from cluster import REPLY_S, until
from fake_gpu import environment
from gpu_ranks import GPU_0, gpus
from harness import case, cases, cases_of, main
from wire import OK, PROTOCOL, Raw, request

cases.clear()  # those of bases.py
EGPU, EQUOTA = zerod.Gpu.code, zerod.Quota.code


def values(copy):
    return ctypes.string_at(copy.address, copy.bytes)


def copies(cluster):
    """Bytes of the copies that the daemon has on each GPU with one."""
    return [a["bytes"] for gpu in cluster[0].status()["gpus"] for a in gpu["allocations"] if a["what"].startswith("a copy of base ")]


@contextlib.contextmanager
def copied(cluster, path, job=None):
    with connect(cluster, job) as client:
        client.base([path])
        yield client, client.base_copy("cuda:0")


# ---- sharing ------------------------------------------------------------------------

@case
def copy_has_the_files_and_goes_with_its_last_client():
    contents = os.urandom(40 * MIB + 5), b"x", os.urandom(4096)
    with gpus() as c, files(*contents) as paths, connect(c) as one, connect(c) as two:
        views = one.base(paths)
        copy = one.base_copy("cuda:0")
        for view, content in zip(views, contents):
            here = ctypes.addressof(ctypes.c_char.from_buffer(view))
            assert ctypes.string_at(copy.at(here), len(view)) == content
        two.base(paths)
        assert values(two.base_copy("cuda:0")) == values(copy)
        assert bases(c)[0]["gpus"] == 1 and len(copies(c)) == 1, bases(c)
        one.close()
        assert values(copy)[-4096:] == contents[-1], "a copy outlives its client"
        assert len(copies(c)) == 1
        two.close()
        until(lambda: not bases(c) and not copies(c), what="the end of the copy")


RANK = """
import ctypes, sys, zerod
job, rank, world, path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
client = zerod.connect(job, rank, world)
client.base([path])
copy = client.base_copy("cuda:0")
sum(ctypes.string_at(copy.address, copy.bytes)[::4096])
layout = zerod.Layout()
layout.tensor(layout.group("adapter", "fp32"), "a", [8])
client.attach(layout)
print("there", flush=True)
sys.stdin.readline()
client.close()
"""


@case
def forty_processes_hold_one_copy():
    size = 64 * MIB
    with gpus() as c, files(os.urandom(size)) as (path,):
        processes = [start(c, "ranks", rank, 8, path, RANK) for rank in range(8)]
        processes += [start(c, f"lora{i}", 0, 1, path, RANK) for i in range(32)]
        for process in processes:
            assert process.stdout.readline() == "there\n"
        held = share([c[0].process.pid] + [p.pid for p in processes], "memfd:zerod-fake-gpu")
        assert 0.95 * size <= held <= 1.05 * size, f"{held / size:.2f} copies"  # each share is rounded down
        base, = bases(c)
        assert (base["uses"], base["gpus"], copies(c)) == (40, 1, [size]), base
        for process in processes:
            process.communicate("\n", timeout=REPLY_S)
        until(lambda: not copies(c), what="the end of the copy")


def written(copy):
    """How a process ends that writes to the copy."""
    child = os.fork()
    if child == 0:
        ctypes.memset(copy.address, 1, 1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@case
def copy_is_mapped_for_reading():
    with gpus() as c, files(PAGE) as (path,), copied(c, path) as (_, copy):
        assert written(copy) == -signal.SIGSEGV and values(copy) == PAGE


@case
def two_gpus_have_a_copy_each():
    with environment(FAKE_GPUS=2), gpus() as c, files(PAGE) as (path,), copied(c, path) as (_, first), connect(c) as other:
        other.base([path])
        assert values(other.base_copy("cuda:1")) == values(first) == PAGE
        assert bases(c)[0]["gpus"] == 2


@case
def users_share_no_copy():
    def rank(c, path):
        with copied(c, path) as (_, copy):
            assert values(copy) == PAGE and [b["gpus"] for b in bases(c)] == [1, 1]
    with gpus() as c, files(PAGE) as (path,), copied(c, path):
        assert in_child(lambda: rank(c, path)) == 0


# ---- what ends ------------------------------------------------------------------------

@case
def copy_outlives_the_daemon_in_one_copy():
    content = os.urandom(8 * MIB)
    with gpus() as c, files(content) as (path,), copied(c, path, "one") as (one, a), copied(c, path, "two") as (two, b):
        for client in (one, two):
            client.attach(small_layout())
        os.unlink(path)
        c[0].process.send_signal(signal.SIGKILL)
        c[0].process.wait()
        assert values(a) == values(b) == content, "the memory stays while there is no daemon"
        c[0].start()
        for client in (one, two):
            assert client.step(SETS).version == 1
        assert values(a) == values(b) == content and written(a) == -signal.SIGSEGV
        assert bases(c)[0]["gpus"] == 1 and copies(c) == [len(content)]
        held = share([os.getpid(), c[0].process.pid], "memfd:zerod-fake-gpu")
        assert held <= 1.05 * len(content), f"{held / len(content):.2f} copies"


@case
def copy_stays_where_the_next_daemon_has_no_memory_for_another():
    with gpus() as c, files(PAGE) as (path,), copied(c, path, "job") as (client, copy):
        client.attach(small_layout())
        c[0].options["gpu_windows"] = 2048
        c[0].restart()
        assert client.step(SETS).version == 1
        assert values(copy) == PAGE and not copies(c) and bases(c)[0]["gpus"] == 0


@contextlib.contextmanager
def gated(**options):
    """A cluster that makes no memory for export while the file that is passed, too, exists."""
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        gate = os.path.join(directory, "gate")
        with gpus(daemon={"FAKE_GPU_GATE": gate}, **options) as c:
            with open(gate, "w", encoding="utf-8"):
                pass
            yield c, gate


def naming(content, uuid=GPU_0):
    return {1: hashlib.blake2b(content, digest_size=32).digest(), 2: len(content), 4: uuid}


def ask_copy(raw, content, uuid=GPU_0):
    return raw.ask("open_base", naming(content, uuid))[0]


@case
def who_waits_for_a_copy_gets_it_when_the_first_one_leaves():
    with gated() as (c, gate), files(PAGE) as (path,):
        found = []

        def wait():
            with copied(c, path) as (_, copy):
                found.append(values(copy))
        threads = [threading.Thread(target=wait) for _ in range(2)]
        with connect(c) as first:
            first.base([path])
            threads[0].start()
            until(lambda: os.path.exists(gate + ".reached"), what="the copy to be made")
            threads[1].start()
        os.unlink(gate)
        for t in threads:
            t.join(REPLY_S)
        assert found == [PAGE] * 2
        until(lambda: not bases(c) and not copies(c), what="the end of the copy")


@case
def copy_that_nobody_waits_for_goes():
    with gated() as (c, gate), files(PAGE) as (path,), connect(c) as client:
        client.base([path])
        raw = Raw(c[0].socket)
        raw.hello("job", 0, 1)
        assert ask(raw, PAGE)[0] == OK
        raw.send(request(9, "open_base", naming(PAGE)))
        until(lambda: os.path.exists(gate + ".reached"), what="the copy to be made")
        raw.close()
        until(lambda: bases(c)[0]["uses"] == 1, what="the session to end")
        assert bases(c)[0]["gpus"] == 0
        os.unlink(gate)
        until(lambda: not copies(c), what="the end of the copy")
        assert values(client.base_copy("cuda:0")) == PAGE


# ---- what is refused --------------------------------------------------------------------

@case
def gpu_windows_bounds_a_user():
    with gpus(gpu_windows=4 * MIB) as c, files(os.urandom(2 * MIB), os.urandom(4 * MIB)) as (small, large):
        with copied(c, small), connect(c) as client:
            client.base([large])
            with raises(zerod.Quota, "gpu_windows allows 4.0", "a copy of base", "windows have 2.0"):
                client.base_copy("cuda:0")
            client.attach(small_layout())  # it goes on without


@case
def copies_that_come_at_once_stay_within_gpu_windows():
    with gated(gpu_windows=4 * MIB) as (c, gate), files(os.urandom(3 * MIB), os.urandom(3 * MIB)) as paths:
        ends = []

        def wait(path):
            with connect(c) as client:
                client.base([path])
                try:
                    client.base_copy("cuda:0")
                    ends.append("made")
                    until(lambda: len(ends) == 2, what="the other end")
                except zerod.Quota:
                    ends.append("refused")
        threads = [threading.Thread(target=wait, args=(path,)) for path in paths]
        for t in threads:
            t.start()
        until(lambda: sum(b["gpus"] for b in bases(c)) == 2, what="both copies to be made")
        os.unlink(gate)
        for t in threads:
            t.join(REPLY_S)
        assert sorted(ends) in (["made", "refused"], ["refused", "refused"]), ends


@cases_of({"no_gpu": ({}, {"device": "host"}, ["uses no GPU"]), "handles": ({"FAKE_GPU_HANDLES": 1}, {}, ["no descriptors"]),
           "alone": ({"FAKE_GPU_ALONE": 1}, {}, ["no other process"]),
           "full": ({"FAKE_GPU_BYTES": 16 * MIB}, {}, ["has not the memory", "a copy of base"])}.items(), "{0[0]}")
def gpu_that_shares_nothing_is_named(what):
    name, (daemon, options, words) = what
    with gpus(daemon=daemon, **options) as c, files(os.urandom(32 * MIB)) as (path,), connect(c) as client:
        client.base([path])
        with raises(zerod.NoMemory if name == "full" else zerod.Gpu, *words):
            client.base_copy("cuda:0")
        assert not copies(c) if name != "no_gpu" else True
        client.attach(small_layout())


def pass_on(server, address):
    """One connection to a daemon; what it says to be its protocol becomes the one before."""
    a, b = server.accept()[0], socket.socket(socket.AF_UNIX)
    b.connect(address)
    greeted = False
    with a, b:
        while True:
            for source in select.select([a, b], [], [], REPLY_S)[0]:
                data, fds, _, _ = socket.recv_fds(source, 1 << 16, 8)
                if not data:
                    return
                if source is b and not greeted:
                    data, greeted = data.replace(bytes([8, PROTOCOL]), bytes([8, PROTOCOL - 1]), 1), True
                socket.send_fds(b if source is a else a, [data], fds)
                for fd in fds:
                    os.close(fd)


@case
def daemon_of_the_release_before_is_not_asked():
    with gpus() as c, files(PAGE) as (path,), socket.socket(socket.AF_UNIX) as server:
        between = os.path.join(c.directory, "between.sock")
        server.bind(between)
        server.listen()
        thread = threading.Thread(target=pass_on, args=(server, c[0].socket))
        thread.start()
        with zerod.connect("job", 0, 1, socket=between, timeout=60) as client:
            view, = client.base([path])
            with raises(zerod.ProtocolVersion, "no copies of bases"):
                client.base_copy("cuda:0")
            client.attach(small_layout())
            assert bytes(view) == PAGE and client.step(SETS).version == 1
        thread.join(REPLY_S)


@case
def calls_that_make_no_sense():
    with gpus() as c, files(PAGE) as (path,), connect(c) as client:
        with raises(zerod.Order, "zero_base() comes before"):
            client.base_copy("cuda:0")
        client.base([path])
        for device, kind in (("gpu", zerod.errors.Invalid), ("cuda:7", zerod.Gpu)):
            with raises(kind, device):
                client.base_copy(device)
        client.base_copy("cuda:0")
        with raises(zerod.Order, "once"):
            client.base_copy("cuda:1")
        with connect(c) as other:
            other.base([path])
            other.attach(small_layout())
            with raises(zerod.Order, "before zero_attach"):
                other.base_copy("cuda:0")


@case
def odd_requests_are_refused():
    with environment(FAKE_GPUS=2), gpus() as c:
        raw = Raw(c[0].socket)
        raw.hello("job", 0, 1)
        assert ask_copy(raw, PAGE) == EORDER, "no base"
        _, fill, fd = ask(raw, PAGE)
        assert fill and ask_copy(raw, PAGE) == EORDER, "the base is not whole"
        os.write(fd, PAGE)
        assert ask(raw, PAGE, 1)[0] == OK
        assert ask_copy(raw, PAGE, b"short") == EINVAL
        assert ask_copy(raw, PAGE, b"x" * 16) == EGPU
        assert ask_copy(raw, b"another") == EORDER
        assert ask_copy(raw, PAGE) == OK == ask_copy(raw, PAGE)
        assert ask_copy(raw, PAGE, GPU_0[:-1] + b"\1") == EORDER, "a second GPU"
        raw.close()
        until(lambda: not bases(c) and not copies(c), what="the end of the base")


if __name__ == "__main__":
    main()
