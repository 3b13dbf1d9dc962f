#!/usr/bin/env python3
"""Tokens a second of a GPT of 350 million parameters: zerod at stage 3 and FSDP2 with one rank, as
ratios to plain PyTorch, which are measured in turn.

usage: tokens.py TOP PLUGIN [--quick]; lines of JSON
"""
import json
import statistics
import subprocess
import sys

from where import GPU_STATES, HERE, HOST_STATES, cluster, trainer_environment, use_bundle

TOP, PLUGIN = sys.argv[1:3]
QUICK = "--quick" in sys.argv
SIZE, STEPS, SEQUENCES, ROUNDS = ("tiny", "6", "2", 2) if QUICK else ("350m", "20", "8", 3)
END_S = 200


def run(system, *where):
    """Tokens a second."""
    r = subprocess.run([sys.executable, "-B", f"{HERE}/trainer.py", system, SIZE, STEPS, SEQUENCES, *where],
                       env=trainer_environment(TOP, PLUGIN), stdin=subprocess.DEVNULL, capture_output=True,
                       text=True, timeout=END_S, check=False)
    if r.returncode:
        raise AssertionError(f"{system}: status {r.returncode}: {r.stderr[-2000:]}")
    answer = json.loads(r.stdout.splitlines()[-1])
    return answer["tokens"] / answer["step_s"], answer["peak_bytes"]


def zerod(states):
    with cluster(PLUGIN, threads=4, **states) as c:
        return run("zerod", c[0].socket, "tokens", "0", "1")


SYSTEMS = {
    "zerod, states on the GPU": lambda: zerod(GPU_STATES),
    "zerod, states on the host": lambda: zerod(HOST_STATES),
    "FSDP2": lambda: run("fsdp2"),
}


def measure(name, system):
    ratios, own, plain = [], [], []
    for _ in range(ROUNDS):
        peer, _ = run("plain")
        mine, peak = system()
        ratios.append(mine / peer)
        own.append(mine)
        plain.append(peer)
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    print(json.dumps({"name": f"tokens/s, {name}", "repeat": ROUNDS, "median_ratio": round(middle, 4),
                      "spread": [round(low, 4), round(high, 4)], "tokens_s": round(statistics.median(own)),
                      "plain_tokens_s": round(statistics.median(plain)), "trainer_peak_bytes": peak,
                      "model": SIZE, "sequences": int(SEQUENCES)}), flush=True)


def main():
    use_bundle(TOP)
    left_out = []
    for name, system in SYSTEMS.items():
        try:
            measure(name, system)
        except AssertionError as why:
            left_out.append(f"{name}: {why}")
    for why in left_out:
        print(why, file=sys.stderr)
    sys.exit(bool(left_out))


if __name__ == "__main__":
    main()
