"""Buffers, which are each rank's own: alike at first, and kept with each step.

Rules
- Ranks begin with the same values, or shard() names a buffer that differs.  Values that processors round differently
  count as the same.
- Buffers of ``state_dict()`` are part of the bytes that the service keeps for the rank with a step.  So a successor of
  this process finds those of the step before.  The user's own bytes come first, then small modules.
- A process that repeats a step has copies of its own, of all buffers, as far as they fit.
- The buffers of one module belong together: all are kept, or none.
"""
from __future__ import annotations

import functools
import logging
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

import zerod

from .files import memory_of, pieces

if TYPE_CHECKING:
    from .sharded import Sharded

log = logging.getLogger("zerod")

HEAD = struct.Struct("<II")  # how many bytes follow; a checksum of the names, types and shapes of the buffers
PARTS, LEVELS = 32, 3  # parts that a reduction compares; reductions that find one of 32,768 buffers
ALIKE = 1e-6  # the difference of sketches that count as the same
NAMED = 5  # buffers in a warning
COPIED = 64 << 20  # most bytes that a step copies; frozen weights may be buffers, too


def _is_plain(buffer: torch.Tensor) -> bool:
    plain = type(buffer) is torch.Tensor  # pylint: disable=unidiomatic-typecheck
    return plain and buffer.layout is torch.strided and not buffer.is_quantized and not buffer.is_meta


def _bytes(buffer: torch.Tensor) -> torch.Tensor:
    """Returns a copy as bytes, also of slices, expanded tensors and conjugates, which have no view as bytes."""
    return buffer.detach().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


class Found(NamedTuple):
    """A buffer in its place, the dict of its module; name: as in ``state_dict()``."""

    name: str
    there: dict[str, torch.Tensor | None]
    key: str
    buffer: torch.Tensor

    @torch.no_grad()
    def put_back(self, values: torch.Tensor) -> None:
        """Puts this tensor back in its place, with the values; or the values themselves, if it cannot be written.

        Equal values are not written: the tensor may be mapped read-only."""
        values = values.to(self.buffer.device)
        self.there[self.key] = self.buffer
        if torch.equal(_bytes(self.buffer), _bytes(values)):
            return
        try:
            with torch.inference_mode():  # a tensor made in inference mode can only be written in it
                self.buffer.copy_(values)
        except RuntimeError:  # an expanded tensor, for example
            self.there[self.key] = values


# ---- the same at first --------------------------------------------------------------------


def _checksum(flat: torch.Tensor) -> float:
    number = 0
    for first, count in pieces(flat.numel(), flat.element_size()):
        piece = _bytes(flat[first:first + count]).cpu()
        number = zlib.crc32(memory_of(piece), number)
    return number / 2 ** 32


def _sketch(name: str, buffer: torch.Tensor) -> float:
    """Returns a number that differs by more than ALIKE for different values.  For floating-point values it differs by
    less if processors round differently."""
    shape = zlib.crc32(f"{name} {buffer.dtype} {tuple(buffer.shape)}".encode()) / 2 ** 32
    flat = buffer.detach().resolve_conj().reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    if not flat.is_floating_point():
        return shape + _checksum(flat)
    weighted = total = 0.0
    for first, count in pieces(flat.numel(), 8):
        values = torch.nan_to_num(flat[first:first + count].to("cpu", torch.float64), 3.0, 2.0, -2.0)
        weights = torch.arange(first, first + count, dtype=torch.float64).mul_(0.6180339887).frac_().add_(0.5)
        weighted += float(values @ weights)
        total += float(values.abs().sum())
    number = weighted / total + math.log(total) if total else -1000.0
    return shape + (number if math.isfinite(number) else _checksum(flat))


def check_of_buffers(sharded: "Sharded") -> Callable[[], None]:
    """Returns a function that all ranks call in each attempt to write first values.  LayoutMismatch names a buffer that
    differs.

    The ranks of a divided model are not compared: each has buffers of its part."""
    if sharded.client.world_size == 1 or sharded.parallel:
        return lambda: None
    sketches = {name: _sketch(name, b) for name, b in sharded.model.named_buffers() if _is_plain(b)}
    return functools.partial(_check_alike, sharded.client, sketches)


def _check_alike(client: zerod.Client, found: dict[str, float]) -> None:
    for level in range(LEVELS):
        parts: list[dict[str, float]] = [{} for _ in range(PARTS)]
        for name, number in found.items():
            parts[zlib.crc32(f"{level} {name}".encode()) % PARTS][name] = number
        sums = [sum(part.values()) for part in parts]
        most = client.all_reduce(f"buffers at shard(), {level}", [*sums, *(-s for s in sums)], "max")
        odd = [part for part, high, low in zip(parts, most, most[PARTS:]) if high + low > ALIKE]
        if not odd and not level:
            return
        found = odd[0] if odd else found
    client.finish(keep=False)
    client.close()
    named = " or ".join(f"'{n}'" for n in found) or "that this rank does not have"
    raise zerod.LayoutMismatch(
        f"ranks have different values of buffer {named}: make the model alike on all ranks, with torch.manual_seed() before "
        "it. Set a buffer that differs by rank after shard(), if model.sharded.steps_made is 0")


# ---- kept with a step ---------------------------------------------------------------------


def _which(chosen: list[Found]) -> int:
    return zlib.crc32(repr([(f.name, f.buffer.dtype, tuple(f.buffer.shape)) for f in chosen]).encode())


def _size(found: Iterable[Found]) -> int:
    return sum(f.buffer.numel() * f.buffer.element_size() for f in found)  # sparse ones have no nbytes


def packed_size(data: bytes) -> int:
    """Returns how many bytes :meth:`Buffers.packed` has put in front of others."""
    return HEAD.size + HEAD.unpack_from(data)[0]


class Buffers:
    """The persistent buffers of a model.  room: the bytes that a rank keeps with a step.  talks: this rank warns."""

    def __init__(self, model: nn.Module, room: int, talks: bool):
        self._modules = sorted(((name, m) for name, m in model.named_modules() if m._buffers),
                               key=lambda of: _size(self._plain(*of)))
        self._talks, self._room = talks, room
        self._told: set[str] = set()  # names of buffers in a warning: they are not kept
        self._tell()

    @staticmethod
    def _of(prefix: str, module: nn.Module, saved: bool = True) -> Iterator[Found]:
        for key, buffer in module._buffers.items():
            if buffer is not None and not (saved and key in module._non_persistent_buffers_set):
                yield Found(f"{prefix}.{key}" if prefix else key, module._buffers, key, buffer)

    @classmethod
    def _plain(cls, prefix: str, module: nn.Module, saved: bool = True) -> list[Found]:
        return [f for f in cls._of(prefix, module, saved) if _is_plain(f.buffer)]

    def _chosen(self, room: int, saved: bool = True) -> list[Found]:
        """Returns the buffers of the modules whose buffers fit.  saved: only those of state_dict()."""
        chosen = []
        for prefix, module in self._modules:
            found = self._plain(prefix, module, saved)
            size = _size(found)
            if size <= room:
                chosen += found
                room -= size
        return chosen

    @torch.no_grad()
    def copies(self) -> list[tuple[Found, torch.Tensor]]:
        """Returns all buffers that fit, with copies of their values."""
        with torch.inference_mode(False):
            return [(f, f.buffer.clone()) for f in self._chosen(COPIED, saved=False)]

    def _tell(self) -> None:
        """Warns once of each buffer that has no room, or is no plain tensor."""
        kept = {f.name for f in self._chosen(self._room - HEAD.size)}
        left = {f.name: f for of in self._modules for f in self._of(*of) if f.name not in kept}
        if left.keys() - self._told and self._talks:
            more = f" and {len(left) - NAMED} more" if len(left) > NAMED else ""
            log.warning("buffers of %d bytes are not kept with a step, which has room for %d of plain dense tensors: '%s'%s. A trainer "
                        "that is started again begins with its script's values; a checkpoint has them for a new job",
                        _size(left.values()), self._room - HEAD.size, "', '".join(list(left)[:NAMED]), more)
        self._told |= left.keys()

    def packed(self, room: int) -> bytes:
        """Returns the buffers' values now, in at most `room` bytes; b"" if none fit."""
        if room < self._room:
            self._room = max(room, HEAD.size)
            self._tell()
        chosen = self._chosen(room - HEAD.size)
        if not chosen:
            return b""
        device = chosen[0].buffer.device
        whole = torch.cat([_bytes(f.buffer).to(device) for f in chosen]).cpu()
        return HEAD.pack(whole.numel(), _which(chosen)) + bytes(memory_of(whole))

    def restore(self, packed: bytes) -> None:
        """Gives buffers the values that :meth:`packed` found.  Warns if the model has other buffers."""
        if not packed:
            return
        chosen, which = self._chosen(len(packed) - HEAD.size), HEAD.unpack_from(packed)[1]
        if which != _which(chosen) or len(packed) != HEAD.size + _size(chosen):
            log.warning("the job has kept other buffers than this model has, which stay as they are")
            return
        begin = HEAD.size
        for found in chosen:
            b = found.buffer
            if b.nbytes:
                found.put_back(torch.frombuffer(bytearray(packed[begin:begin + b.nbytes]), dtype=b.dtype).view(b.shape))
            begin += b.nbytes
