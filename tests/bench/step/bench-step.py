#!/usr/bin/env python3
"""bench-step [--repeat N] [--json FILE] [--steps N] [--case NAME]...

What a training step costs with zerod, against the same trainer with the states in its own process (gpt --local).
25.6 million parameters in fp32, 2048 tokens a trainer and step, one BLAS thread a trainer.

  one    one trainer, one daemon, ZeRO stages 1, 2 and 3; against one trainer alone
  two    two trainers, two daemons, stage 3; against two trainers alone at the same time, each with the whole update
  crash  one trainer, one daemon, stage 3; against a zerod that updates in place and whose state does not survive
         being killed (undo_none.c: a program of this benchmark alone)
  small  the same with 16 tokens a step, so that a step is hardly more than its update
  mirror two trainers, two daemons, stage 3, every shard held twice; against the same without mirrors.  Besides, what
         travels between the daemons: bytes a parameter, step and node
  buffers two trainers, two daemons, stage 3, 16 tokens a step; against the same with windows and buffers for the whole
         model
  watched two trainers, two daemons, stage 3, 16 tokens a step, with everything on that watches: /metrics and the page's
         questions to both nodes once a second, zeroctl top, traces in log_dir; against the same with http and log_dir off

All of a case run in turn in each round, every second round backwards, and each is compared with the first of its
case in its round.  Ratios are of the time of a step; cpu_ratio is of the CPU time of trainers and daemons together.
A run's first step warms up and is left out.  Median and quartiles over rounds.
"""
import argparse
import contextlib
import http.client
import statistics
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from subprocess import DEVNULL

sys.path.insert(0, "@SOURCE@/tests/bench")
import common  # noqa: E402  (its place is known only now)
from cluster import Cluster, Tools, end_process, spawn  # noqa: E402
from ports import free_ports  # noqa: E402
from training import Alone, Served, write_text  # noqa: E402

BUILD = "@BUILD@"
UNBOUNDED = {"window": 1 << 30, "reduce_buffers": 1 << 30}
SMALL = ["--context", "16", "--batch", "1"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--steps", type=int, default=3, help="of a run, the first one included; ten times as many small ones")
    parser.add_argument("--case", action="append", choices=CASES)
    return parser.parse_args()


# ---- what is compared -----------------------------------------------------------

@contextlib.contextmanager
def against_alone(trainers, stages):
    with Cluster(trainers, threads=0) as cluster:
        write_text(cluster)
        yield [Alone(cluster, trainers), *(Served(cluster, trainers, stage) for stage in stages)]


@contextlib.contextmanager
def against_inconsistent(more=()):
    """Two daemons, of which the one that has no trainer sleeps."""
    zerod = Tools.zerod
    with contextlib.ExitStack() as stack:
        runs = []
        for name, program in (("inconsistent", f"{BUILD}/tests/bench/step/zerod-inconsistent"), ("consistent", zerod)):
            Tools.zerod = program
            cluster = stack.enter_context(Cluster(1, threads=0))
            write_text(cluster)
            runs.append(Served(cluster, 1, 3, name, more))
        yield runs


@contextlib.contextmanager
def two_nodes(of, more=()):
    """of: the daemons' options, by name."""
    with contextlib.ExitStack() as stack:
        runs = []
        for name, daemons in of.items():
            cluster = stack.enter_context(Cluster(2, threads=0, **daemons))
            write_text(cluster)
            runs.append(Served(cluster, 2, 3, name, more))
        yield runs


class Watched(Served):
    ASKED = ("/metrics", "/api/status", "/api/members", "/api/map")

    def watch(self, end):
        while not end.wait(1):
            for d in self.cluster.daemons:
                for path in self.ASKED:
                    connection = http.client.HTTPConnection(*d.options["http"].split(":"), timeout=30)
                    connection.request("GET", path)
                    answer = connection.getresponse()
                    if answer.status != 200:
                        raise RuntimeError(f"{path}: {answer.status} {answer.read()[:200]}")
                    answer.read()
                    connection.close()

    def run(self, steps):
        end = threading.Event()
        top = spawn([Tools.zeroctl, "--socket", self.cluster[0].socket, "top"], stdout=DEVNULL)
        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(self.watch, end)
            try:
                measured = super().run(steps)
            finally:
                end.set()
                end_process(top, 10)
            watching.result()
        return measured


@contextlib.contextmanager
def watched_or_not():
    ports = free_ports(2)
    with Cluster(2, threads=0, log_dir="") as off, Cluster(2, threads=0, per_node={
            i: {"http": f"127.0.0.1:{port}"} for i, port in enumerate(ports)}) as on:
        for cluster in (off, on):
            write_text(cluster)
        yield [Served(off, 2, 3, "off", SMALL), Watched(on, 2, 3, "on", SMALL)]


# What makes the runs, how many trainers they have, what a run's steps are multiplied by, and the aim.
CASES = {"one": (lambda: against_alone(1, (1, 2, 3)), 1, 1, 1.10),
         "two": (lambda: against_alone(2, (3,)), 2, 1, 1.10),
         "crash": (against_inconsistent, 1, 1, 1.02),
         "small": (lambda: against_inconsistent(SMALL), 1, 10, None),
         "mirror": (lambda: two_nodes({"one copy": {}, "mirrored": {"mirror": 1}}), 2, 1, None),
         "buffers": (lambda: two_nodes({"unbounded": UNBOUNDED, "bounded": {}}, SMALL), 2, 10, 1.11),
         "watched": (watched_or_not, 2, 40, 1.01)}


def rounds_of(case, repeat, steps):
    make, _, times, _ = CASES[case]
    with make() as runs:
        for i in range(repeat):
            measured = {r.name: r.run(steps * times) for r in (runs if i % 2 == 0 else reversed(runs))}
            yield {r.name: (*measured[r.name], r.bytes) for r in runs}


def bytes_sent(rounds, name, first):
    """Of runs over several daemons; the last round tells of all."""
    mine, base = (rounds[-1][n][2] for n in (name, first))
    return {"bytes": round(mine, 3), f"{first}_bytes": round(base, 3)} if mine and base else {}


def figure(case, name, rounds):
    _, trainers, _, aim = CASES[case]
    first = next(iter(rounds[0]))
    ratios = [[r[name][i] / r[first][i] for r in rounds] for i in (0, 1)]
    seconds, base = (statistics.median(r[n][0] for r in rounds) for n in (name, first))
    what = f"{trainers} trainer{'s' * (trainers > 1)}" if first == "alone" else f"case {case}"
    return common.figure(f"step time, {name}, {what}", ratios[0], cpu_ratio=round(statistics.median(ratios[1]), 4),
                         seconds=round(seconds, 4), **{f"{first}_seconds": round(base, 4)}, trainers=trainers,
                         nodes=trainers, **({"aim": aim} if aim else {}), **bytes_sent(rounds, name, first))


def main():
    options = arguments()
    common.leave_on_signals()
    common.use_build(BUILD)
    output = common.Output(options.json)
    for case in options.case or CASES:
        rounds = []
        for measured in rounds_of(case, max(2, options.repeat), max(2, options.steps)):
            rounds.append(measured)
            print(case, *(f"{name}: {s:.3f} s, CPU {cpu:.2f} s;" for name, (s, cpu, _) in measured.items()), flush=True)
        for name in list(rounds[0])[1:]:
            f = figure(case, name, rounds)
            output.add(f)
            print(f"{f['name']}: ratio {f['median_ratio']:.3f}, {f['spread'][0]:.3f} .. {f['spread'][1]:.3f}, "
                  f"of CPU time {f['cpu_ratio']:.3f}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(f"bench-step: {error}")
