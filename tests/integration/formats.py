#!/usr/bin/env python3
"""Moments and master weights in fewer bytes: the same bits for any owners, chunk sizes, instruction sets and kills; mirrored, moved,
restored, and updated ahead of the decision."""
import functools
import math
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import Place  # noqa: E402
from cluster import (MUON_SETS, SETS, SLOW, Cluster, crash_points, end_process, finish_all, group,  # noqa: E402
                     muon_layout, tensor, until)
from fake_gpu import environment, plugin  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402
from same_bits import CHANGES, IN_THE_MIDDLE, ON_GPUS, ONCE_A_STEP, POINTS, STEPS, WORLDS, Job, gpu  # noqa: E402

WIRE = {"reduce": "bf16", "accumulate": "wire"}
FORMATS = [{"state": "8bit", "master": "bf16+8"}, {"state": "8bit", "master": "bf16+8", "ema": True},
           {"state": "bf16", "master": "bf16+16"}, {}, {"state": "8bit"}]
LAYOUT = [{**g, **more} for g, more in zip(muon_layout("bf16", blocks=3), FORMATS)]
NAMES = [t["name"] for g in LAYOUT for t in g["tensors"]]
JOB = Job(LAYOUT, sets=[*SETS, *MUON_SETS], ema_decay=0.9)
attached, train, undisturbed = JOB.attached, JOB.train, JOB.undisturbed
MIXED = {"host": (), "gpu": (0,), "gpu_of_another": (2,)}  # nodes whose states lie on a fake GPU


def mixed(name):
    return {"per_node": {n: gpu() for n in MIXED[name]}}


@cases_of({**WORLDS, **ON_GPUS})
def bits_are_those_of_one_owner(name):
    JOB.has_the_bits_of_one_owner(name)


@case
def bits_of_narrow_sums_are_those_of_one_owner():
    with Cluster(3) as c:
        assert train(c, attached(c, **WIRE), STEPS) == undisturbed(**WIRE) != undisturbed()


@case
def ranks_fetch_the_same_from_any_owners():
    """One owner's ranks map its file, or its serve plane on their GPU; others have windows."""
    gpus, told = {"device": "cuda:0"}, []
    for owners, places, windows in ((1, "host", {}), (3, "host", {}), (1, "gpu", {}), (1, "gpu", gpus), (3, "gpu", gpus)):
        with environment(ZEROD_CUDA_PLUGIN=plugin()), Cluster(3, owners=owners, **mixed(places)) as c:
            ranks = c.ranks("job", LAYOUT, [0, 0], hold=2, push=2, **windows)
            JOB.start(ranks, 2)
            hashes = [r["hash"] for r in finish_all(ranks)]
            c.checksum("job")  # its update is over
            assert end_process(c[0].process, 15 * SLOW), c[0].log()[-2000:]
            c[0].start()
            c.wait_up()
            JOB.start(ranks, 2)
            told.append((hashes, [r["hash"] for r in finish_all(ranks)]))
    assert all(t == told[0] for t in told), told


@case
def a_checkpoint_beside_updates_has_one_version():
    with Place() as d:
        with Cluster(2, chunk=256) as c:
            ranks = attached(c)
            JOB.start(ranks, 8)
            place = c[0].ctl("checkpoint", "job", d)["path"]
            finish_all(ranks)
            end = c.checksum("job")["planes"]
        with Cluster(3) as c:
            c[1].ctl("restore", "job", place)
            ranks = attached(c)
            assert train(c, ranks, 8 - int(place.rsplit("-", 1)[1])) == end, place


@case
def another_format_gives_other_bits():
    """Shows that the comparisons can fail."""
    with Cluster(2) as c:
        layout = [{**g, "state": "bf16"} if g.get("state") else g for g in LAYOUT]
        assert train(c, attached(c, layout), STEPS) != undisturbed()
    with Cluster(2) as c:
        layout = [{**g, "master": "bf16+16"} if g.get("master") else g for g in LAYOUT]
        assert train(c, attached(c, layout), STEPS) != undisturbed()


@cases_of(POINTS)
def a_daemon_dies_in_an_update(point):
    JOB.dies_in_an_update(point)


@cases_of(MIXED)
def an_empty_node_is_filled_from_mirrors(name):
    JOB.is_filled_from_mirrors(**mixed(name))


@cases_of([f"{what}_{name}" for what in CHANGES for name in MIXED])
def owners_change(name):
    what, places = name.split("_", maxsplit=1)
    with environment(FAKE_GPU_COPIES_ON_LOOP=1):  # an engine that starts anew copies what its states serve there
        JOB.changes_owners(what, **mixed(places))


@case
def a_checkpoint_goes_on_with_other_owners_and_in_its_formats_only():
    with Place() as d:
        with Cluster(2, **mixed("gpu")) as c:
            train(c, attached(c), 2)
            place = c[0].ctl("checkpoint", "job", d)["path"]
        JOB.is_restored(place)
        JOB.is_restored(place, **mixed("gpu_of_another"))
        with Cluster(2) as c:
            c[0].ctl("restore", "job", place)
            a = c.actor(0)
            a.do("connect", job="job", rank=0, world=2)
            a.do("layout", groups=[{**g, "state": "bf16"} for g in LAYOUT])
            a.refused("ELAYOUT", "attach", "embed", "moments in", "bf16", "8bit", hold=2, push=2)
            a.do("layout", groups=[{**g, "master": "bf16+16"} if g.get("master") else g for g in LAYOUT])
            a.refused("ELAYOUT", "attach", "embed", "master weights in", "bf16+16", "bf16+8", hold=2, push=2)


# ---- on GPUs: a fake one ---------------------------------------------------------------------------

@cases_of([*ONCE_A_STEP, "update.chunk"])
def a_daemon_that_lost_its_gpu_in_an_update_is_filled(point):
    JOB.dies_in_an_update(point, mirror=1, per_node={1: gpu()})


@cases_of(IN_THE_MIDDLE)
def moved_to_a_gpu_in_the_middle_of_an_update(point):
    JOB.is_moved_to_a_gpu_in_an_update(point)


@cases_of({"stays": {}, "comes_to_the_host": {"optimizer": "host"}})
def an_orderly_stop_keeps_states_of_gpus(what):
    JOB.outlives_an_orderly_stop_on_a_gpu(**({} if what == "stays" else {"optimizer": "host"}))


@case
def an_update_adds_contributions_up():
    JOB.adds_contributions_up_in_an_update()


# ---- groups that are updated ahead of the decision ----------------------------------------------

EAGER = [group(n, tensor(f"{n}.w", 300, 7), tensor(f"{n}.v", 5), dtype="bf16", ema=n == "a", state=s)
         for n, s in (("a", "8bit"), ("b", "bf16"), ("c", "8bit"))]
STEP = {"sets": SETS, "seed": 3, "pull": 0, "patient": True, "ema_decay": 0.5}


def eager(c, **fields):
    return c.ranks("job", [{**g, "eager": True, **fields} for g in EAGER], [0, 1], hold=3, push=-1)


def eager_train(c, ranks, steps):
    for a in ranks:
        a.start("train", steps=steps, ahead=True, **STEP)
    finish_all(ranks)
    return c.checksum("job")["planes"]


@functools.cache
def eager_undisturbed():
    with Cluster(2) as c:
        ranks = eager(c, eager=False)
        for a in ranks:
            a.start("train", steps=3, **STEP)
        finish_all(ranks)
        return c.checksum("job")["planes"]


@cases_of(["none", "update.torn", "ahead.kept", "update.finish"])
def eager_groups_have_the_same_bits(point):
    if point != "none" and point not in crash_points():
        raise Skip("this zerod has no crash points")
    with Cluster(2) as c:
        ranks = eager(c)
        eager_train(c, ranks, 1)
        if point != "none":
            c[1].restart(crash=f"{point}:{1 if point == 'update.finish' else 2}")
            c.wait_up()
        for a in ranks:
            a.start("train", steps=1, ahead=True, **STEP)
        if point != "none":
            until(lambda: not c[1].alive(), what=f"the crash at {point}")
            c[1].start()
        finish_all(ranks)
        assert eager_train(c, ranks, 1) == eager_undisturbed()


@cases_of(["host", "gpu"])
def old_values_of_an_aborted_step_come_back(name):
    with Cluster(2, log_level="debug", **mixed(name)) as c:
        ranks = eager(c)
        before = eager_train(c, ranks, 1)
        for a in ranks:
            a.do("ahead", sets=SETS, ema_decay=0.5)
            for g in range(3):
                a.do("grad", group=g, seed=9)
                a.do("push", group=g)
        until(lambda: all("has updated ahead" in d.log() for d in c.daemons), what="updates ahead")
        assert c.checksum("job")["planes"] == before


# ---- what clients read and write ----------------------------------------------------------------

def values(a, name, plane, count, first=0):
    return a.do("get", tensor=NAMES.index(name), plane=plane, first=first, count=count)["values"]


@cases_of(MIXED)
def a_put_keeps_the_elements_beside_it(name):
    """A record is packed anew: what was unpacked gets the same bytes."""
    with Cluster(3, mirror=1, **mixed(name)) as c:
        ranks = attached(c)
        before = train(c, ranks, 2)
        for name, plane in (("wte", "exp_avg_sq"), ("wte", "exp_avg"), ("b0.up", "moment1"), ("b1.up", "moment1"),
                            ("head", "exp_avg_sq"), ("wte", "master"), ("b1.up", "master")):
            n = 37 * 64
            old = values(ranks[1], name, plane, n)
            assert len(set(old)) > 50
            ranks[0].do("put", tensor=NAMES.index(name), plane=plane, values=old)
            assert values(ranks[0], name, plane, n) == old and c.checksum("job")["planes"] == before, (name, plane)
            ranks[0].do("put", tensor=NAMES.index(name), plane=plane, first=701, values=old[901:1001])
            new = values(ranks[1], name, plane, n)
            assert new[:640] + new[832:] == old[:640] + old[832:], (name, plane)
            for x, y in zip(new[701:801], old[901:1001]):
                assert abs(x - y) <= abs(y) / 16 + max(map(abs, new[640:832])) / 186, (name, plane, x, y)
            ranks[1].do("put", tensor=NAMES.index(name), plane=plane, first=640, values=old[640:832])
            assert c.checksum("job")["planes"] == before, (name, plane)


@case
def a_put_has_the_same_bits_for_any_owners():
    told = []
    for owners, places in ((1, "host"), (3, "host"), (1, "gpu"), (3, "gpu_of_another")):
        with Cluster(3, owners=owners, **mixed(places)) as c:
            ranks = attached(c)
            for name, plane, n in (("wte", "exp_avg_sq", 37 * 64), ("b0.experts", "moment1", 5 * 64 * 128),
                                   ("b1.up", "moment1", 64 * 259), ("b0.experts", "master", 5 * 64 * 128),
                                   ("b1.up", "master", 64 * 259)):
                ranks[0].do("put", tensor=NAMES.index(name), plane=plane,
                            values=[(i * 37 % 1009) / 1009 for i in range(n)])
            told.append(c.checksum("job")["planes"])
    assert all(t == told[0] for t in told), told


@case
def values_are_near_those_of_fp32():
    found = {}
    for state in ("fp32", "bf16", "8bit"):
        with Cluster(2) as c:
            ranks = attached(c, [{**g, "state": state} for g in LAYOUT])
            train(c, ranks, 1)
            found[state] = [values(ranks[0], n, p, 2048)
                            for n, p in (("wte", "exp_avg"), ("wte", "exp_avg_sq"), ("b2.up", "moment1"))]
    for state, part, of_most in (("bf16", 1 / 128, 0), ("8bit", 1 / 16, 1 / 186)):
        assert found[state] != found["fp32"]
        for x, y in zip(sum(found[state], []), sum(found["fp32"], [])):
            assert abs(x - y) <= abs(y) * part + max(map(abs, sum(found["fp32"], []))) * of_most, (state, x, y)


@cases_of(["host", "gpu"])
def norms_are_of_the_values(name):
    with Cluster(3, **mixed(name)) as c:
        ranks = attached(c)
        train(c, ranks, 2)
        for name, plane, n in (("wte", "exp_avg", 37 * 64), ("b1.bias", "exp_avg_sq", 197), ("b0.up", "moment1", 64 * 259)):
            expected = math.sqrt(math.fsum(x * x for x in values(ranks[0], name, plane, n)))
            told = ranks[0].do("norms", plane=plane, first=NAMES.index(name), count=1)["norms"][0]
            assert expected > 0 and abs(told - expected) < 1e-12 * expected, (name, told, expected)


# ---- bytes ----------------------------------------------------------------------------------------

BYTES = {("fp32", "fp32", "fp32"): 16 + 2, ("bf16", "fp32", "fp32"): 12 + 2, ("8bit", "fp32", "fp32"): 10.125 + 2,
         ("fp32", "bf16+16", "wire"): 14, ("8bit", "bf16+16", "wire"): 8.125, ("8bit", "bf16+8", "wire"): 7.125}


@cases_of(BYTES, "{0[0]}_{0[1]}_{0[2]}")
def bytes_of_a_parameter(what):
    """With the parameters that are served, in bf16."""
    state, master, accumulate = what
    for owners in (1, 3):
        with Cluster(3, owners=owners) as c:
            layout = [group(f"g{i}", tensor(f"w{i}", 1000, 1000), dtype="bf16", state=state, master=master)
                      for i in range(3)]
            c.ranks("job", layout, [0], hold=2, push=2, reduce="bf16", accumulate=accumulate)
            job = c[0].ctl("shards", "job")["jobs"][0]
            told = sum(n for g in job["groups"] for s in g["shards"] for n in s["bytes"].values())
            assert abs(told / 3e6 - BYTES[what]) < 0.01 * BYTES[what], told / 3e6
            assert all((g["state"], g["master"]) == (state, master) for g in job["groups"]), job
            told = [] if (state, master) == ("fp32", "fp32") else [f"{state},{master}"]
            assert c[0].job("job")["formats"] == told
            assert f" {state},{master} " in c[0].ctl_run("shards", "job").stdout
            assert all(f"weights: {t}\n" in c[0].ctl_run("status").stdout for t in told)
            seen = c[0].ctl_run("doctor", "--all").stdout
            assert (f"moments in {state}, master weights in {master} in 3 of 3 groups" in seen) == bool(told), seen
            planes = [j["planes"] for d in c.daemons for j in d.ctl("status")["jobs"]]
            held = sum(n for p in planes for n in p.values())
            assert abs(held / 3e6 - BYTES[what]) < 0.01 * BYTES[what], planes


@case
def a_split_master_is_the_weight_that_is_served():
    """With 16 bits more nothing is lost: without moments in other formats the bits are those of fp32."""
    told = {}
    layout = [group("g", tensor("w", 300, 7), tensor("f", 130, frozen=True), tensor("b", 129), dtype="bf16")]
    for master in ("fp32", "bf16+16", "bf16+8"):
        for owners in (1, 2):
            with Cluster(2, owners=owners) as c:
                ranks = attached(c, [{**g, "master": master} for g in layout])
                for a in ranks:
                    a.start("train", steps=3, sets=SETS, seed=3, pull=0, patient=True)
                finish_all(ranks)
                c[0].restart()
                c.wait_up()
                own = ranks[1].do("get", tensor=0, plane="master", count=2100)["values"]
                served = ranks[1].do("get", tensor=0, plane="serve", count=2100)["values"]
                told.setdefault(master, []).append((own, served, c.checksum("job")["planes"]))
    assert all(a == b for a, b in told.values())
    assert told["bf16+16"][0] == told["fp32"][0] and told["bf16+8"][0][0] != told["fp32"][0][0]
    for x, y in zip(told["bf16+8"][0][0], told["fp32"][0][0]):
        assert abs(x - y) <= abs(y) / 2**12 + 1e-6, (x, y)


# ---- refusals -------------------------------------------------------------------------------------

@case
def refuses_formats_that_do_not_exist():
    with Cluster(1) as c:
        a = c.actor(0)
        a.do("connect", job="job", rank=0, world=1)
        for state in ("bf16+8", "+"):
            a.refused("EINVAL", "layout", "group 'g'", "moments", "+", groups=[group("g", tensor("w", 8), state=state)])
        for state in ("4bit", "8bit_square"):
            a.do("layout", groups=[group("g", tensor("w", 8), state=state)])
            a.refused("EINVAL", "attach", "group 'g'", f"'{state}'", "fp32, bf16 or 8bit", hold=1, push=1)
        for g, *texts in (({"master": "bf16"}, "'bf16'", "bf16+16 or bf16+8"), ({"master": "bf16+16"}, "served in bf16"),
                          ({"master": "bf16+8", "dtype": "bf16", "eager": True}, "eager", "bf16+8")):
            a.do("layout", groups=[group("g", tensor("w", 8), **g)])
            a.refused("EINVAL", "attach", "group 'g'", *texts, hold=1, push=1)
        a.refused("EINVAL", "layout", "group 'q'", "bytes",
                  groups=[group("q", tensor("w", 8, frozen=True), dtype="uint8", state="8bit")])
        a.refused("EINVAL", "layout", "group 'g'", "15 bytes", groups=[group("g", tensor("w", 8), state="8" * 16)])


if __name__ == "__main__":
    main()
