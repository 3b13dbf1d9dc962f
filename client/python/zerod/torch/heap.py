"""Memory that glibc keeps of freed tensors, and gives back here.

Activations live from forward to backward, gradients for a moment in between, and small records for longer.  So what a
step frees lies in pieces.  glibc finds no room for an aligned block in a piece of just its size (before 2.38), the next
step takes other memory, and a trainer has two to three times what it uses.

Rule: where a unit's forward or backward begins, free memory is given back if the process has more than SLACK of what it needed at most;
what it needs is what is left then.  Steps that fit into that take nothing from the system, and give nothing back.
"""
from __future__ import annotations

import ctypes
import os
import weakref

SLACK = 1.03
M_ARENA_MAX = -8  # malloc.h
PAGE = os.sysconf("SC_PAGESIZE")

_libc = ctypes.CDLL(None)
_trim = getattr(_libc, "malloc_trim", None)  # glibc's alone, as mallopt()


class Heap:
    """needed: the most bytes that were left after free ones were given back."""

    def __init__(self) -> None:
        self.needed = 0
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)  # of the process that opens it
        weakref.finalize(self, os.close, self._statm)

    def anonymous(self) -> int:
        """Bytes of this process's resident memory that are no file's."""
        _size, resident, shared, *_ = os.pread(self._statm, 256, 0).split()
        return (int(resident) - int(shared)) * PAGE

    def look(self) -> None:
        """Gives free memory back if there is too much of it."""
        if _trim is not None and self.anonymous() > self.needed * SLACK:
            _trim(0)
            self.needed = max(self.needed, self.anonymous())


def share_one_arena() -> None:
    """Has threads that begin from now on allocate where the first one does: of an arena of their own malloc_trim()
    leaves the end as it is, which is most of it."""
    if _trim is not None:
        _libc.mallopt(M_ARENA_MAX, 1)
