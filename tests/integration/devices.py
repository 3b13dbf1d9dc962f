#!/usr/bin/env python3
"""Trainers on a GPU (the actor and the example) get the same bits as in host memory, whatever dies.

The GPU is the fake one, or a real one with ZEROD_TEST_CUDA_PLUGIN=.../zerod-cuda.so: trainers copy between it and
host memory.  gpu_windows.py has the cases that need the fake one.
"""
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
REAL = os.environ.get("ZEROD_TEST_CUDA_PLUGIN")  # harness.py removes it
from cluster import SETS, SLOW, Cluster, Tools, finish_all, small_layout, spawn, step_all, until  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402
from stashes import MIB, read, stashing, used, write  # noqa: E402

GPU = "cuda:0"
NOBODY = 65534
STEPS = 8
TRAIN = {"steps": STEPS, "micro_batches": 2, "clip": 0.5, "sets": SETS, "seed": 3}
LATE_MS = 100   # the gradient is written so long after its push; a daemon that does not wait has read it by then
DONE_MS = 4000  # the event is done so long after it was recorded: the gradient is written by then


@contextlib.contextmanager
def gpus(nodes=1, delay_ms=0, count=1, **options):
    """Daemons with GPUs, and trainers that find them; an event is done delay_ms after it was recorded."""
    plugin = REAL or os.path.join(os.path.dirname(Tools.zerod), "../tests/support/zerod-fake-gpu.so")
    if REAL and delay_ms:
        raise Skip("a real GPU cannot be slowed down")
    before = os.environ.get("FAKE_GPUS")
    if not REAL:
        os.environ["FAKE_GPUS"] = str(count)
    try:
        with Cluster(nodes, device="cuda", cuda_plugin=os.path.abspath(plugin), **options) as c:
            os.environ.update(ZEROD_CUDA_PLUGIN=os.path.abspath(plugin), FAKE_GPU_DELAY_MS=str(delay_ms))
            if len(c[0].status()["gpus"]) < count:
                raise Skip(f"this machine has fewer than {count} GPUs")
            yield c
    finally:
        for name in ("ZEROD_CUDA_PLUGIN", "FAKE_GPU_DELAY_MS", "FAKE_GPUS"):
            os.environ.pop(name, None)
        if before is not None:
            os.environ["FAKE_GPUS"] = before


def outcome(placement, dtype, train, device=None, hold=2):
    """Checksums of the states, and the hash of everything the ranks fetched."""
    nodes = max(placement) + 1
    needs = {"hold": hold, "push": 2, "grad": dtype, "device": device}
    with gpus(nodes) as c:
        ranks = c.ranks("bits", small_layout(dtype, blocks=3, width=200), placement, **needs)
        for a in ranks:
            a.start("train", **TRAIN, **train)
        seen = finish_all(ranks)
        assert len({r["hash"] for r in seen}) == 1, "ranks saw different parameters"
        return c.checksum("bits")["planes"], seen[0]["hash"]


@cases_of([(2, "bf16"), (3, "fp32"), (3, "bf16")], "stage{0[0]}_{0[1]}")
def same_bits_as_in_host_memory(what):
    stage, dtype = what
    hold = 2 if stage == 3 else -1
    host = outcome([0, 0], dtype, {"stage": stage}, hold=hold)
    assert outcome([0, 0], dtype, {"stage": stage}, GPU, hold) == host
    assert outcome([0, 0], dtype, {"stage": stage, "sync": False}, GPU, hold) == host


@cases_of([("fp32", "host"), ("bf16", "host"), ("fp32", "device"), ("bf16", "device")], "{0[0]}_states_{0[1]}")
def two_gpus_give_the_same_bits(what):
    """Three ranks on two GPUs, two owners: one GPU's window is filled from the other's, and gradients are summed
    from both."""
    dtype, optimizer = what
    placement, layout = [0, 0, 0], small_layout(dtype, blocks=3, width=200)
    host = outcome(placement, dtype, {"stage": 3})
    with gpus(count=2, owners="n0*2", optimizer=optimizer) as c:
        ranks = []
        for rank, device in enumerate(["cuda:1", "cuda:0", "cuda:1"]):
            a = c.caller("bits", layout, placement, rank)
            finish_all([a]), finish_all([a])
            a.start("attach", hold=2, push=2, grad=dtype, device=device)
            ranks.append(a)
        finish_all(ranks)
        assert set(c[0].job("bits")["gather"]["place"].split(", ")) == {"GPU 0", "GPU 1"}
        for a in ranks:
            a.start("train", **TRAIN, stage=3)
        seen = finish_all(ranks)
        assert (c.checksum("bits")["planes"], seen[0]["hash"]) == host
        assert c[0].job("bits")["gather"]["spread"] > 0, "no window was filled from another"


@case
def a_gradient_is_read_when_its_event_is_done():
    """The gradient is written after the push: a daemon that does not wait for the event adds up old memory."""
    layout = small_layout("fp32")
    hashes = []
    for late in (0, LATE_MS):
        with gpus(delay_ms=DONE_MS if late else 0) as c:
            a, = c.ranks("late", layout, [0], hold=-1, push=-1, device=GPU)
            for step in range(2):
                for g in range(len(layout)):
                    a.do("fetch", group=g)
                    a.do("grad", group=g, seed=5, step=step)
                    a.do("push", group=g, late=late)
                a.do("step", sets=SETS)
            a.do("fetch", group=0)
            hashes.append(a.do("view", group=0)["hash"])
    assert hashes[0] == hashes[1]


@cases_of([(placement, place) for placement in ([0], [0, 0], [0, 1], [0, 0, 1, 1]) for place in ("windows", "host")],
          "{0[0]}_{0[1]}")
def a_stash_is_read_as_written(what):
    """Entries of odd sizes, read backward and forward, by a set on one node or two."""
    placement, place = what
    sizes = [1, 63, 4096, 100_001, MIB + 17]
    nodes = max(placement) + 1
    with gpus(nodes) as c:
        where = {"where": place} if place == "host" else {}
        ranks = stashing(c, placement, [list(range(len(placement)))], GPU, bytes=4 * MIB, entry_bytes=2 * MIB, **where)
        assert all(d.job("job")["stash"]["place"] == ("host" if where else "GPU 0") for d in c.daemons)
        assert (" on GPU 0 in use" in c[0].ctl_run("status").stdout) != bool(where)
        for step in range(3):
            for key, size in enumerate(sizes):
                write(ranks, key, size, seed=step + key)
            read(ranks, 2, sizes[2], seed=step + 2, last=False)
            for key, size in reversed(list(enumerate(sizes))):
                read(ranks, key, size, seed=step + key)
            until(lambda: used(c, nodes) == [0] * nodes, what="the stash to be empty")
            step_all(ranks, sets=SETS)


@case
def a_trainer_of_another_user():
    """Works whether or not the driver lets the daemon open that user's events."""
    if os.getuid():
        raise Skip("another user needs root")
    wanted = outcome([0], "fp32", {"stage": 3})
    # that user may be unable to read $TMPDIR and the build tree, and $TMPDIR may be mounted noexec
    with gpus() as c, tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chmod(directory, 0o755)
        os.environ["ZEROD_CUDA_PLUGIN"] = shutil.copy(os.environ["ZEROD_CUDA_PLUGIN"], directory)
        a = c.actor()
        a.do("user", uid=NOBODY)
        a.do("connect", job="bits", rank=0, world=1, local=1, timeout_ms=60000 * SLOW)
        a.do("layout", groups=small_layout("fp32", blocks=3, width=200))
        a.do("attach", hold=2, push=2, grad="fp32", device=GPU)
        session, = c[0].job("bits")["sessions"]
        print("events of another user", "cannot be opened" if session["no_events"] else "can be opened")
        seen = a.do("train", **TRAIN, stage=3)
        assert (c.checksum("bits")["planes"], seen["hash"]) == wanted


@case
def trainers_find_a_restarted_daemon():
    wanted = outcome([0, 0], "fp32", {"stage": 3})
    with gpus() as c:
        ranks = c.ranks("bits", small_layout("fp32", blocks=3, width=200), [0, 0], hold=2, push=2, device=GPU,
                        timeout_ms=120000)
        for a in ranks:
            a.start("train", patient=True, stage=3, **TRAIN)
        for version in (2, 4):
            until(lambda v=version: (c[0].job("bits") or {"version": 0})["version"] >= v, what=f"version {version}")
            c[0].restart()
            until(c[0].peers_up, what="the restarted daemon")
        seen = finish_all(ranks)
        assert (c.checksum("bits")["planes"], seen[0]["hash"]) == wanted


@case
def a_trainer_that_dies_has_a_successor():
    wanted = outcome([0, 0], "fp32", {"stage": 3})
    layout = small_layout("fp32", blocks=3, width=200)
    needs = {"hold": 2, "push": 2, "device": GPU, "timeout_ms": 120000}
    with gpus(delay_ms=0 if REAL else 5) as c:
        goal = f"{c.directory}/goal"
        with open(goal, "w", encoding="ascii") as f:
            f.write(str(STEPS))
        train = {**TRAIN, "stage": 3, "patient": True, "until": goal}
        ranks = c.ranks("bits", layout, [0, 0], **needs)
        for a in ranks:
            a.start("train", **train)
        until(lambda: c[0].job("bits")["version"] >= 2, what="version 2")
        c.dismiss(ranks[1])
        successor = c.rank("bits", layout, [0, 0], 1, incarnation=1, **needs)
        for _ in range(3):
            finish_all([successor])
        successor.start("train", **train)
        finish_all([ranks[0], successor])
        assert c.checksum("bits")["planes"] == wanted[0]


# ---- the example -------------------------------------------------------------------------------

def losses(stage, dtype, *more):
    """The losses that the example's ranks print, each for its own part of the batch."""
    with gpus() as c:
        with open(f"{c.directory}/text", "w", encoding="ascii") as f:
            f.write("".join(f"{i} times {i} is {i * i}. " for i in range(1, 1000)))
        runs = []
        for rank in range(2):
            log = open(f"{c.directory}/log{rank}", "wb")
            runs.append(spawn([Tools.gpt, "--data", f"{c.directory}/text", "--loss-file", f"{c.directory}/loss{rank}",
                               "--steps", "12", "--context", "32", "--layers", "2", "--heads", "2", "--width", "32",
                               "--batch", "2", "--micro-batches", "2", "--eval-windows", "4", "--stage", str(stage),
                               "--dtype", dtype, "--socket", c[0].socket, "--rank", str(rank), "--world-size", "2",
                               *more], stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        c.others += runs
        for rank, process in enumerate(runs):
            said = f"{c.directory}/log{rank}"
            assert process.wait(100 * SLOW) == 0, open(said, encoding="utf-8").read()
        return [open(f"{c.directory}/loss{rank}", encoding="ascii").read() for rank in range(2)]


@cases_of([(1, "fp32", "trainer"), (2, "fp16", "owner"), (3, "fp32", "owner"), (3, "bf16", "trainer")],
          "stage{0[0]}_{0[1]}_{0[2]}")
def the_example_has_the_same_losses(what):
    if Tools.gpt == "-":
        raise Skip("the example trainer is not built")
    stage, dtype, accumulate = what
    there, here = (losses(stage, dtype, "--accumulate", accumulate, *more) for more in (("--device", GPU), ()))
    assert there == here and all(text.count("\n") == 12 for text in here), (there, here)


if __name__ == "__main__":
    main()
