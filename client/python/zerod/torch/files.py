"""Files of safetensors and of torch.save(), streamed: at most a piece of a tensor is in memory.

A safetensors file (https://huggingface.co/docs/safetensors) has the length of the header as u64, a JSON header, and
data without holes.  Several files are named and numbered like Hugging Face's.

Rules: a file is written under a temporary name beside its place, synced and renamed, the index last.  A file that is
read is hostile: lengths are bounded before use, and a header is refused as a whole.
"""
from __future__ import annotations

import contextlib
import ctypes
import json
import math
import mmap
import os
import re
import stat
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

PIECE = 64 << 20  # bytes read or written at once
HEADER_MAX = 100_000_000
INDEX_SUFFIX = ".index.json"
SAVE_ID = "zerod.save"  # in the metadata of all files of one save

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


def pieces(elements: int, size: int = 4) -> Iterator[tuple[int, int]]:
    """Yields (first, count) of the pieces of `elements` elements of `size` bytes each."""
    most = PIECE // size
    for first in range(0, elements, most):
        yield first, min(most, elements - first)


def check_machine() -> None:
    if sys.byteorder != "little":
        raise RuntimeError("safetensors files are little-endian and this machine is not")


def memory_of(tensor: torch.Tensor) -> memoryview:
    """Returns the bytes of a contiguous tensor, which must outlive the result."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * size).from_address(tensor.data_ptr())).cast("B")


# ---- writing -----------------------------------------------------------------------


@dataclass
class Source:
    """One tensor for a file; read(first, count) returns that many of its elements, flat."""
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

    def pieces(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yields (first, elements) of the whole tensor."""
        for first, count in pieces(self.elements, self.dtype.itemsize):
            yield first, self.read(first, count)

    def whole(self) -> torch.Tensor:
        """Returns the tensor, in memory."""
        flat = torch.empty(self.elements, dtype=self.dtype)
        for first, piece in self.pieces():
            flat[first:first + piece.numel()] = piece
        return flat.view(self.shape)


def of_tensor(name: str, tensor: torch.Tensor) -> Source:
    flat = tensor.detach().cpu().contiguous().view(-1)
    return Source(name, tuple(tensor.shape), tensor.dtype,
                  lambda first, count: flat[first:first + count])


def _header(sources: list[Source], metadata: Mapping[str, str]) -> bytes:
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


def _write_source(fd: int, source: Source) -> None:
    for _, piece in source.pieces():
        piece = piece.contiguous()
        _write(fd, memory_of(piece))


def _write_file(path: str, sources: list[Source], metadata: Mapping[str, str]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        _write(fd, _header(sources, metadata))
        for s in sources:
            _write_source(fd, s)
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_directory(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def bytes_of(size: int | str | None) -> int | None:
    """Returns the bytes of a size as Hugging Face writes it: a number of bytes, or "5GB"."""
    if isinstance(size, str):
        match = re.fullmatch(r"(\d+)\s*([A-Za-z]+)", size.strip())
        if not match or match[2].upper() not in SIZES:
            raise ValueError(f"max_shard_size '{size}' is not a size such as '5GB'")
        size = int(match[1]) * SIZES[match[2].upper()]
    if size is not None and size <= 0:
        raise ValueError(f"max_shard_size {size} is not a number of bytes > 0")
    return size


def _split(sources: list[Source], most: int | None) -> list[list[Source]]:
    """Divides tensors over files, in order.  A tensor larger than `most` has a file of its own."""
    files: list[list[Source]] = [[]]
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
    """Returns the files of an older save of the same name that had another number of files."""
    directory, base = os.path.split(path)
    stem = re.escape(base.removesuffix(".safetensors"))
    pattern = re.compile(rf"{stem}(-\d{{5}}-of-\d{{5}})?\.safetensors({re.escape(INDEX_SUFFIX)})?")
    return [os.path.join(directory, name) for name in os.listdir(directory or ".")
            if pattern.fullmatch(name) and os.path.join(directory, name) not in kept]


@contextlib.contextmanager
def _temporary() -> Iterator[Callable[[str], str]]:
    """Yields a function from a file's name to a temporary name.  Renames the files at the end."""
    renames = []
    with contextlib.ExitStack() as undo:
        def temporary(name: str) -> str:
            made = os.path.join(os.path.dirname(name),
                                f".{os.path.basename(name)}.{uuid.uuid4().hex}.tmp")
            undo.callback(lambda: os.path.exists(made) and os.unlink(made))
            renames.append((made, name))
            return made

        yield temporary
        for made, name in renames:
            os.rename(made, name)


def write_set(path: str, sources: list[Source], most: int | None,
               metadata: Mapping[str, str]) -> None:
    """Writes one file, or several and their index."""
    sources = sorted(sources, key=lambda s: -s.dtype.itemsize)  # so that all are aligned
    files = _split(sources, most)
    names = _file_names(path, len(files))
    with _temporary() as temporary:
        for name, members in zip(names, files):
            _write_file(temporary(name), members, metadata)
        if len(files) > 1:
            _write_index(temporary(path + INDEX_SUFFIX), names, files)
    for old in _stale(path, {*names, *([path + INDEX_SUFFIX] if len(files) > 1 else [])}):
        os.unlink(old)
    _sync_directory(os.path.dirname(path) or ".")


def _write_index(path: str, names: list[str], files: list[list[Source]]) -> None:
    index = {"metadata": {"total_size": sum(s.size for f in files for s in f)},
             "weight_map": {s.name: os.path.basename(name)
                            for name, f in zip(names, files) for s in f}}
    with open(path, "w", encoding="utf-8") as f:
        json.dump(index, f, indent=2, sort_keys=True)
        f.write("\n")
        f.flush()
        os.fsync(f.fileno())


def _reserve(path: str, tree: Any) -> None:
    """Makes torch.save() write the file with holes for the sources' bytes."""
    largest = max((s.size for s in tree_leaves(tree) if isinstance(s, Source)), default=0)
    untouched = mmap.mmap(-1, max(1, largest), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def unreal(s: Source) -> torch.Tensor:
        if s.elements == 0:
            return torch.empty(s.shape, dtype=s.dtype)
        return torch.frombuffer(untouched, dtype=s.dtype, count=s.elements).view(s.shape)

    with torch.serialization.skip_data():
        torch.save(tree_map_only(Source, unreal, tree), path)


def write_pickled(path: str, tree: Any) -> None:
    """Writes dicts and lists as torch.save() does, with a Source in place of each tensor.  All sources have one dtype.
    The zip file's checksums of tensors are wrong, and torch.load() ignores them."""
    with _temporary() as temporary:
        made = temporary(path)
        _reserve(made, tree)
        records = torch._C.PyTorchFileReader(made)  # pylint: disable=protected-access
        fd = os.open(made, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for i, source in enumerate(s for s in tree_leaves(tree) if isinstance(s, Source)):
                os.lseek(fd, records.get_record_offset(f"data/{i}"), os.SEEK_SET)
                _write_source(fd, source)
            os.fsync(fd)
        finally:
            os.close(fd)
    _sync_directory(os.path.dirname(path) or ".")


# ---- reading -----------------------------------------------------------------------


@dataclass
class Stored:
    """One tensor of a file."""
    file: "_File"
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int  # in the file, bytes

    def read(self, first: int, count: int) -> torch.Tensor:
        """Reads elements, flat."""
        piece = torch.empty(count, dtype=self.dtype)
        self.file.read(memory_of(piece), self.begin + first * self.dtype.itemsize)
        return piece

    def pieces(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yields (first, elements) of the whole tensor."""
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
    tensors: dict[str, Stored] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The file's bytes."""
        return os.fstat(self.fd).st_size

    def read(self, into: memoryview, at: int) -> None:
        while len(into):
            got = os.preadv(self.fd, [into[:PIECE]], at)
            if got == 0:
                raise CheckpointError(f"{self.path}: shorter than it was when it was opened")
            into, at = into[got:], at + got


class _InMemory(_File):
    """The contents of a safetensors file."""

    def __init__(self, path: str, memory: memoryview):
        super().__init__(path, -1)
        self.memory = memory

    @property
    def size(self) -> int:
        return len(self.memory)

    def read(self, into: memoryview, at: int) -> None:
        into[:] = self.memory[at:at + len(into)]


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _parse(data: bytes) -> dict[str, Any]:
    """Parses strict JSON of an object.  ValueError for anything else."""
    try:
        found = json.loads(data.decode("utf-8"), object_pairs_hook=_no_twice,
                           parse_constant=no_constant)
    except RecursionError as e:
        raise ValueError("it is nested too deeply") from e
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r:.40} is not a number of the kind expected")
    return value


def _entry(file: _File, name: str, entry: Any, data_at: int) -> tuple[int, int, Stored]:
    """Returns (begin, end, tensor) of one header entry."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError("it does not have exactly dtype, shape and data_offsets")
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
    return begin, end, Stored(file, name, dtype, tuple(shape), data_at + begin)


def _read_header(file: _File) -> None:
    """Reads metadata and tensors.  ValueError says what is wrong."""
    size = file.size
    if size < 8:
        raise ValueError(f"{size} bytes are not a safetensors file")
    start = bytearray(8)
    file.read(memoryview(start), 0)
    length = int.from_bytes(start, "little")
    if length > HEADER_MAX or length > size - 8:
        raise ValueError(f"its header would have {length} bytes, of {size - 8} there and "
                         f"{HEADER_MAX} allowed: truncated, or not a safetensors file")
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


def _check_spans(spans: list[tuple[int, int, Stored]], there: int) -> None:
    """Raises ValueError for holes, overlaps, and missing or remaining bytes."""
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
        yield _checked(_File(path, fd))
    finally:
        os.close(fd)


def _checked(file: _File) -> _File:
    """Reads a file's header, and returns the file."""
    try:
        _read_header(file)
    except CheckpointError:
        raise
    except ValueError as e:
        raise CheckpointError(f"{file.path}: {e}") from e
    return file


def tensors_in(path: str, memory: memoryview) -> dict[str, torch.Tensor]:
    """Returns the tensors of a safetensors file, in the memory that has its contents."""
    found = {}
    for t in _checked(_InMemory(path, memory)).tensors.values():
        count = math.prod(t.shape)
        if t.begin % t.dtype.itemsize:
            raise CheckpointError(f"{path}: tensor '{t.name:.200}' is not aligned to its elements: save the file again")
        flat = (torch.frombuffer(memory, dtype=t.dtype, count=count, offset=t.begin) if count else
                torch.empty(0, dtype=t.dtype))
        found[t.name] = flat.view(t.shape)
    return found


def _is_file_name(name: Any) -> bool:
    return isinstance(name, str) and os.path.basename(name) == name and "\0" not in name and (
        name not in ("", ".", ".."))


def _read_index(path: str) -> dict[str, str]:
    """Returns the files of the tensors by name, all beside the index."""
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


class StoredSet:
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
                raise CheckpointError(f"{index}: tensor '{odd:.200}' is in only one of the index "
                                      f"and {name}")
            self.tensors.update(file.tensors)

    def metadata(self) -> dict[str, str]:
        """Returns the first file's metadata; all files have the same."""
        return self.files[0].metadata
