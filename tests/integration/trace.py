#!/usr/bin/env python3
"""zeroctl trace on real clusters: what took time is there, on one clock, and what still waits names whom it waits for."""
import json
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SETS, WAIT, Cluster, finish_all, small_layout, until  # noqa: E402
from harness import case, main  # noqa: E402
from mounts import private_mounts, small_disks  # noqa: E402

STEPS = 3
LATE_MS = 1500 * WAIT


def train(ranks, steps):
    for a in ranks:
        a.start("train", steps=steps, sets=SETS)
    return finish_all(ranks)


def traced(c, *options, job="job"):
    path = f"{c.directory}/trace.json"
    r = c[0].ctl_run("trace", job, path, *options)
    assert r.returncode == 0 and "ui.perfetto.dev" in r.stdout, r
    return events_of(path)


def events_of(path):
    """The file's events, and by node and name: {"n0": {"fetch block0": [event]}}"""
    with open(path, encoding="utf-8") as f:
        events = json.load(f)["traceEvents"]
    nodes = {e["pid"]: e["args"]["name"].removeprefix("node ") for e in events if e["name"] == "process_name"}
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    named = {}
    for e in events:
        assert e["ph"] in "MX", e
        if e["ph"] == "X":
            e["track"] = tracks[e["pid"], e["tid"]]
            named.setdefault(nodes[e["pid"]], {}).setdefault(e["name"], []).append(e)
    return events, named


def no_overlap(events):
    ends = {}
    for e in events:
        if e["ph"] == "X":
            lane = e["pid"], e["tid"]
            assert e["ts"] >= ends.get(lane, float("-inf")) - 1, (e, ends[lane])
            ends[lane] = e["ts"] + e["dur"]


@case
def what_took_time_is_there():
    with Cluster(2) as c:
        ranks = c.ranks("job", small_layout(), [0, 1], hold=2, push=2)
        train(ranks, STEPS)
        events, named = traced(c)
        no_overlap(events)
        assert sorted(named) == ["n0", "n1"], named.keys()
        for node, rank, other in ("n0", "rank 0", "n1"), ("n1", "rank 1", "n0"):
            seen = named[node]
            steps = seen["step"]
            assert len(steps) == STEPS and {e["track"] for e in steps} == {rank}, steps
            assert len(seen["vote"]) == len(seen["update"]) == STEPS, seen.keys()
            for what in "fetch", "push", "gather", "reduce":
                assert any(name.startswith(what + " ") for name in seen), (what, seen.keys())
            gathers = [e for name in seen if name.startswith("gather ") for e in seen[name]]
            assert {e["track"] for e in gathers} == {f"from {other}"}, gathers
        # a rank's call of a step ends after the other's has begun: on one clock they overlap
        wrong = max(n["within_s"] for n in c[0].ctl("trace", "job")["nodes"]) * 1e6 + 2000
        for a, b in zip(named["n0"]["step"], named["n1"]["step"]):
            assert a["ts"] < b["ts"] + b["dur"] + wrong and b["ts"] < a["ts"] + a["dur"] + wrong, (a, b, wrong)
        assert all(e["args"]["version"] <= STEPS for e in events if e["ph"] == "X")


@case
def a_stopped_rank_is_named():
    with Cluster(2) as c:
        a, b = c.ranks("job", small_layout(), [0, 1], hold=2, push=2)
        train([a, b], 1)
        b.stop()
        a.start("train", steps=1, sets=SETS)
        until(lambda: any(e["cat"] == "waits" and e["args"]["waits for"].startswith("rank 1 ")
                          for e in traced(c)[1]["n0"].get("step", [])), what="the wait for rank 1 in the trace")


@case
def the_last_seconds_alone():
    with Cluster(1) as c:
        ranks = c.ranks("job", small_layout(), [0], hold=2, push=2)
        train(ranks, STEPS)
        until(lambda: len(traced(c)[0]) == len(traced(c, "--seconds", "3600")[0]), what="a trace after the last event")


def files(daemon):
    directory = daemon.options["log_dir"]
    return sorted(os.listdir(directory)) if os.path.isdir(directory) else []


def late_ranks(c, placement, steps):
    """Ranks that have trained; the second one is stopped, and the first one's call passes its deadline."""
    a, b = ranks = c.ranks("job", small_layout(), placement, timeout_ms=0, hold=2, push=2)
    train(ranks, steps)
    b.stop()
    late(a)
    return a, b


def late(rank):
    rank.refused("EDEADLINE", "step", "rank 1", sets=SETS)


@case
def a_deadline_leaves_a_trace():
    with Cluster(2, wait_ms=LATE_MS) as c:
        a, _ = late_ranks(c, [0, 1], STEPS)
        line = until(lambda: re.search(r"job 'job': step of rank 0: .*waiting for rank 1 .* is in (\S+\.json)", c[0].log()),
                     what="the line of the deadline")
        events, named = events_of(line[1])
        no_overlap(events)
        assert sorted(named) == ["n0"] and len(named["n0"]["update"]) == STEPS, named.keys()
        assert len(named["n0"]["step"]) == STEPS + 1 and "gather block0" in named["n0"], named.keys()
        expired = named["n0"]["step"][-1]
        assert expired["cat"] == "waits" and expired["args"]["waits for"].startswith("rank 1 "), expired
        directory, name = os.path.split(line[1])
        assert (directory, [name], []) == (c[0].options["log_dir"], files(c[0]), files(c[1]))
        assert os.stat(line[1]).st_mode & 0o777 == 0o600 and os.stat(directory).st_mode & 0o777 == 0o700
        late(a)  # so soon there is no second one
        assert files(c[0]) == [name] and c[0].log().count("what took time before") == 1


@case
def the_oldest_traces_go():
    with Cluster(1, wait_ms=LATE_MS) as c:
        directory = c[0].options["log_dir"]
        os.makedirs(directory)
        own = [f"trace-20200101T0000{i:02}Z-{os.getuid()}-n0-other.json" for i in range(20)]
        others = [f"trace-20200102T0000{i:02}Z-{100000 + i}-n0-other.json" for i in range(30)]
        for name in own + others + ["notes.txt"]:
            open(f"{directory}/{name}", "w", encoding="utf-8").close()
        late_ranks(c, [0, 0], 1)
        until(lambda: "what took time before is in" in c[0].log(), what="the file")
        left = files(c[0])
        assert left[:1] + left[-1:] == ["notes.txt", [n for n in left if "-job." in n][0]], left
        # seven of this user's and the new one; then the oldest of all, until there are 32
        assert [n for n in left if n.endswith("-other.json")] == own[-1:] + others, left


@case
def no_room_for_a_trace():
    private_mounts()
    with Cluster(1, start=False, wait_ms=LATE_MS) as c, small_disks([c[0].options["log_dir"]], "8k"):
        c.start()
        a, b = late_ranks(c, [0, 0], 10)
        until(lambda: f"cannot be written to log_dir {c[0].options['log_dir']}: No space left" in c[0].log(), what="the reason")
        assert files(c[0]) == []
        b.go_on()
        for rank in a, b:
            rank.start("step", sets=SETS)
        finish_all([a, b])


@case
def a_trace_on_a_slow_disk_keeps_no_finished_job():
    """The file cannot be opened before somebody reads it; a new job takes the place of the finished one meanwhile."""
    with Cluster(1, wait_ms=LATE_MS, job_limit=1) as c:
        directory = c[0].options["log_dir"]
        os.makedirs(directory, 0o700)
        os.mkfifo(f"{directory}/.n0.part", 0o600)
        ranks = late_ranks(c, [0, 0], 1)
        ranks[1].go_on()
        for a in ranks:
            a.start("step", sets=SETS)
        finish_all(ranks)
        for a in ranks:
            a.do("finish", keep=True)
            a.do("close")
        until(lambda: "job job: finished" in c[0].log() and not c[0].job("job")["sessions"], what="the job's end")
        c.ranks("next", small_layout(), [0], hold=2, push=2)
        assert [job["job"] for job in c[0].status()["jobs"]] == ["next"]
        assert "what took time before" not in c[0].log()
        with open(f"{directory}/.n0.part", encoding="utf-8") as f:
            f.read()


def waited(status):
    return {w["for"]: w["sum_s"] for w in status["jobs"][0]["waited"]}


@case
def top_shows_where_the_time_goes():
    with Cluster(2) as c:
        ranks = c.ranks("job", small_layout(), [0, 1, 0], hold=2, push=2)
        for a in ranks:
            a.start("train", steps=1000000, sets=SETS)
        until(lambda: c[0].ctl("status")["jobs"][0]["version"] > 1, what="steps")
        kinds = ("fetch", "push", "step", "vote", "update", "gather", "reduce")

        def look():
            seen = [c[0].ctl("status"), c[0].ctl("top"), c[0].ctl("status")]
            return all(seen[1]["jobs"][0]["shares"][kind] > 0 for kind in kinds) and seen
        first, top, last = until(look, what="a second in which a step ended")
        shares = top["jobs"][0]["shares"]
        assert shares.keys() == waited(top).keys() and shares["stash"] == 0, shares
        for kind, share in shares.items():
            sharers = 2 if kind in ("fetch", "push", "norm", "step", "all_reduce", "stash") else 1
            took = share * sharers * top["interval_s"]
            assert -1e-9 <= took <= waited(last)[kind] - waited(first)[kind] + 1e-6, (kind, shares)
        r = c[0].ctl_run("top", "--once")
        lines = r.stdout.splitlines()
        at = next(i for i, line in enumerate(lines) if "time that what ended" in line)
        header, row = lines[at + 1].split(), lines[at + 2].split()
        assert header == ["JOB", "FETCH", "PUSH", "STEP", "VOTE", "UPDATE", "GATHER", "REDUCE"] and len(row) == len(header), r
        assert row[0] == "job" and all(re.fullmatch(r"\d+%", share) for share in row[1:]), row
        assert all(len(line) <= 80 for line in lines[at:at + 3]), lines[at:at + 3]


@case
def refusals():
    with Cluster(1) as c:
        train(c.ranks("job", small_layout(), [0], hold=2, push=2), 1)
        for arguments, code, words in ((["none", "/dev/null"], 1, "ENOJOB"), (["job"], 2, "which FILE"),
                                       (["job", "/nonexistent/x"], 1, "No such file"),
                                       (["job", "/dev/full"], 1, "No space left")):
            r = c[0].ctl_run("trace", *arguments)
            assert r.returncode == code and words in r.stderr, r
        assert c[0].ctl("trace", "job")["nodes"][0]["node"] == "n0"


if __name__ == "__main__":
    main()
