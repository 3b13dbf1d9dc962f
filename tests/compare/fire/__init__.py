"""Goodput under fire: a GPT of 25 million parameters, four ranks on two nodes, and every 15 s somebody is killed.

By a seeded schedule a rank dies, or a daemon, or a node with its two ranks, its daemon and all that its daemon had in
memory.  "Goodput" is the time that the steps made would have taken undisturbed, over the time that passed; "bits" says
that the parameters are those of an undisturbed run.  zerod keeps each shard twice, a supervisor starts what died at
once, and forks ranks of a process that has imported PyTorch.  "zerod-warned": only nodes go, and SIGTERM comes first,
as before a preemption: the node's ranks end behind their step, and its daemon behind them.  A step is "void" if a
fault came amid it; "between faults" is the mean of those that no fault met.  A peer runs under torchrun, which ends
all ranks and starts them again from the newest checkpoint in /dev/shm: DCP's async_save, or DeepSpeed's.  Of a node it
loses the two ranks alone, and a daemon it does not have.
"""
import contextlib
import json
import math
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from cluster import Cluster, spawn, until

from table import Section

HERE = os.path.dirname(os.path.abspath(__file__))
WORLD, NODES, SIZE, SEQUENCES = 4, 2, "25m", 1
EVERY_S, MINUTES, CALM_S, WARM, DIGEST = 15, 4, 40, 2, 10
SHORT = ("2",)
KINDS = ("rank", "rank", "daemon", "node")
OURS = {"zerod": KINDS, "zerod-warned": ("warned_node",)}
PEERS = ("fsdp2", "deepspeed")
PARTS = (*OURS, *PEERS, "N")  # minutes
EVERY_STEPS, NEVER = (2, 10), 1 << 40  # between checkpoints of a peer
START_S, END_S = 180, 30
SEED = 1
LOST_S = 120  # without a step


class Rank:
    def __init__(self, rank, pid, pipe):
        self.rank, self.pid, self.pipe, self.buffer = rank, pid, pipe, b""

    def read(self):
        """What it says; None: it is gone."""
        data = os.read(self.pipe, 1 << 16)
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        while self.read() is not None:
            pass
        os.close(self.pipe)


class Forks:
    """A process that has imported PyTorch, and forks ranks."""

    def __init__(self, options, log):
        self.door, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.door.settimeout(START_S)
        with theirs:
            self.process = spawn([options.python, "-B", f"{HERE}/rank.py"], stdin=theirs, stdout=subprocess.DEVNULL,
                                 stderr=log, env=options.environment())

    def rank(self, rank, config):
        ours, theirs = os.pipe()
        socket.send_fds(self.door, [json.dumps({"rank": rank, **config}).encode()], [theirs])
        os.close(theirs)
        pid = self.door.recv(64)
        if not pid:
            raise RuntimeError("the process that forks ranks has ended")
        return Rank(rank, int(pid), ours)

    def end(self):
        self.door.close()
        self.process.wait(END_S)


class Fire:
    """Four ranks on two nodes."""

    def __init__(self, options, kept):
        self.options, self.chance = options, random.Random(SEED)
        self.cluster = kept.enter_context(Cluster(NODES, mirror=1))
        self.log = kept.enter_context(open(f"{self.cluster.directory}/ranks.log", "ab"))
        self.forks, self.ranks, self.incarnation = Forks(options, self.log), {}, 0
        kept.callback(self.end)
        self.moments, self.digests = {}, {}  # t: when the last rank had made it; t: digest
        self.leaving = set()  # ranks that were told to end
        self.void = set()  # (steps made, incarnation): the next one had to be made again

    def start(self, rank):
        self.ranks[rank] = self.forks.rank(rank, {
            "world": WORLD, "local_world": WORLD // NODES, "size": SIZE, "sequences": SEQUENCES, "digest": DIGEST,
            "socket": self.cluster[self.node_of(rank)].socket, "incarnation": self.incarnation})

    @staticmethod
    def node_of(rank):
        return rank * NODES // WORLD

    def watch(self, seconds):
        """Reads what ranks say, for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            open_ = {p.pipe: p for p in self.ranks.values()}
            for stream in select.select(list(open_), [], [], left)[0]:
                told = open_[stream].read()
                if told is None and open_[stream].rank in self.leaving:
                    self.leaving.remove(open_[stream].rank)
                    self.kill_rank(open_[stream].rank)
                    continue
                if told is None:
                    with open(self.log.name, encoding="utf-8", errors="replace") as log:
                        lines = [line.strip() for line in log if line.strip()]
                    raise RuntimeError(f"rank {open_[stream].rank} ended by itself: {lines[-1] if lines else 'no word'}")
                for e in told:
                    if e["event"] == "step":
                        self.moments[e["t"]] = max(e["at"], self.moments.get(e["t"], 0))
                        if e.get("digest"):
                            self.digests[e["t"]] = e["digest"]
                    else:
                        self.void.add((e["t"], self.incarnation))
            if self.moments and time.monotonic() - max(self.moments.values()) > LOST_S:
                raise RuntimeError(f"no step for {LOST_S} s")

    def made(self):
        return max(self.moments, default=0)

    def until(self, t):
        while self.made() < t:
            self.watch(0.2)

    # ---- what is killed, and started again -----------------------------------------

    def kill_rank(self, rank):
        self.ranks.pop(rank).end()

    def restart(self, ranks):
        self.incarnation += 1
        for rank in ranks:
            self.start(rank)

    def rank(self):
        rank = self.chance.randrange(WORLD)
        self.kill_rank(rank)
        self.restart([rank])

    def daemon(self):
        self.cluster[self.chance.randrange(NODES)].restart()

    def some_node(self):
        i = self.chance.randrange(NODES)
        return self.cluster[i], [r for r in self.ranks if self.node_of(r) == i]

    def node(self):
        daemon, ranks = self.some_node()
        daemon.kill()
        for r in ranks:
            self.kill_rank(r)
        self.replace(daemon, ranks)

    def warned_node(self):
        daemon, ranks = self.some_node()
        for r in ranks:
            os.kill(self.ranks[r].pid, signal.SIGTERM)
        self.leaving = set(ranks)
        end = time.monotonic() + LOST_S
        while self.leaving:
            self.watch(0.1)
            if time.monotonic() > end:
                raise RuntimeError(f"warned ranks have not ended within {LOST_S} s: {sorted(self.leaving)}")
        daemon.process.terminate()
        daemon.process.wait(END_S)
        self.replace(daemon, ranks)

    def replace(self, daemon, ranks):
        """All that a machine has in memory is gone.  Another one takes its place."""
        shutil.rmtree(daemon.options["state_dir"])
        daemon.start()
        until(lambda: daemon.query("status")[0], what="the new node")
        self.restart(ranks)

    def end(self):
        for p in self.ranks.values():
            p.end()
        self.forks.end()


def begin(options, kept):
    fire = Fire(options, kept)
    for rank in range(WORLD):
        fire.start(rank)
    fire.until(WARM)
    return fire


def calm(options, steps=0):
    """Seconds a step without a fault, and the digests of its steps."""
    with contextlib.ExitStack() as kept:
        fire = begin(options, kept)
        fire.watch(CALM_S)
        fire.until(steps)
        while steps and steps not in fire.digests:  # one rank tells it
            fire.watch(0.2)
        first, last = WARM, fire.made()
        return (fire.moments[last] - fire.moments[first]) / (last - first), fire.digests


def burn(fire, seconds, kinds=KINDS):
    """What the time brought: steps, seconds of a step that no fault met, longest pause, how often each kind struck."""
    struck, faults, before = {}, [], fire.made()
    first = fire.moments[before]
    while True:
        fire.watch(min(EVERY_S, max(0, first + seconds - time.monotonic())))
        if time.monotonic() - first >= seconds:
            break
        kind = fire.chance.choice(kinds)
        struck[kind] = struck.get(kind, 0) + 1
        begun = time.monotonic()
        getattr(fire, kind)()
        faults.append((begun, time.monotonic()))
    moments = [fire.moments[t] for t in sorted(fire.moments) if t >= before]
    pauses = [b - a for a, b in zip(moments, [*moments[1:], first + seconds])]
    unmet = [b - a for a, b in zip(moments, moments[1:]) if not any(a < end and begun < b for begun, end in faults)]
    return {"steps": fire.made() - before, "seconds": seconds, "pause": max(pauses), "struck": struck,
            "unmet": sum(unmet) / len(unmet) if unmet else math.nan}


# ---- peers ---------------------------------------------------------------------------------


class Torchrun:
    """A peer under torchrun, which ends all ranks when one dies, and starts them again from the newest checkpoint."""

    def __init__(self, options, kept, system, every):
        self.directory = tempfile.mkdtemp(prefix="zerod-compare-", dir="/dev/shm")
        kept.callback(shutil.rmtree, self.directory, ignore_errors=True)
        os.mkdir(f"{self.directory}/saved")
        config = {"system": system, "every": every, "size": SIZE, "sequences": SEQUENCES, "stage": 3,
                  "saved": f"{self.directory}/saved", "events": f"{self.directory}/events"}
        with open(f"{self.directory}/log", "wb") as log:
            self.process = spawn([options.python_of(system), "-m", "torch.distributed.run", "--standalone",
                                  "--nproc-per-node", str(WORLD), "--max-restarts", "1000", "--monitor-interval", "0.1",
                                  f"{HERE}/peer.py", json.dumps(config)],
                                 stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                                 # else torchrun leaves files, and gloo finds the addresses of ranks that were ended in the store
                                 env={**options.environment(), "TMPDIR": self.directory,
                                      "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
        kept.callback(self.end)
        self.chance, self.moments, self.pids, self.lost = random.Random(SEED), {}, {}, 0
        until(lambda: os.path.exists(config["events"]), START_S, f"the first step of {system}")
        self.file, self.rest = kept.enter_context(open(config["events"], encoding="utf-8")), ""
        self.heard = time.monotonic()
        self.until(WARM)

    def watch(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(min(0.1, seconds))
            *lines, self.rest = (self.rest + self.file.read()).split("\n")
            for e in map(json.loads, lines):
                self.pids[e["rank"]], self.heard = e["pid"], e["at"]
                if e["rank"] == 0:
                    self.lost += e["t"] in self.moments
                    self.moments.setdefault(e["t"], e["at"])
            if time.monotonic() - self.heard > LOST_S or self.process.poll() is not None:
                raise RuntimeError(f"torchrun ended, or no step for {LOST_S} s")

    def made(self):
        return max(self.moments, default=0)

    def until(self, t):
        while self.made() < t:
            self.watch(0.2)

    def kill(self, ranks):
        for r in ranks:
            with contextlib.suppress(ProcessLookupError):  # it has been ended, and its successor has not made a step
                os.kill(self.pids[r], signal.SIGKILL)

    def rank(self):
        self.kill([self.chance.randrange(WORLD)])

    def daemon(self):
        """A peer has none."""

    def node(self):
        i = self.chance.randrange(NODES)
        self.kill([r for r in range(WORLD) if r * NODES // WORLD == i])

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def measure(options):
    systems = [part for part in options.only if not part.isdigit()] or [*OURS, *PEERS]
    seconds = 60 * next((int(part) for part in options.only if part.isdigit()), MINUTES)
    section = Section("fire", ["system", "goodput", "steps", "made again", "longest pause, s", "a step undisturbed, s",
                               "between faults, s", "killed", "bits"])

    def row(system, found, step_s, lost, bits):
        struck = ", ".join(f"{n} {kind.removeprefix('warned_')}{'s' * (n > 1)}" for kind, n in sorted(found["struck"].items()))
        section.row(system, f"{found['steps'] * step_s / found['seconds']:.3f}", found["steps"], lost,
                    f"{found['pause']:.1f}", f"{step_s:.2f}", f"{found['unmet']:.2f}", struck, bits)
        options.say(f"{system}: {section.rows[-1]}")

    burnt, step_s = {}, calm(options)[0] if set(systems) & set(OURS) else 0
    for system in filter(systems.__contains__, OURS):
        with contextlib.ExitStack() as kept:
            fire = begin(options, kept)
            burnt[system] = fire, burn(fire, seconds, OURS[system])
    if burnt:
        after_s, right = calm(options, max(max(fire.digests, default=0) for fire, _ in burnt.values()))
        options.say(f"a step undisturbed: before {step_s:.2f} s, after {after_s:.2f} s")
        step_s = (step_s + after_s) / 2
    for system, (fire, found) in burnt.items():
        wrong = [t for t in fire.digests if right[t] != fire.digests[t]]
        section.wrong = section.wrong or bool(wrong)
        row(system, found, step_s, f"0, {len(fire.void)} void", f"differ from step {min(wrong)} on" if wrong else
            f"same at {len(fire.digests)} steps")
    for system in filter(systems.__contains__, PEERS):
        with contextlib.ExitStack() as kept:
            peer = Torchrun(options, kept, system, NEVER)
            first = peer.made()
            peer.watch(CALM_S)
            step_s = (peer.moments[peer.made()] - peer.moments[first]) / (peer.made() - first)
        for every in EVERY_STEPS:
            name = f"{system}, a checkpoint every {every} steps"
            try:
                with contextlib.ExitStack() as kept:
                    peer = Torchrun(options, kept, system, every)
                    row(name, burn(peer, seconds), step_s, peer.lost, "")
            except RuntimeError as why:
                section.row(name, f"fails: {why}", *[""] * 7)
    return section
