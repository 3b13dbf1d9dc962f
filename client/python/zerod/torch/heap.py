"""Gives back the memory of freed tensors, which glibc keeps.

Activations live from forward to backward, gradients for a moment in between, and small records for longer.  So the
memory that a step frees lies in pieces, and the next step takes other memory, too.  After five steps a trainer whose
heap had 135 MiB in use at most held 370 to 450.

Rule: when a unit's forward or backward begins, free memory is given back if the process has more than SLACK times its
need.  Its need is the most memory that was left after free memory was given back.  Steps that fit into that take
nothing from the system, and give nothing back.  At stage 3, which is for memory, there is no slack, and each step ends
by giving free memory back.  The next step takes it anew, at 0.5 s a GiB.  A model on a GPU has its activations there,
and has no use for this.
"""
from __future__ import annotations

import ctypes
import os
import weakref

SLACK = 1.03
M_ARENA_MAX = -8  # malloc.h
PAGE = os.sysconf("SC_PAGESIZE")

_libc = ctypes.CDLL(None)
_trim = getattr(_libc, "malloc_trim", None)  # only glibc has it, and mallopt()


class Heap:
    """lean: at stage 3.  needed: the most bytes that were left after free memory was given back."""

    def __init__(self, lean: bool) -> None:
        self.needed, self.lean = 0, lean
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)  # of the process that opens it
        weakref.finalize(self, os.close, self._statm)

    def anonymous(self) -> int:
        """Returns the bytes of this process's resident memory that are no file's."""
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
    """Makes threads that begin from now on allocate from the first thread's arena.  malloc_trim() leaves the end of
    other arenas as it is, and that end is most of them."""
    if _trim is not None:
        _libc.mallopt(M_ARENA_MAX, 1)
