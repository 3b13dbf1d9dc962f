#!/usr/bin/env python3
"""Planes have the bytes of the formula, no memory grows with the steps, and a trainer maps only its windows."""
import os
import re
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SETS, SLOW, Cluster, descriptors, finish_all, group, resident, small_layout, tensor, until  # noqa: E402
from groups import Group  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402

ALIGN, PAGE = 128, 4096  # elements, bytes
FIXED = 5 << 18  # bytes of a state file that do not depend on the parameters: undo slots, header, records
PEER = 1200  # KiB that a daemon may use for each peer
SLACK = 1024  # KiB that a process may grow by: its allocator keeps some


def elements(layout, trainable_only):
    """Elements of the groups, with the padding of their tensors."""
    n = 0
    for g in layout:
        for t in g["tensors"]:
            size = 1
            for extent in t["shape"]:
                size *= extent
            if not (trainable_only and t.get("frozen")):
                n += (size + ALIGN - 1) // ALIGN * ALIGN
    return n


@cases_of([(d, n) for d in ("fp32", "bf16", "fp16") for n in (1, 3)], "{0[0]}_{0[1]}")
def planes(what):
    """4 bytes for master; 4 for each moment and the gradient, except of frozen tensors; 2 for serve."""
    dtype, nodes = what
    layout = small_layout(dtype, width=256)
    total, trainable = elements(layout, False), elements(layout, True)
    assert trainable < total
    with Cluster(nodes) as c:
        c.ranks("planes", layout, [0], hold=1, push=1, grad=dtype)
        sums = dict.fromkeys(("master", "exp_avg", "exp_avg_sq", "grad", "serve"), 0)
        for d in c.daemons:
            job, used = d.job("planes"), d.status()["memory"]["state_used"]
            own = sum(job["planes"].values())
            assert own <= used <= own * 1.01 + FIXED, (own, used)
            assert job["parameters"] == total
            assert job["zero_formula"]["stage3_bytes"] == 16 * total // nodes
            for plane, size in job["planes"].items():
                sums[plane] += size
        expected = {"master": 4 * total, "exp_avg": 4 * trainable, "exp_avg_sq": 4 * trainable, "grad": 4 * trainable,
                    "serve": 0 if dtype == "fp32" else 2 * total}
        shards = check_shards(c, expected)
        for plane in ("serve", "master") if nodes == 1 else ("serve",):
            padding = sums.pop(plane) - expected.pop(plane)
            assert 0 <= padding <= shards * PAGE, f"each shard begins at a page of {plane}, which trainers may map"
        assert sums == expected, (sums, expected)


def check_shards(c, expected):
    """Shards cover each group once, with the bytes of the formula; returns their number."""
    seen, count = dict.fromkeys(expected, 0), 0
    for g in c[0].ctl("shards", "planes")["jobs"][0]["groups"]:
        ranges = sorted((s["first"], s["count"]) for s in g["shards"])
        assert ranges[0][0] == 0 and sum(n for _, n in ranges) == g["elements"], g
        assert all(a + n == b for (a, n), (b, _) in zip(ranges, ranges[1:])), g
        for s in g["shards"]:
            assert s["version"] == 0, s
            count += 1
            for plane, size in s["bytes"].items():
                seen[plane] += size
    assert seen == expected, (seen, expected)
    return count


@case
def balanced():
    """No owner of four holds more than a few slices beyond its quarter."""
    layout = [group(f"g{i}", tensor(f"t{i}", 70000 + 3000 * i)) for i in range(12)]
    with Cluster(4) as c:
        c.ranks("balance", layout, [0], hold=1, push=1)
        held = [sum(d.job("balance")["planes"].values()) for d in c.daemons]
        assert max(held) < 1.1 * sum(held) / 4, held


@case
def nothing_grows():
    if SLOW > 1:
        raise Skip("the address sanitizer keeps freed memory")
    with Cluster(2) as c:
        ranks = c.ranks("growth", small_layout(), [0, 1], hold=2, push=2)
        sizes = []
        for steps in (100, 400):
            for a in ranks:
                a.start("train", steps=steps, micro_batches=1, sets=SETS, clip=1)
            finish_all(ranks)
            sizes.append([d.memory() for d in c.daemons] + [resident(a.pid) for a in ranks] +
                         [d.status()["memory"]["state_used"] / 1024 for d in c.daemons])
        descriptors = [d.descriptors() for d in c.daemons]
        assert all(late <= early + SLACK for early, late in zip(*sizes)), f"kB at step 100 and 500: {sizes}"
        assert all(n < 100 for n in descriptors), descriptors


MEMORY_OF_PEERS = {"read": {}, "in_pieces": {"ucx_tls": "posix,self"}}


def shared_with_peers(pid):
    """KiB of UCX's shared memory that a process has mapped; all of it is allocated, touched or not."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as f:
        ranges = [line.split()[0].split("-") for line in f if "ucx_shm_posix" in line]
    return sum(int(end, 16) - int(begin, 16) for begin, end in ranges) // 1024


@cases_of(MEMORY_OF_PEERS)
def a_peer_takes_at_most_1200_kib(how):
    """Compares daemons of two nodes and of eight, with payloads of all sizes over shared memory."""
    options = MEMORY_OF_PEERS[how]
    layout = [group(f"g{i}", tensor(f"t{i}", n)) for i, n in enumerate([100, 2000, 5000, 40000] * 6)]
    few, many = 2, 8
    resident_kb, shared_kb = [], []
    for nodes in (few, many):
        with Cluster(nodes, bulk="ucx", **options) as c:
            ranks = c.ranks("peers", layout, list(range(nodes)), hold=2, push=2)
            for a in ranks:
                a.start("train", steps=20, sets=SETS)
            finish_all(ranks)
            resident_kb.append(statistics.median(d.memory() for d in c.daemons))
            shared_kb.append(shared_with_peers(c[0].process.pid))
    assert shared_kb[0] > 0, "nothing goes over shared memory"
    assert shared_kb[1] - shared_kb[0] <= (many - few) * PEER, f"kB: {shared_kb}"
    if SLOW == 1:  # the address sanitizer keeps freed memory
        assert resident_kb[1] - resident_kb[0] <= (many - few) * PEER, f"kB: {resident_kb}"


@case
def sessions_leak_nothing():
    """Sessions that come and go leave neither memory nor descriptors."""
    with Cluster(1) as c:
        keep, = c.ranks("keep", small_layout(), [0], hold=2, push=2)
        sizes = []
        for count in (30, 100):
            for _ in range(count):
                a = c.actor()
                a.do("connect", job="keep", rank=-1)
                a.do("attach", observer=True)
                a.do("get", tensor=0, plane="master", count=100)
                a.end()
            sizes.append((c[0].memory(), c[0].descriptors()))
        until(lambda: c[0].descriptors() <= sizes[0][1], what=f"return of descriptors, {sizes}")
        if SLOW == 1:
            assert sizes[1][0] <= sizes[0][0] + SLACK, f"kB: {sizes}"
        keep.do("version")


def mapped(pid):
    """Bytes of zerod's memory that a process maps, by the memfd's name."""
    sizes = {}
    with open(f"/proc/{pid}/maps", encoding="utf-8") as f:
        for line in f:
            m = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+) .*memfd:(zerod\S*)", line)
            if m:
                assert "x" not in m[3], line
                sizes[m[4]] = sizes.get(m[4], 0) + int(m[2], 16) - int(m[1], 16)
    return sizes


@cases_of(["fp32", "bf16"])
def trainer_maps_its_windows(dtype):
    layout = [group(f"g{i}", tensor(f"t{i}", 500000), dtype=dtype) for i in range(12)]
    size = 2 if dtype == "bf16" else 4
    with Cluster(3) as c:
        ranks = c.ranks("maps", layout, [0, 1], hold=2, push=2, grad=dtype)
        for a in ranks:
            a.start("train", steps=2, sets=SETS)
        finish_all(ranks)
        for node, a in enumerate(ranks):
            job, seen = c[node].job("maps"), mapped(a.pid)
            windows = job["gather"]["window_bytes"] + job["sessions"][0]["push_window"]
            assert sum(seen.values()) == windows, (seen, windows)
            assert windows <= 4 * 500000 * size * 1.01 + (4 << 20) + 8192, windows
            assert job["gather"]["slots"] == 2


def resident_of(pid, name):
    """Resident bytes of the mappings of that name."""
    total, within = 0, False
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as f:
        for line in f:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                within = f"memfd:{name}" in line
            elif within and line.startswith("Rss:"):
                total += int(line.split()[1]) * 1024
    return total


@case
def a_session_takes_memory_when_it_is_used():
    """Neither the area for zero_get() and zero_put() nor the push slots take memory before their first use."""
    layout, transfer = [group("g", tensor("t", 50000))], 4 << 20
    with Cluster(1) as c:
        a, = c.ranks("transfer", layout, [0], hold=1, push=1)
        window = c[0].job("transfer")["sessions"][0]["push_window"]
        assert transfer + 4 * 50000 <= window and resident_of(a.pid, "zerod-session") <= PAGE
        a.do("get", tensor=0, plane="master", count=50000)
        read = resident_of(a.pid, "zerod-session")
        assert 4 * 50000 <= read <= 4 * 50000 + 2 * PAGE, read
        a.do("train", steps=1, sets=SETS)
        assert resident_of(a.pid, "zerod-session") - read >= window - transfer - PAGE


def allocated(pid, name):
    """Bytes of memory that a process's memfds of that name have."""
    sizes = {}
    for path, target in descriptors(pid).items():
        if target.startswith(f"/memfd:{name}"):
            seen = os.stat(path)
            sizes[seen.st_ino] = seen.st_blocks * 512
    assert sizes, name
    return sum(sizes.values())


@case
def windows_take_the_memory_of_what_is_in_them():
    """Two large groups at the ends of small ones: one slot of the gather window grows, and no free push slot does."""
    small, large, transfer = 4 * 500000, 4 * 4000000, 4 << 20
    sizes = [large, *[small] * 16, large]
    layout = [group(f"g{i}", tensor(f"t{i}", size // 4)) for i, size in enumerate(sizes)]
    with Cluster(2) as c:
        ranks = c.ranks("sizes", layout, [0, 1], hold=3, push=2)
        for a in ranks:
            a.start("train", steps=3, micro_batches=2, sets=SETS)
        finish_all(ranks)
        for node, d in enumerate(c.daemons):
            job = c[node].job("sizes")
            gather, session = (allocated(d.process.pid, f"zerod-{name}") for name in ("gather", "session"))
            assert gather <= large + 2 * small + 3 * PAGE < job["gather"]["window_bytes"], gather
            assert session <= transfer + 2 * small + 3 * PAGE < job["sessions"][0]["push_window"], session


@case
def the_only_owners_trainer_maps_the_serve_plane():
    """A node that holds all states, served in the trainers' dtype, gathers nothing."""
    layout = small_layout("bf16")
    with Cluster(1) as c:
        a, = c.ranks("mapped", layout, [0], hold=-1, push=2, grad="bf16")
        a.do("train", steps=3, sets=SETS, stage=1)
        job = c[0].job("mapped")
        assert job["gather"]["misses"] == 0 and job["gather"]["window_bytes"] == 0, job["gather"]
        assert sum(mapped(a.pid).values()) >= job["planes"]["serve"]


@case
def limit_of_the_control_group():
    """States and stashes beyond what the daemon's group leaves are refused by name, and a checkpoint's copy stays
    within it."""
    layout = small_layout(blocks=4, width=700)
    with Group() as limited, tempfile.TemporaryDirectory(dir="/var/tmp") as d, Cluster(1) as c:
        if b"tmpfs" in subprocess.run(["stat", "-f", "-c", "%T", d], capture_output=True, check=True).stdout:
            raise Skip("/var/tmp is memory: a checkpoint there counts as used")
        limited.add(c[0].process.pid)
        a, = c.ranks("job", layout, [0], hold=2, push=2)
        a.do("train", steps=1, sets=SETS)
        limited.limit(limited.used() + (48 << 20))
        answer = c[0].ctl("checkpoint", "job", d)
        assert answer["bytes"] > 64 << 20 and answer["buffer_bytes"] <= 36 << 20, answer
        b = c.caller("other", layout, [0], 0)
        finish_all([b]), finish_all([b])
        b.refused("ESHM", "attach", "the control group of zerod leaves", hold=1, push=1)
        b = c.caller("small", small_layout(), [0], 0)
        finish_all([b]), finish_all([b])
        b.refused("ESHM", "attach", "can spare", hold=1, push=1, stash={"ranks": [0], "bytes": 128 << 20})
        a.do("train", steps=1, sets=SETS)


if __name__ == "__main__":
    main()
