"""Takes a model to zerod: its parameters go to the service, and it becomes a ZeroModule.

ZeRO (Rajbhandari et al., SC20, arXiv 1910.02054): in all stages the service holds optimizer states and gradients in
shards.  Stage 1 fetches all parameters once a step and pushes all gradients at the end of backward.  Stage 2 pushes
each group when its gradient is complete.  Stage 3 also gives parameters back after use.
"""
from __future__ import annotations

import contextlib
import copy
import functools
import logging
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import zerod
from zerod.environment import incarnation
from zerod.sets import HYPERPARAMETERS

from . import heap, initialize
from .activations import Activations
from .attempt import KEPT_MAX, Attempt
from .base import install as install_base
from .base import take as take_base
from .buffers import Buffers, check_of_buffers
from .clip_grad import clip_grad_norm_
from .formats import Choice, take_formats
from .gradients import Gradients
from .hooks import Hooks
from .matrices import MuonSplit, split_for, take_split
from .parameter import Placeholder
from .pipeline import Stage, params_elsewhere
from .place import place_of
from .plan import BYTES, DTYPES, Groups, PlannedUnit, find_units, named
from .sharded import RESUME, Sharded, check_resume, sharded_of, uncompiled
from .split import check_mesh, count_batches, is_dtensor, local_of, split_of
from .state import full_params
from .state import install as install_state
from .twin import override, plain
from .unit import Group, ShardedParam, Unit

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

log = logging.getLogger("zerod")

_of_job: "weakref.WeakValueDictionary[str, Sharded]" = weakref.WeakValueDictionary()


class ZeroModule(nn.Module):
    """The methods that a sharded model gains: its class becomes a subclass of this one."""

    @property
    def sharded(self) -> Sharded:
        """The model's :class:`Sharded`."""
        return self.__dict__["_zerod_sharded"]

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0,
                        error_if_nonfinite: bool = False) -> torch.Tensor:
        """Calls :func:`zerod.torch.clip_grad_norm_`."""
        return clip_grad_norm_(self, max_norm, norm_type, error_if_nonfinite)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        """Returns a model that is not sharded, with the present parameters, in this rank's memory.  Any rank may call
        it alone."""
        with full_params(self), self.sharded.turn.one_version(), plain(self):
            return copy.deepcopy(self, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles a copy that is not sharded, so torch.save(model) and pickle need no zerod to load it."""
        return copy.copy, (copy.deepcopy(self),)  # a function that every Python has

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Yields the parameters, as in torch.  RuntimeError if a schedule of torch.distributed.pipelining is about to
        divide gradients, because the service has them, and the division would do nothing."""
        if self.sharded.pipeline and sys._getframe(1).f_code.co_name == "scale_grads":  # pylint: disable=protected-access
            raise RuntimeError("the service has the gradients, and the schedule cannot divide them: make it with "
                               "scale_grads=False, and a loss_fn that divides by the number of micro-batches")
        return super().parameters(recurse)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does what :meth:`ServiceOptimizer.zero_grad` does: all ranks call it to discard gradients."""
        del set_to_none
        self.sharded.drop_gradients()

    def train(self, mode: bool = True) -> nn.Module:
        """Sets the mode, as in torch.  UsedByAnotherThread while another thread trains, because it shares the mode."""
        self.sharded.turn.check()
        return super().train(mode)

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """Begins :meth:`no_sync` (False), or ends it (True), in FSDP2's spelling."""
        if not recurse:
            raise NotImplementedError("recurse=False: gradients of the whole model are pushed or kept; leave it out")
        self.sharded.turn.check()
        self.sharded.gradients.keep = not requires_gradient_sync

    def unshard(self, async_op: bool = False) -> None:
        """Raises NotImplementedError, unlike FSDP2's: a group is there only during its own forward and backward."""
        del async_op
        raise NotImplementedError("unshard() and reshard(): forward fetches and releases by itself; to read or change "
                                  "parameters elsewhere, write 'with zerod.torch.full_params(module, write=...):'")

    def reshard(self) -> None:
        """Raises NotImplementedError, as :meth:`unshard` does."""
        self.unshard()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keeps backward passes inside from pushing: their gradients add up in this process.  The first backward pass
        outside pushes the sums, or else the step does.

        The process then needs memory for the gradients of the whole model.  Without no_sync() the owners add up the
        gradients that each backward pass pushes.  The sums are the same.
        """
        self.sharded.turn.check()
        gradients = self.sharded.gradients
        before, gradients.keep = gradients.keep, True
        try:
            yield
        finally:
            gradients.keep = before


def _check_optimizer(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    """Raises RuntimeError for an optimizer that steps without the service: it would train nothing, silently."""
    if isinstance(getattr(optimizer, "sharded", None), Sharded):
        return
    for p in (p for group in optimizer.param_groups for p in group["params"]):
        taken = (p.zerod_param.name if isinstance(p, Placeholder)
                 else getattr(p, "zerod_taken", None))
        if taken:
            raise RuntimeError(
                f"{type(optimizer).__name__} cannot update parameter '{taken}': shard() took it to "
                "zerod. Use an optimizer of the service, as zerod.torch.AdamW(model, ...), made after "
                "shard()")


register_optimizer_step_pre_hook(_check_optimizer)


# ---- taking a model to the service ------------------------------------------------


def _lay_out(sharded: Sharded, planned: list[PlannedUnit], whole: set[str]) -> zerod.Layout:
    """Makes units, groups and parameters.  Returns the layout: that of all ranks, or the part of this pipeline
    stage."""
    layout, stage = zerod.Layout(), sharded.pipeline
    for unit in planned:
        groups = []
        for i, members in enumerate(unit.groups()):
            name = (unit.name or "(root)") + (f"#{i}" if i else "") + (stage.suffix if stage else "")
            name = members[0].tied[0] if members[0].tied else name
            params = [ShardedParam(sharded, p.names, p.places, p.value, p.split, p.matrices, p.formats) for p in members]
            optimizer = ("muon" if any(p.matrices for p in members) else "adamw") if sharded.muon else sharded.optimizer_name
            split = members[0].split
            divisor = split.batches if split else stage.ranks if stage else 0
            for part in range(len(split.ranks)) if split and not stage else [split.own if split else 0]:
                suffix = split.suffix(part) if split else ""
                index = layout.group(name + suffix, (DTYPES | BYTES)[params[0].dtype],
                                     split.ranks[part] if split and not stage else None, divisor,
                                     optimizer=optimizer, eager=sharded.eager and params[0].trainable,
                                     ema=sharded.ema, state=members[0].formats[0], master=members[0].formats[1])
                for p in params:
                    layout.tensor(index, p.name + suffix, tuple(p.split.shape(part) if split else p.shape),
                                  frozen=not p.trainable, whole=p.name in whole, matrices=p.matrices,
                                  set=int(bool(sharded.muon) and not p.matrices),
                                  optimizer="adamw" if optimizer == "muon" and not p.matrices else None)
            groups.append(Group(sharded.place, params))
        sharded.groups += groups
        sharded.units.append(Unit(sharded, unit.name, unit.module, groups))
    sharded.params = [p for g in sharded.groups for p in g.params]
    return layout


def _find_in(sharded: Sharded, layout: zerod.Layout) -> None:
    """Finds parameters and groups in the layout of all ranks."""
    tensors = {layout.tensor_name(t): t for t in range(layout.tensors)}
    for p in sharded.params:
        split = p.split
        names = [p.name + split.suffix(part) for part in range(len(split.ranks))] if split else [p.name]
        p.parts = [tensors[name] for name in names]
        p.index = p.parts[split.own if split else 0]
        p.group = layout.tensor_group(p.index)
        p.position = layout.group_tensors(p.group).index(p.index)
        p.offset = layout.offset(p.index) * p.of_element
        firsts = [(layout.group_ranks(layout.tensor_group(t)) or [0])[0] for t in p.parts]
        p.writer, p.part_writer = min(firsts), firsts[p.parts.index(p.index)]
        p.everywhere = split is None and not layout.group_ranks(p.group)
    for g in sharded.groups:
        g.index = g.params[0].group
        g.elements = layout.group_elements(g.index) * g.params[0].of_element
    if sharded.pipeline:
        sharded.elsewhere = params_elsewhere(layout, {t for p in sharded.params for t in p.parts})
        for p in sharded.elsewhere:
            p.matrices = sharded.muon.matrices.get(p.name) if sharded.muon else None


def _needs(sharded: Sharded) -> dict[str, Any]:
    """Returns the most groups held at once, and the arguments of their place."""
    widest = max(len(u.groups) for u in sharded.units)
    if not sharded.place.holds:
        hold = (2 + sharded.prefetch) * widest  # two units that are copied, and the prefetched ones
    elif sharded.stage < 3:
        hold = zerod.ALL
    else:
        root = len(sharded.units[-1].groups)
        nested = max(sum(o.name != "" and u.name.startswith(o.name + ".") for o in sharded.units)
                     for u in sharded.units)
        hold = root + (nested + 2 + sharded.prefetch) * widest
    sizes = [g.elements * g.dtype.itemsize for g in sharded.groups]
    if hold * max(sizes) >= sum(sizes):
        hold = zerod.ALL  # a window of equal slabs would be larger than the model
    return {"hold_groups": hold, **sharded.place.needs()}


def _move_buffers(model: nn.Module, device: torch.device) -> None:
    """Moves buffers.  A buffer that several modules share stays shared."""
    moved: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.device != device:
                module._buffers[name] = moved.setdefault(id(buffer), buffer.to(device))


def _grad_dtype(planned: list[PlannedUnit]) -> torch.dtype:
    """Returns bf16 if all trained parameters are bf16, else fp32."""
    trained = {p.value.dtype for u in planned for p in u.params if p.value.requires_grad}
    return torch.bfloat16 if trained == {torch.bfloat16} else torch.float32


def _refuse_gradients(taken: nn.Parameter, name: str) -> None:
    """Makes backward raise if the model still computes with a parameter of before shard(), such as one in a list."""
    def refuse(_gradient: torch.Tensor) -> None:
        raise RuntimeError(f"parameter '{name}' is used as it was before shard(), and would not be trained. The model keeps "
                           "it beside its attribute, such as in a list: use the module's attribute in forward")

    if taken.requires_grad:
        taken._backward_hooks = None  # pylint: disable=protected-access  # the user's dict is the gathered parameter's
        taken.register_hook(refuse)


def _bring_values(sharded: Sharded, planned: list[PlannedUnit],
                  init_fn: Callable[[nn.Module], None] | None) -> None:
    """Writes first values, group by group, and puts placeholders into the model.

    A job that has values keeps them, and its other ranks may be in the middle of a step.
    """
    client, first = sharded.client, not sharded.goes_on
    for unit, plan in zip(sharded.units, planned):
        members = [p for group in plan.groups() for p in group]
        values = initialize.materialize(sharded.model, members, init_fn,
                                        wanted=first and any(client.rank == p.part_writer for p in unit.params))
        for param, p, value in zip(unit.params, members, values):
            if p.split:
                value = p.value
            if first and client.rank == param.part_writer:
                sharded.write_part(param, "master", local_of(value))
            param.put_in_place(param.placeholder)
            p.value.zerod_taken = param.name  # _check_optimizer() looks for it
            _refuse_gradients(p.value, param.name)
            p.value = None
    if first:
        sharded.barrier(check_of_buffers(sharded))
    elif sharded.attempt.is_of_another_world:
        sharded.attempt.agree_on_steps()


def _find_standing(sharded: Sharded, resume: str) -> None:
    """Checks the job's step against `resume`.  Logs a line if the job goes on."""
    client = sharded.client
    sharded.goes_on = sharded.attempt.has_values
    try:
        check_resume(sharded, resume)
    except RuntimeError:
        made_here = not sharded.goes_on
        client.close()
        if made_here and client.rank == 0:
            with contextlib.suppress(zerod.Error):
                zerod.drop(client.job, client.socket)
        raise
    if client.version > 0 and client.rank == 0:
        log.log(logging.INFO if incarnation() else logging.WARNING,
                "job '%s' goes on after step %d, with the service's parameters; zeroctl drop %s starts "
                "afresh", client.job, client.version, client.job)


def _on_base(model: nn.Module, base: Iterable[str | os.PathLike[str]] | None, device: Any, client: zerod.Client | None,
             job: str | None, timeout: float | None, mesh: "DeviceMesh | None", stage: Stage | None) -> tuple[Any, Any, Any]:
    """Returns the client, and the results of take_base()."""
    if base is None:
        return client, {}, []
    mine = client or zerod.connect(job, timeout=timeout)
    try:
        return mine, *take_base(model, mine, base, place_of(device, model.parameters()), mesh, stage)
    except BaseException:
        if client is None:
            mine.close()
        raise


def shard(model: nn.Module, stage: int = 3, groups: Groups = None, *,
          client: zerod.Client | None = None, job: str | None = None, timeout: float | None = None,
          reduce_dtype: torch.dtype | None = None,
          init_fn: Callable[[nn.Module], None] | None = None, prefetch: int = 1,
          push_groups: int = zerod.AUTO, on_lost_rank: str = "wait",
          device: torch.device | str | int | None = None, resume: str = "auto",
          keep: bool | None = None, optimizer: str | MuonSplit = "adamw", ema: bool = False, eager: bool = False,
          whole: Iterable[str] = (), state: Choice = "fp32", master: Choice = "fp32",
          accumulate: str = "fp32",
          stash: zerod.Stash | int | None = None, mesh: "DeviceMesh | None" = None,
          data: Iterable[str] | None = None, pipeline: str | None = None,
          tied: Iterable[Iterable[str]] = (),
          base: Iterable[str | os.PathLike[str]] | None = None) -> nn.Module:
    """Takes a model's parameters and optimizer state to zerod, and returns the same model.

    All ranks of a job call it, with the same model.  Blocks until all have.  A rank that takes the place of a dead rank
    attaches at once, and goes on in the step in which that rank died.

    model: on the CPU, on a CUDA device or, wholly or partly, on the meta device; it may come from torch.compile().
    Parameters are fp32, bf16 or fp16.  Frozen ones may also be int8, uint8, fp8 (e4m3fn, e5m2) or bool, which the
    service keeps and serves as bytes.  Parameters keep their classes, attributes and hooks.  Hooks change the gradient
    that is pushed, and a post-accumulate-grad hook sees the gradient of one backward pass.  The service gets rank 0's
    values.  Buffers are each rank's own, and alike at first; persistent ones are kept with each step
    (:mod:`zerod.torch.buffers`).  Parameters on meta are initialised one group at a time: by ``init_fn(module)``, else
    as Hugging Face models do, else by ``reset_parameters()``.  If the job has made steps already, it goes on with the
    service's values, and the model's own are dropped.
    stage: 1, 2 or 3, as in the ZeRO paper.
    groups: modules whose parameters are fetched and released together: classes, class names or module names, or
    ``f(name, module) -> bool``.  None: the modules marked by :func:`fully_shard`, else repeated blocks and large
    layers.  All other parameters form one group with the model.
    client: of :func:`zerod.connect`; None: connects with `job` and `timeout`.
    reduce_dtype: of gradients between nodes, torch.float32, torch.bfloat16 or torch.float16.  None: bf16 if all trained
    parameters are bf16, else fp32.  A sum beyond fp16's range (65504) counts as not finite, and the step is skipped:
    use :class:`GradScaler` with it.
    accumulate: dtype of the sums of gradients that owners keep.  "fp32", or "wire": as between nodes, which takes 2 bytes
    a parameter less where reduce_dtype has 16 bits, in host memory.  Each micro-batch that is pushed rounds the sum once:
    a relative error of 0.2 % in bf16 for one, 0.4 % for 8, 0.7 % for 32.
    prefetch: the number of units that are fetched ahead of their use.
    push_groups: the number of groups whose gradients may be on their way at once; zerod.ALL for all.  zerod.AUTO: 2.
    On a GPU that also has the states of a job of one rank: all, if they take at most an eighth of its free memory.
    With all no push waits for another one, and the update adds gradients up where they are.  Pass 2 if the model needs
    that memory.
    on_lost_rank: "wait": a step whose rank dies waits for its successor, for as long as the timeout of
    :func:`zerod.connect`.  "fail": the others get zerod.LostRank at once.
    device: of parameters and gradients while the model computes: "cpu" for host memory, or "cuda", "cuda:N" for this
    process's GPU, which the node's daemon must serve.  None: the model's device, or the CPU if that is meta.  The
    model's buffers move there.  A GPU model runs its forward and backward passes on one stream, which may be any.  Full
    values (state_dict(), read()) are on the CPU.

    resume: says what happens if a job of that name has values already.  "auto": it goes on from them.  "never":
    RuntimeError, except in a process that torchrun or Slurm has started again.  "must": RuntimeError if the job has no
    values.
    keep: False: the daemon drops the job when all ranks have completed it, and the processes have ended with status 0.
    A rank completes the job when :func:`steps` or the Trainer has run to its end, or by ``client.finish(keep=False)``.
    True: the job stays.  None: a job whose name torchrun made up (:func:`zerod.connect`) is dropped when all processes
    have ended with status 0, completed or not.  Other jobs stay.
    optimizer: which one the service computes, and so what state it keeps: "adamw", "adam", "lion", "sgd",
    "sgd-momentum", which is :class:`SGD` with momentum, or "muon", which is :class:`Muon` of the matrices and AdamW of
    the rest.  The result of :func:`muon_split` is "muon", too, with another choice of matrices.  A job is continued
    under its own optimizer alone, with the same matrices.
    ema: the service also keeps the average of the weights (:func:`ema_params`), for an optimizer that is given
    ema_decay.  A job is continued with the same choice alone.
    eager: owners update a block as soon as its gradient is complete, while others still come.  This is L2L's eager
    parameter server.  :class:`LayerByLayer` says which gradient is the last.  The bits are the same.  Master weights and
    moments take twice the memory in the service, so a step that is skipped or aborted can be undone.  No clipping, no
    loss scale.
    whole: names of parameters that no owner's slice cuts, or patterns of them as fnmatch has them: ["*.lora_A.*"].  One
    owner has all of such a parameter, with its norm and its update; of a DTensor, all of each part.  The bits are the
    same.  A job is continued with the same choice alone.  ValueError for a name that no parameter has; in a pipeline a
    warning, because another stage may have the parameter.
    state, master: formats in which owners keep the moments, "fp32", "bf16" or "8bit", and the master weights: "fp32", or of
    bf16 parameters "bf16+16", which is exact, or "bf16+8".  One format for all trained parameters, or {name or pattern:
    format}, with fp32 for parameters that it does not mean; a name comes before a pattern, and a pattern before those behind
    it.  Parameters of one module with other formats than the rest are a group of their own.  Full values are fp32 all the
    same.  A job is continued with the same choice alone; ``zeroctl restore --convert`` changes it.  ValueError, naming
    the parameter, for a frozen one, for a master that the parameter's dtype or eager=True does not allow, and for moments
    of "sgd".
    stash: room for the inputs of checkpointed blocks (:func:`checkpoint`): a zerod.Stash or its bytes, those of all
    inputs that one step has at once.  It is on the model's device or in host memory (its `where`).  None: no room.

    mesh: the named mesh of all ranks, from which the parallel dimension is taken, for a model that tensor or expert
    parallelism has divided (torch.distributed.tensor.parallel.parallelize_module()).  See :mod:`zerod.torch.split`.
    data: names of the mesh's dimensions along which ranks have batches of their own; None: those that divide no
    parameter.  Experts whose ranks have batches of their own and exchange tokens need it: data=("dp", "ep").
    pipeline: the dimension of `mesh` along which the model is cut into stages, in the order of the coordinates.
    `model` is then this rank's stage, with the names of the whole model.  torch.distributed.pipelining makes stages, or
    ranks leave out the modules of other stages.  See :mod:`zerod.torch.pipeline`.
    tied: names of the parameters that several stages share, the same on all ranks, such as [("embed.weight",
    "head.weight")].  The first is the parameter's name in files, and the first stage's values are taken.

    base: safetensors files of the frozen parameters.  All frozen parameters are then the files' tensors of their names,
    dtypes and shapes.  The names before peft and those in `tied` count, too.  These parameters are no group: all ranks
    and jobs of the user on this node that name files of the same contents read one copy.  A job goes on only with files
    of the same contents.  A parameter that `mesh` divides is this rank's part of the mapped tensor.  Stages of a
    pipeline all name the files of the whole model, and each node has all of them in memory.  A GPU has one copy of the
    files for all processes of the user there, beside the node's copy in host memory.  Each process has a copy of its
    own with `mesh` or `pipeline`.  So it is with a driver that exports no descriptors, and with a daemon of the
    release before.  Mapped memory cannot be written to: peft's merge raises RuntimeError (merge a copy.deepcopy()).
    Any other operation in place on such a parameter ends the process by SIGSEGV in host memory.  On a GPU it is a
    fault of the process's GPU context.  If the driver maps all memory writable, optimizer.step() raises
    WrittenToBase.  A write to a process's own copy changes that process alone.  Files of :func:`save_safetensors` and
    :func:`save_checkpoint` have only the other parameters.

    Errors: TypeError and ValueError, naming the parameter, for a model that cannot be sharded.  CheckpointError for
    files of a base that are broken.  zerod.Error of the service: LayoutMismatch with the first difference between
    ranks, or a buffer that differs; Gpu for the device; Quota (gpu_windows) and NoMemory if the GPU has no room for the
    base.
    """
    given, model = model, uncompiled(model)
    if "_zerod_sharded" in model.__dict__:
        raise ValueError(f"{type(model).__name__} is sharded already")
    if resume not in RESUME:
        raise ValueError(f"resume is one of {', '.join(RESUME)}, not {resume!r}")
    if not isinstance(optimizer, MuonSplit) and optimizer not in HYPERPARAMETERS:
        raise ValueError(f"optimizer is one of {', '.join(HYPERPARAMETERS)}, or of muon_split(), not {optimizer!r}")
    muon = split_for(model, optimizer, pipeline is not None)
    if muon and eager:
        raise ValueError("eager=True with Muon: owners cannot update a matrix before the step is decided; leave eager out")
    if stage not in (1, 2, 3):
        raise ValueError(f"stage is 1, 2 or 3, not {stage!r}")
    if not isinstance(prefetch, int) or prefetch < 0:
        raise ValueError(f"prefetch is a number of units, not {prefetch!r}")
    marked = _marked(model)
    _check_marks(model, stage)
    heap.share_one_arena()
    if mesh is not None and not mesh.mesh_dim_names:
        raise ValueError("the mesh has no names: init_device_mesh(..., mesh_dim_names=('dp', 'tp'))")
    cut = Stage(mesh, pipeline, tied) if pipeline is not None else None
    client, apart, splits = _on_base(model, base, device, client, job, timeout, mesh, cut)
    planned = find_units(model, groups, marked, apart)
    if not any(u.params for u in planned):
        raise ValueError(f"{type(model).__name__} has no parameters" + (" but those of the base" if apart else ""))
    params = [p for u in planned for p in u.params]
    for p in params:
        p.split = split_of(p.name, p.value, mesh)
        if is_dtensor(p.value) and p.value.is_meta:
            raise ValueError(f"parameter '{p.name}' is a DTensor on the meta device: give it values before shard()")
    if cut:
        cut.tie(params)
    elif list(tied):
        raise ValueError("tied= names what stages of a pipeline share: pass pipeline= too")
    if muon:
        take_split(params, muon)
    kept_whole = named(params, whole, "whole", cut is not None)
    take_formats(params, state, master, "muon" if muon else str(optimizer), bool(eager), cut is not None)
    if mesh is not None:
        count_batches([*splits, *(p.split for p in params if p.split)], mesh, data, pipeline)
    elif data is not None:
        raise ValueError("data= names dimensions of a mesh: pass mesh= too")
    grad_dtype = _grad_dtype(planned)
    reduce_dtype = reduce_dtype or grad_dtype
    if reduce_dtype not in DTYPES:
        raise ValueError("reduce_dtype is torch.float32, torch.bfloat16 or torch.float16, not "
                         f"{reduce_dtype}")
    initialize.prepare(model, init_fn)
    place = place_of(device, (p.value for p in params))
    sharded = Sharded(model, stage, prefetch, place, "muon" if muon else str(optimizer), bool(ema))
    sharded.pipeline, sharded.eager, sharded.base, sharded.muon = cut, bool(eager), apart, muon
    layout = _lay_out(sharded, planned, kept_whole)
    sharded.client = client or zerod.connect(job, timeout=timeout)
    if mesh is not None:
        check_mesh(mesh, sharded.client.rank, sharded.client.world_size)
    other = _of_job.get(sharded.client.job)
    if other is not None and not other.client.closed:
        raise ValueError(f"this process has a model in job '{sharded.client.job}' already: give "
                         "each model a job of its own, shard(model, job=...)")
    if cut:
        layout = sharded.client.compose(layout, cut.number)
    _find_in(sharded, layout)
    needs = _needs(sharded)
    sharded.hold_groups = needs["hold_groups"]
    if keep:
        sharded.client.keep_job()
    sharded.client.attach(layout, **needs, push_groups=push_groups, grad_dtype=DTYPES[grad_dtype],
                          reduce_dtype=DTYPES[reduce_dtype], on_lost_rank=on_lost_rank,
                          stash=stash, accumulate=accumulate)
    sharded.activations = Activations(sharded, stash)
    sharded.attempt, sharded.keep = Attempt(sharded), keep
    _find_standing(sharded, resume)
    _move_buffers(model, place.device)
    sharded.buffers = Buffers(model, KEPT_MAX, talks=sharded.rank == 0 or cut is not None)
    if sharded.goes_on:
        sharded.attempt.restore_buffers()
    sharded.gradients = Gradients(sharded, sharded.groups, grad_dtype)
    sharded.hooks = Hooks(sharded)
    _unmark(marked)
    _bring_values(sharded, planned, init_fn)
    sharded.hooks.install()
    override(model, "_zerod_sharded", sharded)
    _of_job[sharded.client.job] = sharded
    model.__class__ = type(type(model).__name__, (ZeroModule, type(model)), {})
    install_state(model, sharded)
    install_base(model, apart)
    return given


class _Mark:
    """The mark of fully_shard() in a module: its own forward, if it had one, and the stage that was asked for."""

    def __init__(self, module: nn.Module, reshard: bool | None):
        self.forward = module.__dict__.get("forward")
        self.stage = {None: None, True: 3, False: 2}[reshard]


_OF_FSDP2 = {
    "mesh": "the ranks are those of the job: leave it out; to divide a model further, shard(model, mesh=...)",
    "mp_policy": "give the model its dtype, and gradients theirs by shard(model, reduce_dtype=...)",
    "offload_policy": "the service has parameters and optimizer state in host memory already: leave it out",
    "shard_placement_fn": "the service chooses the shards: leave it out",
    "ignored_params": "a parameter that is not trained is frozen by requires_grad_(False)"}


def fully_shard(module: nn.Module, *, reshard_after_forward: bool | None = None, **other: Any) -> nn.Module:
    """Marks a module as one group of :func:`shard`, like FSDP2's function of that name, and returns it.

    Mark blocks first, the model last.  ``shard(model, ...)`` or an optimizer, such as ``AdamW(model)``, then takes the
    model to the service.  Else its first forward does, with the defaults of :func:`shard`.

    reshard_after_forward: of a block, True is stage 3 and False is stage 2.  shard() raises ValueError if its stage is
    another one.  The model itself keeps its own parameters until backward ends, as FSDP2 does by default.
    other: FSDP2's other arguments.  Each is a ValueError that says what to write instead.
    """
    for name in other:
        if name not in _OF_FSDP2:
            raise TypeError(f"fully_shard() has no argument '{name}'")
        if other[name] is not None:
            raise ValueError(f"fully_shard({name}=...): {_OF_FSDP2[name]}")
    if not isinstance(reshard_after_forward, (bool, type(None))):
        raise ValueError("reshard_after_forward is True, which is stage 3, or False, which is stage 2, not "
                         f"{reshard_after_forward!r}")
    if "_zerod_mark" in module.__dict__:
        return module
    forward = module.forward

    @functools.wraps(forward)
    def shard_first(*args: Any, **kwargs: Any) -> Any:
        if len(_marked(module)) == 1:
            raise RuntimeError(f"{type(module).__name__} is marked by fully_shard() and its "
                               "model is not: call fully_shard(model) too, or shard(model)")
        shard(module)
        return module.forward(*args, **kwargs)

    module.__dict__["_zerod_mark"] = _Mark(module, reshard_after_forward)
    module.forward = shard_first
    return module


def _marked(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if "_zerod_mark" in m.__dict__]


def _check_marks(model: nn.Module, stage: int) -> None:
    """Raises ValueError for a block that was marked for another stage."""
    for name, module in model.named_modules():
        wanted = module.__dict__["_zerod_mark"].stage if "_zerod_mark" in module.__dict__ else None
        if module is not model and wanted not in (None, stage):
            raise ValueError(f"module '{name}' is marked by fully_shard(reshard_after_forward={wanted == 3}), which is "
                             f"stage {wanted}, and the stage is {stage}: all blocks have one stage, "
                             f"shard(model, stage={wanted})")


def _unmark(modules: list[nn.Module]) -> None:
    """Restores the forward of the modules."""
    for module in modules:
        del module.__dict__["forward"]
        forward = module.__dict__.pop("_zerod_mark").forward
        if forward is not None:
            module.forward = forward


def is_marked(model: nn.Module) -> bool:
    """Returns True for a model that fully_shard() has marked and shard() has not taken."""
    return "_zerod_sharded" not in model.__dict__ and bool(_marked(model))
