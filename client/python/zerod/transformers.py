"""``transformers.Trainer`` for models whose parameters and optimizer state are in zerod.

    from zerod.transformers import Trainer

    args = TrainingArguments("out", use_cpu=True, learning_rate=3e-4, max_grad_norm=1.0)
    trainer = Trainer(model, args, train_dataset=train, eval_dataset=test, stage=3)
    trainer.train(resume_from_checkpoint=None)

Run it like any Trainer script: alone, or as several ranks under torchrun.  Every rank works on its own part of each
batch.  Samplers and metrics use torch.distributed, as Trainer sets it up or, without gloo, by
:func:`zerod.torch.init_process_group`.  Parameters and gradients use zerod alone: there is no DistributedDataParallel.
Without ``use_cpu=True`` a rank trains on its GPU, as any Trainer does.

Any other Trainer becomes one on a sharded model by :class:`TrainerMixin`, before its own class:

    class SFTTrainer(zerod.transformers.TrainerMixin, trl.SFTTrainer):
        pass

The tests run it with transformers 5.23.0 and 4.57.1, accelerate 1.15.0 and 1.11.0; no other version is claimed.  They
run on the CPU, and cover all but the calls of CUDA.  It has not been run on a GPU yet.
"""
from __future__ import annotations

import copy
import logging
import os
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import torch
import transformers
from torch import nn
from transformers.trainer import SCHEDULER_NAME, TRAINER_STATE_NAME, TRAINING_ARGS_NAME

import zerod

from . import _replay, accelerate
from . import torch as zt
from .torch.checkpoints import OPTIMIZER_FILE, PLAIN_FILE, load_plain, save_plain
from .torch.files import INDEX_SUFFIX
from .torch.formats import Choice
from .torch.place import place_of
from .torch.plan import Groups
from .torch.steps import follow

__all__ = ["Trainer", "TrainerMixin"]

log = logging.getLogger("zerod")

#: The TrainingArguments that would copy, cast or wrap the whole model.
REFUSED = ("fsdp", "deepspeed", "parallelism_config", "fp16", "fp16_full_eval", "bf16_full_eval",
           "use_liger_kernel", "auto_find_batch_size")
ADAMW = ("adamw_torch", "adamw_torch_fused")
#: The members of TrainerState that are kept with each step.
POSITION = ("global_step", "epoch", "num_input_tokens_seen", "total_flos", "best_metric",
            "best_global_step", "best_model_checkpoint")


class Optimizer(accelerate.Optimizer):
    """accelerate's wrapper of zerod's optimizer.  ends_step: the Trainer's, which keeps its position with the step."""

    ends_step: Callable[[], None]

    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Ends the step, if this micro-batch is its last."""
        if self.gradient_state.sync_gradients:
            self.ends_step()


class Accelerator(accelerate.Prepared):
    """Prepares model and optimizer for Trainer.  trainer: its owner."""

    trainer: "TrainerMixin"

    def prepare_optimizer(self, optimizer: torch.optim.Optimizer,
                          device_placement: bool | None = None) -> Any:
        """Does what Prepared's does; the Trainer's step() takes the place of its step()."""
        prepared = super().prepare_optimizer(optimizer, device_placement)
        prepared.__class__ = Optimizer
        prepared.ends_step = self.trainer._end_step
        return prepared

    def clip_grad_norm_(self, parameters: Iterable[torch.Tensor], max_norm: float,
                        norm_type: float = 2) -> torch.Tensor:
        """Has the service clip."""
        parameters = list(parameters)
        norm = self.trainer._steps.do(lambda: zt.clip_grad_norm_(parameters, max_norm, norm_type))
        return torch.tensor(torch.nan) if norm is None else norm


class TrainerMixin:
    """Makes a kind of ``transformers.Trainer`` train a model sharded by :func:`zerod.torch.shard`.

    A subclass names it before the Trainer: ``class Seq2Seq(TrainerMixin, transformers.Seq2SeqTrainer)``.  The
    constructor has the Trainer's arguments and those below.  The model is sharded as the Trainer's own constructor
    leaves it, with adapters if the constructor adds them (``peft_config`` of TRL).  The Trainer must use
    ``self.accelerator``.  Its own ``create_optimizer``, ``_save`` and loading of checkpoints are not called.  The suite
    runs it with transformers.Seq2SeqTrainer, trl.SFTTrainer and trl.DPOTrainer.

    model: on the CPU, a GPU or the meta device, or sharded already on the device of the arguments.  Every rank may load
    it with ``from_pretrained``, and the service gets rank 0's values.  ``model_init`` is not supported, nor are
    features that need it.

    If a daemon or a node is lost, the Trainer repeats the step from its first micro-batch, with the same random
    numbers.  Its processes may be started again, by ``torchrun --max-restarts`` or by hand under the same job name.
    The job then goes on by itself at the service's step: data, schedule, random numbers and some kB of buffers are kept
    with each step.  The log so far, the state of callbacks, and random numbers that data loading or evaluation draw
    between steps are not kept.  With another number of ranks data and schedule begin anew.  With
    ``resume_from_checkpoint=False`` they do in any case.  One rank alone cannot be started again: torch.distributed
    does not let it in.

    args: they name the model's device: the CPU with ``use_cpu=True``, else the one GPU that the process sees, or under
    torchrun that of its LOCAL_RANK.  Ranks that share a GPU need ``ddp_backend="gloo"``.

    Optimizer: :class:`zerod.torch.AdamW` with learning_rate, betas, epsilon and weight_decay (not of biases and norms)
    of the arguments.  Another one of zerod.torch is passed as ``optimizers=(SGD(model, ...), None)``, for a model that
    was sharded before.  The service clips, and the log has grad_norm.  With bf16=True forward passes run under
    autocast; a model of dtype bfloat16 has fp32 master weights in the service.  ValueError for options that copy, cast
    or wrap a whole model: fsdp, deepspeed, parallelism_config, fp16, fp16_full_eval, bf16_full_eval, use_liger_kernel,
    auto_find_batch_size.

    accumulate: says where the gradients of micro-batches add up.  "owner": in the service, which takes the least
    memory.  "trainer": in this process (``model.no_sync()``), which pushes once a step.
    stage, groups, client, job, timeout, reduce_dtype, init_fn, prefetch, on_lost_rank, resume, keep, base, state, master: of
    :func:`zerod.torch.shard`; ignored if the model is sharded already.

    A checkpoint directory has the files that Trainer writes, streamed by rank 0.  ``transformers.Trainer`` resumes from
    it, with the same parameters, optimizer state and schedule, and ``from_pretrained`` opens it.  master.pt beside them
    has the fp32 master weights of a 16-bit model.  A Trainer that resumes puts the checkpoint's values into the
    service, even if the job is ahead of the checkpoint.  It also loads checkpoints of ``transformers.Trainer`` with
    AdamW.  Those of a 16-bit model have no master weights, and a warning says so.

    Errors: ValueError for arguments that do not go with a sharded model, and if Trainer sees other ranks than zerod.
    """

    def __init__(self, model: nn.Module | str | None = None, *positional: Any,
                 stage: int = 3, groups: Groups = None, client: zerod.Client | None = None,
                 job: str | None = None, timeout: float | None = None,
                 reduce_dtype: torch.dtype | None = None, accumulate: str = "owner",
                 init_fn: Callable[[nn.Module], None] | None = None, prefetch: int = 1,
                 on_lost_rank: str = "wait", resume: str = "auto", keep: bool | None = None,
                 base: Iterable[str | os.PathLike[str]] | None = None, state: Choice = "fp32", master: Choice = "fp32",
                 **named: Any):
        if model is None:
            raise ValueError("pass model=...: one job holds one model, and model_init makes many")
        if accumulate not in ("owner", "trainer"):
            raise ValueError(f"accumulate is 'owner' or 'trainer', not {accumulate!r}")
        self._accumulate = accumulate
        self._writes_optimizer = False  # True while a checkpoint is written, whose model goes with the optimizer
        super().__init__(model, *positional, **named)
        self._check_arguments()
        model = self.model
        if not accelerate.is_sharded(model):
            client = client or zerod.connect(job, timeout=timeout)
            self._check_ranks(client)
            device = self.args.device
            # sharding leaves the script's random numbers as they are without zerod
            with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                zt.shard(model, stage, groups, client=client, reduce_dtype=reduce_dtype,
                         init_fn=init_fn, prefetch=prefetch, on_lost_rank=on_lost_rank, device=device,
                         resume=resume, keep=keep, base=base, state=state, master=master)
        self._check_ranks(model.sharded.client)
        self._check_place()
        self._check_optimizer()
        self._steps = _replay.Steps(model.sharded)
        self._goes_on = model.sharded.goes_on  # until the first train()
        self._kept: tuple[dict[str, Any], _replay.RandomStates] | None = None  # to go on from

    # ---- refusals ---------------------------------------------------------------------

    def _check_arguments(self) -> None:
        for name in REFUSED:
            if getattr(self.args, name, None):
                raise ValueError(f"TrainingArguments({name}=...) does not go with a model sharded "
                                 "by zerod")
        if self.model_init is not None:
            raise ValueError("model_init=... makes many models, and one job holds one: pass model=... alone")
        if self.optimizer_cls_and_kwargs is not None or self.args.optim not in ADAMW:
            raise ValueError(f"optim '{self.args.optim}': this Trainer has zerod.torch.AdamW, "
                             "optim='adamw_torch'; pass another optimizer of zerod.torch by "
                             "optimizers=(zerod.torch.SGD(model), None)")
        if self.args.device.type not in ("cpu", "cuda"):
            raise ValueError(f"the device is {self.args.device}, and zerod serves host memory and "
                             "CUDA: pass TrainingArguments(use_cpu=True)")
        if self.args.n_gpu > 1:
            raise ValueError(f"this process sees {self.args.n_gpu} GPUs and a rank has one: run by "
                             "torchrun, or set CUDA_VISIBLE_DEVICES to one of them")

    def _check_ranks(self, client: zerod.Client) -> None:
        mine = self.args.process_index, self.args.world_size
        if mine != (client.rank, client.world_size):
            raise ValueError(
                f"Trainer is rank {mine[0]} of {mine[1]}, zerod rank {client.rank} of "
                f"{client.world_size}: pass TrainingArguments(use_cpu=True), and run by torchrun "
                "or set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT as torchrun does")

    def _check_place(self) -> None:
        there = self.model.sharded.place.device
        if there != place_of(self.args.device, ()).device:
            raise ValueError(f"the model was sharded for {there}, and the arguments' device is "
                             f"{self.args.device} (host memory with use_cpu=True)")

    def _check_optimizer(self) -> None:
        mine = getattr(self.optimizer, "sharded", None)
        if self.optimizer is not None and mine is not self.model.sharded:
            raise ValueError("optimizers=...: the optimizer is not zerod.torch.AdamW(model), or another "
                             "of zerod.torch, of this model, sharded before")

    # ---- model and optimizer ----------------------------------------------------------

    def create_accelerator_and_postprocess(self) -> None:
        """Does what Trainer's does, with an Accelerator that leaves a sharded model as it is."""
        super().create_accelerator_and_postprocess()
        self.accelerator.__class__ = Accelerator
        self.accelerator.trainer, self.accelerator.accumulate_in = self, self._accumulate

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        """Does nothing: the model stays in the service."""

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Makes zerod's AdamW, in the two param groups that Trainer makes: with and without decay."""
        if self.optimizer is None:
            names = set(self.get_decay_parameter_names(self.model))
            trained = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
            self.optimizer = zt.AdamW(
                self.model,
                [{"params": [p for n, p in trained if n in names],
                  "weight_decay": self.args.weight_decay},
                 {"params": [p for n, p in trained if n not in names], "weight_decay": 0.0}],
                lr=self.args.learning_rate, betas=(self.args.adam_beta1, self.args.adam_beta2),
                eps=self.args.adam_epsilon)
        return self.optimizer

    def _own_optimizer(self) -> zt.ServiceOptimizer:
        """Returns the optimizer without accelerate's wrapper."""
        return getattr(self.optimizer, "optimizer", self.optimizer)

    # ---- going on ---------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, *positional: Any,
              **named: Any) -> Any:
        """Does what Trainer's does; without a checkpoint it resumes at the service's step.  When it returns, this rank
        has completed the job (zerod.Client.finish())."""
        result = self._train(resume_from_checkpoint, *positional, **named)
        sharded = self.model.sharded
        sharded.client.finish(sharded.keep)
        return result

    def _train(self, resume_from_checkpoint: str | bool | None, *positional: Any,
               **named: Any) -> Any:
        goes_on, self._goes_on = self._goes_on, False
        if resume_from_checkpoint is not None or not goes_on:
            return super().train(resume_from_checkpoint, *positional, **named)
        client = self.model.sharded.client
        self._kept = self._kept_position()
        if self._kept is None:
            if client.version and self.args.should_log:
                log.warning("job '%s' has made %d steps, and none with as many ranks under a "
                            "Trainer: data and schedule start from the beginning", client.job,
                            client.version)
            return super().train(None, *positional, **named)
        with tempfile.TemporaryDirectory(prefix="zerod-") as directory:
            self._state_of(self._kept[0]).save_to_json(os.path.join(directory, TRAINER_STATE_NAME))
            try:
                return super().train(directory, *positional, **named)
            finally:
                self._kept = None

    def _kept_position(self) -> tuple[dict[str, Any], _replay.RandomStates] | None:
        sharded = self.model.sharded
        found = _replay.unpack(sharded.kept)
        if found is None or found[0]["world_size"] != sharded.world_size:
            return None
        return found

    def _state_of(self, position: dict[str, Any]) -> transformers.TrainerState:
        return transformers.TrainerState(
            logging_steps=self.args.logging_steps, eval_steps=self.args.eval_steps,
            save_steps=self.args.save_steps, train_batch_size=self._train_batch_size,
            **{name: position.get(name) for name in POSITION})

    def training_step(self, model: nn.Module, inputs: Any,
                      num_items_in_batch: Any = None) -> torch.Tensor:
        """Computes one micro-batch.  After an abort it is repeated with the rest of its step."""
        def run() -> torch.Tensor:
            return super(TrainerMixin, self).training_step(model, copy.copy(inputs), num_items_in_batch)
        return self._steps.do(run)

    def _end_step(self) -> None:
        optimizer, blob = self._own_optimizer(), self._position()

        def end() -> bool:
            optimizer.step(blob=blob)
            return True
        if self._steps.do(end, ends=True) is None:  # committed after all
            optimizer.skipped = False

    def _position(self) -> bytes:
        """Returns the position of the next step, for the process that makes it."""
        state = self.state
        made = state.global_step + 1
        position = {name: getattr(state, name) for name in POSITION}
        position |= {"global_step": made, "world_size": self.model.sharded.world_size,
                     "scheduled": self._scheduler().last_epoch,
                     "version": self.model.sharded.version}
        states = _replay.RandomStates.now(self.model.sharded.place)
        blob = _replay.pack(position, states, self.args.seed)
        if not _replay.fits(blob):
            blob = _replay.pack({**position, "best_model_checkpoint": None}, states, self.args.seed)
        return blob

    def _scheduler(self) -> Any:
        """Returns the schedule without accelerate's wrapper."""
        return getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if self._kept is None:
            super()._load_rng_state(checkpoint)
        else:
            self._kept[1].restore(self.model.sharded.place)

    def prediction_step(self, model: nn.Module, inputs: Any, *positional: Any, **named: Any) -> Any:
        """Does what the Trainer's does.  With ``predict_with_generate`` parameters outside of the model's blocks stay
        fetched, since generate() calls parts of the model."""
        step = super().prediction_step
        if getattr(self.args, "predict_with_generate", False):
            step = self.model.sharded.hooks.within(step)
        return step(model, inputs, *positional, **named)

    # ---- saving -----------------------------------------------------------------------

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self._writes_optimizer = not self.args.save_only_model
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self._writes_optimizer = False
        self.accelerator.wait_for_everyone()  # a wait in the next step would have a shorter deadline

    def _save(self, output_dir: str | None = None,
              state_dict: dict[str, Any] | None = None) -> None:
        """Writes configuration, tokenizer and arguments, and streams the model."""
        if state_dict is not None:
            super()._save(output_dir, state_dict)
            return
        if not self.args.should_save:
            return
        directory = output_dir if output_dir is not None else self.args.output_dir
        os.makedirs(directory, exist_ok=True)
        if isinstance(self.model, transformers.PreTrainedModel):
            self._save_configuration(directory)
        processing = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        if processing is not None:
            processing.save_pretrained(directory)
        torch.save(self.args, os.path.join(directory, TRAINING_ARGS_NAME))
        if not self._writes_optimizer:
            zt.save_safetensors(self.model, directory)

    def _save_configuration(self, directory: str) -> None:
        config = self.model.config
        config.dtype = str(self.model.dtype).removeprefix("torch.")
        config.architectures = [type(self.model).__name__]
        config.save_pretrained(directory)
        if self.model.can_generate():
            self.model.generation_config.save_pretrained(directory)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.args.should_save:
            optimizer, defaults = self._own_optimizer(), None
            if isinstance(optimizer, zt.AdamW):
                kind, options = self.get_optimizer_cls_and_kwargs(self.args, self.model)
                defaults = kind([torch.zeros(0)], **options).defaults
            save_plain(output_dir, optimizer, defaults)
            torch.save(self.lr_scheduler.state_dict(), os.path.join(output_dir, SCHEDULER_NAME))

    # ---- loading ----------------------------------------------------------------------

    def _load_from_checkpoint(self, resume_from_checkpoint: str,
                              model: nn.Module | None = None) -> None:
        """Loads the model's weights.  A checkpoint of save_checkpoint() is loaded as a whole later."""
        if self._kept is None and not _is_of_save_checkpoint(resume_from_checkpoint):
            zt.load_safetensors(self.model, resume_from_checkpoint)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if self._kept is not None:
            kept = self._kept[0]
            committed = self.model.sharded.version - kept["version"]  # of the last step: 0 or 1
            follow(self._scheduler(), kept["scheduled"] + committed)
            return
        if checkpoint is not None and _is_of_save_checkpoint(checkpoint):
            zt.load_checkpoint(checkpoint, self.model, self._own_optimizer())
        elif checkpoint is not None and _has(checkpoint, PLAIN_FILE, SCHEDULER_NAME):
            load_plain(checkpoint, self._own_optimizer())
        else:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        self.lr_scheduler.load_state_dict(
            torch.load(os.path.join(checkpoint, SCHEDULER_NAME), weights_only=True))

    def _load_best_model(self) -> None:
        log.info("loading the best model, %s (%s)", self.state.best_model_checkpoint,
                 self.state.best_metric)
        zt.load_safetensors(self.model, self.state.best_model_checkpoint)


class Trainer(TrainerMixin, transformers.Trainer):
    """``transformers.Trainer`` on a sharded model; see :class:`TrainerMixin`."""


def _has(checkpoint: str, *names: str) -> bool:
    return all(os.path.exists(os.path.join(checkpoint, name)) for name in names)


def _is_of_save_checkpoint(checkpoint: str) -> bool:
    """Returns True if zerod.torch.save_checkpoint(), which older Trainers called, wrote the directory."""
    return not _has(checkpoint, PLAIN_FILE) and (
        _has(checkpoint, OPTIMIZER_FILE) or _has(checkpoint, OPTIMIZER_FILE + INDEX_SUFFIX))
