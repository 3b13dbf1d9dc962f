#!/usr/bin/env python3
"""The stash of ranks on a GPU, in its memory or the host's: what the GPU has not done yet is waited for, and what does
not fit is refused.  The GPU is the fake one; devices.py has the cases that a real one can run."""
import os
import sys
from random import Random

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SETS, SLOW, Cluster, expect, finish_all, small_layout, step_all, until  # noqa: E402
from fake_gpu import environment  # noqa: E402
from gpu_ranks import GPU_0, LAYOUTS, Event, gpus, memory_of_gpu, raw_attach, raw_is_silent  # noqa: E402
from harness import case, cases_of, main  # noqa: E402
from stashes import MIB, read, stashing, used, write  # noqa: E402
import wire  # noqa: E402

GPU = "cuda:0"
WRITE, WRITTEN, READ, RELEASE = 1, 2, 3, 4
UNIT = 4096
PLACES = {"windows": {}, "host": {"where": "host"}}


# ---- what the GPU has not done yet -------------------------------------------------------------

@cases_of([(p, w) for p in ([0, 0], [0, 1]) for w in PLACES], "{0[0]}_{0[1]}")
def copies_that_come_late_are_waited_for(what):
    """The GPU copies a while after the write; nobody reads, here or on the other node, before the event behind it."""
    placement, place = what
    with environment(FAKE_GPU_COPY_MS=150, FAKE_GPU_DELAY_MS=600 * SLOW), gpus(max(placement) + 1) as c:
        ranks = stashing(c, placement, [[0, 1]], GPU, bytes=2 * MIB, entry_bytes=MIB, unchecked=True,
                         **PLACES[place])
        for step in range(2):
            write(ranks, 1, 300_001, seed=step)
            read(ranks, 1, 300_001, seed=step)
            step_all(ranks, sets=SETS)


@case
def copies_are_waited_for_where_events_cannot_be_opened():
    """The ranks wait themselves, as trainers of another user."""
    with gpus(daemon={"FAKE_GPU_NO_EVENTS": 1}) as c, environment(FAKE_GPU_COPY_MS=150, FAKE_GPU_DELAY_MS=400):
        ranks = stashing(c, [0, 0], [[0, 1]], GPU, bytes=2 * MIB)
        for step in range(2):
            write(ranks, 1, 300_001, seed=step)
            read(ranks, 1, 300_001, seed=step)
            step_all(ranks, sets=SETS)


def extents_of(reply):
    return [wire.decode(e) for e in wire.decode(reply[2][11][0])[1]]


def offset_of(reply):
    assert reply[0] == wire.OK, reply
    return extents_of(reply)[0].get(1, [0])[0]


@cases_of(PLACES)
def a_use_ends_when_its_event_is_done(place):
    """The daemon answers in between, and gives the entry's memory to nobody."""
    with gpus() as c:
        written, released = Event(), Event()
        (status, text, told), raw = raw_attach(c, GPU_0, [written.handle, released.handle],
                                               {2: 2 * UNIT, 4: int(place == "host")})
        assert status == wire.OK, text
        attempt = wire.decode(told[5][0])[2][0]
        first = offset_of(raw.ask("stash", {1: WRITE, 2: 5, 3: attempt, 4: UNIT}))
        raw.send(wire.request(1000, "stash", {1: WRITTEN, 2: 5, 3: attempt, 7: 1}))
        raw.send(wire.request(1001, "stash", {1: READ, 2: 5, 3: attempt}))
        second = offset_of(raw.ask("stash", {1: WRITE, 2: 6, 3: attempt, 4: UNIT}))
        assert second != first and raw_is_silent(raw), "the write was not done"
        written.done_at(1)
        replies = {r[2][1][0]: r for r in (raw.reply(), raw.reply())}
        assert replies[1000][0] == wire.OK and offset_of(replies[1001]) == first
        raw.send(wire.request(1002, "stash", {1: RELEASE, 2: 5, 3: attempt, 6: 1, 7: 2}))
        raw.send(wire.request(1003, "stash", {1: WRITE, 2: 7, 3: attempt, 4: UNIT}))
        assert raw_is_silent(raw), "the memory is in use"
        released.done_at(1)
        replies = {r[2][1][0]: r for r in (raw.reply(), raw.reply())}
        assert replies[1002][0] == wire.OK and offset_of(replies[1003]) == first


@cases_of([4, 1], "{}_units")
def a_write_of_an_aborted_attempt_keeps_its_memory(units):
    """The GPU still writes there: the next attempt gets other memory until the event is done, or waits for that."""
    attach = {1: wire.layout_message(LAYOUTS["fp32"]), 2: 1, 3: 1, 4: 1, 5: 1}
    event = Event()
    with gpus() as c:
        raw, other, heir = (wire.Raw(c[0].socket, timeout=60 * SLOW) for _ in range(3))
        for r, rank in ((raw, 0), (other, 1), (heir, 1)):
            r.hello("job", rank, 2, timeout_ms=60000 * SLOW)
        raw.send(wire.request(100, "attach", {**attach, 9: GPU_0, 10: [event.handle], 11: wire.message({2: units * UNIT})}))
        assert other.ask("attach", {**attach, 7: 1})[0] == wire.OK
        status, text, told = raw.reply()
        assert status == wire.OK, text
        attempt = wire.decode(told[5][0])[2][0]
        raw.seq = 100
        first = offset_of(raw.ask("stash", {1: WRITE, 2: 5, 3: attempt, 4: UNIT}))
        raw.send(wire.request(1000, "stash", {1: WRITTEN, 2: 5, 3: attempt, 7: 1}))
        other.close()
        until(lambda: heir.ask("attach", {**attach, 7: 1})[0] == wire.OK, what="the lost rank's successor")
        told = until(lambda: raw.ask("stash", {1: READ, 2: 99, 3: attempt})[2].get(8), what="the abort")
        following = wire.decode(told[0])[2][0]
        if units == 1:
            raw.send(wire.request(2000, "stash", {1: WRITE, 2: 5, 3: following, 4: UNIT}))
            assert raw_is_silent(raw), "the memory is in use"
            event.done_at(1)
            replies = {r[2][1][0]: r for r in (raw.reply(), raw.reply())}
            assert offset_of(replies[2000]) == first, replies
            return
        second = raw.ask("stash", {1: WRITE, 2: 5, 3: following, 4: UNIT})
        assert following > attempt and offset_of(second) != first, "memory that the GPU writes to"
        assert used(c, 1) == [2 * UNIT]
        event.done_at(1)
        status, text, _ = raw.reply()
        assert status != wire.OK and "is over" in text, (status, text)
        raw.ask("stash", {1: WRITE, 2: 6, 3: following, 4: UNIT})
        assert used(c, 1) == [2 * UNIT], "the first one's memory is free"


@cases_of(PLACES)
def a_lost_daemon_takes_the_stash_along(place):
    """The restarted daemon has new memory, which the ranks map by themselves; the GPU is behind when the other dies."""
    with environment(FAKE_GPU_DELAY_MS=150), gpus(2) as c:
        ranks = stashing(c, [0, 1], [[0, 1]], GPU, bytes=2 * MIB, **PLACES[place])
        for step in range(2):
            write(ranks, 1, MIB, seed=step)
            c[0].kill()
            c[0].restart()
            for a in ranks:
                a.start("stash_read", key=1)
            for a in ranks:
                expect(a.finish(), "EABORTED")
            write(ranks, 1, MIB, seed=9)
            read(ranks, 1, MIB, seed=9)
            step_all(ranks, sets=SETS)


@case
def a_driver_without_descriptors_gives_a_handle():
    with gpus(daemon={"FAKE_GPU_HANDLES": 1}) as c:
        ranks = stashing(c, [0, 0], [[0, 1]], GPU, bytes=MIB)
        write(ranks, 1, 100_000, seed=3)
        read(ranks, 1, 100_000, seed=3)


@case
def memory_returns():
    with gpus() as c:
        for kill in (False, True):
            ranks = stashing(c, [0, 0], [[0, 1]], GPU, bytes=8 * MIB)
            write(ranks, 1, MIB)
            assert memory_of_gpu(c[0]) == 4, "a gather window, two push windows, one stash"
            for a in ranks:
                if kill:
                    a.kill(), c.actors.remove(a)
                else:
                    c.dismiss(a)
            until(lambda: memory_of_gpu(c[0]) == 0, what="the memory to be freed")


# ---- what does not fit -------------------------------------------------------------------------

def refusals(c, devices, stashes):
    """What the ranks of one node are told that attach with these, and are refused."""
    actors = [c.caller("job", small_layout(), [0] * len(stashes), rank, timeout_ms=3000 * SLOW)
              for rank in range(len(stashes))]
    finish_all(actors), finish_all(actors)
    for a, device, stash in zip(actors, devices, stashes):
        a.start("attach", hold=1, push=1, device=device, stash={"ranks": list(range(len(stashes))), **stash})
    told = [a.finish() for a in actors]
    for a in actors:
        c.dismiss(a)
    return [t for t in told if t["status"] not in ("OK", "EDEADLINE", "ELOSTRANK")]


@case
def a_set_has_one_place_on_a_node():
    here = {"bytes": MIB}
    with environment(FAKE_GPUS=2), gpus() as c:
        for devices, stashes, words in (
                (["cuda:0", "cuda:1"], [here, here], ("GPU 0", "GPU 1")),
                (["cuda:0", None], [here, here], ("GPU 0", "host")),
                (["cuda:0", "cuda:0"], [here, {**here, "where": "host"}], ("GPU 0", "host"))):
            told, = refusals(c, devices, stashes)
            expect(told, "ECONFLICT", "rank 0", "rank 1", "one place", *words)
        ranks = stashing(c, [0, 0], [[0, 1]], ["cuda:0", "cuda:1"], where="host", **here)
        write(ranks, 1, 100_000, seed=3)
        read(ranks, 1, 100_000, seed=3)
        ranks = [c.dismiss(a) for a in ranks]
        until(lambda: c[0].job("job") and not c[0].job("job")["stash"]["reserved"], what="the end of the stash")
        ranks = stashing(c, [0, 0], [[0], [1]], ["cuda:0", "cuda:1"], **here)
        assert set(c[0].job("job")["stash"]["place"].split(", ")) == {"GPU 0", "GPU 1"}


@case
def memory_of_a_gpu_is_bounded():
    """gpu_windows bounds a stash on a GPU, and stash_limit one in host memory; each refusal names the size needed."""
    with gpus(gpu_windows=32 * MIB, stash_limit=8 * MIB) as c:
        told, = refusals(c, [GPU], [{"bytes": 40 * MIB}])
        expect(told, "EQUOTA", "GPU 0", "the stash of rank 0 of job job", "40.0 MiB are needed",
               "gpu_windows allows 32.0")
        told, = refusals(c, [GPU], [{"bytes": 16 * MIB, "where": "host"}])
        expect(told, "EQUOTA", "16.0 MiB are needed", "stash_limit allows 8.0")
        assert stashing(c, [0], [[0]], GPU, bytes=16 * MIB)
    with gpus(daemon={"FAKE_GPU_BYTES": 16 * MIB}) as c:
        told, = refusals(c, [GPU], [{"bytes": 40 * MIB}])
        expect(told, "ENOMEM", "the stash of rank 0 of job job")
        until(lambda: memory_of_gpu(c[0]) == 0, what="the end of the windows")
        assert stashing(c, [0], [[0]], GPU, bytes=4 * MIB)


@case
def what_cannot_be_a_place():
    with gpus() as c:
        (status, text, _), raw = raw_attach(c, GPU_0, [], {2: UNIT, 4: 2})
        assert status != wire.OK and "2 is no place for a stash" in text, (status, text)
        raw.close()
    with Cluster() as c:  # without a GPU that is the host's memory
        ranks = stashing(c, [0, 0], [[0, 1]], bytes=MIB)
        assert ranks and c[0].job("job")["stash"]["place"] == "host"


@case
def memory_that_is_not_pinned_costs_time_alone():
    """The log says it once per rank, with the way out, and zeroctl says it."""
    with gpus() as c:
        with environment(FAKE_GPU_NO_PIN=1):
            ranks = stashing(c, [0, 0], [[0, 1]], GPU, bytes=MIB, where="host")
        for _ in range(2):
            for key in range(2):
                write(ranks, key, 5000, seed=key)
            for key in range(2):
                read(ranks, key, 5000, seed=key)
        assert [s["stash_unpinned"] for s in c[0].job("job")["sessions"]] == [True, True]
        assert "its stash is not pinned" in c[0].ctl_run("status").stdout
        assert c[0].log().count("CUDA does not pin that memory") == 2, c[0].log()
    with gpus() as c:
        write(stashing(c, [0], [[0]], GPU, bytes=MIB, where="host"), 1, 5000)
        assert [s["stash_unpinned"] for s in c[0].job("job")["sessions"]] == [False]


def write_when_free(ranks, key, size):
    """Another node may not have said yet that it needs this one's parts no more."""
    for a in ranks:
        until(lambda a=a: a.ask("stash_write", key=key, bytes=size, seed=key)["status"] == "OK", what=f"room for entry {key}")


@cases_of([[0, 0], [0, 1]])
def entries_slide_together_for_a_larger_one(placement):
    """On a GPU an entry lies in one piece: it is refused only where fewer bytes are free, and the others stay whole."""
    size = 64 << 10
    with gpus(max(placement) + 1) as c:
        ranks = stashing(c, placement, [[0, 1]], GPU, bytes=9 * size, entry_bytes=3 * size)
        for step in range(2):
            sizes = {key: size * (key % 2 + 1) - key for key in range(6)}
            for key in sizes:
                write(ranks, key, sizes[key], seed=key)
            for key in (0, 2, 4):
                read(ranks, key, sizes.pop(key), seed=key)
            sizes[9] = 3 * size
            write_when_free(ranks, 9, sizes[9])
            if placement == [0, 0]:
                ranks[0].refused("EWINDOW", "stash_write", "no room", key=10, bytes=size)
            for key in (5, 9, 1, 3):
                read(ranks, key, sizes[key], seed=key)
            until(lambda: used(c, max(placement) + 1) == [0] * (max(placement) + 1), what="the stash to be empty")
            step_all(ranks, sets=SETS)


@cases_of([[0, 0], [0, 1], [0, 0, 1]])
def no_entry_is_refused_that_has_room(placement):
    """Entries of random sizes come and go in a full stash."""
    random, most, live = Random(len(placement)), 64, {}
    with gpus(max(placement) + 1) as c:
        ranks = stashing(c, placement, [list(range(len(placement)))], GPU, bytes=most * UNIT, entry_bytes=most // 4 * UNIT)
        for key in range(40):
            units = random.randrange(1, most // 4 + 1)
            while units + sum(live.values()) > most:
                gone = random.choice(list(live))
                read(ranks, gone, live.pop(gone) * UNIT, seed=gone)
            write_when_free(ranks, key, units * UNIT)
            live[key] = units
        for key, units in live.items():
            read(ranks, key, units * UNIT, seed=key)


def gaps(c, n, **settings):
    """Ranks of one node with entries 1 and 3, and gaps of their size between them."""
    size = 64 << 10
    ranks = stashing(c, [0] * n, [list(range(n))], GPU, bytes=4 * size, **settings)
    for key in range(4):
        write(ranks, key, size, seed=key)
    for key in (0, 2):
        read(ranks, key, size, seed=key)
    ranks[1].do("stash_read", key=1, seed=1)
    ranks[0].start("stash_write", key=9, bytes=2 * size, seed=9)
    return size, ranks


@case
def a_write_waits_for_who_uses_what_is_in_the_way():
    """With the release the entry moves, and the write goes on."""
    with gpus() as c:
        size, (a, b) = gaps(c, 2)
        assert not a.ready(1)
        b.do("stash_release", key=1, last=False)
        a.good(a.finish())
        b.do("stash_write", key=9, bytes=2 * size, seed=9)
        for key, bytes_ in ((9, 2 * size), (3, size), (1, size)):
            read([a, b], key, bytes_, seed=key)


@case
def a_read_waits_until_its_entry_has_slid():
    """A large entry that slides by a page takes thousands of copies; the daemon answers in between."""
    size = 64 * MIB
    with gpus() as c:
        (status, text, told), raw = raw_attach(c, GPU_0, [], {2: size + 2 * UNIT})
        assert status == wire.OK, text
        attempt = wire.decode(told[5][0])[2][0]
        for key, bytes_ in ((0, UNIT), (1, size), (2, UNIT)):
            assert offset_of(raw.ask("stash", {1: WRITE, 2: key, 3: attempt, 4: bytes_})) == (0, UNIT, UNIT + size)[key]
            assert raw.ask("stash", {1: WRITTEN, 2: key, 3: attempt})[0] == wire.OK
        for key in (0, 2):
            assert raw.ask("stash", {1: RELEASE, 2: key, 3: attempt, 6: 1})[0] == wire.OK
        raw.send(wire.request(1000, "stash", {1: WRITE, 2: 9, 3: attempt, 4: 2 * UNIT}) +
                 wire.request(1001, "stash", {1: READ, 2: 1, 3: attempt}) +
                 wire.request(1002, "stash", {1: READ, 2: 99, 3: attempt}))
        replies = [raw.reply() for _ in range(3)]
        assert [r[2][1][0] for r in replies] == [1002, 1001, 1000], replies
        assert offset_of(replies[1]) == 0 and offset_of(replies[2]) == size


@case
def a_write_that_waits_names_whom_it_waits_for():
    with gpus() as c:
        _, (a, _) = gaps(c, 2, timeout_ms=1500 * SLOW)
        expect(a.finish(), "EDEADLINE", "rank 1", "release entry 1")


@case
def a_write_that_waits_ends_with_the_attempt():
    with gpus() as c:
        size, (a, _, dead) = gaps(c, 3)
        assert not a.ready(1)
        dead.kill(), c.actors.remove(dead)
        heir = c.caller("job", small_layout(), [0] * 3, 2)
        heir.finish(), heir.finish()
        heir.start("attach", hold=1, push=2, device=GPU, stash={"ranks": [0, 1, 2], "bytes": 4 * size})
        heir.good(heir.finish())
        expect(a.finish(), "EABORTED")


@case
def parts_leave_room_for_what_is_put_together():
    size = 64 << 10
    with gpus(2) as c:
        ranks = stashing(c, [0, 1], [[0, 1]], GPU, bytes=8 * size, entry_bytes=2 * size)
        for key in range(7):
            write(ranks, key, size if key else 2 * size, seed=key)
        for key in (1, 3, 5):
            read(ranks, key, size, seed=key)
        ranks[0].refused("EWINDOW", "stash_write", "largest was declared", key=9, bytes=3 * size)
        for key in (0, 2, 4, 6):
            read(ranks, key, size if key else 2 * size, seed=key)
        until(lambda: used(c, 2) == [0, 0], what="the stash to be empty")


if __name__ == "__main__":
    main()
