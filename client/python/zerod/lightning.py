"""A strategy of Lightning for models whose parameters and optimizer state are in zerod.

    from zerod.lightning import ZerodStrategy

    trainer = lightning.pytorch.Trainer(accelerator="cpu", devices=2, strategy=ZerodStrategy(stage=3))
    trainer.fit(model, data)

The LightningModule stays as it is.  Ranks are started as for DDP: by Lightning, by torchrun or by Slurm.  Metrics,
early stopping and barriers use the process group that Lightning makes.  Parameters and gradients use zerod alone.

The tests run it with lightning 2.6.6 and 2.5.5; no other version is claimed.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torchmetrics
from lightning.pytorch.plugins import MixedPrecision, Precision
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn

import zerod

from . import _frameworks, _replay, environment
from . import torch as zt

__all__ = ["ZerodStrategy"]

log = logging.getLogger("zerod")


class ZerodStrategy(DDPStrategy):
    """Trains a LightningModule sharded by :func:`zerod.torch.shard`; there is no DistributedDataParallel.

    stage, groups, client, job, timeout, reduce_dtype, init_fn, prefetch, on_lost_rank, resume, keep, base, state, master: of
    :func:`zerod.torch.shard`.  Without a job's name rank 0 chooses one.  That job is dropped when all ranks have ended
    by themselves.  Lightning's own launcher does not wait for that, so the job may stay until ``zeroctl drop``.
    accumulate: says where the gradients of micro-batches add up (accumulate_grad_batches).  "owner": in the service,
    which takes the least memory.  "trainer": in this process, which pushes once a step.
    process_group_backend, checkpoint_io, precision_plugin, cluster_environment: of DDPStrategy.

    ``configure_optimizers`` returns one AdamW, Adam or SGD of torch, and schedules for it.  The service's optimizer
    takes its place.  For a module that was sharded before it returns one of zerod.torch.  ``gradient_clip_val`` is the
    service's clipping.  ``precision`` is "32-true" or "bf16-mixed".

    Checkpoints are Lightning's own files: other strategies load them, and this strategy loads those of others.  Rank 0
    has the whole model and optimizer in memory while it writes one, and each rank while it loads one.
    zerod.torch.save_checkpoint() streams instead.

    ``fit`` repeats a step in which a daemon was lost: ``training_step`` and ``backward`` run again, with the same
    random numbers, for all micro-batches of the step.  Their log entries are made once.  Objects of torchmetrics in the
    module count repeated micro-batches twice, with a warning.  A ``training_step`` that calls collectives itself
    (``all_gather``) may wait in vain for another rank.  After the loss of a rank start all ranks again with the last
    checkpoint as ckpt_path.

    Errors: ValueError, with the name, for more than one optimizer, automatic_optimization=False, other precisions, and
    gradient_clip_algorithm="value".  ValueError if Lightning sees other ranks than zerod.
    """

    def __init__(self, *, accumulate: str = "owner", process_group_backend: str | None = None, checkpoint_io: Any = None,
                 precision_plugin: Precision | None = None, cluster_environment: Any = None, **options: Any):
        if accumulate not in ("owner", "trainer"):
            raise ValueError(f"accumulate is 'owner' or 'trainer', not {accumulate!r}")
        _frameworks.check_options(options)
        super().__init__(process_group_backend=process_group_backend, checkpoint_io=checkpoint_io,
                         precision_plugin=precision_plugin, cluster_environment=cluster_environment)
        self._accumulate, self._options = accumulate, options
        self._steps: _replay.Steps | None = None
        self._output: Any = None  # of the last training_step
        self._last = False  # True while the last micro-batch of a step runs, which is repeated together with the step

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """True: a checkpoint's values go into the service, which setup() makes ready."""
        return True

    # ---- model and optimizer -----------------------------------------------------------------

    def setup(self, trainer: Any) -> None:
        """Shards the module; for fit(), for the optimizer that the module configures."""
        self.accelerator.setup(trainer)
        self._check(trainer)
        module, fitting = self.lightning_module, trainer.state.fn == TrainerFn.FITTING
        if fitting:
            self.setup_optimizers(trainer)
            if len(self.optimizers) != 1:
                raise ValueError(f"configure_optimizers() returned {len(self.optimizers)} optimizers: the service has one, "
                                 "with param groups")
        if "_zerod_sharded" not in module.__dict__:
            self._shard(self.optimizers[0] if fitting else None)
        if fitting:
            before = self.optimizers[0]
            self.optimizers = [_frameworks.converted(module, before)]
            for config in self.lr_scheduler_configs:
                _frameworks.rebind(config.scheduler, [(before, self.optimizers[0])])
            self._steps = _replay.Steps(module.sharded, self._warn_of_metrics)
        self.setup_precision_plugin()
        for loop in (trainer.fit_loop.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop, trainer.predict_loop):
            loop.inference_mode = False  # parameters that are first fetched in inference mode cannot be trained

    def _check(self, trainer: Any) -> None:
        plugin = self.precision_plugin
        if type(plugin) not in (Precision, MixedPrecision) or plugin.precision not in ("32-true", "bf16-mixed"):
            raise ValueError(f"precision {plugin.precision}: a model sharded by zerod trains with '32-true' or 'bf16-mixed'")
        if not self.lightning_module.automatic_optimization:
            raise ValueError("automatic_optimization=False: zerod.lightning makes the step itself; write such a loop with "
                             "zerod.torch")
        if trainer.gradient_clip_val and trainer.gradient_clip_algorithm == "value":
            raise ValueError("gradient_clip_algorithm='value': the service clips to a norm")
        plugin.clip_grad_by_norm = self._clip

    def _shard(self, optimizer: torch.optim.Optimizer | None) -> None:
        options, place = dict(self._options), (self.global_rank, self.world_size)
        if options.get("client") is None:
            job = options.get("job")
            if job is None and environment.job() is None and self.world_size > 1:
                job = self.broadcast(environment.own_job())
                options.setdefault("keep", False)  # no person knows the name
            # Lightning starts ranks without the variable RANK
            options["client"] = zerod.connect(job, *place, local_world_size=self.num_processes,
                                              timeout=options.get("timeout"))
        _frameworks.shard(self.lightning_module, optimizer, place, self.root_device, options)

    def _clip(self, _optimizer: torch.optim.Optimizer, clip_val: int | float) -> None:
        zt.clip_grad_norm_(self.lightning_module, clip_val)

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Keeps the gradients of all micro-batches but a step's last, with accumulate="trainer"."""
        with self.lightning_module.no_sync() if self._accumulate == "trainer" else nullcontext():
            yield

    # ---- steps -----------------------------------------------------------------------------------

    def _within(self, name: str, context: Any, arguments: Any, named: Any) -> Any:
        """Runs a step of the module.  Parameters outside of blocks are fetched while it runs."""
        with context:
            return self.lightning_module.sharded.hooks.within(getattr(self.lightning_module, name))(*arguments, **named)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Does what Strategy's does.  After an abort it is repeated with the rest of its step."""
        def run() -> Any:
            self._output = self._within("training_step", self.precision_plugin.train_step_context(), args, kwargs)
            return self._output
        return run() if self._last else self._do(run)

    def backward(self, closure_loss: torch.Tensor, optimizer: torch.optim.Optimizer | None, *args: Any,
                 **kwargs: Any) -> torch.Tensor:
        """Does what Strategy's does.  After an abort it is repeated with the rest of its step."""
        of_first, backward = self._output, super().backward

        def run() -> torch.Tensor:
            loss = closure_loss
            if self._output is not of_first:  # training_step was repeated
                loss = self._output["loss"] if isinstance(self._output, Mapping) else self._output
                loss = loss / self.lightning_module.trainer.accumulate_grad_batches
            return backward(loss, optimizer, *args, **kwargs)
        return run() if self._last else self._do(run)

    def optimizer_step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any], model: Any = None,
                       **kwargs: Any) -> Any:
        """Runs the last micro-batch and ends the step, as Strategy's does.  After an abort the whole step is
        repeated."""
        step = super().optimizer_step
        self._last = True
        try:
            done = self._do(lambda: (step(optimizer, closure, model, **kwargs),), ends=True)
        finally:
            self._last = False
        if done is None:  # committed after all
            optimizer.skipped = False
        return done and done[0]

    def _do(self, call: Callable[[], Any], ends: bool = False) -> Any:
        """Makes a call of the current step.  A repeated call does not log again."""
        module, logged = self.lightning_module, 0

        def once() -> Any:
            before, count = module.log, 0

            def log_once(*args: Any, **kwargs: Any) -> None:
                nonlocal count, logged
                count += 1
                if count > logged:
                    before(*args, **kwargs)
                    logged = count
            module.log = log_once
            try:
                return call()
            finally:
                del module.log
        return self._steps.do(once, ends)

    def _warn_of_metrics(self) -> None:
        names = [n for n, m in self.lightning_module.named_modules() if isinstance(m, torchmetrics.Metric)]
        if names:
            log.warning("a step is repeated: these metrics count its batches twice: %s", ", ".join(names))

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Does what Strategy's does."""
        return self._within("validation_step", self.precision_plugin.val_step_context(), args, kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Does what Strategy's does."""
        return self._within("test_step", self.precision_plugin.test_step_context(), args, kwargs)

    def predict_step(self, *args: Any, **kwargs: Any) -> Any:
        """Does what Strategy's does."""
        return self._within("predict_step", self.precision_plugin.predict_step_context(), args, kwargs)

    # ---- checkpoints, the end ----------------------------------------------------------------------

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Returns the whole model on rank 0, which writes it, and {} on the other ranks."""
        return super().lightning_module_state_dict() if self.is_global_zero else {}

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Returns the whole state on rank 0, which writes it, and {} on the other ranks."""
        return super().optimizer_state(optimizer) if self.is_global_zero else {}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Loads the states into the service; all ranks call it."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            optimizer.load_state_dict(state)

    def on_train_end(self) -> None:
        """Declares that this rank has completed the job (zerod.Client.finish())."""
        sharded = self.lightning_module.sharded
        sharded.client.finish(sharded.keep)

    def teardown(self) -> None:
        """Does what DDPStrategy's does, but the module stays in the service."""
        module, self._lightning_module, self.model = self._lightning_module, None, None
        try:
            super().teardown()
        finally:
            self._lightning_module = self.model = module
