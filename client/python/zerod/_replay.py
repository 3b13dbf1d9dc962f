"""Repeats a step, and goes on in another process, for zerod.transformers and zerod.lightning.

Rule: the random states are those of torch's CPU generator, Python's random and NumPy's global generator.  With a
model on a GPU the state of that GPU's generator is the fourth.  They are packed without loss into few bytes: a rank
keeps at most 8 kB with a step, its buffers included.
"""
from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
import torch

import zerod

from .torch.attempt import KEPT_MAX
from .torch.place import Gpu, Host
from .torch.sharded import Sharded
from .torch.steps import may_repeat

WORDS = 624  # of a Mersenne twister
PYTHON = struct.Struct(f"<{WORDS + 1}I")
LENGTHS = struct.Struct("<5I")  # of the parts of the kept bytes


class RandomStates(NamedTuple):
    """The states of all generators of this process.

    device: the state of the GPU's generator; None if the model is in host memory.
    """
    torch: torch.Tensor
    python: tuple
    numpy: tuple
    device: torch.Tensor | None

    @classmethod
    def now(cls, place: Host | Gpu) -> "RandomStates":
        """Returns the states now."""
        return cls(torch.get_rng_state(), random.getstate(), numpy.random.get_state(),
                   place.random_state())

    def restore(self, place: Host | Gpu) -> None:
        """Sets the states, and the device's if there was one."""
        torch.set_rng_state(self.torch)
        random.setstate(self.python)
        numpy.random.set_state(self.numpy)
        if self.device is not None:
            place.restore_random_state(self.device)


class Steps:
    """The current step, with the calls made in it, which are repeated after an abort.

    version: the job's version when the step began.  before_repeat: called before the step's calls are repeated.
    """

    def __init__(self, sharded: Sharded, before_repeat: Callable[[], None] = lambda: None):
        self.sharded, self.before_repeat = sharded, before_repeat
        self._done: list[Callable[[], Any]] = []
        self.version = sharded.version

    def do(self, call: Callable[[], Any], ends: bool = False) -> Any:
        """Makes a call and returns its result.  After an abort it repeats the step's calls, and then this call, with
        the same random numbers.  It returns None if the step was committed after all.  ends: the call ends the
        step."""
        if not self._done:
            self.version = self.sharded.version
        states, keep = RandomStates.now(self.sharded.place), self.sharded.gradients.keep

        def again() -> Any:
            states.restore(self.sharded.place)
            before, self.sharded.gradients.keep = self.sharded.gradients.keep, keep
            try:
                return call()
            finally:
                self.sharded.gradients.keep = before

        result = self._until_done(again)
        if ends:
            self._done.clear()
        else:
            self._done.append(again)
        return result

    def _until_done(self, call: Callable[[], Any]) -> Any:
        aborted = False
        while True:
            try:
                for earlier in self._done if aborted else ():
                    earlier()
                return call()
            except zerod.Aborted as abort:
                if not may_repeat(self.sharded, abort):
                    raise
                if self.sharded.version != self.version:
                    return None
                aborted = True
                self.before_repeat()


# ---- the bytes kept with a step -------------------------------------------------------


def _seeded(seed: int) -> tuple[tuple, numpy.ndarray]:
    """Returns the states of Python's generator and of NumPy's right after their seeding."""
    return random.Random(seed).getstate()[1], numpy.random.RandomState(seed).get_state(legacy=False)["state"]["key"]


def pack(position: dict[str, Any], states: RandomStates, seed: int = 0) -> bytes:
    """Packs a position, as JSON, and random states, for :func:`unpack`.  seed: a state of Python's or NumPy's
    generator that is still as after this seed takes no bytes."""
    words = states.torch.numpy().view("<u4").reshape(-1, 2)
    name, keys, *rest = states.numpy
    python, fresh = _seeded(seed)
    about = {**position, "python": [states.python[0], states.python[2]], "numpy": [name, *rest], "seed": seed}
    parts = [json.dumps(about).encode(), b"" if states.python[1] == python else PYTHON.pack(*states.python[1]),
             (b"" if (keys == fresh).all() else keys.astype("<u4").tobytes()) + words[:, 0].tobytes(),
             zlib.compress(words[:, 1].tobytes()),  # mostly zeros
             b"" if states.device is None else states.device.numpy().tobytes()]
    return LENGTHS.pack(*map(len, parts)) + b"".join(parts)


def fits(blob: bytes) -> bool:
    """Returns True if a rank can keep that many bytes."""
    return len(blob) <= KEPT_MAX


def unpack(blob: bytes) -> tuple[dict[str, Any], RandomStates] | None:
    """The inverse of :func:`pack`; None if pack() did not make the bytes."""
    try:
        ends = list(LENGTHS.unpack_from(blob))
        begin, parts = LENGTHS.size, []
        for length in ends:
            parts.append(blob[begin:begin + length])
            begin += length
        about = json.loads(parts[0])
        python, keys = _seeded(about.pop("seed", 0))
        high = numpy.frombuffer(zlib.decompress(parts[3]), "<u4")
        low = numpy.frombuffer(parts[2], "<u4")[-len(high):]
        if len(parts[2]) > low.nbytes:
            keys = numpy.frombuffer(parts[2], "<u4")[:WORDS].astype(numpy.uint32)
        state = numpy.stack([low, high], axis=1).reshape(-1).view(numpy.uint8)
        device = numpy.frombuffer(parts[4], numpy.uint8)
        version, gauss = about.pop("python")
        name, *rest = about.pop("numpy")
        python = PYTHON.unpack(parts[1]) if parts[1] else python
        return about, RandomStates(torch.from_numpy(state.copy()), (version, python, gauss), (name, keys, *rest),
                                   torch.from_numpy(device.copy()) if len(device) else None)
    except (struct.error, zlib.error, ValueError, KeyError, TypeError):
        return None
