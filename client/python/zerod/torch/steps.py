"""Training loops that survive the death of daemons, nodes and ranks.

    for step in zerod.torch.steps(model, until=1000, scheduler=scheduler, seed=0):
        with step as t:
            loss_of(model, batch(t)).backward()
            model.clip_grad_norm_(1.0)
            optimizer.step()

Rule: batch, learning rate and random numbers of a step depend on its number t alone.  Then a repeated step, in this
process or in its successor, is the same to the bit.
"""
from __future__ import annotations

import hashlib
import logging
import random
import sys
import warnings
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import torch
from torch import nn

import zerod

from .sharded import Sharded, check_resume, sharded_of

log = logging.getLogger("zerod")


def manual_seed(seed: int, step: int = 0, rank: int = 0) -> None:
    """Seeds torch's generators, Python's `random`, and NumPy's global generator if NumPy is loaded, from three numbers.
    Other numbers give unrelated random numbers."""
    digest = hashlib.sha256(f"{int(seed)} {int(step)} {int(rank)}".encode()).digest()
    mixed = int.from_bytes(digest[:7], "little")
    torch.manual_seed(mixed)
    random.seed(mixed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(mixed % (1 << 32))


def may_repeat(sharded: Sharded, abort: zerod.Aborted) -> bool:
    """Returns True if this process may repeat the step by itself.  Otherwise the abort says what to do."""
    if not sharded.parallel:
        return True
    # a rank that repeats its step now would pair its collectives with those of another attempt
    if hasattr(abort, "add_note"):  # from Python 3.11 on
        abort.add_note("the ranks of a parallel model start again together, as torchrun --max-restarts does; the job goes on "
                       "with this step")
    return False


class Step:
    """One try at a step.  The context returns the step's number, and swallows zerod.Aborted."""

    def __init__(self, sharded: Sharded, scheduler: Any = None, seed: int | None = None):
        self.sharded, self.scheduler, self.seed = sharded, scheduler, seed
        self.aborted = False  # the step is repeated, unless it was committed after all

    def __enter__(self) -> int:
        t = self.sharded.steps_made
        if self.scheduler is not None:
            follow(self.scheduler, t)
        if self.seed is not None:
            manual_seed(self.seed, t, self.sharded.rank)
        self.sharded.attempt.begin_step()
        return t

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> bool:
        self.aborted = isinstance(error, zerod.Aborted) and may_repeat(self.sharded, error)
        return self.aborted


def steps(model: nn.Module, until: int, *, scheduler: Any = None, seed: int | None = None,
          resume: str = "auto") -> Iterator[Step]:
    """Yields steps of a sharded model, from the job's current step until `until` are made.

    ``with`` enters a step and returns its number: how many steps the job has made before.  Steps that were skipped
    because a gradient was not finite count.  The block has the forward and backward passes, and ``optimizer.step()`` at
    its end.  If the step is aborted because a daemon, a node or a rank was lost, the block ends without an exception.
    The next block has the same number, or the next number if the step was committed after all.  All other exceptions
    propagate.  zerod.Aborted propagates, too, if the model is divided over a mesh: start all ranks again.

    scheduler: of torch.optim.lr_scheduler, made before.  Only steps() steps it, once for each step made.  A scheduler
    that needs metrics cannot be used.
    seed: seeds by :func:`manual_seed` with the step's number and the rank, so dropout is the same when a step is
    repeated.  None: leaves random numbers alone.

    resume: as of :func:`shard`: says if steps that were made before this process count.

    After the last step this rank has completed the job (zerod.Client.finish()).

    Errors: TypeError if the model is not sharded; RuntimeError for a scheduler that is ahead, or by resume.
    """
    sharded = sharded_of(model)
    check_resume(sharded, resume)
    if sharded.steps_made >= until and sharded.rank == 0:
        job = sharded.client.job
        log.warning("job '%s' has made %d of %d steps already: nothing is left to do; zeroctl drop %s "
                    "starts afresh", job, sharded.steps_made, until, job)
    while sharded.steps_made < until:
        yield Step(sharded, scheduler, seed)
    sharded.client.finish(sharded.keep)


def follow(scheduler: Any, made: int) -> None:
    """Steps a scheduler up to the number of steps made.  RuntimeError if the scheduler is ahead of that."""
    if scheduler.last_epoch > made:
        raise RuntimeError(f"the scheduler has made {scheduler.last_epoch} steps and the job "
                           f"{made}: make a new one, and let only steps() step it")
    with warnings.catch_warnings():  # the steps were made, maybe not by this process
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
        while scheduler.last_epoch < made:
            scheduler.step()
