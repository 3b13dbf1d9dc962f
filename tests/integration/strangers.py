#!/usr/bin/env python3
"""Foreign peers and garbage on every port and socket, while the cluster's own nodes and trainers go on."""
import multiprocessing
import os
import random
import re
import resource
import select
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SETS, SLOW, Cluster, Daemon, die_with_parent, finish_all, group, small_layout, tensor, until  # noqa: E402
from harness import case, cases_of, main  # noqa: E402
from ports import free_ports  # noqa: E402
import wire  # noqa: E402

MAGIC = b"zerod\r\n\x1a"
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../daemon/fabric/link/handshake.h"),
          encoding="utf-8") as _header:
    VERSION, HELLO = (int(n) for n in re.findall(r"HANDSHAKE_(?:VERSION|HELLO) = (\d+)", _header.read()))


def start_alone(c):
    """Starts daemons that may never link; waits until zeroctl reaches them."""
    for d in c.daemons:
        d.start()
    for d in c.daemons:
        until(lambda d=d: d.ctl_run("status").returncode == 0, what=f"daemon {d.name}")


def why(daemon, peer):
    return next(p["why"] for p in daemon.status()["peers"] if p["node"] == peer)


def says(daemon, peer, *words):
    """Status says why there is no link with the peer."""
    until(lambda: all(w in why(daemon, peer) for w in words), 30 * SLOW,
          f"'{words}' in {daemon.name}'s status of {peer}")
    assert not next(p["up"] for p in daemon.status()["peers"] if p["node"] == peer)


@case
def peer_with_another_key():
    with Cluster(2, start=False) as c:
        c.write_key(f"{c.directory}/other")
        c[1].options["key_file"] = f"{c.directory}/other"
        start_alone(c)
        for d, peer in ((c[0], "n1"), (c[1], "n0")):
            says(d, peer, "key")


@case
def peer_with_another_owner_list():
    with Cluster(2, start=False) as c:
        c[1].options["owners"] = "n1"
        start_alone(c)
        for d, peer in ((c[0], "n1"), (c[1], "n0")):
            says(d, peer, "owners")


@case
def peer_with_another_peer_list():
    with Cluster(2, start=False) as c:
        c[1].options["peers"] += " n2=127.0.0.1:1"
        start_alone(c)
        says(c[0], "n1", "owners")


@case
def key_rotation():
    """A node that has the new key as key_next_file links with a node that already uses it."""
    with Cluster(2, start=False) as c:
        c.write_key(f"{c.directory}/next")
        c[0].options["key_next_file"] = f"{c.directory}/next"
        c[1].options["key_file"] = f"{c.directory}/next"
        c.start()


class Fake:
    """A listener in the place of a node."""

    def __init__(self, port):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(("127.0.0.1", port))
        self.socket.listen()
        self.socket.settimeout(60)

    def answer(self, data):
        s, _ = self.socket.accept()
        s.settimeout(60)
        hello = s.recv(4096)
        s.sendall(data)
        try:
            while s.recv(4096):
                pass
        except OSError:
            pass
        s.close()
        return hello


def dialler_of(c):
    """Finds by trying which of the two daemons dials: (that daemon, the other's name, a Fake on the other's port)."""
    ports = [d.port for d in c.daemons]
    for mine in (1, 0):
        fake = Fake(ports[mine])
        d = c[1 - mine]
        d.start()
        until(lambda d=d: d.ctl_run("status").returncode == 0, what="the daemon")
        fake.socket.settimeout(10)
        try:
            s, _ = fake.socket.accept()
            s.close()
            fake.socket.settimeout(60)
            return d, c[mine].name, fake
        except socket.timeout:
            fake.socket.close()
            d.process.terminate()
            d.process.wait()
    raise AssertionError("nobody dials")


@case
def peer_of_another_version():
    with Cluster(2, start=False) as c:
        d, peer, fake = dialler_of(c)
        hello = fake.answer(MAGIC + struct.pack("<HBBI", 99, 2, 2, 16))
        assert hello.startswith(MAGIC)
        says(d, peer, "99", "version")
        fake.socket.close()


@case
def visitor_of_another_version():
    with Cluster(2) as c:
        s = socket.create_connection(("127.0.0.1", c[0].port), 10)
        s.sendall(MAGIC + struct.pack("<HBBI", 99, 1, 0, HELLO) + b"x" * (HELLO - 16))
        assert s.recv(4096).startswith(MAGIC), "no refusal in cleartext"
        s.close()
        until(lambda: "99" in c[0].log(), what="a line in the log")


@case
def peer_that_sends_garbage():
    with Cluster(2, start=False) as c:
        d, peer, fake = dialler_of(c)
        fake.answer(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        until(lambda: why(d, peer) != "", what="a reason")
        fake.socket.close()


# ---- garbage ------------------------------------------------------------------------

def nonsense(r):
    return r.choice([
        lambda: r.randbytes(r.randint(1, 3000)),
        lambda: bytes(209),
        lambda: MAGIC + r.randbytes(r.randint(0, 600)),
        lambda: MAGIC + struct.pack("<HBBI", VERSION, r.randint(0, 9), r.randint(0, 9), 0xffffffff),
        lambda: MAGIC + struct.pack("<HBBI", VERSION, 1, 0, HELLO) + r.randbytes(HELLO - 16),
        lambda: b"GET / HTTP/1.1\r\n\r\n",
        lambda: b"\x16\x03\x01\x02\x00" + r.randbytes(512),
    ])()


def pester_ports(c, r):
    """Opens garbage, half-open and aborted connections; returns those that are still open."""
    held = []
    for _ in range(40):
        for d in c.daemons:
            try:
                s = socket.create_connection(("127.0.0.1", d.port), 5)
            except OSError:
                continue
            s.settimeout(5)
            try:
                kind = r.randint(0, 3)
                if kind > 1:
                    s.sendall(nonsense(r))
                elif kind == 1:
                    s.sendall(MAGIC[:r.randint(1, 8)])
                if kind == 3:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    s.close()
                    continue
            except OSError:
                pass
            held.append(s)
    return held


@case
def garbage_on_ports():
    """A job trains while both ports get garbage; afterwards the daemons close all of those connections."""
    with Cluster(2) as c:
        before = [d.descriptors() for d in c.daemons]
        ranks = c.ranks("work", small_layout(), [0, 1], hold=2, push=2)
        for a in ranks:
            a.start("train", steps=200, sets=SETS, clip=1)
        r, held, rounds = random.Random(3), [], 0
        while not all(a.ready() for a in ranks) or rounds < 3:
            held += pester_ports(c, r)
            rounds += 1
            for s in held[:-150]:
                s.close()
            held = held[-150:]
        seen = finish_all(ranks)
        assert {x["version"] for x in seen} == {200}
        for s in held:
            s.settimeout(30 * SLOW)
            assert ended(s), "a stranger's connection stays open"
            s.close()
        for a in ranks:
            a.end()
        for d, n in zip(c.daemons, before):
            until(lambda d=d, n=n: d.descriptors() <= n + 2, what=f"descriptors of {d.name}: {n}")


def ended(s):
    try:
        while s.recv(4096):
            pass
        return True
    except ConnectionError:
        return True
    except socket.timeout:
        return False


@case
def idle_strangers_do_not_keep_a_node_out():
    """Idle connections take every place for unauthenticated peers; a restarted node links all the same."""
    with Cluster(2, start=False) as c:
        crowd = []
        c[0].start()
        c[1].start()
        for d in c.daemons:
            until(lambda d=d: d.ctl_run("status").returncode == 0, what="the daemons")
        for d in c.daemons:
            for _ in range(200):
                s = socket.socket()
                s.setblocking(False)
                s.connect_ex(("127.0.0.1", d.port))
                crowd.append(s)
        c[1].process.terminate()
        c[1].process.wait()
        c[1].start()
        for _ in range(100):
            s = socket.socket()
            s.setblocking(False)
            s.connect_ex(("127.0.0.1", c[0].port))
            crowd.append(s)
        until(c[0].peers_up, 30 * SLOW, "the link")
        for s in crowd:
            s.close()


@case
def second_daemon_of_one_name():
    """The later daemon is refused and logs why, once; the first daemon's job goes on."""
    with Cluster(2) as c:
        port, = free_ports(1)
        own = {"socket": f"{c.directory}/twin.sock", "state_dir": f"{c.directory}/twin.state",
               "membership_dir": f"{c.directory}/twin.votes"}
        peers = c[0].options["peers"].replace(f":{c[0].port}", f":{port}")
        twin = Daemon("twin", c.directory, port, {**c[0].options, **own, "peers": peers})
        ranks = c.ranks("work", small_layout(), [0, 1], hold=2, push=2)
        c.daemons.append(twin)
        twin.start()
        until(lambda: "stop one of the two" in twin.log(), what="the refusal in the second daemon's log")
        for a in ranks:
            a.start("train", steps=50, sets=SETS)
        finish_all(ranks)
        assert "lost the link" not in c[1].log()
        assert twin.log().count("stop one of the two") == 1
        assert c[1].log().count("stop one of them") == 1


def crowd(address, port, n):
    """A process with n connections from one address, which connects anew whenever one is closed."""
    process = multiprocessing.get_context("fork").Process(target=be_crowd, args=(address, port, n), daemon=True)
    process.start()
    return process


def be_crowd(address, port, n):
    die_with_parent()
    poll, sockets = select.epoll(), {}

    def come():
        s = socket.socket()
        s.bind((address, 0))
        s.setblocking(False)
        s.connect_ex(("127.0.0.1", port))
        sockets[s.fileno()] = s
        poll.register(s, select.EPOLLRDHUP)
    for _ in range(n):
        come()
    while True:
        for fd, _ in poll.poll():
            sockets.pop(fd).close()
            come()


@cases_of(["127.0.0.1", "127.0.0.2"])
def reconnecting_strangers_do_not_keep_a_restarted_node_out(address):
    """More connections than places for unauthenticated peers, from the peer's address and from another one."""
    with Cluster(2) as c:
        crowds = [crowd(address, d.port, 130) for d in c.daemons]
        until(lambda: all("refused a connection" in d.log() for d in c.daemons), what="refused connections")
        for d in reversed(c.daemons):
            d.restart()
            until(lambda d=d: d.ctl_run("status").returncode == 0, what=f"daemon {d.name}")
            until(lambda: c[0].peers_up() and c[1].peers_up(), 10 * SLOW, "the link")
        for process in crowds:
            process.kill()
            process.join()


# ---- the unix socket -------------------------------------------------------------------

@cases_of(["at_the_start", "later"])
def descriptors_run_out(when):
    """Clients for which no descriptor is left are closed; the log says so at a limited rate.

    A daemon that starts with the limit of open files takes no more sessions than have room; one that meets it later does."""
    with Cluster(1, start=False) as c:
        c[0].start(wrapper=["prlimit", "--nofile=64:64"] if when == "at_the_start" else [])
        c.wait_up()
        resource.prlimit(c[0].process.pid, resource.RLIMIT_NOFILE, (64, 64))
        held = []

        def comes():
            held.append(wire.Raw(c[0].socket))
            try:
                return held[-1].hello()[0] == wire.OK
            except (EOFError, ConnectionError):
                return False
        until(comes, what="the place of whoever asked whether the daemon is up")
        while comes():  # a place is kept for 10 s without a hello, and this may take longer
            pass
        before = len(c[0].log().splitlines())
        for _ in range(1000):
            turned = wire.Raw(c[0].socket)
            assert turned.closed()
            turned.close()
        assert len(c[0].log().splitlines()) - before < 500, c[0].log()[-300:]
        told = [line for line in c[0].log().splitlines() if "was turned away" in line]
        assert told and all("limit of open files" in line and "LimitNOFILE" in line for line in told), told[:5]
        for raw in held:
            raw.close()
        until(lambda: c[0].ctl_run("status").returncode == 0, what="room for a session")


@case
def request_before_hello():
    with Cluster(1) as c:
        raw = wire.Raw(c[0].socket)
        status, text, _ = raw.ask("query", {1: "status"})
        assert status == wire.EPROTO and "hello" in text, (status, text)
        assert raw.closed()
        raw.close()


@case
def places_and_types_of_a_put():
    """What a put names in the transfer area lies in it, and its values are of a type that the owner widens."""
    einval, erange, master, step, most = 1, 13, 1, 7, 1 << 64
    with Cluster(1) as c:
        rank, = c.ranks("job", [group("g", tensor("t", 3 << 20)), group("q", tensor("q", 64, init="zeros", frozen=True), dtype="int8")],
                        [0], hold=1, push=1)
        sums = c.checksum("job")
        raw = wire.Raw(c[0].socket)
        raw.hello("job")
        status, text, fields = raw.ask("attach", {})
        assert status == wire.OK, (text, fields)
        area = wire.decode(fields[5][0])[4][0]  # AttachReply.session_bytes: an observer has no more
        for fields, status in (({4: 1, 5: area - 3}, erange), ({4: 1, 5: most - 4}, erange), ({4: 1, 5: most - 1}, erange),
                               ({4: area // 4 + 1}, erange), ({4: area // 16 + 1}, erange), ({4: area // 8 + 1, 6: 2}, erange),
                               ({4: area // 8, 5: area - area // 4 + 1, 6: 2}, erange),
                               ({4: 1, 6: 1}, einval), ({4: 1, 6: 4}, einval), ({4: 1, 6: 99}, einval), ({4: 1, 6: 2, 2: step}, einval),
                               ({4: 1, 6: 2, 1: 1}, einval)):
            said = raw.ask("put", {1: 0, 2: master, 3: 0, **fields})
            assert said[0] == status, (fields, said)
        assert raw.ask("get", {1: 0, 2: master, 3: 0, 4: 1, 6: 2})[0] == einval
        assert raw.ask("get", {1: 0, 2: master, 3: 0, 4: 1, 5: area - 4})[0] == wire.OK
        assert c.checksum("job") == sums
        raw.close()


@case
def other_protocol():
    with Cluster(1) as c:
        raw = wire.Raw(c[0].socket)
        status, text, _ = raw.hello(protocol=77)
        assert status == 3 and "77" in text, (status, text)
        assert raw.closed()
        raw.close()


@case
def frame_above_the_limit():
    with Cluster(1) as c:
        for size in (0xffffffff, (64 << 20) + 1):
            raw = wire.Raw(c[0].socket)
            raw.hello()
            raw.send(struct.pack("<I", size) + b"x" * 1000)
            assert raw.closed(), "the connection goes on"
            raw.close()


@case
def unfinished_large_frame():
    """A frame's announced size of 60 MiB makes the daemon allocate nothing."""
    with Cluster(1) as c:
        before, raws = c[0].memory(), []
        for _ in range(20):
            raws.append(wire.Raw(c[0].socket))
            raws[-1].hello()
            raws[-1].send(struct.pack("<I", 60 << 20) + b"x" * 100)
        c[0].status()
        assert c[0].memory() < before + 8192 * SLOW, (before, c[0].memory())
        for raw in raws:
            raw.close()


def mangled(r):
    """A frame that is valid, slightly damaged, truncated or random."""
    what = r.choice(list(wire.BODY))
    good = wire.request(r.randint(0, 99), what, {r.randint(1, 6): r.choice([r.getrandbits(64), r.randbytes(9), "status"])
                                                 for _ in range(r.randint(0, 4))})
    kind = r.randint(0, 4)
    if kind == 0:
        return wire.frame(r.randbytes(r.randint(0, 400)))
    if kind == 1:
        body = bytearray(good[4:])
        for _ in range(r.randint(1, 4)):
            if body:
                body[r.randrange(len(body))] = r.randrange(256)
        return wire.frame(bytes(body))
    if kind == 2:
        return wire.frame(good[4:len(good) - r.randint(0, 3)])
    return good


@cases_of([1, 2, 3])
def random_frames(seed):
    """Thousands of random frames in every state of a session, while a job trains."""
    r = random.Random(seed)
    with Cluster(2) as c:
        good = c.ranks("good", small_layout(), [0, 1], hold=2, push=2)
        for a in good:
            a.start("train", steps=60, sets=SETS)
        for i in range(60):
            raw = wire.Raw(c[i % 2].socket, 2)
            try:
                if r.random() < 0.9:
                    raw.hello(job=r.choice(["", "good", f"bad{i % 3}", "bad"]), rank=r.choice([-1, 0, 1]), world=2,
                              timeout_ms=50)
                if r.random() < 0.5:
                    raw.ask("attach", {1: wire.layout_message(small_layout(blocks=1)), 2: 1, 3: 1, 4: 1, 5: 1})
                for _ in range(60):
                    raw.send(mangled(r))
            except (OSError, EOFError):
                pass
            raw.close()
        finish_all(good)
        assert all(d.alive() for d in c.daemons)
        for a in good:
            a.start("train", steps=5, sets=SETS)
        finish_all(good)


@case
def half_open_and_slow_clients():
    """Sessions that are silent, send byte by byte or never read delay nobody else."""
    with Cluster(1) as c:
        silent = [wire.Raw(c[0].socket) for _ in range(50)]
        deaf = wire.Raw(c[0].socket, 2)
        deaf.hello()
        slow = wire.Raw(c[0].socket, 5)
        a, = c.ranks("work", small_layout(), [0], hold=2, push=2)
        a.start("train", steps=50, sets=SETS)
        try:
            for _ in range(20000):
                deaf.send(wire.request(1, "query", {1: "status"}))
        except OSError:
            pass
        for byte in wire.request(1, "hello", {1: wire.PROTOCOL, 3: 1, 6: 1000}):
            slow.send(bytes([byte]))
            time.sleep(0.005)  # what makes it slow
        assert slow.reply()[0] == wire.OK
        a.good(a.finish())
        assert c[0].memory() < (1 << 20), "a client that does not read takes unbounded memory"
        for raw in (*silent, deaf, slow):
            raw.close()


@case
def descriptors_in_messages_are_refused():
    """The kernel refuses them where it can; otherwise the daemon ends the connection."""
    with Cluster(1) as c:
        before = c[0].descriptors()
        for _ in range(100):
            raw = wire.Raw(c[0].socket)
            raw.hello()
            try:
                socket.send_fds(raw.socket, [wire.request(2, "query", {1: "jobs"})], [0, 1, 2])
                assert raw.closed(), "a connection with descriptors goes on"
            except PermissionError:
                pass
            raw.close()
        until(lambda: c[0].descriptors() <= before + 1, what="the passed descriptors to be closed")


if __name__ == "__main__":
    main()
