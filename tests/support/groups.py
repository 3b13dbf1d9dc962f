"""A control group with a limit of memory, for daemons."""
import os

from harness import Skip

MOUNTS = {1: "/sys/fs/cgroup/memory", 2: "/sys/fs/cgroup"}
USED = {1: "memory.usage_in_bytes", 2: "memory.current"}
LIMIT = {1: "memory.limit_in_bytes", 2: "memory.max"}


def own():
    """(version, directory) of this process' group."""
    with open("/proc/self/cgroup", encoding="utf-8") as f:
        for line in f:
            number, controllers, path = line.rstrip("\n").split(":", 2)
            version = 1 if "memory" in controllers.split(",") else 2 if number == "0" else 0
            if version and os.path.exists(f"{MOUNTS[version]}{path}/cgroup.procs") and (
                    version == 1 or os.path.exists(f"{MOUNTS[2]}/cgroup.controllers")):
                return version, MOUNTS[version] + path.rstrip("/")
    raise Skip("no hierarchy of control groups limits memory here")


class Group:
    """A group below this process' own, until the block ends; its processes have ended by then."""

    def __enter__(self):
        self.version, parent = own()
        self.path = f"{parent}/zerod-test-{os.getpid()}"
        try:
            os.mkdir(self.path)
        except OSError as why:
            raise Skip(f"no control group can be made here: {why}") from why
        if not os.path.exists(f"{self.path}/{LIMIT[self.version]}"):
            os.rmdir(self.path)
            raise Skip("the parent's control group does not pass memory on")
        return self

    def __exit__(self, *_):
        os.rmdir(self.path)

    def used(self):
        with open(f"{self.path}/{USED[self.version]}", encoding="ascii") as f:
            return int(f.read())

    def limit(self, size):
        self.write(LIMIT[self.version], size)

    def add(self, pid):
        self.write("cgroup.procs", pid)

    def write(self, name, value):
        with open(f"{self.path}/{name}", "w", encoding="ascii") as f:
            f.write(str(value))
