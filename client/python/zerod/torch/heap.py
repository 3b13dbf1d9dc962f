"""Memory that glibc keeps of freed tensors, and gives back here.

Activations live from forward to backward, gradients for a moment in between, and small records for longer.  So what a
step frees lies in pieces, the next step takes other memory too, and after five steps a trainer whose heap had 135 MiB in
use at most held 370 to 450.

Rule: where a unit's forward or backward begins, free memory is given back if the process has more than SLACK times what
it needed at most; what it needs is what is left then.  Steps that fit into that take nothing from the system, and give
nothing back.  At stage 3, which is for memory, the process has no more than it needed at most, and gives free memory
back after each step: the next step takes it anew, at 0.5 s a GiB.  A model on a GPU has its activations there, and no
use for any of this.
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
    """lean: of stage 3.  needed: the most bytes that were left after free ones were given back."""

    def __init__(self, lean: bool) -> None:
        self.needed, self.lean = 0, lean
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)  # of the process that opens it
        weakref.finalize(self, os.close, self._statm)

    def anonymous(self) -> int:
        """Bytes of this process's resident memory that are no file's."""
        _size, resident, shared, *_ = os.pread(self._statm, 256, 0).split()
        return (int(resident) - int(shared)) * PAGE

    def look(self) -> None:
        """Gives free memory back if there is too much of it."""
        if _trim is not None and self.anonymous() > self.needed * (1 if self.lean else SLACK):
            _trim(0)
            self.needed = max(self.needed, self.anonymous())

    def after_step(self) -> None:
        """Gives free memory back at stage 3."""
        if _trim is not None and self.lean:
            _trim(0)


def share_one_arena() -> None:
    """Has threads that begin from now on allocate where the first one does: of an arena of their own malloc_trim()
    leaves the end as it is, which is most of it."""
    if _trim is not None:
        _libc.mallopt(M_ARENA_MAX, 1)
