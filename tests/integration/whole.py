#!/usr/bin/env python3
"""Whole tensors: one owner has all of each, whatever happens to owners, and the job has the bits of one without them."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import Place  # noqa: E402
from cluster import SETS, Cluster, finish_all, group, tensor, until  # noqa: E402
from harness import case, cases_of, main  # noqa: E402
from moments import LAYOUT, NEEDS, STEPS, Endless, as_undisturbed, can_vote, ended_with, lies_on, lose, train  # noqa: E402

MATRICES = ("wte", "wpe", "b0.w", "b1.w", "head")


def whole(names=MATRICES, layout=LAYOUT):
    return [{**g, "tensors": [{**t, "whole": t["name"] in names} for t in g["tensors"]]} for g in layout]


def rows(g):
    """(first, end, name) of each tensor, as layouts lay them flat."""
    at = 0
    for t in g["tensors"]:
        elements = 1
        for n in t["shape"]:
            elements *= n
        yield at, at + elements, t["name"]
        at += -(-elements // 128) * 128


def uncut(c, layout):
    """Checks that no shard begins within a whole tensor; the number of shards."""
    groups = c[0].ctl("shards", "job")["jobs"][0]["groups"]
    for g, said in zip(layout, groups):
        names = [t["name"] for t in g["tensors"] if t.get("whole")]
        assert said["whole"] == names, said
        for s in said["shards"]:
            assert not any(first < s["first"] < end for first, end, name in rows(g) if name in names), (said, s)
    return sum(len(g["shards"]) for g in groups)


@cases_of([([0, 1], "n0"), ([0, 1], "n0 n1 n2"), ([0, 0], "n0*2 n1*3"), ([0, 1, 1], "n0 n1 n2 n3 n4 n5 n6 n7")], "{0[1]}")
def same_bits(what):
    placement, owners = what
    for names in (MATRICES, ("b0.w",)):
        with Cluster(8 if "n7" in owners else 3, owners=owners) as c:
            train(c.ranks("job", whole(names), placement, **NEEDS), STEPS)
            uncut(c, whole(names))
            as_undisturbed(c, placement)
            assert "whole in group block0: b0.w" in c[0].ctl_run("shards", "job").stdout
            share = c[0].ctl("plan", "job", "--nodes", "3", "--owners", "3")["largest_share"]
            assert share > 1.01 and "times the mean" in c[0].ctl_run("plan", "job", "--nodes", "3").stdout, share


@cases_of((0, 1), "mirror_{}")
def owners_change(mirror):
    """Nodes join and leave under training."""
    with Cluster(3, owners=1, mirror=mirror) as c:
        can_vote(c)
        training = Endless(c, c.ranks("job", whole(), [0, 1], **NEEDS))
        training.goes_on()
        for command, node, names in (("add-node", "n1", ["n0", "n1"]), ("add-node", "n2", ["n0", "n2", "n1"]),
                                     ("remove-node", "n0", ["n2", "n1"])):
            c[1].change_owners(command, node)
            lies_on(c, names)
            training.goes_on()
            uncut(c, whole())
        version, _ = training.end()
        as_undisturbed(c, [0, 1], version)


@case
def a_lost_node_is_filled_from_its_mirror():
    with Cluster(2, mirror=1) as c:
        ranks = c.ranks("job", whole(), [0, 1], **NEEDS)
        train(ranks, 2)
        lose(c[1])
        train(ranks, STEPS - 2, patient=True)
        as_undisturbed(c, [0, 1])


@case
def eager_groups_and_bytes():
    """One tensor is all of its group, some are frozen, one group has bytes, and parts of slices differ in number."""
    def layout(is_whole):
        more = {"whole": is_whole}
        return [group("a", tensor("a.small", 300, 200), tensor("a.w", 2200, 1024, **more), tensor("a.b", 77), eager=True),
                group("b", tensor("b.w", 700, 300, **more)),
                group("c", tensor("c.f", 500, 300, frozen=True, **more), tensor("c.w", 333, 444), dtype="bf16"),
                group("d", {"name": "d.q", "shape": [400001], "init": "put", "frozen": True, **more}, dtype="uint8")]

    def run(nodes, is_whole):
        with Cluster(nodes) as c:
            ranks = c.ranks("job", layout(is_whole), [0, 0], hold=-1, push=-1)
            for a in ranks:
                a.start("train", steps=4, sets=SETS, seed=5)
            seen = finish_all(ranks)
            uncut(c, layout(is_whole))
            return c.checksum("job")["planes"], {r["hash"] for r in seen}
    assert run(1, False) == run(3, True) == run(2, True)


@cases_of(("some", "none"))
def a_checkpoint_loads_into_a_job_with_others(name):
    """A job keeps its own whole tensors; where there is no job, those of the checkpoint count."""
    before, after = ((), ("b1.w", "head"))[:: 1 if name == "none" else -1]
    with Place() as d:
        with Cluster(2) as c:
            ranks = c.ranks("job", whole(before), [0, 1], **NEEDS)
            train(ranks, 2)
            place = c[0].ctl("checkpoint", "job", d)["path"]
            saved = c.checksum("job")["planes"]
        with Cluster(3) as c:
            c[2].ctl("restore", "job", place)
            uncut(c, whole(before))
            for a in c.ranks("job", whole(before), [0, 1], **NEEDS):
                c.dismiss(a)
            c[0].ctl("drop", "job")
            for a in c.ranks("job", whole(after), [0, 1], **NEEDS):
                c.dismiss(a)
            c[2].ctl("restore", "job", place)
            assert c.checksum("job")["planes"] == saved
            uncut(c, whole(after))
            train(c.ranks("job", whole(after), [0, 1], **NEEDS), STEPS - 2)
            as_undisturbed(c, [0, 1])


@case
def ranks_agree_and_a_node_has_room():
    with Cluster(2, memory_limit=24 << 20) as c:
        a, b = (c.caller("job", whole(names), [0, 1], rank) for rank, names in enumerate((("b0.w",), ())))
        finish_all([a, b]), finish_all([a, b])
        a.start("attach", **NEEDS)
        until(lambda: c[0].job("job"), what="the first rank")
        b.refused("ELAYOUT", "attach", "tensor 'b0.w'", "whole here", **NEEDS)
    large = [group("g", tensor("g.large", 1 << 21, whole=True), *(tensor(f"g.{i}", 1 << 10) for i in range(4)))]
    for is_whole in (False, True):
        with Cluster(2, memory_limit=24 << 20) as c:
            large[0]["tensors"][0]["whole"] = is_whole
            ranks = [c.caller("job", large, [0, 1], rank) for rank in range(2)]
            for a in ranks:
                a.start("attach", **NEEDS)
            said = [a.finish() for _ in range(3) for a in ranks]
            assert any(r.get("status") == "EQUOTA" and "memory_limit" in json.dumps(r) for r in said) == is_whole, said


if __name__ == "__main__":
    main()
