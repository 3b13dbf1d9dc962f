"""Checkpoints in safetensors files that are streamed: no model is ever in memory as a whole.

File format: https://huggingface.co/docs/safetensors: u64 length of the header, JSON header, data
without holes; names and numbering of several files as Hugging Face has them.

Rules: a file is written beside its place, synced and renamed, the index last; what is read is checked
whole (all headers, names, shapes, dtypes) before the first value is written to the service.
"""
from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import stat
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from . import optim
from . import sharded as core
from .plan import clean
from .state import PIECE, check_boundary, persistent_buffers, pieces
from .unit import ShardedParam

HEADER_MAX = 100_000_000
INDEX_SUFFIX = ".index.json"
MODEL_FILE, OPTIMIZER_FILE = "model.safetensors", "optimizer.safetensors"
SAVE_ID, PARAM_GROUPS = "zerod.save", "zerod.param_groups"
PLANES = ("exp_avg", "exp_avg_sq", "master")

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
}
CODES = {dtype: code for code, dtype in DTYPES.items()}
SIZES = {"KB": 10 ** 3, "MB": 10 ** 6, "GB": 10 ** 9, "TB": 10 ** 12,
         "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


class CheckpointError(ValueError):
    """A checkpoint cannot be read: broken, hostile, or not this model's.  Nothing was loaded."""


def _memory(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor; the tensor must outlive it."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * size).from_address(tensor.data_ptr())).cast("B")


# ---- writing -----------------------------------------------------------------------


@dataclass
class _Source:
    """One tensor of a file to be written; read() gives so many of its elements, flat."""
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[int, int], torch.Tensor]

    @property
    def elements(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def size(self) -> int:
        return self.elements * self.dtype.itemsize


def _of_plane(sharded: "core.Sharded", param: ShardedParam, plane: str, name: str,
              dtype: torch.dtype) -> _Source:
    return _Source(name, tuple(param.shape), dtype,
                   lambda first, count: sharded.read(param, plane, first, count).to(dtype))


def _of_tensor(name: str, tensor: torch.Tensor) -> _Source:
    flat = tensor.detach().cpu().contiguous().view(-1)
    return _Source(name, tuple(tensor.shape), tensor.dtype,
                   lambda first, count: flat[first:first + count])


def _header(sources: list[_Source], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for s in sources:
        header[s.name] = {"dtype": CODES[s.dtype], "shape": list(s.shape),
                          "data_offsets": [at, at + s.size]}
        at += s.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > HEADER_MAX:
        raise ValueError(f"a safetensors header of {len(text)} bytes is larger than the format "
                         f"allows ({HEADER_MAX}): use max_shard_size")
    return len(text).to_bytes(8, "little") + text


def _write(fd: int, data: memoryview | bytes) -> None:
    data = memoryview(data)
    while len(data):
        data = data[os.write(fd, data):]


def _write_file(path: str, sources: list[_Source], metadata: Mapping[str, str]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        _write(fd, _header(sources, metadata))
        for s in sources:
            for first, count in pieces(s.elements, s.dtype.itemsize):
                piece = s.read(first, count).contiguous()
                _write(fd, _memory(piece))
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_directory(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _bytes(size: int | str | None) -> int | None:
    """A size as Hugging Face writes it: bytes, or "5GB"."""
    if isinstance(size, str):
        match = re.fullmatch(r"(\d+)\s*([A-Za-z]+)", size.strip())
        if not match or match[2].upper() not in SIZES:
            raise ValueError(f"max_shard_size '{size}' is not a size such as '5GB'")
        size = int(match[1]) * SIZES[match[2].upper()]
    if size is not None and size <= 0:
        raise ValueError(f"max_shard_size {size} is not a number of bytes > 0")
    return size


def _split(sources: list[_Source], most: int | None) -> list[list[_Source]]:
    """Tensors of one file each, in order; a tensor larger than `most` has a file of its own."""
    files: list[list[_Source]] = [[]]
    used = 0
    for s in sources:
        if most is not None and files[-1] and used + s.size > most:
            files.append([])
            used = 0
        files[-1].append(s)
        used += s.size
    return files


def _file_names(path: str, count: int) -> list[str]:
    if count == 1:
        return [path]
    stem = path.removesuffix(".safetensors")
    return [f"{stem}-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]


def _stale(path: str, kept: set[str]) -> list[str]:
    """Files of an older save of the same name that was cut otherwise."""
    directory, base = os.path.split(path)
    stem = re.escape(base.removesuffix(".safetensors"))
    pattern = re.compile(rf"{stem}(-\d{{5}}-of-\d{{5}})?\.safetensors({re.escape(INDEX_SUFFIX)})?")
    return [os.path.join(directory, name) for name in os.listdir(directory or ".")
            if pattern.fullmatch(name) and os.path.join(directory, name) not in kept]


def _write_set(path: str, sources: list[_Source], most: int | None,
               metadata: Mapping[str, str]) -> None:
    """One file, or several and their index."""
    sources = sorted(sources, key=lambda s: -s.dtype.itemsize)  # all are aligned then
    files = _split(sources, most)
    names = _file_names(path, len(files))
    renames = []
    with contextlib.ExitStack() as undo:
        def temporary(name: str) -> str:
            made = os.path.join(os.path.dirname(name),
                                f".{os.path.basename(name)}.{uuid.uuid4().hex}.tmp")
            undo.callback(lambda: os.path.exists(made) and os.unlink(made))
            renames.append((made, name))
            return made

        for name, members in zip(names, files):
            _write_file(temporary(name), members, metadata)
        if len(files) > 1:
            _write_index(temporary(path + INDEX_SUFFIX), names, files)
        for made, name in renames:
            os.rename(made, name)
        for old in _stale(path, {name for _, name in renames}):
            os.unlink(old)
        _sync_directory(os.path.dirname(path) or ".")


def _write_index(path: str, names: list[str], files: list[list[_Source]]) -> None:
    index = {"metadata": {"total_size": sum(s.size for f in files for s in f)},
             "weight_map": {s.name: os.path.basename(name)
                            for name, f in zip(names, files) for s in f}}
    with open(path, "w", encoding="utf-8") as f:
        json.dump(index, f, indent=2, sort_keys=True)
        f.write("\n")
        f.flush()
        os.fsync(f.fileno())


def _file_path(path: str | os.PathLike[str]) -> str:
    """A directory means model.safetensors in it."""
    path = os.fspath(path)
    return path if path.endswith(".safetensors") else os.path.join(path, MODEL_FILE)


def _model_sources(sharded: "core.Sharded", dtype: torch.dtype | None) -> list[_Source]:
    if dtype is not None and (dtype not in CODES or not dtype.is_floating_point):
        raise ValueError(f"dtype {dtype} is not a floating-point type that safetensors files have")
    sources = []
    for param in sharded.params:
        to = dtype or param.dtype
        plane = "serve" if to is param.dtype else "master"
        sources.append(_of_plane(sharded, param, plane, param.name, to))
    sources += [_of_tensor(clean(name), b) for name, b in persistent_buffers(sharded.model)]
    return sources


def save_safetensors(model: nn.Module, path: str | os.PathLike[str], *,
                     max_shard_size: int | str | None = None, dtype: torch.dtype | None = None,
                     metadata: Mapping[str, str] | None = None) -> None:
    """Writes parameters and persistent buffers to safetensors files; one rank calls it.

    Other ranks may go on; they wait in their next step until this one steps too.  At most 64 MiB
    are in memory at a time.  Names are those of ``model.state_dict()``, without what torch.compile
    puts in; tied parameters stand once, by their first name, as Hugging Face saves them.

    path: a file "….safetensors", or a directory, in which "model.safetensors" is written.
    max_shard_size: bytes of tensors a file, or a text such as "5GB"; with more than one file they
    are "model-00001-of-0000N.safetensors" and "model.safetensors.index.json".  None: one file.
    dtype: of the parameters in the file; None: their own.  A wider one than the model's gives the
    exact fp32 master weights.  Buffers keep theirs.
    metadata: strings for the header, besides "format": "pt".

    A file appears under its name when it is complete; an older one is replaced.
    Errors: ValueError for arguments, OSError of the file system, zerod.Error of the service.
    """
    _save_model(core.sharded_of(model), _file_path(path), max_shard_size, dtype,
                {"format": "pt", **_metadata(metadata)})


def _metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    metadata = dict(metadata or {})
    for k, v in metadata.items():
        if not isinstance(k, str) or not isinstance(v, str):
            raise ValueError(f"metadata are strings, not {k!r}: {v!r}")
    return metadata


def _save_model(sharded: "core.Sharded", path: str, max_shard_size: int | str | None,
                dtype: torch.dtype | None, metadata: Mapping[str, str]) -> None:
    _check_machine()
    most = _bytes(max_shard_size)
    sources = _model_sources(sharded, dtype)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    _write_set(path, sources, most, metadata)


def _check_machine() -> None:
    if sys.byteorder != "little":
        raise RuntimeError("safetensors files are little-endian and this machine is not")


# ---- reading -----------------------------------------------------------------------


@dataclass
class _Stored:
    """One tensor of a file that is there."""
    file: "_File"
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int  # in the file, bytes

    def read(self, first: int, count: int) -> torch.Tensor:
        """Elements, flat."""
        piece = torch.empty(count, dtype=self.dtype)
        self.file.read(_memory(piece), self.begin + first * self.dtype.itemsize)
        return piece

    def pieces(self) -> Iterator[tuple[int, torch.Tensor]]:
        """(first, elements) of the whole tensor."""
        elements = 1
        for extent in self.shape:
            elements *= extent
        for first, count in pieces(elements, self.dtype.itemsize):
            yield first, self.read(first, count)


@dataclass
class _File:
    """One open safetensors file whose header has been checked."""
    path: str
    fd: int
    metadata: dict[str, str] = field(default_factory=dict)
    tensors: dict[str, _Stored] = field(default_factory=dict)

    def read(self, into: memoryview, at: int) -> None:
        while len(into):
            got = os.preadv(self.fd, [into[:PIECE]], at)
            if got == 0:
                raise CheckpointError(f"{self.path}: shorter than it was when it was opened")
            into, at = into[got:], at + got


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _parse(data: bytes) -> dict[str, Any]:
    """Strict JSON of an object; ValueError for anything else."""
    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=_no_twice,
                           parse_constant=_no_constant)
    except RecursionError as e:
        raise ValueError("it is nested too deeply") from e
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r:.40} is not a number of the kind expected")
    return value


def _entry(file: _File, name: str, entry: Any, data_at: int) -> tuple[int, int, _Stored]:
    """(begin, end, tensor) of one header entry."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError("it has not exactly dtype, shape and data_offsets")
    dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise ValueError(f"dtype {entry['dtype']!r:.40} is not known")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or len(shape) > 64:
        raise ValueError("its shape is not a list of extents")
    if not isinstance(offsets, list) or len(offsets) != 2:
        raise ValueError("its data_offsets are not two numbers")
    begin, end = _number(offsets[0]), _number(offsets[1])
    size = dtype.itemsize
    for extent in shape:
        size *= _number(extent)
        if size >= 1 << 62 and 0 not in shape:
            raise ValueError("its shape is larger than any file")
    if end - begin != size:
        raise ValueError(f"its shape needs {size} bytes and its data_offsets span {end - begin}")
    return begin, end, _Stored(file, name, dtype, tuple(shape), data_at + begin)


def _read_header(file: _File) -> None:
    """Fills in metadata and tensors; ValueError says what is wrong."""
    size = os.fstat(file.fd).st_size
    if size < 8:
        raise ValueError(f"{size} bytes are no safetensors file")
    length = int.from_bytes(os.pread(file.fd, 8, 0), "little")
    if length > HEADER_MAX or length > size - 8:
        raise ValueError(f"its header would have {length} bytes, of {size - 8} there and "
                         f"{HEADER_MAX} allowed: truncated, or no safetensors file")
    text = bytearray(length)
    file.read(memoryview(text), 8)
    if not text.startswith(b"{"):
        raise ValueError("its header does not begin with {")
    header = _parse(bytes(text))
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("its __metadata__ are not strings")
    file.metadata = metadata
    spans = []
    for name, entry in header.items():
        try:
            spans.append(_entry(file, name, entry, 8 + length))
        except ValueError as e:
            raise ValueError(f"tensor '{name:.200}': {e}") from e
    _check_spans(spans, size - 8 - length)
    file.tensors = {t.name: t for _, _, t in spans}


def _check_spans(spans: list[tuple[int, int, _Stored]], there: int) -> None:
    """No holes, no overlaps, nothing missing, nothing left."""
    at = 0
    for begin, end, tensor in sorted(spans, key=lambda s: s[:2]):
        if begin != at:
            what = "overlap those before" if begin < at else f"leave a hole of {begin - at} bytes"
            raise ValueError(f"tensor '{tensor.name:.200}': its data {what}")
        at = end
    if at != there:
        raise ValueError(f"its tensors have {at} bytes and the file {there}: "
                         f"{'truncated' if at > there else 'something follows them'}")


@contextlib.contextmanager
def _open(path: str) -> Iterator[_File]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise CheckpointError(f"{path}: not a regular file")
        file = _File(path, fd)
        try:
            _read_header(file)
        except CheckpointError:
            raise
        except ValueError as e:
            raise CheckpointError(f"{path}: {e}") from e
        yield file
    finally:
        os.close(fd)


def _is_file_name(name: Any) -> bool:
    return isinstance(name, str) and os.path.basename(name) == name and "\0" not in name and (
        name not in ("", ".", ".."))


def _read_index(path: str) -> dict[str, str]:
    """Tensor name -> file name beside the index."""
    try:
        if os.path.getsize(path) > HEADER_MAX:
            raise ValueError(f"larger than {HEADER_MAX} bytes")
        with open(path, "rb") as f:
            weights = _parse(f.read(HEADER_MAX + 1)).get("weight_map")
        if not isinstance(weights, dict) or not weights:
            raise ValueError("it has no weight_map")
        for name in weights.values():
            if not _is_file_name(name):
                raise ValueError(f"{name!r:.200} is not the name of a file beside it")
    except ValueError as e:
        raise CheckpointError(f"{path}: {e}") from e
    return weights


class _Set:
    """The tensors of one file, or of several by their index."""

    def __init__(self, stack: contextlib.ExitStack, path: str):
        self.path = path
        index = path + INDEX_SUFFIX
        if os.path.exists(path) or not os.path.exists(index):
            self.files = [stack.enter_context(_open(path))]
            self.tensors = dict(self.files[0].tensors)
        else:
            self.files = []
            self.tensors = {}
            self._open_all(stack, index, _read_index(index))
        ids = {f.metadata.get(SAVE_ID) for f in self.files}
        if len(ids) != 1:
            raise CheckpointError(f"{path}: its files come from different saves")
        self.save_id = ids.pop()

    def _open_all(self, stack: contextlib.ExitStack, index: str, weights: dict[str, str]) -> None:
        for name in sorted(set(weights.values())):
            file = stack.enter_context(_open(os.path.join(os.path.dirname(index), name)))
            self.files.append(file)
            listed = {t for t, f in weights.items() if f == name}
            if listed != set(file.tensors):
                odd = sorted(listed ^ set(file.tensors))[0]
                raise CheckpointError(f"{index}: tensor '{odd:.200}' is in only one of the index and "
                                      f"{name}")
            self.tensors.update(file.tensors)

    def metadata(self) -> dict[str, str]:
        """Of the first file; all have the same."""
        return self.files[0].metadata


@dataclass
class _Match:
    """What of a checkpoint goes where."""
    params: list[tuple[ShardedParam, _Stored]] = field(default_factory=list)
    buffers: list[tuple[torch.Tensor, _Stored]] = field(default_factory=list)


def _differs(name: str, stored: _Stored, shape: tuple[int, ...], floating: bool) -> str | None:
    if stored.shape != shape:
        return (f"size mismatch for {name}: copying a param with shape {stored.shape} from "
                f"checkpoint, the shape in current model is {shape}.")
    if floating and not stored.dtype.is_floating_point:
        return f"dtype mismatch for {name}: {stored.dtype} in the checkpoint is no floating point"
    return None


def _match_model(sharded: "core.Sharded", found: _Set, strict: bool) -> _Match:
    """Finds every parameter and buffer; CheckpointError lists all that does not fit."""
    match, missing, errors = _Match(), [], []
    used: set[str] = set()

    def take(names: list[str], shape: tuple[int, ...], floating: bool) -> _Stored | None:
        there = [n for n in names if n in found.tensors]
        used.update(there)
        if not there:
            missing.append(names[0])
            return None
        stored = found.tensors[there[0]]
        error = _differs(there[0], stored, shape, floating)
        if error:
            errors.append(error)
        return stored

    for param in sharded.params:
        stored = take(param.names, tuple(param.shape), True)
        if stored is not None:
            match.params.append((param, stored))
    for name, buffer in persistent_buffers(sharded.model):
        stored = take([clean(name)], tuple(buffer.shape), False)
        if stored is not None:
            match.buffers.append((buffer, stored))
    unexpected = sorted(set(found.tensors) - used)
    for what, names in (("Unexpected", unexpected), ("Missing", missing)):
        if strict and names:
            listed = ", ".join(f'"{n}"' for n in names)
            errors.insert(0, f"{what} key(s) in {found.path}: {listed}. ")
    if errors:
        raise CheckpointError(f"Error(s) in loading {found.path} for "
                              f"{type(sharded.model).__name__}:\n\t" + "\n\t".join(errors))
    return match


def _stream(sharded: "core.Sharded", param: ShardedParam, plane: str, stored: _Stored) -> None:
    for first, piece in stored.pieces():
        sharded.write(param, plane, piece.to(torch.float32), first)


def _load_buffers(match: _Match) -> None:
    with torch.no_grad():
        for buffer, stored in match.buffers:
            whole = torch.empty(stored.shape, dtype=stored.dtype)
            for first, piece in stored.pieces():
                whole.view(-1)[first:first + piece.numel()] = piece
            buffer.copy_(whole)


def load_safetensors(model: nn.Module, path: str | os.PathLike[str], strict: bool = True, *,
                     alone: bool = False) -> None:
    """Loads parameters and persistent buffers from safetensors files; all ranks call it.

    Rank 0 writes the parameters to the service, 64 MiB at a time; each rank reads the headers and its
    buffers, and so must see the files.  Returns when all ranks have called.  Everything is checked first: an error loads nothing.

    path: a file, or a directory with "model.safetensors" or "model.safetensors.index.json".  Any
    floating-point dtype; 16-bit parameters get master weights as exact as the file.  A tied
    parameter may stand under any of its names.
    strict: False ignores missing and unexpected names; shapes must fit all the same.
    alone: this rank reads and writes by itself and waits for nobody: the others must be between
    steps, and keep the buffers they have.

    Errors: CheckpointError for a file that is broken or does not fit the model, with everything
    that does not; RuntimeError in the middle of a step; OSError; zerod.Error of the service.
    """
    sharded = core.sharded_of(model)
    check_boundary(sharded)
    _check_machine()
    with contextlib.ExitStack() as stack:
        match = _match_model(sharded, _Set(stack, _file_path(path)), strict)
        if alone or sharded.rank == 0:
            for param, stored in match.params:
                _stream(sharded, param, "master", stored)
        _load_buffers(match)
    if alone:
        _let_go(sharded)
    else:
        sharded.barrier()


def _let_go(sharded: "core.Sharded") -> None:
    for unit in sharded.units:
        if unit.depth == 0 and unit.fetched:
            unit.release()


# ---- model and optimizer -----------------------------------------------------------


def _optimizer_sources(sharded: "core.Sharded") -> list[_Source]:
    sources = []
    for param in sharded.params:
        if not param.trainable:
            continue
        steps = sharded.read(param, "step")
        planes = ["exp_avg", "exp_avg_sq"] if int(steps) else []
        if param.dtype is not torch.float32:
            planes.append("master")
        sources += [_of_plane(sharded, param, p, f"{p}.{param.name}", torch.float32)
                    for p in planes]
        if int(steps):
            sources.append(_of_tensor(f"step.{param.name}", steps.view(())))
    return sources


def _groups_text(optimizer: "optim.AdamW") -> str:
    """The param groups, with names in the place of parameters, as JSON."""
    groups = [{**g, "params": [optimizer.sharded.param_of(p).name for p in g["params"]]}
              for g in optimizer.param_groups]
    try:
        return json.dumps(groups)
    except TypeError as e:
        raise ValueError(f"a param group has something that JSON has not: {e}") from e


def save_checkpoint(directory: str | os.PathLike[str], model: nn.Module,
                    optimizer: "optim.AdamW", *, max_shard_size: int | str | None = None) -> None:
    """Writes model and optimizer, streamed, so that training resumes exactly; one rank calls it.

    directory: "model.safetensors" as of :func:`save_safetensors`, and "optimizer.safetensors" with
    "exp_avg.<name>" and "exp_avg_sq.<name>" (fp32), "step.<name>" (int64) of what was updated,
    "master.<name>" (fp32) of 16-bit parameters, and the param groups in its header.  Both are cut
    into several files by max_shard_size.  Schedulers and scalers have state_dict() of their own.
    """
    sharded = core.sharded_of(model)
    if optimizer.sharded is not sharded:
        raise ValueError("the optimizer is another model's")
    directory = os.fspath(directory)
    ids = {SAVE_ID: uuid.uuid4().hex}
    groups = _groups_text(optimizer)
    _save_model(sharded, os.path.join(directory, MODEL_FILE), max_shard_size, None,
                {"format": "pt", **ids})
    _write_set(os.path.join(directory, OPTIMIZER_FILE), _optimizer_sources(sharded),
               _bytes(max_shard_size), {"format": "pt", PARAM_GROUPS: groups, **ids})


def _match_optimizer(sharded: "core.Sharded", found: _Set) -> dict[ShardedParam, dict[str, _Stored]]:
    """plane -> tensor of each trained parameter; {} for one that was never updated."""
    by_name = {p.name: p for p in sharded.params if p.trainable}
    match: dict[ShardedParam, dict[str, _Stored]] = {p: {} for p in by_name.values()}
    for key, stored in found.tensors.items():
        plane, _, name = key.partition(".")
        param = by_name.get(name)
        if param is None or plane not in (*PLANES, "step"):
            raise CheckpointError(f"{found.path}: '{key:.200}' belongs to no trained parameter of "
                                  "this model")
        shape = () if plane == "step" else tuple(param.shape)
        dtype = torch.int64 if plane == "step" else torch.float32
        if stored.shape != shape or stored.dtype is not dtype:
            raise CheckpointError(f"{found.path}: '{key:.200}' is {stored.dtype} {stored.shape}, not "
                                  f"{dtype} {shape}")
        match[param][plane] = stored
    for param, planes in match.items():
        wanted = {"exp_avg", "exp_avg_sq", "step"} & planes.keys()
        if wanted and len(wanted) != 3:
            raise CheckpointError(f"{found.path}: parameter '{param.name}' has only "
                                  f"{', '.join(sorted(wanted))}")
        if "step" in planes and not 0 < int(planes["step"].read(0, 1)) < 1 << 62:
            raise CheckpointError(f"{found.path}: the step of '{param.name}' is out of range")
    return match


def _match_groups(optimizer: "optim.AdamW", found: _Set) -> list[dict[str, Any]]:
    """The saved param groups; CheckpointError unless they have the same parameters."""
    try:
        groups = json.loads(found.metadata().get(PARAM_GROUPS, ""), parse_constant=_no_constant)
        saved = [list(g["params"]) for g in groups]
        for g in groups:
            optim._adamw_set({**optimizer.defaults, **g})
    except (ValueError, TypeError, KeyError, OverflowError,
            RecursionError) as e:
        raise CheckpointError(f"{found.path}: its param groups cannot be read: {e}") from e
    mine = [[optimizer.sharded.param_of(p).name for p in g["params"]]
            for g in optimizer.param_groups]
    if saved != mine:
        raise CheckpointError(f"{found.path}: its {len(saved)} param groups have other parameters "
                              f"than the optimizer's {len(mine)}")
    return groups


def _load_optimizer(sharded: "core.Sharded",
                    match: dict[ShardedParam, dict[str, _Stored]]) -> None:
    for param, planes in match.items():
        for plane in PLANES:
            if plane in planes:
                _stream(sharded, param, plane, planes[plane])
        if "step" in planes:
            sharded.write(param, "step", planes["step"].read(0, 1))
        else:
            optim.clear_state(sharded, param)


def load_checkpoint(directory: str | os.PathLike[str], model: nn.Module,
                    optimizer: "optim.AdamW") -> None:
    """Loads what :func:`save_checkpoint` has written; all ranks call it.

    The number of ranks, nodes and the stage may be others than when it was saved.  Rank 0 writes,
    streamed; returns when all ranks have called.  Both files are checked first: an error loads nothing.

    Errors: CheckpointError for files that are broken, of different saves, or do not fit model and
    param groups; RuntimeError in the middle of a step; OSError; zerod.Error of the service.
    """
    sharded = core.sharded_of(model)
    if optimizer.sharded is not sharded:
        raise ValueError("the optimizer is another model's")
    check_boundary(sharded)
    _check_machine()
    directory = os.fspath(directory)
    with contextlib.ExitStack() as stack:
        model_set = _Set(stack, os.path.join(directory, MODEL_FILE))
        optimizer_set = _Set(stack, os.path.join(directory, OPTIMIZER_FILE))
        if model_set.save_id is None or model_set.save_id != optimizer_set.save_id:
            raise CheckpointError(f"{directory}: model and optimizer come from different saves")
        match = _match_model(sharded, model_set, True)
        states = _match_optimizer(sharded, optimizer_set)
        groups = _match_groups(optimizer, optimizer_set)
        if sharded.rank == 0:
            for param, stored in match.params:
                if "master" not in states.get(param, {}):
                    _stream(sharded, param, "master", stored)
            _load_optimizer(sharded, states)
        _load_buffers(match)
        for mine, saved in zip(optimizer.param_groups, groups):
            optimizer._take_group(mine, saved)
    sharded.barrier()
