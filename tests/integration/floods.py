#!/usr/bin/env python3
"""One user of a node against all others: floods, silence, unread replies, descriptors.  A job of another user
trains meanwhile and ends at the checksum it has without the attack; root is served.

The bound on the slow-down is counted, not timed: the loop thread's CPU time beyond what the job alone takes is
the attack's, and less than half of the time that the loop had.  So the job's steps take less than twice as long,
however busy the machine is."""
import os
import resource
import select
import selectors
import signal
import socket
import struct
import sys
import time
import traceback
from contextlib import contextmanager
from mmap import mmap

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SETS, SLOW, Cluster, die_with_parent, finish_all, small_layout, until  # noqa: E402
from harness import Skip, case, main  # noqa: E402
import wire  # noqa: E402

LAYOUT = small_layout()
NEEDS = {"hold": 2, "push": 2}
OWNER, ATTACKER = 65534, 12345
STEPS = 120
FRAME_MAX = 64 << 20


class Attack:
    """A process of another user.  function(attack) runs in it; counts[0..3] are seen on both sides."""

    def __init__(self, function, *arguments, uid=ATTACKER):
        if os.getuid():
            raise Skip("another user needs root")
        self.shared = mmap(-1, 4096)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                die_with_parent()
                if os.getppid() == parent:
                    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
                    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
                    os.setgid(uid)
                    os.setuid(uid)
                    function(self, *arguments)
            except BaseException:  # pylint: disable=broad-except
                traceback.print_exc()
            finally:
                os._exit(0)

    def __getitem__(self, i):
        return struct.unpack_from("<q", self.shared, 8 * i)[0]

    def __setitem__(self, i, value):
        struct.pack_into("<q", self.shared, 8 * i, value)

    def done(self):
        """Its work: to be called at its end; it stays as it is."""
        self[3] = 1
        signal.pause()

    def wait(self):
        until(lambda: self[3], 240 * SLOW, what="the attack")

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@contextmanager
def attack_by(function, *arguments, **options):
    a = Attack(function, *arguments, **options)
    try:
        yield a
    finally:
        a.end()


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
    """Nanoseconds: that the loop thread has computed, and that it was not kept from computing by other threads of
    the machine."""
    pid = daemon.process.pid
    with open(f"/proc/{pid}/task/{pid}/schedstat", encoding="ascii") as f:
        computed, waited = (int(n) for n in f.read().split()[:2])
    return computed, time.monotonic_ns() - waited


def train(c, ranks):
    """STEPS steps: nanoseconds that the first node's loop computed, of those that it had."""
    begin = loop_clock(c[0])
    for a in ranks:
        a.start("train", steps=STEPS, sets=SETS)
    finish_all(ranks)
    return [end - start for start, end in zip(begin, loop_clock(c[0]))]


def finish_job(c, ranks):
    """The job's checksum; then the job is gone."""
    total = c.checksum("job")
    for a in ranks:
        c.dismiss(a)
    c[0].ctl("drop", "job")
    return total


def calm(c):
    """Nanoseconds of the loop, the most of two runs, and the checksum."""
    most = 0
    for _ in range(2):
        ranks = owners_ranks(c)
        most = max(most, train(c, ranks)[0])
        total = finish_job(c, ranks)
    return most, total


def withstands(c, before, ranks=None):
    """A job trains to the same end, by ranks that attach now if there are none yet; no link breaks."""
    ranks = ranks or owners_ranks(c)
    computed, had = train(c, ranks)
    print(f"# {(computed - before[0]) / had:.2f} of the loop for the attack, {before[0] / had:.2f} for the job")
    assert computed - before[0] < had / 2, (computed, before[0], had)
    assert finish_job(c, ranks) == before[1]
    for d in c.daemons:
        assert "lost the link" not in d.log(), f"{d.name} lost a link"
        assert d.ctl_run("status").returncode == 0


def connect(path):
    """Without a timeout, for then it waits for a place in the queue."""
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    return s


# ---- descriptors ------------------------------------------------------------------------

def lingering(address):
    """A TCP connection whose close takes an hour: there are bytes that nobody reads."""
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
    """One byte of a frame with a descriptor, or a frame before it, eight times to each daemon; counts those that
    were sent and those that were refused."""
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
    """The same to sockets that were connected before the daemons could have the kernel refuse them."""
    with handed_sockets() as (c, _, start), silent_listener() as address:
        with attack_by(pass_descriptors, [d.socket for d in c.daemons], address) as a:
            a.wait()
            assert a[0] == 16, (a[0], a[1])
            start()
            before = calm(c)
            withstands(c, before)


def hold_up_closes(attack, path, address):
    """A descriptor whose close blocks whoever closes it, as a file of a FUSE server may, and 1500 behind it.  What
    blocks is a lingering connection in the queue of the socket that is passed."""
    outer, inner = socket.socketpair()
    with lingering(address) as blocked:
        socket.send_fds(outer, [b"x"], [blocked.fileno()])
    with open("/dev/null", "rb") as null:
        for i in range(1500):
            with connect(path) as s:
                try:
                    socket.send_fds(s, [b"x"], [null.fileno() if i else inner.fileno()])
                    attack[0] += 1
                except OSError:  # turned away already
                    attack[1] += 1
            if i == 0:
                inner.close()
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
def descriptors_whose_close_does_not_end():
    """Where the kernel does not refuse descriptors, they fill the share of their user and nobody else's."""
    with handed_sockets() as (c, listeners, start):
        start()
        for s in listeners:
            try:
                s.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 1)
            except OSError:
                pass  # an older kernel
        before = calm(c)
        with silent_listener() as address, attack_by(hold_up_closes, c[0].socket, address) as a:
            a.wait()
            print(f"# {a[0]} descriptors passed, {a[1]} connections ended before")
            assert a[0] > 1024 and not a[2], (a[0], a[1], a[2])
            assert "waiting to be closed" in c[0].log()
            withstands(c, before)
        with attack_by(say_hello, c[0].socket) as a:
            a.wait()


# ---- connections ----------------------------------------------------------------------------

def take_connections(attack, path):
    """As many as there are, without a word; counts those it has and those that the daemon has ended."""
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
            until(lambda: a[1], what="connections that are refused")
            withstands(c, before)
            until(lambda: a[1] and a[0] == 0, 60 * SLOW, "the end of connections that say nothing")
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
    """50 frames of the largest size at a time.  One that is a byte short of whole, or is cut, is begun again."""
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
    """Answers of 100 KiB and more, asked for by 200 connections and read by none; then by others in their place."""
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
    """The most resident kilobytes there were, since it was reset."""
    if reset:
        with open(f"/proc/{daemon.process.pid}/clear_refs", "w", encoding="ascii") as f:
            f.write("5")
    with open(f"/proc/{daemon.process.pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM:"))


def memory_returns(most, attack, *arguments):
    """The daemon's memory grows by `most` KiB at most, and is given back when the attack ends."""
    with Cluster(2) as c:
        before = calm(c)
        small = peak_memory(c[0], reset=True)
        with attack_by(attack, c[0].socket, *arguments) as a:
            withstands(c, before)
            a.wait()
            withstands(c, before)
        peak = peak_memory(c[0])
        print(f"# {(peak - small) >> 10} MiB more for a time")
        if SLOW == 1:  # sanitizers keep what was freed
            assert peak < small + most, (small, peak)
            until(lambda: c[0].memory() < small + (24 << 10), what=f"memory near {small} KiB, now {c[0].memory()},")


@case
def frames_that_do_not_end_before_hello():
    memory_returns(16 << 10, begin_frames, False)


@case
def frames_that_do_not_end_behind_hello():
    memory_returns(160 << 10, begin_frames, True)


@case
def replies_that_are_not_read():
    memory_returns(160 << 10, read_nothing)


# ---- loop time ----------------------------------------------------------------------------------

FLOOD, QUESTIONS = 96, 5000 // SLOW


def flood_of_status(attack, path):
    """Connections that have thousands of questions waiting; counts the answers."""
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
def status_asked_for_without_end():
    with Cluster(2) as c:
        before = calm(c)
        with attack_by(flood_of_status, c[0].socket) as a:
            until(lambda: a[1], what="the questions")
            withstands(c, before)
            assert not a[3], "the questions ended before the job"
        print(f"# {a[0]} answers to the attacker")


# ---- the log -----------------------------------------------------------------------------------

def come_and_go(attack, path):
    """Attaches and leaves without a word, as a job that is made and taken up each time."""
    while True:
        raw = wire.Raw(path)
        raw.hello("churn", 0, 1)
        raw.ask("attach", {1: wire.layout_message([{"name": "g", "tensors": [{"name": "t", "shape": [8]}]}]),
                           2: 1, 3: 1, 4: 1, 5: 1})
        raw.close()
        attack[0] += 1


@case
def log_of_a_client_that_comes_and_goes():
    """A thousand times: its lines are few, one line says how many there were, others' lines stand."""
    with Cluster(2) as c:
        before = calm(c)
        with attack_by(come_and_go, c[0].socket) as a:
            until(lambda: a[0] >= 200, what="the attack")
            withstands(c, before)
            until(lambda: a[0] >= 1000, what="a thousand times")
            until(lambda: any("were left out" in d.log() for d in c.daemons), what="the number of lines left out")
            times = a[0]
            lines = [line for d in c.daemons for line in d.log().splitlines()]
        print(f"# {sum('churn' in line for line in lines)} lines of {times} times")
        assert sum("churn" in line for line in lines) < times / 2
        assert sum("job job: all 2 ranks are there" in line for line in lines) == 3


if __name__ == "__main__":
    main()
