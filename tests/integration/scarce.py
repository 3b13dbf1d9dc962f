#!/usr/bin/env python3
"""An allocation fails, at each place of the daemon or of libzero that allocates while it serves: whoever asked hears of
it, or nobody does; who asks again is served, and the process goes on."""
import contextlib
import mmap
import os
import shlex
import shutil
import struct
import subprocess
import sys
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import LAYOUT, Place, start_training  # noqa: E402
from cluster import SLOW, Cluster, Tools  # noqa: E402
from harness import case, main  # noqa: E402
from ports import free_ports  # noqa: E402

TRIES, PAUSE_S = 6, 0.5
LONG_S = 20 * SLOW  # nobody is left without an answer
NODES = 2
STASH = {"ranks": [0, 1], "bytes": 4 << 20, "entry_bytes": 1 << 20}
TOKEN = "0123456789abcdef" * 4


class Memory:
    """What processes of a program, or its library, share with the test; see scarce_memory.c."""
    HEAD, PLACES = 2, 1024

    def __init__(self, path, program, library=None):
        self.program = program
        with open(path, "wb") as f:
            f.truncate(8 * (self.HEAD + self.PLACES))
        with open(path, "r+b") as f:
            self.board = mmap.mmap(f.fileno(), 0)
        preloaded = os.path.join(os.path.dirname(os.path.abspath(Tools.actor)), "zerod-scarce-memory.so")
        asan = os.environ.get("ASAN_OPTIONS", "")
        self.wrapper = ["env", f"LD_PRELOAD={preloaded}", f"SCARCE_MEMORY={path}", f"ASAN_OPTIONS={asan}:verify_asan_link_order=0",
                        *([f"SCARCE_OBJECT={library}"] if library else [])]

    def word(self, i):
        return struct.unpack_from("Q", self.board, 8 * i)[0]

    def fail_at(self, place):
        struct.pack_into("Q", self.board, 0, place)

    def failed(self):
        return self.word(1)

    def forget(self):
        struct.pack_into(f"{self.PLACES}Q", self.board, 8 * self.HEAD, *[0] * self.PLACES)

    def places(self):
        found = [p for p in (self.word(self.HEAD + i) for i in range(self.PLACES)) if p]
        assert len(found) < self.PLACES
        return found

    def named(self, place):
        r = subprocess.run(["addr2line", "-f", "-e", self.program, hex(place - 1)], capture_output=True, text=True, check=False)
        return f"{hex(place)} {' '.join(r.stdout.split())}"


def told(why, memory):
    """Whether a failure may be that of an allocation, this place's or the last one's, and does not say anything else."""
    text = str(why)
    return (memory.failed() and "EINTERNAL" not in text and "ended during" not in text
            and ("ENOMEM" not in text or "memory" in text))


def attempt(c, memory, place, act):
    """Acts until it is done."""
    for left in reversed(range(TRIES)):
        begin, why = time.monotonic(), None
        try:
            act()
        except (AssertionError, OSError) as e:
            why = e
            print(f"# {memory.named(place)}: {act.__name__}: {why}")
        took = time.monotonic() - begin
        assert all(d.alive() for d in c.daemons), f"{memory.named(place)}: a daemon ended"
        assert took < LONG_S, f"{memory.named(place)}: {act.__name__} took {took:.1f} s: {why}"
        if not why:
            return
        if not left or not told(why, memory):
            raise AssertionError(f"{memory.named(place)}: {act.__name__}: {why}") from why
        c.wait_up()  # a link may be lost for it
        if left < TRIES - 1:
            time.sleep(PAUSE_S)  # what a daemon does again itself waits for a tick


@contextlib.contextmanager
def cluster():
    with Cluster(NODES, start=False) as c:
        memory = Memory(f"{c.directory}/memory", Tools.zerod)
        with open(f"{c.directory}/token", "w", encoding="ascii", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(TOKEN)
        for d, port in zip(c.daemons, free_ports(NODES)):
            d.wrapper = memory.wrapper
            d.options.update(http=f"127.0.0.1:{port}", http_token_file=f"{c.directory}/token")
        c.start()
        yield c, memory


def sweep(c, memory, acts):
    for act in acts:
        attempt(c, memory, 0, act)
    memory.forget()
    for act in acts:
        attempt(c, memory, 0, act)
    places = memory.places()
    for place in places:
        before = memory.failed()
        memory.fail_at(place)
        for act in acts:
            attempt(c, memory, place, act)
        memory.fail_at(0)
        print(f"# {'failed' if memory.failed() > before else 'not reached'}: {memory.named(place)}")
    assert memory.failed() > len(places) / 2 > 0, (memory.failed(), len(places))
    print(f"# {len(places)} places, {memory.failed()} failures")


def life(c):
    """Two ranks attach, stash, train and leave.  A rank may have to train before the other one is attached: of a step
    whose gradients some ranks have pushed, only the others' are missing."""
    ranks = []
    try:
        ranks += [c.rank("job", LAYOUT, [0, 1], rank, timeout_ms=LONG_S * 1000, hold=2, push=2, stash=STASH) for rank in range(2)]
        for a in ranks:
            a.start("stash_write", key=1, bytes=70_000, seed=1)
            a.start("stash_read", key=1, seed=1)
            a.start("stash_release", key=1, last=True)
        start_training(ranks, 2)
        for a in ranks:
            a.start("close")
        while waits := [a for a in ranks if a.asked]:
            for a in waits:
                if a.ready(0.01):
                    what = a.asked[0]
                    a.good(a.finish(), what)
    finally:
        for a in ranks:
            c.dismiss(a)


def zeroctl(c, *arguments):
    def ask():
        for d in c.daemons:
            r = d.ctl_run("--json", *arguments)
            assert r.returncode == 0, (arguments, r.stderr)
    ask.__name__ = " ".join(arguments)
    return ask


@case
def training():
    with cluster() as (c, memory):
        def trains():
            life(c)

        def drop():
            if c[0].job("job"):
                c[0].ctl("drop", "job")
        sweep(c, memory, [trains, drop])


@case
def training_in_the_trainer():
    with Cluster(NODES) as c:
        library = os.path.join(os.path.dirname(Tools.zerod), "../client/lib/libzero.so.0")
        memory = Memory(f"{c.directory}/memory", library, "libzero.so")
        actor, Tools.actor = Tools.actor, f"{c.directory}/actor"
        with open(Tools.actor, "w", encoding="ascii", opener=lambda p, f: os.open(p, f, 0o700)) as f:
            f.write(f"#!/bin/sh\nexec {shlex.join([*memory.wrapper, os.path.abspath(actor)])}\n")

        def trains():
            life(c)
        try:
            sweep(c, memory, [trains])
        finally:
            Tools.actor = actor


@case
def questions():
    with cluster() as (c, memory), Place() as place:
        life(c)
        report = f"{place}/report.tar.zst"

        def reports():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(report)
            c[0].ctl("report", report)  # and doctor's answers, which it holds
        asked = ["status", "jobs", "shards", "ping", "checksum job", "trace job", "config", "versions job", "grant job 65534",
                 "grants job", "members", "set log_level info"]
        sweep(c, memory, [*(zeroctl(c, *a.split()) for a in asked), reports])


@case
def checkpoints():
    with cluster() as (c, memory), Place() as place:
        life(c)

        def checkpoint():
            shutil.rmtree(f"{place}/job-2", ignore_errors=True)
            c[0].ctl("checkpoint", "job", place)

        def restore():
            c[1].ctl("restore", "job", f"{place}/job-2")
        sweep(c, memory, [checkpoint, restore])


@case
def files():
    with cluster() as (c, memory), Place() as place:
        life(c)

        def export():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{place}/weights")
            c[0].ctl("export", "job", f"{place}/weights")

        def imports():
            c[1].ctl("import", "job", f"{place}/weights")
        sweep(c, memory, [export, imports])


@case
def readers():
    with cluster() as (c, memory):
        life(c)

        def follows():
            for node in range(NODES):
                a = c.actor(node)
                try:
                    a.do("connect", job="job", rank=-1, timeout_ms=LONG_S * 1000)
                    a.do("attach", observer=True)
                    for _ in range(2):
                        a.do("unfollow", copy=a.do("follow")["copy"])
                    a.do("close")
                finally:
                    c.dismiss(a)
        sweep(c, memory, [follows])


@case
def web():
    with cluster() as (c, memory):
        life(c)

        def asks():
            for d in c.daemons:
                for path in ("/metrics", "/", "/api/status", "/weights/job"):
                    asked = urllib.request.Request(f"http://{d.options['http']}{path}")
                    asked.add_header("Authorization", f"Bearer {TOKEN}")
                    with urllib.request.urlopen(asked, timeout=LONG_S) as reply:
                        assert reply.read()
        sweep(c, memory, [asks])


if __name__ == "__main__":
    main()
