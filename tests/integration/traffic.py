#!/usr/bin/env python3
"""Elements that travel between nodes at stage 3: 3 psi (N - 1) / N per step and node, less the groups that the window
still has, however many trainers a node has.

All groups have one size and divide evenly, so that the counters must match the formula."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import MUON_SETS, SETS, Cluster, finish_all, group, step_all, tensor, until  # noqa: E402
from harness import case, cases_of, main  # noqa: E402

GROUPS, ELEMENTS, STEPS = 6, 3 * 4 * 128 * 64, 3
PSI = GROUPS * ELEMENTS


def layout(dtype="fp32", muon=False):
    of = {"optimizer": "muon", "set": len(SETS)} if muon else {}
    return [group(f"g{i}", tensor(f"t{i}", 12, 128, ELEMENTS // 12 // 128, **of), dtype=dtype) for i in range(GROUPS)]


def all_do(actors, do, **fields):
    for a in actors:
        a.start(do, **fields)
    finish_all(actors)


def lockstep(actors):
    """A step of stage 3 in which all trainers work on the same group at the same time."""
    for g in [*range(GROUPS), *reversed(range(GROUPS))]:
        all_do(actors, "fetch", group=g)
        all_do(actors, "release", group=g)
    for g in reversed(range(GROUPS)):
        all_do(actors, "grad", group=g)
        all_do(actors, "push", group=g)
    step_all(actors, sets=[*SETS, *MUON_SETS])


def counters(daemon, size):
    """Elements by kind, as the links and the job count them."""
    s, job = daemon.status(), daemon.job("traffic")
    total = {f"{way}_{kind}": sum(p[way][kind] for p in s["peers"] if not p["self"]) / size
             for way in ("sent", "received") for kind in ("gather", "reduce")}
    return {**total, "job_gather": job["gather"]["elements_received"], "job_reduce": job["reduce"]["elements_sent"],
            "hits": job["gather"]["hits"], "misses": job["gather"]["misses"],
            "gathers": job["gather"]["gathers"]}


def measure(nodes, per_node, size=4, dtype="fp32", free=False, slabs=4, muon=False, **options):
    """For each node: the counters' growth per step, over STEPS steps after the first."""
    placement = [i for i in range(nodes) for _ in range(per_node)]
    with Cluster(nodes, window=slabs * ELEMENTS * size, **options) as c:
        ranks = c.ranks("traffic", layout(dtype, muon), placement, hold=1, push=GROUPS, grad=dtype,
                        reduce="bf16" if dtype == "bf16" else "fp32")
        lockstep(ranks)
        before = [counters(d, size) for d in c.daemons]
        if free:
            all_do(ranks, "train", steps=STEPS, sets=SETS)
        else:
            for _ in range(STEPS):
                lockstep(ranks)
        after = [counters(d, size) for d in c.daemons]
        return [{k: (b[k] - a[k]) / STEPS for k in a} for a, b in zip(before, after)]


def near(a, b):
    return abs(a - b) <= 0.02 * b


def check(nodes, seen):
    """Compares the counters with the formula; each gather that the window saves is the remote part of a group."""
    for n in seen:
        remote = (nodes - 1) / nodes
        saved = (2 * GROUPS - n["gathers"]) * ELEMENTS * remote
        expected = 3 * PSI * remote - saved
        for way in ("received", "sent"):
            moved = n[f"{way}_gather"] + n[f"{way}_reduce"]
            assert near(moved, expected), f"{way}: {moved} elements, the formula says {expected}: {n}"
        assert near(n["job_gather"] + n["job_reduce"], expected), n
        assert n["job_gather"] == n["gathers"] * ELEMENTS * remote, n


@cases_of([2, 3, 4])
def formula_nodes(nodes):
    seen = measure(nodes, 1)
    check(nodes, seen)
    for n in seen:  # one trainer that does not prefetch: each fetch is a gather or a hit
        assert n["hits"] + n["gathers"] == 2 * GROUPS and n["misses"] == n["gathers"], n
        assert n["hits"] == 4, f"the window still has the last four groups in the backward pass: {n}"


@case
def a_prefetched_group_is_a_hit():
    """A prefetch counts as neither hit nor miss; the fetch after it is a hit, the fetch of another group a miss."""
    with Cluster(2, window=4 * ELEMENTS * 4) as c:
        a, = c.ranks("traffic", layout("fp32"), [0], hold=2, push=GROUPS)

        def counts():
            return [c[0].job("traffic")["gather"][k] for k in ("hits", "misses", "gathers", "elements_received")]
        a.do("prefetch", group=0)
        until(lambda: counts()[2] == 1, what="the prefetched group")
        a.do("fetch", group=0)
        assert counts() == [1, 0, 1, ELEMENTS / 2], counts()
        a.do("fetch", group=1)
        assert counts() == [1, 1, 2, ELEMENTS], counts()


@cases_of([2, 3])
def trainers_of_a_node_share_gathers(nodes):
    one, four = measure(nodes, 1), measure(nodes, 4)
    check(nodes, four)
    for a, b in zip(one, four):
        for kind in ("received_gather", "received_reduce", "sent_gather", "sent_reduce", "gathers"):
            assert near(a[kind], b[kind]), f"{kind}: {a[kind]} with one trainer, {b[kind]} with four"


@case
def trainers_out_of_step():
    """Trainers drift apart and prefetch: each gather moves a group's remote part, and each group is gathered at least
    once a step; exactly once if the window has room for the whole model."""
    for slabs in (4, GROUPS):
        for n in measure(2, 2, free=True, slabs=slabs):
            assert n["job_gather"] == n["gathers"] * ELEMENTS / 2, n
            assert near(n["received_gather"], n["job_gather"]), n
            assert near(n["sent_reduce"], PSI / 2), n
            assert n["gathers"] == GROUPS if slabs == GROUPS else n["gathers"] >= GROUPS, n


@case
def sixteen_bits():
    check(2, measure(2, 2, size=2, dtype="bf16"))


@cases_of([2, 3])
def matrices_of_one_owner_each_move_no_more(nodes):
    check(nodes, measure(nodes, 1, muon=True))


@case
def tcp_moves_the_same():
    check(2, measure(2, 1, bulk="tcp"))


@case
def one_node_moves_nothing():
    n, = measure(1, 2)
    assert n["sent_gather"] == n["received_gather"] == n["sent_reduce"] == n["received_reduce"] == 0, n


@case
def one_owner_of_two_nodes():
    """The node without shards gathers everything; a node without ranks contributes nothing."""
    with Cluster(2, owners=1) as c:
        ranks = c.ranks("traffic", layout(), [0], hold=1, push=GROUPS)
        lockstep(ranks)
        assert counters(c[0], 4)["received_reduce"] == 0
        assert counters(c[0], 4)["received_gather"] == 0


if __name__ == "__main__":
    main()
