#!/usr/bin/env python3
"""A job whose groups have different optimizers trains on two nodes, survives restarts of the daemons, is restored from a
checkpoint, and refuses other optimizers."""
import json
import os
import shutil
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import cluster  # noqa: E402
from checkpointing import Place  # noqa: E402
from cluster import Cluster, expect, finish_all, small_layout  # noqa: E402
from fake_gpu import plugin  # noqa: E402
from harness import case, cases_of, main  # noqa: E402

SETS = {"lion": ["lion", 1e-3, 0.9, 0.99, 0.1], "sgd": ["sgd", 0.1, 0, 0, 0.01],
        "sgd-momentum": ["sgd-momentum", 0.1, 0.9, 0.1, 0.01], "adam": ["adam", 1e-3, 0.9, 0.999, 1e-8, 0.1],
        "adamw-ema": ["adamw", 1e-3, 0.9, 0.999, 1e-8, 0.1], "sgd-momentum-ema": ["sgd-momentum", 0.1, 0.9, 0.1, 0.01]}
NAMES = list(SETS)
TRAIN = {"sets": [*cluster.SETS, *SETS.values()], "ema_decay": 0.9, "clip": 0.5, "seed": 3, "pull": 0, "patient": True}
MOMENTS = {"adamw": {"exp_avg", "exp_avg_sq"}, "adam": {"exp_avg", "exp_avg_sq"}, "lion": {"exp_avg"}, "sgd": set(),
           "sgd-momentum": {"momentum_buffer"}}


def mixed(optimizers):
    """A block for each of these optimizers, between two groups of AdamW."""
    layout = small_layout(blocks=len(optimizers), width=90)
    for g, name in zip(layout[1:], optimizers):
        g["optimizer"], g["ema"] = name.removesuffix("-ema"), name.endswith("-ema")
        for t in g["tensors"]:
            t["set"] = len(cluster.SETS) + NAMES.index(name)
    return layout


LAYOUT = mixed(NAMES)


def train(c, ranks, steps):
    for a in ranks:
        a.start("train", steps=steps, **TRAIN)
    finish_all(ranks)
    return c.checksum("job")


def attached(c):
    return c.ranks("job", LAYOUT, [0, 1], hold=2, push=2)


def undisturbed(steps):
    with Cluster(2) as c:
        return train(c, attached(c), steps)


@case
def each_group_has_the_planes_of_its_optimizer():
    with Place() as d, Cluster(2) as c:
        ranks = attached(c)
        train(c, ranks, 2)
        shards = c[0].ctl("shards", "job")["jobs"][0]
        for given, g in zip(LAYOUT, shards["groups"]):
            name, ema = given.get("optimizer", "adamw"), given.get("ema", False)
            assert (g["optimizer"], g["ema"]) == (name, ema), g
            for shard in g["shards"]:
                assert set(shard["bytes"]) - {"master", "grad", "serve"} == MOMENTS[name] | ({"ema"} if ema else set()), shard
        first = len(LAYOUT[0]["tensors"])  # the first block's matrix
        assert any(ranks[0].do("get", tensor=first, plane="exp_avg", count=50)["values"])
        ranks[0].refused("EINVAL", "get", "no plane moment2", tensor=first, plane="exp_avg_sq", count=50)
        ranks[0].refused("EINVAL", "get", "block0", "zero_layout_ema", tensor=first, plane="ema", count=50)
        c[0].ctl("export", "job", f"{d}/a.safetensors")
        with open(f"{d}/a.safetensors", "rb") as f:
            header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        assert {"wte", "b0.w", "head"} <= set(header), header


@case
def survives_restarts_and_a_restore():
    expected = undisturbed(6)
    with Place() as d:
        with Cluster(2) as c:
            ranks = attached(c)
            train(c, ranks, 2)
            for node in c.daemons:
                node.restart()
            c.wait_up()
            before = train(c, ranks, 2)
            place = c[0].ctl("checkpoint", "job", d)["path"]
            assert train(c, ranks, 2) == expected
        with Cluster(3) as c:
            c[1].ctl("restore", "job", place)
            assert c.checksum("job")["planes"] == before["planes"]
            assert train(c, attached(c), 2)["planes"] == expected["planes"]


def lose(c, node):
    """An empty machine takes the node's place."""
    c[node].kill()
    shutil.rmtree(c[node].options["state_dir"])
    c[node].start()


@case
def a_mirror_fills_the_place_of_a_lost_node():
    expected = undisturbed(4)
    with Cluster(2, mirror=1) as c:
        ranks = attached(c)
        train(c, ranks, 2)
        lose(c, 1)
        assert train(c, ranks, 2)["planes"] == expected["planes"]


@cases_of(("host", "gpu"))
def an_average_begins_as_the_first_weights(place):
    """First values of the layout, and what is put before the first update; the states have the same bits on a GPU."""
    tensor, options = len(LAYOUT[0]["tensors"]) + 4 * NAMES.index("adamw-ema"), {"optimizer": "device", "cuda_plugin": plugin()}

    def planes(rank, *names):
        return [rank.do("get", tensor=tensor, plane=p, count=500)["values"] for p in names]
    with Cluster(2, per_node={} if place == "host" else {0: options, 1: options}) as c:
        ranks = attached(c)
        begin, average, moment = planes(ranks[1], "master", "ema", "moment3")
        assert begin == average == moment and any(begin), begin
        ranks[0].do("put", tensor=tensor, plane="master", first=100, values=[0.5] * 300)
        master, average = planes(ranks[1], "master", "ema")
        assert master == average == begin[:100] + [0.5] * 300 + begin[400:], average
        ranks[0].do("put", tensor=tensor, plane="master", first=100, values=begin[100:400])
        assert train(c, ranks, 4) == undisturbed(4)
        before, = planes(ranks[1], "ema")
        ranks[0].do("put", tensor=tensor, plane="master", first=100, values=[0.5] * 300)
        assert planes(ranks[1], "ema") == [before], "a write after the first update changed the average"


@case
def another_optimizer_is_refused():
    """An existing job refuses a layout with another optimizer, and a step refuses another optimizer's set."""
    with Cluster(1) as c:
        a, = c.ranks("job", LAYOUT, [0], hold=2, push=2)
        train(c, [a], 1)
        wrong = [*cluster.SETS, *[cluster.SETS[0]] * len(SETS)]
        expect(a.ask("train", **{**TRAIN, "sets": wrong, "patient": False}), "EINVAL", "b0.w", "adamw", NAMES[0])
        a.refused("EINVAL", "step", "keeps an average", "ema_decay", sets=TRAIN["sets"])
        a.do("close")
        a.end()
        b = c.actor(0)
        b.do("connect", job="job", rank=0, world=1)
        b.refused("EINVAL", "layout", "zero_layout_ema", groups=[{**LAYOUT[0], "optimizer": "adamw-ema"}])
        b.do("layout", groups=small_layout(blocks=len(SETS), width=90))
        b.refused("ELAYOUT", "attach", "block0", "adamw", NAMES[0], hold=2, push=2)
        b.do("layout", groups=[{**g, "ema": False} for g in LAYOUT])
        b.refused("ELAYOUT", "attach", "an average of the weights (ema) there, none here", hold=2, push=2)


if __name__ == "__main__":
    main()
