#!/usr/bin/env python3
"""Whole daemons on the GPU: the bits of a job that the host computes, and nothing that grows.

usage: daemon.py TOP PLUGIN [--quick]

The trainers are two of client/examples/gpt each: they compute on the CPU, so that what they push is
the same in every run.
"""
import json
import os
import subprocess
import sys

from where import GPU_STATES, HOST_STATES, MIB, cluster, use_bundle

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from cluster import Tools, spawn, until  # noqa: E402

TOP, PLUGIN = sys.argv[1:3]
QUICK = "--quick" in sys.argv
STEPS = 5 if QUICK else 40
MANY_STEPS = 60 if QUICK else 1000
END_S = 900
SLACK = 32 * MIB  # of the driver's own


def text_file(directory):
    """The sources of the tests, which are text enough."""
    path = f"{directory}/text"
    support = os.path.join(TOP, "tests", "support")
    with open(path, "w", encoding="utf-8") as out:
        for name in sorted(os.listdir(support)):
            if name.endswith(".py"):
                with open(os.path.join(support, name), encoding="utf-8") as source:
                    out.write(source.read())
    return path


def gpt(c, node, rank, world, text, steps, *arguments):
    log = open(f"{c.directory}/gpt-{rank}.log", "wb")
    local = world // len(c.daemons)
    return spawn([Tools.gpt, "--data", text, "--socket", c[node].socket, "--job", "gpt", "--rank", str(rank),
                  "--world-size", str(world), "--local-world-size", str(local), "--steps", str(steps),
                  "--eval-windows", "2", *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def train(c, steps, *arguments):
    """Two ranks to their end."""
    text = text_file(c.directory)
    ranks = [gpt(c, i % len(c.daemons), i, 2, text, steps, *arguments) for i in range(2)]
    for i, rank in enumerate(ranks):
        if rank.wait(END_S):
            with open(f"{c.directory}/gpt-{i}.log", encoding="utf-8", errors="replace") as log:
                raise AssertionError(f"rank {i} ended with {rank.returncode}: {log.read()[-2000:]}")


def free_bytes():
    answer = subprocess.run([f"{TOP}/bin/info", PLUGIN], capture_output=True, text=True, timeout=60, check=True)
    return json.loads(answer.stdout)["free_bytes"]


def trained(states, nodes, *arguments):
    with cluster(PLUGIN, nodes, **states) as c:
        train(c, STEPS, *arguments)
        return c.checksum("gpt")


def same_bits():
    """States on the GPU or on the host, one node or two: the same parameters and moments."""
    for arguments in ([], ["--dtype", "bf16"], ["--clip", "0.1", "--weight-decay", "0"]):
        for nodes in (1, 2):
            sums = [trained(states, nodes, *arguments)
                    for states in ({"device": "host"}, HOST_STATES, GPU_STATES)]
            assert sums[0] == sums[1] == sums[2], f"{nodes} nodes, gpt {arguments}: {sums}"


def orderly_restart():
    """States on the GPU outlast a stop and a start."""
    with cluster(PLUGIN, **GPU_STATES) as c:
        train(c, STEPS)
        before = c.checksum("gpt")
        c[0].process.terminate()
        assert c[0].process.wait(120) == 0, c[0].log()[-2000:]
        c[0].start()
        c.wait_up()
        assert c.checksum("gpt") == before


def memory_stays():
    """GPU memory, the daemon's memory, descriptors: the same after many steps as after few."""
    start = free_bytes()
    with cluster(PLUGIN, **GPU_STATES) as c:
        text = text_file(c.directory)
        ranks = [gpt(c, 0, i, 2, text, MANY_STEPS, "--layers", "2", "--width", "64", "--context", "32")
                 for i in range(2)]

        def at(version):
            assert all(r.poll() in (None, 0) for r in ranks), "a trainer failed"
            return (c[0].job("gpt") or {}).get("version", 0) >= version

        until(lambda: at(MANY_STEPS // 5), END_S, "a fifth of the steps")
        early = free_bytes(), c[0].memory(), c[0].descriptors()
        until(lambda: at(MANY_STEPS * 9 // 10), END_S, "nine tenths of the steps")
        late = free_bytes(), c[0].memory(), c[0].descriptors()
        for r in ranks:
            assert r.wait(END_S) == 0
        assert late[0] + SLACK >= early[0], f"GPU memory left: {early[0]}, then {late[0]}"
        assert late[1] <= early[1] + SLACK // 1024, f"kB of the daemon: {early[1]}, then {late[1]}"
        assert late[2] <= early[2] + 4, f"descriptors: {early[2]}, then {late[2]}"
        c[0].ctl("drop", "gpt")
    assert free_bytes() + SLACK >= start, "the daemon has gone and GPU memory with it"


def trainers_killed():
    """A trainer is killed in the middle of a step; its successor ends with the same bits."""
    with cluster(PLUGIN, **GPU_STATES) as c:
        train(c, STEPS)
        whole = c.checksum("gpt")
    with cluster(PLUGIN, **GPU_STATES) as c:
        text = text_file(c.directory)
        ranks = [gpt(c, 0, i, 2, text, STEPS) for i in range(2)]
        until(lambda: (c[0].job("gpt") or {}).get("version", 0) >= 1, END_S, "the first step")
        ranks[1].kill()
        ranks[1].wait()
        ranks[1] = gpt(c, 0, 1, 2, text, STEPS, "--incarnation", "1")
        for r in ranks:
            assert r.wait(END_S) == 0
        assert c.checksum("gpt") == whole


def main():
    use_bundle(TOP)
    for check in (same_bits, orderly_restart, memory_stays, trainers_killed):
        check()
        print(f"{check.__name__}: {check.__doc__.splitlines()[0]}", flush=True)


if __name__ == "__main__":
    main()
