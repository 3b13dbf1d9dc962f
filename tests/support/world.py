"""A training job that is disturbed, watched and compared with an undisturbed one.

Its trainers survive every disturbance and train until a version that is chosen at the end.  They write each
completed step to a journal, with a hash of everything they fetched.  Rule: a process that dies without being killed,
a call that fails without a disturbance, and a job that does not go on are failures.
"""
import json
import os
import random
import subprocess
import time

from checkpointing import Place, whole
from cluster import MUON_SETS, SETS, SLOW, Cluster, Tools, muon_layout, small_layout, spawn, until
from network import Network

JOB = "torture"
STUCK_S = 120 * SLOW
PATIENCE_MS = 120000 * SLOW  # timeout of a trainer's calls: longer than any disturbance
LAST_STEPS = 20              # steps after the last disturbance
AGAIN = ("ECLOSED", "EABORTED", "EPEER")  # statuses of an attach during which a daemon died
NEVER = 10**11


class Plan:
    """The parameters of a run, which depend on its seed alone."""

    def __init__(self, seed, wired):
        self.rng = random.Random(seed)
        r, self.seed, self.wired = self.rng, seed, wired
        self.nodes = r.choice((2, 3))
        ranks = r.randint(2, 4)
        self.placement = sorted(r.randrange(self.nodes) for _ in range(ranks))
        formatted = seed % 4 in (2, 3)
        self.dtype = r.choice(("fp32", "fp32", "bf16")) if not formatted else "bf16"
        self.layout = small_layout(self.dtype, blocks=r.randint(2, 3), width=r.choice((64, 128, 200)))
        stage = r.choice((2, 3))
        self.needs = {"hold": 2 if stage == 3 else -1, "push": r.choice((2, -1)), "grad": self.dtype}
        if seed % 8 in (1, 3, 6):
            self.needs.update(reduce="bf16", accumulate="wire")
        self.train = {"micro_batches": r.randint(2, 3), "stage": stage, "clip": 0.5, "seed": seed,
                      "sets": SETS, "patient": True, "keep": True}
        self.options = {"chunk": r.choice((128, 1280)), "threads": r.randint(1, 2)}
        if wired:
            self.options["bulk"] = "tcp"
        if r.random() < 0.25:
            self.options["delay_ms"] = r.randint(1, 5)
        self.mirrored = seed % 2 == 1
        self.eager = seed % 4 in (1, 2)
        if self.eager:
            self.train["clip"] = 0
            self.lead(True)
        elif seed % 8 in (3, 4):
            self.layout = muon_layout(self.dtype, blocks=2, width=r.choice((64, 128)))
            self.train["sets"] = [*SETS, *MUON_SETS]
        if formatted:
            for g in self.layout:
                masters = ("fp32",) if self.eager else ("fp32", "bf16+16", "bf16+8")
                g.update(state=r.choice(("fp32", "bf16", "8bit")), master=r.choice(masters))
        devices = [r.randint(1, 3) for _ in range(self.nodes)] if seed % 3 == 0 else [1] * self.nodes
        self.options["owners"] = " ".join(f"n{n}*{d}" for n, d in enumerate(devices))
        self.owners = [n for n, d in enumerate(devices) for _ in range(d)]

    def lead(self, ahead):
        """Whether owners update ahead of decisions."""
        self.train["ahead"] = ahead
        for g in self.layout:
            g["eager"] = ahead

    def formats(self):
        formats = [f"{g['state']}/{g['master']}" for g in self.layout if "state" in g]
        wire = "sums in the wire's dtype, " if "accumulate" in self.needs else ""
        return wire + (f"formats {' '.join(formats)}, " if formats else "")

    def __str__(self):
        options = ", ".join(f"{k} {v}" for k, v in self.options.items())
        return (f"seed {self.seed}: {self.nodes} nodes{', wired' if self.wired else ''}"
                f"{', mirrored' if self.mirrored else ''}{', eager' if self.eager else ''}, ranks on {self.placement}, "
                f"{self.dtype}, {self.formats()}{self.train['micro_batches']} micro-batches, stage {self.train['stage']}, {options}")


class Journal:
    """The steps that the trainers have completed."""

    def __init__(self, path):
        self.path, self.hashes, self.newest, self.rest = path, {}, -1, ""
        self.recent = []  # (rank, version, time); recovered() empties it
        with open(path, "x", encoding="ascii"):
            pass
        self.file = open(path, encoding="ascii")

    def read(self):
        *lines, self.rest = (self.rest + self.file.read()).split("\n")
        for line in lines:
            rank, version, digest, moment = line.split()
            version = int(version)
            known = self.hashes.setdefault(version, digest)
            assert known == digest, f"rank {rank} fetched other parameters of version {version} than another rank"
            self.newest = max(self.newest, version)
            self.recent.append((int(rank), version, float(moment)))


class Trainer:
    """One rank and its successors."""

    def __init__(self, world, rank):
        self.world, self.rank, self.incarnation, self.actor, self.end = world, rank, 0, None, None
        self.start()

    def start(self):
        w = self.world
        self.actor = w.cluster.rank(JOB, w.plan.layout, w.plan.placement, self.rank, incarnation=self.incarnation,
                                    timeout_ms=PATIENCE_MS, **w.plan.needs)
        self.actor.start("train", until=w.until, journal=w.journal.path, **w.plan.train)
        self.incarnation += 1

    def kill(self):
        self.world.cluster.dismiss(self.actor)

    def poll(self):
        while self.actor.asked and self.actor.ready():
            what = self.actor.asked[0]
            reply = self.actor.finish()
            if reply["status"] == "OK":
                self.end = reply if what == "train" else None
            elif what in ("connect", "attach") and reply["status"] in AGAIN:
                self.kill()
                time.sleep(0.05)
                self.start()
            else:
                raise AssertionError(f"rank {self.rank}: {what}: {reply}")


class World:
    def __init__(self, plan, disturbed=True):
        self.plan, self.rng, self.job = plan, plan.rng, JOB
        self.begin, self.notes, self.armed, self.trainers = time.monotonic(), [], {}, []
        self.ranks_hit, self.nodes_hit = set(), set()
        self.owners = plan.owners  # nodes, in the order of the current owner list
        options = {**(plan.options if disturbed else {}), "mirror": int(plan.mirrored)}
        network = Network(plan.nodes) if plan.wired and disturbed else None
        self.cluster = Cluster(plan.nodes, network=network, **options)
        self.disk = Place()
        self.place = self.disk.__enter__()
        try:
            self.fresh = [(d.state_files(), d.descriptors(), d.mappings()) for d in self.cluster.daemons]
            self.until = f"{self.cluster.directory}/until"
            self.aim(NEVER)
            self.journal = Journal(f"{self.cluster.directory}/journal")
            self.order = None
            self.trainers = [Trainer(self, rank) for rank in range(len(plan.placement))]
        except BaseException:
            self.cluster.end()
            self.disk.__exit__()
            raise

    def note(self, text):
        self.notes.append(f"{time.monotonic() - self.begin:8.3f} version {self.journal.newest + 1}: {text}")

    def aim(self, version):
        with open(os.open(self.until, os.O_CREAT | os.O_WRONLY, 0o644), "w", encoding="ascii") as f:
            f.write(f"{version:012}")

    def checkpoint(self):
        """Starts a checkpoint on a random node unless one is running; it may fail, but must end."""
        if self.order and self.order.poll() is None:
            return
        d = self.rng.choice([d for d in self.cluster.daemons if d.alive()])
        self.order = spawn([Tools.zeroctl, "--socket", d.socket, "checkpoint", JOB, self.place, "--keep", "1"],
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.cluster.others.append(self.order)

    # ---- owners ------------------------------------------------------------------

    def members(self, i):
        """What the node knows of the members; epoch -1 while its daemon starts."""
        r = self.cluster[i].ctl_run("--json", "members")
        return json.loads(r.stdout) if r.returncode == 0 else {"epoch": -1, "owners": [], "voter": False}

    def can_change(self):
        """Waits until every node is up and can vote."""
        for i, d in enumerate(self.cluster.daemons):
            self.wait_for(lambda d=d, i=i: self.members(i)["voter"] and d.peers_up(), f"the vote of {d.name}")

    def agreed(self, epoch):
        """Waits until every node uses the list of this epoch, and has its shards."""
        def told(i):
            members = self.members(i)
            if members["epoch"] == epoch:
                self.owners = [int(name[1:]) for name in members["owners"]]
            return members["epoch"] == epoch
        for i, d in enumerate(self.cluster.daemons):
            self.wait_for(lambda i=i: told(i), f"epoch {epoch} on {d.name}")
        for d in self.cluster.daemons:
            self.wait_for(lambda d=d: d.ctl_run("checksum", JOB).returncode == 0, f"the shards of {d.name}")

    # ---- watching ----------------------------------------------------------------

    def poll(self):
        self.journal.read()
        for t in self.trainers:
            t.poll()
        for d in self.cluster.daemons:
            if not d.alive() and d not in self.armed:
                raise AssertionError(f"daemon {d.name} ended by itself, status {d.process.returncode}")

    def wait(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.poll()
            time.sleep(0.003)

    def wait_for(self, condition, what, seconds=STUCK_S):
        def met():
            self.poll()
            return condition()
        until(met, seconds, what)

    def concerned(self):
        """The ranks whose next step proves that the disturbed processes have recovered."""
        on_nodes = {r for r, n in enumerate(self.plan.placement) if n in self.nodes_hit}
        return self.ranks_hit | on_nodes

    def recovered(self):
        """Waits until every rank has completed a step; seconds until the step of the last concerned() rank."""
        self.journal.read()
        self.journal.recent.clear()
        now, newest, first = time.monotonic(), self.journal.newest, {}

        def all_went_on():
            for rank, version, moment in self.journal.recent:
                if version > newest and moment > now:
                    first.setdefault(rank, moment - now)
            self.journal.recent.clear()
            return len(first) == len(self.trainers)
        self.wait_for(all_went_on, "the next step")
        ranks = self.concerned()
        self.ranks_hit, self.nodes_hit = set(), set()
        return max(s for r, s in first.items() if r in ranks) if ranks else min(first.values())

    # ---- the end ---------------------------------------------------------------------

    def finish(self, version=None):
        """Trains up to a version (None: LAST_STEPS more), closes the job, and checks what is left; the job's result."""
        if version is None:
            self.journal.read()
            version = self.journal.newest + 1 + LAST_STEPS
        self.aim(version)
        self.wait_for(lambda: all(t.end for t in self.trainers), "the last step", STUCK_S + version)
        assert all(t.end["version"] == version for t in self.trainers), [t.end for t in self.trainers]
        for t in self.trainers:
            t.actor.do("close")
        sums = self.cluster.checksum(JOB)
        assert sums["version"] == version, sums
        assert sums.get("mirrors", sums["planes"]) == sums["planes"], sums
        memory = [d.memory() for d in self.cluster.daemons]
        self.restore()
        self.leave()
        return {"version": version, "planes": sums["planes"], "memory": memory}

    def restore(self):
        """Restores every complete checkpoint as another job."""
        if self.order:
            self.order.wait(STUCK_S)
        for name in whole(self.place):
            self.cluster[0].ctl("restore", "copy", f"{self.place}/{name}")
            version = self.cluster.checksum("copy")["version"]
            assert name == f"{JOB}-{version}", (name, version)
            self.cluster[0].ctl("drop", "copy")

    def leave(self):
        """Drops the job, and checks that nothing of it is left."""
        for t in self.trainers:
            t.kill()
        self.trainers = []
        for d in self.cluster.daemons:
            until(lambda d=d: not d.job(JOB)["sessions"], what=f"the sessions' end on {d.name}")
        self.cluster[0].ctl("drop", JOB)
        for d, (files, descriptors, maps) in zip(self.cluster.daemons, self.fresh):
            until(lambda d=d: not d.status()["jobs"], what=f"the job's end on {d.name}")
            assert d.state_files() == files, (d.name, d.state_files(), files)
            until(lambda d=d, n=maps: d.mappings() <= n, what=f"return of mappings of {d.name}")
            until(lambda d=d, n=descriptors: d.descriptors() <= n + 1, what=f"return of descriptors of {d.name}")
            assert d.status()["memory"]["state_used"] == 0, d.status()["memory"]

    def explain(self):
        """For a failure: the last disturbances, and the status of each daemon."""
        lines = [str(self.plan), *self.notes[-40:]]
        for d in self.cluster.daemons:
            if d.alive():
                r = d.ctl_run("status")
                lines += [f"--- status of {d.name}", *(r.stdout or r.stderr).splitlines()]
        return "\n".join("# " + line for line in lines)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind and not issubclass(kind, KeyboardInterrupt):
            print(self.explain())
        self.cluster.__exit__(kind, error, trace)
        self.disk.__exit__()


def undisturbed(plan, version):
    """Runs the plan without disturbances: hashes by version, and the job's result."""
    plan.lead(False)
    with World(plan, disturbed=False) as w:
        end = w.finish(version)
        return w.journal.hashes, end
