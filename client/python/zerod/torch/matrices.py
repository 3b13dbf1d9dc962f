"""Chooses the parameters that Muon updates: whole matrices, where AdamW updates element by element.

Rule: the module looks at the model and changes nothing.
"""
from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn

from .plan import PlannedParam, blocks_of, find_params
from .sharded import uncompiled

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class MuonSplit(NamedTuple):
    """The result of :func:`muon_split`: names of a model's trained parameters.

    matrices: those of Muon, each with the numbers of rows of its matrices: more than one if it is fused.
    elementwise: those of AdamW.
    """

    matrices: dict[str, list[int]]
    elementwise: list[str]


def muon_split(model: nn.Module, *, matrices: Iterable[str] = (), elementwise: Iterable[str] = (),
               split: Mapping[str, int | Sequence[int]] | None = None) -> MuonSplit:
    """Tells which trained parameters :class:`zerod.torch.Muon` updates by Muon, and which by AdamW.

    Muon's are weights of two dimensions: parameters with "weight" in their own name, with two rows and two columns at
    least.  AdamW's are all others, such as biases and stacks of three dimensions, and these weights:

    - of an Embedding, also if a Linear shares it, and of modules with "norm" in the name of their class;
    - of the output head: a Linear outside of the repeated blocks with as many out_features as an embedding has rows, or
      the model's get_output_embeddings(), which models of transformers have.

    model: not sharded, or a sharded one, which gives the split that it was sharded for.  In a pipeline it is the whole
    model: a stage does not know the head.
    matrices, elementwise: names, or patterns as fnmatch has them, of parameters that are Muon's or AdamW's in any case.
    A parameter of shape [n, rows, cols] that `matrices` names is a stack of n matrices, as of experts.
    split: of fused weights, by name or pattern, the number of equal matrices below one another, or the rows of each.
    ``{"*.qkv.weight": 3}`` updates query, key and value apart, and ``{"*.qkv.weight": [h, hk, hk]}`` is for fewer keys.

    Returns a pair of dict and list, in the order of named_parameters().  Give it to ``shard(model, optimizer=...)``, or
    to ``Muon(model, split=...)`` for a model that :func:`zerod.torch.fully_shard` has marked.

    Errors: ValueError, naming the parameter, for a pattern that means none, or a name that is on both sides.  ValueError
    for `matrices` with a vector, an embedding or a convolution.  ValueError for a split whose rows do not add up, or
    that means parameters of AdamW alone.
    """
    model = uncompiled(model)
    sharded = model.__dict__.get("_zerod_sharded")
    if sharded is not None:
        if sharded.muon is None or matrices or elementwise or split:
            raise ValueError(f"the model is sharded already, for {sharded.optimizer_name}: choose before shard()")
        return sharded.muon
    params = find_params(model, {p for p in model.parameters() if not p.requires_grad})
    wanted, refused = _named(params, matrices, "matrices"), _named(params, elementwise, "elementwise")
    for p in params:
        if p.name in wanted and p.name in refused:
            raise ValueError(f"parameter '{p.name}' is named in matrices= and in elementwise=")
    chosen = _matrices(model)
    rows = {p.name: [p.value.shape[-2]] for p in params
            if p.name in wanted and _checked(p) or p.name not in refused and chosen(p)}
    for pattern, parts in (split or {}).items():
        named = sorted(_named(params, [pattern], "split"))
        if rows.keys().isdisjoint(named):
            raise ValueError(f"split: parameter '{named[0]}' is AdamW's, which needs none; name it in matrices= if it is Muon's")
        rows.update({name: _divided(name, sum(rows[name]), parts) for name in named if name in rows})
    return MuonSplit(rows, [p.name for p in params if p.name not in rows])


def _named(params: list[PlannedParam], patterns: Iterable[str], what: str) -> set[str]:
    """Returns the names of the parameters that the patterns mean."""
    if isinstance(patterns, str):
        raise ValueError(f"{what}: a list of names is expected, not one str")
    named: set[str] = set()
    for pattern in patterns:
        found = {p.name for p in params if any(fnmatch.fnmatchcase(n, pattern) for n in p.names)}
        if not found:
            raise ValueError(f"{what}: the model has no trained parameter '{pattern}'")
        named |= found
    return named


def _matrices(model: nn.Module) -> Callable[[PlannedParam], bool]:
    """Returns the test of a parameter that no pattern names."""
    rows = {m.num_embeddings for m in model.modules() if isinstance(m, EMBEDDINGS)}
    inside = {m for _, block in blocks_of(model) for m in block.modules()}
    output = getattr(model, "get_output_embeddings", lambda: None)()

    def elementwise(module: nn.Module) -> bool:
        head = isinstance(module, nn.Linear) and module.out_features in rows and module not in inside
        return head or module is output or isinstance(module, EMBEDDINGS) or "norm" in type(module).__name__.lower()

    def test(p: PlannedParam) -> bool:
        return (p.value.dim() == 2 and min(p.value.shape) > 1 and all("weight" in a for _, a in p.places)
                and not any(elementwise(m) for m, _ in p.places))
    return test


def _checked(p: PlannedParam) -> bool:
    """Returns True.  ValueError for a parameter that has no matrices."""
    for kind in (*EMBEDDINGS, *CONVOLUTIONS):
        if any(isinstance(m, kind) for m, _ in p.places):
            raise ValueError(f"matrices: parameter '{p.name}' is the weight of {kind.__name__}, which is no matrix of a "
                             "hidden layer: leave it to AdamW")
    if p.value.dim() not in (2, 3) or not p.value.numel():
        raise ValueError(f"matrices: parameter '{p.name}' has shape {tuple(p.value.shape)}, and Muon updates matrices, "
                         "[rows, cols] or a stack [n, rows, cols]: leave it to AdamW")
    return True


def _divided(name: str, rows: int, parts: int | Sequence[int]) -> list[int]:
    """Returns the rows of each part."""
    if isinstance(parts, int):
        found = [rows // parts] * parts if parts > 0 else []
    else:
        found = list(parts)
    if sum(found) != rows or any(n < 1 for n in found):
        raise ValueError(f"split: parameter '{name}' has {rows} rows, which {parts} does not divide")
    return found


def take_split(params: Iterable[PlannedParam], found: MuonSplit) -> None:
    """Marks the parameters that Muon updates.  ValueError for a trained one that the split does not have, or whose
    matrices are divided over ranks."""
    elementwise = set(found.elementwise)
    for p in params:
        if not p.value.requires_grad:
            continue
        name = next((n for n in (*p.names, *p.tied) if n in found.matrices), None)
        if name is None and elementwise.isdisjoint((*p.names, *p.tied)):
            raise ValueError(f"parameter '{p.name}' is trained and not in the split: make it by muon_split() of this model, "
                             "when requires_grad is set")
        if name is None:
            continue
        if p.split and p.split.axis >= p.value.dim() - 2:
            raise ValueError(f"parameter '{p.name}' is divided over '{p.split.along}', and Muon needs its matrices in one piece: "
                             f"optimizer=muon_split(model, elementwise=['{p.name}'])")
        p.matrices = found.matrices[name]


def split_for(model: nn.Module, optimizer: Any, pipeline: bool) -> MuonSplit | None:
    """Returns the split that shard() takes for its argument `optimizer`."""
    if optimizer == "muon" and pipeline:
        raise ValueError("a stage does not know the model's head: pass optimizer=muon_split(whole), of the whole model")
    if optimizer == "muon":
        return muon_split(model)
    return optimizer if isinstance(optimizer, MuonSplit) else None
