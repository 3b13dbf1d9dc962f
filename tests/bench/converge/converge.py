#!/usr/bin/env python3
"""Does training learn the same, however the states are kept?  For tests/bench/run.sh converge.

A byte-level GPT learns the quotations of Debian's package fortunes, which deploy/quickstart.sh trains on, once for each
configuration and seed.  A seed gives the first parameters and the order of the data, the same for all configurations.
The loss is that of held-out bytes, in nats a byte.

Two ranks with one thread each train on one daemon; torch alone has one process with two threads.  On two cores that
gives the most steps a second, and sums over ranks are rounded as they are in a cluster.  A configuration is "within" if
its mean differs from the reference's by no more than the reference's seeds do from each other (max - min).

Each run leaves a file in --results, so that a run that was interrupted goes on, and rows may be run one by one.  With
--write the page keeps the results that have no such file, if its settings are those of this run.

Exit status: 0, or 1 if a run failed.
"""
import argparse
import datetime
import glob
import json
import math
import os
import select
import subprocess
import sys
import time

import table
from configurations import CONFIGURATIONS, REFERENCE, SHORT

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "..", "..", ".."))
sys.path.append(os.path.join(HERE, ".."))
import common  # noqa: E402  (its place is known only now)
import merge  # noqa: E402
import training  # noqa: E402
from cluster import Cluster, spawn  # noqa: E402

PAGE = f"{ROOT}/tests/bench/CONVERGE.md"
LAYERS, HEAD_WIDTH = 8, 64
BATCH, CONTEXT = 16, 20  # 16: 8 micro-batches of each of two ranks
WINDOWS = 256  # of the last validation; a quarter of them before
EVERY = 100
SEEDS = 3
WARM = 8  # steps by which the time of a step is estimated
SILENCE_S = 1800
END_S = 60


class Failed(Exception):
    """Why a run has no result."""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(SHORT), metavar="NAME,...",
                        help=f"of {', '.join(SHORT)}")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--parameters", type=float, default=10e6, help="about so many")
    parser.add_argument("--results", metavar="DIR", help="default: converge in the build tree")
    parser.add_argument("--write", action="store_true", help="keeps the table as tests/bench/CONVERGE.md")
    parser.add_argument("--text", nargs="+", metavar="FILE", help="instead of the quotations")
    parser.add_argument("--build", default=f"{ROOT}/build", help="build tree of zerod")
    parser.add_argument("--python", default=os.environ.get("TESTS_PYTHON") or sys.executable,
                        help="that has torch; $TESTS_PYTHON")
    options = parser.parse_args()
    for name in options.only:
        if name not in SHORT:
            parser.error(f"{name}: no such configuration; there are {', '.join(SHORT)}")
    if options.seeds < 1 or options.steps < 1 or not options.parameters >= 1:
        parser.error("--seeds, --steps and --parameters are 1 at least")
    options.build = os.path.abspath(options.build)
    options.results = options.results or f"{options.build}/converge"
    options.text = options.text or [n for n in sorted(glob.glob("/usr/share/games/fortunes/*"))
                                    if not n.endswith((".dat", ".u8"))]
    if not options.text:
        parser.error("which --text? The package fortunes is not installed")
    return options


# ---- one run ---------------------------------------------------------------------


class Run:
    """The ranks of one configuration, with a daemon of their own."""

    def __init__(self, options, name, seed):
        self.options, self.daemon_cpu = options, []  # the daemon's CPU seconds at each word of rank 0
        self.configuration = CONFIGURATIONS[SHORT[name]]
        heads = max(1, round(math.sqrt(options.parameters / (12 * LAYERS)) / HEAD_WIDTH))
        self.job = {"name": name, "seed": seed, "steps": options.steps, "layers": LAYERS, "heads": heads,
                    "width": heads * HEAD_WIDTH, "batch": BATCH, "context": CONTEXT, "windows": WINDOWS,
                    "every": EVERY, "threads": os.cpu_count(), "text": options.text}

    def train(self, until, told):
        """The first `until` of the steps; the last word of rank 0.  told: called with each one."""
        with Cluster(1, threads=os.cpu_count()) as cluster:
            ranks = [self.start(cluster, rank, until) for rank in range(self.configuration.ranks)]
            last = {}
            for word in self.words(cluster, ranks):
                self.daemon_cpu.append(training.cpu_seconds(cluster[0].process.pid))
                told(word)
                last = word
            for rank in ranks:
                if rank.wait(END_S):
                    raise Failed(self.reason(cluster))
            return last

    def start(self, cluster, rank, until):
        job = {**self.job, "rank": rank, "until": until, "socket": cluster[0].socket}
        with open(f"{cluster.directory}/rank.log", "ab") as log:
            process = spawn([self.options.python, f"{HERE}/trainer.py", json.dumps(job)], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=log, env=environment(self.options))
        cluster.others.append(process)
        return process

    def words(self, cluster, ranks):
        """What rank 0 says, until its output ends."""
        stream, buffer, heard = ranks[0].stdout, b"", time.monotonic()
        while True:
            if select.select([stream], [], [], 1)[0]:
                data, heard = os.read(stream.fileno(), 1 << 16), time.monotonic()
                if not data:
                    return
                *lines, buffer = (buffer + data).split(b"\n")
                yield from map(json.loads, lines)
            elif any(r.poll() for r in ranks):
                raise Failed(self.reason(cluster))
            elif time.monotonic() - heard > SILENCE_S:
                raise Failed(f"no word within {SILENCE_S} s")

    @staticmethod
    def reason(cluster):
        with open(f"{cluster.directory}/rank.log", encoding="utf-8", errors="replace") as log:
            lines = [line.strip() for line in log if line.strip()]
        return f"a rank ended: {lines[-1] if lines else 'no word'}"


def environment(options):
    # passive: two threads that spin for each other take five times as long on a machine that is not quiet
    return {**os.environ, "PYTHONPATH": f"{ROOT}/client/python", "OMP_WAIT_POLICY": "passive",
            "ZEROD_LIBRARY": f"{options.build}/client/lib/libzero.so.0"}


def offers(options):
    """The formats' arguments of this build's zerod.torch."""
    done = subprocess.run([options.python, f"{HERE}/trainer.py", "offers"], env=environment(options), text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(f"{options.python} cannot load zerod.torch from {options.build}")
    return json.loads(done.stdout)


# ---- all runs --------------------------------------------------------------------


def minutes(seconds):
    return f"{seconds / 60:.0f} min" if seconds >= 100 else f"{seconds:.0f} s"


class Bench:
    def __init__(self, options):
        self.options, self.failed = options, False
        self.missing = {}
        self.settings = (f"{options.parameters / 1e6:g}M parameters, {options.steps} steps of {BATCH} sequences of "
                         f"{CONTEXT} bytes, {WINDOWS} held-out ones")
        there = offers(options)
        for name in SHORT.values():
            if not set(CONFIGURATIONS[name].formats) <= set(there):
                self.missing[name] = "not in this build"
        self.step_s = self.work = self.done = self.began = 0

    def path(self, name, seed):
        return f"{self.options.results}/{name}-{self.options.parameters / 1e6:g}M-{self.options.steps}-{seed}.json"

    def result(self, name, seed):
        """None: not run, or with other settings."""
        try:
            with open(self.path(name, seed), encoding="utf-8") as file:
                found = json.load(file)
        except FileNotFoundError:
            return None
        return found if found["settings"] == self.settings else None

    def keep(self, name, seed, result):
        os.makedirs(self.options.results, exist_ok=True)
        path = self.path(name, seed)
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
        os.replace(path + ".new", path)

    def estimate(self, runs):
        """Says how long these runs take."""
        reference = Run(self.options, "adamw", 1)
        last = reference.train(WARM, lambda word: None)
        self.step_s = last["step_s"]
        daemon = (reference.daemon_cpu[-1] - reference.daemon_cpu[0]) / WARM
        # the ranks compute beside each other, while the daemon mostly waits for them
        quiet = (reference.configuration.ranks * last["step_cpu_s"] + daemon) / os.cpu_count()
        self.work = sum(CONFIGURATIONS[SHORT[name]].cost for name, _ in runs) * self.options.steps
        print(f"{self.settings}: {len(runs)} runs.  A step of the reference takes {quiet:.3f} s of {os.cpu_count()} quiet "
              f"cores, which makes {minutes(self.work * quiet)}; now it takes {self.step_s:.3f} s, which makes "
              f"{minutes(self.work * self.step_s)}", flush=True)

    def left(self, done):
        """Seconds, by what has been done; by the estimate at first."""
        if done < self.options.steps / 2:
            return (self.work - done) * self.step_s
        return (self.work - done) * (time.monotonic() - self.began) / done

    def run(self, name, seed):
        curve, cost = [], CONFIGURATIONS[SHORT[name]].cost

        def told(word):
            curve.append([word["step"], word["loss"]])
            print(f"{name} seed {seed}: step {word['step']}/{self.options.steps}, validation loss {word['loss']:.4f}, "
                  f"{minutes(self.left(self.done + cost * word['step']))} left", flush=True)

        try:
            last = Run(self.options, name, seed).train(self.options.steps, told)
            self.keep(name, seed, {"settings": self.settings, "date": f"{datetime.date.today()}", "curve": curve,
                                   **last})
        except (Failed, AssertionError, OSError, subprocess.TimeoutExpired) as why:
            self.failed = True
            print(f"{name} seed {seed}: failed: {why}", flush=True)
        self.done += cost * self.options.steps

    def run_all(self):
        seeds = range(1, self.options.seeds + 1)
        runs = [(name, seed) for seed in seeds for name in SHORT if name in self.options.only
                and SHORT[name] not in self.missing and not self.result(name, seed)]
        if not runs:
            return
        self.estimate(runs)
        self.began = time.monotonic()
        for name, seed in runs:
            self.run(name, seed)

    def rows(self):
        rows = {}
        for short, name in SHORT.items():
            found = [self.result(short, seed) for seed in range(1, max(SEEDS, self.options.seeds) + 1)]
            if any(found):
                rows[name] = {"bytes": next(f["bytes"] for f in found if f), "date": max(f["date"] for f in found if f),
                              "losses": [f and f["loss"] for f in found],
                              "versions": next(f"zerod {f['zerod']}, PyTorch {f['torch']}" for f in found if f)}
        return rows


def seeds_differ(rows):
    limit = table.spread(rows)
    return "- (fewer than two have run)" if limit is None else f"{limit:.4f} (max - min)"


def page(bench, rows, machine):
    versions = "; ".join(sorted({r["versions"] for r in rows.values() if "versions" in r}))
    return f"""# Training learns the same

`tests/bench/run.sh converge --write`, {datetime.date.today()}, {machine};
{versions}.

A byte-level GPT learns the quotations of Debian's package fortunes:
{bench.settings}.

Parameters and gradients are bf16, activations fp32. The loss is in nats a byte. A seed gives the first
parameters and the order of the data, the same for all rows.
The reference's seeds differ by {seeds_differ(rows)}.
A row is "within" if its mean differs from the reference's by no more than that.

Muon and Lion are other algorithms than AdamW: their rows tell that they learn, not that they agree.
`tests/bench/converge/configurations.py` has the learning rates and where they come from.
With one micro-batch and one node `accumulate="wire"` rounds what is rounded already, and its losses are the
reference's.
`bytes a parameter` are all that `zeroctl shards` counts: master weights, moments, the sum of gradients and
the bf16 parameter; for torch, the tensors that hold the same.

{table.text(rows, bench.missing)}
"""


def old_rows(settings):
    """Of the page, if it has these settings."""
    try:
        with open(PAGE, encoding="utf-8") as file:
            old = file.read()
    except FileNotFoundError:
        return {}
    return table.parse(old) if f"\n{settings}.\n" in old else {}


def main():
    options = arguments()
    common.leave_on_signals()
    common.use_build(options.build)
    bench = Bench(options)
    try:
        bench.run_all()
    except Failed as why:
        sys.exit(f"converge: {why}")
    rows = table.merged(old_rows(bench.settings), bench.rows())
    if options.write and rows:
        with open(PAGE + ".new", "w", encoding="utf-8") as file:
            file.write(page(bench, rows, f"{os.cpu_count()} cores of {merge.cpu()}"))
        os.replace(PAGE + ".new", PAGE)
    print(f"\n{table.text(rows, bench.missing)}\n\n{REFERENCE}: its seeds differ by {seeds_differ(rows)}")
    sys.exit(bench.failed)


if __name__ == "__main__":
    main()
