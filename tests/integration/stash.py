#!/usr/bin/env python3
"""Activation checkpoints: sets of ranks that keep the same bytes once, on one node and on several."""
import os
import sys
from random import Random
from time import sleep

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SETS, SLOW, Cluster, expect, finish_all, small_layout, step_all, until  # noqa: E402
from harness import case, cases_of, main  # noqa: E402
from relay import Wires  # noqa: E402
from stashes import MIB, read, stashing, used, write  # noqa: E402
import wire  # noqa: E402


@cases_of([[0], [0, 0], [0, 0, 0], [0, 1], [0, 0, 1, 1], [0, 1, 0, 2]])
def every_rank_reads_what_all_wrote(placement):
    """Entries of odd sizes, read forward and backward, once or twice, by a set on one node or several."""
    sizes = [1, 63, 4096, 100_001, MIB + 17, 3 * MIB]
    nodes = max(placement) + 1
    with Cluster(nodes) as c:
        ranks = stashing(c, placement, [list(range(len(placement)))], bytes=6 * MIB, entry_bytes=4 * MIB)
        for step in range(3):
            for key, size in enumerate(sizes):
                write(ranks, key, size, seed=step + key)
            read(ranks, 2, sizes[2], seed=step + 2, last=False)
            for key, size in reversed(list(enumerate(sizes))):
                read(ranks, key, size, seed=step + key)
            until(lambda: used(c, nodes) == [0] * nodes, what="the stash to be empty")
            step_all(ranks, sets=SETS)
        received = [c[n].job("job")["stash"]["received"] for n in range(nodes)]
        assert (sum(received) == 0) == (nodes == 1), received


@case
def sets_do_not_mix():
    """Two sets, each on both nodes, use the same keys for different bytes."""
    with Cluster(2) as c:
        ranks = stashing(c, [0, 0, 1, 1], [[0, 2], [1, 3]], bytes=4 * MIB, entry_bytes=MIB)
        for key in range(3):
            write([ranks[0], ranks[2]], key, 70_000 + key, seed=1)
            write([ranks[1], ranks[3]], key, 90_000 + key, seed=2)
        for key in (2, 0, 1):
            read([ranks[1], ranks[3]], key, 90_000 + key, seed=2)
            read([ranks[0], ranks[2]], key, 70_000 + key, seed=1)


@cases_of([[0, 0], [0, 1]])
def a_block_finds_room_between_others(placement):
    """With every second entry gone, an entry of all the bytes that are free still fits, and reads back whole."""
    size = 128 << 10
    with Cluster(max(placement) + 1) as c:
        ranks = stashing(c, placement, [[0, 1]], bytes=16 * size, entry_bytes=8 * size)
        for key in range(16):
            write(ranks, key, size, seed=key)
        for key in range(0, 16, 2):
            read(ranks, key, size, seed=key)
        write(ranks, 100, 8 * size, seed=100)
        read(ranks, 100, 8 * size, seed=100, last=False)
        for key in range(1, 16, 2):
            read(ranks, key, size, seed=key)
        read(ranks, 100, 8 * size, seed=100)


# ---- what comes ahead ------------------------------------------------------------------

LARGEST = 80 << 10


def size_of(key):
    """So many that two entries are more than LARGEST, and that the sum of some says which ones these are."""
    return (64 << 10) + (128 << key)


def received(c):
    return c[0].job("job")["stash"]["received"]


def has_come(c, before, keys):
    """Node 0 has got these entries of two ranks on two nodes since then, asked for or not, and no others."""
    due = before + sum(size_of(k) // 2 for k in keys)
    until(lambda: received(c) >= due, what=f"entries {keys}")
    assert received(c) == due, (received(c) - before, due - before, keys)


def write_keys(ranks, n):
    for key in range(n):
        write(ranks, key, size_of(key), seed=key)


ORDERS = {"as_written": [0, 1, 2, 3, 4, 5], "layer_by_layer": [3, 4, 5, 0, 1, 2], "micro_batches": [2, 1, 0, 5, 4, 3]}


@cases_of(ORDERS)
def entries_come_ahead_in_the_order_of_the_last_step(name):
    """Whatever that is: with the entry that is read comes the one that is read next, the first one with the writes."""
    order = ORDERS[name]
    with Cluster(2) as c:
        ranks = stashing(c, [0, 1], [[0, 1]], bytes=6 * LARGEST, entry_bytes=LARGEST)
        for step in range(3):
            before = received(c)
            write_keys(ranks, 6)
            for i, key in enumerate(order):
                if step:
                    has_come(c, before, order[:i + 1])
                read(ranks, key, size_of(key), seed=key)
            step_all(ranks, sets=SETS)


@case
def entries_come_ahead_while_others_are_written():
    """A pipeline's 1F1B: what is read next comes as soon as it is written."""
    with Cluster(2) as c:
        ranks = stashing(c, [0, 1], [[0, 1]], bytes=6 * LARGEST, entry_bytes=LARGEST)
        for step in range(2):
            before = received(c)
            write(ranks, 0, size_of(0), seed=step)
            for key in range(6):
                if key < 5:
                    write(ranks, key + 1, size_of(key + 1), seed=step)
                if step:
                    has_come(c, before, range(key + 1))
                read(ranks, key, size_of(key), seed=step)
            step_all(ranks, sets=SETS)


@case
def an_order_that_differs_is_known_no_more():
    """From there on entries come in the reverse order of writing, as in the first step."""
    with Cluster(2) as c:
        ranks = stashing(c, [0, 1], [[0, 1]], bytes=6 * LARGEST, entry_bytes=LARGEST)
        for ahead, order in (([], [5, 4, 0, 3, 1, 2]), ([5], [5, 4, 3, 2, 1, 0])):
            before = received(c)
            write_keys(ranks, 6)
            has_come(c, before, ahead)
            for key, come in zip(order, ([5, 4], [5, 4, 0 if ahead else 3], [5, 4, 0, 3])):
                read(ranks, key, size_of(key), seed=key)
                has_come(c, before, come)
            for key in order[3:]:
                read(ranks, key, size_of(key), seed=key)
            has_come(c, before, range(6))
            step_all(ranks, sets=SETS)


@case
def as_many_come_ahead_as_the_largest_entry_has_room_for():
    with Cluster(2) as c:
        ranks = stashing(c, [0, 1], [[0, 1]], bytes=8 * LARGEST, entry_bytes=288 << 10)
        for ahead in ([], [7, 6, 5, 4]):
            before = received(c)
            write_keys(ranks, 8)
            has_come(c, before, ahead)
            read(ranks, 7, size_of(7), seed=7)
            has_come(c, before, [7, 6, 5, 4, 3])
            for key in reversed(range(7)):
                read(ranks, key, size_of(key), seed=key)
            has_come(c, before, range(8))
            step_all(ranks, sets=SETS)


@case
def what_was_read_makes_room_for_writes():
    """Entries that are read again stay put together only while nothing else needs the memory."""
    size = 64 << 10
    with Cluster(2) as c:
        ranks = stashing(c, [0, 1], [[0, 1]], bytes=8 * size, entry_bytes=size)
        for key in range(4):
            write(ranks, key, size, seed=key)
        for key in range(4):
            read(ranks, key, size, seed=key, last=False)
        for key in range(4, 8):
            write(ranks, key, size, seed=key)
        for key in range(8):
            read(ranks, key, size, seed=key)


@cases_of([[0, 0, 0], [0, 1, 2], [0, 0, 1, 2]])
def random_steps(placement):
    """Each rank goes at its own pace through entries of random sizes; memory for what is put together is scarce."""
    random = Random(len(placement))
    nodes = max(placement) + 1
    with Cluster(nodes, delay_ms=3) as c:
        ranks = stashing(c, placement, [list(range(len(placement)))], bytes=6 * MIB, entry_bytes=MIB)
        for step in range(4):
            sizes = [random.choice([1, 5000, random.randrange(1, MIB)]) for _ in range(10)]
            plans = []
            for a in ranks:
                order = list(reversed(range(len(sizes))))
                if step % 2:
                    random.shuffle(order)
                plans.append([("stash_write", key, size) for key, size in enumerate(sizes)])
                for key in order:
                    plans[-1] += [("stash_read", key, sizes[key]), ("stash_release", key, None)]
            for a, plan in zip(ranks, plans):
                for do, key, size in plan:
                    a.start(do, key=key, last=True, seed=step + key, **({"bytes": size} if do == "stash_write" else {}))
            for a, plan in zip(ranks, plans):
                for do, key, size in plan:
                    told = a.good(a.finish(), f"{do} {key}")
                    if do == "stash_read":
                        assert told["bytes"] == size and told["differs"] == -1, (key, told)
            step_all(ranks, sets=SETS)
        assert used(c, nodes) == [0] * nodes


# ---- what does not fit -----------------------------------------------------------------

@case
def order_is_checked():
    with Cluster() as c:
        a, b = stashing(c, [0, 0], [[0, 1]], bytes=MIB)
        a.refused("EORDER", "stash_read", "rank 0", "7", key=7)
        a.refused("ENOTHELD", "stash_release", "7", key=7)
        a.refused("EINVAL", "stash_write", "1 to 2^50 bytes", key=7, bytes=0)
        write([a, b], 7, 1000)
        a.refused("EORDER", "stash_write", "rank 0", "already", key=7, bytes=1000)
        a.do("stash_read", key=7)
        a.refused("EORDER", "stash_read", "not released", key=7)
        a.do("stash_release", key=7, last=True)
        a.refused("EORDER", "stash_read", "last time", key=7)
        read([b], 7, 1000)
        write([a, b], 7, 2000)
        read([a, b], 7, 2000)
        loner = c.ranks("other", small_layout(), [0], hold=1, push=1)[0]
        loner.refused("EORDER", "stash_write", "zero_needs.stash", key=1, bytes=10)


@case
def a_full_stash_says_what_the_step_needs():
    """Nothing is lost by the refusal, and a stash of the bytes that it names is large enough."""
    sizes = [300_000, 5000, 700_000]
    with Cluster() as c:
        a, = stashing(c, [0], [[0]], bytes=512 << 10)
        for key, size in enumerate(sizes[:2]):
            write([a], key, size, seed=key)
        text = a.ask("stash_write", key=2, bytes=sizes[2])["text"]
        assert "rank 0" in text and str(512 << 10) in text, text
        needed = int(text.split("needs ")[1].split(" ")[0])
        read([a], 0, sizes[0], seed=0)
        c.dismiss(a)
        b, = stashing(c, [0], [[0]], bytes=needed)
        for key, size in enumerate(sizes):
            write([b], key, size, seed=key)
        b.refused("EWINDOW", "stash_write", "no room", key=3, bytes=5000)


def ahead(c, placement, **settings):
    """Rank 0 has released all that fits into the stash, the others nothing, and rank 0 writes the next micro-batch."""
    size = 128 << 10
    ranks = stashing(c, placement, [list(range(len(placement)))], bytes=4 * size, entry_bytes=size, **settings)
    for key in range(4):
        write(ranks, key, size, seed=key)
    for key in (3, 2, 1, 0):
        ranks[0].do("stash_read", key=key, seed=key)
        ranks[0].do("stash_release", key=key, last=True)
    ranks[0].start("stash_write", key=4, bytes=size, seed=4)
    return size, ranks


@cases_of([[0, 0], [0, 1], [0, 0, 1, 1]])
def a_write_waits_for_ranks_that_are_behind(placement):
    """A stash for one micro-batch serves the next, and those behind find the memory that they read with."""
    with Cluster(max(placement) + 1) as c:
        size, ranks = ahead(c, placement)
        assert not ranks[0].ready(1)
        for key in (3, 2, 1, 0):
            read(ranks[1:], key, size, seed=key)
        ranks[0].good(ranks[0].finish())
        write(ranks[1:], 4, size, seed=4)
        read(ranks, 4, size, seed=4)


def writes_wait(c, n):
    until(lambda: len(c[0].ctl("trace", "job")["nodes"][0]["waits"]) == n, what=f"{n} writes to wait")


@case
def writes_that_wait_keep_their_order():
    """A small one does not take, again and again, what a large one before it waits for."""
    size = 128 << 10
    with Cluster() as c:
        ranks = stashing(c, [0, 0, 0], [[0, 1, 2]], bytes=4 * size, entry_bytes=2 * size)
        for key in range(4):
            write(ranks, key, size, seed=key)
        for a in ranks[:2]:
            for key in (3, 2, 1, 0):
                a.do("stash_read", key=key, seed=key)
                a.do("stash_release", key=key, last=True)
        ranks[0].start("stash_write", key=4, bytes=2 * size, seed=4)
        writes_wait(c, 1)
        ranks[1].start("stash_write", key=5, bytes=size, seed=5)
        writes_wait(c, 2)
        for key in (3, 2):
            read(ranks[2:], key, size, seed=key)
        ranks[0].good(ranks[0].finish())
        read(ranks[2:], 1, size, seed=1)
        ranks[1].good(ranks[1].finish())


@cases_of([[0, 0], [0, 1]])
def a_write_that_waits_names_who_is_behind(placement):
    with Cluster(max(placement) + 1) as c:
        _, ranks = ahead(c, placement, timeout_ms=1500 * SLOW)
        expect(ranks[0].finish(), "EDEADLINE", "ranks of other nodes" if placement[1] else "rank 1", "to release entry 0")


@cases_of([[0, 0], [0, 1]])
def ranks_of_a_set_agree(placement):
    """Other sizes, and in the first step other bytes, are refused with the names of two ranks."""
    with Cluster(max(placement) + 1) as c:
        a, b = stashing(c, placement, [[0, 1]], bytes=MIB)

        def disagree(key, *words, size=5000, seed=0, refused="ECONFLICT"):
            a.do("stash_write", key=key, bytes=5000, seed=0)
            told = b.ask("stash_write", key=key, bytes=size, seed=seed)
            if told["status"] == "OK":
                told = b.ask("stash_read", key=key, seed=seed)
            expect(told, refused, "rank", "0", "1", *words)
        disagree(1, size=5001)
        disagree(2, seed=1)
        step_all([a, b], sets=SETS)
        a.do("stash_write", key=3, bytes=5000, seed=0)
        b.do("stash_write", key=3, bytes=5000, seed=1)
        assert b.do("stash_read", key=3, seed=1)["differs"] >= 0


def refused_sets(c, placement, sets, *words, **stash):
    actors = [c.caller("job", small_layout(), placement, rank, timeout_ms=3000) for rank in range(len(placement))]
    finish_all(actors), finish_all(actors)
    for a, ranks in zip(actors, sets):
        a.start("attach", hold=1, push=1, stash={"ranks": ranks, "bytes": MIB, **stash})
    told = [a.finish() for a in actors]
    said = [t for t in told if t["status"] not in ("OK", "EDEADLINE", "ELOSTRANK")]
    assert said and all(all(w in t["text"] for w in words) for t in said), told
    for a in actors:
        c.dismiss(a)


@case
def a_set_is_refused_by_name():
    with Cluster(stash_limit=64 * MIB) as c:
        refused_sets(c, [0, 0], [[0, 1], [1]], "rank", "two sets")
        refused_sets(c, [0], [[1]], "world size 1")
        refused_sets(c, [0, 0], [[1], [0]], "not in the set of its own stash")
        refused_sets(c, [0, 0], [[1, 0], [1, 0]], "ascending")
        refused_sets(c, [0], [[0]], "2^50", bytes=0)
        refused_sets(c, [0], [[0]], "no entry has more", entry_bytes=2 * MIB)
        refused_sets(c, [0], [[0]], "stash_limit", "64.0", bytes=65 * MIB)
        before = c[0].memory()
        refused_sets(c, [0], [[0]], "stash_limit", bytes=1 << 45)
        assert stashing(c, [0, 0], [[0], [1]], bytes=32 * MIB) and c[0].memory() >= before
    with Cluster() as c:
        refused_sets(c, [0], [[0]], "can spare", bytes=1 << 45)


@case
def sets_of_nodes_agree():
    """A rank that names another set, or none, on another node: whoever reads learns both names."""
    for sets in ([[0, 1], [1]], [[0, 1], None]):
        with Cluster(2) as c:
            actors = [c.caller("job", small_layout(), [0, 1], rank) for rank in (0, 1)]
            finish_all(actors), finish_all(actors)
            for a, ranks in zip(actors, sets):
                a.start("attach", hold=1, push=1, **({"stash": {"ranks": ranks, "bytes": MIB}} if ranks else {}))
            finish_all(actors)
            actors[0].do("stash_write", key=1, bytes=5000)
            if sets[1]:
                actors[1].do("stash_write", key=1, bytes=5000)
            actors[0].refused("ERANK", "stash_read", "rank 0", "rank 1", "different sets", key=1)


@cases_of([[0, 0], [0, 1]])
def a_read_names_whom_it_waits_for(placement):
    with Cluster(max(placement) + 1) as c:
        actors = [c.caller("job", small_layout(), placement, rank, timeout_ms=1500) for rank in (0, 1)]
        finish_all(actors), finish_all(actors)
        for a in actors:
            a.start("attach", hold=1, push=1, stash={"ranks": [0, 1], "bytes": MIB})
        a, b = actors
        finish_all(actors)
        a.do("stash_write", key=5, bytes=9000, seed=5)
        told = a.ask("stash_read", key=5, seed=5)
        expect(told, "EDEADLINE", "rank 1" if placement == [0, 0] else "the parts", "5")
        b.do("stash_write", key=5, bytes=9000, seed=5)
        read([a, b], 5, 9000, seed=5)


@cases_of([[0, 0], [0, 1]])
def a_read_does_not_wait_for_a_rank_that_has_left(placement):
    with Cluster(max(placement) + 1) as c:
        a, b = stashing(c, placement, [[0, 1]], bytes=2 * MIB)
        a.do("stash_write", key=5, bytes=9000, seed=5)
        a.start("stash_read", key=5, seed=5)
        assert not a.ready(0.3), "it did not wait"
        b.do("close")
        expect(a.finish(), "ELOSTRANK", "rank 1 has left the job")
        a.refused("ELOSTRANK", "stash_read", "rank 1 has left the job", key=5, seed=5)


@cases_of([[0, 0, 0], [0, 1, 1]])
def a_read_does_not_wait_for_a_rank_that_has_left_after_a_loss(placement):
    with Cluster(max(placement) + 1) as c:
        a, b, lost = stashing(c, placement, [[0, 1], [2]], bytes=2 * MIB, on_lost="fail")
        a.do("stash_write", key=5, bytes=9000, seed=5)
        a.start("stash_read", key=5, seed=5)
        lost.kill()
        b.refused("ELOSTRANK", "step", "rank 2 was lost", sets=SETS)
        assert not a.ready(0.3), "the stash does not need rank 2"
        b.do("close")
        expect(a.finish(), "ELOSTRANK", "rank 1 has left the job")


# ---- deaths ------------------------------------------------------------------------------

def ends_aborted(reply):
    return reply["status"] in ("ELOSTRANK", "EABORTED")


@cases_of([[0, 0], [0, 1]])
def a_lost_rank_of_a_set_voids_the_attempt(placement):
    """What was stashed goes; the step is replayed with the successor."""
    nodes = max(placement) + 1
    with Cluster(nodes) as c:
        a, b = stashing(c, placement, [[0, 1]], bytes=2 * MIB)
        write([a, b], 1, MIB, seed=1)
        a.do("stash_read", key=1, seed=1)
        a.do("stash_write", key=2, bytes=5000, seed=1)
        b.kill(), c.actors.remove(b)
        until(lambda: ends_aborted(a.ask("step", sets=SETS)), what="the loss to be told")
        b = c.caller("job", small_layout(), placement, 1)
        b.finish(), b.finish()
        b.start("attach", hold=1, push=2, stash={"ranks": [0, 1], "bytes": 2 * MIB})
        b.good(b.finish())
        until(lambda: a.ask("stash_write", key=1, bytes=MIB, seed=9)["status"] == "OK", what="the next attempt")
        b.do("stash_write", key=1, bytes=MIB, seed=9)
        read([a, b], 1, MIB, seed=9)
        step_all([a, b], sets=SETS)
        assert used(c, nodes) == [0] * nodes


@case
def a_lost_rank_alone_is_replaced_in_the_same_attempt():
    with Cluster() as c:
        a, b = stashing(c, [0, 0], [[0], [1]], bytes=MIB)
        write([a, b], 1, 50_000, seed=1)
        b.kill(), c.actors.remove(b)
        b = c.caller("job", small_layout(), [0, 0], 1)
        b.finish(), b.finish()
        b.start("attach", hold=1, push=2, stash={"ranks": [1], "bytes": MIB})
        b.good(b.finish())
        write([b], 1, 50_000, seed=1)
        read([a, b], 1, 50_000, seed=1)
        step_all([a, b], sets=SETS)


@cases_of([[0, 0], [0, 1]])
def a_lost_daemon_takes_the_stash_along(placement):
    """The step is replayed when the daemon is back."""
    with Cluster(max(placement) + 1) as c:
        ranks = stashing(c, placement, [[0, 1]], bytes=2 * MIB)
        step_all(ranks, sets=SETS)
        write(ranks, 1, MIB, seed=1)
        c[0].kill()
        c[0].restart()
        for a in ranks:
            a.start("stash_read", key=1)
        for a in ranks:
            expect(a.finish(), "EABORTED")
        write(ranks, 1, MIB, seed=2)
        read(ranks, 1, MIB, seed=2)
        step_all(ranks, sets=SETS)


@case
def a_lost_link_is_waited_for():
    with Wires(2, owners=1) as c:
        a, b = stashing(c, [0, 1], [[0, 1]], bytes=2 * MIB)
        write([a, b], 1, MIB, seed=1)
        c.relays[0].cut()
        a.start("stash_read", key=1, seed=1)
        assert not a.ready(1)
        c.relays[0].mend()
        told = a.finish()
        if not ends_aborted(told):
            assert a.good(told)["differs"] == -1, told


@case
def memory_returns():
    """With the last rank of a set its memory goes, whatever the rank had open."""
    with Cluster() as c:
        keep, = c.ranks("keep", small_layout(), [0], hold=1, push=1)
        before = c[0].mappings()
        for kill in (False, True, False):
            a, b = stashing(c, [0, 0], [[0, 1]], bytes=8 * MIB)
            write([a, b], 1, MIB, seed=1)
            a.do("stash_read", key=1, seed=1)
            for actor in (a, b):
                if kill:
                    actor.kill(), c.actors.remove(actor)
                else:
                    c.dismiss(actor)
            until(lambda: c[0].mappings() == before, what="the memory to be freed")
        assert keep.do("version")["version"] == 0


@case
def the_peak_counts_all_sets():
    """Sets of one node use memory at once."""
    with Cluster(1) as c:
        ranks = stashing(c, [0, 0, 0], [[0], [1, 2]], bytes=MIB)
        write(ranks, 0, 4096)
        write(ranks, 1, 8192)
        step_all(ranks, sets=SETS)
        stash = c[0].job("job")["stash"]
        assert stash["used"] == 0 and stash["peak"] == 2 * (4096 + 8192), stash


@case
def an_entry_that_nobody_reads_goes():
    """A rank releases entries without reading them before the other has written its part: both nodes free them."""
    with Cluster(2) as c:
        ranks = stashing(c, [0, 1], [[0, 1]], bytes=8 * MIB, entry_bytes=MIB)
        for seed in range(4):
            for a in (ranks[1], ranks[0]):
                for key in range(6):
                    write([a], key, MIB, seed)
                    a.do("stash_release", key=key, last=True)
            until(lambda: used(c, 2) == [0, 0], what="the stash to be empty")


@case
def a_rank_dies_while_its_stash_is_made():
    """The kernel takes its time to zero the memory, and the rank's successor comes meanwhile: the stash is the successor's."""
    layout = wire.layout_message([{"name": "g", "tensors": [{"name": "t", "shape": [8]}]}])
    with Cluster(1) as c:
        def attach(incarnation):
            raw = wire.Raw(c[0].socket)
            assert raw.hello("job", 0, 1, timeout_ms=60000)[0] == wire.OK
            raw.send(wire.request(2, "attach", {1: layout, 2: 1, 3: 1, 4: 1, 5: 1, 6: incarnation, 11: wire.message({2: 1 << 30})}))
            return raw
        for incarnation in range(1, 5):
            dies = attach(incarnation)
            until(lambda: c[0].job("job"), what="the job")
            sleep(0.1)
            dies.close()
        lives = attach(5)
        assert lives.reply()[0] == wire.OK
        for key in range(8):
            for op in (1, 2):  # write, written
                status, text, _ = lives.ask("stash", {1: op, 2: key, 4: MIB})
                assert status == wire.OK, text
        assert used(c, 1) == [8 * MIB]
        lives.close()


if __name__ == "__main__":
    main()
