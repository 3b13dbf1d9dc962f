#!/usr/bin/env python3
"""Jobs whose ranks bring different groups: the service puts the layout together."""
import itertools
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SETS, WAIT, Cluster, expect, finish_all, group, step_all, tensor, until  # noqa: E402
from harness import case, cases_of, main  # noqa: E402

TIED = group("tied", tensor("wte", 3000), divisor=2)
# of stage 0 and of stage 1, as 2 data-parallel ranks of each bring them
PARTS = [[TIED, group("a", tensor("wa", 5000))], [group("b", tensor("wb", 70000)), TIED]]
ORDER = ["tied", "a", "b"]
TENSORS = {"wte": 0, "wa": 1, "wb": 2}


def rank_of(c, rank, placement, job="job", world=None, parts=None, **options):
    """A client with its rank's part; ranks alternate between the stages."""
    actor = c.actor()
    actor.do("connect", socket=c[placement[rank]].socket, job=job, rank=rank, world=world or len(placement),
             local=placement.count(placement[rank]), **options)
    actor.do("layout", groups=(parts or PARTS)[rank % 2])
    return actor


def composed(actors, order=None):
    """Starts compose on each, in that order; what they are told."""
    for rank in order or range(len(actors)):
        actors[rank].start("compose", stage=rank % 2)
    return [a.good(a.finish(), "compose") for a in actors]


def bring(c, rank, actor, job="job"):
    """Starts compose and waits until the coordinator has the part."""
    d = c.coordinator(job)
    said = f"rank {rank} has brought its part"
    before = d.log().count(said)
    actor.start("compose", stage=rank % 2)
    until(lambda: d.log().count(said) > before, what="the part")


def attach_all(actors):
    for a in actors:
        a.start("attach", hold=-1, push=2)
    finish_all(actors)


def train(actors, steps=1):
    """Each rank fetches and pushes the groups of its stage."""
    for _ in range(steps):
        for rank, a in enumerate(actors):
            for g in ([0, 1], [2, 0])[rank % 2]:
                a.do("fetch", group=g)
                a.do("grad", group=g)
                a.do("push", group=g)
        step_all(actors, sets=SETS)


@cases_of([[0, 0], [0, 0, 1, 1], [0, 1, 1, 0]])
def the_layout_does_not_depend_on_who_comes_first(placement):
    with Cluster(max(placement) + 1) as c:
        for n, order in enumerate(itertools.islice(itertools.permutations(range(len(placement))), 0, None, 5)):
            actors = [rank_of(c, r, placement, f"job{n}") for r in range(len(placement))]
            assert [told["groups"] for told in composed(actors, order)] == [ORDER] * len(placement)
            attach_all(actors)
            train(actors)
            for a in actors:
                a.end()
            c[0].ctl("drop", f"job{n}")


@case
def only_ranks_of_a_group_push_it():
    with Cluster(1) as c:
        actors = [rank_of(c, r, [0, 0]) for r in range(2)]
        composed(actors)
        attach_all(actors)
        actors[0].refused("ERANK", "grad", "'b'", group=2)
        actors[1].refused("ERANK", "grad", "'a'", group=1)
        train(actors, 2)


@case
def a_deadline_names_the_rank_that_is_missing():
    with Cluster(2) as c:
        placement = [0, 1, 0]
        actors = [rank_of(c, r, placement, timeout_ms=3000 * WAIT) for r in (0, 1)]
        for rank, a in enumerate(actors):
            a.start("compose", stage=rank)
        for a in actors:
            expect(a.finish(), "EDEADLINE", "rank 2", "(2 of 3 ranks have)")
        # all parts were taken back: with rank 2 alone there is no whole
        late = rank_of(c, 2, placement, timeout_ms=2000 * WAIT)
        late.refused("EDEADLINE", "compose", "rank 0 and 1 others", "(1 of 3 ranks have)")


@case
def ranks_without_a_timeout_of_their_own_wait_longer_for_a_late_one():
    with Cluster(1, wait_ms=500, log_level="debug") as c:
        first, late = (rank_of(c, r, [0, 0]) for r in range(2))
        bring(c, 0, first)
        assert not first.ready(2 * WAIT)
        late.start("compose", stage=1)
        assert [a.good(a.finish(), "compose")["groups"] for a in (first, late)] == [ORDER] * 2


@case
def parts_that_differ_are_refused_on_all_ranks():
    with Cluster(2) as c:
        other = [PARTS[0], [PARTS[1][0], group("tied", tensor("wte", 3001), divisor=2)]]
        actors = [rank_of(c, r, [0, 1], parts=other) for r in range(2)]
        for rank, a in enumerate(actors):
            a.start("compose", stage=rank)
        for a in actors:
            expect(a.finish(), "ELAYOUT", "ranks 0 and 1", "'tied'", "[3000] here, [3001] there")
        actors[1].do("layout", groups=PARTS[1])  # they may come again
        composed(actors)
        attach_all(actors)


@case
def wrong_ranks():
    with Cluster(1, log_level="debug") as c:
        first = rank_of(c, 0, [0, 0, 0])
        bring(c, 0, first)
        rank_of(c, 1, [0, 0]).refused("ERANK", "compose", "world size of 2", "have 3", stage=1)
        twin = rank_of(c, 0, [0, 0, 0])
        twin.start("compose", stage=0)
        expect(first.finish(), "ERANK", "another process of rank 0")
        others = [rank_of(c, r, [0, 0, 0]) for r in (1, 2)]
        for rank, a in enumerate(others):
            a.start("compose", stage=rank + 1)
        for a in [twin, *others]:
            assert a.finish()["status"] == "OK"
        observer = c.actor()
        observer.do("connect", socket=c[0].socket, job="job", rank=-1)
        observer.do("layout", groups=PARTS[0])
        observer.refused("EINVAL", "compose", "a rank")
        listing = rank_of(c, 0, [0], "other")
        listing.do("layout", groups=[group("a", tensor("wa", 5), ranks=[0])])
        listing.refused("EINVAL", "compose", "'a'", "lists ranks")


@cases_of([[0, 0], [0, 1]])
def a_part_of_a_process_that_ended_does_not_count(placement):
    with Cluster(max(placement) + 1, log_level="debug") as c:
        dead = rank_of(c, 1, placement)
        bring(c, 1, dead)
        dead.kill()
        alive = rank_of(c, 0, placement, timeout_ms=2000 * WAIT)
        alive.refused("EDEADLINE", "compose", "rank 1", stage=0)
        actors = [rank_of(c, r, placement) for r in range(2)]
        composed(actors)
        attach_all(actors)


@cases_of([[0, 0], [0, 1]])
def a_rank_that_returns_brings_the_same_part(placement):
    """Its successor is answered by the job, and every other part is refused."""
    with Cluster(max(placement) + 1) as c:
        actors = [rank_of(c, r, placement) for r in range(2)]
        composed(actors)
        attach_all(actors)
        train(actors, 2)
        actors[1].kill()
        wrong = rank_of(c, 1, placement, parts=[PARTS[0], PARTS[0]], incarnation=1)
        wrong.refused("ELAYOUT", "compose", "the part of rank 1", "'a'", stage=1)
        back = rank_of(c, 1, placement, incarnation=1)
        assert back.do("compose", stage=1)["groups"] == ORDER
        back.do("attach", hold=-1, push=2)
        train([actors[0], back])
        assert c[0].job("job")["version"] == 3


@case
def a_job_outlives_all_its_ranks_and_daemons():
    with Cluster(2) as c:
        placement = [0, 1, 1, 0]
        actors = [rank_of(c, r, placement) for r in range(4)]
        composed(actors)
        attach_all(actors)
        train(actors, 2)
        before = actors[0].do("get", tensor=TENSORS["wb"], plane="master", count=50)["values"]
        for a in actors:
            a.kill()
        for n in range(2):
            c[n].restart()
        c.wait_up()
        actors = [rank_of(c, r, placement) for r in range(4)]
        composed(actors, [3, 1, 0, 2])
        attach_all(actors)
        assert actors[1].do("get", tensor=TENSORS["wb"], plane="master", count=50)["values"] == before
        train(actors)
        assert c[0].job("job")["version"] == 3


@cases_of([0, 1], "daemon_{}")
def a_daemon_that_dies_meanwhile(node):
    """Parts go to the coordinator again when it is back; clients whose daemon died connect again."""
    with Cluster(2, log_level="debug") as c:
        placement = [0, 1, 0]
        actors = [rank_of(c, r, placement) for r in range(3)]
        for rank in (0, 1):
            bring(c, rank, actors[rank])
        c[node].restart()
        actors[2].start("compose", stage=0)
        assert [a.good(a.finish(), "compose")["groups"] for a in actors] == [ORDER] * 3
        attach_all(actors)


if __name__ == "__main__":
    main()
