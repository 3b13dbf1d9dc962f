#!/usr/bin/env python3
"""zeroctl export and import of a job's parameters as safetensors files, and import of hostile files."""
import json
import os
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import BIG, Place, planes, read_safetensors, train, write_safetensors  # noqa: E402
from cluster import SETS, Cluster, Tools, small_layout, step_all  # noqa: E402
from harness import case, cases_of, main  # noqa: E402

TRIES = 8  # until a step falls into an export


@cases_of(["fp32", "bf16", "fp16"])
def export_and_import(dtype):
    """An import replaces the job's other values with the exported ones, to the bit."""
    layout = small_layout(dtype, blocks=2, width=90)
    with Place() as d, Cluster(2) as c:
        ranks = c.ranks("job", layout, [0, 1], hold=2, push=2, grad=dtype)
        train(ranks, 2)
        answer = c[1].ctl("export", "job", f"{d}/a.safetensors")
        header, body = read_safetensors(f"{d}/a.safetensors")
        assert answer["version"] == 2 and header["__metadata__"]["version"] == "2"
        assert answer["tensors"] == len(header) - 1 and answer["bytes"] == len(body)
        assert header["wte"]["shape"] == [37, 90] and header["wte"]["dtype"] == "F32"
        begin = header["wte"]["data_offsets"][0]
        values = ranks[0].do("get", tensor=0, plane="master", count=37 * 90)["values"]
        assert list(struct.unpack(f"<{37 * 90}f", body[begin:begin + 4 * 37 * 90])) == values
        r = c[0].ctl("export", "job", f"{d}/s.safetensors", "--dtype", "serve")
        word = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}[dtype]
        assert read_safetensors(f"{d}/s.safetensors")[0]["wte"]["dtype"] == word
        before = planes(c)
        train(ranks, 1)
        moments = planes(c)
        c[0].ctl("import", "job", f"{d}/a.safetensors")
        after = planes(c)
        assert after["master"] == before["master"] and after["exp_avg"] == moments["exp_avg"]
        c[1].ctl("import", "job", f"{d}/s.safetensors")
        c[1].ctl("export", "job", f"{d}/t.safetensors", "--dtype", "serve")
        assert read_safetensors(f"{d}/s.safetensors")[1] == read_safetensors(f"{d}/t.safetensors")[1]
        assert sorted(os.listdir(d)) == ["a.safetensors", "s.safetensors", "t.safetensors"]


@cases_of([1, 2], "{}_nodes")
def export_refuses_to_mix_versions(nodes):
    """An export fails if any owner stepped while its shards were read, even if the asked node has not heard of it."""
    with Place() as d, Cluster(nodes, delay_ms=20 * (nodes - 1)) as c:
        ranks = c.ranks("job", BIG, range(nodes), hold=2, push=2)
        for _ in range(TRIES):
            asked = subprocess.Popen([Tools.zeroctl, "--socket", c[nodes - 1].socket, "export", "job", f"{d}/a.safetensors"],
                                     stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            while asked.poll() is None:
                step_all(ranks, sets=SETS)
            said = asked.communicate()[1]
            if asked.returncode:
                break
            os.unlink(f"{d}/a.safetensors")  # no step fell into this export
        assert asked.returncode == 1 and not os.listdir(d), os.listdir(d)
        assert "from version" in said, said


def hostile_headers(header, body):
    """(text of the error, header, body, length)"""
    one = {"wte": header["wte"]}
    entry = header["wte"]

    def changed(**fields):
        return {"wte": {**entry, **fields}}

    yield "is not a safetensors file", one, body, 1 << 62
    yield "is not a safetensors file", one, body, len(json.dumps(one)) + len(body) + 1
    yield "not a JSON object", b"[1, 2]", body, None
    yield "not a JSON object", b'{"a": ', body, None
    yield "not a JSON object", b'{"a": 1, "a": 2}', body, None
    yield "not a JSON object", b"[" * 100000, body, None
    yield "dtype", {"wte": 7}, body, None
    yield "not known", changed(dtype="F31"), body, None
    yield "shape", changed(shape=[-1]), body, None
    yield "shape", changed(shape=[1] * 9), body, None
    yield "shape", changed(shape=[1 << 40, 1 << 40]), body, None
    yield "shape makes", changed(shape=[37]), body, None
    yield "does not lie", changed(data_offsets=[8, 0]), body, None
    yield "does not lie", changed(data_offsets=[0, 1 << 60]), body, None
    yield "does not lie", changed(data_offsets=[0]), body, None
    yield "hole", changed(data_offsets=[4, len(body) + 4]), body + b"hole", None
    yield "belong to no tensor", one, body + b"x", None
    yield "overlaps", {"wte": entry, "wpe": entry}, body, None


@case
def import_of_hostile_files():
    layout = small_layout(blocks=1)
    with Place() as d, Cluster(1) as c:
        c.ranks("job", layout, [0], hold=2, push=2)
        c[0].ctl("export", "job", f"{d}/good")
        header, body = read_safetensors(f"{d}/good")
        sums = planes(c)
        begin, end_ = header["wte"]["data_offsets"]
        assert begin == 0
        for word, bad, data, length in hostile_headers(header, body[:end_]):
            write_safetensors(f"{d}/bad", bad, data, length)
            r = c[0].ctl_run("import", "job", f"{d}/bad")
            assert r.returncode == 1 and word in r.stderr, (word, r)
        for word, change in (("no tensor 'wte', which the job", lambda h: h.update(wtf=h.pop("wte"))),
                             ("no tensor 'more', which the file", lambda h: h.update(
                                 more={"dtype": "F32", "shape": [0], "data_offsets": [len(body)] * 2})),
                             ("another shape", lambda h: h["wte"].update(shape=h["wte"]["shape"][::-1])),
                             ("is I32", lambda h: h["wte"].update(dtype="I32"))):
            bad = json.loads(json.dumps(header))
            change(bad)
            write_safetensors(f"{d}/bad", bad, body)
            r = c[0].ctl_run("import", "job", f"{d}/bad")
            assert r.returncode == 1 and word in r.stderr, (word, r)
        os.mkfifo(f"{d}/fifo")
        for path in (f"{d}/none", d, "/dev/null", f"{d}/fifo"):
            assert c[0].ctl_run("import", "job", path).returncode == 1
        assert planes(c) == sums


if __name__ == "__main__":
    main()
