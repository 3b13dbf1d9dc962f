"""Memory of two ranks that train the GPT of steps in fp32, 256 tokens a rank and step, and of their node.

"own" is private memory of a rank above its imports, the mean over ranks: at most in two steps, and after them.  "node" is
what all processes have at most at once, trainers and daemon, with shared memory counted once and without the imports;
"bytes a parameter" is that over the parameters.  "same" says that losses and gradient norm are those of one process with
both batches.  zerod has stage 3 and one daemon; its formats need a model in bf16, and sums are in bf16 too.

The CPU is DeepSpeed's accelerator, so its offload has no other memory to use: the states lie where they lay.  The rows
show what its code for offload keeps.
"""
import json
import os
import subprocess
import tempfile

from cluster import end_process, spawn
from limit import Limit, available

import steps
from systems.system import System
from table import Section

SYSTEMS = ("ddp", "fsdp2", *(f"deepspeed{stage}{more}" for more in ("", "-offload") for stage in (1, 2, 3)),
           "zerod3-1", "zerod3-1-8bit")
SIZES, SHORT = ("25m", "100m", "350m"), ("25m",)
PARTS = (*SIZES, *SYSTEMS, "largest", "largest-N")
CHECKED, WATCHED = 2, 1  # steps
SPARE = 2 << 30  # bytes that the rest of the machine keeps
SHOWN = 200


def limit():
    """A system that takes too much ends, and nobody else."""
    return Limit(available() - SPARE)


def among(parts, everything):
    return [p for p in parts if p in everything] or everything


def of_size(run, size, section):
    options = steps.arguments(["--model", size, "--sequences", "1", "--systems", ",".join(among(run.only, SYSTEMS)),
                               "--workers", "restart", "--build", run.build, "--python", run.python])
    options.python_of = steps.interpreter(options)
    bench = steps.Bench(options)
    try:
        with limit(), System.reference(options) as reference:
            bench.reference = reference.check(CHECKED)
    except steps.Failed as why:
        section.row(size, "one process with both batches", *[""] * 4, f"does not run: {why}")
        return
    for system in bench.systems:
        with bench.attempt(system), limit() as most:
            try:
                with system:
                    bench.check(system, CHECKED)
                    found = system.watch(WATCHED)
            except (steps.Failed, OSError) as why:  # who looks may find that a rank is gone
                much = f"it takes more than the {most.size >> 20} MiB that were free"
                raise steps.Failed(much if most.killed() else str(why)) from why
            section.row(size, system.name, f"{found['rank_own_mib']:.0f}", f"{found['rank_own_after_mib']:.0f}",
                        f"{found['beyond_torch_mib']:.0f}", f"{found['beyond_torch_mib'] * (1 << 20) / system.parameters:.1f}",
                        "yes" if bench.checks[system.name]["same"] else "NO")
            run.say(f"{size}, {system.name}: {section.rows[-1]}")
        if system.name in bench.failed:
            section.row(size, system.name, *[""] * 4, f"does not run: {bench.failed[system.name][:SHOWN]}")
    section.wrong = section.wrong or bench.wrong()


def measure(run):
    if run.only and all(part.startswith("largest") for part in run.only):
        return largest(run)
    numbers = ["own, MiB", "own, after", "node, MiB", "bytes a parameter"]
    section = Section("memory", ["parameters", "system", *numbers, "same"], numbers)
    for size in among(run.only, SIZES):
        of_size(run, size, section)
    return section


# ---- memory:largest ---------------------------------------------------------------------------

ABOUT_LARGEST = """The largest GPT, in millions of parameters, that one process trains within so many GiB for everything, in
fp32 with AdamW: blocks 1,024 wide, 64 tokens a step.  tests/claims/largest.py searches among 16 sizes.  DeepSpeed has
stage 3 with offload.  zerod goes layer by layer, and its daemon counts, too.
"""
GIBS, KEPT = (4, 8, 16), (8, "tests/claims/largest.json")  # the search within 8 GiB takes half an hour: it is kept
SPARE_GIB = 1
SEARCHED = ("zerod", "torch", "fsdp2", "deepspeed3")
END_S = 30


def search(run, gib):
    """What largest.py finds, by system."""
    if gib == KEPT[0]:
        with open(f"{run.root}/{KEPT[1]}", encoding="utf-8") as f:
            return json.load(f)
    free = available() >> 30
    if free < gib + SPARE_GIB:
        return {name: {"why": f"not run: {free} GiB of memory are free"} for name in SEARCHED}
    with tempfile.TemporaryDirectory() as directory:
        found = f"{directory}/found"
        searching = spawn([run.python, "-B", f"{run.root}/tests/claims/largest.py", run.build, "--gib", str(gib),
                           "--keep", found, *SEARCHED],
                          stdin=subprocess.DEVNULL, env={**os.environ, "ZEROD_PYTHON": run.python})
        try:
            searching.wait()  # each of its attempts has a deadline
        finally:
            end_process(searching, END_S)
        if not os.path.exists(found):
            return {}
        with open(found, encoding="utf-8") as f:
            return json.load(f)


def largest(run):
    section = Section("memory: largest", ["GiB", *SEARCHED, "measured"], ["GiB", *SEARCHED])
    section.about = ABOUT_LARGEST
    for gib in GIBS if "largest" in run.only else [int(part.removeprefix("largest-")) for part in run.only]:
        found = search(run, gib)
        section.wrong = section.wrong or "zerod" not in found
        cells = [found.get(name, {"why": "the search failed"}) for name in SEARCHED]
        section.row(gib, *(f"{c['parameters'] / 1e6:.0f}" if "parameters" in c else c["why"] for c in cells),
                    next((c["machine"] for c in cells if "machine" in c), ""))
        run.say(f"{gib} GiB: {section.rows[-1]}")
    return section
