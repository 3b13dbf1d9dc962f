#!/usr/bin/env python3
"""Groups of frozen bytes: owners keep, serve and move every byte as it is, also where four of them are a NaN, beside
groups that train in bf16."""
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import Place, end, read_safetensors, train, write_safetensors  # noqa: E402
from cluster import Cluster, group, small_layout, tensor, until  # noqa: E402
from harness import case, cases_of, main  # noqa: E402
from moments import can_vote, lies_on, lose  # noqa: E402

LENGTH = 300001  # bytes, of several owners; not whole words
KINDS = {"uint8": "U8", "int8": "I8", "fp8-e4m3": "F8_E4M3", "fp8-e5m2": "F8_E5M2", "bool": "BOOL"}
NEEDS = {"hold": 2, "push": 2, "grad": "bf16"}
NANS = bytes.fromhex("010080ff" "ffffbf7f" "0000a07f" "efbeadff")  # quiet and signalling, as fp32


def frozen(name, *shape):
    return tensor(name, *shape, frozen=True, init="put", value=0)


def layout():
    """Two groups of bytes between groups that train."""
    packed = group("packed", frozen("q", LENGTH, 1), frozen("q.none", 0), frozen("q.one"), dtype="uint8")
    others = [group(k, frozen(k, 3, 257), dtype=k) for k in list(KINDS)[1:]]
    return [packed, *small_layout("bf16", blocks=1), *others]


def filled(c, job, directory):
    """Imports all bytes into the job's groups of bytes; what they are, by name."""
    c[0].ctl("export", job, f"{directory}/a")
    header, body = read_safetensors(f"{directory}/a")
    body, wanted = bytearray(body), {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in KINDS.values():
            continue
        first, last = entry["data_offsets"]
        values = bytes(range(256)) + NANS + random.Random(last).randbytes(LENGTH)
        wanted[name] = body[first:last] = values[:last - first]
    write_safetensors(f"{directory}/b", header, bytes(body))
    c[0].ctl("import", job, f"{directory}/b")
    assert {header[name]["dtype"] for name in wanted} == set(KINDS.values())
    assert len(wanted["q"]) == LENGTH and len(wanted["q.one"]) == 1 and wanted["q.none"] == b""
    return wanted


def has(c, wanted, directory, job="job", node=0):
    """Owners have the bytes, and serve them."""
    for how in ("fp32", "serve"):
        c[node].ctl("export", job, f"{directory}/c", "--dtype", how)
        header, body = read_safetensors(f"{directory}/c")
        for name, values in wanted.items():
            first, last = header[name]["data_offsets"]
            assert body[first:last] == values, (name, how)


def seen(rank):
    """What a rank gets of the group of packed bytes, as a number."""
    rank.do("fetch", group=0)
    told = rank.do("view", group=0)["hash"]
    rank.do("release", group=0)
    return told


@cases_of([1, 2, 3], "{}_nodes")
def kept_over_steps_and_kills(nodes):
    """Ranks train the other groups; daemons are killed; what ranks get stays the same."""
    with Place() as d, Cluster(nodes) as c:
        ranks = c.ranks("job", layout(), range(nodes), **NEEDS)
        train(ranks, 1)
        zeros = seen(ranks[0])
        wanted = filled(c, "job", d)
        begin = {seen(r) for r in ranks}
        assert len(begin) == 1 and begin != {zeros}
        train(ranks, 2)
        assert {seen(r) for r in ranks} == begin
        for daemon in c.daemons:
            daemon.kill()
        for daemon in c.daemons:
            daemon.start()
        train(ranks, 1, patient=True)
        assert {seen(r) for r in ranks} == begin
        end(ranks)
        has(c, wanted, d, node=nodes - 1)


@case
def mirrored():
    """The mirror has every byte: a node that lost its states gets them back."""
    with Place() as d, Cluster(2, mirror=1) as c:
        ranks = c.ranks("job", layout(), [0, 1], **NEEDS)
        wanted = filled(c, "job", d)
        train(ranks, 1)
        for a in ranks:
            c.dismiss(a)
        for daemon in c.daemons:
            lose(daemon)
            until(lambda d=daemon: d.ctl_run("status").returncode == 0, what="the daemon")
            until(lambda d=daemon: (d.job("job") or {"move": 1})["move"] is None, what="the end of the fill")
            assert "mirrors" in c.checksum("job")
        has(c, wanted, d)


@cases_of([1, 3], "on_{}_nodes")
def restored(nodes):
    """A checkpoint has the bytes, for any number of owners, and training goes on."""
    with Place() as d:
        with Cluster(2) as c:
            ranks = c.ranks("job", layout(), [0, 1], **NEEDS)
            wanted = filled(c, "job", d)
            train(ranks, 1)
            path = c[0].ctl("checkpoint", "job", d)["path"]
            sums = c.checksum("job")["planes"]
        with Cluster(nodes) as c:
            c[0].ctl("restore", "job", path)
            assert c.checksum("job")["planes"] == sums
            has(c, wanted, d)
            ranks = c.ranks("job", layout(), [0, nodes - 1], **NEEDS)
            train(ranks, 1)
            has(c, wanted, d)


@case
def moved():
    """Shards move to another node and back."""
    with Place() as d, Cluster(3, owners=2) as c:
        can_vote(c)
        ranks = c.ranks("job", layout(), [0, 1], **NEEDS)
        wanted = filled(c, "job", d)
        train(ranks, 1)
        c[0].change_owners("add-node", "n2")
        lies_on(c, ["n0", "n2", "n1"])
        has(c, wanted, d)
        c[1].change_owners("remove-node", "n0")
        lies_on(c, ["n2", "n1"])
        train(ranks, 1, patient=True)
        has(c, wanted, d)


@case
def refused():
    """No gradient, no moment, no other type; a job's bytes are of one type."""
    with Place() as d, Cluster(1) as c:
        rank, = c.ranks("job", layout(), [0], **NEEDS)
        rank.refused("EINVAL", "get", "frozen", tensor=0, plane="exp_avg")
        rank.refused("EINVAL", "push", "'packed' has no trainable tensor", group=0)
        end([rank])
        for change, words in (({"init": "normal"}, "begin as zeros"), ({"frozen": False}, "is not frozen")):
            a = c.actor()
            a.do("connect", job="other", rank=0, world=1, local=1)
            a.refused("EINVAL", "layout", "'q'", words, groups=[group("g", {**frozen("q", 3), **change}, dtype="uint8")])
        c[0].ctl("export", "job", f"{d}/a")
        header, body = read_safetensors(f"{d}/a")
        header["q"]["dtype"] = "I8"
        write_safetensors(f"{d}/a", header, body)
        r = c[0].ctl_run("import", "job", f"{d}/a")
        assert r.returncode == 1 and "'q' is I8 in the file: the job has U8" in r.stderr, r.stderr


@case
def planned():
    """zeroctl plan counts a byte a byte, no moments, and a page where the next group of the only owner begins."""
    with Place() as d, Cluster(1) as c:
        header = {"h.0.q": {"dtype": "U8", "shape": [1 << 20, 3], "data_offsets": [0, 3 << 20]},
                  "h.0.w": {"dtype": "BF16", "shape": [128], "data_offsets": [3 << 20, (3 << 20) + 256]}}
        write_safetensors(f"{d}/a.safetensors", header, bytes((3 << 20) + 256))
        told = c[0].ctl("plan", "--model", f"{d}/a.safetensors", "--nodes", "1", "--ranks", "1", "--dtype", "fp16")
        planes = told["nodes"][0]["planes"]
        assert told["model"]["trainable"] == 128 and planes["master"] == (3 << 20) + 4096, told
        assert planes["exp_avg"] == 512 and planes["serve"] == 4096, told


if __name__ == "__main__":
    main()
