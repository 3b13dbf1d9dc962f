"""Situations that hang training with collectives, most of them from reports of users, and what becomes of them.

Two ranks train a network of three blocks.  From the third step on the second rank's script differs (rank.py).  A system
"finishes", right if its loss is that of one process that does the work of both ranks; or a rank "says" something; or a
rank says nothing for 40 s.  Seconds count from where the scripts differ.  By default gloo, under DDP and FSDP2, waits 30
minutes.  zerod has two daemons and on_lost_rank="fail"; of a wait, zeroctl status says the rank.
"""

import ast
import json
import os
import re
import select
import shutil
import subprocess
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

from cluster import Cluster, spawn

from table import Section

WATCH_S = 40
START_S = 120
HERE = os.path.dirname(os.path.abspath(__file__))
WORLD = 2
SYSTEMS = ("zerod", "fsdp2", "ddp", "deepspeed")
# Where users met it.
PARTS = {
    "experts": "DeepSpeed 5066, 4966, 5008",
    "branch": "transformers 37186",
    "order": "",
    "micro_batches": "verl 5591, TorchSpec 126",
    "validation": "prime-rl 2515",
    "epoch": "PyTorch 77562",
    "exception": "composer 1319",
    "save": "PyTorch 143536",
    "killed": "",
    "stuck": "",
}
NO_END = ("epoch", "killed", "stuck")  # no system can finish these as if nothing were
LOOK_S = 0.1
WAIT_S = 0.5  # shorter waits are part of every step
TOLERANCE = 1e-4  # of a loss
SHOWN = 160  # characters of what a system says


class Rank:
    def __init__(self, run, rank, system, situation, config):
        self.log, self.events, self.buffer = f"{run.directory}/{rank}.log", [], b""
        config = {"rank": rank, "world": WORLD, "directory": run.directory, **config}
        with open(self.log, "wb") as log:
            self.process = spawn([run.options.python_of(system), "-B", f"{HERE}/rank.py", system, situation,
                                  json.dumps(config)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                                 env=run.options.environment())

    def read(self):
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        self.events += map(json.loads, lines)
        return bool(data)

    def event(self, *names):
        return next((e for e in self.events if e["event"] in names), None)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Run:
    """One situation under one system."""

    def __init__(self, options):
        self.options, self.ranks, self.cluster, self.said = options, [], None, None

    def late(self):
        """Who is waited for, and with what, as zeroctl status of a node says."""
        job = self.cluster[0].job("compare") or {"waiting": []}
        return next((f"zeroctl status: {w['for']}: {w['what']}" for w in job["waiting"]
                     if w["since_s"] > WAIT_S), None)

    def outcome(self, system, situation):
        self.directory = tempfile.mkdtemp(prefix="zerod-compare-")
        try:
            if system == "zerod":
                self.cluster = Cluster(WORLD)
            for rank in range(WORLD if system != "together" else 1):
                more = {"socket": self.cluster[rank].socket, "job": "compare", "local_world": 1,
                        "shard": {"on_lost_rank": "fail"}} if self.cluster else {}
                self.ranks.append(Rank(self, rank, system, situation, more))
            return self.watch()
        finally:
            for r in self.ranks:
                r.end()
            if self.cluster:
                self.cluster.end()
            shutil.rmtree(self.directory, ignore_errors=True)

    def watch(self):
        """What became of it: a word, seconds since the ranks differ, and what was said or the loss."""
        end, begin = time.monotonic() + START_S, None
        open_ = {r.process.stdout: r for r in self.ranks}
        while time.monotonic() < end and open_:
            for stream in select.select(list(open_), [], [], LOOK_S)[0]:
                if not open_[stream].read():
                    del open_[stream]
            deeds = [e["at"] for r in self.ranks if (e := r.event("deed"))]
            if begin is None and deeds:
                begin = max(deeds)
                end = begin + WATCH_S
            ends = [r.event("done", "refused") for r in self.ranks]
            refused = next((e for e in ends if e and e["event"] == "refused"), None)
            if refused and (ends[0] or not open_):
                return "says", refused["at"] - (begin or refused["at"]), refused["text"]
            if all(ends) and not refused:
                return "finishes", max(e["at"] for e in ends) - begin, ends[0]["loss"]
            late = begin and self.cluster and not any(ends) and self.late()
            if late:
                return "says", time.monotonic() - begin, late
        return ("hangs", WATCH_S, None) if begin and open_ else ("fails", START_S, self.tail())

    def tail(self):
        with open(self.ranks[0].log, encoding="utf-8", errors="replace") as log:
            lines = [line.strip() for line in log if line.strip()]
        return lines[-1] if lines else "no word"


def words(outcome, right):
    what, seconds, more = outcome
    if what == "finishes":
        if right is None:
            return "finishes"
        wrong = abs(more - right) > TOLERANCE * right
        return f"finishes, **wrong**: loss {more:.4f}, not {right:.4f}" if wrong else "finishes, right"
    if what == "hangs":
        return f"says nothing for {seconds} s"
    more = re.sub(r"\[/\S+\] | \[[\d.]+\]:\d+", "", more)  # a line of gloo's source, a port
    return f"{what} after {seconds:.1f} s: {textwrap.shorten(more, SHOWN, placeholder=' ...')}"


def meaning(situation):
    """What its docstring in rank.py says."""
    with open(f"{HERE}/rank.py", encoding="utf-8") as f:
        return next(ast.get_docstring(n) for n in ast.parse(f.read()).body if getattr(n, "name", None) == situation)


def told(options, system, situation, right):
    cell = words(Run(options).outcome(system, situation), right)
    options.say(f"{situation}, {system}: {cell}")
    return cell


def measure(options):
    """The peers of a situation run at once: they do nothing but wait."""
    section = Section("hangs", ["what one rank does", "as in", *SYSTEMS])
    options.python_of("deepspeed")
    with ThreadPoolExecutor(len(SYSTEMS)) as pool:
        for situation in options.only or PARTS:
            right = None
            if situation not in NO_END:
                right = Run(options).outcome("together", situation)[2]
            ours = told(options, "zerod", situation, right)
            peers = pool.map(told, *zip(*((options, system, situation, right) for system in SYSTEMS[1:])))
            section.wrong = section.wrong or not ours.startswith(("finishes, right", "says after"))
            section.row(meaning(situation), PARTS[situation], ours, *peers)
    return section
