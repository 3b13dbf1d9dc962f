"""What zerod itself costs in a step: Python's hooks, the update that no computation hides, other ranks.

"hooks": CPU time that the process of a rank takes for the passes of a step, beyond the same model alone, with 24 small
blocks at stage 3: Python's hooks and the calls of the client library.  Beside it FSDP2, also with one rank.  The aim is
missed: a step, with the model's own code and the optimizer's, has some 26,000 calls of functions and 200 of the daemon.

"exposed": of a step that clips by the global norm, what a rank waits in fetches and in the step itself, without the
owner's vote, over the time of the update.  One rank trains the GPT of steps beside one daemon: a processor for each.

"ranks": the time of an update of 268 million parameters with eight ranks on the node, over that with one.  Ranks compute
nothing, and fetch the last group first, so that they sleep while the owner updates.  A smaller model is slowed down more:
with 67 million parameters the ratio was 1.14 to 1.16 in three runs on a CPU of 260 MB of L3, which is no less than the sum.
"""
import contextlib
import json
import os
import statistics
import subprocess

from cluster import Cluster, end_process, spawn

import steps
from systems.system import System
from table import Section

HERE = os.path.dirname(os.path.abspath(__file__))
BLOCKS, HOOKS_MS = 24, 2
EXPOSED, EXPOSED_STEPS, CLIPPED = 0.05, 10, "zerod3-1-clip"
MANY, RANKS_RATIO, ROUNDS, STEPS = 8, 1.05, 9, 3
RUN_S, END_S = 120, 20


def rank(options, *arguments, **streams):
    return spawn([options.python, "-B", f"{HERE}/rank.py", *arguments], stdout=subprocess.PIPE, text=True,
                 env=options.environment(), **streams)


def hooks(options, section):
    with contextlib.ExitStack() as kept:
        cluster = kept.enter_context(Cluster())
        process = rank(options, "hooks", cluster[0].socket, str(BLOCKS))
        kept.callback(end_process, process, END_S)
        told = json.loads(process.communicate(timeout=RUN_S)[0])
    more, fsdp2 = (told[system] - told["plain"] for system in ("zerod", "fsdp2"))
    section.row(f"hooks of {BLOCKS} blocks", f"{more:.2f} ms", f"fsdp2: {fsdp2:.2f} ms", f"{more / fsdp2:.2f}",
                f"at most {HOOKS_MS} ms", "yes" if more <= HOOKS_MS else "no")


def exposed(options, section):
    given = steps.arguments(["--ranks", "1", "--model", "100m", "--systems", CLIPPED, "--build", options.build,
                             "--python", options.python])
    given.python_of = steps.interpreter(given)
    with System(CLIPPED, given) as system:
        waits = system.run(EXPOSED_STEPS)
    update, vote, call = (waits[f"{what}_wait_s"] for what in ("update", "vote", "step"))
    seen = waits["fetch_wait_s"] + max(0, call - vote)
    section.row("exposed part of an update, with clipping", f"{1000 * seen:.1f} ms", f"update: {1000 * update:.1f} ms",
                f"{seen / update:.3f}", f"at most {EXPOSED}", "yes" if seen <= EXPOSED * update else "no")


class Trainers:
    """The ranks of a job on one node, which make some steps when told."""

    def __init__(self, options, cluster, world, kept):
        self.job, self.daemon, self.ranks = f"ranks-{world}", cluster[0], []
        for i in range(world):
            self.ranks.append(rank(options, "train", cluster[0].socket, self.job, str(i), str(world), str(STEPS),
                                   stdin=subprocess.PIPE))
            kept.callback(end_process, self.ranks[-1], END_S)

    def steps(self):
        """Seconds that all updates so far took, after some steps more."""
        for r in self.ranks:
            r.stdin.write("\n")
            r.stdin.flush()
        for r in self.ranks:
            if not r.stdout.readline():
                raise RuntimeError(f"a rank of {self.job} ended")
        return next(w["sum_s"] for w in self.daemon.job(self.job)["waited"] if w["for"] == "update")


def ranks(options, section):
    with contextlib.ExitStack() as kept:
        cluster = kept.enter_context(Cluster(threads=0))
        jobs = [Trainers(options, cluster, world, kept) for world in (1, MANY)]
        sums = [[j.steps() for j in jobs] for _ in range(ROUNDS + 1)]
    seconds = [[(after - before) / STEPS for before, after in zip(*two)] for two in zip(sums, sums[1:])]
    one, many = (statistics.median(column) for column in zip(*seconds))
    ratio = statistics.median(b / a for a, b in seconds)
    section.row(f"update, {MANY} ranks on a node", f"{1000 * many:.1f} ms", f"one rank: {1000 * one:.1f} ms", f"{ratio:.3f}",
                f"at most {RANKS_RATIO}", "yes" if ratio <= RANKS_RATIO else "no")


PARTS = {"hooks": hooks, "exposed": exposed, "ranks": ranks}


def measure(options):
    section = Section("costs", ["what", "zerod", "beside", "ratio", "aim", "holds"])
    for part in options.only or PARTS:
        PARTS[part](options, section)
        options.say(str(section.rows[-1]))
    return section
