#!/usr/bin/env python3
"""A network, or an attacker in it, damages the connections between two nodes while a job trains: the job ends with the
same bits, and the log says what happened."""
import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SETS, finish_all, group, small_layout, tensor, until  # noqa: E402
from harness import case, cases_of, main  # noqa: E402
from relay import Wires  # noqa: E402

LAYOUT = small_layout(blocks=2, width=256)
STEPS = 60
TRANSFER = 4 << 20  # bytes of a session's memory for zero_get() and zero_put(); the push slots follow
known = {}


def train(c, attack=None, steps=STEPS):
    """Trains, and calls attack(progress) meanwhile; progress() waits for another step."""
    ranks = c.ranks("work", LAYOUT, [0, 1], hold=2, push=2)
    for a in ranks:
        a.start("train", steps=steps, sets=SETS, patient=True)
    if attack:
        attack(lambda: one_more_step(c))
        assert not all(a.ready() for a in ranks), "the job had ended before the attack did"
    seen = finish_all(ranks)
    assert {x["version"] for x in seen} == {steps}, seen
    return c.checksum("work")


def one_more_step(c):
    now = c[0].job("work")["version"]
    until(lambda: c[0].job("work")["version"] > now, what="another step")


def unattacked():
    if not known:
        with Wires(2) as c:
            known["sum"] = train(c)
    return known["sum"]


def flip_bits(c):
    """An attack: flips bits of payloads in both directions while the job trains."""
    def attack(progress):
        for side in (0, 1, 1, 0):
            progress()
            c.relays[0].flip(side)
            until(lambda: not any(c.relays[0].flips), what="a large payload")
    return attack


@cases_of([("authenticated", "authenticated"), ("encrypted", "encrypted"), ("plain", "encrypted")], "{0[0]}_{0[1]}")
def flipped_bits(payloads):
    """A changed byte of a payload is noticed, even if only one of the nodes asks for authentication; the payload is
    requested again."""
    expected = unattacked()
    with Wires(2, per_node={i: {"tcp_payloads": p} for i, p in enumerate(payloads)}) as c:
        got = train(c, flip_bits(c))
        assert got == expected, f"{got} is not {expected}"
        told = sum(d.log().count("damaged on its way") for d in c.daemons)
        assert told >= 4, "the log does not report the changed bytes"


@case
def silent_bulk_connection():
    """A bulk connection that falls silent while the link lives is noticed and made again."""
    expected = unattacked()
    with Wires(2) as c:
        def attack(progress):
            progress()
            silenced = c.relays[0].silence()
            assert silenced, "no bulk connection goes through the relay"
            until(lambda: any("silent for" in p["bulk_detail"] for d in c.daemons for p in d.status()["peers"]),
                  what="the silence in the status")
            until(lambda: not any(p in c.relays[0].pairs for p in silenced), what="the end of the silent connection")
            progress()
        got = train(c, attack)
        assert got == expected, f"{got} is not {expected}"
        silent = 0
        for d, peer in ((c[0], "n1"), (c[1], "n0")):
            lines = [line for line in d.log().splitlines() if "lost the link" in line]
            assert len(lines) == 1 and f"node {peer}" in lines[0], f"{d.name} does not name the peer once: {lines}"
            silent += "nothing came over the bulk connection" in lines[0]
        assert silent, "no node says why"  # the one that notices later may only see that the connection was closed


class Scribbler:
    """Keeps writing to a part of the memory that a session shares with its daemon."""

    def __init__(self, pid, gradients):
        with open(f"/proc/{pid}/maps", encoding="utf-8") as f:
            begin, end = next(line.split()[0].split("-") for line in f if "memfd:zerod-session" in line)
        self.begin, self.size = int(begin, 16), TRANSFER
        if gradients:
            self.begin, self.size = self.begin + TRANSFER, int(end, 16) - self.begin - TRANSFER
        self.memory, self.ended = os.open(f"/proc/{pid}/mem", os.O_RDWR), False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.ended:
            for value in (b"\0", b"\1"):
                os.pwrite(self.memory, value * self.size, self.begin)

    def end(self):
        self.ended = True
        self.thread.join()
        os.close(self.memory)


@case
def client_that_writes_to_a_pushed_gradient():
    """A gradient changes while it travels to another node: that damages the client's own job, and breaks no link."""
    with Wires(2) as c:
        ranks = c.ranks("work", [group("g", tensor("t", 4 << 20))], [0, 1], hold=1, push=1)
        for a in ranks:
            a.start("train", steps=20, sets=SETS, patient=True)
        scribblers = [Scribbler(a.pid, gradients=True) for a in ranks]
        try:
            finish_all(ranks)
        finally:
            for s in scribblers:
                s.end()
        for d in c.daemons:
            assert "lost the link" not in d.log(), d.log()


@case
def client_that_writes_to_values_while_it_reads_them():
    """Values from another node change while they land in the client's memory: no link breaks."""
    with Wires(2) as c:
        a, _ = c.ranks("work", [group("g", tensor("t", 4 << 20))], [0, 1], hold=1, push=1)
        scribbler = Scribbler(a.pid, gradients=False)
        try:
            for first in (2 << 20, 3 << 20):  # the other node's half
                for _ in range(2):
                    a.do("get", tensor=0, plane="master", first=first, count=TRANSFER // 4)
        finally:
            scribbler.end()
        for d in c.daemons:
            assert "lost the link" not in d.log(), d.log()


if __name__ == "__main__":
    main()
