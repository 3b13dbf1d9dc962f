"""The record of a sharded model in one rank, from shard() on."""
from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import zerod
from zerod.environment import incarnation

from .parameter import WrittenInPlace, WrittenToBase
from .plan import BYTES, DTYPES, WORD
from .split import is_dtensor
from .turn import Turn
from .unit import Group, ShardedParam, Unit

if TYPE_CHECKING:
    from .activations import Activations
    from .attempt import Attempt
    from .buffers import Buffers
    from .gradients import Gradients
    from .hooks import Hooks
    from .matrices import MuonSplit
    from .pipeline import ParamElsewhere, Stage
    from .place import Gpu, Host

STEPS_OF_STATE = {"step": torch.int64, "set": torch.int64}
RESUME = ("auto", "never", "must")


class Pending:
    """The values that the next step of a sharded model passes to the service."""

    def __init__(self) -> None:
        self.clip_norm = 0.0  # 0: none
        self.loss_scale = 1.0
        self.growth_interval = 0
        self.unscaled = False
        self.closed = ""  # the call after which this rank pushes nothing more


class Sharded:
    """A sharded model in one rank.

    params are in the layout's order; units in the order of the model's tree, the root last.
    optimizer: the newest one, weakly.  optimized: the parameters that it updates; None: all.
    optimizer_name: of the optimizer in the service that the model was sharded for.  muon: the parameters that it
    updates by Muon and by AdamW, if it is "muon".
    ema: the service averages the weights, too.
    goes_on: the job had its values when this rank attached, so loading others is left out.
    keep: the job stays when all ranks have completed it; None: it stays if somebody chose its name.
    hold_groups: most groups that this rank may hold at once, or zerod.ALL.
    eager: groups are updated as soon as their gradients are complete, if a trainer says which gradient is the last.
    pipeline: this rank's stage, if the model is one.  elsewhere: the parameters of other stages.
    averages: parameters, here and elsewhere, that ema_params() shows.
    base: frozen parameters that are not the service's, each with its whole tensor in the files' one copy.
    turn: of the threads that use the model.
    """

    def __init__(self, model: nn.Module, stage: int, prefetch: int, place: "Host | Gpu",
                 optimizer_name: str, ema: bool):
        self.model, self.stage, self.prefetch, self.place = model, stage, prefetch, place
        self.turn = Turn(self)
        self.client: zerod.Client
        self.units: list[Unit] = []
        self.groups: list[Group] = []
        self.params: list[ShardedParam] = []
        self.attempt: Attempt
        self.buffers: Buffers
        self.gradients: Gradients
        self.hooks: Hooks
        self.optimizer: "weakref.ref[torch.optim.Optimizer] | None" = None
        self.optimized: set[ShardedParam] | None = None
        self.pending = Pending()
        self.activations: Activations
        self.optimizer_name, self.ema = optimizer_name, ema
        self.muon: MuonSplit | None = None
        self.goes_on = False
        self.hold_groups = 0
        self.keep: bool | None = None
        self.eager = False
        self.pipeline: Stage | None = None
        self.elsewhere: list[ParamElsewhere] = []
        self.averages: set[Any] = set()
        self.base: dict[nn.Parameter, torch.Tensor] = {}

    @property
    def averaged(self) -> set[Any]:
        """The parameters that ema_params() shows in this thread."""
        return self.averages if self.turn.is_mine() else set()

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self.client.rank

    @property
    def world_size(self) -> int:
        """The number of ranks of the job."""
        return self.client.world_size

    @property
    def parallel(self) -> bool:
        """True if ranks work on one forward pass together, by collectives of their own."""
        return self.pipeline is not None or any(p.dtensor for p in self.params) or any(map(is_dtensor, self.base))

    @property
    def version(self) -> int:
        """The number of steps that the job has committed."""
        return self.client.version

    @property
    def steps_made(self) -> int:
        """The number of steps that the job has made, also those skipped because a gradient was not finite.  The data of
        a training loop depend on this number."""
        return self.attempt.steps_made

    @property
    def kept(self) -> bytes:
        """The bytes that this rank, or its predecessor, kept with the last decided step
        (``optimizer.step(blob=...)``); b"" if none."""
        return self.attempt.kept

    @property
    def has_gradients(self) -> bool:
        """True if a backward pass has brought gradients since the last step."""
        return self.gradients.any

    def param_of(self, tensor: torch.Tensor) -> ShardedParam:
        """Returns the parameter that a placeholder or a gathered parameter stands for.

        TypeError for any other tensor, ValueError for another model's parameter.
        """
        param = find_param(tensor)
        if param is None:
            raise TypeError(f"a tensor of shape {tuple(tensor.shape)} is not a parameter of a sharded "
                            "model: take them from model.parameters() after shard()")
        if param.sharded is not self:
            raise ValueError(f"parameter '{param.name}' belongs to another sharded model")
        return param

    def read(self, param: ShardedParam, plane: str = "master", first: int = 0,
             count: int | None = None) -> torch.Tensor:
        """A part of a parameter's plane: flat, fp32; "serve", and of bytes "master": the parameter's dtype;
        "step" and "set": int64 of one element, the most steps of any part; "ema": the average of the weights, of
        shard(ema=True).  Blocks; not collective."""
        if plane in STEPS_OF_STATE:
            first, count = 0, 1
        elif count is None:
            count = param.numel - first
        dtype = param.dtype if plane == "serve" else dtype_of(param, plane)
        values = torch.empty(count, dtype=dtype)
        if plane == "step":  # experts that were not used in a step have made fewer
            steps = torch.empty(len(param.parts), dtype=dtype)
            for index, step in zip(param.parts, steps):
                self.attempt.get(index, plane, 0, 1, step.data_ptr())
            return steps.max().view(1)
        if plane in STEPS_OF_STATE:
            self.attempt.get(param.index, plane, first, count, values.data_ptr())
            return values
        if param.split is None:
            return self._get(param.index, plane, first, values)
        for part, at, box in param.split.boxes(values, first):
            piece = self._get(param.parts[part], plane, at, torch.empty(box.numel(), dtype=dtype))
            box.copy_(piece.view(box.shape))
        return values

    def _get(self, index: int, plane: str, first: int, values: torch.Tensor) -> torch.Tensor:
        """Reads a tensor of the layout, from an element on, into `values`, and returns them."""
        if values.dtype in BYTES:
            begin = first // WORD
            words = self._words(index, begin, -(-(first + values.numel()) // WORD))
            values.view(torch.uint8).copy_(words[first - begin * WORD:][:values.numel()])
        else:
            self.attempt.get(index, plane, first, values.numel(), values.data_ptr())
        return values

    def _words(self, index: int, begin: int, end: int) -> torch.Tensor:
        """Reads the bytes of some words of a tensor of bytes."""
        words = torch.empty((end - begin) * WORD, dtype=torch.uint8)
        self.attempt.get(index, "master", begin, end - begin, words.data_ptr())
        return words

    def _put(self, index: int, plane: str, first: int, values: torch.Tensor) -> None:
        """Writes a tensor of the layout.  In a tensor of bytes it writes whole words, whose other bytes stay."""
        if values.dtype in BYTES:
            begin, flat = first // WORD, values.view(-1).view(torch.uint8)
            words = self._words(index, begin, -(-(first + flat.numel()) // WORD))
            words[first - begin * WORD:][:flat.numel()] = flat
            first, values = begin, words.view(torch.float32)
        self.attempt.put(index, plane, first, values.numel(), values.data_ptr())

    def write(self, param: ShardedParam, plane: str, values: torch.Tensor, first: int = 0) -> None:
        """Writes a part of a parameter's plane from a tensor of any shape.  Blocks.

        One rank writes at a time, at a step boundary; see zero_put().
        """
        values = values.detach().to("cpu", dtype_of(param, plane)).contiguous()
        if plane in STEPS_OF_STATE:
            for index in param.parts:
                self.attempt.put(index, plane, first, values.numel(), values.data_ptr())
        elif param.split is None:
            self.write_part(param, plane, values, first)
        else:
            for part, at, box in param.split.boxes(values.view(-1), first):
                self._put(param.parts[part], plane, at, box.contiguous())

    def write_part(self, param: ShardedParam, plane: str, values: torch.Tensor, first: int = 0) -> None:
        """Writes this rank's part of a parameter, as write() does."""
        self._put(param.index, plane, first, values.detach().to("cpu", dtype_of(param, plane)).contiguous())

    def file_values(self, param: ShardedParam, plane: str, dtype: torch.dtype, at: int) -> zerod.FileValues | None:
        """Describes all of a parameter's plane in a file, for Client.put_file().  None if the service cannot take it
        from the file as it stands: it is of another type, or a part of a divided parameter."""
        word = DTYPES.get(dtype) or (BYTES.get(dtype) if dtype is param.dtype else None)
        if param.split is not None or word is None:
            return None
        count = -(-param.numel // WORD) if dtype in BYTES else param.numel
        return zerod.FileValues(param.index, plane, word, 0, count, at)

    def barrier(self, before: Callable[[], None] = lambda: None) -> None:
        """Meets all ranks; gradients pushed before it are dropped.  before: called once in each attempt."""
        with self.turn.taken(trains=True):
            try:
                self.attempt.barrier(before)
            finally:
                self.after_step()

    def drop_gradients(self) -> None:
        """Ends a step without an update.  All ranks call it if they have gradients."""
        if self.has_gradients:
            self.barrier()
        self.turn.end_step()

    def finish_backward_pushes(self) -> None:
        """Pushes the gradients that this process still keeps."""
        self.turn.check()
        self.gradients.push_all()

    def after_step(self) -> None:
        """Forgets the attempt that is over: its fetched units, and its kept and pushed gradients."""
        self.pending = Pending()
        self.gradients.forget()
        self.turn.end_step()
        self.hooks.in_backward.clear()
        for unit in self.units:
            unit.forget()
        for p in self.base:
            if p.zerod_mapped and p._version:
                raise WrittenToBase(p.zerod_taken)

    def forget(self) -> None:
        """Does what after_step() does for an aborted attempt, whose only error is the abort."""
        self.pending = Pending()
        self.gradients.forget()
        self.turn.end_step()
        self.hooks.forget()
        for unit in self.units:
            with contextlib.suppress(WrittenInPlace):
                unit.forget()


def uncompiled(model: nn.Module) -> nn.Module:
    """Returns the model that torch.compile() was given, if it made this one."""
    return model.__dict__.get("_modules", {}).get("_orig_mod", model)


def dtype_of(param: "ShardedParam | ParamElsewhere", plane: str) -> torch.dtype:
    """Returns the dtype of a parameter's plane, other than "serve"."""
    return STEPS_OF_STATE.get(plane, param.dtype if param.dtype in BYTES else torch.float32)


def sharded_of(model: nn.Module) -> Sharded:
    """Returns the :class:`Sharded` of a model.  TypeError if the model is not sharded."""
    model = uncompiled(model)
    sharded = model.__dict__.get("_zerod_sharded")
    if sharded is None:
        raise TypeError(f"{type(model).__name__} is not sharded: call zerod.torch.shard(model)")
    return sharded


def find_param(tensor: torch.Tensor) -> ShardedParam | None:
    """Returns the parameter, of any sharded model, that a placeholder, a gathered or a full parameter stands for.  None
    for other tensors."""
    return getattr(tensor, "zerod_param", None)


def check_resume(sharded: Sharded, resume: str) -> None:
    """Checks the job's step against `resume`.  RuntimeError if they do not fit."""
    job, version = sharded.client.job, sharded.client.version
    if resume not in RESUME:
        raise ValueError(f"resume is one of {', '.join(RESUME)}, not {resume!r}")
    if resume == "never" and sharded.goes_on and incarnation() == 0:
        raise RuntimeError(f"job '{job}' stands at step {version}, and resume='never': drop it with "
                           f"zeroctl drop {job} or zerod.torch.drop({job!r}), or name another job")
    if resume == "must" and not sharded.goes_on:
        raise RuntimeError(f"there was no job '{job}' to go on with, and resume='must': look for it with "
                           "zeroctl jobs, or leave resume out")
