#!/usr/bin/env python3
"""bench-recovery [--repeat N] [--json FILE] [--case trainer|daemon|node]... [--mib N]

How long a death costs, from the kill on.

  trainer  one of two trainers, on two nodes, is killed in the middle of a step; until its successor, a new process,
           has attached and knows what it owes
  daemon   the one daemon, with --mib MiB of states, is killed; until a trainer that was attached has its parameters
           again, having connected and attached by itself
  node     with two nodes and mirror = 1, a daemon is killed and all it held is deleted; from its start until a
           step of the other node's trainer, without gradients, is over: all master weights and moments of --mib
           MiB of states have come back by then

Each is held against what it is instead of, measured in turn in the same run.  The first two: restarting from a
checkpoint, the least that takes, reading a file of the same bytes from the page cache into new memory.  The last:
sending the same bytes over a TCP connection into new memory.  Ratios are of seconds; median and quartiles over rounds.
"""
import argparse
import mmap
import os
import shutil
import socket
import statistics
import sys
import threading
import time

sys.path.insert(0, "@SOURCE@/tests/bench")
import common  # noqa: E402  (its place is known only now)
from cluster import SETS, Cluster, Tools, expect, finish_all, group, tensor  # noqa: E402

BUILD = "@BUILD@"
BYTES_A_PARAMETER = 16  # of an fp32 job: master, two moments, gradient
BYTES_MOVED = 12  # of those: gradients are not
AIMS = {"trainer": 1.0, "daemon": 2.0, "node": None}  # seconds
NEEDS = {"hold": 1, "push": 1, "timeout_ms": 60000}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--case", action="append", choices=AIMS)
    return parser.parse_args()


def large_layout(mib):
    groups = 16
    each = (mib << 20) // BYTES_A_PARAMETER // groups
    return [group(f"g{i}", tensor(f"t{i}", each)) for i in range(groups)]


class Checkpoint:
    """A file of so many bytes, on the disk but in the page cache."""

    def __init__(self, size):
        self.path, self.bytes = f"{BUILD}/bench-recovery.checkpoint", size
        with open(self.path, "wb") as f:
            for at in range(0, size, 1 << 20):
                f.write(os.urandom(min(1 << 20, size - at)))

    def read(self):
        """Seconds to have it in memory that was not there before."""
        begin = time.monotonic()
        with open(self.path, "rb", buffering=0) as f, mmap.mmap(-1, self.bytes) as memory:
            at = 0
            while at < self.bytes:
                at += f.readinto(memoryview(memory)[at:at + (16 << 20)])
            return time.monotonic() - begin

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.unlink(self.path)


# ---- what is measured ---------------------------------------------------------------

def trainer_rounds(options):
    layout, placement = large_layout(256), [0, 1]
    with Cluster(2) as c, Checkpoint(128 << 20) as checkpoint:  # its half of the states
        one, two = c.ranks("job", layout, placement, **NEEDS)
        for i in range(options.repeat):
            one.start("train", steps=1, sets=SETS, patient=True)
            two.do("grad", group=0)
            two.do("push", group=0, last=False)
            begin = time.monotonic()
            two.kill()
            two = c.rank("job", layout, placement, 1, incarnation=i + 1, **NEEDS)
            for _ in range(3):
                two.good(two.finish())
            seconds = time.monotonic() - begin
            two.do("train", steps=1, sets=SETS, patient=True)
            finish_all([one])
            yield seconds, checkpoint.read()


def fetched(actor):
    """With the parameters of the next step, having been told of the abort."""
    actor.start("fetch", group=0)
    reply = actor.finish()
    if reply["status"] == "EABORTED":
        actor.do("fetch", group=0)
    else:
        expect(reply, "OK")


def daemon_rounds(options):
    layout = large_layout(options.mib)
    with Cluster(1, threads=0) as c, Checkpoint(options.mib << 20) as checkpoint:
        a, = c.ranks("job", layout, [0], **NEEDS)
        a.do("train", steps=1, sets=SETS, stage=3)
        for _ in range(options.repeat):
            begin = time.monotonic()
            c[0].restart()
            fetched(a)
            seconds = time.monotonic() - begin
            a.do("release", group=0)
            yield seconds, checkpoint.read()


def send_zeros(port, size):
    zeros = memoryview(bytearray(16 << 20))
    with socket.create_connection(("127.0.0.1", port)) as s:
        for at in range(0, size, len(zeros)):
            s.sendall(zeros[:min(len(zeros), size - at)])


def wire(size):
    """Seconds to have so many bytes from a TCP connection in memory that was not there before."""
    with socket.create_server(("127.0.0.1", 0)) as server, mmap.mmap(-1, size) as memory:
        sender = threading.Thread(target=send_zeros, args=(server.getsockname()[1], size))
        begin = time.monotonic()
        sender.start()
        connection, _ = server.accept()
        with connection, memoryview(memory) as view:
            at = 0
            while at < size:
                at += connection.recv_into(view[at:at + (16 << 20)])
        seconds = time.monotonic() - begin
        sender.join()
        return seconds


def stepped(actor):
    """A step that updates nothing; anew if the attempt was void."""
    reply = actor.ask("step", sets=SETS)
    while reply["status"] == "EABORTED":
        reply = actor.ask("step", sets=SETS)
    expect(reply, "OK")


def node_rounds(options):
    layout = large_layout(options.mib)
    with Cluster(2, threads=0, mirror=1) as c:
        a, = c.ranks("job", layout, [0], **NEEDS)
        a.do("train", steps=1, sets=SETS, stage=3)
        for _ in range(options.repeat):
            c[1].kill()
            shutil.rmtree(c[1].options["state_dir"])
            begin = time.monotonic()
            c[1].start()
            stepped(a)
            seconds = time.monotonic() - begin
            told = c.checksum("job")
            assert told["planes"] == told["mirrors"], told
            yield seconds, wire((options.mib << 20) // BYTES_A_PARAMETER * BYTES_MOVED)


ROUNDS = {"trainer": trainer_rounds, "daemon": daemon_rounds, "node": node_rounds}
INSTEAD = {"trainer": "reading a checkpoint", "daemon": "reading a checkpoint", "node": "sending the bytes over TCP"}


def main():
    options = arguments()
    common.leave_on_signals()
    common.use_build(BUILD)
    Tools.actor = f"{BUILD}/tests/support/actor"
    options.repeat = max(2, options.repeat)
    output = common.Output(options.json)
    for case in options.case or AIMS:
        rounds = list(ROUNDS[case](options))
        seconds = [s for s, _ in rounds]
        f = common.figure(f"{case} killed, until it is back / {INSTEAD[case]}", [s / r for s, r in rounds],
                          seconds=round(statistics.median(seconds), 4), worst=round(max(seconds), 4),
                          instead_seconds=round(statistics.median(r for _, r in rounds), 4), aim_seconds=AIMS[case],
                          **({"mib": options.mib} if case != "trainer" else {}))
        output.add(f)
        aim = f" (aim {AIMS[case]} s)" if AIMS[case] else ""
        print(f"{case}: {f['seconds']:.3f} s, worst {f['worst']:.3f} s{aim}; {f['median_ratio']:.3f} of "
              f"{INSTEAD[case]}, {f['spread'][0]:.3f} .. {f['spread'][1]:.3f}", flush=True)


if __name__ == "__main__":
    main()
