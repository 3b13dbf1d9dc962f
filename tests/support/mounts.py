"""File systems that only a test and its child processes see."""
import contextlib
import os
import subprocess

from cluster import libc
from harness import Skip

CLONE_NEWNS = 0x20000


def private_mounts():
    """From here on only this process and its children see what it mounts, and the mounts end with them."""
    if libc.unshare(CLONE_NEWNS) or subprocess.run(["mount", "--make-rprivate", "/"], check=False).returncode:
        raise Skip("no mount namespaces here")


def small_disk(directory, size):
    r = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", directory], check=False,
                       capture_output=True, text=True)
    if r.returncode:
        raise Skip(f"no tmpfs can be mounted: {r.stderr}")


@contextlib.contextmanager
def small_disks(directories, size):
    """Creates the directories; each has a file system of its own until the end of the block."""
    try:
        for directory in directories:
            os.mkdir(directory)
            small_disk(directory, size)
        yield directories
    finally:
        for directory in directories:
            subprocess.run(["umount", "-l", directory], check=False, capture_output=True)
