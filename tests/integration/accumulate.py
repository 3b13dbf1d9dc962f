#!/usr/bin/env python3
"""accumulate = wire: an owner's sum has the dtype of gradients between nodes, is rounded once a micro-batch, and has
the same bits whatever owners, mirrors, moves and deaths there are."""
import math
import os
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import Place  # noqa: E402
from cluster import WAIT, Cluster, expect, finish_all, group, small_layout, step_all, tensor  # noqa: E402
from fake_gpu import plugin  # noqa: E402
from harness import case, cases_of, main  # noqa: E402
from moments import (LAYOUT, NEEDS, STEPS, TRAIN, all_aborted, all_step, as_undisturbed, can_vote, go_to, lies_on,  # noqa: E402
                     lose, start_step, train, victims)
from noise import noise  # noqa: E402

WIRE = {"reduce": "bf16", "accumulate": "wire"}
NEEDS.update(WIRE)  # of all jobs of moments.py


# ---- the arithmetic --------------------------------------------------------------------------

def fp32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def rounded(x, dtype):
    """To nearest, ties to even."""
    if dtype == "fp16":
        return struct.unpack("e", struct.pack("e", x))[0]
    bits, = struct.unpack("I", struct.pack("f", x))
    return struct.unpack("f", struct.pack("I", bits + 0x7fff + (bits >> 16 & 1) & 0xffff0000))[0]


def added(parts):
    total = parts[0]
    for x in parts[1:]:
        total = fp32(total + x)
    return total


def documented(placement, micro_batches, dtype, n, step):
    """Ranks of a node are added and rounded, then the nodes to what the sum has, and rounded once a micro-batch."""
    sums = []
    for m in range(micro_batches):
        pushed = [noise(5, step, r, m, 0, 0, n, 1.0) for r in range(len(placement))]
        for i in range(n):
            nodes = [rounded(added([g[i] for g, at in zip(pushed, placement) if at == node]), dtype)
                     for node in sorted(set(placement))]
            before = sums[i:i + 1] if m else []
            sums[i:i + 1] = [rounded(added(before + nodes), dtype)]
    return sums


ARITHMETIC = [("bf16", [0, 0], 1), ("bf16", [0, 1, 1, 2], 1), ("bf16", [0, 1], 5), ("fp16", [0, 1], 3)]


@cases_of(ARITHMETIC, "{0[0]}_ranks_on_{0[1]}_micro_batches_{0[2]}")
def sum_is_as_documented(what):
    """A step of SGD shows the sum, and the norms are those of the rounded values."""
    dtype, placement, micro_batches = what
    n, world = 5000, len(placement)  # more than an owner rounds at once
    layout = [group("g", tensor("w", n), optimizer="sgd")]
    with Cluster(max(placement) + 1) as c:
        ranks = c.ranks("job", layout, placement, hold=1, push=1, reduce=dtype, accumulate="wire")
        for step in range(2):  # the second one replaces what the first has left
            ranks[0].do("put", tensor=0, plane="master", values=[0.0] * n)
            for m in range(micro_batches):
                for a in ranks:
                    a.do("grad", group=0, seed=5, step=step, micro_batch=m)
                    a.do("push", group=0, last=m + 1 == micro_batches)
            own = ranks[0].do("norms", plane="grad", first=0, count=1)["norms"][0]
            told = step_all(ranks, sets=[["sgd", 1.0, 0, 0, 0]])[0]["grad_norm"]
            expected = [x / world for x in documented(placement, micro_batches, dtype, n, step)]
            got = ranks[0].do("get", tensor=0, plane="master", count=n)["values"]
            assert got == [-x for x in expected], [(i, a, b) for i, (a, b) in enumerate(zip(got, expected)) if a != -b][:5]
            norm = math.sqrt(math.fsum(x * x for x in expected))
            assert abs(told - norm) < 1e-12 * norm and abs(own - norm) < 1e-12 * norm, (told, own, norm)


# ---- ranks that wait for each other ------------------------------------------------------------

GROUPS, SHOWN = 24, 120  # groups; elements of a tensor to compare
FIRST = [0, (300 * 300 + 127) // 128 * 128]  # of a group's tensors
PUSHES = {  # of a rank, a pair for each micro-batch and group, in its order
    "reversed": lambda rank: [(0, g) for g in range(GROUPS)][::1 - 2 * rank],
    "halves": lambda rank: [(0, g) for g in range(rank, GROUPS, 2)],
    # n2 has nothing for group 5, and says so with its step; n0 goes on there as the last thing
    "several": lambda rank: ([(0, g) for g in range(GROUPS)] + [(1, g) for g in [*range(0, GROUPS, 2), 5]],
                             [(0, g) for g in reversed(range(GROUPS))] + [(1, g) for g in range(GROUPS - 2, 0, -4)],
                             [(0, g) for g in (i * 7 % GROUPS for i in range(GROUPS)) if g != 5] +
                             [(1, g) for g in range(0, GROUPS, 3)], [])[rank],
}
WAITS = [("reversed", [0, 1]), ("halves", [0, 1]), ("several", [0, 1, 2, 2])]


def pushed(ranks, pushes, step):
    """All ranks push at once, and only rank 0 has the second tensor.  Replies are collected after the step."""
    for rank, a in enumerate(ranks):
        for i, (m, g) in enumerate(pushes[rank]):
            a.start("grad", group=g, seed=5, step=step, micro_batch=m)
            a.start("push", group=g, present=[1, int(rank == 0)], last=all(later != g for _, later in pushes[rank][i + 1:]))
        a.start("step", sets=[["sgd", 1.0, 0, 0, 0]])
    for rank, a in enumerate(ranks):
        for _ in range(2 * len(pushes[rank]) + 1):
            finish_all([a])


def sum_of(t, pushes, step):
    """Each rank that pushes is alone on its node."""
    g, second = divmod(t, 2)
    total = []
    for m in range(2):
        nodes = [[rounded(x, "bf16") for x in noise(5, step, rank, m, g, FIRST[second], SHOWN, 1.0)]
                 for rank, p in enumerate(pushes) if (m, g) in p and (rank == 0 or not second)]
        if nodes:
            total = [rounded(added(parts), "bf16") for parts in zip(*([total] if total else []), *nodes)]
    return total or [0.0] * SHOWN


@cases_of([(w, owners) for w in WAITS for owners in (1, 2)], "{0[0][0]}_{0[1]}")
def ranks_that_wait_for_each_other(what):
    """Each needs its only slot before another can offer what the first waits for.  The bits are the same."""
    (way, placement), owners = what
    pushes = [PUSHES[way](rank) for rank in range(len(placement))]
    layout = [group(f"g{i}", tensor(f"w{i}", 300, 300), tensor(f"v{i}", 130), optimizer="sgd") for i in range(GROUPS)]
    with Cluster(max(placement) + 1, owners=owners) as c:
        ranks = c.ranks("job", layout, placement, timeout_ms=20000 * WAIT, hold=1, push=1, grad="bf16", **WIRE)
        for t in range(2 * GROUPS):
            ranks[0].do("put", tensor=t, plane="master", values=[0.0] * SHOWN)
        for step in range(2):  # the second one knows of the first
            pushed(ranks, pushes, step)
        for t in range(2 * GROUPS):
            before, then = (sum_of(t, pushes, step) for step in range(2))
            expected = [fp32(-a / len(placement) - b / len(placement)) for a, b in zip(before, then)]
            got = ranks[0].do("get", tensor=t, plane="master", count=SHOWN)["values"]
            assert got == expected, (t, [(i, a, b) for i, (a, b) in enumerate(zip(got, expected)) if a != b][:5])


@case
def a_sum_beside_does_not_outlast_its_attempt():
    """A daemon dies while the owner has a part of a micro-batch beside; the next attempt has other gradients."""
    layout = [group(f"g{i}", tensor(f"w{i}", 300, 300), tensor(f"v{i}", 130), optimizer="sgd") for i in range(GROUPS)]
    with Cluster(2, owners=1) as c:
        ranks = c.ranks("job", layout, [0, 1], timeout_ms=20000 * WAIT, hold=1, push=1, grad="bf16", **WIRE)
        for t in range(2 * GROUPS):
            ranks[0].do("put", tensor=t, plane="master", values=[0.0] * SHOWN)
        for g in range(2):  # the second one has its slot when the first is beside, for rank 1 has pushed nothing
            ranks[0].do("grad", group=g, seed=5, step=7)
            ranks[0].do("push", group=g)
        ranks[0].do("grad", group=2, seed=5, step=7)
        c[1].restart()
        ranks[1].start("fetch", group=0)  # which attaches it again
        if ranks[0].ask("push", group=2)["status"] != "EABORTED":
            expect(ranks[0].ask("norm"), "EABORTED")
        finish_all(ranks[1:])
        ranks[1].do("release", group=0)
        assert {a.do("version")["version"] for a in ranks} == {0}
        pushes = [[(0, g) for g in range(GROUPS)]] * 2
        pushed(ranks, pushes, 0)
        for t in range(2 * GROUPS):
            expected = [fp32(-x / 2) for x in sum_of(t, pushes, 0)]
            assert ranks[0].do("get", tensor=t, plane="master", count=SHOWN)["values"] == expected, t


# ---- the same bits ---------------------------------------------------------------------------

BITS = small_layout("bf16", blocks=2, width=200)
WAYS = {"one": {"owners": 1}, "three": {"owners": 3}, "scalar": {"owners": 3, "device": "host:scalar"},
        "mirror": {"mirror": 1}, "devices": {"owners": "n0*2 n1*3"}, "tight": {"reduce_buffers": 1}, "late": {"delay_ms": 5},
        "tcp": {"bulk": "tcp"}, "chunk": {"chunk": 4096}, "threads": {"threads": 3}}
known = {}


def outcome(dtype, micro_batches=2, accumulate="wire", placement=(0, 0, 1, 2), eager=False, clip=0.5, **options):
    layout = [{**g, "eager": eager} for g in BITS]
    with Cluster(3, **options) as c:
        ranks = c.ranks("job", layout, list(placement), hold=2, push=2, grad=dtype, reduce=dtype, accumulate=accumulate)
        for a in ranks:
            a.start("train", steps=6, ahead=eager, **{**TRAIN, "micro_batches": micro_batches, "clip": clip})
        assert len({r["hash"] for r in finish_all(ranks)}) == 1
        return c.checksum("job")["planes"]


@cases_of([(d, w) for d in ("bf16", "fp16") for w in WAYS], "{0[0]}_{0[1]}")
def same_bits(what):
    dtype, way = what
    if dtype not in known:
        known[dtype] = outcome(dtype)
    assert outcome(dtype, **WAYS[way]) == known[dtype]


@case
def eager_groups_have_the_same_bits():
    assert outcome("bf16", eager=True, clip=0) == outcome("bf16", clip=0)


@case
def one_contribution_has_the_bits_of_fp32():
    """It is in the wire's dtype already.  A second one shows that the comparison can fail."""
    same = [outcome("bf16", 1, way, (1, 1)) for way in ("wire", "fp32")]
    other = [outcome("bf16", 2, way, (1, 1)) for way in ("wire", "fp32")]
    assert same[0] == same[1] and other[0] != other[1]


# ---- deaths and moves --------------------------------------------------------------------------

def go_on(ranks, version):
    """To the last step, after a step whose ranks kept less than train() does."""
    for a in ranks:
        a.start("train", steps=STEPS - version, patient=True, **{**TRAIN, "keep": False})
    finish_all(ranks)


@cases_of([(m, w) for m in ("first", "second", "pushed", "voting", "updating") for w in ("coordinator", "other", "both")],
          "{0[0]}_{0[1]}")
def daemon_killed(what):
    """Amid pushes, between vote and decision, and amid the update, which goes on from the sums in the file."""
    moment, who = what
    with Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        go_to(ranks, "pushed" if moment in ("voting", "updating") else moment, 2)
        if moment == "voting":
            start_step(ranks[0], 0, 3)
        if moment == "updating":
            all_step(ranks, 3)
        for d in victims(c, who):
            d.kill()
        for d in victims(c, who):
            d.start()
        if moment != "updating":
            all_aborted(ranks, 2)
        go_on(ranks, 2 + (moment == "updating"))
        as_undisturbed(c, [0, 1])


@cases_of(("coordinator", "other"))
def node_lost(who):
    """A mirror has its owner's sum and votes with it, and fills an empty node."""
    with Cluster(2, mirror=1) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        go_to(ranks, "pushed", 2)
        for d in victims(c, who):
            lose(d)
        all_aborted(ranks, 2)
        train(ranks, STEPS - 2, patient=True)
        as_undisturbed(c, [0, 1])


@case
def moved():
    with Cluster(3, owners=2) as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        train(ranks, 2)
        go_to(ranks, "pushed", 2)
        c[0].ctl("--no-wait", "add-node", "n2")
        all_step(ranks, 3)
        go_on(ranks, 3)
        lies_on(c, ["n0", "n2", "n1"])
        as_undisturbed(c, [0, 1])
        takes_sixteen_bytes(c, LAYOUT)


# ---- memory ------------------------------------------------------------------------------------

def elements(layout):
    return sum((math.prod(t["shape"]) + 127) // 128 * 128 for g in layout for t in g["tensors"] if not t.get("frozen"))


def takes_sixteen_bytes(c, layout):
    """Of trained parameters, which are served in fp32 or 16 bits: 12 of the optimizer, and 2 of gradients."""
    jobs = [d.job("job") for d in c.daemons]
    planes = {p: sum(j["planes"].get(p, 0) for j in jobs) for p in ("exp_avg", "exp_avg_sq", "grad")}
    assert planes == {"exp_avg": 4 * elements(layout), "exp_avg_sq": 4 * elements(layout), "grad": 2 * elements(layout)}, planes
    shards = [s for g in c[0].ctl("shards", "job")["jobs"][0]["groups"] for s in g["shards"]]
    assert sum(s["bytes"]["grad"] for s in shards) == planes["grad"]
    assert {j["accumulate"] for j in jobs} == {"wire"}


@cases_of((1, 3))
def memory_of_an_owner(owners):
    """The formula of ZeRO, section 5: 16 bytes a parameter."""
    layout = [group(f"g{i}", tensor(f"t{i}", 16 * 4096), dtype="bf16") for i in range(12)]
    with Cluster(3, owners=owners) as c:
        c.ranks("job", layout, [0], hold=1, push=1, grad="bf16", **WIRE)
        takes_sixteen_bytes(c, layout)
        planes = [sum(d.job("job")["planes"].values()) for d in c.daemons]
        assert max(planes) == 16 * elements(layout) / owners, planes
        used = max(d.status()["memory"]["state_used"] for d in c.daemons)
        assert used < 1.01 * max(planes) + (5 << 18), (used, planes)


# ---- who disagrees -----------------------------------------------------------------------------

def attach_refused(c, rank, status, *words, **more):
    a = c.actor(0)
    a.do("connect", job="job", rank=rank, world=2, timeout_ms=2000 * WAIT)
    a.do("layout", groups=LAYOUT)
    a.refused(status, "attach", *words, **{**NEEDS, **more})
    a.end()


@case
def ranks_that_differ_are_refused():
    with Cluster(2) as c:
        first, = (c.caller("job", LAYOUT, [0, 1], rank) for rank in range(1))
        finish_all([first]), finish_all([first])
        first.start("attach", **NEEDS)
        attach_refused(c, 1, "ECONFLICT", "rank 1 has accumulate fp32", "others have wire", accumulate="fp32")
        second = c.caller("job", LAYOUT, [0, 1], 1)
        finish_all([second]), finish_all([second])
        second.do("attach", **NEEDS)
        finish_all([first])
        train([first, second], 2)


@case
def in_fp32_both_are_one():
    with Cluster(1) as c:
        ranks = c.ranks("job", LAYOUT, [0, 0], hold=2, push=2, accumulate="wire")
        assert c[0].job("job")["accumulate"] == "fp32"
        train(ranks, 1)


@cases_of((("wire", "fp32"), ("fp32", "wire")), "{0[0]}_to_{0[1]}")
def a_checkpoint_restores_into_either(what):
    before, after = what
    with Place() as d, Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **{**NEEDS, "accumulate": before})
        train(ranks, 2)
        place, saved = c[0].ctl("checkpoint", "job", d)["path"], c.checksum("job")["planes"]
        for a in ranks:
            c.dismiss(a)
        attach_refused(c, 0, "ECONFLICT", f"job 'job' has accumulate {before}, not {after}",
                       "a checkpoint restores into either", accumulate=after)
        c[0].ctl("drop", "job")
        c[1].ctl("restore", "job", place)
        assert c[0].job("job")["accumulate"] == before, "without a job, the checkpoint says it"
        c[0].ctl("drop", "job")
        for a in c.ranks("job", LAYOUT, [0, 1], **{**NEEDS, "accumulate": after}):
            c.dismiss(a)
        c[1].ctl("restore", "job", place)
        assert c.checksum("job")["planes"] == saved
        assert {d.job("job")["accumulate"] for d in c.daemons} == {after}
        train(c.ranks("job", LAYOUT, [0, 1], **{**NEEDS, "accumulate": after}), STEPS - 2)


@case
def owners_on_gpus_refuse():
    with Cluster(1, optimizer="device", cuda_plugin=plugin(), chunk=640) as c:
        a = c.actor(0)
        a.do("connect", job="job", rank=0, world=1, timeout_ms=20000 * WAIT)
        a.do("layout", groups=LAYOUT)
        a.refused("EGPU", "attach", "accumulate wire", "attach with accumulate fp32", **NEEDS)
        a.end()
        train(c.ranks("job", LAYOUT, [0], **{**NEEDS, "accumulate": "fp32"}), 2)


if __name__ == "__main__":
    main()
