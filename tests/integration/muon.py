#!/usr/bin/env python3
"""Muon updates whole matrices, in blocks that have vectors of AdamW: the same bits for any owners, chunk sizes,
instruction sets and kills; mirrored, moved and restored."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import Place  # noqa: E402
from cluster import MUON_SETS, SETS, Cluster, finish_all, group, muon_layout, tensor, until  # noqa: E402
from fake_gpu import environment  # noqa: E402
from harness import case, cases_of, main  # noqa: E402
from same_bits import CHANGES, IN_THE_MIDDLE, ON_GPUS, POINTS, STEPS, WORLDS, Job, gpu  # noqa: E402

LAYOUT = muon_layout("bf16", blocks=2)
JOB = Job(LAYOUT, sets=[*SETS, *MUON_SETS])
attached, train, undisturbed = JOB.attached, JOB.train, JOB.undisturbed


@cases_of({**WORLDS, **ON_GPUS})
def bits_are_those_of_one_owner(name):
    JOB.has_the_bits_of_one_owner(name)


@case
def another_learning_rate_gives_other_bits():
    """Shows that the comparisons can fail."""
    with Cluster(2) as c:
        sets = [*SETS, ["muon", 2.1e-2, *MUON_SETS[0][2:]], MUON_SETS[1]]
        assert train(c, attached(c), STEPS, sets=sets) != undisturbed()


@case
def matrices_have_one_moment():
    with Cluster(3) as c:
        ranks = attached(c)
        train(c, ranks, 1)
        planes = {}
        for g in c[0].ctl("shards", "job")["jobs"][0]["groups"][1:3]:
            for shard in g["shards"]:
                for name, n in shard["bytes"].items():
                    planes[name] = planes.get(name, 0) + n // 4
        vectors = 2 * sum((n + 127) // 128 * 128 for n in (64, 197))
        assert planes["exp_avg_sq"] == vectors, planes  # of the two blocks
        assert planes["moment1"] == planes["grad"] > 50 * vectors, planes
        qkv = [t["name"] for g in LAYOUT for t in g["tensors"]].index("b0.qkv")
        assert any(ranks[0].do("get", tensor=qkv, plane="moment1", count=50)["values"])
        ranks[0].refused("EINVAL", "get", "no plane moment2", "muon keeps 1", tensor=qkv, plane="exp_avg_sq", count=50)


@cases_of(POINTS)
def a_daemon_dies_in_an_update(point):
    JOB.dies_in_an_update(point)


@case
def an_empty_node_is_filled_from_mirrors():
    JOB.is_filled_from_mirrors()


@cases_of(CHANGES)
def owners_change(what):
    JOB.changes_owners(what)


@case
def a_checkpoint_goes_on_with_other_owners():
    with Place() as d:
        with Cluster(2) as c:
            train(c, attached(c), 2)
            place = c[0].ctl("checkpoint", "job", d)["path"]
        JOB.is_restored(place)


@cases_of(["host", "gpu"])
def averages_follow_the_weights(place):
    layout = [{**g, "ema": True} for g in LAYOUT]
    with Cluster(3, mirror=1, **(gpu() if place == "gpu" else {})) as c:
        several = train(c, attached(c, layout), 3, ema_decay=0.9)
    with Cluster(2, owners=1) as c:
        ranks = attached(c, layout)
        assert train(c, ranks, 3, ema_decay=0.9) == several
        up = [t["name"] for g in LAYOUT for t in g["tensors"]].index("b0.up")
        master, ema = (ranks[0].do("get", tensor=up, plane=p, count=64 * 259)["values"] for p in ("master", "ema"))
        assert master != ema and max(abs(x - y) for x, y in zip(master, ema)) < 0.1


# ---- on GPUs: the fake one adds up in the host's order --------------------------------------------------------------

@cases_of(IN_THE_MIDDLE)
def moved_to_a_gpu_in_the_middle_of_an_update(point):
    JOB.is_moved_to_a_gpu_in_an_update(point)


@case
def an_orderly_stop_keeps_states_of_gpus():
    JOB.outlives_an_orderly_stop_on_a_gpu()


@case
def an_update_adds_contributions_up():
    JOB.adds_contributions_up_in_an_update()


@case
def an_update_waits_for_memory_of_the_gpu():
    with environment(FAKE_GPU_BYTES=64 << 20), Cluster(2, owners=1, per_node={0: gpu(threads=1)}) as c:
        ranks = attached(c)
        free = c[0].ctl("status")["gpus"][0]["memory"]["free"]
        other = c.actor(0)
        other.do("connect", job="other", rank=0, world=1)
        other.do("layout", groups=[group("g", tensor("w", (free - (48 << 10)) // 16))])
        other.do("attach", hold=1, push=1)
        JOB.start(ranks, STEPS)
        until(lambda: "waits for memory: " in c[0].log(), what="an update without memory")
        other.do("close")
        c[0].ctl("drop", "other")
        finish_all(ranks)
        assert c.checksum("job")["planes"] == undisturbed()


BAD = {
    "vector": (tensor("v", 64, optimizer="muon"), "v", "muon updates matrices", "zero_layout_tensor_optimizer"),
    "unknown": (tensor("v", 64, 64, optimizer="munon"), "v", "there is no optimizer 'munon'", "muon"),
    "rows_of_a_vector": (tensor("v", 64, optimizer="muon", rows=[64]), "v", "two dimensions"),
    "too_few_rows": (tensor("v", 64, 4, optimizer="muon", rows=[32, 31]), "v", "more rows than the matrices"),
    "too_many_rows": (tensor("v", 64, 4, optimizer="muon", rows=[64, 1]), "v", "more rows than it has"),
    "no_rows": (tensor("v", 64, 4, optimizer="muon", rows=[]), "v", "no matrices"),
    "rows_of_adamw": (tensor("v", 64, 4, rows=[64]), "v", "adamw updates element by element"),
    "frozen": (tensor("v", 64, 4, frozen=True, rows=[64]), "v", "frozen"),
}


@cases_of(BAD)
def refuses(name):
    bad, *texts = BAD[name]
    with Cluster(1) as c:
        a = c.actor(0)
        a.do("connect", job="job", rank=0, world=1)
        try:
            a.do("layout", groups=[group("g", tensor("w", 8, 8), bad)])
        except Exception as e:  # a flaw of the tensor alone
            assert all(t in str(e) for t in texts), e
            return
        a.refused("EINVAL", "attach", *texts, hold=1, push=1)


@case
def refuses_what_the_step_and_the_group_cannot_have():
    matrix = tensor("w", 64, 64, optimizer="muon")
    with Cluster(1) as c:
        a, = c.ranks("job", [group("g", matrix)], [0], hold=1, push=1)
        a.refused("EINVAL", "step", "w", "adamw", "muon", sets=[SETS[0]])
        for flaw, text in (([1e-2, 1.0, 0, 1, 0], "momentum 1"), ([1e-2, 0.9, 0, 2, 0], "nesterov 2"),
                           ([1e-2, 0.9, 0, 1, 3], "adjust_lr 3"), ([1e-2, 0.9, 0, 0.5, 0], "nesterov 0.5"),
                           ([-1, 0.9, 0, 1, 0], "lr -1")):
            a.refused("EINVAL", "step", text, sets=[["muon", *flaw]])
        a.do("close")
        b = c.actor(0)
        b.do("connect", job="eager", rank=0, world=1)
        b.do("layout", groups=[group("g", matrix, eager=True)])
        b.refused("EINVAL", "attach", "w", "ahead of the decision", "eager", hold=1, push=1)
        b.do("layout", groups=[group("g", tensor("w", 64, 64))])
        b.do("connect", job="job", rank=0, world=1)
        b.do("layout", groups=[group("g", tensor("w", 64, 64))])
        b.refused("ELAYOUT", "attach", "optimizer", "muon", hold=1, push=1)


if __name__ == "__main__":
    main()
