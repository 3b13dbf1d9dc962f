"""A process group of torch.distributed whose collectives go through the service: for what frameworks gather beside
training, such as metrics, sizes of batches and random states.

    zerod.torch.init_process_group()              # in place of torch.distributed.init_process_group("gloo")

Rules
- Everything is a gather of bytes: a number of the service's reduction carries WORD bytes, and a rank adds zeros where
  another one's stand.
- All ranks are at the same collective: its number and kind are the name of the reduction, which the service compares.
- A collective that an abort ends is repeated by all ranks, unless gradients went with it: then the step is.
"""
from __future__ import annotations

from typing import Any

import torch
import zerod
from torch import distributed

from .ranks import _only_model, rank, world_size

BACKEND = "zerod"
WORD, WORDS = 6, 64  # bytes that a double holds exactly; numbers of a reduction
BYTES_MAX = 1 << 20  # of a collective, all ranks together


class _Done(distributed.Work):
    """Of a collective that is over."""

    def wait(self, *_: Any, **__: Any) -> bool:
        """At once."""
        return True

    def is_completed(self) -> bool:
        """Always."""
        return True


class ServiceGroup(distributed.ProcessGroup):
    """All ranks of the job.  What is not here torch refuses by name."""

    def __init__(self, place: tuple[int, int]):
        super().__init__(*place)
        self.place, self.count = place, 0

    def getBackendName(self) -> str:  # pylint: disable=invalid-name
        """Torch's name for it."""
        return BACKEND

    # ---- collectives of torch, whose tensors come in lists of one ----------------------------------

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> _Done:
        """Sums and products are in the order of ranks."""
        kind, parts = opts.reduceOp if opts else distributed.ReduceOp.SUM, torch.stack(self._gather("all_reduce", tensors[0]))
        ways = {"SUM": lambda: parts.sum(0), "AVG": lambda: parts.sum(0) / self.place[1], "PRODUCT": lambda: parts.prod(0),
                "MAX": lambda: parts.amax(0), "MIN": lambda: parts.amin(0)}
        way = next((w for name, w in ways.items() if kind == getattr(distributed.ReduceOp, name)), None)
        if way is None:
            raise NotImplementedError(f"the process group of zerod reduces by {', '.join(ways)}, not {kind}")
        tensors[0].copy_(way())
        return _Done()

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> _Done:
        """A tensor of each rank, of one size."""
        for out, part in zip(outputs[0], self._gather("all_gather", inputs[0])):
            out.copy_(part)
        return _Done()

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> _Done:
        """The ranks' tensors one behind the other."""
        output.view(-1).copy_(torch.cat([p.reshape(-1) for p in self._gather("all_gather", given)]))
        return _Done()

    _allgather_base = all_gather_single  # its name in older PyTorch

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> _Done:
        """The root's tensor."""
        tensors[0].copy_(self._gather("broadcast", tensors[0], only=opts.rootRank)[0])
        return _Done()

    def barrier(self, opts: Any = None) -> _Done:
        """All ranks are here."""
        self._gather("barrier", torch.zeros(1, dtype=torch.uint8))
        return _Done()

    # ---- through the service -----------------------------------------------------------------------

    def _gather(self, kind: str, tensor: torch.Tensor, only: int | None = None) -> list[torch.Tensor]:
        """The ranks' tensors, on the tensor's device; only: that of this rank alone."""
        mine = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
        size = -(-len(mine) // WORD) * WORD
        ranks = range(self.place[1]) if only is None else [only]
        if size * len(ranks) > BYTES_MAX:
            raise ValueError(f"{kind} of {len(mine)} bytes of each of {len(ranks)} ranks: the process group of zerod is for "
                             f"metrics, {BYTES_MAX} bytes at most; use torch.distributed.init_process_group('gloo')")
        sent = torch.zeros(len(ranks), size, dtype=torch.uint8)
        if self.place[0] in ranks:
            sent[ranks.index(self.place[0]), :len(mine)] = mine
        powers = 256.0 ** torch.arange(WORD, dtype=torch.float64)
        words = self._reduced(kind, (sent.view(-1, WORD).double() @ powers).tolist())
        got = (torch.tensor(words, dtype=torch.int64)[:, None] >> 8 * torch.arange(WORD)) & 255
        got = got.to(torch.uint8).view(len(ranks), size)[:, :len(mine)]
        return [part.clone().view(tensor.dtype).view(tensor.shape).to(tensor.device) for part in got]

    def _reduced(self, kind: str, words: list[float]) -> list[int]:
        """The ranks' sum."""
        sharded = _only_model()
        self.count += 1
        while True:
            begun = sharded.has_gradients
            try:
                found: list[float] = []
                for at in range(0, len(words), WORDS):
                    found += sharded.attempt.all_reduce(f"torch.distributed {kind} {self.count} at {at}",
                                                        words[at:at + WORDS], "sum")
                return [int(f) for f in found]
            except zerod.Aborted:
                if begun or sharded.parallel:
                    raise


def init_process_group() -> None:
    """Makes the default group of torch.distributed, of the ranks that torchrun or Slurm names, without a connection
    between them: no rendezvous, no gloo.  Call it first, before a framework makes a group of its own, as TrainingArguments does.

    Its collectives work once the only model of the process is sharded, and until the process ends: all_reduce, all_gather,
    broadcast, barrier and what torch makes of them (all_gather_object), of 1 MiB at most.  Ranks that are started again start
    again together.

    Errors: RuntimeError if there is a group; ValueError as of :func:`rank`.
    """
    if BACKEND not in distributed.Backend.backend_list:
        distributed.Backend.register_backend(BACKEND, lambda _, mine, ranks, __: ServiceGroup((mine, ranks)),
                                             devices=["cpu", "cuda"])
    distributed.init_process_group(BACKEND, store=distributed.HashStore(), rank=rank(), world_size=world_size())
