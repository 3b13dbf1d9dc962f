#!/usr/bin/env python3
"""optimizer = device: states on GPUs give the same bits as states in host memory, on any mix of nodes. An orderly
stop keeps them; after a crash they come from a mirror or a checkpoint.

The GPU is a fake one: a daemon that touches its memory by the CPU dies."""
import os
import signal
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import Place, end, whole  # noqa: E402
from cluster import (SETS, SLOW, Cluster, ask_to_end, crash_points, end_process, finish_all, group, tensor,  # noqa: E402
                     small_layout, until)
from fake_gpu import environment, plugin  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402
from moments import (LAYOUT, NEEDS, STEPS, TRAIN, all_aborted, all_step, as_undisturbed, go_to, start_step,  # noqa: E402
                     train)

HOST, DEVICE = "host", "device"


def gpu(**more):
    """Options of a node with a GPU: it cuts its shards into other chunks than nodes without one."""
    return {"optimizer": DEVICE, "cuda_plugin": plugin(), "chunk": 640, **more}


def cluster(places, **options):
    """places: for each node, where its states are."""
    return Cluster(len(places), per_node={i: gpu() for i, p in enumerate(places) if p == DEVICE}, **options)


def on_gpu(daemon, job="job"):
    """Bytes of the job's states on the node's GPU, and of all its states on the node."""
    told = daemon.job(job)
    return told["planes_on_gpu"], sum(told["planes"].values())


def lies(daemon, place):
    there, together = on_gpu(daemon)
    assert there == (together if place == DEVICE else 0), f"{there} of {together} bytes are on the GPU of {daemon.name}"


def stop(daemon):
    assert end_process(daemon.process, 15 * SLOW), daemon.log()[-2000:]


def needs_crash_points():
    if not crash_points():
        raise Skip("the daemon was built without crash points")


# ---- the same bits ---------------------------------------------------------------------------------

PLACES = {"one": [DEVICE], "two": [DEVICE, DEVICE], "device_host": [DEVICE, HOST], "host_device": [HOST, DEVICE],
          "three": [DEVICE, HOST, DEVICE]}
known = {}


def outcome(places, placement, dtype, **options):
    """Checksums of the states, the served parameters, and the hash of all that ranks fetched."""
    layout = small_layout(dtype, blocks=2, width=200)
    needs = {"grad": dtype, "reduce": "bf16" if dtype == "bf16" else "fp32"}
    with cluster(places, **options) as c, Place() as d:
        ranks = c.ranks("job", layout, placement, hold=2, push=2, **needs)
        for a in ranks:
            a.start("train", steps=12, micro_batches=2, clip=0.5, sets=SETS, seed=7)
        seen = {r["hash"] for r in finish_all(ranks)}
        for i, place in enumerate(places):
            lies(c[i], place)
        c[0].ctl("export", "job", f"{d}/s", "--dtype", "serve")
        with open(f"{d}/s", "rb") as f:
            return c.checksum("job")["planes"], seen, f.read()


@cases_of([(p, t) for p in PLACES for t in ("fp32", "bf16", "fp16")], "{0[0]}_{0[1]}")
def same_bits(what):
    places, dtype = PLACES[what[0]], what[1]
    placement = [i % len(places) for i in range(max(2, len(places)))]
    key = len(places), dtype
    if key not in known:
        known[key] = outcome([HOST] * len(places), placement, dtype)
    got = outcome(places, placement, dtype)
    assert got[:2] == known[key][:2], f"{got[:2]} is not {known[key][:2]}"
    assert got[2] == known[key][2], "the served parameters differ"


@case
def several_threads():
    """Several threads update groups, and segments of a group, at the same time."""
    layout = small_layout(blocks=8, width=150)
    sums = []
    for place in (HOST, DEVICE):
        with cluster([place], threads=4) as c:
            ranks = c.ranks("job", layout, [0, 0], hold=3, push=3)
            for a in ranks:
                a.start("train", steps=10, clip=0.5, sets=SETS, seed=5)
            finish_all(ranks)
            sums.append(c.checksum("job")["planes"])
    assert sums[0] == sums[1]


@case
def clients_read_and_write():
    """Clients read and write states of their own node and of another; the next step uses what was put."""
    layout = small_layout("bf16", blocks=1, width=64)
    told = []
    for place in (HOST, DEVICE):
        with cluster([place, place]) as c:
            ranks = c.ranks("job", layout, [0, 1], hold=2, push=2, grad="bf16")
            n = 64 * 197
            for plane in ("master", "exp_avg", "exp_avg_sq"):
                ranks[0].do("put", tensor=2, plane=plane, first=5, count=n - 7, values=[(i % 97) / 64 for i in range(n - 7)])
            ranks[1].do("put", tensor=2, plane="step", values=[9])
            planes = [a.do("get", tensor=2, plane=p, count=n)["values"]
                      for a in ranks for p in ("master", "serve", "exp_avg", "exp_avg_sq")]
            for a in ranks:
                a.start("train", steps=2, sets=SETS, seed=1)
            finish_all(ranks)
            told.append((planes, ranks[1].do("get", tensor=2, plane="step")["values"], c.checksum("job")["planes"]))
    assert told[0] == told[1]


# ---- an orderly stop ---------------------------------------------------------------------------------

@cases_of(["idle", "pushed"])
def stopped_and_started(moment):
    """Without a mirror: the stop writes the states, the next start reads them, and training goes on."""
    with cluster([DEVICE, DEVICE]) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        go_to(ranks, moment, 2)
        if moment == "pushed":
            all_step(ranks, 3)
        for d in c.daemons:
            stop(d)
            assert "from GPU memory" in d.log()
            d.start()
        for a in ranks:
            a.start("train", steps=STEPS - 2 - (moment == "pushed"), patient=True, **{**TRAIN, "keep": False})
        finish_all(ranks)
        for d in c.daemons:
            lies(d, DEVICE)
        as_undisturbed(c, [0, 1])


@case
def stopped_in_a_step():
    """A step that does not end within drain_ms is replayed."""
    with cluster([DEVICE, HOST], drain_ms=0) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        go_to(ranks, "first", 2)
        stop(c[0])
        c[0].start()
        all_aborted(ranks, 2)
        train(ranks, STEPS - 2, patient=True)
        as_undisturbed(c, [0, 1])


@case
def stopped_with_a_vote():
    """The coordinator dies with all votes. The other node stops in order, and the step is carried out from what it has
    written."""
    needs_crash_points()
    with cluster([HOST, HOST], start=False) as c:
        first = c.coordinator("job")
        other, = (d for d in c.daemons if d is not first)
        other.options.update(gpu())
        first.start(crash="coordinator.decided:3")
        other.start()
        c.wait_up()
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        for a in ranks:
            a.start("train", steps=STEPS, patient=True, **TRAIN)
        until(lambda: not first.alive(), what="the kill of the coordinator")
        stop(other)
        for d in c.daemons:
            d.start()
        replies = finish_all(ranks)
        assert not any(r["aborts"] for r in replies), replies
        lies(other, DEVICE)
        as_undisturbed(c, [0, 1])


@case
def option_changed_at_a_restart():
    """A restart moves the states from host memory to the GPU, another one back."""
    with cluster([HOST, DEVICE]) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        for place in (DEVICE, HOST):
            train(ranks, 2, patient=True)
            stop(c[0])
            c[0].options.update(gpu(optimizer=place))
            c[0].start()
            c.wait_up()
            lies(c[0], place)
        train(ranks, STEPS - 4, patient=True)
        as_undisturbed(c, [0, 1])


@cases_of(["update.valid:3", "update.chunk:5"])
def moved_to_the_gpu_in_the_middle_of_an_update(point):
    """A daemon dies in an update with its states in host memory; the next one finishes the update on the GPU."""
    needs_crash_points()
    with cluster([HOST, HOST], chunk=384) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        stop(c[0])
        c[0].start(crash=point)
        for a in ranks:
            a.start("train", steps=STEPS - 2, patient=True, **TRAIN)
        until(lambda: not c[0].alive(), what=f"the kill at {point}")
        c[0].options.update(gpu())
        c[0].start()
        finish_all(ranks)
        lies(c[0], DEVICE)
        as_undisturbed(c, [0, 1])


@case
def a_gpu_without_room_leaves_states_in_host_memory():
    with Cluster(1) as c:
        ranks = c.ranks("job", LAYOUT, [0, 0], **NEEDS)
        train(ranks, 2)
        stop(c[0])
        c[0].options.update(gpu())
        with environment(FAKE_GPU_BYTES=64 << 10):
            c[0].start()
        c.wait_up()
        assert "stays in host memory" in c[0].log()
        lies(c[0], HOST)
        train(ranks, STEPS - 2, patient=True)
        as_undisturbed(c, [0, 0])


# ---- a crash ---------------------------------------------------------------------------------------------

@cases_of([(p, m) for p in ([DEVICE, DEVICE], [DEVICE, HOST]) for m in ("idle", "backward", "pushed", "voting")],
          "{0[0][0]}_{0[0][1]}_{0[1]}")
def filled_from_its_mirror(what):
    places, moment = what
    with cluster(places, mirror=1) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        go_to(ranks, "pushed" if moment == "voting" else moment, 2)
        if moment == "voting":
            start_step(ranks[0], 0, 3)
        c[0].restart()
        if moment != "idle":
            all_aborted(ranks, 2)
        train(ranks, STEPS - 2, patient=True)
        assert "lost with the process that held it" in c[0].log()
        for d, place in zip(c.daemons, places):
            lies(d, place)
        as_undisturbed(c, [0, 1])


@cases_of(["update.chunk", "update.finish", "update.done", "record.both:9", "fill.drafted", "fill.filled", "planes.away",
           "planes.written"])
def killed_at(point):
    """A node with a mirror dies at this point, and the job ends with the same bits."""
    needs_crash_points()
    with cluster([DEVICE, DEVICE], mirror=1, start=False) as c:
        later = point.startswith(("fill", "planes.away"))
        c[0].start(crash=None if later else point)
        c[1].start()
        c.wait_up()
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        for a in ranks:
            a.start("train", steps=STEPS, patient=True, **TRAIN)
        if later or point == "planes.written":
            until(lambda: c[1].job("job")["version"] > 1, what="some steps")
        if point == "planes.written":
            ask_to_end(c[0].process)
        elif point == "planes.away":
            stop(c[0])
            c[0].start(crash=point)
        elif later:
            c[0].restart(crash=point)
        until(lambda: not c[0].alive(), what=f"the kill at {point}")
        c[0].start()
        finish_all(ranks)
        as_undisturbed(c, [0, 1])


@case
def lost_without_a_mirror():
    """The node logs the loss, uses none of the job's files and deletes none; a checkpoint restores the job."""
    with Place() as d, cluster([DEVICE]) as c:
        ranks = c.ranks("job", LAYOUT, [0, 0], **NEEDS)
        train(ranks, 2)
        c[0].ctl("checkpoint", "job", d)
        end(ranks)
        left = c[0].state_files()
        for _ in range(2):
            c[0].restart()
            c.wait_up()
            assert c[0].job("job") is None and c[0].state_files() == left
            assert "lost with the process that held it" in c[0].log() and "restore a checkpoint" in c[0].log()
        late = c.rank("job", LAYOUT, [0], 0, **NEEDS)
        late.finish(), late.finish()
        reply = late.finish()
        assert reply["status"] == "EBUSY" and "restore" in reply["text"] and left[-1] in reply["text"], reply
        c.dismiss(late)
        assert c[0].ctl("restore", "job", f"{d}/{whole(d)[0]}")["version"] == 2
        ranks = c.ranks("job", LAYOUT, [0, 0], **NEEDS)
        train(ranks, STEPS - 2)
        lies(c[0], DEVICE)
        as_undisturbed(c, [0, 0])


@case
def a_state_without_room_costs_no_other_one():
    """Of two states the file system has room for the smaller one: a stop saves that, also behind the other."""
    if os.getuid():
        raise Skip("mounting needs root")
    with Cluster(1, start=False, **gpu()) as c:
        path = c[0].options["state_dir"]
        os.mkdir(path, 0o700)
        if os.system(f"unshare -m sh -c 'mount -t tmpfs tmpfs \"{path}\"' 2>/dev/null"):
            raise Skip("nobody may mount on this machine")
        script = f'mount -t tmpfs -o size=20m,mode=0700 tmpfs "{path}" && exec "$@"'
        c[0].start(wrapper=["unshare", "-m", "sh", "-c", script, "sh"])
        until(c[0].peers_up, what="readiness")
        for job, elements in (("large", 3_000_000), ("small", 300_000), ("larger", 3_100_000)):
            a, = c.ranks(job, [group("g", tensor("t", elements))], [0], hold=1, push=1)
            a.do("train", steps=1, sets=SETS)
            end([a])
        end_process(c[0].process, 15 * SLOW)
        told = [line for line in c[0].log().splitlines() if "state file" in line]
        saved = [line for line in told if "wrote" in line and "from GPU memory" in line]
        assert len(told) == 3 and len(saved) == 1 and "has no room" in c[0].log(), c[0].log()[-3000:]


@case
def a_lost_state_needs_no_extra_room():
    """memory_limit has room for one copy of the states: filling them again needs no second one."""
    with cluster([DEVICE, DEVICE], mirror=1) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        c[0].options["memory_limit"] = c[0].status()["memory"]["state_used"] + (1 << 20)
        c[0].restart()
        train(ranks, STEPS - 2, patient=True)
        as_undisturbed(c, [0, 1])


# ---- checkpoints and owners -----------------------------------------------------------------------------------

@cases_of([([DEVICE, DEVICE], [HOST]), ([HOST, HOST], [DEVICE, HOST, DEVICE]), ([DEVICE], [DEVICE, DEVICE])],
          "{0[0][0]}_{0[1][0]}")
def checkpoint_restored_elsewhere(what):
    before, after = what
    with Place() as d:
        with cluster(before) as c:
            train(c.ranks("job", LAYOUT, [i % len(before) for i in range(2)], **NEEDS), 2)
            c[0].ctl("checkpoint", "job", d)
            sums = c.checksum("job")
        with cluster(after) as c:
            assert c[0].ctl("restore", "job", f"{d}/{whole(d)[0]}")["version"] == 2
            assert c.checksum("job") == sums
            for daemon, place in zip(c.daemons, after):
                lies(daemon, place)


@case
def checkpoints_while_it_trains():
    """Checkpoints do not change the bits, also with the smallest copy buffer."""
    with Place() as d, cluster([DEVICE, HOST], checkpoint_memory=1) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        for a in ranks:
            a.start("train", steps=STEPS, **TRAIN)
        done = False
        while not done:
            c[0].ctl("checkpoint", "job", d)
            done = all(a.ready() for a in ranks)
        finish_all(ranks)
        as_undisturbed(c, [0, 1])


@case
def owners_change():
    """Engines start anew in the same process, so states stay on their GPUs."""
    with cluster([DEVICE, DEVICE, DEVICE], owners=2) as c:
        for d in c.daemons:
            until(lambda d=d: d.ctl("members")["voter"], what=f"the vote of {d.name}")
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        for command, node in (("add-node", "n2"), ("remove-node", "n0")):
            c[1].change_owners(command, node)
            for a in ranks:
                a.start("train", steps=2, patient=True, **{**TRAIN, "keep": False})
            finish_all(ranks)
        for d in c.daemons:
            until(lambda d=d: d.ctl_run("checksum", "job").returncode == 0, what=f"all nodes' answers to {d.name}")
            assert "from GPU memory" not in d.log()
        lies(c[1], DEVICE), lies(c[2], DEVICE)
        as_undisturbed(c, [0, 1])


# ---- refusals ----------------------------------------------------------------------------------------------------

@case
def out_of_gpu_memory():
    """The job is refused, and the error says what it lacks; a smaller job still fits."""
    big, small = small_layout(blocks=2, width=600), small_layout(blocks=1, width=20)
    with environment(FAKE_GPU_BYTES=8 << 20), cluster([DEVICE]) as c:
        a = c.rank("job", big, [0], 0, hold=-1, push=-1)
        a.finish(), a.finish()
        reply = a.finish()
        assert reply["status"] == "ENOMEM" and "GPU 0" in reply["text"] and "of job job" in reply["text"], reply
        assert c[0].job("job") is None and not c[0].state_files()[1:], c[0].state_files()
        c.dismiss(a)
        train_small = c.ranks("small", small, [0], hold=-1, push=-1)
        for a in train_small:
            a.start("train", steps=2, sets=SETS, seed=1)
        finish_all(train_small)


@case
def optimizer_device_without_a_gpu_does_not_start():
    for options in ({"device": HOST}, {"cuda_plugin": "/nowhere"}):
        with Cluster(1, start=False, **gpu(**options)) as c:
            c[0].start()
            assert c[0].process.wait(30 * SLOW) == 1, c[0].log()
            assert "optimizer = device" in c[0].log(), c[0].log()
            c[0].process.returncode = -signal.SIGKILL  # this exit was expected


if __name__ == "__main__":
    main()
