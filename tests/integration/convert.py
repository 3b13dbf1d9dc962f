#!/usr/bin/env python3
"""Checkpoints that are restored in other formats of moments and master weights: by name alone, and to the same bits for any
owners."""
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import Place, end  # noqa: E402
from cluster import MUON_SETS, SETS, Cluster, group, muon_layout, tensor, until  # noqa: E402
from fake_gpu import plugin  # noqa: E402
from harness import case, cases_of, main  # noqa: E402
from same_bits import Job  # noqa: E402

LAYOUT = [*({**g, "ema": i == 1} for i, g in enumerate(muon_layout("bf16", blocks=2))),
          group("fixed", tensor("fixed", 300, frozen=True), dtype="bf16")]
NAMES = [t["name"] for g in LAYOUT for t in g["tensors"]]
JOB = Job(LAYOUT, sets=[*SETS, *MUON_SETS], ema_decay=0.9)
PLANES = [("wte", "exp_avg", 37 * 64), ("wte", "exp_avg_sq", 37 * 64), ("wte", "master", 37 * 64), ("wpe", "master", 11 * 64),
          ("b0.experts", "moment1", 5 * 64 * 128), ("b0.up", "master", 64 * 259), ("b0.bias", "exp_avg_sq", 197),
          ("b0.up", "ema", 64 * 259), ("b1.down", "moment1", 259 * 64), ("head", "exp_avg_sq", 64 * 129), ("fixed", "master", 300)]
NEAR = {"fp32": (0, 0), "bf16": (2.0 ** -7, 0), "8bit": (1 / 16, 1 / 186), "bf16+16": (0, 0), "bf16+8": (2.0 ** -15, 0)}
# formats of the checkpoint, what --convert says, formats of the job
PAIRS = {"down": (("fp32", "fp32"), "8bit,bf16+8", ("8bit", "bf16+8")), "moments": (("fp32", "fp32"), "8bit", ("8bit", "fp32")),
         "half": (("fp32", "fp32"), "bf16,bf16+16", ("bf16", "bf16+16")), "exact": (("fp32", "fp32"), "fp32,bf16+16", ("fp32", "bf16+16")),
         "up": (("8bit", "bf16+8"), "fp32,fp32", ("fp32", "fp32")), "exact_up": (("fp32", "bf16+16"), "fp32,fp32", ("fp32", "fp32")),
         "across": (("bf16", "bf16+8"), "8bit,bf16+16", ("8bit", "bf16+16")), "narrower": (("8bit", "bf16+16"), "8bit,bf16+8", ("8bit", "bf16+8"))}


def laid_out(formats, **more):
    """Groups without trained tensors stay in fp32."""
    return [g if g["name"] == "fixed" else {**g, **dict(zip(("state", "master"), formats)), **more} for g in LAYOUT]


def values(a):
    return {(n, p): a.do("get", tensor=NAMES.index(n), plane=p, first=0, count=count)["values"] for n, p, count in PLANES}


def saved(c, formats, d, steps=2):
    """A checkpoint of a job with these formats, and its values."""
    ranks = JOB.attached(c, laid_out(formats))
    JOB.train(c, ranks, steps)
    return c[0].ctl("checkpoint", "job", d)["path"], values(ranks[0])


def check_near(found, wanted, formats):
    for (name, plane), before in wanted.items():
        part, of_most = (0, 0) if plane == "ema" or name == "fixed" else NEAR[formats[plane == "master"]]
        after = found[name, plane]
        if not part:
            assert after == before, (name, plane)
            continue
        for i, (x, y) in enumerate(zip(after, before)):
            most = of_most and max(map(abs, before[i // 64 * 64:i // 64 * 64 + 64]))
            assert abs(x - y) <= part * abs(y) + of_most * most, (name, plane, i, x, y)


def is_exact(formats):
    return all(NEAR[f] == (0, 0) for f in formats)


@cases_of(PAIRS)
def values_are_those_of_the_checkpoint(pair):
    """Or within the format's step of them.  Converted back they are the same bits, where nothing was lost."""
    before, text, after = PAIRS[pair]
    with Place() as d:
        with Cluster(2) as c:
            path, wanted = saved(c, before, d)
            planes = c.checksum("job")["planes"]
        with Cluster(3) as c:
            assert c[1].ctl("restore", "job", path, "--convert", text)["version"] == 2
            ranks = JOB.attached(c, laid_out(after))
            found = values(ranks[0])
            check_near(found, wanted, after)
            again = c[0].ctl("checkpoint", "job", f"{d}/again")["path"]
            JOB.train(c, ranks, 1)
        with Cluster(1) as c:
            c[0].ctl("restore", "back", again, "--convert", ",".join(before))
            ranks = c.ranks("back", laid_out(before), [0, 0], hold=2, push=2)
            check_near(values(ranks[0]), found, before)
            if is_exact((*before, *after)):
                assert c.checksum("back")["planes"] == planes


@case
def bits_are_those_of_any_owners():
    """Of the checkpoint, and of the job."""
    told = []
    with Place() as d:
        for of, to in ((1, 1), (3, 1), (1, 3), (3, 2)):
            with Cluster(3, owners=of) as c:
                path, _ = saved(c, ("bf16", "bf16+16"), f"{d}/{of}{to}", 1)
            with Cluster(3, owners=to, mirror=1 if to == 2 else 0) as c:
                c[0].ctl("restore", "job", path, "--convert", "8bit,bf16+8")
                ranks = JOB.attached(c, laid_out(("8bit", "bf16+8")))
                told.append((c.checksum("job")["planes"], JOB.train(c, ranks, 1)))
    assert all(t == told[0] for t in told), told


@case
def a_job_keeps_its_formats_by_name_alone():
    """Each group its own, and its whole tensors."""
    own = [{**g, "state": s, "master": m, "tensors": [{**t, "whole": t["name"] == "head"} for t in g["tensors"]]}
           for g, s, m in zip(LAYOUT, ("8bit", "bf16", "fp32", "8bit", "fp32"), ("bf16+8", "fp32", "bf16+16", "bf16+16", "bf16+16"))]
    with Place() as d:
        with Cluster(2) as c:
            path, wanted = saved(c, ("fp32", "fp32"), d)
        with Cluster(3) as c:
            end(JOB.attached(c, own))
            before = c.checksum("job")["planes"]
            r = c[1].ctl_run("restore", "job", path)
            for words in ("group 'embed'", "moments in fp32 in the checkpoint", "8bit in job 'job'", "--convert job", "drop job"):
                assert r.returncode == 1 and words in r.stderr, r.stderr
            assert c.checksum("job")["planes"] == before
            c[1].ctl("restore", "job", path, "--convert", "job")
            ranks = JOB.attached(c, own)
            found = values(ranks[0])
            for (name, plane), before in wanted.items():
                g = next(g for g in own if name in [t["name"] for t in g["tensors"]])
                check_near({(name, plane): found[name, plane]}, {(name, plane): before}, (g["state"], g["master"]))
            JOB.train(c, ranks, 1)
            c[0].restart()
            c.wait_up()
            JOB.train(c, ranks, 1)


@case
def a_job_that_is_dropped_has_those_of_the_checkpoint():
    with Place() as d:
        with Cluster(2) as c:
            path, wanted = saved(c, ("8bit", "bf16+8"), d)
            planes = c.checksum("job")["planes"]
        with Cluster(3) as c:
            end(JOB.attached(c))
            r = c[0].ctl_run("restore", "job", path)
            assert r.returncode == 1 and "moments in 8bit in the checkpoint, and in fp32" in r.stderr, r.stderr
            c[0].ctl("drop", "job")
            c[0].ctl("restore", "job", path)
            assert c.checksum("job")["planes"] == planes
            c[0].ctl("restore", "job", path, "--convert", "8bit,bf16+8")
            assert c.checksum("job")["planes"] == planes and values(JOB.attached(c, laid_out(("8bit", "bf16+8")))[0]) == wanted


@cases_of(["up", "across", "down"])
def owners_on_gpus_take_it_as_a_host_does(pair):
    before, text, after = PAIRS[pair]
    with Place() as d:
        with Cluster(2) as c:
            path, _ = saved(c, before, d)
        told = []
        for place in ({}, {"optimizer": "device", "cuda_plugin": plugin(), "chunk": 640}):
            with Cluster(2, **place) as c:
                c[0].ctl("restore", "job", path, "--convert", text)
                told.append((values(JOB.attached(c, laid_out(after))[0]), c.checksum("job")["planes"]))
        assert told[0] == told[1]


@case
def a_client_converts_by_a_question():
    with Place() as d, Cluster(2) as c:
        path, wanted = saved(c, ("fp32", "fp32"), d)
        a = c.actor(0)
        a.do("connect")
        a.do("query", what="restore", argument=json.dumps({"job": "other", "directory": path, "convert": "bf16,bf16+16"}))
        until(lambda: (c[0].query("progress", "other")[0] or {}).get("phase") == "done", what="the restore")
        check_near(values(c.ranks("other", laid_out(("bf16", "bf16+16")), [0, 1], hold=2, push=2)[0]), wanted, ("bf16", "bf16+16"))


@case
def what_cannot_be_converted_is_refused():
    with Place() as d, Cluster(2) as c:
        path, _ = saved(c, ("fp32", "fp32"), d, 1)
        fp32 = c.ranks("fp32", [group("g", tensor("w", 640))], [0], hold=1, push=1)
        other = c[0].ctl("checkpoint", "fp32", d)["path"]
        end(fp32)
        before = c.checksum("fp32")["planes"]
        for words, job, place, text in (
                (["'4bit'", "fp32, bf16 or 8bit"], "new", path, "4bit"), (["'bf16'", "bf16+16 or bf16+8"], "new", path, "8bit,bf16"),
                (["no group", "'bf16+8'", "served in bf16"], "fp32", other, "8bit,bf16+8"),
                (["no job 'new'", "8bit,bf16+8"], "new", path, "job"), (["does not have group 0", "'embed'"], "fp32", path, "job"),
                (["format"], "new", path, ""), (["format"], "new", path, "8" * 500), (["format"], "new", path, "8bit,"),
                (["'bf16+8,fp32'"], "new", path, "8bit,bf16+8,fp32")):
            r = c[0].ctl_run("restore", job, place, "--convert", text)
            assert r.returncode != 0 and all(w in r.stderr for w in words), (text, r.stderr)
        assert c.checksum("fp32")["planes"] == before and not [j for j in c[0].ctl("jobs")["jobs"] if j["job"] == "new"]


if __name__ == "__main__":
    main()
