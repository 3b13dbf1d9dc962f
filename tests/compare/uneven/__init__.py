"""Work that is uneven: four ranks, sequences of log-normal lengths, one a micro-batch.

A step has four micro-batches a rank, or two to six.  FSDP2's ranks agree on a number of micro-batches and run empty ones,
as its users do, because each block's gather waits for all ranks.  DDP sums up at the last micro-batch alone, and has the
whole model on each rank.  zerod has two daemons and stage 3.  A pause stands for the blocks' arithmetic (rank.py), so that
each rank has a processor of its own; "limit" is the time of the rank with the most tokens in each step.  "same" says that
zerod's parameters have the bits of a run without pauses, in which ranks come in any other order.
"""
import contextlib
import json
import os
import shutil
import subprocess
import tempfile

from cluster import Cluster, spawn

from table import Section

from . import work

HERE = os.path.dirname(os.path.abspath(__file__))
WORLD, NODES, STEPS, PAUSE_S = 4, 2, 12, 2e-4
WARM = 2  # steps that do not count
RUN_S = 300
SYSTEMS = ("zerod", "fsdp2", "ddp")
PARTS = {"lengths": False, "lengths-and-counts": True}


class Failed(Exception):
    """Why a run has no figures."""


def run(options, system, uneven, pause=PAUSE_S):
    """Moments at which each rank ended its steps, and the digest of the parameters."""
    directory = tempfile.mkdtemp(prefix="zerod-compare-")
    with contextlib.ExitStack() as kept:
        kept.callback(shutil.rmtree, directory, ignore_errors=True)
        cluster = kept.enter_context(Cluster(NODES)) if system == "zerod" else None
        ranks = []
        for rank in range(WORLD):
            config = {"rank": rank, "world": WORLD, "directory": directory, "steps": STEPS, "pause": pause,
                      "uneven": uneven, "lockstep": system == "fsdp2", "stage": 3, "job": "uneven"}
            if cluster:
                config.update(local_world=WORLD // NODES, socket=cluster[rank * NODES // WORLD].socket)
            with open(f"{directory}/{rank}.log", "wb") as log:
                ranks.append(spawn([options.python_of(system), "-B", f"{HERE}/rank.py", system, json.dumps(config)],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                                   env=options.environment()))
            kept.callback(end, ranks[-1])
        events = [[json.loads(line) for line in r.communicate(timeout=RUN_S)[0].splitlines()] for r in ranks]
        for rank, told in enumerate(events):
            if not told or told[-1]["event"] != "done":
                with open(f"{directory}/{rank}.log", encoding="utf-8", errors="replace") as log:
                    raise Failed(f"{system}: rank {rank}: {(['no word', *filter(str.strip, log)])[-1].strip()}")
        return [[e["at"] for e in told[:-1]] for told in events], {told[-1]["digest"] for told in events}


def end(process):
    if process.poll() is None:
        process.kill()
    process.wait()
    process.stdout.close()


def limit(uneven):
    """Tokens of the steps that count, and seconds that no system can beat."""
    every = [work.tokens(step, WORLD, uneven) for step in range(WARM, STEPS)]
    own = [[sum(mine) for mine in ranks] for ranks in every]
    return sum(map(sum, own)), 3 * PAUSE_S * sum(map(max, own))


def measure(options):
    section = Section("uneven", ["work", "limit", *SYSTEMS, "zerod / FSDP2", "same"])
    for part in options.only or PARTS:
        tokens, least = limit(PARTS[part])
        rates, same = {}, None
        for system in SYSTEMS:
            moments, digests = run(options, system, PARTS[part])
            first, last = (max(m[i] for m in moments) for i in (WARM - 1, -1))
            rates[system] = tokens / (last - first)
            if system == "zerod":
                same = digests == run(options, system, PARTS[part], pause=0)[1]
            options.say(f"{part}, {system}: {rates[system]:.0f} tokens/s")
        section.wrong = section.wrong or not same
        section.row(part.replace("-", " "), f"{tokens / least:.0f}", *(f"{rates[s]:.0f}" for s in SYSTEMS),
                    f"{rates['zerod'] / rates['fsdp2']:.2f}", "yes" if same else "NO")
    section.notes.append("Tokens a second of all ranks.")
    return section
