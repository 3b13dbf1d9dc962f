"""Training loops that go on, whatever dies.

    for step in zerod.torch.steps(model, until=1000, scheduler=scheduler, seed=0):
        with step as t:
            loss_of(model, batch(t)).backward()
            model.clip_grad_norm_(1.0)
            optimizer.step()

Rule: whatever a step computes depends on its number t alone: batch, learning rate, random numbers.
Then a step that is done again, by this process or by one that takes its place, is the same to the
bit.
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
    """Seeds torch's generators, Python's `random`, and NumPy's global one if it is loaded, by three
    numbers: other ones give unrelated random numbers."""
    digest = hashlib.sha256(f"{int(seed)} {int(step)} {int(rank)}".encode()).digest()
    mixed = int.from_bytes(digest[:7], "little")
    torch.manual_seed(mixed)
    random.seed(mixed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(mixed % (1 << 32))


class Step:
    """One try at a step.  As a context it gives the step's number, and swallows zerod.Aborted."""

    def __init__(self, sharded: Sharded, scheduler: Any = None, seed: int | None = None):
        self.sharded, self.scheduler, self.seed = sharded, scheduler, seed
        self.aborted = False  # it has to be done again, unless it was committed after all

    def __enter__(self) -> int:
        t = self.sharded.steps_made
        if self.scheduler is not None:
            follow(self.scheduler, t)
        if self.seed is not None:
            manual_seed(self.seed, t, self.sharded.rank)
        return t

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> bool:
        self.aborted = isinstance(error, zerod.Aborted)
        return self.aborted


def steps(model: nn.Module, until: int, *, scheduler: Any = None, seed: int | None = None,
          resume: str = "auto") -> Iterator[Step]:
    """Steps of a sharded model, from where the service stands until so many are made.

    Each is entered by ``with``, which gives its number: how many steps the job has made before,
    those skipped for a gradient that was not finite included.  Inside are the forward and backward
    passes and ``optimizer.step()``, at its end.  When the step is aborted, as a daemon, a node or a
    rank was lost, the block ends without an exception and the next one has the same number; or the
    one after, if the step was committed after all.  All other exceptions go on their way.

    scheduler: of torch.optim.lr_scheduler, made before; it is stepped here, as often as steps were
    made, and nowhere else.  One that needs metrics cannot be followed.
    seed: seeds by :func:`manual_seed` with the step's number and the rank, so that dropout is the
    same when a step is done again; None: random numbers go on as they do.

    resume: as of :func:`shard`: whether steps that were made before this process count.

    After the last step this rank has completed the job (zerod.Client.finish()).

    Errors: TypeError if the model is not sharded; RuntimeError for a scheduler that is ahead, or by
    resume.
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
    """Brings a scheduler to where it stands when so many steps are made; RuntimeError if it is
    further."""
    if scheduler.last_epoch > made:
        raise RuntimeError(f"the scheduler has made {scheduler.last_epoch} steps and the job "
                           f"{made}: make it anew, and let steps() alone step it")
    with warnings.catch_warnings():  # the steps were made, maybe not by this process
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
        while scheduler.last_epoch < made:
            scheduler.step()
