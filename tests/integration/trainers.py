#!/usr/bin/env python3
"""The example trainer survives any death, and learns the same bits.

Each case kills at certain versions of the job; at the end the service's checksum must be that of an undisturbed run.
"""
import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import SLOW, Cluster, Tools, spawn, until  # noqa: E402
from harness import Skip, cases_of, main  # noqa: E402

STEPS = 160
MODEL = ["--context", "32", "--width", "64", "--heads", "2", "--layers", "2", "--batch", "4", "--eval-windows", "2",
         "--timeout", str(60 * SLOW), "--steps", str(STEPS)]
VARIANTS = {"stage_1": ["--stage", "1"], "stage_3": [],
            "put": ["--init", "put"],
            "micro_batches_added_by_owners": ["--micro-batches", "2", "--accumulate", "owner"],
            "layer_by_layer": ["--micro-batches", "2", "--schedule", "layerwise"],
            "fp16": ["--dtype", "fp16", "--loss-scale", "1e9"]}


class Run:
    """Two trainers of a job, on `nodes` daemons."""

    def __init__(self, nodes, variant):
        self.cluster, self.nodes, self.variant = Cluster(nodes), nodes, variant
        self.text = f"{self.cluster.directory}/text"
        with open(self.text, "w", encoding="ascii") as f:
            words = random.Random(1)
            f.write(" ".join(words.choice(["zero", "rank", "shard", "step"]) for _ in range(2000)))
        self.starts, self.trainers = [0, 0], [None, None]

    def start(self, rank):
        node, local = rank % self.nodes, 2 // self.nodes
        with open(f"{self.cluster.directory}/rank{rank}.log", "ab") as log:
            self.trainers[rank] = spawn(
                [Tools.gpt, "--data", self.text, "--job", "gpt", "--world-size", "2", "--rank", str(rank),
                 "--local-world-size", str(local), "--incarnation", str(self.starts[rank]), "--socket",
                 self.cluster[node].socket, *MODEL, *self.variant], stdout=log, stderr=log)
        self.cluster.others.append(self.trainers[rank])
        self.starts[rank] += 1

    def kill_trainer(self, rank):
        self.trainers[rank].kill()
        self.trainers[rank].wait()
        self.start(rank)

    def kill_daemon(self, node):
        daemon = self.cluster[node]
        daemon.process.kill()
        daemon.process.wait()
        daemon.start()

    def restart_daemon(self, node):
        daemon = self.cluster[node]
        daemon.process.terminate()
        assert daemon.process.wait(30 * SLOW) == 0
        daemon.start()

    def version(self):
        """The job's version, as the first daemon that answers knows it."""
        for daemon in self.cluster.daemons:
            told, _ = daemon.query("status")
            for job in told["jobs"] if told else []:
                return job["version"]
        return 0

    def log(self, rank):
        with open(f"{self.cluster.directory}/rank{rank}.log", encoding="utf-8", errors="replace") as f:
            return f.read()

    def train(self, deaths):
        """deaths: (version, method, argument)."""
        for rank in range(2):
            self.start(rank)
        for version, death, who in deaths:
            self.reach(version)
            getattr(self, death)(who)
        for rank, trainer in enumerate(self.trainers):
            status = trainer.wait(120 * SLOW)
            assert status == 0, f"rank {rank} ended with {status}:\n{self.log(rank)}"
        until(lambda: all(d.peers_up() for d in self.cluster.daemons), what="the links")
        assert self.version() == STEPS
        return self.cluster.checksum("gpt")

    def reach(self, version):
        """Waits for the version. Trainers are stopped while a daemon is asked, so that a slow answer cannot let them
        train to their end."""
        end = time.monotonic() + 60 * SLOW
        while not self.has_reached(version):
            assert time.monotonic() < end, f"version {version} was not reached"
            time.sleep(0.02)

    def has_reached(self, version):
        self.all_train()
        self.signal(signal.SIGSTOP)
        there = self.version() >= version
        self.signal(signal.SIGCONT)
        return there

    def signal(self, number):
        for trainer in self.trainers:
            if trainer.poll() is None:
                trainer.send_signal(number)

    def all_train(self):
        for rank, trainer in enumerate(self.trainers):
            assert trainer.poll() is None, f"rank {rank} ended too early:\n{self.log(rank)}"


def trained(nodes, variant, deaths):
    if not Tools.gpt or Tools.gpt == "-":
        raise Skip("the example trainer was not built")
    run = Run(nodes, variant)
    with run.cluster:
        return run.train(deaths)


UNDISTURBED = {}


def compare(nodes, variant, deaths):
    key = (nodes, *variant)
    if key not in UNDISTURBED:
        UNDISTURBED[key] = trained(nodes, variant, [])
    assert trained(nodes, variant, deaths) == UNDISTURBED[key]


@cases_of(VARIANTS.items(), "{0[0]}")
def daemon_killed(values):
    compare(1, values[1], [(v, "kill_daemon", 0) for v in (1, 20, 21, 70, 110)])


@cases_of(VARIANTS.items(), "{0[0]}")
def trainer_killed(values):
    compare(1, values[1], [(v, "kill_trainer", v % 2) for v in (1, 20, 21, 70, 110)])


@cases_of(VARIANTS.items(), "{0[0]}")
def any_of_two_nodes_killed(values):
    compare(2, values[1], [(1, "kill_daemon", 0), (30, "kill_trainer", 1), (60, "kill_daemon", 1),
                           (100, "kill_trainer", 0), (120, "kill_daemon", 0)])


@cases_of([1, 2], "nodes_{0}")
def daemons_restarted_in_order(nodes):
    compare(nodes, [], [(v, "restart_daemon", v % nodes) for v in (10, 50, 90, 130)])


if __name__ == "__main__":
    main()
