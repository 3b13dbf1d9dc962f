#!/usr/bin/env python3
"""Downloads over HTTP: whole versions of a job's parameters as safetensors files, to who shows the token, and what ends them."""
import contextlib
import http.client
import json
import os
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import Place, read_safetensors, start_training, train  # noqa: E402
from cluster import START_S, WAIT, Cluster, descriptors, finish_all, group, small_layout, tensor, until  # noqa: E402
from harness import case, cases_of, main  # noqa: E402
from ports import free_ports  # noqa: E402
from web import get, request  # noqa: E402

TOKEN = "0123456789abcdef" * 4
SHOWN = {"Authorization": f"Bearer {TOKEN}"}
LAYOUT = small_layout(blocks=2, width=120)
NEEDS = {"hold": 2, "push": 2}
HUGE = [group(f"g{i}", tensor(f"w{i}", 2048, 2048)) for i in range(6)]  # 96 MiB: no socket's buffer takes that
DOWNLOADS = 4  # at once
TAKE_S = 20  # for a block


@contextlib.contextmanager
def cluster(nodes=1, **options):
    """All nodes answer HTTP on loopback, and have one token."""
    c = Cluster(nodes, start=False, **options)
    with c:
        with open(f"{c.directory}/token", "w", encoding="ascii", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.write(TOKEN)
        for d, port in zip(c.daemons, free_ports(nodes)):
            d.options.update(http=f"127.0.0.1:{port}", http_token_file=f"{c.directory}/token")
        c.start()
        yield c


def download(daemon, what, method="GET", headers=None):
    """(status, headers, bytes) of /weights/WHAT; http.client.IncompleteRead if the body is cut."""
    host, port = daemon.options["http"].rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=START_S)
    try:
        connection.request(method, f"/weights/{what}", headers=SHOWN if headers is None else headers)
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        connection.close()


def weights(daemon, what):
    """(version, bytes) of an answer that has to be good."""
    status, headers, body = download(daemon, what)
    assert status == 200, (what, status, body[:500])
    assert headers["Content-Type"] == "application/octet-stream" and int(headers["Content-Length"]) == len(body)
    return int(headers["X-Zerod-Version"]), body


def refused(daemon, status, what, *words, headers=None):
    answer, sent, body = download(daemon, what, headers=headers)
    assert answer == status and all(word in body.decode() for word in words), (what, answer, body[:500])
    return sent


def exported(daemon, job="job"):
    """The file of a job that stands still."""
    with Place() as d:
        daemon.ctl("export", job, f"{d}/a", "--dtype", "serve")
        with open(f"{d}/a", "rb") as f:
            return f.read()


class Stalled:
    """A download whose reader takes the first bytes, and no more until take()."""

    def __init__(self, daemon, what):
        host, port = daemon.options["http"].rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), START_S)
        self.socket.sendall(f"GET /weights/{what} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        self.reply = http.client.HTTPResponse(self.socket)
        self.reply.begin()
        assert self.reply.status == 200, self.reply.read()

    def take(self):
        """The rest; b"" with what is missing, if it is cut."""
        try:
            return self.reply.read()
        except (http.client.IncompleteRead, ConnectionError):
            return None

    def close(self):
        self.reply.close()
        self.socket.close()


def readers(daemon, job="job"):
    return [r for node in daemon.ctl("versions", job)["nodes"] for r in node["readers"]]


def no_readers(daemon, job="job"):
    until(lambda: not readers(daemon, job), what="the end of all holds")


# ---- what comes -----------------------------------------------------------------------

@cases_of(["fp32", "bf16", "fp16"])
def the_file_is_that_of_an_export(dtype):
    """Byte for byte, from an owner and from a node that has neither shards nor ranks."""
    with cluster(3, owners=2) as c:
        ranks = c.ranks("job", small_layout(dtype, blocks=2, width=90), [0, 1], grad=dtype, **NEEDS)
        for version in (0, 2):
            train(ranks, version)
            wanted = exported(c[0])
            until(lambda: all(d.job("job") for d in c.daemons), what="the job on the node without ranks")
            assert [weights(d, f"job?version={version}") for d in c.daemons] == [(version, wanted)] * 3
        with Place() as d:
            with open(f"{d}/a", "wb") as f:
                f.write(wanted)
            header, body = read_safetensors(f"{d}/a")
        assert header["__metadata__"] == {"format": "pt", "job": "job", "version": "2"}
        assert header["wte"]["shape"] == [37, 90] and header["wte"]["dtype"] == {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}[dtype]
        assert max(e["data_offsets"][1] for name, e in header.items() if name != "__metadata__") == len(body)


@case
def many_small_tensors_and_empty_ones():
    layout = [group(f"g{i}", *[tensor(f"t{i}.{k}", k % 5, 3) for k in range(40)], dtype=["bf16", "fp32"][i % 2]) for i in range(40)]
    with cluster(2) as c:
        c.ranks("job", layout, [0], hold=1, push=1)
        assert weights(c[1], "job") == (0, exported(c[0]))


@case
def types_of_bytes():
    with cluster() as c:
        layout = [group("q", tensor("q", 33, 7, frozen=True, init="zeros"), dtype="uint8"), group("w", tensor("w", 5, 3))]
        c.ranks("job", layout, [0], hold=2, push=2)
        assert weights(c[0], "job") == (0, exported(c[0]))


@case
def versions_by_number():
    with cluster() as c:
        ranks = c.ranks("job", LAYOUT, [0, 0], **NEEDS)
        train(ranks, 1)
        first = weights(c[0], "job?version=1")
        assert first == (1, exported(c[0]))
        assert weights(c[0], "job?newer_than=0") == first
        refused(c[0], 410, "job?version=0", "version 0 of job 'job' is gone", "stands at version 1")
        held = Stalled(c[0], "job?version=1")  # small: the socket has it, and the hold ends
        start_training(ranks, 2, first_step=1)
        finish_all(ranks)
        assert held.take() == first[1]
        answers = {}
        asked = threading.Thread(target=lambda: answers.update(last=weights(c[0], "job?newer_than=3")))
        asked.start()
        until(lambda: any(r["waits"] for r in readers(c[0])), what="the reader that waits")
        start_training(ranks, 1, first_step=3)
        finish_all(ranks)
        asked.join()
        assert answers["last"] == (4, exported(c[0]))
        begin = time.monotonic()
        refused(c[0], 504, f"job?version={2**64 - 2}", f"version {2**64 - 2}", "stands at version 4")
        assert time.monotonic() - begin >= 29
        no_readers(c[0])


@case
def each_version_is_whole_while_the_job_trains():
    """Files of versions that zeroctl publish and two downloads on other nodes took at random moments are the same."""
    steps = 300
    with Place() as d, cluster(2) as c:
        ranks = c.ranks("job", LAYOUT, [0, 1], **NEEDS)
        start_training(ranks, steps)
        seen, ended = {}, []

        def follow(daemon):
            version = 0
            while version < steps:
                try:
                    version, body = weights(daemon, f"job?newer_than={version}")
                    assert seen.setdefault(version, body) == body, version
                except BaseException as why:  # pylint: disable=broad-except
                    ended.append(why)
                    raise
        threads = [threading.Thread(target=follow, args=(daemon,)) for daemon in (c[0], c[1], c[1])]
        for t in threads:
            t.start()
        published = set()
        while c[0].job("job")["version"] < steps:
            r = c[0].ctl_run("--json", "publish", "job", d)
            assert r.returncode == 0 or "already" in r.stderr, r.stderr
            if r.returncode == 0:
                published.add(json.loads(r.stdout)["version"])
        finish_all(ranks)
        for t in threads:
            t.join()
        assert not ended and seen[steps] == exported(c[1])
        both = published & set(seen)
        for version in both:
            with open(f"{d}/version-{version:08d}/model.safetensors", "rb") as f:
                assert f.read() == seen[version], version
        print(f"# {len(seen)} versions, {len(both)} of them published")


@case
def head():
    with cluster() as c:
        c.ranks("job", LAYOUT, [0], **NEEDS)
        size = len(exported(c[0]))
        status, headers, body = download(c[0], "job", "HEAD")
        assert (status, headers["X-Zerod-Version"], int(headers["Content-Length"]), body) == (200, "0", size, b"")
        no_readers(c[0])


# ---- who may, and what is refused -----------------------------------------------------

@case
def nobody_without_a_token():
    port, = free_ports(1)
    with Cluster(1, http=f"127.0.0.1:{port}") as c:
        c.ranks("job", LAYOUT, [0], **NEEDS)
        for headers in ({}, SHOWN):
            refused(c[0], 403, "job", "http_token_file", headers=headers)
        get(c[0], "/metrics")
    with cluster() as c:
        c.ranks("job", LAYOUT, [0], **NEEDS)
        for headers in ({}, {"Authorization": f"Bearer {TOKEN[:-1]}0"}, {"Authorization": f"Basic {TOKEN}"}):
            assert "Bearer" in refused(c[0], 401, "job", headers=headers)["WWW-Authenticate"]
        assert readers(c[0]) == []


@case
def hostile_requests():
    with cluster() as c:
        c.ranks("job", LAYOUT, [0], **NEEDS)
        before = c[0].descriptors()
        for what in ("", "nobody", "job/", "job/x", "../job", "%2e%2e/job", "%ff%0a", "x" * 201, "x" * 9000, "JOB", "job%20"):
            status, _, body = download(c[0], what)
            assert status == 404 or (len(what) > 8000 and status == 414), (what, status, body[:200])
        for query in ("version=", "version", "version=-1", "version=+1", "version=1x", "version=0x1", "version=%201", "version=1.0",
                      f"version={2**64 - 1}", f"version={2**64}", f"newer_than={2**64 - 1}", "newer_than=" + "9" * 400,
                      "version=0&newer_than=0", "version=0&version=0", "job=job", "newest=1", "version=0&x=1"):
            refused(c[0], 400, f"job?{query}")
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert download(c[0], "job", method)[0] == 405, method
        assert weights(c[0], "job?version=000")[0] == 0
        no_readers(c[0])
        until(lambda: c[0].descriptors() <= before + 1, what="the end of all connections")  # one of the copy in memory


@case
def a_tensor_that_no_file_can_have():
    with cluster() as c:
        c.ranks("job", [group("g", tensor("__metadata__", 3))], [0], hold=1, push=1)
        refused(c[0], 409, "job", "__metadata__")


@case
def a_node_that_lets_nobody_follow():
    with cluster(follow_copies=0) as c:
        c.ranks("job", LAYOUT, [0], **NEEDS)
        refused(c[0], 403, "job", "follow_copies")


@case
def one_after_the_other():
    """Whoever asks again at once finds no trace of the last download."""
    with cluster() as c:
        c.ranks("job", LAYOUT, [0], **NEEDS)
        for what, method, wanted in (("nobody", "GET", 404), ("job", "GET", 200), ("job", "HEAD", 200), ("job?version=x", "GET", 400)):
            assert {download(c[0], what, method)[0] for _ in range(500)} == {wanted}, what


# ---- readers that stop, and jobs that go ------------------------------------------------

@case
def a_slow_reader_holds_nobody_up_and_is_cut_off():
    """Until then it is a reader as others are."""
    with cluster(2, follow_copies=1) as c:
        ranks = c.ranks("job", HUGE, [0, 1], hold=6, push=6)
        slow = Stalled(c[0], "job")
        held, = readers(c[0])
        assert held["address"] == "127.0.0.1" and held["versions"] == [0] and held["pid"] is None, held
        assert "http 127.0.0.1" in c[0].ctl_run("versions", "job").stdout
        train(ranks, 2)
        a = c.actor(0)
        a.do("connect", job="job", rank=-1)
        a.do("attach", observer=True)
        a.refused("EDEADLINE", "follow", "follow_copies", "HTTP from 127.0.0.1", least=2, timeout_ms=300)
        begin = time.monotonic()
        while readers(c[0]) != [] and any(r["address"] for r in readers(c[0])):
            assert request(c[0].options["http"], "/metrics", **SHOWN)[0] == 200
            assert time.monotonic() - begin < TAKE_S + START_S, "it is not cut off"
            time.sleep(0.1)
        assert slow.take() is None
        assert weights(c[0], "job")[0] == 2


@case
def a_reader_that_takes_little_by_little_is_not_cut_off():
    with cluster() as c:
        c.ranks("job", HUGE, [0], hold=6, push=6)
        slow = Stalled(c[0], "job")
        got, end = b"", time.monotonic() + TAKE_S * 1.5
        while time.monotonic() < end:
            got += slow.reply.read(1 << 20)
            time.sleep(0.5)
        assert got + slow.take() == exported(c[0])


@case
def as_many_as_may_be():
    with cluster() as c:
        c.ranks("job", HUGE, [0], hold=6, push=6)
        before = c[0].descriptors()
        slow = [Stalled(c[0], "job") for _ in range(DOWNLOADS)]
        assert len(readers(c[0])) == DOWNLOADS
        assert c[0].ctl("versions", "job")["nodes"][0]["copies"][0]["readers"] == DOWNLOADS  # one copy
        assert int(refused(c[0], 503, "job", "downloads")["Retry-After"]) > 0
        assert request(c[0].options["http"], "/healthz")[0] == 200
        slow.pop().close()
        until(lambda: len(readers(c[0])) < DOWNLOADS, what="the end of the hold")
        wanted = exported(c[0])
        assert weights(c[0], "job") == (0, wanted)
        assert [s.take() for s in slow] == [wanted] * len(slow)
        no_readers(c[0])
        until(lambda: c[0].descriptors() <= before + 1, what="the end of all connections")


@case
def clients_that_give_up_waiting_keep_nobody_out():
    """Their places are free long before the wait for a version is over."""
    with cluster() as c:
        c.ranks("job", LAYOUT, [0], **NEEDS)
        host, port = c[0].options["http"].rsplit(":", 1)
        for _ in range(DOWNLOADS):
            with socket.create_connection((host, int(port)), START_S) as s:
                s.sendall(f"GET /weights/job?newer_than=7 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
                until(lambda: readers(c[0]), what="a client that waits")
        no_readers(c[0])
        assert weights(c[0], "job")[0] == 0


@cases_of(["dropped", "restored", "stopped", "killed"])
def a_download_ends_short(how):
    """The client sees that bytes are missing; nothing of the job stays."""
    with Place() as d, cluster(2) as c:
        ranks = c.ranks("job", HUGE, [0, 1], hold=6, push=6)
        if how == "restored":
            train(ranks, 1)
            path = c[0].ctl("checkpoint", "job", d)["path"]
        slow = Stalled(c[0], "job")
        for r in ranks:
            r.do("close")
        if how == "stopped":
            c[0].process.terminate()
            assert c[0].ends_cleanly()
        elif how == "killed":
            c[0].kill()
        else:
            c[0].ctl(*(["drop", "job"] if how == "dropped" else ["restore", "job", path]))
        if how in ("dropped", "restored"):
            time.sleep(1 * WAIT)  # the loop sees it, and ends the hold
        assert slow.take() is None
        if how == "dropped":
            refused(c[0], 404, "job", "no job 'job'")
            until(lambda: not any("memfd:zerod" in path for path in descriptors(c[0].process.pid).values()), what="the end of its memory")
        elif how == "restored":
            assert weights(c[0], "job") == (1, exported(c[1]))


@case
def waits_end_with_their_job():
    with cluster() as c:
        c.ranks("job", LAYOUT, [0], **NEEDS)[0].do("close")
        answers = []
        asked = [threading.Thread(target=lambda: answers.append(download(c[0], "job?newer_than=7"))) for _ in range(DOWNLOADS)]
        for t in asked:
            t.start()
        until(lambda: len(readers(c[0])) == DOWNLOADS, what="the readers")
        c[0].ctl("drop", "job")
        for t in asked:
            t.join()
        assert [status for status, _, _ in answers] == [404] * DOWNLOADS, answers


@case
def owners_change_under_downloads():
    """The node starts anew with other owners: a download ends short or was whole, and the next one is good."""
    with cluster(2, owners=1) as c:
        c.ranks("job", HUGE, [0], hold=6, push=6)
        wanted = exported(c[0])
        slow = Stalled(c[0], "job")
        c[0].change_owners("add-node", "n1")
        until(lambda: c[1].state_files(), what="shards on the new owner")

        def again():
            status, _, body = download(c[0], "job")
            assert status in (404, 503) or body == wanted, (status, body[:200])
            return status == 200
        until(again, what="a download after that")
        assert slow.take() in (None, wanted)


if __name__ == "__main__":
    main()
