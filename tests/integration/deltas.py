#!/usr/bin/env python3
"""Later versions come to other nodes by deltas: the same bits, within their memory, at nobody's cost."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SETS, Cluster, finish_all, group, tensor, until  # noqa: E402
from harness import case, cases_of, main  # noqa: E402
from reading import FINE, LAYOUT, NEEDS, TRAIN, Run, forwarded, reader, truth  # noqa: E402


@cases_of([("bf16", 2, False, "fp32"), ("fp16", 2, False, "fp32"), ("bf16", 3, False, "fp32"), ("bf16", 2, True, "fp32"),
           ("bf16", 3, False, "bf16+8")], "{0[0]}_on_{0[1]}_eager_{0[2]}_master_{0[3]}")
def later_versions_come_by_deltas(what):
    """The last node has neither ranks nor shards, so its readers bring everything themselves."""
    dtype, nodes, eager, master = what
    layout = [{**g, "dtype": dtype, "eager": eager and i > 0, "master": master} for i, g in enumerate(LAYOUT)]
    with Cluster(nodes, owners=nodes - 1, mirror=1 if nodes == 3 else 0, follow_by="deltas") as c:
        ranks = c.ranks("job", layout, list(range(nodes - 1)), **NEEDS)
        run = Run(c, ranks, [reader(c, n) for n in range(nodes)], 200, sets=FINE, ahead=eager, clip=0 if eager else 0.5)
        assert min(run.end()) > 3
        assert forwarded(c[nodes - 1]) > 0, c[nodes - 1].job("job")
        assert c[nodes - 1].job("job")["gather"]["delta_bytes_received"] > 0


def read_and_step(rank, a, versions, sets=FINE):
    """The reader takes each version, and the job's only rank makes the next."""
    for version in versions:
        a.do("unfollow", copy=a.do("follow", least=version)["copy"])
        rank.start("train", steps=1, **{**TRAIN, "sets": sets})
        rank.good(rank.finish())


class Away:
    """A reader on a node of its own, which it brings versions to, and a rank that makes them."""

    def __init__(self, c):
        self.c, self.journal = c, f"{c.directory}/journal"
        self.rank, = c.ranks("job", [{**g, "dtype": "bf16"} for g in LAYOUT], [0], **NEEDS)
        self.reader, self.seen = reader(c, 1), []
        self.read()

    def read(self):
        got = self.reader.do("follow", least=len(self.seen))
        self.reader.do("unfollow", copy=got["copy"])
        self.seen.append((got["version"], got["hash"]))

    def step(self):
        self.rank.start("train", steps=1, journal=self.journal, **{**TRAIN, "sets": FINE})
        self.rank.good(self.rank.finish())
        self.read()

    def end(self):
        self.step()
        known = truth(self.journal)
        assert [v for v, _ in self.seen] == list(range(len(self.seen)))
        wrong = [v for v, digest in self.seen[:-1] if known[v] != digest]
        assert not wrong, wrong


@case
def a_put_is_in_no_delta():
    """The copy of before must not get to a later version by what the update changes of the put's values."""
    with Cluster(2, owners=1, follow_by="deltas") as c:
        away = Away(c)
        for _ in range(6):
            away.step()
        before = forwarded(c[1])
        assert before > 0
        away.rank.do("put", tensor=0, plane="master", first=0, values=[1.0, 2.0])
        away.seen.clear()
        away.seen += [(v, None) for v in range(7)]
        away.step()
        assert forwarded(c[1]) == before, "a slice has gone forward across a put"
        for _ in range(6):
            away.step()
        assert forwarded(c[1]) > before
        away.seen = [(v, digest or truth(away.journal)[v]) for v, digest in away.seen]
        away.end()


@cases_of([0, 600, 1 << 30], "{}")
def deltas_take_no_more_memory_than_allowed(limit):
    with Cluster(2, owners=1, follow_by="deltas", follow_deltas=limit) as c:
        away = Away(c)
        for _ in range(8):
            away.step()
        for d in c.daemons:
            assert (d.job("job")["readers"] or {"delta_bytes": 0})["delta_bytes"] <= limit
        assert limit < 1 << 30 or forwarded(c[1]) > 0
        assert limit > 0 or forwarded(c[1]) == 0
        away.end()


@cases_of([1, 2], "{}")
def codings_of_many_pieces_end_before_updates(threads):
    """The trainer pauses for nothing, so the next update finds codings that are not over."""
    layout = [group("a", tensor("a.w", 640, 1024, init="constant", value=0.75), dtype="bf16"), group("b", tensor("b.w", 64, 64), dtype="bf16")]
    with Cluster(2, owners=1, threads=threads, follow_by="deltas") as c:
        ranks = c.ranks("job", layout, [0], **NEEDS)
        run = Run(c, ranks, [reader(c, 1), reader(c, 1)], 60, sets=FINE)
        assert min(run.end()) > 3
        late = reader(c, 1)  # once nobody trains, a delta is there
        read_and_step(ranks[0], late, range(60, 64))
        assert forwarded(c[1]) > 0


@case
def ranks_get_nothing_that_came_by_deltas():
    """Nor from a reader's copy in another form, which was copied from one that did."""
    with Cluster(2, owners=1, follow_by="deltas") as c:
        ranks = c.ranks("job", [{**g, "dtype": "bf16"} for g in LAYOUT], [0, 1], **NEEDS)
        whole, part = reader(c, 1), reader(c, 1)
        part.do("form", groups=[1], dtypes=[0])
        for version in range(4):
            whole.do("unfollow", copy=whole.do("follow", least=version)["copy"])
            for a in ranks:
                a.start("train", steps=1, **{**TRAIN, "sets": FINE})
            finish_all(ranks)
        before = c[1].job("job")["gather"]
        whole.do("follow", least=4), part.do("follow", least=4)
        then = c[1].job("job")["gather"]
        assert then["forwarded"] > before["forwarded"] and then["elements_received"] == before["elements_received"], (before, then)
        ranks[1].do("fetch", group=1)
        assert c[1].job("job")["gather"]["elements_received"] > then["elements_received"]


@case
def deltas_of_a_users_jobs_make_room_for_each_other():
    with Cluster(2, owners=1, follow_by="deltas", follow_deltas=700 << 10) as c:  # two jobs take 430 KiB, and their deltas more
        for job in ("old", "new"):
            rank, = c.ranks(job, [{**g, "dtype": "bf16"} for g in LAYOUT], [0], **NEEDS)
            a = reader(c, 1, job)
            read_and_step(rank, a, range(12), SETS)
            for d in c.daemons:
                kept = sum((j["readers"] or {"delta_bytes": 0})["delta_bytes"] for j in d.status()["jobs"])
                assert 0 < kept <= 700 << 10, kept
            assert c[1].job(job)["gather"]["forwarded"] > 0


@case
def a_job_that_finds_no_room_leaves_others_their_deltas():
    with Cluster(2, owners=1, follow_by="deltas", follow_deltas=300 << 10) as c:  # a job's slices take 215 KiB
        def kept(job):
            return (c[0].job(job)["readers"] or {"delta_bytes": 0})["delta_bytes"]
        layout = [{**g, "dtype": "bf16"} for g in LAYOUT]
        old, new = c.ranks("old", layout, [0], **NEEDS)[0], c.ranks("new", layout, [0], **NEEDS)[0]
        read_and_step(old, reader(c, 1, "old"), range(8))
        before = kept("old")
        assert before > 0
        read_and_step(new, reader(c, 1, "new"), range(8))
        assert kept("new") == 0 and kept("old") >= before


@case
def nobody_codes_once_nobody_follows():
    with Cluster(2, owners=1, follow_by="deltas") as c:
        away = Away(c)
        for _ in range(6):
            away.step()
        away.reader.kill()
        until(lambda: not (c[1].job("job")["readers"] or {"clients": 0})["clients"], what="the end of the reader")
        kept = []
        for _ in range(20):
            away.rank.start("train", steps=2, **{**TRAIN, "sets": FINE})
            away.rank.good(away.rank.finish())
            kept.append(c[0].job("job")["readers"]["delta_bytes"])
        assert kept[-1] == kept[-2] == kept[-3], kept


if __name__ == "__main__":
    main()
