"""Ranks with windows on fake GPUs, and the result of the same steps in host memory."""
import contextlib
import os
import select
import struct

from cluster import SETS, SLOW, Cluster, finish_all, push_all, small_layout, until
from fake_gpu import environment, plugin
import wire

STEPS = 12
DEADLINE_MS = 1500 * SLOW
PLACEMENTS = {"one_rank": [0], "two_ranks": [0, 0], "two_nodes": [0, 1], "four_ranks": [0, 0, 1, 1]}
LAYOUTS = {"fp32": small_layout(blocks=3, width=100), "bf16": small_layout("bf16", blocks=3, width=100)}
GROUPS = len(LAYOUTS["fp32"])
EVERYWHERE = (0, 1)
GPU_0 = b"zerod fake GPU \0"
known = {}


@contextlib.contextmanager
def gpus(nodes=1, daemon=None, **options):
    """A cluster whose nodes have fake GPUs, and actors that find the plugin.  daemon: environment of the daemons."""
    with environment(ZEROD_CUDA_PLUGIN=plugin()):
        with contextlib.ExitStack() as stack:
            with environment(**(daemon or {})):
                c = stack.enter_context(Cluster(nodes, **{"device": "cuda", **options}))
            yield c


def attach(c, placement, layout, places=EVERYWHERE, **needs):
    """Attaches all ranks; those on the nodes `places` have their windows on the GPU."""
    ranks = []
    for rank, node in enumerate(placement):
        place = {"device": "cuda:0"} if node in places else {}
        ranks.append(c.rank("job", layout, placement, rank, **{"hold": 2, "push": 2, **place, **needs}))
    for a in ranks:
        finish_all([a]), finish_all([a]), finish_all([a])
    return ranks


def gpu_call(a, what):
    """A call that takes effect after the rank's GPU work so far: a release, a push, or a step."""
    if what == "release":
        a.do("release", group=1)
    elif what == "push":
        push_all(a, 1)
    else:
        a.do("step", sets=SETS)


def train(ranks, steps=STEPS, **more):
    for a in ranks:
        a.start("train", steps=steps, micro_batches=2, clip=0.5, sets=SETS, seed=7, **more)
    seen = finish_all(ranks)
    assert len({r["hash"] for r in seen}) == 1, "ranks saw different parameters"
    return seen[0]


def outcome(c, ranks, **more):
    return train(ranks, **more)["hash"], c.checksum("job")["planes"]


def in_host_memory(name, dtype, **needs):
    key = (name, dtype, tuple(needs.items()))
    if key not in known:
        placement = PLACEMENTS[name]
        with Cluster(max(placement) + 1) as c:
            known[key] = outcome(c, attach(c, placement, LAYOUTS[dtype], (), **needs))
    return known[key]


def memory_of_gpu(daemon, kind="gpu"):
    """Number of the daemon's allocations on its GPU; kind "event": of the events that it has open."""
    with open(f"/proc/{daemon.process.pid}/maps", encoding="utf-8") as f:
        return sum("memfd:zerod-fake-" + kind in line for line in f)


class Gate:
    """While the gate is shut, a call of the driver does not return: $FAKE_GPU_GATE or another one of fake_gpu.c."""

    def __init__(self, directory):
        self.path = os.path.join(directory, "gate")

    def shut(self):
        with open(self.path, "w", encoding="utf-8"):
            pass

    def open(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def wait(self):
        until(lambda: os.path.exists(self.path + ".reached"), what="a call that waits at the gate")


class Event:
    """An event of the fake GPU; done_at() sets when it is done."""

    def __init__(self):
        self.fd = os.memfd_create("event")
        self.handle = f"/proc/{os.getpid()}/fd/{self.fd}".encode().ljust(64, b"\0")
        self.done_at(2**64 - 1)

    def done_at(self, ns):
        os.pwrite(self.fd, struct.pack("<QQ", 0x746e657645657a, ns), 0)


def raw_attach(c, gpu=b"", events=(), stash=None, rank=0, world=1):
    """The daemon's reply to an attach, and the connection."""
    raw = wire.Raw(c[0].socket, timeout=60 * SLOW)
    raw.hello("job", rank, world, timeout_ms=60000 * SLOW)
    fields = {1: wire.layout_message(LAYOUTS["fp32"]), 2: 2, 3: 2, 4: 1, 5: 1, 9: gpu, 10: list(events),
              **({} if stash is None else {11: wire.message(stash)})}
    return raw.ask("attach", fields), raw


def raw_is_silent(raw):
    return not select.select([raw.socket], [], [], 0.1)[0]
