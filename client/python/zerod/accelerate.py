"""``accelerate.Accelerator`` for a model whose parameters and optimizer state are in zerod.

    from zerod.accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, stage=3)
    model, optimizer, data, scheduler = accelerator.prepare(model, optimizer, data, scheduler)

The loop stays as it is.  Run the script like any Accelerate script: alone, or as several ranks by torchrun or
``accelerate launch``.  Data, metrics and barriers use the process group that Accelerate makes.  Parameters and
gradients use zerod alone: there is no DistributedDataParallel.

The tests run it with accelerate 1.15.0 and 1.11.0; no other version is claimed.
"""
from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import accelerate
import torch
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import DistributedType
from torch import nn

from . import _frameworks
from . import torch as zt
from .torch.checkpoints import load_plain, save_plain
from .torch.sharded import uncompiled

__all__ = ["Accelerator"]

OPTIMIZER_FILE = "optimizer.bin"


class Optimizer(AcceleratedOptimizer):
    """accelerate's wrapper of zerod's optimizer."""

    @property
    def step_was_skipped(self) -> bool:
        """True if a gradient was not finite; the schedule then stays at its step."""
        return self.optimizer.skipped


def is_sharded(model: nn.Module) -> bool:
    """Returns True if zerod has the model."""
    return "_zerod_sharded" in uncompiled(model).__dict__


class Prepared(accelerate.Accelerator):
    """Prepares a sharded model and its optimizer, and neither moves, wraps nor copies them.

    accumulate_in: "owner" or "trainer", as of :class:`Accelerator`."""

    accumulate_in = "owner"

    def prepare_model(self, model: nn.Module, device_placement: bool | None = None,
                      evaluation_mode: bool = False) -> nn.Module:
        """Adds autocast, if bf16 is asked for.  ``evaluation_mode`` is accelerate's word for "without
        DistributedDataParallel"."""
        if is_sharded(model):
            device_placement, evaluation_mode = False, True
        return super().prepare_model(model, device_placement=device_placement, evaluation_mode=evaluation_mode)

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None) -> Any:
        """Leaves the optimizer in place: accelerate would read the whole state and write it back."""
        service = isinstance(optimizer, zt.ServiceOptimizer)
        prepared = super().prepare_optimizer(optimizer, device_placement=False if service else device_placement)
        if service:
            prepared.__class__ = Optimizer
        return prepared

    @contextmanager
    def no_sync(self, model: nn.Module) -> Iterator[None]:
        """Keeps gradients in this process, if accumulate_in is "trainer", with one rank, too."""
        with model.no_sync() if is_sharded(model) and self.accumulate_in == "trainer" else nullcontext():
            yield


class Accelerator(Prepared):
    """``accelerate.Accelerator`` whose :meth:`prepare` takes the model to zerod.

    stage, groups, client, job, timeout, reduce_dtype, init_fn, prefetch, on_lost_rank, resume, keep, base, state, master: of
    :func:`zerod.torch.shard`.  A model may also be sharded before, with more arguments of shard().
    accumulate_in: says where the gradients of micro-batches add up.  "owner": in the service, which takes the least
    memory.  "trainer": in this process (``model.no_sync()``), which pushes once a step.  All other arguments are
    accelerate's.

    Optimizers are torch's AdamW, Adam or SGD, which :meth:`prepare` replaces by the service's with the same param
    groups.  Optimizers of zerod.torch are left as they are.  Each of several models has a job: the second model's job
    has a name that ends in "-2".  ``accelerator.optimizer_step_was_skipped`` is true after a gradient that was not
    finite.

    :meth:`save_state` writes accelerate's files, and ``accelerate.Accelerator`` loads them, too.  ``gather``,
    ``gather_for_metrics``, ``reduce`` and ``wait_for_everyone`` are accelerate's.  They use the process group that
    accelerate makes for several ranks, so ranks start, and start again, together (torchrun --max-restarts).

    A lost daemon or rank is zerod.Aborted, as in any loop, and ``for step in zerod.torch.steps(model, ...)`` repeats
    the step.  Do not use :meth:`accumulate` in such a loop: an abort leaves its counter where it is.

    Errors: ValueError, with the name, for options that would copy, cast or wrap the model: DeepSpeed, FSDP,
    Megatron-LM, parallelism_config, torch.compile by dynamo_backend, fp16, fp8.  ValueError if accelerate sees other
    ranks than zerod.
    """

    def __init__(self, *positional: Any, accumulate_in: str = "owner", **named: Any):
        if accumulate_in not in ("owner", "trainer"):
            raise ValueError(f"accumulate_in is 'owner' or 'trainer', not {accumulate_in!r}")
        self.accumulate_in = accumulate_in
        self._options = {name: named.pop(name) for name in _frameworks.OPTIONS if name in named}
        self._replaced: list[tuple[torch.optim.Optimizer, zt.ServiceOptimizer]] = []
        super().__init__(*positional, **named)
        self._check()

    def _check(self) -> None:
        precision, kind = self.state.mixed_precision, self.distributed_type
        wrong = None
        if kind not in (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU):
            wrong = f"distributed_type {kind.value}"
        elif precision not in ("no", "bf16"):
            wrong = f"mixed_precision={precision!r} (bf16 works)"
        elif self.state.dynamo_plugin.backend != accelerate.utils.DynamoBackend.NO:
            wrong = "dynamo_backend or dynamo_plugin (compile the model's blocks instead)"
        elif self.parallelism_config is not None:
            wrong = "parallelism_config (shard such a model yourself, by zerod.torch.shard(mesh=...))"
        if wrong:
            raise ValueError(f"{wrong} does not go with a model sharded by zerod")

    # ---- model, optimizer, schedule ------------------------------------------------------------

    def prepare(self, *args: Any, device_placement: list[bool] | None = None) -> Any:
        """Does what accelerate's does.  Pass the model together with its optimizer, whose kind decides the state that
        the service keeps.  Without an optimizer that is AdamW's."""
        torchs = [o for o in args if isinstance(o, torch.optim.Optimizer)
                  and not isinstance(o, (AcceleratedOptimizer, zt.ServiceOptimizer))]
        for model in (m for m in args if isinstance(m, nn.Module)):
            own = {id(p) for p in model.parameters()}
            mine = [o for o in torchs if any(id(p) in own for g in o.param_groups for p in g["params"])]
            if not is_sharded(model):
                if len(mine) > 1:
                    raise ValueError(f"{len(mine)} optimizers of one model: the service has one, with a param group for each")
                _frameworks.shard(model, mine[0] if mine else None, (self.process_index, self.num_processes), self.device,
                                  self._options)
            self._replaced += [(o, _frameworks.converted(model, o)) for o in mine]
        of_service = {id(before): after for before, after in self._replaced}
        args = tuple(of_service.get(id(o), o) for o in args)
        for scheduler in (s for s in args if isinstance(s, torch.optim.lr_scheduler.LRScheduler)):
            _frameworks.rebind(scheduler, self._replaced)
        return super().prepare(*args, device_placement=device_placement)

    def clip_grad_norm_(self, parameters: Iterable[torch.Tensor], max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """Has the service clip.  RuntimeError between the micro-batches of a step, because the norm is known at its
        end."""
        if not self.sync_gradients:
            raise RuntimeError("clip_grad_norm_() before the last micro-batch of the step: write "
                               "'if accelerator.sync_gradients:' before it")
        return zt.clip_grad_norm_(list(parameters), max_norm, norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Raises NotImplementedError: the service has the gradients, and clips to a norm."""
        raise NotImplementedError("the service clips to a norm: use clip_grad_norm_()")

    def end_training(self) -> None:
        """Does what accelerate's does, and declares that this rank has completed the job (zerod.Client.finish())."""
        super().end_training()
        for model in filter(is_sharded, self._models):
            model.sharded.client.finish(model.sharded.keep)

    # ---- checkpoints -----------------------------------------------------------------------------

    @contextmanager
    def _without_model(self, what: str, hooks: Any) -> Iterator[tuple[nn.Module, zt.ServiceOptimizer | None]]:
        """Hides model and optimizer from accelerate, which then saves or loads all the rest."""
        models, optimizers = self._models, self._optimizers
        if len(models) != 1 or len(optimizers) > 1 or not is_sharded(models[0]):
            raise ValueError(f"{what} is for one sharded model and its optimizer, and {len(models)} models and "
                             f"{len(optimizers)} optimizers were prepared: save and load each by zerod.torch.save_checkpoint() "
                             "and load_checkpoint()")
        if hooks:
            raise NotImplementedError(f"{what} streams the model and has no whole state for hooks: remove them")
        self._models, self._optimizers = [], []
        try:
            yield models[0], optimizers[0].optimizer if optimizers else None
        finally:
            self._models, self._optimizers = models, optimizers

    def save_state(self, output_dir: str | None = None, safe_serialization: bool = True, **more: Any) -> Any:
        """Writes accelerate's files; all ranks call it.  The main process streams model.safetensors and optimizer.bin,
        so no process has the whole model.  master.pt beside them has the fp32 master weights of a 16-bit model."""
        if not safe_serialization or more:
            raise ValueError("save_state() writes safetensors, and takes no further arguments")
        with self._without_model("save_state()", self._save_model_state_pre_hook) as (model, optimizer):
            directory = super().save_state(output_dir)
            if self.is_main_process and optimizer is not None:
                save_plain(directory, optimizer, name=OPTIMIZER_FILE)
            elif self.is_main_process:
                zt.save_safetensors(model, directory)
        self.wait_for_everyone()
        return directory

    def load_state(self, input_dir: str | None = None, load_kwargs: dict[str, Any] | None = None, **more: Any) -> None:
        """Loads accelerate's files; all ranks call it.  The values go into the service, whatever steps the job has
        made."""
        if more or load_kwargs:
            raise ValueError("load_state() takes no further arguments")
        if input_dir is None:
            raise ValueError("load_state(): name the directory")
        with self._without_model("load_state()", self._load_model_state_pre_hook) as (model, optimizer):
            super().load_state(input_dir)
            input_dir = os.path.expanduser(input_dir)
            zt.load_safetensors(model, input_dir)
            if optimizer is not None:
                load_plain(input_dir, optimizer, name=OPTIMIZER_FILE)

    def save_model(self, model: nn.Module, save_directory: str | os.PathLike[str],
                   max_shard_size: int | str = "10GB", safe_serialization: bool = True) -> None:
        """Writes accelerate's files, streamed by the main process."""
        if not safe_serialization:
            raise ValueError("save_model() writes safetensors")
        if self.is_main_process:
            zt.save_safetensors(model, save_directory, max_shard_size=max_shard_size)
