#!/usr/bin/env python3
"""A rank dies and a successor takes its place; a daemon is killed and restarted: what a client's calls return, and what
the service has kept."""
import ctypes
import signal
import threading

from common import LIBRARY, PACKAGE, SETS, Cluster, attached, python, raises, together, zerod
from cluster import until
from harness import case, main

TIMEOUT_S = 60


def two_groups():
    layout = zerod.Layout()
    for name in ("a", "b"):
        layout.tensor(layout.group(name, "fp32"), name + ".w", [100])
    return layout


def rank(cluster, index, world=2, attach=True, on_lost_rank="wait", **options):
    """An attached rank of "job"."""
    client = zerod.connect("job", index, world, socket=cluster[0].socket, timeout=TIMEOUT_S, **options)
    if attach:
        client.attach(two_groups(), hold_groups=2, push_groups=2, on_lost_rank=on_lost_rank)
    return client


def pair(cluster, **options):
    return together(lambda: rank(cluster, 0, **options), lambda: rank(cluster, 1, **options))


def push(client, value, groups=(0, 1)):
    for g in groups:
        (ctypes.c_float * 100).from_address(client.grad(g))[:] = [value] * 100
        client.push(g)


def master(client):
    values = (ctypes.c_float * 100)()
    client.get(0, "master", 0, 100, values)
    return list(values)


def kill(client):
    """Ends the session as the death of the process would."""
    client._break("killed")
    client.close()


def restart(cluster, how=signal.SIGKILL):
    cluster[0].process.send_signal(how)
    cluster[0].process.wait()
    cluster[0].start()


# ---- first values -----------------------------------------------------------------


def first_values(client, value):
    """zero_first_values(): a.w from rank 0, b.w as it is made."""
    a = (ctypes.c_float * 100)(*[value] * 100)
    values = (ctypes.c_void_p * 2)(ctypes.addressof(a), None) if client.rank == 0 else None
    client._wait(client._library.zero_first_values, values)


@case
def first_values_come_from_rank_0_and_only_once():
    with Cluster(1) as c:
        for _ in range(2):
            for given in (1.0, 2.0):  # the second time they are there
                ranks = pair(c)
                together(*(lambda r=r: first_values(r, given) for r in ranks))
                assert [master(r) for r in ranks] == [[1.0] * 100] * 2
                together(*(r.close for r in ranks))
            restart(c)
            c.wait_up()


@case
def first_values_of_a_rank_0_that_dies_come_from_its_successor():
    with Cluster(1) as c:
        first, other = pair(c)
        waiting = threading.Thread(target=first_values, args=(other, 0.0), daemon=True)
        waiting.start()
        first.put(0, "master", 0, 100, (ctypes.c_float * 100)(*[1.0] * 100))
        kill(first)
        successor = rank(c, 0)
        first_values(successor, 2.0)
        waiting.join(TIMEOUT_S)
        assert not waiting.is_alive() and master(other) == [2.0] * 100


@case
def first_values_are_met_again_when_the_daemon_is_lost():
    with Cluster(1) as c:
        first, other = pair(c)
        waiting = threading.Thread(target=first_values, args=(other, 0.0), daemon=True)
        waiting.start()
        restart(c)
        first_values(first, 3.0)
        waiting.join(TIMEOUT_S)
        assert not waiting.is_alive() and master(other) == [3.0] * 100
        push(first, 1.0)
        push(other, 1.0)
        together(*(lambda r=r: r.step(SETS) for r in (first, other)))
        first_values(first, 9.0)  # alone, for the job has its values
        assert first.version == 1


# ---- blobs ------------------------------------------------------------------------

@case
def client_has_the_blob_of_the_last_step():
    with attached() as (_, client):
        assert client.blob == b""
        for blob in (b"\0first\0", b"x" * 8192, bytearray(b"third"), b""):
            client.step(SETS, blob=blob)
            assert client.blob == bytes(blob)
        client.step([], blob=b"kept with a step that updates nothing")
        assert client.blob.startswith(b"kept")
        client.step(SETS)
        assert client.blob == b"", "a step without a blob keeps none"


@case
def wrong_blobs_are_refused():
    with attached() as (_, client):
        for blob, kind in ((b"x" * 8193, ValueError), ("text", TypeError), (7, TypeError)):
            with raises(kind):
                client.step(SETS, blob=blob)
        assert client.version == 0


@case
def blob_outlives_its_rank_and_the_daemon():
    with Cluster(1) as cluster:
        first = rank(cluster, 0, 1)
        first.step(SETS, blob=b"at 1")
        kill(first)
        second = rank(cluster, 0, 1)
        assert (second.version, second.blob) == (1, b"at 1")
        restart(cluster)
        second.fetch(0)
        assert (second.version, second.blob) == (1, b"at 1")
        second.close()


# ---- a rank that dies ----------------------------------------------------------------------

@case
def successor_owes_what_is_missing():
    """Rank 1 dies after it pushed one of its two groups; its successor repeats the step."""
    def train(dies):
        with Cluster(1) as cluster:
            a, b = pair(cluster)
            push(a, 1.0)
            push(b, 3.0, (0,) if dies else (0, 1))
            if dies:
                b.fetch(1)  # requests are served in order: by now the push is accepted
                kill(b)
                b = rank(cluster, 1)
                assert b.version == 0 and [b.accepted(g) for g in (0, 1)] == [1, 0]
                push(b, 3.0)
            together(lambda: a.step(SETS), lambda: b.step(SETS))
            values = master(b)
            a.close()
            b.close()
            return values
    assert train(True) == train(False) != [0.0] * 100


@case
def on_lost_rank_fail_raises_and_a_successor_goes_on():
    with Cluster(1) as cluster:
        a, b = pair(cluster, on_lost_rank="fail")
        kill(b)
        with raises(zerod.LostRank, "rank 1"):
            a.step(SETS)
        b = rank(cluster, 1, on_lost_rank="fail")
        with raises(zerod.Aborted):
            a.step(SETS)
        assert [r.version for r in together(lambda: a.step(SETS), lambda: b.step(SETS))] == [1, 1]
        a.close()
        b.close()


@case
def accepted_refuses_unknown_groups():
    with attached() as (_, client):
        for group, kind in ((2, zerod.NoGroup), (-1, ValueError), ("0", TypeError)):
            with raises(kind):
                client.accepted(group)


@case
def wrong_on_lost_rank():
    with attached() as (cluster, _), zerod.connect("other", socket=cluster[0].socket) as client:
        with raises(ValueError, "on_lost_rank", "wait"):
            client.attach(two_groups(), on_lost_rank="perhaps")


@case
def newer_incarnation_takes_the_rank():
    """The older session, whose process still lives, is refused for good."""
    with Cluster(1) as cluster:
        old = rank(cluster, 0, 1, incarnation=1)
        with raises(zerod.Rank, "rank 0"):
            rank(cluster, 0, 1, incarnation=0)
        new = rank(cluster, 0, 1, incarnation=2)
        with raises(zerod.Error, "rank 0"):
            old.fetch(0)
        with raises(zerod.Closed):
            old.fetch(0)
        push(new, 1.0)
        assert new.step(SETS).version == 1
        new.close()


@case
def incarnation_by_the_launcher():
    with Cluster(1) as cluster:
        old = rank(cluster, 0, 1)
        script = f"""
import os, sys
sys.path.insert(0, {PACKAGE!r})
os.environ.update(TORCHELASTIC_RESTART_COUNT="1", RANK="0", WORLD_SIZE="1", ZEROD_LIBRARY={LIBRARY!r})
import zerod
layout = zerod.Layout()
for name in ("a", "b"):
    layout.tensor(layout.group(name, "fp32"), name + ".w", [100])
client = zerod.connect("job")
client.attach(layout)
print(client.step([]).version)
"""
        out, err = python(script, cluster).communicate(timeout=TIMEOUT_S)
        assert out == "0\n", (out, err)
        with raises(zerod.Error, "rank 0"):
            old.fetch(0)
        old.close()


# ---- a daemon that dies ----------------------------------------------------------------------

@case
def idle_client_does_not_notice():
    with Cluster(1) as cluster:
        client = rank(cluster, 0, 1)
        push(client, 1.0)
        client.step(SETS)
        values = master(client)
        for version, how in enumerate((signal.SIGKILL, signal.SIGTERM), 1):
            restart(cluster, how)
            assert master(client) == values and client.version == version
            push(client, 1.0)
            client.step(SETS)
            values = master(client)
        client.close()


@case
def aborted_step_is_repeated():
    with Cluster(1) as cluster:
        client = rank(cluster, 0, 1)
        client.fetch(0)
        push(client, 1.0)
        restart(cluster)
        with raises(zerod.Aborted):
            client.step(SETS)
        assert client.version == 0
        with raises(zerod.NotHeld):
            client.release(0)
        push(client, 1.0)
        assert client.step(SETS).version == 1
        client.close()


@case
def waiting_rank_attaches_to_a_restarted_daemon():
    """The daemon is killed while one rank waits in its step and the other has not begun."""
    with Cluster(1) as cluster:
        a, b = pair(cluster)
        push(a, 1.0)

        def train(client, pushed):
            while client.version == 0:
                try:
                    if not pushed:
                        push(client, 1.0)
                    pushed = False
                    client.step(SETS)
                except zerod.Aborted:
                    pass
            return master(client)

        waiting = threading.Thread(target=lambda: results.append(train(a, True)), daemon=True)
        results = []
        waiting.start()
        until(lambda: "step" in str(cluster[0].job("job")["waiting"]), what="rank 0 in its step")
        restart(cluster)
        results.append(train(b, False))
        waiting.join(TIMEOUT_S)
        assert len(results) == 2 and results[0] == results[1] != [0.0] * 100
        a.close()
        b.close()


if __name__ == "__main__":
    main()
