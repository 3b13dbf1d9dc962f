#!/usr/bin/env python3
"""One user reads a large job of its own without end, while another user's job trains in small steps.

The reads may cost the other job a share of its steps.  Windows with the attack and without it take turns, so that a
busy machine slows both alike; the share of steps that the job keeps is printed, and a case fails below a bound that is
far below what is seen.  The attacking processes are nice: their own use of CPUs is not the service's.  In the end
the job has the checksum that it has without an attack."""
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import contextmanager

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from attacks import ATTACKER, attack_by  # noqa: E402
from cluster import SETS, SLOW, Cluster, Tools, finish_all, group, small_layout, until  # noqa: E402
from harness import case, main  # noqa: E402
import wire  # noqa: E402

LAYOUT = small_layout()
NEEDS = {"hold": 2, "push": 2}
OWNER = 65534
PARAMETERS = int(os.environ.get("TESTS_PARAMETERS", 16 << 20)) // SLOW  # of the attacker's job
LARGE = [group(f"g{i}", {"name": f"w{i}", "shape": [PARAMETERS // 4]}) for i in range(4)]
GROUPS = 65535 // SLOW
MANY = [group(f"g{i}", {"name": f"w{i}", "shape": [1]}) for i in range(GROUPS)]
MASTER = 1
WINDOW_S, WINDOWS, BATCH = 0.5, 3, 5
LEAST = 0.1  # of the steps; an attack without bounds leaves none, and with them 0.43 is the least seen on a busy machine


def attach(c, uid, job, layout, **needs):
    """A rank of the job on each node."""
    ranks = []
    for n in range(2):
        a = c.actor(n, f"rank {n} of {job}")
        a.do("user", uid=uid)
        a.do("connect", job=job, rank=n, world=2, local=1, timeout_ms=120000 * SLOW)
        a.do("layout", groups=layout)
        a.start("attach", **needs)
        ranks.append(a)
    finish_all(ranks)
    return ranks


def train(ranks, steps):
    for a in ranks:
        a.start("train", steps=steps, sets=SETS)
    finish_all(ranks)


def steps_in_a_window(ranks):
    """(steps, seconds) of at least WINDOW_S."""
    begin, steps = time.monotonic(), 0
    while time.monotonic() - begin < WINDOW_S:
        train(ranks, BATCH)
        steps += BATCH
    return steps, time.monotonic() - begin


def end_job(c, ranks, job="job"):
    total = c.checksum(job)
    for a in ranks:
        c.dismiss(a)
    c[0].ctl("drop", job)
    return total


@contextmanager
def held_back(attack):
    os.killpg(attack.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(attack.pid, signal.SIGCONT)


def keeps_its_steps(layout, function, *arguments):
    """The attack costs steps, but not most of them, and no bit.  After its end the job goes on at once."""
    with Cluster(2) as c:
        attackers = attach(c, ATTACKER, "large", layout, hold=1, push=1)
        ranks, total = attach(c, OWNER, "job", LAYOUT, **NEEDS), 0
        calm, attacked = [0, 0], [0, 0]
        with attack_by(function, c[0].socket, *arguments, group=True) as a:
            until(lambda: a[0], what="the attack's first answer")
            for i in range(2 * WINDOWS):
                if i % 2:
                    steps, seconds = steps_in_a_window(ranks)
                else:
                    with held_back(a):
                        steps, seconds = steps_in_a_window(ranks)
                into = attacked if i % 2 else calm
                into[0] += steps
                into[1] += seconds
                total += steps
            answers, good = a[0], a[1]
            until(lambda: a[0] > answers, what="an answer to the attack behind the windows")
        train(ranks, BATCH)
        total += BATCH
        share = attacked[0] / attacked[1] / (calm[0] / calm[1])
        print(f"# {share:.2f} of the steps: {attacked[0] / attacked[1]:.1f}/s, without the attack {calm[0] / calm[1]:.1f}/s; "
              f"{answers} answers to the attack, {good} of them good; load {os.getloadavg()[0]:.1f}", flush=True)
        assert all("lost the link" not in d.log() for d in c.daemons)
        with_attack = end_job(c, ranks)
        for a in attackers:
            c.dismiss(a)
        c[0].ctl("drop", "large")
        ranks = attach(c, OWNER, "job", LAYOUT, **NEEDS)
        train(ranks, total)
        assert end_job(c, ranks) == with_attack
        assert share >= LEAST, share


# ---- attacks -----------------------------------------------------------------------------------

def shells(attack, path):
    """Four shells with zeroctl in a loop."""
    running = []
    while True:
        running = [p for p in running if p.poll() is None]
        while len(running) < 4:
            running.append(subprocess.Popen([Tools.zeroctl, "--socket", path, "checksum", "large"],
                                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        attack[1] += os.wait()[1] == 0
        attack[0] += 1


class Asker:
    """A connection that keeps questions in flight."""

    def __init__(self, path, question, observes=False):
        self.raw, self.question, self.seq = wire.Raw(path, timeout=600), question, 10
        self.raw.hello("large" if observes else "", timeout_ms=120000)
        if observes:
            status, text, _ = self.raw.ask("attach")
            assert status == wire.OK, text
        self.buffer = bytearray()

    def ask(self, times=1):
        for _ in range(times):
            self.seq += 1
            self.raw.send(wire.request(self.seq, *self.question))

    def take(self):
        """The statuses of the answers that have come."""
        answers, at = [], 0
        data = self.raw.socket.recv(1 << 20)
        if not data:
            raise ConnectionError
        self.buffer += data
        while len(self.buffer) - at >= 4:
            size = 4 + struct.unpack_from("<I", self.buffer, at)[0]
            if len(self.buffer) - at < size:
                break
            answers.append(wire.decode(bytes(self.buffer[at + 4:at + min(size, 32)]), some=True).get(2, [0])[0])
            at += size
        del self.buffer[:at]
        return answers


def ask_without_end(attack, path, connections, question, at_once=1, **more):
    askers = [Asker(path, question, **more) for _ in range(connections)]  # a greeting waits for what its user owes
    with selectors.DefaultSelector() as ready:
        for a in askers:
            a.ask(at_once)
            ready.register(a.raw.socket, selectors.EVENT_READ, a)
        while True:
            for key, _ in ready.select():
                try:
                    for status in key.data.take():
                        assert status in (wire.OK, wire.EBUSY), status
                        attack[0] += 1
                        attack[1] += status == wire.OK
                        key.data.ask()
                except ConnectionError:  # this process was stopped, and did not read for long
                    ready.unregister(key.fileobj)
                    key.data.raw.close()
                    a = Asker(path, question, **more)
                    a.ask(at_once)
                    ready.register(a.raw.socket, selectors.EVENT_READ, a)


def attach_without_end(attack, path, connections):
    """Attaches as a rank and leaves, again and again: each time a job is made or taken up."""
    layout = wire.layout_message(MANY)
    while connections > 1 and os.fork():  # of the attack's group
        connections -= 1
    while True:
        raw = wire.Raw(path, timeout=600)
        raw.hello(f"many{os.getpid()}", 0, 1, timeout_ms=120000)
        status, _, _ = raw.ask("attach", {1: layout, 2: 1, 3: 1, 4: 1, 5: 1})
        raw.close()
        attack[0] += 1
        attack[1] += status == wire.OK


# ---- cases --------------------------------------------------------------------------------------

@case
def checksums_of_four_shells():
    keeps_its_steps(LARGE, shells)


@case
def checksums_that_are_not_awaited():
    """A socket takes 40 questions even while the daemon, which the user owes time, reads none of them."""
    keeps_its_steps(LARGE, lambda attack, path: ask_without_end(attack, path, 8, ("query", {1: "checksum", 2: "large"}),
                                                                at_once=40))


@case
def a_client_that_reads_no_answers():
    """Its connection is closed, the log says why, and whoever reads gets answers."""
    with Cluster(1) as c:
        deaf = wire.Raw(c[0].socket, timeout=600)
        deaf.hello()
        try:
            while True:
                deaf.send(wire.request(2, "query", {1: "status"}))
        except ConnectionError:
            pass
        deaf.close()
        until(lambda: "was closed: the client does not read its replies" in c[0].log(), what="the reason in the log")
        assert c[0].ctl_run("status").returncode == 0


@case
def norms_for_forty_observers():
    keeps_its_steps(LARGE, lambda attack, path: ask_without_end(attack, path, 40, ("norms", {1: MASTER, 2: 0, 3: 4}),
                                                                observes=True))


@case
def gets_for_a_hundred_observers():
    keeps_its_steps(LARGE, lambda attack, path: ask_without_end(
        attack, path, 100, ("get", {1: 0, 2: MASTER, 3: 0, 4: (4 << 20) // 4}), observes=True, at_once=4))


@case
def shards_of_many_groups():
    keeps_its_steps(MANY, lambda attack, path: ask_without_end(attack, path, 8, ("query", {1: "shards", 2: "large"})))


@case
def attaches_with_many_groups():
    keeps_its_steps(LARGE, attach_without_end, 8)


@case
def more_questions_than_a_user_may_have_in_flight():
    """One more is refused, and the refusal names the limit.  Clients who leave make no room: nodes work on it."""
    def refusals():
        with Cluster(2) as c:
            c[1].stop()
            first, second = wire.Raw(c[0].socket), wire.Raw(c[0].socket)
            first.hello()
            second.hello()
            first.send(b"".join(wire.request(i, "query", {1: "ping"}) for i in range(2, 2 + 64)))  # root's
            refused = [second.ask("query", {1: "ping"})]
            first.close()
            refused.append(second.ask("query", {1: "ping"}))
            c[1].go_on()
            until(lambda: second.ask("query", {1: "ping"})[0] == wire.OK, what="room")
            second.close()
            return refused
    for _ in range(5):  # the stopped node is given up after 5 s
        told = refusals()
        if all(status == wire.EBUSY and "64 questions to all nodes" in text for status, text, _ in told):
            return
    raise AssertionError(told)


if __name__ == "__main__":
    main()
