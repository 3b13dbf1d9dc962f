#!/usr/bin/env python3
"""Trains the same GPT with zerod and with what else PyTorch's users have: speed, CPU time, memory.

Two ranks, one OpenMP thread each, in fp32, the same data, first parameters and AdamW for all:

  plain       one process alone with one rank's work
  ddp         DistributedDataParallel
  zero1       DistributedDataParallel with ZeroRedundancyOptimizer
  fsdp2       fully_shard of each block and the root
  deepspeedS  DeepSpeed, ZeRO stage S; in a virtual environment of its own, made at the first use
  zerodS-N    zerod, ZeRO stage S, N daemons

Peers speak gloo over loopback. In the first round each system does CHECK_STEPS steps more, whose losses and first
gradient norm must be those of one process with the batches of both ranks (a sum in place of a mean
shows in the norm). Then come the rounds: all systems in turn, every second round backwards, each
with one step to warm up and --steps that count, from the end of the first to the end of the last,
so that work which a system leaves for later counts. A ratio is of the tokens a second of two
systems in the same round; median and quartiles over rounds. Memory is sampled in a last run that is
not timed: of the largest rank and daemon what is resident with all it maps, and in total over all
processes private memory and shared memory once (without pages of libraries), also less what
importing torch takes.

With --workers keep all processes live through all rounds, those not in turn asleep; with restart
each round starts them anew, for models that do not fit into memory all at once (the default for
125m and 350m).

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

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))
import common  # noqa: E402
import merge  # noqa: E402
import table  # noqa: E402
from systems import deepspeed_env  # noqa: E402
from systems.system import KINDS, ROOT, VARIANTS, Failed, System

CONTEXT = 256
CHECK_STEPS = 4
LOSS_TOLERANCE = {"fp32": 1e-4, "bf16": 1e-2}
NORM_TOLERANCE = {"fp32": 5e-3, "bf16": 5e-2}  # what peers lose; a sum would be 1 off


def arguments(given=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("tiny", "25m", "48m", "100m", "125m", "350m"), default="25m")
    usual = [name for name in KINDS if name not in ("deepspeed1", "deepspeed2")]  # what fits into memory at once
    parser.add_argument("--systems", type=lambda text: text.split(","), default=usual, metavar="NAME,...",
                        help="default: all but deepspeed1 and deepspeed2")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32",
                        help="bf16: of parameters and gradients, or, in peers, of autocast or mixed precision")
    parser.add_argument("--steps", type=int, default=2, help="that count, of a system in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sequences", type=int, default=4,
                        help=f"of {CONTEXT} tokens, a rank and step")
    parser.add_argument("--quick", action="store_true",
                        help="shows that it runs, not how fast: tiny model, two rounds")
    parser.add_argument("--workers", choices=("keep", "restart"))
    parser.add_argument("--daemon-threads", type=int, default=0,
                        help="compute threads of a daemon; 0: one a CPU")
    parser.add_argument("--json", metavar="FILE", help="also writes one line of JSON a figure")
    parser.add_argument("--out", default=f"{ROOT}/build/compare-steps.json")
    parser.add_argument("--build", default=f"{ROOT}/build", help="build tree of zerod")
    parser.add_argument("--python", default=deepspeed_env.python_with_torch(),
                        help="that has torch; $ZEROD_PYTHON, else that of tests/run.sh")
    parser.add_argument("--profile", metavar="DIRECTORY",
                        help="only writes a cProfile file of each rank there")
    options = parser.parse_args(given)
    known = [*KINDS, *VARIANTS]
    unknown = [name for name in options.systems if name not in known]
    if unknown:
        parser.error(f"no such system: {', '.join(unknown)}; there are {', '.join(known)}")
    if options.quick:
        options.model, options.rounds, options.steps = "tiny", 2, 1
    restart = options.model in ("125m", "350m")
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

    def named(self, name):
        return next(s for s in self.systems if s.name == name)

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

    def start_all(self):
        with System.reference(self.options) as reference:
            self.reference = reference.check(CHECK_STEPS)
        for system in self.systems if self.options.workers == "keep" else ():
            with self.attempt(system):
                self.kept.push(lambda kind, *_, system=system: self.end(system, bool(kind)))
                system.start()

    def end(self, system, now):
        with self.attempt(system):
            system.end(now)

    def check(self, system, steps=CHECK_STEPS):
        losses, norm = system.check(steps)
        self.checks[system.name] = {}
        if system.kind == "plain":
            return  # has the work of one rank alone
        found = {"loss_deviation": max(abs(a - b) / b for a, b in zip(losses, self.reference[0])),
                 "norm_ratio": norm / self.reference[1]}
        found["same"] = (found["loss_deviation"] < LOSS_TOLERANCE[system.dtype]
                         and abs(found["norm_ratio"] - 1) < NORM_TOLERANCE[system.dtype])
        self.checks[system.name] = found
        self.say(system.name, f"losses deviate {found['loss_deviation']:.1e}, "
                 f"gradient norm {found['norm_ratio']:.5f} of the mean's"
                 + ("" if found["same"] else ": NOT THE SAME"))

    def measure_all(self):
        for i in range(self.options.rounds):
            measured = {}
            for system in self.running() if i % 2 == 0 else reversed(self.running()):
                with self.attempt(system), self.up(system):
                    if system.name not in self.checks:
                        self.check(system)
                    measured[system.name] = system.run(self.options.steps)
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

    def run(self, watch):
        with self.kept:
            self.start_all()
            self.measure_all()
            if watch:
                self.watch_all()

    def wrong(self):
        """True if a system of zerod failed, or computed something else."""
        return any(name in self.failed or not self.checks[name]["same"]
                   for name in self.options.systems if name.startswith("zerod"))

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
                yield common.figure(title, self.ratios(name, other), ranks=self.options.ranks)

    def summary(self, name):
        rounds = [r[name] for r in self.rounds]
        median = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
        low, middle, high = statistics.quantiles((r["tokens_s"] for r in rounds), n=4, method="inclusive")
        return {"name": name, "ranks": 1 if name == "plain" else self.options.ranks, "daemons": self.named(name).nodes,
                "tokens_s": round(middle, 1), "tokens_s_spread": [round(low, 1), round(high, 1)],
                "step_s": round(median["step_s"], 4), "cpu_s_per_step": round(median["cpu_s"], 4),
                "step_of_ddp": self.step_of_ddp(name),
                "waits": {key: value for key, value in median.items() if key in WAITS},
                **self.memory.get(name, {}), **self.checks.get(name, {})}

    def result(self):
        kept = ("model", "steps", "rounds", "sequences", "context", "workers", "daemon_threads")
        now = datetime.datetime.now(datetime.timezone.utc)
        return {"machine": {"cpu": merge.cpu(), "cpus": os.cpu_count(),
                            "kernel": platform.release()},
                "date": now.isoformat(timespec="seconds"),
                "settings": {**{k: getattr(self.options, k) for k in kept}, "ranks": self.options.ranks,
                             "dtype": self.options.dtype,
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


# ---- for run.sh ------------------------------------------------------------------------------

ABOUT = """Training steps of the same GPT: one OpenMP thread a rank, four sequences of 256 tokens a rank and step, gloo
over loopback.  "of DDP" is the time of a step over that of DDP in the same round, the median of two to five rounds;
systems take turns of three steps, so that all see the same moods of the machine.  The waits are those of a rank in
zerod's calls a step: "step" has the vote, and the part of the update that nothing hides.  "same" says that losses and
gradient norm are those of one process with all batches.  In bf16 the peers have autocast, mixed precision or
DeepSpeed's bf16.
"""
FEW = ["ddp", "fsdp2", "zerod2-1", "zerod3-1", "zerod3-2"]
PEERS = ["ddp", "zero1", "fsdp2", "deepspeed1", "deepspeed2", "deepspeed3"]
OURS = [f"zerod{stage}-{nodes}" for nodes in (1, 2) for stage in (1, 2, 3)]
# Ranks, dtype, model, rounds, and systems that are live at once; with one rank a job has one daemon.
PARTS = {
    "25m-2-fp32": (2, "fp32", "25m", 5, PEERS, ["ddp", "fsdp2", *OURS]),
    "25m-1-fp32": (1, "fp32", "25m", 5, [name for name in FEW if not name.endswith("-2")]),
    "25m-4-fp32": (4, "fp32", "25m", 3, FEW),
    "25m-2-bf16": (2, "bf16", "25m", 3, FEW),
    "125m-2-fp32": (2, "fp32", "125m", 2, ["ddp", "fsdp2", "zerod3-1"]),
}
SHORT = ("25m-2-bf16", "25m-1-fp32")
WAITS = {"fetch_wait_s": "fetch", "push_wait_s": "push", "step_wait_s": "step"}


def measure(run):
    section = table.Section("steps", ["model, ranks, dtype", "system", "tokens/s", "of DDP", "CPU s a step",
                                      *(f"{w}, ms" for w in WAITS.values()), "same"])
    for part in run.only or PARTS:
        for systems in PARTS[part][4:]:
            measure_together(run, part, systems, section)
    return section


def measure_together(run, part, systems, section):
    ranks, dtype, model, rounds = PARTS[part][:4]
    options = arguments(["--ranks", str(ranks), "--dtype", dtype, "--model", model, "--rounds", str(rounds),
                         "--systems", ",".join(systems), "--build", run.build, "--python", run.python])
    options.python_of = interpreter(options)
    bench = Bench(options)
    bench.run(watch=False)
    for s in bench.result()["systems"]:
        waits = [f"{1000 * s['waits'][w]:.0f}" if w in s["waits"] else "" for w in WAITS]
        section.row(part.replace("-", ", "), s["name"], f"{s['tokens_s']:.0f}", s["step_of_ddp"] or "",
                    f"{s['cpu_s_per_step']:.2f}", *waits, {True: "yes", False: "NO"}.get(s.get("same"), ""))
    section.wrong = section.wrong or bench.wrong()
    section.notes += [f"{part}, {name}: does not run: {why}" for name, why in bench.failed.items()]


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
    bench.run(watch=True)
    result = bench.result()
    write(options, result)
    print_table(result)
    print(f"\n{len(result['figures'])} figures in {options.out}")
    return bench.wrong() or not result["systems"]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as why:
        sys.exit(f"steps.py: {why}")
