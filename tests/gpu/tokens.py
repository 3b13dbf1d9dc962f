#!/usr/bin/env python3
"""Tokens a second of a GPT of 350 million parameters on one GPU: zerod at stage 3, and what else PyTorch's users have, as
ratios to FSDP2 with one rank, which is measured in the same round.

usage: tokens.py TOP PLUGIN [--quick] [--once]; lines of JSON, a line of each system as soon as it has run

--once: one round.  A round runs all systems, the most telling ones first; no system runs twice before all have run.
$PART_END_MS: when run.sh ends this part, on its clock.  Exit status 1: a system of zerod's, or FSDP2, failed or had no time; a peer that
cannot run is named with its reason.
"""
import json
import os
import statistics
import subprocess
import sys

from where import GPU_STATES, HERE, HOST_STATES, cluster, peers_environment, trainer_environment, use_bundle

TOP, PLUGIN = sys.argv[1:3]
QUICK = "--quick" in sys.argv
SIZE, STEPS, SEQUENCES, ROUNDS = ("tiny", "6", "2", 2) if QUICK else ("350m", "30", "8", 3)
TRAINED_S = "5"  # after that no step begins
END = float(os.environ.get("PART_END_MS", "inf")) / 1000 - 4
THREADS = max(1, (os.cpu_count() or 1) - 2)  # of a daemon: PyTorch's two remain
REFERENCE = "FSDP2"


ALL_SLOTS, TWO_SLOTS = str(0xFFFFFFFF), "2"


class NoTime(Exception):
    """None is left for a system."""


def run(system, *where, **more):
    """The trainer's answer."""
    with open("/proc/uptime", encoding="ascii") as up:  # run.sh's clock
        seconds = END - float(up.read().split()[0])
    if seconds < 1:
        raise NoTime
    try:
        r = subprocess.run([sys.executable, "-B", f"{HERE}/trainer.py", system, SIZE, STEPS, SEQUENCES, *where],
                           env={**trainer_environment(TOP, PLUGIN), "TRAINER_SECONDS": TRAINED_S, **more},
                           stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=min(seconds, 900), check=False)
    except subprocess.TimeoutExpired:
        raise NoTime from None
    if r.returncode:
        raise AssertionError(f"status {r.returncode}: {r.stderr[-2000:]}")
    return json.loads(r.stdout.splitlines()[-1])


deferred = [0]  # sums of zerod's last run


def zerod(states, **more):
    answer = None
    try:
        with cluster(PLUGIN, threads=THREADS, **states) as c:
            try:
                answer = run("zerod", c[0].socket, "tokens", "0", "1", **more)
                job = c[0].job("tokens")
                print("# job", json.dumps(job), flush=True)
                answer["deferred"] = deferred[0] = job["reduce"]["deferred"]
            finally:
                c[0].ctl_run("drop", "tokens")  # else the daemon saves it when it ends
    except AssertionError as why:  # such as a daemon that does not end
        if answer is None:
            raise
        answer["note"] = f"afterwards: {why}"[:300]
    return answer


def other_slots():
    """Those that the service did not choose, which shows by what it deferred."""
    slots = TWO_SLOTS if deferred[0] else ALL_SLOTS
    return {**zerod(GPU_STATES, TRAINER_PUSH_GROUPS=slots), "push_groups": "all" if slots == ALL_SLOTS else slots}


def deepspeed(system):
    return run(system, **peers_environment(TOP, THREADS))


SYSTEMS = {
    REFERENCE: lambda: run("fsdp2"),
    "zerod, states on the GPU": lambda: zerod(GPU_STATES),
    "plain PyTorch, bf16 beside fp32": lambda: run("masters"),
    "zerod, states on the GPU, other push slots": other_slots,
    "zerod, states on the host": lambda: zerod(HOST_STATES),
    "plain PyTorch, autocast": lambda: run("autocast"),
    "DeepSpeed ZeRO-3": lambda: deepspeed("zero3"),
    "DeepSpeed ZeRO-Offload": lambda: deepspeed("offload"),
}


def optional(name):
    return name.startswith(("DeepSpeed", "plain PyTorch")) or "push slots" in name


def show(name, answers, reference):
    """All rounds so far of one system: tokens a second, and the ratio to the reference's of the same rounds."""
    speeds = [a["tokens"] / a["step_s"] for a in answers]
    ratios = [mine / theirs for mine, theirs in zip(speeds, reference)] or [0.0]
    low, middle, high = statistics.quantiles(ratios * 2, n=4, method="inclusive")
    last = answers[-1]
    line = {"name": f"tokens/s, {name}", "repeat": len(answers), "median_ratio": round(middle, 4),
            "spread": [round(low, 4), round(high, 4)], "tokens_s": round(statistics.median(speeds)),
            "step_ms": round(1000 * statistics.median(a["step_s"] for a in answers), 2), "steps": last["timed"],
            "trainer_peak_bytes": last["peak_bytes"], "ready_s": round(last["at"]["attach"] - last["at"]["main"], 2),
            "model": SIZE, "sequences": int(SEQUENCES)}
    line.update((key, last[key]) for key in ("deferred", "push_groups", "note") if last.get(key, "") != "")
    print(json.dumps(line), flush=True)


def measure(answers, failed, name, system):
    try:
        answer = system()
    except NoTime:
        raise
    except Exception as why:  # pylint: disable=broad-except  # the others still run
        failed[name] = f"{type(why).__name__}: {why}"
        print(f"{name}: {failed[name]}", flush=True)
        return
    answers.setdefault(name, []).append(answer)
    reference = [a["tokens"] / a["step_s"] for a in answers.get(REFERENCE, [])]
    show(name, answers[name], reference)


def main():
    use_bundle(TOP)
    answers, failed = {}, {}
    try:
        for _ in range(1 if "--once" in sys.argv else ROUNDS):
            for name, system in SYSTEMS.items():
                if name not in failed:
                    measure(answers, failed, name, system)
    except NoTime:
        late = [name for name in SYSTEMS if name not in answers and name not in failed]
        if late:
            print(f"no time was left for: {', '.join(late)}", flush=True)
            failed.update((name, "no time") for name in late if not optional(name))
    print("; ".join(f"{name}: {len(a)} rounds" for name, a in answers.items()))
    sys.exit(any(not optional(name) for name in failed))


if __name__ == "__main__":
    main()
