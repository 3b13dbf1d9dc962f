"""A limit on the memory of what this process starts.  As root alone."""
import contextlib
import os
import signal

from cluster import until

END_S = 30


def available():
    with open("/proc/meminfo", encoding="ascii") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("MemAvailable:"))


class Limit:
    """While this is entered, this process and what it starts share `size` bytes, page cache and tmpfs included.

    It is a cgroup's, v1 or v2, without swap.  A page counts where it is first touched.  What still runs at the end is
    killed: a compiler, when who started it was.
    """

    def __init__(self, size):
        self.size = size

    def __enter__(self):
        with open("/proc/self/cgroup", encoding="ascii") as f:
            of = dict(line.rstrip("\n").split(":", 2)[1:] for line in f)
        v1 = "memory" in of
        self.home = f"/sys/fs/cgroup/memory{of['memory']}" if v1 else f"/sys/fs/cgroup{of['']}"
        # v2: a group that has processes has no groups with limits below it, unless it is the root
        self.group = f"{self.home if v1 else '/sys/fs/cgroup'}/zerod-limit-{os.getpid()}"
        self.peak = f"{self.group}/memory.{'max_usage_in_bytes' if v1 else 'peak'}"
        self.events = f"{self.group}/memory.{'oom_control' if v1 else 'events'}"
        os.mkdir(self.group)
        try:
            self.limit(v1)
        except OSError:
            os.rmdir(self.group)
            raise
        return self

    def limit(self, v1):
        self.write("memory.limit_in_bytes" if v1 else "memory.max", self.size)
        with contextlib.suppress(FileNotFoundError):  # a kernel without swap
            self.write("memory.memsw.limit_in_bytes" if v1 else "memory.swap.max", self.size if v1 else 0)
        self.write("cgroup.procs", os.getpid())

    def write(self, name, value):
        with open(f"{self.group}/{name}", "w", encoding="ascii") as f:
            f.write(str(value))

    def most(self):
        with open(self.peak, encoding="ascii") as f:
            return int(f.read())

    def killed(self):
        """Whether a process was ended for it."""
        with open(self.events, encoding="ascii") as f:
            return any(int(line.split()[1]) > 0 for line in f if line.startswith("oom_kill "))

    def __exit__(self, *_):
        with open(f"{self.home}/cgroup.procs", "w", encoding="ascii") as f:
            f.write(str(os.getpid()))
        until(self.gone, END_S, f"the end of what is in {self.group}")

    def gone(self):
        with open(f"{self.group}/cgroup.procs", encoding="ascii") as f:
            for pid in f:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        with contextlib.suppress(OSError):  # busy
            os.rmdir(self.group)
        return not os.path.exists(self.group)
