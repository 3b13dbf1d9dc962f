"""Memory of the processes of a system.

Private memory is each process' anonymous pages.  Shared memory is each tmpfs file and memfd that
any of them holds, counted once, by its allocated blocks, whoever maps it.  Pages of programs and
libraries are left out of the sum: they are the same for all systems and the machine has them once.
"""
import os
from typing import NamedTuple

MIB = 1 << 20


class Imported(NamedTuple):
    """Bytes in all ranks after the imports: anonymous pages, and private ones."""
    anonymous: int
    private: int


def status_kib(pid, key):
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as status:
        for line in status:
            if line.startswith(key + ":"):
                return int(line.split()[1])
    return 0


def anonymous(pid):
    """Bytes of anonymous pages."""
    return status_kib(pid, "RssAnon") * 1024


def private(pid):
    """Bytes of pages that no other process has mapped, of files too."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as rollup:
        fields = [line.split() for line in rollup]
    return sum(int(f[1]) for f in fields if f[0] in ("Private_Clean:", "Private_Dirty:")) * 1024


def reset_peak(pid):
    """Makes VmHWM begin anew at what is resident now."""
    with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def is_shared(target):
    return target.startswith(("/memfd:", "/dev/shm/"))


def descriptors(pid):
    """What the process has open, as paths that can be looked at."""
    directory = f"/proc/{pid}/fd"
    for name in os.listdir(directory):
        path = f"{directory}/{name}"
        try:
            if is_shared(os.readlink(path)):
                yield path
        except OSError:
            continue  # closed meanwhile


def mappings(pid):
    """What it has mapped, also with no descriptor left; only root may look."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and is_shared(fields[5]):
                low, high = (part.lstrip("0") or "0" for part in fields[0].split("-"))
                yield f"/proc/{pid}/map_files/{low}-{high}"


def files_under(directory):
    for place, _, names in os.walk(directory):
        for name in names:
            yield os.path.join(place, name)


def shared_bytes(pids, directory):
    """Bytes of all shared memory that the processes hold, and of the files under `directory`."""
    sizes = {}
    sources = [*map(descriptors, pids), *map(mappings, pids), files_under(directory)]
    for source in sources:
        for path in source:
            try:
                found = os.stat(path)
            except OSError:
                continue  # gone meanwhile, or not for us to see
            sizes[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(sizes.values())


class Watch:
    """Peaks from its making on; look() takes a sample.

    imported: what torch itself takes in all ranks.
    """

    def __init__(self, ranks, daemons, directory, imported):
        self.imported = imported
        self.ranks, self.daemons, self.directory = ranks, daemons, directory
        self.total = self.shared = self.private = self.own = 0
        for pid in ranks + daemons:
            reset_peak(pid)

    def look(self):
        pids = self.ranks + self.daemons
        sizes = sum(map(anonymous, pids)), shared_bytes(pids, self.directory)
        self.total = max(self.total, sum(sizes))
        self.private, self.shared = max(self.private, sizes[0]), max(self.shared, sizes[1])
        self.own = max(self.own, self.own_now())

    def own_now(self):
        """Private bytes of a rank above its imports: the mean over ranks."""
        return (sum(map(private, self.ranks)) - self.imported.private) / len(self.ranks)

    def result(self):
        """MiB: the largest rank's and daemon's resident peak with all it maps, what is a rank's own, at most and now,
        and the sums."""

        def mib(size):
            return round(size / MIB, 1)

        def peak(pids):
            return mib(max((status_kib(p, "VmHWM") * 1024 for p in pids), default=0))

        return {"rank_peak_mib": peak(self.ranks), "daemon_peak_mib": peak(self.daemons),
                "rank_own_mib": mib(self.own), "rank_own_after_mib": mib(self.own_now()),
                "private_mib": mib(self.private), "shared_mib": mib(self.shared),
                "total_mib": mib(self.total), "beyond_torch_mib": mib(self.total - self.imported.anonymous)}
