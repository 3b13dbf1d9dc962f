#!/usr/bin/env python3
"""zeroctl export and import of a job's parameters as safetensors files, and import of hostile files."""
import json
import math
import os
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import BIG, Place, planes, read_safetensors, train, write_safetensors  # noqa: E402
from cluster import SETS, SLOW, Cluster, Tools, group, small_layout, spawn, step_all, tensor, until  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402

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


@cases_of(["fp32", "bf16"])
def a_version_is_exported_while_the_job_trains(dtype):
    """The command waits for the version, whose file has nothing of later steps, and names the one that is there instead."""
    with Place() as d, Cluster(2) as c:
        ranks = c.ranks("job", small_layout(dtype, blocks=2, width=250), [0, 1], hold=2, push=2, grad=dtype)
        train(ranks, 1)
        c[0].ctl("export", "job", f"{d}/wanted", "--dtype", "serve")
        asked = subprocess.Popen([Tools.zeroctl, "--json", "--socket", c[1].socket, "export", "job", f"{d}/waits", "--at-version", "2"],
                                 stdout=subprocess.PIPE, text=True)
        until(lambda: any(r["waits"] for n in c[0].ctl("versions", "job")["nodes"] for r in n["readers"]), what="the reader")
        assert c[0].ctl("export", "job", f"{d}/held", "--at-version", "1")["version"] == 1
        train(ranks, 1, first_step=1)
        assert json.loads(asked.communicate()[0])["version"] == 2
        c[0].ctl("export", "job", f"{d}/second", "--dtype", "serve")
        for name, wanted in (("held", "wanted"), ("waits", "second")):
            with open(f"{d}/{name}", "rb") as f, open(f"{d}/{wanted}", "rb") as g:
                assert f.read() == g.read(), name
        for words, *arguments in ((["version 0", "is gone", "stands at version 2"], "--at-version", "0"),
                                  (["version 9", "stands at version 2"], "--at-version", "9", "--timeout", "1"),
                                  (["no fp32", "--dtype"], "--at-version", "2", "--dtype", "fp32")):
            r = c[0].ctl_run("export", "job", f"{d}/none", *arguments)
            assert r.returncode and all(word in r.stderr for word in words), (arguments, r.stderr)
        r = c[0].ctl_run("export", f"{d}/job-2", f"{d}/none", "--at-version", "2")
        assert r.returncode == 2 and "--at-version" in r.stderr, r.stderr
        assert sorted(os.listdir(d)) == ["held", "second", "waits", "wanted"]


@cases_of([1, 2], "{}_nodes")
def a_checkpoint_is_exported_while_the_job_trains(nodes):
    """The file has the values that the job had at the checkpoint; the job goes on, and nothing else is left."""
    with Place() as d, Cluster(nodes) as c:
        ranks = c.ranks("a-job", BIG, range(nodes), hold=2, push=2)
        train(ranks, 2)
        c[0].ctl("export", "a-job", f"{d}/idle")
        path = c[0].ctl("checkpoint", "a-job", d)["path"]
        asked = subprocess.Popen([Tools.zeroctl, "--json", "--socket", c[nodes - 1].socket, "export", path, f"{d}/trains"],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while asked.poll() is None:
            step_all(ranks, sets=SETS)
        r, said = asked.communicate()
        assert asked.returncode == 0, said
        r = json.loads(r)
        assert (r["job"], r["version"]) == ("a-job", 2), r
        assert read_safetensors(f"{d}/trains") == read_safetensors(f"{d}/idle")
        assert [job["job"] for job in c[0].status()["jobs"]] == ["a-job"] and c[0].job("a-job")["version"] > 2
        r = c[0].ctl_run("export", f"{d}/none-3", f"{d}/x")
        assert r.returncode == 1 and "No such file" in r.stderr and not os.path.exists(f"{d}/x"), r
        r = c[0].ctl_run("export", path, f"{d}/none/x")
        assert r.returncode == 1 and [job["job"] for job in c[0].status()["jobs"]] == ["a-job"], r


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


# ---- large files -------------------------------------------------------------------

LARGE = [group("a", tensor("a.w", 1 << 20, 12), dtype="bf16"), group("b", tensor("b.w", 1 << 20, 4), tensor("b.b", 5))]
SLOTS = 4 << 20  # bytes of a session's transfer area


def write_large(path, layout, flip=0):
    """Any values, as many as the layout has; flip: other ones."""
    header, at = {}, 0
    for t in (t for g in layout for t in g["tensors"]):
        size = 4 * math.prod(t["shape"])
        header[t["name"]] = {"dtype": "F32", "shape": t["shape"], "data_offsets": [at, at + size]}
        at += size
    words = struct.pack("<4096I", *((i * 2654435761 ^ flip << 13) & 0x3fffffff for i in range(4096)))
    write_safetensors(path, header, (words * (at // len(words) + 1))[:at])


class Import:
    """zeroctl import, while something else goes on."""

    def __init__(self, daemon, path):
        self.process = spawn([Tools.zeroctl, "--socket", daemon.socket, "import", "job", path],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def memory(self, field):
        """Bytes, of /proc/PID/status."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as f:
            return next((int(line.split()[1]) * 1024 for line in f if line.startswith(field)), 0)

    def end(self):
        said = self.process.communicate(timeout=60 * SLOW)[1]
        return self.process.returncode, said


def anonymous(daemon):
    """Bytes of the daemon's memory that is no plane and no window."""
    with open(f"/proc/{daemon.process.pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("RssAnon"))


@cases_of(["BF16", "F16"])
def every_value_of_16_bits_is_widened_exactly(word):
    """Half of the values lie on the other node.  NaN may become another NaN."""
    values = struct.pack("<65536H", *range(65536))
    if word == "BF16":
        wide = [i << 16 for i in range(65536)]
    else:
        wide = struct.unpack("<65536I", struct.pack("<65536f", *struct.unpack("<65536e", values)))
    with Place() as d, Cluster(2, mirror=1) as c:
        c.ranks("job", [group("g", tensor("t", 65536))], [0, 1], hold=1, push=1)
        write_safetensors(f"{d}/in", {"t": {"dtype": word, "shape": [65536], "data_offsets": [0, len(values)]}}, values)
        c[0].ctl("import", "job", f"{d}/in")
        c[1].ctl("export", "job", f"{d}/out")
        found = struct.unpack("<65536I", read_safetensors(f"{d}/out")[1])
        for i, (a, b) in enumerate(zip(found, wide)):
            nan = a & 0x7fffffff > 0x7f800000 and b & 0x7fffffff > 0x7f800000
            assert a == b or nan, (i, hex(a), hex(b))
        told = c.checksum("job")
        assert told["mirrors"] == told["planes"], told


@case
def an_import_holds_a_few_pieces_of_the_file():
    with Place() as d, Cluster(1) as c:
        c.ranks("job", LARGE, [0], hold=1, push=1)
        write_large(f"{d}/large", LARGE)
        size, before, client, daemon = os.path.getsize(f"{d}/large"), anonymous(c[0]), 0, 0
        run = Import(c[0], f"{d}/large")
        end = time.monotonic() + 60 * SLOW
        while run.process.poll() is None and time.monotonic() < end:
            client, daemon = max(client, run.memory("VmHWM")), max(daemon, anonymous(c[0]))
        assert run.end()[0] == 0 and size > 60 << 20
        if SLOW > 1:
            raise Skip("the address sanitizer keeps freed memory")
        assert 0 < client < 24 << 20, client
        assert daemon - before < 4 * SLOTS, daemon - before


def stuck_import(d, c, flip=0):
    """An import that has all slots under way, for the other node says nothing."""
    c.ranks("job", LARGE, [0], hold=1, push=1)
    write_large(f"{d}/large", LARGE, flip)
    c[1].stop()
    run = Import(c[0], f"{d}/large")
    until(lambda: run.memory("RssShmem") >= SLOTS, what="the pieces under way")
    return run


def imports_in_whole(d, c):
    """The file can be imported now, and is then all there; nothing is left of the import before."""
    write_large(f"{d}/whole", LARGE, 1)
    c[0].ctl("import", "job", f"{d}/whole")
    c[1].ctl("export", "job", f"{d}/out")
    (header, body), (found, values) = (read_safetensors(f"{d}/{name}") for name in ("whole", "out"))
    for name, entry in header.items():
        (a, b), (x, y) = entry["data_offsets"], found[name]["data_offsets"]
        assert body[a:b] == values[x:y], name


@case
def a_file_that_shrinks_while_it_is_imported():
    with Place() as d, Cluster(2) as c:
        run = stuck_import(d, c)
        os.truncate(f"{d}/large", SLOTS * 2 + 123)
        c[1].go_on()
        status, said = run.end()
        assert status == 1 and "shorter" in said and "a.w" in said, said
        imports_in_whole(d, c)


@case
def a_daemon_killed_while_a_file_is_imported():
    with Place() as d, Cluster(2) as c:
        run = stuck_import(d, c)
        c[0].kill()
        c[1].go_on()
        status, said = run.end()
        assert status != 0 and "large" in said and "connection" in said, (status, said)
        c[0].start()
        c.wait_up()
        until(lambda: c[0].ctl_run("checksum", "job").returncode == 0, what="the job")
        imports_in_whole(d, c)


@case
def a_put_refused_with_others_under_way():
    """An import in the middle of a step ends with the reason."""
    with Place() as d, Cluster(1) as c:
        a, = c.ranks("job", LARGE, [0], hold=1, push=2)
        write_large(f"{d}/large", LARGE)
        sums = planes(c)
        a.do("grad", group=0)
        a.do("push", group=0)
        r = c[0].ctl_run("import", "job", f"{d}/large")
        assert r.returncode == 1 and "rank 0 has pushed" in r.stderr and "a.w" in r.stderr, r
        assert planes(c) == sums
        a.do("grad", group=1)
        a.do("push", group=1)
        a.do("step", sets=SETS[:1])
        c[0].ctl("import", "job", f"{d}/large")


if __name__ == "__main__":
    main()
