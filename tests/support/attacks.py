"""Processes of another user that attack a daemon."""
import os
import resource
import signal
import struct
import traceback
from contextlib import contextmanager
from mmap import mmap

from cluster import SLOW, die_with_parent, until
from harness import Skip

ATTACKER = 12345


class Attack:
    """A process of another user, which runs function(attack); attack[0..3] are counters that both sides see.
    group: it leads a group of processes, all of them nice."""

    def __init__(self, function, *arguments, uid=ATTACKER, group=False):
        if os.getuid():
            raise Skip("another user needs root")
        self.shared = mmap(-1, 4096)
        parent = os.getpid()
        self.group = group
        self.pid = os.fork()
        if self.pid == 0:
            try:
                die_with_parent()
                if os.getppid() == parent:
                    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
                    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
                    if group:
                        os.setpgid(0, 0)
                        os.nice(10)
                    os.setgid(uid)
                    os.setuid(uid)
                    function(self, *arguments)
            except BaseException:  # pylint: disable=broad-except
                traceback.print_exc()
            finally:
                os._exit(0)

    def __getitem__(self, i):
        return struct.unpack_from("<q", self.shared, 8 * i)[0]

    def __setitem__(self, i, value):
        struct.pack_into("<q", self.shared, 8 * i, value)

    def done(self):
        """The attacking process calls this at the end of its work; its connections stay open."""
        self[3] = 1
        signal.pause()

    def wait(self):
        until(lambda: self[3], 240 * SLOW, what="the attack")

    def end(self):
        if self.group:
            os.killpg(self.pid, signal.SIGKILL)
        else:
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@contextmanager
def attack_by(function, *arguments, **options):
    a = Attack(function, *arguments, **options)
    try:
        yield a
    finally:
        a.end()
