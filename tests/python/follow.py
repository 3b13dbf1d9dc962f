#!/usr/bin/env python3
"""zerod.follow(): whole versions of a job's parameters, as they are fetched, and what a reader lives through."""
import contextlib
import ctypes
import os
import struct
import time

from common import REPLY_S, SETS, Cluster, attached, raises, small_layout, together, zerod
from checkpointing import Place
from cluster import WAIT, until
from harness import case, cases_of, main

SHORT_S = 0.3 * WAIT


def step(client, value=0.5):
    """One step with this gradient everywhere; the version."""
    for group in range(client.layout.groups):
        n = client.layout.group_elements(group)
        (ctypes.c_float * n).from_address(client.grad(group))[:] = [value] * n
        client.push(group)
    return client.step(SETS).version


def step_again(client):
    """step(), of a client whose daemon was killed."""
    with contextlib.suppress(zerod.Aborted):
        return step(client)
    return step(client)


def fetched(client):
    """{name: bytes} of all tensors, as a rank fetches them."""
    found, width = {}, {"fp32": 4, "bf16": 2, "fp16": 2}
    for group in range(client.layout.groups):
        address, size = client.fetch(group), width[client.layout.dtype(group)]
        for t in client.layout.group_tensors(group):
            found[client.layout.tensor_name(t)] = ctypes.string_at(address + client.layout.offset(t) * size,
                                                                   client.layout.tensor_elements(t) * size)
        client.release(group)
    return found


def bytes_of(weights):
    return {name: bytes(values) for name, values in weights}


def follower(cluster, timeout=REPLY_S, job="job", **form):
    return zerod.follow(job, socket=cluster[0].socket, timeout=timeout, **form)


def restart(cluster):
    cluster[0].restart()
    cluster.wait_up()


@cases_of(["fp32", "bf16", "fp16"])
def versions_are_what_ranks_fetch(dtype):
    with attached("job", small_layout(dtype)) as (c, client), follower(c) as job:
        for version in range(4):
            with job.wait(version=version) as weights:
                assert bytes_of(weights) == fetched(client) and weights.version == version
                assert [(n, d, s) for n, d, s in weights.metadata()] == [
                    ("w", dtype, (3, 5)), ("b", dtype, (5,)), ("frozen", dtype, (7,)), ("head", dtype, (4,))]
            assert step(client) == version + 1


def bf16(data):
    """fp32 numbers as bf16, rounded to nearest even."""
    return b"".join(struct.pack("<H", (u + 0x7FFF + (u >> 16 & 1)) >> 16) for u, in struct.iter_unpack("<I", data))


@case
def a_follower_reads_its_groups_in_its_dtype():
    with attached("job") as (c, client), follower(c) as whole, follower(c, groups=[1, "block"], dtype="bf16") as half, \
            follower(c, groups=["head"]) as head:
        for version in range(3):
            with whole.wait(version=version) as all_of, half.wait() as halves, head.wait() as rest:
                values = bytes_of(all_of)
                assert bytes_of(halves) == {name: bf16(data) for name, data in values.items()}
                assert halves.metadata() == [(n, "bf16", s) for n, _, s in all_of.metadata()]
                assert bytes_of(rest) == {"head": values["head"]} and rest.metadata() == [("head", "fp32", (4,))]
                assert rest._held.bytes == 4096 < all_of._held.bytes
                with raises(zerod.NoGroup, "'w'", "'block'", "follow()'s groups"):
                    rest.view(0)
            step(client, 0.3)


@cases_of([({"groups": ["block", "other"]}, zerod.NoGroup, ["'other'", "block, head"]), ({"groups": [2]}, zerod.NoGroup, ["2"]),
           ({"groups": [0, "block"]}, ValueError, ["'block'", "twice"]), ({"groups": []}, zerod.Invalid, ["no group"]),
           ({"groups": [1.5]}, TypeError, ["group"]), ({"groups": [-1]}, ValueError, ["group"]),
           ({"dtype": "fp16"}, zerod.Invalid, ["'block'", "bf16", "not in fp16"]),
           ({"dtype": "bfloat16"}, ValueError, ["fp32, bf16, fp16"]), ({"dtype": 16}, TypeError, ["dtype"])],
          "{0[0]}")
def a_form_that_is_wrong(what):
    arguments, kind, words = what
    with attached("job", small_layout("bf16")) as (c, _):
        with raises(kind, *words), follower(c, **arguments) as job:
            job.wait()


@case
def a_version_is_waited_for_or_gone():
    with attached("job") as (c, client), follower(c) as job:
        first = job.wait()
        with raises(zerod.Deadline, "version 1", "stands at version 0"):
            job.wait(newer_than=0, timeout=SHORT_S)
        third = together(lambda: job.wait(version=3), lambda: [step(client) for _ in range(3)])[0]
        assert (first.version, third.version, job.wait(newer_than=1).version) == (0, 3, 3)
        assert job.wait(version=0).version == 0, "another hold has it"
        with raises(zerod.Gone, "version 2", "stands at version 3"):
            job.wait(version=2)


@case
def a_wait_ends_within_its_own_timeout():
    with attached("job") as (c, _), follower(c) as job:
        held = job.wait()
        for seconds in (SHORT_S, 2 * SHORT_S, SHORT_S):
            begin = time.monotonic()
            with raises(zerod.Deadline, "version 1"):
                job.wait(newer_than=0, timeout=seconds)
            assert seconds * 0.8 < time.monotonic() - begin < REPLY_S / 2
        assert bytes(held.view(0)) == bytes(60), "a hold outlives the connection of a wait"


@case
def what_is_released_is_not_viewed():
    with attached("job") as (c, client), follower(c) as job:
        weights = job.wait()
        whole, walk = bytes_of(weights), iter(weights)
        assert next(walk)[0] == "w" and weights.view(0).readonly
        weights.release()
        weights.release()
        for read in (lambda: weights.view(0), lambda: weights.address(3), lambda: next(walk), lambda: dict(weights)):
            with raises(ValueError, "version 0 is released"):
                read()
        assert len(weights.metadata()) == 4 and "version 0" in repr(weights)
        again = job.wait()
        job.close()
        assert bytes_of(again) == whole, "close() leaves what is held"
        with raises(zerod.Closed, "follower is closed"):
            job.wait()
        again.release()
        step(client)


@case
def a_hold_ends_if_nobody_gets_it():
    """Such as by Ctrl-C between the call and its result."""
    class Fails(zerod.Weights):
        def __init__(self, *_):
            raise KeyboardInterrupt

    with attached("job") as (c, client), follower(c) as job:
        job._kind = Fails
        with raises(KeyboardInterrupt):
            job.wait()
        assert c[0].job("job")["readers"]["held"] == 0
        job.close()
        until(lambda: c[0].job("job")["readers"]["clients"] == 0, what="the end of the connection")


@case
def all_copies_are_held():
    with Cluster(1, follow_copies=2) as c, zerod.connect("job", 0, 1, socket=c[0].socket, timeout=REPLY_S) as client:
        client.attach(small_layout())
        with follower(c) as job:
            held = []
            for version in range(2):
                held.append(job.wait(version=version))
                step(client)
            with raises(zerod.Deadline, "follow_copies", str(os.getpid())):
                job.wait(timeout=SHORT_S)
            held.pop().release()
            assert job.wait().version == 2


@case
def a_job_that_is_not_there():
    with Cluster(1) as c, follower(c, timeout=SHORT_S) as job:
        with raises(zerod.NoJob, "'job'"):
            job.wait()
        with zerod.connect("job", 0, 1, socket=c[0].socket, timeout=REPLY_S) as client:
            assert together(lambda: job.wait(timeout=REPLY_S), lambda: client.attach(small_layout()))[0].version == 0
        walk = iter(job)
        assert next(walk).version == 0
        zerod.drop("job", socket=c[0].socket)
        with raises(zerod.NoJob, "'job'"):
            next(walk)


@case
def nobody_listens():
    with raises(zerod.Closed, "/nowhere/zerod.sock"):
        zerod.follow("job", socket="/nowhere/zerod.sock", timeout=SHORT_S).wait()


@case
def a_lost_daemon_is_found_again():
    with attached("job") as (c, client), follower(c) as job:
        step(client)
        walk = iter(job)
        first = next(walk)
        whole = bytes_of(first)
        restart(c)
        assert bytes_of(first) == whole

        def goes_on():
            until(lambda: (c[0].job("job")["readers"] or {}).get("version") == 1, what="the reader's return")
            step_again(client)
        assert together(lambda: next(walk), goes_on)[0].version == 2, "no version comes twice"
        restart(c)
        again = job.wait(version=2)
        assert bytes_of(again) == fetched(client) and bytes_of(first) == whole
        first.release()


@case
def a_restored_job_is_followed_from_its_checkpoint():
    with Place() as d, attached("job") as (c, client), follower(c) as job:
        step(client)
        walk = iter(job)
        whole = bytes_of(next(walk))
        path = c[0].ctl("checkpoint", "job", d)["path"]
        step(client)
        later = next(walk)
        kept = bytes_of(later)
        client.close()
        c[0].ctl("restore", "job", path)
        again = next(walk)
        assert (again.version, bytes_of(again)) == (1, whole)
        assert (later.version, bytes_of(later)) == (2, kept) and kept != whole
        with raises(zerod.Deadline, "version 3", "stands at version 1"):
            job.wait(newer_than=2, timeout=SHORT_S)


if __name__ == "__main__":
    main()
