"""Parameters of tensor-parallel models: DTensors that are divided over a dimension of a device mesh.

Each part is a tensor of the layout.  The ranks at one coordinate of the mesh's dimension have the part, and push its
group.  So a part's gradient comes from its own ranks, the norm counts each part once, and each rank fetches its own
parts.  Whole tensors are put together from the parts of all coordinates, so state dicts and files do not depend on the
mesh.

Parameters that are replicated over the mesh are pushed by all ranks.
"""
from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor


def is_dtensor(value: Any) -> bool:
    """Returns True for a DTensor, without an import that takes a second."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def local_of(value: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a DTensor; another tensor as it is."""
    return value.to_local() if is_dtensor(value) else value


class Split:
    """The division of a parameter.

    along: the mesh's dimension.  own: this rank's coordinate in it.  axis: of the tensor.  begins, sizes: of each part,
    along the axis.  ranks: the ranks with each part.  batches: the divisor of the sum of their gradients.
    """

    def __init__(self, value: "DTensor", axis: int, along: str, own: int, ranks: list[list[int]]):
        self.axis, self.along, self.own, self.ranks = axis, along, own, ranks
        self.whole = value.shape
        self.batches = 0
        n, parts = value.shape[axis], len(ranks)
        chunk = -(-n // parts)  # as torch.chunk() divides
        self.begins = [min(n, i * chunk) for i in range(parts)]
        self.sizes = [end - begin for begin, end in zip(self.begins, [*self.begins[1:], n])]

    def suffix(self, part: int) -> str:
        """Returns the suffix of the names of a part's tensor and group."""
        return f"@{self.along}{part}"

    def shape(self, part: int) -> torch.Size:
        """Returns the shape of a part."""
        return torch.Size([*self.whole[:self.axis], self.sizes[part], *self.whole[self.axis + 1:]])

    def boxes(self, values: torch.Tensor, first: int) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Divides values, a range of the whole flat tensor from `first` on, over the parts.  Yields the part, the first
        element in its flat tensor, and the view of values that belongs there, in the part's order."""
        inner = math.prod(self.whole[self.axis + 1:])
        row = self.whole[self.axis] * inner
        end = first + values.numel()
        at = first
        while at < end:
            column = at % row
            rows = (end - at) // row if column == 0 else 0
            until = at + rows * row if rows else min(end, at + row - column)
            box = values[at - first:until - first].view(max(rows, 1), -1)
            for part, (begin, size) in enumerate(zip(self.begins, self.sizes)):
                low = max(column, begin * inner)
                high = min(column + box.shape[1], (begin + size) * inner)
                if low < high:
                    yield part, at // row * size * inner + low - begin * inner, box[:, low - column:high - column]
            at = until


def split_of(name: str, value: torch.Tensor, mesh: "DeviceMesh | None") -> Split | None:
    """Returns the division of a parameter over the mesh of all ranks; None if each rank has all of it.

    Errors: ValueError, naming the parameter, for a DTensor without a mesh, of another mesh, or divided in a way that
    the service does not have.
    """
    if not is_dtensor(value):
        return None
    from torch.distributed.tensor import Replicate, Shard  # pylint: disable=import-outside-toplevel
    if mesh is None:
        raise ValueError(f"parameter '{name}' is a DTensor: name the mesh of all ranks, shard(model, mesh=...), as "
                         "init_device_mesh('cpu', (2, 2), mesh_dim_names=('dp', 'tp')) makes it")
    names = value.device_mesh.mesh_dim_names or ()
    unknown = [n for n in names if n not in mesh.mesh_dim_names]
    if unknown or not names:
        raise ValueError(f"parameter '{name}' is divided over {unknown or 'a mesh without names'}, and the mesh of all "
                         f"ranks has {', '.join(mesh.mesh_dim_names)}: make its mesh from that one, mesh['tp']")
    if value._backward_hooks or value._post_accumulate_grad_hooks:  # pylint: disable=protected-access
        raise ValueError(f"parameter '{name}' is a DTensor and has a hook, which would see a part of the gradient: set it on "
                         "the module")
    divided = [(along, p) for along, p in zip(names, value.placements) if not isinstance(p, Replicate)]
    if not divided:
        return None
    along, placement = divided[0]
    if len(divided) > 1 or type(placement) is not Shard:
        raise ValueError(f"parameter '{name}' is placed as {', '.join(map(str, value.placements))}; zerod holds Replicate() and "
                         "one Shard(dim)")
    ranks = mesh.mesh.movedim(mesh.mesh_dim_names.index(along), 0).flatten(1).tolist()
    own = next(part for part, of in enumerate(ranks) if mesh.get_rank() in of)
    return Split(value, placement.dim % value.dim(), along, own, [sorted(of) for of in ranks])


def count_batches(splits: list[Split], mesh: "DeviceMesh", data: Iterable[str] | None, pipeline: str | None) -> None:
    """Sets each division's number of ranks with batches of their own.  ValueError for a dimension that the mesh does
    not have.

    A part's gradient comes from the batches of all ranks.  Its own ranks have seen these batches themselves (tensor
    parallel), or got tokens of other ranks (experts, all-to-all).
    """
    names = mesh.mesh_dim_names
    data = set(names) - {s.along for s in splits} - {pipeline} if data is None else set(data)
    if unknown := data - set(names):
        raise ValueError(f"data= names {', '.join(sorted(unknown))}, and the mesh has {', '.join(names)}")
    for split in splits:
        split.batches = math.prod(mesh.size(names.index(name)) for name in data)


def check_mesh(mesh: "DeviceMesh", rank: int, world_size: int) -> None:
    """Raises ValueError if the mesh does not have the job's ranks."""
    if sorted(mesh.mesh.flatten().tolist()) != list(range(world_size)):
        raise ValueError(f"the mesh has {mesh.size()} ranks, and the job has {world_size}: pass the mesh of all ranks, which "
                         "the parallel dimensions are taken from")
    if mesh.get_rank() != rank:
        raise ValueError(f"this process is rank {mesh.get_rank()} of the mesh and rank {rank} of the job: start it by "
                         "torchrun or srun, or connect with that rank")
