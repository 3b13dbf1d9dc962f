"""What a follower makes of a job's tensors: boxes of them, alone or one behind the other.

Rule: a form is checked against the job's layout once, before a version is read; what is wrong raises with the names of
the output and the tensor.  A box is a view of the service's memory.
"""
from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Union

import torch

from zerod.errors import NoGroup, OutOfRange

Index = Union[slice, "Part"]


class Part(NamedTuple):
    """The equal part of a dimension that a rank of a tensor-parallel group has: Part(rank, world)."""

    rank: int
    world: int


class Box:
    """A part of a tensor: of each dimension, from the first on, a slice without a step, or a Part.  All of the others.

        Box("up.weight", Part(rank, world))                  # rows
        Box("down.weight", slice(None), Part(rank, world))   # columns
        Box("qkv.weight", slice(0, 512))
    """

    def __init__(self, tensor: str, *index: Index):
        if not isinstance(tensor, str):
            raise TypeError(f"a box names its tensor by a str, not by {type(tensor).__name__}")
        for i in index:
            if not isinstance(i, (slice, Part)):
                raise TypeError(f"the box of tensor {tensor!r} has slices and Part(rank, world), not {type(i).__name__}")
        self.tensor, self.index = tensor, index


class Output:
    """A tensor of the form: one box, or several one behind the other along a dimension, such as a fused qkv.

    shape, dtype: what the reader expects; follow() raises ValueError if the tensor has others.
    """

    def __init__(self, *boxes: Box | str, dim: int = 0, shape: Iterable[int] | None = None, dtype: torch.dtype | None = None):
        if not boxes:
            raise ValueError("an output is made of one box or more")
        self.boxes = [Box(b) if isinstance(b, str) else b for b in boxes]
        self.dim, self.shape, self.dtype = dim, None if shape is None else tuple(shape), dtype


#: {name: what it is made of}, or pairs of these; a str stands for a whole tensor of that name.
Outputs = Union[Mapping[str, Union[str, Box, Output]], Iterable[tuple[str, Union[str, Box, Output]]]]
#: The same, or a function that makes it of {name: shape} of the job's tensors.
Form = Union[Outputs, Callable[[dict[str, tuple[int, ...]]], Outputs]]


class JobTensor(NamedTuple):
    """A tensor of the job, as it is read."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class Placed:
    """A box in a tensor that the job has."""

    def __init__(self, of: str, box: Box, tensors: dict[str, JobTensor]):
        if not isinstance(box, Box):
            raise TypeError(f"output {of!r} is made of Box and str, not of {type(box).__name__}")
        if box.tensor not in tensors:
            near = difflib.get_close_matches(box.tensor, tensors, 1)
            raise NoGroup(f"output {of!r}: the job has no tensor {box.tensor!r}; "
                          + (f"did you mean {near[0]!r}?" if near else f"it has {', '.join(list(tensors)[:3])} ..."))
        self.tensor, where = tensors[box.tensor], f"output {of!r}: tensor {box.tensor!r} of shape {tensors[box.tensor].shape}"
        if len(box.index) > len(self.tensor.shape):
            raise OutOfRange(f"{where}: its box names {len(box.index)} dimensions")
        self.ranges = [extent_of(f"{where}, dimension {d}", i, self.tensor.shape[d]) for d, i in enumerate(box.index)]
        self.shape = tuple(n for _, n in self.ranges) + self.tensor.shape[len(self.ranges):]

    def view(self, whole: torch.Tensor) -> torch.Tensor:
        """Returns the box as a view of its tensor."""
        for d, (first, n) in enumerate(self.ranges):
            whole = whole.narrow(d, first, n)
        return whole


def extent_of(where: str, index: Index, size: int) -> tuple[int, int]:
    """Returns the first element and the number of elements."""
    if isinstance(index, Part):
        rank, world = index
        if not 0 <= rank < world:
            raise OutOfRange(f"{where}: there is no part {rank} of {world}")
        if size % world:
            raise OutOfRange(f"{where}: {size} has no {world} equal parts: pass a slice")
        return rank * (size // world), size // world
    first, end = 0 if index.start is None else index.start, size if index.stop is None else index.stop
    if index.step not in (None, 1):
        raise ValueError(f"{where}: a box has no step, {index.step}")
    if not 0 <= first <= end <= size or (first == end and size):
        raise OutOfRange(f"{where}: the box from {first} to {end} is empty or leaves the tensor: it has 0 to {size}")
    return first, end - first


class Planned:
    """An output whose boxes lie in the job's tensors."""

    def __init__(self, name: str, made_of: str | Box | Output, tensors: dict[str, JobTensor]):
        of = made_of if isinstance(made_of, Output) else Output(made_of)
        self.name, self.dim = name, of.dim
        self.boxes = [Placed(name, box, tensors) for box in of.boxes]
        shapes, dtypes = [b.shape for b in self.boxes], {b.tensor.dtype for b in self.boxes}
        if len(dtypes) > 1:
            raise ValueError(f"output {name!r} has boxes of {', '.join(map(str, dtypes))}: pass follow(dtype=)")
        self.dtype, = dtypes
        self.shape = shapes[0]
        if len(shapes) > 1:
            if not 0 <= of.dim < min(map(len, shapes)):
                raise ValueError(f"output {name!r} joins its boxes, of shapes {shapes}, along dimension {of.dim}, which some lack")
            if len({s[:of.dim] + s[of.dim + 1:] for s in shapes}) > 1:
                raise ValueError(f"output {name!r}: its boxes have shapes {shapes}, which differ in other dimensions than {of.dim}")
            self.shape = *shapes[0][:of.dim], sum(s[of.dim] for s in shapes), *shapes[0][of.dim + 1:]
        for what, wanted, has in (("shape", of.shape, self.shape), ("dtype", of.dtype, self.dtype)):
            if wanted not in (None, has):
                raise ValueError(f"output {name!r} of tensor {of.boxes[0].tensor!r} has {what} {has}, not {wanted}: "
                                 + ("change its boxes" if what == "shape" else "follow(dtype=) converts all"))


class Plan:
    """A form in a job's tensors.  free: memory for joined boxes that no version has now."""

    def __init__(self, form: Form, tensors: dict[str, JobTensor]):
        made = form({name: t.shape for name, t in tensors.items()}) if callable(form) else form
        self.outputs: dict[str, Planned] = {}
        self.free: list[dict[str, torch.Tensor]] = []
        for name, made_of in made.items() if isinstance(made, Mapping) else made:
            if name in self.outputs:
                raise ValueError(f"the form has output {name!r} twice")
            self.outputs[name] = Planned(name, made_of, tensors)
        if not self.outputs:
            raise ValueError("the form has no output")

    def tensors(self) -> Iterator[int]:
        """Yields the number of each tensor that a box needs."""
        for output in self.outputs.values():
            for box in output.boxes:
                yield box.tensor.number
