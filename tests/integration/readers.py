#!/usr/bin/env python3
"""Readers of a job: whole versions of its parameters, bit for bit as the ranks fetch them, whatever happens meanwhile."""
import contextlib
import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import Place  # noqa: E402
from cluster import SETS, Cluster, finish_all, group, small_layout, tensor, until  # noqa: E402
from fake_gpu import environment, plugin  # noqa: E402
from harness import case, cases_of, main  # noqa: E402
from moments import can_vote  # noqa: E402
from reading import FINE, LAYOUT, NEEDS, TRAIN, Run, forwarded, reader, truth  # noqa: E402
from wire import EINVAL, Raw, request  # noqa: E402

STRANGER = 65534


def stranger(c, node=0, job="job"):
    """An observer of another user that is not attached yet."""
    a = c.actor(node)
    a.do("user", uid=STRANGER)
    a.do("connect", job=job, rank=-1)
    return a


def guest(c, node=0):
    """The same, attached: every node hears of a grant, but not at once."""
    a = stranger(c, node)
    until(lambda: a.ask("attach", observer=True)["status"] == "OK", what=f"the grant on node {node}")
    return a


@cases_of([([0, 1], 2, 1, "fp32"), ([0, 1], 2, 0, "bf16"), ([0, 0], 1, 0, "fp32"), ([0, 0], 1, 0, "bf16"),
           ([0, 1], 3, 0, "fp16")], "{0[3]}_on_{0[1]}_mirror_{0[2]}")
def versions_are_whole(what):
    """Readers on each node, trainers that pause for nothing."""
    placement, nodes, mirror, dtype = what
    layout = [{**g, "dtype": dtype} for g in LAYOUT]
    with Cluster(nodes, mirror=mirror) as c:
        ranks = c.ranks("job", layout, placement, **NEEDS)
        readers = [reader(c, n) for n in range(nodes) for _ in range(2)]
        run = Run(c, ranks, readers, 60)
        assert min(run.end()) > 3


@cases_of((True, False), "eager_{}")
def readers_that_come_at_any_time(eager):
    """Also while a group is updated, before or after the step is decided."""
    layout = [{**g, "eager": eager and i > 0} for i, g in enumerate(small_layout(blocks=2, width=500))]
    with Cluster(2, mirror=1) as c:
        ranks = c.ranks("job", layout, [0, 1], **NEEDS)
        actors = [reader(c, n) for n in (0, 1)]
        run = Run(c, ranks, [], 1 << 40, ahead=eager, clip=0)
        seen = []
        until(lambda: c[0].job("job")["version"] > 1, what="steps")
        for i in range(60):
            a = actors[i % 2]
            held = a.do("follow")
            seen.append((held["version"], held["hash"]))
            a.do("unfollow", copy=held["copy"])
            time.sleep(random.uniform(0, 0.02))
        run.aim_ahead(3)
        finish_all(ranks)
        known = truth(run.journal)
        wrong = [v for v, digest in seen if known.get(v, digest) != digest]
        assert not wrong, wrong


@case
def states_and_windows_on_gpus():
    with environment(ZEROD_CUDA_PLUGIN=plugin()), Cluster(2, device="cuda", cuda_plugin=plugin()) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], device="cuda:0", **NEEDS)
        run = Run(c, ranks, [reader(c), reader(c, 1)], 40)
        assert min(run.end()) > 3


@case
def a_node_without_ranks_and_shards_has_readers():
    with Cluster(3, owners=1) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        run = Run(c, ranks, [reader(c, 2), reader(c, 2)], 40)
        assert min(run.end()) > 3
        c[2].restart()
        c.wait_up()
        until(lambda: c[2].job("job"), what="the job on the node without a state")
        run = Run(c, ranks, [reader(c, 2)], 80)
        assert min(run.end()) > 3


@case
def what_is_held_stays_and_readers_share_copies():
    with Cluster(2, follow_copies=2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        a, b, late = reader(c), reader(c), reader(c, timeout_ms=1500)
        first, same = a.do("follow"), b.do("follow")
        assert (first["version"], first["copy"], first["hash"]) == (0, same["copy"], same["hash"])
        assert c[0].job("job")["readers"] == {"clients": 2, "copies": 1, "held": 1, "bytes": first["bytes"],
                                              "delta_bytes": 0, "version": 0}
        for a_rank in ranks:
            a_rank.start("train", steps=3, **TRAIN)
        finish_all(ranks)
        third = b.do("follow", least=3)
        assert third["version"] == 3 and third["copy"] != first["copy"] and third["hash"] != first["hash"]
        assert a.do("rehash", copy=first["copy"])["hash"] == first["hash"]
        assert late.do("follow", most=0)["hash"] == first["hash"]  # still there
        late.do("unfollow", copy=first["copy"])
        for a_rank in ranks:
            a_rank.start("train", steps=1, **TRAIN)
        finish_all(ranks)
        late.refused("EDEADLINE", "follow", "readers of job 'job'", "follow_copies", str(a.pid), str(b.pid), least=4)
        b.do("unfollow", copy=first["copy"])
        late.refused("EDEADLINE", "follow", str(a.pid), least=4)
        a.do("unfollow", copy=first["copy"])
        assert late.do("follow", least=4)["version"] == 4
        assert b.do("rehash", copy=third["copy"])["hash"] == third["hash"]


@case
def the_newest_version_is_left_for_late_readers():
    """A copy that is held does not make the next version take the newest copy's memory while another may be made."""
    with Cluster(1, follow_copies=3) as c:
        rank, = c.ranks("job", LAYOUT, [0], **NEEDS)
        a, b = reader(c), reader(c)
        a.do("follow")
        for version in (1, 2):
            rank.start("train", steps=1, **TRAIN)
            rank.good(rank.finish())
            last = b.do("follow", least=version)
            b.do("unfollow", copy=last["copy"])
        assert b.do("follow", least=1, most=1)["hash"] != last["hash"]


OWN = ("fp32", "bf16", "fp16", "fp32")
FORMS = [("bf16", "fp32", "fp32", "fp16"), (None, "bf16", None, "bf16")]
CODES = {None: 0, "fp32": 1, "bf16": 2, "fp16": 3}


def mixed():
    return [{**g, "dtype": dtype} for g, dtype in zip(LAYOUT, OWN)]


def formed(c, node, form, **fields):
    """A reader of this form: [group] is a dtype, or None: left out."""
    a = reader(c, node, **fields)
    groups = [g for g, dtype in enumerate(form) if dtype]
    a.do("form", groups=groups[::-1], dtypes=[CODES[form[g]] * (form[g] != OWN[g]) for g in groups[::-1]])
    return a


def same_in_each_form(whole, others, version):
    """What readers of FORMS, two of each, read at that version, is what the reader of all reads, rounded."""
    for a in (whole, *others):
        a.start("follow", least=version)
    held, got = whole.good(whole.finish()), [a.good(a.finish()) for a in others]
    assert {g["version"] for g in (held, *got)} == {version}
    assert got[0]["copy"] == got[1]["copy"] != held["copy"] and got[2]["copy"] == got[3]["copy"], got
    for form, g in zip((FORMS[0], FORMS[0], FORMS[1], FORMS[1]), got):
        rounded = whole.do("rehash", copy=held["copy"], **{"as": [CODES[dtype] for dtype in form]})
        assert rounded["hash"] == g["hash"] != held["hash"], (version, form)
    for a, g in zip((whole, *others), (held, *got)):
        a.do("unfollow", copy=g["copy"])


@cases_of([(1, "cpu"), (2, "cpu"), (2, "cuda")], "{0[1]}_on_{0[0]}")
def readers_of_several_forms_at_once(what):
    nodes, device = what
    gpu = {"device": "cuda", "cuda_plugin": plugin()} if device == "cuda" else {}
    with environment(**({"ZEROD_CUDA_PLUGIN": plugin()} if gpu else {})), Cluster(nodes, follow_copies=4, **gpu) as c:
        ranks = c.ranks("job", mixed(), [0, nodes - 1], **NEEDS)
        readers = [(reader(c, n), [formed(c, n, form) for form in FORMS for _ in (0, 1)]) for n in range(nodes)]
        for version in range(6):
            for whole, others in readers:
                same_in_each_form(whole, others, version)
            if version:
                finish_all(ranks)
            for a in ranks:
                a.start("train", steps=1, **TRAIN)
        finish_all(ranks)
        for tensor_, values in ((0, [1e39, -1e39, 65520, 65519, 1e-45, 3.39e38, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20]),
                                (2, [1e39, -1e39, 3.39e38, 1e-40])):
            readers[-1][0].do("put", tensor=tensor_, plane="master", first=0, values=values)
        same_in_each_form(*readers[-1], 6)  # other nodes hear of a put a little later


@case
def a_form_is_made_of_what_the_node_has():
    """Of a rank's window, or of another copy: nothing travels."""
    with Cluster(2) as c:
        a, b = c.ranks("job", mixed(), [0, 1], hold=4, push=2)
        whole, half, some = reader(c), formed(c, 0, FORMS[0]), formed(c, 0, FORMS[1])

        def received():
            return c[0].job("job")["gather"]["elements_received"]
        for group_ in range(4):
            a.do("fetch", group=group_)
        before = received()
        got = half.do("follow")
        assert received() == before > 0
        for group_ in range(4):
            a.do("release", group=group_)
        for r in (a, b):
            r.start("train", steps=1, **TRAIN)
        finish_all([a, b])
        half.do("unfollow", copy=got["copy"])
        held = whole.do("follow", least=1)
        before = received()
        for reader_, form in ((half, FORMS[0]), (some, FORMS[1])):
            rounded = whole.do("rehash", copy=held["copy"], **{"as": [CODES[dtype] for dtype in form]})
            assert reader_.do("follow", least=1)["hash"] == rounded["hash"]
        assert received() == before


@case
def forms_beside_a_reader_whose_versions_come_by_deltas():
    """What is cast comes whole, or of the copy that went forward."""
    with Cluster(2, owners=1) as c:
        rank, = c.ranks("job", [{**g, "dtype": "bf16"} for g in LAYOUT], [0], **NEEDS)
        whole, wide = reader(c, 1), reader(c, 1)
        wide.do("form", groups=[0, 2], dtypes=[1, 1])
        for version in range(8):
            order = (whole, wide) if version % 2 else (wide, whole)
            got = {a: a.do("follow", least=version) for a in order}
            as_form = whole.do("rehash", copy=got[whole]["copy"], **{"as": [1, 0, 1, 0]})
            assert as_form["hash"] == got[wide]["hash"], version
            for a in order:
                a.do("unfollow", copy=got[a]["copy"])
            rank.start("train", steps=1, **{**TRAIN, "sets": FINE})
            rank.good(rank.finish())
        assert forwarded(c[1]) > 0


@case
def forms_share_the_copies_of_a_node():
    with Cluster(1, follow_copies=2) as c:
        rank, = c.ranks("job", mixed(), [0], **NEEDS)
        whole, a, b = reader(c), formed(c, 0, FORMS[0], timeout_ms=1500), formed(c, 0, FORMS[1], timeout_ms=1500)
        held, first = whole.do("follow"), a.do("follow")
        b.refused("EDEADLINE", "follow", "follow_copies", str(whole.pid), str(a.pid))
        copies = c[0].ctl("versions", "job")["nodes"][0]["copies"]
        assert [x["form"] for x in copies] == [None, "4 of 4 groups, as fp32, as bf16, as fp16"], copies
        whole.do("unfollow", copy=held["copy"])
        second = b.do("follow")
        assert second["copy"] == held["copy"] and a.do("rehash", copy=first["copy"])["hash"] == first["hash"]
        assert "2 of 4 groups, as bf16" in c[0].ctl_run("versions", "job").stdout
        b.do("unfollow", copy=second["copy"])
        rank.start("train", steps=1, **TRAIN)
        rank.good(rank.finish())
        again = whole.do("follow")
        assert again["version"] == 1 and again["hash"] != held["hash"]
        assert a.do("rehash", copy=first["copy"])["hash"] == first["hash"]


@case
def a_form_that_is_read_keeps_its_memory():
    """Versions of two forms in turn, and what one reader has left is taken by the other."""
    with Cluster(1, follow_copies=3) as c:
        rank, = c.ranks("job", mixed(), [0], **NEEDS)
        readers = [reader(c), formed(c, 0, FORMS[1])]
        taken = [set(), set()]

        def step(*actors):
            for a, copies in actors:
                held = a.do("follow", least=c[0].job("job")["version"])
                a.do("unfollow", copy=held["copy"])
                copies.add(held["copy"])
            rank.start("train", steps=1, **TRAIN)
            rank.good(rank.finish())
        for _ in range(5):
            step(*zip(readers, taken))
        assert taken == [{0, 2}, {1}], taken
        readers[0].do("close")
        for _ in range(3):
            step((readers[1], taken[1]))
        assert taken[1] == {0, 1, 2}, taken


@case
def forms_that_are_wrong():
    with Cluster(1) as c:
        rank, = c.ranks("job", [*mixed(), group("mask", tensor("mask", 12, frozen=True, init="zeros"), dtype="int8")], [0], **NEEDS)
        a = reader(c)
        for groups, dtypes, status, words in (([], [], "EINVAL", ["no group"]), ([0, 5], [0, 0], "ENOGROUP", ["no group 5"]),
                                              ([1, 0, 1], [0, 0, 1], "EINVAL", ["block0", "twice"]),
                                              ([0, 1], [2, 3], "EINVAL", ["block0", "bf16", "fp32", "not in fp16"]),
                                              ([4], [2], "EINVAL", ["mask", "int8", "not in bf16"]),
                                              ([0], [4], "EINVAL", ["embed", "not in int8"]),
                                              ([0], [77], "EINVAL", ["embed", "77"])):
            a.refused(status, "form", *words, groups=groups, dtypes=dtypes)
        a.do("form", groups=[4, 0], dtypes=[0, 2])
        a.do("form", groups=[4], dtypes=[0])
        assert a.do("follow")["bytes"] == 4096
        a.refused("EORDER", "form", "another", groups=[0], dtypes=[0])
        rank.refused("EPERM", "form", "ZERO_OBSERVER", groups=[0], dtypes=[0])
        raw = Raw(c[0].socket)
        raw.hello(job="job"), raw.ask("attach")
        for form in (b"\1", b"\1" * 6, bytes(5), b"\1\2\3\1\1", b"\1\2\3\1\5", b"\1\3\3\1\4", b"\7\0\0\0\0", b"\xff" * 5):
            assert raw.ask("follow", {2: (1 << 64) - 1, 4: form})[0] == EINVAL, form
        assert raw.ask("follow", {2: (1 << 64) - 1, 4: bytes([2, 1, 3, 1, 4])})[0] == 0
        raw.close()


@case
def bad_input():
    with Cluster(1) as c:
        rank = c.ranks("job", LAYOUT, [0], **NEEDS)[0]
        rank.refused("EPERM", "follow", "ZERO_OBSERVER")
        a = reader(c, timeout_ms=1000)
        a.refused("EINVAL", "follow", "from 2 to 1", least=2, most=1)
        a.refused("EDEADLINE", "follow", "version 1", "stands at version 0", least=1)
        patient = reader(c, timeout_ms=10**9)
        patient.refused("EDEADLINE", "follow", "version 1", least=1, timeout_ms=200)
        a.refused("ENOTHELD", "unfollow", copy=0)
        a.refused("ENOTHELD", "unfollow", copy=1 << 20)
        held = a.do("follow")
        a.do("unfollow", copy=held["copy"])
        a.refused("ENOTHELD", "unfollow", copy=held["copy"])
        rank.start("train", steps=2, **TRAIN)
        rank.good(rank.finish())
        a.refused("EGONE", "follow", "version 1", "stands at version 2", least=1, most=1)
        stranger(c).refused("EPERM", "attach", "belongs to", "zeroctl grant job 65534", observer=True)
    with Cluster(1, follow_copies=0) as c:
        c.ranks("job", LAYOUT, [0], **NEEDS)
        reader(c).refused("EPERM", "follow", "follow_copies")


@case
def a_put_changes_what_is_read_next():
    with Cluster(2) as c:
        c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        a, b = reader(c), reader(c, 1)
        before = a.do("follow")
        assert b.do("follow")["hash"] == before["hash"]
        b.do("put", tensor=0, plane="master", first=0, values=[1.0, 2.0])
        again = b.do("follow")
        assert again["version"] == 0 and again["hash"] != before["hash"]
        until(lambda: reader(c).do("follow")["hash"] == again["hash"], what="the put on the other node")
        assert a.do("rehash", copy=before["copy"])["hash"] == before["hash"]


@case
def a_put_before_a_step_ends_the_copy_of_its_version():
    with Cluster(1) as c:
        rank, = c.ranks("job", LAYOUT, [0], **NEEDS)
        a = reader(c)
        a.do("unfollow", copy=a.do("follow")["copy"])
        a.do("put", tensor=0, plane="master", first=0, values=[1.0, 2.0])
        rank.start("train", steps=1, **TRAIN)
        rank.good(rank.finish())
        a.refused("EGONE", "follow", most=0)


@case
def a_copy_that_nobody_takes_is_used_again():
    """Its reader leaves while it comes, and another one waits for the next version."""
    layout = [group("g0", tensor("t0", 256, 256))]
    train = {"sets": SETS[:1], "clip": 0, "seed": 11}
    with Cluster(2, owners=1, follow_copies=1) as c:
        rank, = c.ranks("job", layout, [0], **NEEDS)
        journal, b, seen = f"{c.directory}/journal", reader(c, 1), []

        def step():
            rank.start("train", steps=1, journal=journal, **train)
        for version in range(2, 12, 2):
            step(), rank.good(rank.finish())  # nobody has read this version
            a = Raw(c[1].socket)
            a.hello(job="job", timeout_ms=60000), a.ask("attach")
            b.start("follow", least=version)
            time.sleep(0.02)
            c[0].stop()
            a.send(request(9, "follow", {1: 0, 2: (1 << 64) - 1}))
            time.sleep(0.03)  # the pull waits at the owner
            c[1].stop()
            a.close()
            c[0].go_on()
            step()
            time.sleep(0.15)
            c[1].go_on()
            rank.good(rank.finish())
            held = b.good(b.finish())
            time.sleep(0.05)
            seen.append((held["version"], held["hash"], b.do("rehash", copy=held["copy"])["hash"]))
            b.do("unfollow", copy=held["copy"])
        step(), rank.good(rank.finish())
        known = truth(journal)
        assert not [s for s in seen if s[1] != known[s[0]] or s[2] != s[1]], seen


@case
def answers_that_nobody_reads_take_few_descriptors():
    with Cluster(1) as c:
        c.ranks("job", LAYOUT, [0], **NEEDS)
        before, raw = c[0].descriptors(), Raw(c[0].socket)
        raw.hello(job="job", timeout_ms=60000), raw.ask("attach")
        raw.socket.settimeout(1)
        with contextlib.suppress(TimeoutError, OSError):
            raw.send(b"".join(request(i, "follow", {1: 0, 2: (1 << 64) - 1}) for i in range(9, 60000)))
        assert c[0].descriptors() < before + 100
        raw.close()


@case
def a_user_has_no_more_memory_for_versions_than_allowed():
    with Cluster(1, follow_limit=600 << 10) as c:  # a version has 440 KiB
        rank, = c.ranks("job", LAYOUT, [0], **NEEDS)
        a, b = reader(c), reader(c)
        held = a.do("follow")
        rank.start("train", steps=1, **TRAIN)
        rank.good(rank.finish())
        b.refused("EQUOTA", "follow", "follow_limit", least=1)
        a.do("unfollow", copy=held["copy"])
        assert b.do("follow", least=1)["version"] == 1


@case
def a_reader_that_stops_or_dies_holds_up_nobody():
    with Cluster(2, follow_copies=2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        stopped, dead, alive = reader(c), reader(c), reader(c)
        held = stopped.do("follow")
        stopped.stop()
        run = Run(c, ranks, [alive], 40)
        dead.start("read", until=run.until, journal=f"{c.directory}/dead")
        until(lambda: os.path.exists(f"{c.directory}/dead"), what="the other reader's first version")
        dead.kill()
        run.end()
        stopped.go_on()
        assert stopped.do("rehash", copy=held["copy"])["hash"] == held["hash"]
        stopped.kill()
        alive.do("close")
        until(lambda: c[0].job("job")["readers"] is None, what="the end of the copies, a while after their last reader")


@case
def a_daemon_dies_under_readers():
    with Cluster(3, mirror=1) as c:
        ranks = c.ranks("job", LAYOUT, [0, 0], **NEEDS)
        readers = [reader(c), reader(c)]
        run = Run(c, ranks, readers, 1 << 40)
        for node in (2, 1, 2):
            version = c[0].job("job")["version"]
            c[node].restart()
            until(lambda v=version: (c[0].job("job") or {"version": 0})["version"] > v + 5, what="steps after the kill")
        run.aim_ahead(20)
        assert min(run.end()) > 5


@cases_of([("fp32", SETS, 2), ("bf16", FINE, 3)], "{0[0]}_on_{0[2]}")
def everybody_dies_in_turn(what):
    """300 versions, or as many as $READERS_VERSIONS says: readers, trainers and daemons are killed.  To a third node come deltas."""
    dtype, sets, nodes = what
    layout = [{**g, "dtype": dtype} for g in LAYOUT]
    last = int(os.environ.get("READERS_VERSIONS", 300))
    chance = random.Random(7)
    with Cluster(nodes, owners=2, mirror=1, follow_by="deltas") as c:
        ranks = c.ranks("job", layout, [0, 1], **NEEDS)
        run = Run(c, ranks, [reader(c, n) for n in range(nodes)], last, sets=sets)
        steps, done, kills, by_deltas = last // 12, 0, 0, 0
        while done < last - steps:
            done = until(lambda v=done + steps: max((d.job("job") or {"version": 0})["version"] for d in c.daemons
                                                    if d.peers_up()) >= v and v, what=f"version {done + steps}")
            kills += 1
            by_deltas = max(by_deltas, forwarded(c[-1]) if c[-1].job("job") else 0)
            node = chance.randrange(nodes)
            if kills % 3 == 1 and node < 2:
                ranks[node].kill()
                ranks[node] = c.rank("job", layout, [0, 1], node, incarnation=kills, **NEEDS)
                finish_all([ranks[node]]), finish_all([ranks[node]]), finish_all([ranks[node]])
                run.train(ranks[node])
                continue
            run.readers.pop(node).kill()
            if kills % 3 == 2:
                c[node].restart()
                c.wait_up()
            until(lambda n=node: c[n].job("job"), what="the job")
            run.readers.insert(node, reader(c, node))
            run.begin([run.readers[node]])
        counts = run.end()
        assert nodes == 2 or by_deltas > 0
        print(f"# {kills} kills, readers read {counts} of {last} versions")
        assert kills > 8 and sum(counts) > last / 10, (kills, counts)


@case
def owners_change_under_readers():
    with Cluster(3, owners=1) as c:
        can_vote(c)
        ranks = c.ranks("job", LAYOUT, [0, 0], **NEEDS)
        run = Run(c, ranks, [], 1 << 40)
        a = reader(c)
        a.do("follow")
        c[0].change_owners("add-node", "n1")
        version = until(lambda: (c[0].job("job") or {}).get("version"), what="the job after the change")
        until(lambda: (c[0].job("job") or {"version": 0})["version"] > version + 5, what="steps after the change")
        readers = [reader(c), reader(c, 1)]
        run.readers = readers
        run.begin(readers)
        run.aim_ahead(20)
        assert min(run.end()) > 1


@case
def a_job_is_dropped_or_restored_under_readers():
    with Place() as d, Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        a = reader(c)
        held = a.do("follow")
        for r in ranks:
            r.start("train", steps=2, **TRAIN)
        finish_all(ranks)
        path = c[0].ctl("checkpoint", "job", d)["path"]
        at_two = reader(c).do("follow")
        for r in ranks:
            r.start("train", steps=2, **TRAIN)
        finish_all(ranks)
        for r in ranks:
            c.dismiss(r)
        a.start("follow", least=9)
        c[0].ctl("restore", "job", path)
        assert a.finish()["status"] == "ENOJOB"
        a.refused("ENOJOB", "follow")
        with contextlib.closing(a.process.stdin):
            assert a.do("rehash", copy=held["copy"])["hash"] == held["hash"]  # its memory stays
            b = reader(c)
            again = b.do("follow")
            assert (again["version"], again["hash"]) == (2, at_two["hash"]), (again, at_two)
            b.start("follow", least=9)
            c[1].ctl("drop", "job")
            assert b.finish()["status"] == "ENOJOB"


def train(ranks, steps):
    for a in ranks:
        a.start("train", steps=steps, **TRAIN)
    finish_all(ranks)


@case
def a_grant_lets_another_user_follow_and_no_more():
    with Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        own = reader(c).do("follow")
        assert c[0].ctl("grant", "job", str(STRANGER)) == {"job": "job", "users": [STRANGER]}
        assert c[1].ctl("grant", "job", str(STRANGER)) == c[1].ctl("grants", "job") == c[0].ctl("grants", "job")
        guests = [guest(c, n) for n in (0, 1)]
        assert all(a.do("follow")["hash"] == own["hash"] for a in guests)
        for a in guests:
            for call in ("get", "put"):
                a.refused("EPERM", call, "follow it and no more", f"zero_{call}", tensor=0, plane="master", first=0,
                          count=1, values=[1.0])
            a.refused("EPERM", "norms", "zero_tensor_norms", plane="master", first=0, count=1)
            for what in ("shards", "checksum", "trace", "versions", "grants", "drop"):
                a.refused("EPERM", "query", "belongs to user 0", what=what, argument="job")
            for what in ("grant", "revoke"):
                a.refused("EPERM", "query", "belongs to user 0", what=what, argument='{"job": "job", "user": 1}')
            for what in ("checkpoint", "restore"):
                a.refused("EPERM", "query", what=what, argument='{"job": "job", "directory": "/tmp/x"}')
        train(ranks, 3)
        newer = guests[1].do("follow", least=3)
        seen = c[0].ctl("versions", "job")
        assert (seen["version"], seen["users"], seen["away"]) == (3, [STRANGER], []), seen
        here = {n["node"]: n for n in seen["nodes"]}
        assert here["n0"]["readers"][1:] == [{"uid": STRANGER, "pid": guests[0].pid, "address": None, "waits": False, "versions": [0]}]
        assert here["n1"]["readers"] == [{"uid": STRANGER, "pid": guests[1].pid, "address": None, "waits": False, "versions": [0, 3]}]
        assert here["n1"]["newest"] == 3
        assert {"version": 3, "bytes": newer["bytes"], "readers": 1, "form": None} in here["n1"]["copies"]
        text = c[1].ctl_run("versions", "job").stdout
        assert "job job at version 3" in text and "may follow it" in text and f"{guests[1].pid}" in text, text


@case
def a_revocation_ends_readers_at_once():
    with Cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        c[0].ctl("grant", "job", str(STRANGER))
        own, waiting, holding = reader(c, 1), guest(c, 1), guest(c, 1)
        held = holding.do("follow")
        assert own.do("follow")["copy"] == held["copy"]
        own.do("unfollow", copy=held["copy"])
        waiting.start("follow", least=9)
        until(lambda: any(r["waits"] for n in c[0].ctl("versions", "job")["nodes"] for r in n["readers"]),
              what="the waiting reader")
        assert c[0].ctl("revoke", "job", str(STRANGER)) == {"job": "job", "users": []}
        ended = waiting.finish()
        assert ended["status"] == "EPERM" and f"user {STRANGER} may follow job 'job' no more" in ended["text"], ended
        until(lambda: [r["pid"] for n in c[0].ctl("versions", "job")["nodes"] for r in n["readers"]] == [own.pid],
              what="the end of the other user's readers")
        for _ in range(4):  # as many versions as there could be copies: none lies where the other user still looks
            train(ranks, 1)
            own.do("unfollow", copy=own.do("follow", least=1)["copy"])
        assert holding.do("rehash", copy=held["copy"])["hash"] == held["hash"]
        holding.refused("ECLOSED", "follow", "may follow job 'job' no more")
        stranger(c, 0).refused("EPERM", "attach", "belongs to", observer=True)
        stranger(c, 1).refused("EPERM", "attach", "belongs to", observer=True)


def all_anew(c):
    """No daemon is left from which another one could hear of a grant."""
    for d in c.daemons:
        d.kill()
    for d in c.daemons:
        d.start()
    c.wait_up()
    for n in range(len(c.daemons)):
        guest(c, n)


@case
def grants_reach_nodes_without_shards():
    with Place() as d, Cluster(3, owners=1) as c:
        ranks = c.ranks("job", LAYOUT, [1], **NEEDS)
        train(ranks, 1)
        c[1].ctl("grant", "job", str(STRANGER))
        guest(c, 2)
        path = c[0].ctl("checkpoint", "job", d)["path"]
        c[2].restart()  # it has no note
        c.wait_up()
        guest(c, 2)
        c.dismiss(ranks[0])
        c[0].ctl("restore", "job", path)
        for n in (0, 1, 2):
            stranger(c, n).do("attach", observer=True)


@case
def grants_outlive_daemons_and_end_with_the_job():
    with Place() as d, Cluster(3, mirror=1) as c:
        ranks = c.ranks("job", LAYOUT, [0], **NEEDS)
        train(ranks, 1)
        c[0].ctl("grant", "job", str(STRANGER))
        c[0].ctl("grant", "job", "1234")
        for n in range(3):
            guest(c, n)
        path = c[0].ctl("checkpoint", "job", d)["path"]
        all_anew(c)
        for r in ranks:
            c.dismiss(r)
        c[1].ctl("restore", "job", path)
        all_anew(c)
        away = next(n for n in range(3) if c[n] is not c.coordinator("job"))
        c[away].kill()
        c.coordinator("job").ctl("revoke", "job", str(STRANGER))
        c[away].start()
        c.wait_up()
        until(lambda: stranger(c, away).ask("attach", observer=True)["status"] == "EPERM", what="news of the revocation")
        assert c[away].ctl("grants", "job")["users"] == [1234]
        c[0].ctl("drop", "job")
        c.ranks("job", LAYOUT, [0], **NEEDS)
        assert c[away].ctl("grants", "job")["users"] == c[away].ctl("versions", "job")["users"] == []


@case
def grants_of_bad_input():
    with Cluster(1) as c:
        c.ranks("job", LAYOUT, [0], **NEEDS)
        a = reader(c)
        for user in ("-1", "4294967295", "1e3", '"root"', "null", "[]", "18446744073709551616"):
            for what in ("grant", "revoke"):
                a.refused("EINVAL", "query", "user", what=what, argument='{"job": "job", "user": %s}' % user)
        a.refused("EINVAL", "query", what="grant", argument="job")
        a.refused("ENOJOB", "query", what="grant", argument='{"job": "other", "user": 1}')
        for user in ("no such user", "4294967295", "1x", ""):
            r = c[0].ctl_run("grant", "job", user)
            assert r.returncode == 1 and "this machine knows no user" in r.stderr, r
        assert c[0].ctl_run("revoke", "job", "1").returncode == 1
        for uid in range(1, 65):
            assert len(a.do("query", what="grant", argument='{"job": "job", "user": %d}' % uid)["answer"]["users"]) == uid
        a.refused("EQUOTA", "query", "64 users", what="grant", argument='{"job": "job", "user": 65}')
        a.do("query", what="revoke", argument='{"job": "job", "user": 1}')
        assert c[0].ctl("grant", "job", "root")["users"][-1] == 0


if __name__ == "__main__":
    main()
