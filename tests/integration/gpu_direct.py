#!/usr/bin/env python3
"""Payloads between nodes that lie in GPU memory at both ends: the same bits as staged through host memory.

The GPU is a fake one: a daemon that touches its memory by the CPU dies.  In builds with crash points BULK_GPU=copied
puts a path that takes such memory over UCX (daemon/fabric/bulk/copied.c)."""
import contextlib
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SETS, SLOW, Cluster, crash_points, finish_all, small_layout, until  # noqa: E402
from fake_gpu import environment, plugin  # noqa: E402
from gpu_ranks import Gate  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402

STEPS = 6
PLACEMENT = [0, 0, 1, 1]
# slices of a group are larger than payloads that are always staged
LAYOUTS = {dtype: small_layout(dtype, blocks=2, width=400) for dtype in ("fp32", "bf16")}
WAYS = {"direct": {"BULK_GPU": "copied", "FAKE_GPU_COPIES_ON_LOOP": "1"}, "staged": {"BULK_GPU": ""}}
# slices of its block travel in several parts
LARGE = small_layout("fp32", blocks=1, width=1200)
known = {}


@contextlib.contextmanager
def gpus(way, crash=None, **options):
    """Two nodes with a GPU each. way: how payloads of GPU memory travel; crash: where the second node is killed."""
    if (way == "direct" or crash) and not crash_points():
        raise Skip("the daemon was built without crash points")
    with environment(ZEROD_CUDA_PLUGIN=plugin()), contextlib.ExitStack() as stack:
        c = stack.enter_context(Cluster(2, start=False, device="cuda", **options))
        with environment(**WAYS[way]):
            c[0].start()
            c[1].start(crash=crash)
            c.wait_up()
        for d in c.daemons:
            assert {p["bulk_gpu"] for p in d.status()["peers"] if not p["self"]} == {way}, d.status()["peers"]
        yield c


def attach(c, dtype, **needs):
    return c.ranks("job", LAYOUTS[dtype], PLACEMENT, hold=2, push=2, grad=dtype, reduce=dtype, **needs)


def begin(ranks, **more):
    for a in ranks:
        a.start("train", steps=STEPS, micro_batches=2, clip=0.5, sets=SETS, seed=7, **more)


def end(c, ranks):
    seen = {r["hash"] for r in finish_all(ranks)}
    assert len(seen) == 1, "ranks saw different parameters"
    return seen.pop(), c.checksum("job")["planes"]


def train(c, ranks):
    begin(ranks)
    return end(c, ranks)


def in_host_memory(dtype):
    if dtype not in known:
        with Cluster(2) as c:
            known[dtype] = train(c, attach(c, dtype))
    return known[dtype]


@cases_of([("direct", "host", "fp32"), ("direct", "device", "fp32"), ("direct", "device", "bf16"),
           ("staged", "device", "bf16")], "{0[0]}_{0[1]}_{0[2]}")
def same_bits(what):
    way, states, dtype = what
    with gpus(way, optimizer=states) as c:
        assert train(c, attach(c, dtype, device="cuda:0")) == in_host_memory(dtype)


def begin_in_parts(c, **needs):
    ranks = c.ranks("job", LARGE, [0, 1], hold=1, push=1, **needs)
    for a in ranks:
        a.start("train", steps=2, clip=0.5, sets=SETS, seed=7, patient=True)
    return ranks


def in_parts(c, **needs):
    return end(c, begin_in_parts(c, **needs))


def in_one_place():
    if "parts" not in known:
        with Cluster(2, owners="n0") as c:
            known["parts"] = in_parts(c)
    return known["parts"]


@cases_of(WAYS)
def same_bits_in_parts(way):
    """Payloads in several parts give the same bits as one owner with the whole group."""
    with Cluster(2) as c:
        assert in_parts(c) == in_one_place()
    with gpus(way, optimizer="device", mirror=1) as c:
        assert in_parts(c, device="cuda:0") == in_one_place()
        for d in c.daemons:
            gpu, = d.status()["gpus"]
            assert "accumulator of job job" in {a["what"] for a in gpu["allocations"]}, gpu


@case
def same_bits_in_parts_over_tcp():
    with gpus("staged", optimizer="device", bulk="tcp") as c:
        assert in_parts(c, device="cuda:0") == in_one_place()


@cases_of([("direct", "accumulator.part:3"), ("staged", "accumulator.part:2"), ("staged", "push.sending:3"),
           ("staged", "mirror.sending:2")], "{0[0]}_{0[1]}")
def killed_between_parts(what):
    """The node dies between two parts of a gradient, or of a sum on its way to the mirror."""
    way, point = what
    with gpus(way, crash=point, optimizer="device", mirror=1) as c:
        ranks = begin_in_parts(c, device="cuda:0")
        until(lambda: not c[1].alive(), what=f"the kill at {point}")
        with environment(**WAYS[way]):
            c[1].start()
        assert end(c, ranks)[1] == in_one_place()[1]


@cases_of(WAYS)
def same_bits_with_mirrors(way):
    with gpus(way, optimizer="device", mirror=1) as c:
        assert train(c, attach(c, "bf16", device="cuda:0")) == in_host_memory("bf16")


@cases_of(WAYS)
def same_bits_with_windows_on_the_host(way):
    """One end of every payload is in host memory."""
    with gpus(way, optimizer="device") as c:
        assert train(c, attach(c, "fp32")) == in_host_memory("fp32")


@cases_of(WAYS)
def a_daemon_is_killed(way):
    """A daemon dies while payloads travel; its states are filled from the mirror."""
    with gpus(way, optimizer="device", mirror=1) as c:
        ranks = attach(c, "bf16", device="cuda:0")
        begin(ranks, patient=True)
        until(lambda: c[0].job("job")["version"] >= 3, what="a few steps")
        c[1].kill()
        with environment(**WAYS[way]):
            c[1].start()
        assert end(c, ranks)[1] == in_host_memory("bf16")[1]
        assert c[0].job("job")["version"] == STEPS


@case
def a_path_that_spoils_gpu_memory_is_not_used():
    """Probes find the damage; the nodes stage payloads in host memory."""
    if not crash_points():
        raise Skip("the daemon was built without crash points")
    with environment(BULK_GPU="spoilt", FAKE_GPU_COPIES_ON_LOOP="1"), Cluster(2, device="cuda", cuda_plugin=plugin()) as c:
        until(lambda: all(p["bulk_gpu"] == "staged" for d in c.daemons for p in d.status()["peers"] if not p["self"]),
              60 * SLOW, "the end of the probes")
        assert "GPU memory did not pass over UCX" in c[0].log(), c[0].log()[-2000:]
        with environment(ZEROD_CUDA_PLUGIN=plugin()):
            assert train(c, attach(c, "fp32", device="cuda:0")) == in_host_memory("fp32")


@case
def a_probe_lies_in_memory_of_the_kind_that_windows_have():
    if not crash_points():
        raise Skip("the daemon was built without crash points")
    with tempfile.TemporaryDirectory() as directory:
        gate = Gate(directory)
        with Cluster(2, start=False, device="cuda", cuda_plugin=plugin()) as c, environment(FAKE_GPU_GATE=gate.path, **WAYS["direct"]):
            gate.shut()
            for d in c.daemons:
                d.start()
            gate.wait()
            gate.open()
            c.wait_up()


@case
def a_gpu_without_memory_for_a_probe_costs_the_direct_path_alone():
    if not crash_points():
        raise Skip("the daemon was built without crash points")
    with Cluster(2, start=False, device="cuda", cuda_plugin=plugin()) as c:
        with environment(FAKE_GPU_BYTES=1 << 20, **WAYS["direct"]):
            c[0].start()
        with environment(**WAYS["direct"]):
            c[1].start()
        c.wait_up()
        for d in c.daemons:
            peer, = (p for p in d.status()["peers"] if not p["self"])
            assert (peer["bulk"], peer["bulk_gpu"]) == ("ucx", "staged"), peer
        assert "no memory left for a probe" in c[0].log(), c[0].log()


if __name__ == "__main__":
    main()
