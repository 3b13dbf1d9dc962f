#!/usr/bin/env python3
"""Trains the same GPT with zerod and with what else PyTorch's users have: speed, CPU time, memory.

Two ranks, one OpenMP thread each, fp32, the same data, first parameters and AdamW for all:

  plain       one process alone with one rank's work
  ddp         DistributedDataParallel
  zero1       DistributedDataParallel with ZeroRedundancyOptimizer
  fsdp2       fully_shard of each block and the root
  deepspeedS  DeepSpeed, ZeRO stage S; in a virtual environment of its own, made at the first use
  zerodS-N    zerod, ZeRO stage S, N daemons

Peers speak gloo over loopback. First each system does CHECK_STEPS steps, whose losses and first
gradient norm must be those of one process with the batches of both ranks (a sum in place of a mean
shows in the norm). Then come the rounds: all systems in turn, every second round backwards, each
with one step to warm up and --steps that count, from the end of the first to the end of the last,
so that work which a system leaves for later counts. A ratio is of the tokens a second of two
systems in the same round; median and quartiles over rounds. Memory is sampled in a last run that is
not timed: of the largest rank and daemon what is resident with all it maps, and in total over all
processes private memory and shared memory once (without pages of libraries), also less what
importing torch takes.

With --table each round starts the systems anew, samples memory in its first steps and times the next ones; a table in
Markdown has the medians. "own" is private memory (smaps_rollup: clean and dirty) of a rank above its imports, the mean
over ranks, at most and after the last step; "peak" is what is resident of the largest rank; "all" is the sum over all
processes less the imports, in MiB. "of DDP" is the time of a step over that of DDP in the same round.

With --workers keep all processes live through all rounds, those not in turn asleep; with restart
each round starts them anew, for models that do not fit into memory all at once (the default for
125m, and what --table does).

What does not run is named with its reason. Exit status: 0, or 1 if a system of zerod failed or
computed something else, or if nothing ran.
"""
import argparse
import contextlib
import datetime
import itertools
import json
import os
import platform
import statistics
import sys

import common
import merge
from torch_bench import deepspeed_env
from torch_bench.system import KINDS, RANKS, ROOT, Failed, System

CONTEXT = 256
CHECK_STEPS = 4
LOSS_TOLERANCE = 1e-4
NORM_TOLERANCE = 5e-3  # what peers lose in fp32; a sum would be 1 off
MEMORY = {"own": "rank_own_mib", "own, after": "rank_own_after_mib", "peak": "rank_peak_mib",
          "all": "beyond_torch_mib"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("tiny", "25m", "48m", "100m", "125m"), default="25m")
    usual = [name for name in KINDS if name not in ("deepspeed1", "deepspeed2")]  # what fits into memory at once
    parser.add_argument("--systems", type=lambda text: text.split(","), default=usual, metavar="NAME,...",
                        help="default: all but deepspeed1 and deepspeed2")
    parser.add_argument("--steps", type=int, default=2, help="that count, of a system in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sequences", type=int, default=4,
                        help=f"of {CONTEXT} tokens, a rank and step")
    parser.add_argument("--quick", action="store_true",
                        help="shows that it runs, not how fast: tiny model, two rounds")
    parser.add_argument("--table", action="store_true",
                        help="prints a table of memory and step time in Markdown")
    parser.add_argument("--workers", choices=("keep", "restart"))
    parser.add_argument("--daemon-threads", type=int, default=0,
                        help="compute threads of a daemon; 0: one a CPU")
    parser.add_argument("--json", metavar="FILE", help="also writes one line of JSON a figure")
    parser.add_argument("--out", default=f"{ROOT}/build/bench-torch.json")
    parser.add_argument("--build", default=f"{ROOT}/build", help="build tree of zerod")
    parser.add_argument("--python", default=deepspeed_env.python_with_torch(),
                        help="that has torch; $ZEROD_PYTHON, else that of tests/run.sh")
    parser.add_argument("--profile", metavar="DIRECTORY",
                        help="only writes a cProfile file of each rank there")
    options = parser.parse_args()
    unknown = [name for name in options.systems if name not in KINDS]
    if unknown:
        parser.error(f"no such system: {', '.join(unknown)}; there are {', '.join(KINDS)}")
    if options.quick:
        options.model, options.rounds, options.steps = "tiny", 2, 1
    if options.table and options.workers == "keep":
        parser.error("--table starts the systems anew in each round: --workers keep does not fit it")
    restart = options.table or options.model == "125m"
    options.workers = options.workers or ("restart" if restart else "keep")
    options.context = CONTEXT
    options.rounds, options.steps = max(2, options.rounds), max(1, options.steps)
    options.build = os.path.abspath(options.build)
    return options


def interpreter(options):
    """A call that gives the interpreter of a kind of system."""

    def of(kind):
        if not os.path.exists(options.python):
            raise Failed(f"no PyTorch: {options.python} is not there")
        if kind != "deepspeed":
            return options.python
        try:
            return deepspeed_env.ensure(options.python)
        except deepspeed_env.Unavailable as why:
            raise Failed(str(why)) from why

    return of


class Bench:
    """The systems that still run, what was measured of each, and why others do not."""

    def __init__(self, options):
        self.options = options
        self.failed, self.checks, self.memory, self.rounds = {}, {}, {}, []
        self.kept = contextlib.ExitStack()
        self.systems = [System(name, options) for name in options.systems]
        self.reference = None

    def say(self, name, text):
        print(f"{name:<11} {text}", flush=True)

    @contextlib.contextmanager
    def attempt(self, system):
        """A failure inside ends this system's part."""
        try:
            yield
        except (Failed, AssertionError, OSError) as why:
            self.failed[system.name] = str(why)
            self.say(system.name, f"does not run: {why}")
            system.end(now=True)

    def running(self):
        return [s for s in self.systems if s.name not in self.failed]

    @contextlib.contextmanager
    def up(self, system):
        """The system with its processes, which may be there already."""
        if system.workers:
            yield
        else:
            with system:
                yield

    # ---- phases ------------------------------------------------------------------

    def check_all(self):
        with System.reference(self.options) as reference:
            self.reference = reference.check(CHECK_STEPS)
        for system in self.systems:
            with self.attempt(system):
                if self.options.workers == "keep":
                    self.kept.push(lambda kind, *_, system=system: self.end(system, bool(kind)))
                    system.start()
                with self.up(system):
                    self.check(system)

    def end(self, system, now):
        with self.attempt(system):
            system.end(now)

    def check(self, system):
        losses, norm = system.check(CHECK_STEPS)
        if system.ranks == 1:
            return  # has the work of one rank alone
        found = {"loss_deviation": max(abs(a - b) / b for a, b in zip(losses, self.reference[0])),
                 "norm_ratio": norm / self.reference[1]}
        found["same"] = (found["loss_deviation"] < LOSS_TOLERANCE
                         and abs(found["norm_ratio"] - 1) < NORM_TOLERANCE)
        self.checks[system.name] = found
        self.say(system.name, f"losses deviate {found['loss_deviation']:.1e}, "
                 f"gradient norm {found['norm_ratio']:.5f} of the mean's"
                 + ("" if found["same"] else ": NOT THE SAME"))

    def measure_all(self):
        for i in range(self.options.rounds):
            measured = {}
            for system in self.running() if i % 2 == 0 else reversed(self.running()):
                with self.attempt(system), self.up(system):
                    watched = system.watch(self.options.steps) if self.options.table else {}
                    measured[system.name] = {**watched, **system.run(self.options.steps)}
            self.rounds.append(measured)
            rates = (f"{s.name} {measured[s.name]['tokens_s']:.0f}" for s in self.running())
            print(f"round {i + 1}:", *rates, "tokens/s", flush=True)

    def watch_all(self):
        for system in self.running():
            with self.attempt(system), self.up(system):
                self.memory[system.name] = system.watch(self.options.steps)

    def profile_all(self):
        os.makedirs(self.options.profile, exist_ok=True)
        for system in self.systems:
            with self.attempt(system), system:
                system.profile(self.options.steps, self.options.profile)

    def run(self):
        with self.kept:
            self.check_all()
            self.measure_all()
            if not self.options.table:
                self.watch_all()

    # ---- what comes of it --------------------------------------------------------

    def ratios(self, name, other):
        return [r[name]["tokens_s"] / r[other]["tokens_s"] for r in self.rounds]

    def step_of_ddp(self, name):
        """The time of a step over that of DDP, the median over rounds; None without DDP."""
        if "ddp" in [s.name for s in self.running()]:
            return round(statistics.median(r[name]["step_s"] / r["ddp"]["step_s"] for r in self.rounds), 4)
        return None

    def figures(self):
        """Each system against DDP, and those of zerod against every other one."""
        names = [s.name for s in self.running()]
        for name, other in itertools.permutations(names, 2):
            if other == "ddp" or (name.startswith("zerod") and not other.startswith("zerod")):
                title = f"tokens per second, {name} / {other}, {self.options.model}"
                yield common.figure(title, self.ratios(name, other), ranks=KINDS[name][1])

    def summary(self, name):
        rounds = [r[name] for r in self.rounds]
        median = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
        low, middle, high = statistics.quantiles((r["tokens_s"] for r in rounds), n=4, method="inclusive")
        return {"name": name, "ranks": KINDS[name][1], "daemons": KINDS[name][3],
                "tokens_s": round(middle, 1), "tokens_s_spread": [round(low, 1), round(high, 1)],
                "step_s": round(median["step_s"], 4), "cpu_s_per_step": round(median["cpu_s"], 4),
                "step_of_ddp": self.step_of_ddp(name),
                **{key: value for key, value in median.items() if key.endswith("_mib")},
                **self.memory.get(name, {}), **self.checks.get(name, {})}

    def result(self):
        kept = ("model", "steps", "rounds", "sequences", "context", "workers", "daemon_threads")
        now = datetime.datetime.now(datetime.timezone.utc)
        return {"machine": {"cpu": merge.cpu(), "cpus": os.cpu_count(),
                            "kernel": platform.release()},
                "date": now.isoformat(timespec="seconds"),
                "settings": {**{k: getattr(self.options, k) for k in kept}, "ranks": RANKS,
                             "dtype": "fp32",
                             "torch": next((s.torch for s in self.systems if s.torch), None)},
                "systems": [self.summary(s.name) for s in self.running()],
                "failed": self.failed, "figures": list(self.figures())}


def print_table(result):
    against = {f["name"].split(", ")[1]: f for f in result["figures"]}
    rows = [["SYSTEM", "TOKENS/S", "OF DDP", "QUARTILES", "CPU S/STEP", "RANK MIB", "DAEMON MIB",
             "TOTAL MIB", "LESS TORCH", "SAME"]]
    for s in result["systems"]:
        f = against.get(f"{s['name']} / ddp")
        rows.append([s["name"], f"{s['tokens_s']:.0f}", f"{f['median_ratio']:.3f}" if f else "",
                     "{:.3f} .. {:.3f}".format(*f["spread"]) if f else "",
                     f"{s['cpu_s_per_step']:.2f}", f"{s.get('rank_peak_mib', 0):.0f}",
                     f"{s.get('daemon_peak_mib', 0):.0f}",
                     f"{s.get('total_mib', 0):.0f}",
                     f"{s.get('beyond_torch_mib', 0):.0f}",
                     {True: "yes", False: "NO", None: ""}[s.get("same")]])
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    print()
    for r in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(r, widths)).rstrip())
    for name, reason in result["failed"].items():
        print(f"{name}: does not run: {reason}")


def print_markdown(result):
    model = result["settings"]["model"]
    print("\n|", *MEMORY, "step, ms", "of DDP |", sep=" | ")
    print("|---|" + (len(MEMORY) + 2) * "--:|")
    for s in result["systems"]:
        of_ddp = f"{s['step_of_ddp']:.2f} |" if s["step_of_ddp"] else " |"
        print(f"| {s['name']}, {model}", *(f"{s[key]:.0f}" for key in MEMORY.values()), f"{1000 * s['step_s']:.0f}",
              of_ddp, sep=" | ")
    for name, reason in result["failed"].items():
        print(f"| {name}, {model} | does not run: {reason}" + (len(MEMORY) + 2) * " |")


def write(options, result):
    os.makedirs(os.path.dirname(os.path.abspath(options.out)), exist_ok=True)
    with open(options.out + ".new", "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    os.replace(options.out + ".new", options.out)
    output = common.Output(options.json)
    for figure in result["figures"]:
        output.add(figure)


def main():
    options = arguments()
    options.python_of = interpreter(options)
    common.leave_on_signals()
    common.use_build(options.build)
    bench = Bench(options)
    if options.profile:
        bench.profile_all()
        return bool(bench.failed)
    bench.run()
    result = bench.result()
    write(options, result)
    (print_markdown if options.table else print_table)(result)
    print(f"\n{len(result['figures'])} figures in {options.out}")
    wrong = [name for name in options.systems if name.startswith("zerod")
             and (name in bench.failed or not bench.checks[name]["same"])]
    return bool(wrong) or not result["systems"]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as why:
        sys.exit(f"torch.py: {why}")
