#!/usr/bin/env python3
"""One user of a node attacks all others: floods, silence, unread replies, descriptors.  Meanwhile another user's
job trains and ends with the checksum that it has without the attack, and root's zeroctl is answered.

The bound on the slow-down does not depend on how busy the machine is, because it is on CPU time: the attack costs
the loop thread what it uses beyond the job alone, and that must be less than half of the time the loop thread was
not kept waiting for a CPU.  So the job's steps take less than twice as long."""
import os
import select
import selectors
import socket
import struct
import sys
import time
from contextlib import contextmanager

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from attacks import attack_by  # noqa: E402
from cluster import SETS, SLOW, Cluster, finish_all, small_layout, until  # noqa: E402
from harness import Skip, case, main  # noqa: E402
import wire  # noqa: E402

LAYOUT = small_layout()
NEEDS = {"hold": 2, "push": 2}
OWNER = 65534
STEPS = 120
CALM = 2  # runs without an attack
FRAME_MAX = 64 << 20


def owners_ranks(c, job="job"):
    ranks = []
    for n in range(2):
        a = c.actor(n, f"rank {n}")
        a.do("user", uid=OWNER)
        a.do("connect", job=job, rank=n, world=2, local=1, timeout_ms=60000 * SLOW)
        a.do("layout", groups=LAYOUT)
        a.start("attach", **NEEDS)
        ranks.append(a)
    finish_all(ranks)
    return ranks


def loop_clock(daemon):
    """Nanoseconds that the loop thread has computed, and nanoseconds that it was not waiting for a CPU."""
    pid = daemon.process.pid
    with open(f"/proc/{pid}/task/{pid}/schedstat", encoding="ascii") as f:
        computed, waited = (int(n) for n in f.read().split()[:2])
    return computed, time.monotonic_ns() - waited


def train(c, ranks):
    """Trains STEPS steps; nanoseconds that the first node's loop computed, and that it was not waiting for a CPU."""
    begin = loop_clock(c[0])
    for a in ranks:
        a.start("train", steps=STEPS, sets=SETS)
    finish_all(ranks)
    return [end - start for start, end in zip(begin, loop_clock(c[0]))]


def finish_job(c, ranks):
    """Drops the job; its last checksum."""
    total = c.checksum("job")
    for a in ranks:
        c.dismiss(a)
    c[0].ctl("drop", "job")
    return total


def calm(c):
    """Without an attack: nanoseconds that the loop computed, the largest of all runs, and the checksum."""
    most = 0
    for _ in range(CALM):
        ranks = owners_ranks(c)
        most = max(most, train(c, ranks)[0])
        total = finish_job(c, ranks)
    return most, total


def withstands(c, before):
    """The job ends with the same checksum, within the bound, and no link breaks.  The job alone needs up to twice the
    CPU time beside other tests, so the best of three runs counts.  Returns how many there were."""
    for run in (1, 2, 3):
        ranks = owners_ranks(c)
        computed, had = train(c, ranks)
        print(f"# {(computed - before[0]) / had:.2f} of the loop's time for the attack, {before[0] / had:.2f} for the job")
        assert finish_job(c, ranks) == before[1]
        if computed - before[0] < had / 2:
            break
        assert run < 3, (computed, before[0], had)
    for d in c.daemons:
        assert "lost the link" not in d.log(), f"{d.name} lost a link"
        assert d.ctl_run("status").returncode == 0
    return run


def connect(path):
    """A blocking connect(): it waits until the listen queue has a place."""
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    return s


# ---- descriptors ------------------------------------------------------------------------

def lingering(address):
    """A TCP connection whose close() takes an hour, because nobody reads the bytes in it."""
    s = socket.socket()
    s.connect(address)
    s.setblocking(False)
    try:
        while True:
            s.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    return s


def pass_descriptors(attack, paths, address):
    """Passes a descriptor eight times to each daemon, beside one byte of a frame; a few send a whole frame first.
    Counts how many were sent and how many were refused."""
    held = []
    for i in range(8 * len(paths)):
        s, passed = connect(paths[i % len(paths)]), lingering(address)
        if i < 8:
            s.send(wire.request(1, "hello", {1: wire.PROTOCOL}))
        try:
            socket.send_fds(s, [b"x"], [passed.fileno()])
            attack[0] += 1
        except OSError:
            passed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
            attack[1] += 1
        passed.close()
        held.append(s)
    attack.done()


@contextmanager
def silent_listener():
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        yield listener.getsockname()


@case
def descriptors_that_take_an_hour_to_close():
    with Cluster(2) as c, silent_listener() as address:
        before = calm(c)
        with attack_by(pass_descriptors, [d.socket for d in c.daemons], address) as a:
            withstands(c, before)
            a.wait()
            withstands(c, before)


SO_PASSRIGHTS = 83


@contextmanager
def handed_sockets():
    """Two nodes that are not started, each with a socket made here, as systemd does; start(d) hands it over."""
    handed = "import os, sys; os.dup2(int(sys.argv[1]), 3); " \
             "os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1'); os.execv(sys.argv[2], sys.argv[2:])"
    with Cluster(2, start=False) as c:
        listeners = []
        for d in c.daemons:
            s = socket.socket(socket.AF_UNIX)
            s.bind(d.socket)
            os.chmod(d.socket, 0o666)
            s.listen(100)
            listeners.append(s)

        def start():
            for d, s in zip(c.daemons, listeners):
                d.start(wrapper=[sys.executable, "-c", handed, str(s.fileno())], pass_fds=[s.fileno()])
            until(lambda: all(d.alive() and d.ctl_run("status").returncode == 0 for d in c.daemons) or
                  any("listens at" in d.log() for d in c.daemons), what="the daemons")
            if any("listens at" in d.log() for d in c.daemons):
                raise Skip("built without systemd")
            c.wait_up()

        yield c, listeners, start
        for s in listeners:
            s.close()


@case
def descriptors_that_the_kernel_lets_through():
    """Descriptors on connections older than the daemons, which could not yet make the kernel refuse them."""
    with handed_sockets() as (c, _, start), silent_listener() as address:
        with attack_by(pass_descriptors, [d.socket for d in c.daemons], address) as a:
            a.wait()
            assert a[0] == 16, (a[0], a[1])
            start()
            before = calm(c)
            withstands(c, before)


def hold_up_closes(attack, path, address):
    """Passes a descriptor whose close() blocks, as that of a file on a FUSE server may, and 1499 more after it.  What
    blocks is a lingering connection in the queue of the passed socket."""
    outer, inner = socket.socketpair()
    with lingering(address) as blocked:
        socket.send_fds(outer, [b"x"], [blocked.fileno()])
    with open("/dev/null", "rb") as null:
        for i in range(1500):
            with connect(path) as s:
                try:
                    socket.send_fds(s, [b"x"], [null.fileno() if i else inner.fileno()])
                    inner.close()
                    attack[0] += 1
                except OSError:  # turned away already
                    attack[1] += 1
    with connect(path) as s:
        s.send(wire.request(1, "hello", {1: wire.PROTOCOL}))
        attack[2] = answered(s)
    attack.done()


def answered(s):
    try:
        return len(s.recv(4096)) > 0
    except OSError:
        return False


def say_hello(attack, path):
    while not attack[3]:
        with connect(path) as s:
            try:
                s.send(wire.request(1, "hello", {1: wire.PROTOCOL}))
            except OSError:
                continue
            attack[3] = answered(s)
    attack.done()


@case
def descriptors_whose_close_never_returns():
    """Where the kernel does not refuse descriptors, they use up the quota of their own user alone."""
    with handed_sockets() as (c, listeners, start):
        start()
        for s in listeners:
            try:
                s.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 1)
            except OSError:
                pass  # an older kernel
        before = calm(c)
        c[0].stop()  # the last close() of the descriptor that blocks is the daemon's
        with silent_listener() as address, attack_by(hold_up_closes, c[0].socket, address) as a:
            until(lambda: a[0], what="the first descriptor")
            c[0].go_on()
            a.wait()
            print(f"# {a[0]} descriptors passed, {a[1]} connections ended before")
            assert a[0] > 1024 and not a[2], (a[0], a[1], a[2])
            assert "wait to be closed" in c[0].log()
            withstands(c, before)
        with attack_by(say_hello, c[0].socket) as a:
            a.wait()


# ---- connections ----------------------------------------------------------------------------

def take_connections(attack, path):
    """Connects as often as the daemon allows and says nothing; counts open connections and those that the daemon
    has closed."""
    held = []
    while len(held) - attack[1] < 1100 and attack[2] < 2000:
        s = connect(path)
        s.setblocking(False)
        held.append(s)
        attack[2] += 1
    attack[3] = 1
    while True:
        ended = 0
        for s in held:
            try:
                ended += s.recv(1) == b""
            except BlockingIOError:
                pass
            except OSError:
                ended += 1
        attack[0], attack[1] = len(held) - ended, ended
        time.sleep(0.05)


@case
def one_user_does_not_take_every_connection():
    with Cluster(2) as c:
        before = calm(c)
        with attack_by(take_connections, c[0].socket) as a:
            a.wait()
            assert c[0].ctl_run("status").returncode == 0
            until(lambda: a[1], what="refused connections")
            withstands(c, before)
            until(lambda: a[1] and a[0] == 0, 60 * SLOW, "the end of silent connections")
        assert "session_limit" in c[0].log()


# ---- memory ------------------------------------------------------------------------------------

def begin_frame(path, greet):
    s = connect(path)
    try:
        if greet:
            s.send(wire.request(1, "hello", {1: wire.PROTOCOL, 2: "j", 3: 0, 4: 1}))
            s.recv(4096)
    except OSError:  # turned away
        pass
    s.setblocking(False)
    return s


def begin_frames(attack, path, greet):
    """Sends 50 frames of the largest size at a time.  A frame stops one byte short of its end; then, or when the
    daemon cuts it off, another begins."""
    frame = struct.pack("<I", FRAME_MAX) + bytes(FRAME_MAX - 1)
    rest = {begin_frame(path, greet): memoryview(frame) for _ in range(50)}
    while True:
        for s in select.select([], rest, [])[1]:
            try:
                rest[s] = rest[s][s.send(rest[s]):]
            except OSError:
                rest[s] = b""
            if not rest[s]:
                del rest[s]
                s.close()
                rest[begin_frame(path, greet)] = memoryview(frame)
                attack[3] += 1


def read_nothing(attack, path):
    """200 connections ask for answers of 100 KiB and more and read none; then others take their place."""
    held, questions = [], b"".join(wire.request(i, "query", {1: "config"}) for i in range(2, 100))
    while True:
        s = connect(path)
        s.setblocking(False)
        try:
            s.send(wire.request(1, "hello", {1: wire.PROTOCOL}))
            while True:
                attack[0] += s.send(questions)
        except OSError:
            pass
        held.append(s)
        if len(held) > 200:
            held.pop(0).close()
            attack[3] = 1


def peak_memory(daemon, reset=False):
    """Peak of resident memory in KiB since the last reset."""
    if reset:
        with open(f"/proc/{daemon.process.pid}/clear_refs", "w", encoding="ascii") as f:
            f.write("5")
    with open(f"/proc/{daemon.process.pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM:"))


def memory_returns(most, attack, *arguments):
    """The daemon's memory grows by at most `most` KiB, and returns when the attack ends."""
    with Cluster(2) as c:
        before = calm(c)
        small = peak_memory(c[0], reset=True)
        with attack_by(attack, c[0].socket, *arguments) as a:
            withstands(c, before)
            a.wait()
            withstands(c, before)
        peak = peak_memory(c[0])
        print(f"# {(peak - small) >> 10} MiB more at the peak")
        if SLOW == 1:  # sanitizers keep what was freed
            assert peak < small + most, (small, peak)
            until(lambda: c[0].memory() < small + (24 << 10), what=f"memory near {small} KiB, now {c[0].memory()},")


@case
def unfinished_frames_before_hello():
    memory_returns(16 << 10, begin_frames, False)


@case
def unfinished_frames_after_hello():
    memory_returns(160 << 10, begin_frames, True)


@case
def unread_replies():
    memory_returns(160 << 10, read_nothing)


@case
def refused_attaches():
    """Each names the 4096 ranks of its stash, and a dtype that there is none of: the daemon keeps nothing of it."""
    with Cluster(1) as c:
        raw = wire.Raw(c[0].socket)
        raw.hello("refused", 0, 4096)
        layout = wire.layout_message([{"name": "g", "tensors": [{"name": "t", "shape": [8]}]}])
        attach = {1: layout, 2: 1, 3: 1, 4: 99, 5: 1, 11: wire.message({1: list(range(4096)), 2: 1 << 20})}

        def refused(times):
            for _ in range(times):
                status, text, _ = raw.ask("attach", attach)
                assert status and "grad_dtype" in text, (status, text)
        refused(100)
        small = c[0].memory()
        refused(1500)  # a set of ranks has 16 KiB
        print(f"# {c[0].memory() - small} KiB more")
        if SLOW == 1:  # sanitizers keep what was freed
            assert c[0].memory() < small + (8 << 10), (small, c[0].memory())
        raw.close()


# ---- loop time ----------------------------------------------------------------------------------

FLOOD, QUESTIONS = 96, 5000 // SLOW


def flood_of_status(attack, path):
    """Keeps thousands of questions queued on its connections; counts the answers."""
    questions = b"".join(wire.request(i, "query", {1: "status"}) for i in range(QUESTIONS))
    with selectors.DefaultSelector() as ready:
        for i in range(FLOOD):
            s = connect(path)
            s.sendall(wire.request(1, "hello", {1: wire.PROTOCOL}) + questions)
            s.setblocking(False)
            ready.register(s, selectors.EVENT_READ, bytearray())
        attack[1] = 1
        while attack[0] < FLOOD * (QUESTIONS + 1):
            for key, _ in ready.select():
                buffer, at = key.data, 0
                buffer += key.fileobj.recv(1 << 18)
                while len(buffer) - at >= 4:
                    size = 4 + struct.unpack_from("<I", buffer, at)[0]
                    if len(buffer) - at < size:
                        break
                    at += size
                    attack[0] += 1
                del buffer[:at]
        attack.done()


@case
def endless_status_requests():
    with Cluster(2) as c:
        before = calm(c)
        with attack_by(flood_of_status, c[0].socket) as a:
            until(lambda: a[1], what="the questions")
            withstands(c, before)
            assert not a[3], "the questions ended before the job"
        print(f"# {a[0]} answers to the attacker")


@case
def status_of_all_nodes_is_made_seldom():
    """Nodes tell each other a text that is made once in 100 ms, however many questions come."""
    with Cluster(2) as c:
        raw = wire.Raw(c[0].socket)
        raw.hello()
        begin = time.monotonic()
        told = set()
        for _ in range(10):  # root may have 64 such questions in flight
            raw.send(b"".join(wire.request(i, "query", {1: "nodes"}) for i in range(50)))
            told |= {wire.decode(raw.reply()[2][9][0])[1][0] for _ in range(50)}
        took = time.monotonic() - begin
        raw.close()
        assert len(told) <= 2 * (took / 0.1 + 2), f"{len(told)} texts in {took:.3f} s"
        print(f"# {len(told)} texts in {took:.3f} s")


# ---- the log -----------------------------------------------------------------------------------

def come_and_go(attack, path):
    """Attaches and disconnects without bye, again and again; each time the job is created or taken up."""
    while True:
        raw = wire.Raw(path)
        raw.hello("churn", 0, 1)
        raw.ask("attach", {1: wire.layout_message([{"name": "g", "tensors": [{"name": "t", "shape": [8]}]}]),
                           2: 1, 3: 1, 4: 1, 5: 1})
        raw.close()
        attack[0] += 1


@case
def log_of_a_client_that_comes_and_goes():
    """A thousand times: few of its lines are logged, one line counts the rest, and no other job's line is lost."""
    with Cluster(2) as c:
        before = calm(c)
        with attack_by(come_and_go, c[0].socket) as a:
            until(lambda: a[0] >= 200, what="the attack")
            runs = CALM + withstands(c, before)
            until(lambda: a[0] >= 1000, what="a thousand times")
            until(lambda: any("were left out" in d.log() for d in c.daemons), what="the number of lines left out")
            times = a[0]
            lines = [line for d in c.daemons for line in d.log().splitlines()]
        print(f"# {sum('churn' in line for line in lines)} lines of {times} times")
        assert sum("churn" in line for line in lines) < times / 2
        assert sum("job job: all 2 ranks are there" in line for line in lines) == runs


if __name__ == "__main__":
    main()
