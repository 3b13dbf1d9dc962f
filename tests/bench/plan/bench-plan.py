#!/usr/bin/env python3
"""bench-plan [--repeat N] [--json FILE] [--steps N] [--case NAME]...

The time of a step as zeroctl plan estimates it, over the time that it takes: gpt with 6.6 million parameters in fp32, one
trainer a node, all on this machine.

  TOKENS_STAGE_NODES, such as 256_3_2: tokens of a trainer and step, ZeRO stage, nodes

Each round measures what plan needs: how fast the nodes are (zeroctl plan --measure), and what the trainers compute.  That
is by how much a step with two micro-batches takes longer than one with one, of as many trainers alone at the same time:
their updates cancel.  Then the same trainers run with zerod.  What else the machine does only slows: of three measures the fastest counts, and of a run's
steps.  Ratios are estimated / taken, and at_least / taken for the
lower bound; median and quartiles over rounds.
"""
import argparse
import statistics
import sys

sys.path.insert(0, "@SOURCE@/tests/bench")
import common  # noqa: E402  (its place is known only now)
from cluster import Cluster, until  # noqa: E402
from training import Alone, Served, write_text  # noqa: E402

MODEL = ["--width", "256", "--heads", "4"]
MEASURES = 3
HOLD, PUSH = "3", "4"  # as gpt has them (client/examples/gpt/backend_zero.c)
CASES = ["256_3_1", "256_3_2", "64_3_1", "64_3_2", "64_2_2", "64_1_2", "64_3_4"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--steps", type=int, default=11, help="of a run, the first one included")
    parser.add_argument("--case", action="append", choices=CASES)
    return parser.parse_args()


def batch(tokens, parts):
    context = min(tokens, 256)
    return [*MODEL, "--context", str(context), "--batch", str(parts * (tokens // context)), "--micro-batches", str(parts)]


def idle(cluster, job):
    for d in cluster.daemons:
        until(lambda d=d: d.job(job)["state"] == "idle", what=f"the ranks of {job} to leave")


def rounds_of(case, repeat, steps):
    tokens, stage, nodes = map(int, case.split("_"))
    with Cluster(nodes, threads=0) as cluster:
        write_text(cluster)
        served = Served(cluster, nodes, stage, more=batch(tokens, 1))
        served.run(2)
        for _ in range(repeat):
            one, two = (Alone(cluster, nodes, batch(tokens, parts)) for parts in (1, 2))
            for alone in (one, two):
                alone.run(steps)
            compute = max(1e-6, two.fastest - one.fastest)
            idle(cluster, f"stage{stage}")
            said = [cluster[0].ctl("plan", f"stage{stage}", "--measure", "--nodes", str(nodes), "--stage", str(stage),
                                   "--hold", HOLD, "--push", PUSH, "--compute", str(compute))["step"]
                    for _ in range(MEASURES)]
            served.run(steps)
            yield min(said, key=lambda step: step["estimate_s"]), served.fastest


def main():
    options = arguments()
    common.leave_on_signals()
    common.use_build("@BUILD@")
    output = common.Output(options.json)
    for case in options.case or CASES:
        ratios = {"estimate_s": [], "at_least_s": []}
        for said, took in rounds_of(case, max(2, options.repeat), max(2, options.steps)):
            for name, values in ratios.items():
                values.append(said[name] / took)
            print(case, *(f"{name} {value:.4f}" for name, value in said.items() if isinstance(value, float)),
                  f"took {took:.4f}", flush=True)
        f = common.figure(f"step time, planned / taken, {case}", ratios["estimate_s"], aim=1,
                          at_least_ratio=round(statistics.median(ratios["at_least_s"]), 4))
        output.add(f)
        print(f"{f['name']}: ratio {f['median_ratio']:.3f}, {f['spread'][0]:.3f} .. {f['spread'][1]:.3f}, "
              f"at least {f['at_least_ratio']:.3f}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(f"bench-plan: {error}")
