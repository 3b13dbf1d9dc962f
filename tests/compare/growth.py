"""What one more daemon costs: 2 to 64 daemons on one machine, and a rank on each.

"start" is from the first process to the last link, and "open" until all ranks have attached.  "step" is the mean of three.
"owners" is the mean of remove-node and add-node, each until all ranks have made a step under the new list.  "rest" is a
second without calls.  Messages, bytes and CPU time are of one daemon: what it sends over its links, and its process' clock.
Of "open", "step" and "owners" they are without those of "rest" in the same time.  "own" is private memory of a daemon, and
"a peer" what it grew by since the row above, over the daemons more.  "grows as" has exponents, since the row above, of
messages, bytes and CPU time of all daemons together; linear is 1.

The model has eight groups: two are cut over all owners, also over 64, and six have one owner.  Ranks are C programs that
compute next to nothing.  Payloads go over TCP, as between machines.  All daemons share the processors, so seconds say
less than the counts.

Each pair of nodes has a link, and each node's rank fetches the two large groups from all owners: the messages of a daemon
grow with the nodes, which makes a square in all, and messages on links have a bit a node.  A start that takes seconds is
told of once a second at most, which adds to that.
"""
import contextlib
import math
import sys
import time

from cluster import SETS, Cluster, Tools, finish_all, group, tensor, until
from systems import memory

from table import Section

SIZES, PARTS = (2, 4, 8, 16, 32, 64), ("N",)
EVENTS = ("start", "open", "step", "owners", "rest")
COUNTED = ("messages", "bytes", "CPU time")
SLICE = 65536 // 4  # elements of the least slice (proto/partition.h)
STEPS, REST_S = 3, 2
LINEAR = 1.2  # a larger exponent is faster than linear; constant parts make it smaller
SHOWN = 300  # characters of why a size failed
JOB = "growth"


def layout():
    large = [group(f"large{i}", tensor(f"l{i}", max(SIZES), SLICE)) for i in range(2)]
    return large + [group(f"small{i}", tensor(f"s{i}", SLICE // 4)) for i in range(6)]


class Seen:
    """What all daemons have sent and used so far.  To ask them takes CPU time, which is no part of an event."""

    def __init__(self, cluster):
        pids = [d.process.pid for d in cluster.daemons]

        def cpu():
            return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)  # clock_getcpuclockid(3)
        self.first_at, self.first_cpu, self.kinds, self.bytes = time.monotonic(), cpu(), {}, 0
        self.memory = sum(map(memory.anonymous, pids)) / len(pids)
        for peer in (p for d in cluster.daemons for p in d.status()["peers"] if not p["self"]):
            self.bytes += peer["sent"]["control"]
            for kind, n in peer["messages"].items():
                self.kinds[kind] = self.kinds.get(kind, 0) + n
        self.last_at, self.last_cpu = time.monotonic(), cpu()


class Nothing:
    """Before the daemons start."""

    def __init__(self):
        self.last_at, self.last_cpu, self.kinds, self.bytes = time.monotonic(), 0, {}, 0


class Event:
    """What all daemons did between two looks; in each of `times` events."""

    def __init__(self, before, after, times=1):
        kinds = {k: (n - before.kinds.get(k, 0)) / times for k, n in after.kinds.items()}
        self.most = max(kinds, key=kinds.get, default="")
        self.share = kinds[self.most] / max(1, sum(kinds.values())) if kinds else 0
        self.seconds, self.memory = (after.first_at - before.last_at) / times, after.memory
        self.counts = dict(zip(COUNTED, (sum(kinds.values()), (after.bytes - before.bytes) / times,
                                         (after.first_cpu - before.last_cpu) / times)))

    def less(self, rest):
        """Without what daemons do at rest in that time: heartbeats, for the most part."""
        for what in COUNTED:
            self.counts[what] = max(0, self.counts[what] - rest.counts[what] / rest.seconds * self.seconds)

    def exponents(self, fewer, ratio):
        return {what: math.log(n / fewer.counts[what], ratio) for what, n in self.counts.items()
                if n > 0 and fewer.counts[what] > 0}


def train(ranks, steps):
    for r in ranks:
        r.start("train", steps=steps, sets=SETS, patient=True)
    finish_all(ranks)


def can_vote(cluster):
    return all((d.query("members")[0] or {}).get("voter") for d in cluster.daemons)


def run(n):
    """{event: Event} of so many daemons."""
    before, events, names = Nothing(), {}, [f"n{i}" for i in range(n)]
    with contextlib.redirect_stdout(sys.stderr), Cluster(n, bulk="tcp") as c:  # logs, when something fails
        events["start"] = Event(before, Seen(c))
        until(lambda: can_vote(c), what="the votes of all nodes")
        before = Seen(c)
        ranks = c.ranks(JOB, layout(), range(n), hold=1, push=1)
        events["open"] = Event(before, Seen(c))
        train(ranks, 1)
        before = Seen(c)
        train(ranks, STEPS)
        seen = Seen(c)
        events["step"] = Event(before, seen, STEPS)
        time.sleep(REST_S)
        before = Seen(c)
        events["rest"] = Event(seen, before, REST_S)
        for command, owners in (("remove-node", names[:-1]), ("add-node", names)):
            c[0].ctl(command, names[-1])
            train(ranks, 1)
            told = c[0].job(JOB)["owners"]
            assert sorted(told) == sorted(owners), f"the owners are {told} after {command}"
        events["owners"] = Event(before, Seen(c), 2)
    for name in ("open", "step", "owners"):
        events[name].less(events["rest"])
    return events


def rows(section, name, found):
    """One event's rows; the exponents of the last one."""
    exponents, fewer = {}, None
    for n, events in found.items():
        e, peer = events[name], ""
        if fewer:
            exponents = e.exponents(found[fewer][name], n / fewer)
            peer = f"{(e.memory - found[fewer][name].memory) / (n - fewer) / 1024:.0f}"
        sent, size, cpu = (e.counts[what] / n for what in COUNTED)
        if name != "start":  # the other events leave parts of the model, too
            peer = ""
        section.row(name, n, f"{e.seconds:.2f}", f"{sent:.1f}", f"{e.most} {100 * e.share:.0f} %", f"{size / 1024:.1f}",
                    f"{1000 * cpu:.1f}", f"{e.memory / memory.MIB:.1f}", peer, ", ".join(f"{x:.1f}" for x in exponents.values()))
        fewer = n
    return exponents


def measure(options):
    Tools.actor = f"{options.build}/tests/support/actor"
    numbers = ["daemons", "seconds", "messages", "KiB", "CPU, ms", "own, MiB", "a peer, KiB"]
    section = Section("growth", ["event", *numbers[:3], "most are", *numbers[3:], "grows as"], numbers)
    found = {}
    for n in map(int, options.only or SIZES):
        try:
            found[n] = run(n)
        except (AssertionError, OSError) as why:
            section.wrong = True
            section.notes.append(f"{n} daemons fail: {' '.join(str(why).split())[:SHOWN]}")
            options.say(section.notes[-1])
            continue
        options.say(f"{n} daemons: " + ", ".join(f"{name} {e.seconds:.2f} s" for name, e in found[n].items()))
    last = {name: rows(section, name, found) for name in EVENTS} if found else {}
    if len(found) > 1:
        faster = [f"{name}: " + ", ".join(f"{what} {x:.1f}" for what, x in grown.items() if x > LINEAR)
                  for name, grown in last.items() if max(grown.values(), default=0) > LINEAR]
        section.notes.append("Faster than linear from {} to {} daemons, with its exponent: {}."
                             .format(*list(found)[-2:], "; ".join(faster) or "nothing"))
    return section
