"""A network namespace for each daemon, joined by a bridge in one more namespace; links can be cut.

The namespaces have no names and end with the processes that hold them, which end with this process.
Needs root, and a kernel that allows namespaces.
"""
import os
import subprocess
import time

from cluster import spawn


def run(*command):
    subprocess.run(command, check=True, capture_output=True, timeout=20)


def possible():
    try:
        Network(1).end()
        return True
    except (OSError, subprocess.SubprocessError, AssertionError):
        return False


class Network:
    def __init__(self, nodes):
        self.holders, self.cuts = [], {}
        try:
            for _ in range(nodes + 1):
                self.holders.append(spawn(["unshare", "--net", "sleep", "infinity"], stdin=subprocess.DEVNULL,
                                          stderr=subprocess.DEVNULL))
            for holder in self.holders:
                self.entered(holder)
            self.inside(nodes, "ip", "link", "add", "hub", "type", "bridge")
            self.inside(nodes, "ip", "link", "set", "hub", "up")
            for i in range(nodes):
                self.join(i)
        except BaseException:
            self.end()
            raise

    @staticmethod
    def entered(holder):
        """Waits until the process is in a namespace of its own."""
        own, end = os.readlink("/proc/self/ns/net"), time.monotonic() + 10
        while os.readlink(f"/proc/{holder.pid}/ns/net") == own:
            assert holder.poll() is None and time.monotonic() < end, "no network namespace can be made"
            time.sleep(0.01)

    def join(self, i):
        hub = len(self.holders) - 1
        self.inside(hub, "ip", "link", "add", f"port{i}", "type", "veth", "peer", "name", "wire", "netns",
                    str(self.holders[i].pid))
        self.inside(hub, "ip", "link", "set", f"port{i}", "master", "hub", "up")
        self.inside(i, "ip", "address", "add", f"{self.address(i)}/24", "dev", "wire")
        self.inside(i, "ip", "link", "set", "wire", "up")
        self.inside(i, "ip", "link", "set", "lo", "up")

    def wrapper(self, i):
        return ["nsenter", f"--net=/proc/{self.holders[i].pid}/ns/net"]

    def inside(self, i, *command):
        run(*self.wrapper(i), *command)

    @staticmethod
    def address(i):
        return f"10.0.0.{i + 1}"

    def cut(self, i, far=False):
        """Cuts the node off; far: at the bridge, so that the node's own interface stays up."""
        self.cuts[i] = (len(self.holders) - 1, f"port{i}") if far else (i, "wire")
        place, device = self.cuts[i]
        self.inside(place, "ip", "link", "set", device, "down")

    def mend(self, i):
        place, device = self.cuts.pop(i)
        self.inside(place, "ip", "link", "set", device, "up")

    def end(self):
        for holder in self.holders:
            holder.kill()
            holder.wait()
