"""Stages of a pipeline: each rank has the modules of its stage, and the service puts the layout together.

Rules: a stage's modules have their names of the whole model, so state dicts and files do not depend on the cut.  A
group belongs to one stage.  Parameters that several stages share (tied weights) are a group of their own, which all
these stages push.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

import zerod

from .plan import BYTES, DTYPES

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from .plan import PlannedParam

TORCH_DTYPES = {name: dtype for dtype, name in (DTYPES | BYTES).items()}


class Stage:
    """The stage that this rank has.

    along: the mesh's dimension.  number: of the stage.  ranks: the number of ranks of a stage.  tied: the names of each
    parameter that several stages share.
    """

    def __init__(self, mesh: "DeviceMesh | None", along: str, tied: Iterable[Iterable[str]]):
        names = mesh.mesh_dim_names if mesh is not None else ()
        if along not in names:
            raise ValueError(f"pipeline={along!r} names no dimension of the mesh: pass mesh=, as init_device_mesh('cpu', "
                             "(2, 2), mesh_dim_names=('pp', 'dp')) makes it")
        self.along = along
        self.number = mesh.get_local_rank(along)
        self.ranks = mesh.size() // mesh.size(names.index(along))
        self.tied = [[of] if isinstance(of, str) else list(of) for of in tied]

    @property
    def suffix(self) -> str:
        """The suffix of the names of the stage's groups."""
        return f"@{self.along}{self.number}"

    def tie(self, params: Iterable["PlannedParam"]) -> None:
        """Marks the parameters that other stages have, too."""
        for p in params:
            for names in self.tied:
                if set(names) & set(p.names):
                    p.tied = names
                    p.names = [names[0], *(n for n in p.names if n != names[0])]


class ParamElsewhere:
    """A parameter that only other stages have.  It has the members of a ShardedParam that files need, and no values
    here."""

    split = None
    trainable: bool

    def __init__(self, layout: zerod.Layout, index: int):
        self.name = layout.tensor_name(index)
        self.names, self.parts, self.index = [self.name], [index], index
        self.shape = torch.Size(layout.shape(index))
        self.numel = self.shape.numel()
        self.dtype = TORCH_DTYPES[layout.dtype(layout.tensor_group(index))]
        self.trainable = not layout.frozen(index)
        self.matrices: list[int] | None = None


def params_elsewhere(layout: zerod.Layout, known: set[int]) -> list[ParamElsewhere]:
    """Returns the tensors of a layout that are not known here."""
    return [ParamElsewhere(layout, t) for t in range(layout.tensors) if t not in known]
