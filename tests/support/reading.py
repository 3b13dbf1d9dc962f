"""Readers of a job in tests: what they journal, against what the ranks fetched."""
import glob
import os

from cluster import SETS, finish_all, small_layout, until

LAYOUT = small_layout(blocks=2, width=120)
NEEDS = {"hold": 2, "push": 2}
TRAIN = {"sets": SETS, "clip": 0.5, "seed": 11}
FINE = [[1e-5, *SETS[0][1:]], [1e-5, *SETS[1][1:]]]  # most bf16 values stay in a step, the others change by one ulp


def reader(c, node=0, job="job", **fields):
    """An observer that is attached.  A node without ranks hears of the job a moment later."""
    until(lambda: c[node].job(job), what=f"job {job} on node {node}")
    a = c.actor(node)
    a.do("connect", job=job, rank=-1, **fields)
    a.do("attach", observer=True)
    return a


def truth(path):
    """{version: hash} of a journal of "train"; all ranks have fetched the same."""
    seen = {}
    with open(path, encoding="ascii") as f:
        for line in f:
            _, version, digest, _ = line.split()
            assert seen.setdefault(int(version), digest) == digest, f"ranks differ at version {version}"
    return seen


def read(path):
    """[(version, hash)] of a journal of "read"."""
    with open(path, encoding="ascii") as f:
        return [(int(line.split()[0]), line.split()[1]) for line in f]


class Run:
    """Ranks that train up to a version, and readers that journal what they see."""

    def __init__(self, c, ranks, readers, until_version, **fields):
        self.c, self.ranks, self.readers = c, ranks, readers
        self.until = f"{c.directory}/until"
        self.journal = f"{c.directory}/journal"
        self.aim(until_version)
        self.fields = fields
        for a in ranks:
            self.train(a)
        self.begin(readers)

    def train(self, a):
        a.start("train", until=self.until, journal=self.journal, patient=True, **{**TRAIN, **self.fields})

    def aim(self, version):
        with open(os.open(self.until, os.O_CREAT | os.O_WRONLY, 0o644), "w", encoding="ascii") as f:
            f.write(f"{version:020}")  # a single write of fixed length: ranks read the old number or the new one

    def aim_ahead(self, steps):
        """Ends the training some steps from now."""
        for a in self.ranks:
            a.stop()  # none may be past the version that all stop at
        self.aim(self.c[0].job("job")["version"] + steps)
        for a in self.ranks:
            a.go_on()

    def begin(self, readers):
        for a in readers:
            a.start("read", until=self.until, journal=f"{self.c.directory}/read{a.pid}")

    def end(self):
        """Checks all that was read; how many versions each reader has read."""
        finish_all(self.ranks)
        with open(self.until, encoding="ascii") as f:
            last = int(f.read())
        for a in self.readers:
            assert a.good(a.finish(), "read")["version"] == last
        known, counts = truth(self.journal), []
        for path in glob.glob(f"{self.c.directory}/read*"):  # also of readers that were killed
            seen = read(path)
            versions = [v for v, _ in seen]
            assert versions == sorted(set(versions)), versions
            wrong = [v for v, digest in seen if v in known and known[v] != digest]
            assert not wrong, f"versions {wrong} are not what the ranks fetched"
            counts.append(len(seen))
        return counts


def forwarded(daemon):
    return daemon.job("job")["gather"]["forwarded"]
