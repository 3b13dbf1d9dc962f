"""Checkpoints of model and optimizer, streamed: no model is ever in memory as a whole.

Rule: all files are checked (all headers, names, shapes, dtypes) before the first value is written to the service.
"""
from __future__ import annotations

import contextlib
import json
import logging
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import zerod

from .files import (CODES, SAVE_ID, CheckpointError, Source, Stored, StoredSet, bytes_of,
                    check_machine, no_constant, of_tensor, write_pickled, write_set)
from .optim import ServiceOptimizer
from .plan import BYTES, clean
from .sharded import Sharded, sharded_of
from .state import check_boundary, check_not_averaged, persistent_buffers, source_of
from .unit import ShardedParam

MODEL_FILE, OPTIMIZER_FILE = "model.safetensors", "optimizer.safetensors"
PLAIN_FILE, MASTER_FILE = "optimizer.pt", "master.pt"
PARAM_GROUPS, STEPS_MADE = "zerod.param_groups", "zerod.steps_made"

log = logging.getLogger("zerod")


# ---- writing -----------------------------------------------------------------------


def _file_path(path: str | os.PathLike[str]) -> str:
    """Returns the file of a path: a directory stands for model.safetensors in it."""
    path = os.fspath(path)
    return path if path.endswith(".safetensors") else os.path.join(path, MODEL_FILE)


def check_pipeline(sharded: Sharded) -> None:
    """Raises ValueError if a rank cannot write the parameters of other stages."""
    if sharded.elsewhere and any(p.split for p in sharded.params):
        raise ValueError("the stages of this pipeline are tensor-parallel, and a rank does not know how other stages are "
                         "divided: save state_dict() of each stage, or zeroctl checkpoint")


def _model_sources(sharded: Sharded, dtype: torch.dtype | None) -> list[Source]:
    if dtype is not None and (dtype not in CODES or not dtype.is_floating_point):
        raise ValueError(f"dtype {dtype} is not a floating-point type that safetensors files have")
    sources = []
    check_pipeline(sharded)
    for param in (*sharded.params, *sharded.elsewhere):
        to = param.dtype if dtype is None or param.dtype in BYTES else dtype
        plane = "ema" if param in sharded.averaged else "serve" if to is param.dtype else "master"
        sources.append(source_of(sharded, param, plane, param.name, to))
    sources += [of_tensor(clean(name), b) for name, b in persistent_buffers(sharded.model)]
    return sources


def save_safetensors(model: nn.Module, path: str | os.PathLike[str], *,
                     max_shard_size: int | str | None = None, dtype: torch.dtype | None = None,
                     metadata: Mapping[str, str] | None = None) -> None:
    """Writes parameters and persistent buffers to safetensors files.  One rank calls it.

    Other ranks may go on; they wait in their next step until this rank steps, too.  At most 64 MiB are in memory at a
    time.  Names are those of ``model.state_dict()``, without the parts that torch.compile adds.  A tied parameter is
    saved once, under its first name, as Hugging Face does.

    path: a file "….safetensors", or a directory, in which "model.safetensors" is written.
    max_shard_size: bytes of tensors in a file, or a text such as "5GB"; None: one file.  Several files are
    "model-00001-of-0000N.safetensors" and "model.safetensors.index.json".
    dtype: of the parameters in the file; None: their own.  A wider one than the model's gives the exact fp32 master
    weights.  Buffers, and parameters that are kept as bytes, keep their own.
    metadata: strings for the header, besides "format": "pt".

    Within :func:`ema_params` the averages are written.  A file appears under its name when it is complete, and replaces
    an older one.
    Errors: ValueError for arguments, OSError of the file system, zerod.Error of the service.
    """
    _save_model(sharded_of(model), _file_path(path), max_shard_size, dtype,
                {"format": "pt", **_metadata(metadata)})


def _metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    metadata = dict(metadata or {})
    for k, v in metadata.items():
        if not isinstance(k, str) or not isinstance(v, str):
            raise ValueError(f"metadata are strings, not {k!r}: {v!r}")
    return metadata


def _save_model(sharded: Sharded, path: str, max_shard_size: int | str | None,
                dtype: torch.dtype | None, metadata: Mapping[str, str]) -> None:
    check_machine()
    most = bytes_of(max_shard_size)
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with sharded.turn.one_version():
        write_set(path, _model_sources(sharded, dtype), most, metadata)


# ---- reading -----------------------------------------------------------------------


@dataclass
class _Match:
    """The places of a checkpoint's tensors."""
    params: list[tuple[ShardedParam, Stored]] = field(default_factory=list)
    buffers: list[tuple[torch.Tensor, Stored]] = field(default_factory=list)


def _differs(name: str, stored: Stored, shape: tuple[int, ...], of: torch.dtype | None) -> str | None:
    """Returns a text if a stored tensor does not fit, else None.  of: the parameter's dtype; None: it is a buffer."""
    if stored.shape != shape:
        return (f"size mismatch for {name}: copying a param with shape {stored.shape} from "
                f"checkpoint, the shape in current model is {shape}.")
    if of in BYTES and stored.dtype is not of:
        return f"dtype mismatch for {name}: {stored.dtype} in the checkpoint, and the service has {of} as bytes"
    if of in BYTES or of is None:
        return None
    if not stored.dtype.is_floating_point:
        return f"dtype mismatch for {name}: {stored.dtype} in the checkpoint is not a floating-point type"
    return None


def _match_model(sharded: Sharded, found: StoredSet, strict: bool) -> _Match:
    """Finds every parameter and buffer.  CheckpointError lists everything that does not fit."""
    match, missing, errors = _Match(), [], []
    used: set[str] = set()

    def take(names: list[str], shape: tuple[int, ...], of: torch.dtype | None) -> Stored | None:
        there = [n for n in names if n in found.tensors]
        used.update(there)
        if not there:
            missing.append(names[0])
            return None
        stored = found.tensors[there[0]]
        error = _differs(there[0], stored, shape, of)
        if error:
            errors.append(error)
        return stored

    for param in sharded.params:
        stored = take(param.names, tuple(param.shape), param.dtype)
        if stored is not None:
            match.params.append((param, stored))
    for name, buffer in persistent_buffers(sharded.model):
        stored = take([clean(name)], tuple(buffer.shape), None)
        if stored is not None:
            match.buffers.append((buffer, stored))
    unexpected = [] if sharded.pipeline else sorted(set(found.tensors) - used)  # other stages have buffers, too
    for what, names in (("Unexpected", unexpected), ("Missing", missing)):
        if strict and names:
            listed = ", ".join(f'"{n}"' for n in names)
            errors.insert(0, f"{what} key(s) in {found.path}: {listed}. ")
    if errors:
        raise CheckpointError(f"Error(s) in loading {found.path} for "
                              f"{type(sharded.model).__name__}:\n\t" + "\n\t".join(errors))
    return match


def _mine(sharded: Sharded) -> set[ShardedParam]:
    """Returns the parameters that this rank writes when all ranks load together, which follows from the model alone.

    If all ranks have all parameters, each writes a part, cut at whole parameters, so nodes read side by side.  Else the
    first rank that has a parameter writes it."""
    if sharded.pipeline or not all(p.everywhere for p in sharded.params):
        return {p for p in sharded.params if p.writer == sharded.rank}
    total, before, mine = sum(p.numel for p in sharded.params), 0, set()
    for param in sharded.params:
        if min(before * sharded.world_size // max(total, 1), sharded.world_size - 1) == sharded.rank:
            mine.add(param)
        before += param.numel
    return mine


def _write(sharded: Sharded, wanted: list[tuple[ShardedParam, str, Stored]]) -> None:
    """Writes planes of parameters out of files.  The library does so, in the order of the file.  This process does if
    the service cannot take the values as they stand."""
    of_files: dict[int, tuple[Stored, list[zerod.FileValues]]] = {}
    for param, plane, stored in wanted:
        values = sharded.file_values(param, plane, stored.dtype, stored.begin)
        if values is not None:
            of_files.setdefault(stored.file.fd, (stored, []))[1].append(values)
            continue
        for first, piece in stored.pieces():
            sharded.write(param, plane, piece, first)
    for fd, (stored, runs) in of_files.items():
        try:
            sharded.attempt.put_file(fd, sorted(runs, key=lambda v: v.at))
        except zerod.Conflict as e:
            raise CheckpointError(f"{stored.file.path}: {e}") from e


def _load_buffers(match: _Match) -> None:
    with torch.no_grad():
        for buffer, stored in match.buffers:
            whole = torch.empty(stored.shape, dtype=stored.dtype)
            for first, piece in stored.pieces():
                whole.view(-1)[first:first + piece.numel()] = piece
            buffer.copy_(whole)


def load_safetensors(model: nn.Module, path: str | os.PathLike[str], strict: bool = True, *,
                     alone: bool = False) -> None:
    """Loads parameters and persistent buffers from safetensors files.  All ranks call it.

    Each rank writes a part of the parameters to the service, about equal and cut at whole parameters.  If ranks have
    different parameters, the first rank that has one writes it.  Values go straight out of the file, of which a rank
    holds 20 MiB.  It holds 64 MiB of a parameter that a mesh divides, and of a type other than fp32, bf16, fp16 and the
    model's bytes.  Each rank reads the headers and its buffers, and so must see the files.  The call begins when all
    ranks have called, and returns when everything is written.  Everything is checked first: an error loads nothing.

    path: a file, or a directory with "model.safetensors" or "model.safetensors.index.json".  Any floating-point dtype
    is right; 16-bit parameters get master weights as exact as the file.  A tied parameter may have any of its names.
    strict: False ignores missing and unexpected names; shapes must fit all the same.
    alone: this rank reads and writes by itself, and waits for no other.  The others must be between steps, and keep
    their buffers.

    Errors: CheckpointError, which lists everything that does not fit, for a file that is broken or does not fit the
    model.  RuntimeError in the middle of a step; OSError; zerod.Error of the service.
    """
    sharded = sharded_of(model)
    if alone and sharded.pipeline:
        raise ValueError("one rank alone has only its stage of the model: call load_safetensors() on all ranks, without alone")
    check_boundary(sharded)
    check_machine()
    with contextlib.ExitStack() as stack:
        match = _match_model(sharded, StoredSet(stack, _file_path(path)), strict)
        stack.enter_context(sharded.turn.changing())
        if not alone:
            sharded.barrier()
        mine = set(sharded.params) if alone else _mine(sharded)
        _write(sharded, [(p, "master", stored) for p, stored in match.params if p in mine])
        _load_buffers(match)
    if alone:
        _let_go(sharded)
    else:
        sharded.barrier()


def _let_go(sharded: Sharded) -> None:
    for unit in sharded.units:
        if unit.depth == 0 and unit.fetched:
            unit.release()


# ---- model and optimizer -----------------------------------------------------------


def _optimizer_sources(optimizer: ServiceOptimizer) -> list[Source]:
    sources, sharded = [], optimizer.sharded
    for param in (*sharded.params, *sharded.elsewhere):
        if not param.trainable:
            continue
        steps = sharded.read(param, "step")
        planes = list(optimizer.kept_of(param)) if int(steps) else []
        if param.dtype is not torch.float32:
            planes.append("master")
        sources += [source_of(sharded, param, p, f"{p}.{param.name}") for p in planes]
        if int(steps):
            sources.append(of_tensor(f"step.{param.name}", steps.view(())))
    return sources


def _groups_text(optimizer: ServiceOptimizer) -> str:
    """Returns the param groups as JSON, with names in place of parameters."""
    sharded = optimizer.sharded
    groups = [{**g, "params": [sharded.param_of(p).name for p in g["params"]]} for g in optimizer.param_groups]
    _, numbers = optimizer.numbered(optimizer.param_groups)
    for param in filter(lambda p: p.trainable, sharded.elsewhere):
        index = int(sharded.read(param, "set"))
        if index not in numbers:
            raise ValueError(f"parameter '{param.name}' of another stage is in param group {index}, and the optimizer has "
                             f"{len(groups)}. Give all stages the same param groups; a group may be empty")
        groups[numbers.index(index)]["params"].append(param.name)
    try:
        return json.dumps(groups, default=torch.Tensor.item)
    except (TypeError, RuntimeError) as e:
        raise ValueError(f"a param group has a value that JSON cannot express: {e}") from e


def save_checkpoint(directory: str | os.PathLike[str], model: nn.Module,
                    optimizer: ServiceOptimizer, *,
                    max_shard_size: int | str | None = None) -> None:
    """Writes model and optimizer, streamed, so that training resumes exactly.  One rank calls it.

    directory: gets "model.safetensors" as from :func:`save_safetensors`, and "optimizer.safetensors".  The latter has
    the optimizer's planes (fp32), such as "exp_avg.<name>", and "step.<name>" (int64) of updated parameters.  It also
    has "master.<name>" (fp32) of 16-bit parameters, and the param groups in its header.  max_shard_size cuts both into
    several files.  The header also has ``model.sharded.steps_made``.  After a load :func:`steps` goes on with that
    number, and so do batches, a scheduler that steps() steps, and random numbers by its seed.  A GradScaler has a
    state_dict() of its own.
    """
    sharded = sharded_of(model)
    if optimizer.sharded is not sharded:
        raise ValueError("the optimizer belongs to another model")
    check_not_averaged(sharded)
    directory = os.fspath(directory)
    ids = {SAVE_ID: uuid.uuid4().hex}
    with sharded.turn.one_version():
        groups = _groups_text(optimizer)
        _save_model(sharded, os.path.join(directory, MODEL_FILE), max_shard_size, None,
                    {"format": "pt", **ids})
        write_set(os.path.join(directory, OPTIMIZER_FILE), _optimizer_sources(optimizer), bytes_of(max_shard_size),
                  {"format": "pt", PARAM_GROUPS: groups, STEPS_MADE: str(sharded.steps_made), **ids})


def _match_optimizer(optimizer: ServiceOptimizer,
                     found: StoredSet) -> dict[ShardedParam, dict[str, Stored]]:
    """Returns each trained parameter's tensors by plane; {} for one that was never updated."""
    by_name = {p.name: p for p in optimizer.sharded.params if p.trainable}
    match: dict[ShardedParam, dict[str, Stored]] = {p: {} for p in by_name.values()}
    elsewhere = {p.name for p in optimizer.sharded.elsewhere}
    for key, stored in found.tensors.items():
        plane, _, name = key.partition(".")
        if name in elsewhere:
            continue
        param = by_name.get(name)
        if param is None or plane not in (*optimizer.kept_of(param), "master", "step"):
            raise CheckpointError(f"{found.path}: '{key:.200}' belongs to no trained parameter of "
                                  f"this model, or to another optimizer than {optimizer.name}")
        shape = () if plane == "step" else tuple(param.shape)
        dtype = torch.int64 if plane == "step" else torch.float32
        if stored.shape != shape or stored.dtype is not dtype:
            raise CheckpointError(f"{found.path}: '{key:.200}' is {stored.dtype} {stored.shape}, "
                                  f"not {dtype} {shape}")
        match[param][plane] = stored
    for param, planes in match.items():
        wanted = {*optimizer.kept_of(param), "step"}
        there = wanted & planes.keys()
        if there and there != wanted:
            raise CheckpointError(f"{found.path}: parameter '{param.name}' has only "
                                  f"{', '.join(sorted(there))}, and {optimizer.name} keeps "
                                  f"{', '.join(sorted(wanted))}")
        if "step" in planes and not 0 < int(planes["step"].read(0, 1)) < 1 << 62:
            raise CheckpointError(f"{found.path}: the step of '{param.name}' is out of range")
    return match


def _match_groups(optimizer: ServiceOptimizer, found: StoredSet) -> list[dict[str, Any]]:
    """Returns the saved param groups.  CheckpointError unless they have the same parameters."""
    try:
        groups = json.loads(found.metadata().get(PARAM_GROUPS, ""), parse_constant=no_constant)
        elsewhere = {p.name for p in optimizer.sharded.elsewhere}
        saved = [sorted(n for n in g["params"] if n not in elsewhere) for g in groups]
        for g in groups:
            optimizer.set_of({**optimizer.defaults, **g})
    except (ValueError, TypeError, KeyError, OverflowError,
            RecursionError) as e:
        raise CheckpointError(f"{found.path}: its param groups cannot be read: {e}") from e
    mine = [sorted(optimizer.sharded.param_of(p).name for p in g["params"]) for g in optimizer.param_groups]
    if saved != mine:
        raise CheckpointError(f"{found.path}: its {len(saved)} param groups have other parameters "
                              f"than the optimizer's {len(mine)}")
    return groups


def _steps_made(found: StoredSet) -> int:
    text = found.metadata().get(STEPS_MADE, "")
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise CheckpointError(f"{found.path}: '{text:.40}' is no number of steps made")
    return int(text)


def _load_optimizer(optimizer: ServiceOptimizer,
                    match: dict[ShardedParam, dict[str, Stored]]) -> None:
    for these in (("master",), optimizer.planes):  # a write to master may write ema
        _write(optimizer.sharded, [(p, plane, planes[plane]) for p, planes in match.items() for plane in these if plane in planes])
    for param, planes in match.items():
        if "step" in planes:
            optimizer.sharded.write(param, "step", planes["step"].read(0, 1))
        else:
            optimizer.clear_state(param)


def load_checkpoint(directory: str | os.PathLike[str], model: nn.Module,
                    optimizer: ServiceOptimizer) -> None:
    """Loads the files of :func:`save_checkpoint`.  All ranks call it.

    The number of ranks and nodes, and the stage, may be others than at the save.  Ranks write as in
    :func:`load_safetensors`.  The call begins when all ranks have called, and returns when everything is written.  Both
    files are checked first: an error loads nothing.  ``model.sharded.steps_made`` then has its value at the save, also
    for ranks that start again later.

    Errors: CheckpointError for files that are broken, of different saves, or do not fit model and param groups.
    RuntimeError in the middle of a step; OSError; zerod.Error of the service.
    """
    sharded = sharded_of(model)
    if optimizer.sharded is not sharded:
        raise ValueError("the optimizer belongs to another model")
    check_boundary(sharded)
    check_machine()
    directory = os.fspath(directory)
    with contextlib.ExitStack() as stack:
        model_set = StoredSet(stack, os.path.join(directory, MODEL_FILE))
        optimizer_set = StoredSet(stack, os.path.join(directory, OPTIMIZER_FILE))
        if model_set.save_id is None or model_set.save_id != optimizer_set.save_id:
            raise CheckpointError(f"{directory}: model and optimizer come from different saves")
        match = _match_model(sharded, model_set, True)
        states = _match_optimizer(optimizer, optimizer_set)
        groups, made = _match_groups(optimizer, optimizer_set), _steps_made(optimizer_set)
        stack.enter_context(sharded.turn.changing())
        sharded.barrier()
        mine = _mine(sharded)
        _write(sharded, [(p, "master", stored) for p, stored in match.params
                         if p in mine and "master" not in states.get(p, {})])
        _load_optimizer(optimizer, {p: of for p, of in states.items() if p in mine})
        _load_buffers(match)
        for mine, saved in zip(optimizer.param_groups, groups):
            optimizer._take_group(mine, saved)
        sharded.attempt.goes_on_from(made)
        sharded.barrier()


# ---- the files of transformers.Trainer ----------------------------------------------


def save_plain(directory: str, optimizer: ServiceOptimizer,
               defaults: Mapping[str, Any] | None = None, name: str = PLAIN_FILE) -> None:
    """Writes model and optimizer as transformers.Trainer does, streamed.  One rank calls it.

    "optimizer.pt", or `name`, is a file of torch.save() with a state_dict() that torch's optimizer loads.  "master.pt"
    has the fp32 master weights of 16-bit parameters by the same numbers.
    defaults: of torch's optimizer, for keys that the param groups here do not have; None: torch's own.
    """
    check_not_averaged(optimizer.sharded)
    if optimizer.sharded.pipeline:
        raise ValueError("a stage of a pipeline has not the optimizer of all stages: use save_checkpoint()")
    if defaults is None:
        kind = optimizer.torch_kind
        defaults = kind([torch.zeros(0)]).defaults if kind else {}
    ids = {SAVE_ID: uuid.uuid4().hex}
    _save_model(optimizer.sharded, os.path.join(directory, MODEL_FILE), None, None,
                {"format": "pt", **ids})
    packed = optimizer.sources()
    no_key = {"decoupled_weight_decay"} - defaults.keys()  # PyTorch 2.6 has none
    packed["param_groups"] = [{k: v for k, v in {**defaults, **g}.items() if k not in no_key} for g in packed["param_groups"]]
    masters = {i: entry.pop("master") for i, entry in packed["state"].items() if "master" in entry}
    if masters:
        write_pickled(os.path.join(directory, MASTER_FILE), {"master": masters, **ids})
    write_pickled(os.path.join(directory, name), {**packed, **ids})


def _damaged(directory: str, what: str) -> CheckpointError:
    return CheckpointError(
        f"{os.path.join(directory, MASTER_FILE)} has {what}: it is damaged or not of zerod; copy it "
        "again, or delete it to begin with the model's 16-bit values")


def _entry(directory: str, masters: Any, key: str) -> Any:
    if not isinstance(masters, dict) or key not in masters:
        raise _damaged(directory, f"no '{key}'")
    return masters[key]


def load_plain(directory: str, optimizer: ServiceOptimizer, name: str = PLAIN_FILE) -> None:
    """Loads the optimizer of :func:`save_plain` or transformers.Trainer.  All ranks call it, after loading the model.
    CheckpointError if model and optimizer come from different saves, or master.pt is damaged.  Other errors are those
    of :meth:`ServiceOptimizer.load_state_dict`."""
    def read(file: str) -> dict[str, Any]:
        return torch.load(os.path.join(directory, file), map_location="cpu", weights_only=True,
                          mmap=True)

    packed, sharded = read(name), optimizer.sharded
    if SAVE_ID in packed:
        with contextlib.ExitStack() as stack:
            model = StoredSet(stack, os.path.join(directory, MODEL_FILE))
            if model.save_id != packed[SAVE_ID]:
                raise CheckpointError(f"{directory}: model and optimizer come from different saves")
    if any(p.dtype is not torch.float32 for p in sharded.params if p.trainable):
        there = os.path.exists(os.path.join(directory, MASTER_FILE))
        masters = read(MASTER_FILE) if there else {}
        if there and _entry(directory, masters, SAVE_ID) == packed.get(SAVE_ID):
            values = _entry(directory, masters, "master")
            if not isinstance(values, dict):
                raise _damaged(directory, "a 'master' that holds no parameters")
            for i, master in values.items():
                if i not in packed["state"]:
                    raise _damaged(directory, f"'{i}', which is not a parameter of {name}")
                if not isinstance(master, torch.Tensor):
                    raise _damaged(directory, f"'{i}', which is not a tensor")
                packed["state"][i]["master"] = master
        elif sharded.rank == 0:
            log.warning("%s has no %s of the same save: fp32 master weights begin as the model's "
                        "16-bit values", directory, MASTER_FILE)
    optimizer.load_state_dict(packed)
