"""Steps whose calls a test makes one by one, and the result of an undisturbed job."""
import json
import os
import shutil

from cluster import SETS, Cluster, expect, finish_all, small_layout, until

LAYOUT = small_layout(blocks=2, width=192)
GROUPS = len(LAYOUT)
NEEDS = {"hold": 2, "push": -1}
SEED, MICRO_BATCHES, STEPS = 3, 2, 6
TRAIN = {"sets": SETS, "micro_batches": MICRO_BATCHES, "clip": 0.5, "seed": SEED, "pull": 0, "keep": True}
PLACEMENTS = ([0, 1], [0, 0], [0, 1, 1])
known = {}


def train(ranks, steps, **more):
    for a in ranks:
        a.start("train", steps=steps, **TRAIN, **more)
    return finish_all(ranks)


class Endless:
    """Ranks that train until end() is called, so that everything before it happens under training."""

    def __init__(self, c, ranks, **more):
        self.c, self.ranks, self.goal = c, ranks, f"{c.directory}/until"
        self.end_at(10 ** 9)
        for a in ranks:
            a.start("train", until=self.goal, patient=True, **TRAIN, **more)

    def end_at(self, version):
        with open(os.open(self.goal, os.O_CREAT | os.O_WRONLY, 0o644), "w", encoding="ascii") as f:
            f.write(f"{version:020}")  # a single write of fixed length: ranks read the old number or the new one

    def version(self):
        """The newest version that a living daemon reports."""
        told = [d.query("status")[0] for d in self.c.daemons if d.alive()]
        return max((job["version"] for t in told if t for job in t["jobs"] if job["job"] == "job"), default=0)

    def goes_on(self):
        """Waits for two more steps, so that at least one began after this call."""
        begin = self.version()
        until(lambda: self.version() >= begin + 2, what=f"version {begin + 2}")
        assert not any(a.ready() for a in self.ranks), "a rank has ended"

    def end(self):
        """Ends the training: (last version, how often ranks repeated a step)."""
        self.ranks[0].stop()  # no step ends without it
        last = self.version() + 2
        self.end_at(last)
        self.ranks[0].go_on()
        replies = finish_all(self.ranks)
        assert {r["version"] for r in replies} == {last}, replies
        return last, sum(r["aborts"] for r in replies)


def ended_with(placement, steps=STEPS):
    """Checksums of the planes of an undisturbed job."""
    key = tuple(placement), steps
    if key not in known:
        with Cluster(max(placement) + 1) as c:
            train(c.ranks("job", LAYOUT, placement, **NEEDS), steps)
            known[key] = c.checksum("job")["planes"]
    return known[key]


def as_undisturbed(c, placement, steps=STEPS):
    told = c.checksum("job")
    assert told["version"] == steps, told
    assert told.get("mirrors", told["planes"]) == told["planes"], told
    assert told["planes"] == ended_with(placement, steps), f"{told['planes']} is not {ended_with(placement, steps)}"


def kept(rank, version):
    return f"rank {rank} stands at {version} "


def heir_of(c, placement, rank, incarnation=1, **more):
    """A successor of the rank, and the reply to its attach."""
    a = c.rank("job", LAYOUT, placement, rank, incarnation=incarnation, **{**NEEDS, **more})
    finish = [a.good(a.finish(), "attach") for _ in range(3)]
    return a, finish[-1]


def push(actor, group, micro_batch, step):
    """Pushes what the actor's "train" pushes in this step."""
    actor.do("grad", group=group, seed=SEED, step=step, micro_batch=micro_batch)
    actor.do("push", group=group, last=micro_batch + 1 == MICRO_BATCHES)


def settle(actor):
    """Returns when the daemon has the actor's pushes: requests are served in order."""
    actor.do("query", what="ping")


# ---- how far ranks are in a step -----------------------------------------------------------------

EVERY = [(g, m) for m in range(MICRO_BATCHES) for g in range(GROUPS)]
# What a rank does until each moment: fetch; write a gradient without pushing it; push (group, micro-batch).
MOMENTS = {"idle": [], "forward": ["fetch"], "backward": ["fetch", (3, 0), (2, 0), "write"],
           "first": EVERY[:GROUPS], "second": [*EVERY[:GROUPS], (3, 1)], "pushed": EVERY}


def go_to(ranks, moment, step):
    """Takes all ranks to this moment of a step; how many micro-batches of each group each has pushed by then."""
    accepted = [0] * GROUPS
    for deed in MOMENTS[moment]:
        for a in ranks:
            if deed == "fetch":
                a.do("fetch", group=0)
                a.do("prefetch", group=1)
            elif deed == "write":
                a.do("grad", group=1, seed=99)
            else:
                push(a, *deed, step)
        if isinstance(deed, tuple):
            accepted[deed[0]] += 1
    for a in ranks:
        settle(a)
    return accepted


def start_step(actor, rank, version):
    """Calls zero_step() as the actor's "train" does, with a shorter blob."""
    actor.start("step", sets=SETS, clip=TRAIN["clip"], blob=kept(rank, version))


def all_step(ranks, version):
    for rank, a in enumerate(ranks):
        start_step(a, rank, version)
    assert {r["version"] for r in finish_all(ranks)} == {version}


# ---- daemons ----------------------------------------------------------------------------------------

def victims(c, who):
    coordinator = c.coordinator("job")
    return [d for d in c.daemons if who == "both" or (d is coordinator) == (who == "coordinator")]


def all_aborted(ranks, version):
    """Each rank gets EABORTED once, and all attach again together."""
    told = set()
    for a in ranks:
        if a.asked:
            continue
        # with a gradient that was written and not pushed, zero_norm() fails before it asks the daemon
        if a.ask("push", group=1)["status"] == "EABORTED":
            told.add(a)
        else:
            a.start("norm")
    for a in ranks:
        if a not in told:
            expect(a.finish(), "EABORTED")
        assert a.do("version")["version"] == version


def lose(daemon, crash=None):
    """Kills the daemon and deletes its states, as if an empty machine had replaced its own."""
    daemon.kill()
    shutil.rmtree(daemon.options["state_dir"])
    daemon.start(crash=crash)


def is_voter(daemon):
    """A daemon that has just heard of other owners starts again, and answers nothing meanwhile."""
    r = daemon.ctl_run("--json", "members")
    return r.returncode == 0 and json.loads(r.stdout)["voter"]


def can_vote(c):
    for d in c.daemons:
        until(lambda d=d: is_voter(d), what=f"the vote of {d.name}")


def owners(daemon):
    """The job's owners as the daemon lists them; None while it starts anew."""
    r = daemon.ctl_run("--json", "jobs")
    jobs = json.loads(r.stdout)["jobs"] if r.returncode == 0 else []
    return next((job["owners"] for job in jobs if job["job"] == "job"), None)


def lies_on(c, names, nodes=None):
    """Waits until the named nodes, and no others, have states of the job."""
    for d in nodes or c.daemons:
        until(lambda d=d: owners(d) == names, what=f"{names} as owners on {d.name}")
    for d in c.daemons:
        if d.alive():
            until(lambda d=d: bool([f for f in d.state_files() if f.endswith(".state")]) == (d.name in names),
                  what=f"the state files of {d.name}")
            until(lambda d=d: d.ctl_run("checksum", "job").returncode == 0, what=f"all nodes' answers to {d.name}")
