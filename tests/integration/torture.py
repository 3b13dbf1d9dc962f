#!/usr/bin/env python3
"""usage: torture.py ZEROD ZEROCTL ACTOR GPT [--seed S] [--worlds N] [--kills N] [--minutes M] [--trace]

Kills and stops trainers and daemons, cuts links, deletes nodes' states and changes the owners while jobs train, at
random instants and, if the daemon was built with them, at crash points.  Every step of every job must have the bits of
an undisturbed job, and a dropped job must leave nothing behind.

A world is a cluster with one job.  It depends on its seed alone, except for the instants of its disturbances.  Worlds of
odd seeds have mirrors; only there nodes lose their states.  torture.py ends after --worlds worlds, --kills kills or
--minutes minutes, but each world first completes its plan: every kind of disturbance and its share of the crash points.
Exit status: 0 if all worlds passed; with four worlds or --kills 1000, only if daemons died at every crash point too.
"""
import argparse
import itertools
import os
import statistics
import sys
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import harness  # noqa: E402 F401  it takes zerod's variables out of the environment
import network  # noqa: E402
from cluster import SLOW, Tools, crash_points  # noqa: E402
from disturbances import KINDS, MIRRORED, Disturber, Tally  # noqa: E402
from world import Plan, World, undisturbed  # noqa: E402

SLACK_KB = 16384  # KiB by which a disturbed daemon may be larger than an undisturbed one
POINT_TRIES = 4   # tries of a crash point before it counts as never reached


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("zerod", "zeroctl", "actor", "gpt"):
        parser.add_argument(name)
    parser.add_argument("--seed", type=int, default=1, help="seed of the first world; each next world adds 1")
    parser.add_argument("--worlds", type=int, default=0)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--per-world", type=int, default=50, help="kills in one world")
    parser.add_argument("--no-points", action="store_true", help="leave crash points out")
    parser.add_argument("--trace", action="store_true", help="print each disturbance")
    options = parser.parse_args()
    Tools.zerod, Tools.zeroctl, Tools.actor, Tools.gpt = options.zerod, options.zeroctl, options.actor, options.gpt
    if not (options.worlds or options.kills or options.minutes):
        options.worlds = 2
    return options


def points_of_training():
    """The crash points that training reaches; spoilt.py has those of restores, gpu_states.py those of states on GPUs,
    jobs.py those of drops."""
    return [p for p in crash_points() if not p.startswith(("restore.", "planes.", "drop."))]


def possible_kinds(disturber):
    """The kinds of disturbance that this world allows, with their weights."""
    return {k: weight for k, weight in KINDS.items() if disturber.possible(k)}


class Torture:
    def __init__(self, options):
        self.options, self.tally, self.begin = options, Tally(), time.monotonic()
        self.points = [] if options.no_points else points_of_training()
        self.open_points = list(self.points)
        self.wires = network.possible()
        self.passed = self.failed = self.steps = 0

    def over(self):
        o, done = self.options, self.passed + self.failed
        return bool((o.worlds and done >= o.worlds) or (o.kills and self.tally.killed >= o.kills) or
                    (o.minutes and time.monotonic() - self.begin >= 60 * o.minutes))

    def run(self):
        seed = self.options.seed
        while not self.over():
            self.world(seed)
            seed += 1
        self.report()

    def world(self, seed):
        plan = Plan(seed, wired=self.wires and seed % 2 == 0)
        before, begin = self.tally.killed, time.monotonic()
        try:
            end = self.disturb(plan)
            self.compare(plan, end)
            self.steps += end["version"]
            result, self.passed = "PASS", self.passed + 1
        except Exception:  # pylint: disable=broad-except
            result, self.failed = "FAIL", self.failed + 1
            print("".join("# " + line for line in traceback.format_exc().splitlines(True)))
        print(f"[{result}] {plan}; {self.tally.killed - before} kills ({time.monotonic() - begin:.1f} s)", flush=True)

    # ---- one world ----------------------------------------------------------------

    def planned(self, world, disturber):
        """Every kind once, the slow ones in half of the worlds, and this world's share of the crash points."""
        rng = world.rng
        possible = possible_kinds(disturber)
        kinds = [k for k, weight in possible.items() if weight >= 1 or world.plan.seed % 4 < 2]
        rng.shuffle(kinds)
        first = [(k, getattr(disturber, k)) for k in kinds]
        tried = sorted((p for p in self.open_points if disturber.places(p)), key=lambda p: not p.startswith(MIRRORED))
        tried = tried[:max(8, len(self.points) // max(1, self.options.worlds) + 1)]
        first += [(f"point {p}", lambda p=p: self.point(disturber, p)) for p in tried]
        rng.shuffle(first)
        return first

    def by_chance(self, rng, disturber):
        possible = possible_kinds(disturber)
        while True:
            if self.points and rng.random() < 0.4:
                p = rng.choice([p for p in self.open_points or self.points if disturber.places(p)] or ["vote.sent"])
                yield f"point {p}", lambda p=p: self.point(disturber, p)
            else:
                k, = rng.choices(list(possible), possible.values())
                yield k, getattr(disturber, k)

    def point(self, disturber, point):
        hit = disturber.crash_at(point)
        if point in self.open_points and (hit or self.tally.missed[point] >= POINT_TRIES):
            self.open_points.remove(point)

    def disturb(self, plan):
        budget = self.tally.killed + self.options.per_world
        with World(plan) as w:
            w.recovered()
            disturber = Disturber(w, self.tally)
            planned = self.planned(w, disturber)
            for i, (kind, deed) in enumerate(itertools.chain(planned, self.by_chance(w.rng, disturber))):
                if i >= len(planned) and (self.tally.killed >= budget or self.over()):
                    break
                w.wait(w.rng.uniform(0, 0.15))
                w.note(kind)
                deed()
                seconds = w.recovered()
                w.note(f"goes on after {seconds:.3f} s")
                if self.options.trace:
                    print(f"# {w.notes[-1]} ({kind})", flush=True)
                self.tally.took(kind.split()[0], seconds)
            return {**w.finish(), "hashes": w.journal.hashes}

    def compare(self, plan, end):
        hashes, alone = undisturbed(plan, end["version"])
        wrong = [v for v in end["hashes"] if end["hashes"][v] != hashes.get(v)]
        assert not wrong, f"from version {min(wrong)} on, trainers fetched other parameters than undisturbed ones"
        assert end["planes"] == alone["planes"], f"planes: {end['planes']} is not {alone['planes']}"
        if SLOW == 1:
            assert all(a <= b + SLACK_KB for a, b in zip(end["memory"], alone["memory"])), \
                f"daemons hold {end['memory']} kB, undisturbed {alone['memory']} kB"

    # ---- the report ---------------------------------------------------------------

    def report(self):
        t = self.tally
        print(f"{t.killed} kills ({', '.join(f'{n} {k}' for k, n in sorted(t.kills.items()))}), {self.steps} steps, "
              f"{time.monotonic() - self.begin:.0f} s")
        print(f"{'until the next step, seconds':36}{'times':>6}{'median':>9}{'worst':>9}")
        for kind, times in sorted(t.times.items()):
            print(f"  {kind:34}{len(times):6}{statistics.median(times):9.3f}{max(times):9.3f}")
        every = [s for times in t.times.values() for s in times]
        if every:
            print(f"  {'all':34}{len(every):6}{statistics.median(every):9.3f}{max(every):9.3f}")
        never = [p for p in self.points if p not in t.points]
        if self.points:
            print(f"{len(self.points) - len(never)} of {len(self.points)} crash points were passed"
                  + (f"; not: {' '.join(never)}" if never else ""))
        if never and (self.options.kills >= 1000 or self.passed + self.failed >= 4):
            print(f"[FAIL] crash points that no daemon passed: {' '.join(never)}")
            self.failed += 1
        print(f"{self.passed} passed, {self.failed} failed")
        print(f"Synthesis: Tested: {self.passed + self.failed} | Passing: {self.passed} | Failing: {self.failed} | "
              "Crashing: 0")


def main():
    torture = Torture(arguments())
    torture.run()
    sys.exit(1 if torture.failed or not torture.passed else 0)


if __name__ == "__main__":
    main()
