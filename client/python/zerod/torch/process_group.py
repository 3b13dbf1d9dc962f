"""A process group of torch.distributed whose collectives use the service.  Frameworks gather metrics, sizes of batches
and random states by it, beside training.

    zerod.torch.init_process_group()              # in place of torch.distributed.init_process_group("gloo")

Rules
- Every collective is a gather of bytes.  A number of the service's reduction carries WORD bytes, and a rank adds zeros
  in the place of another rank's bytes.
- All ranks are at the same collective: kind, size and dtype are the name of the reduction, which the service compares.
- A collective that an abort ends is not repeated alone.  Some ranks may be at another one, and a forward pass whose
  backward pass is to come is lost.  After zerod.Aborted the step is repeated, or the ranks are started again.
"""
from __future__ import annotations

import functools
from typing import Any

import torch
from torch import distributed

from .ranks import _only_model, rank, world_size

BACKEND = "zerod"
WORD, WORDS = 6, 64  # bytes that a double holds exactly; most numbers of a reduction
BYTES_MAX = 1 << 20  # most bytes of a collective, all ranks together


class _Done(distributed.Work):
    """The handle of a collective that is over."""

    def wait(self, *_: Any, **__: Any) -> bool:
        """Returns at once."""
        return True

    def is_completed(self) -> bool:
        """Returns True."""
        return True


class ServiceGroup(distributed.ProcessGroup):
    """All ranks of the job.  Torch refuses the collectives that are not here."""

    def __init__(self, place: tuple[int, int]):
        if place[1] != world_size():
            raise ValueError(f"a process group of {place[1]} of {world_size()} ranks: that of zerod has all of a job; use "
                             "torch.distributed.new_group(ranks, backend='gloo')")
        super().__init__(*place)
        self.place = place

    def getBackendName(self) -> str:  # pylint: disable=invalid-name
        """Returns the name under which torch knows it."""
        return BACKEND

    # ---- collectives of torch, whose tensors come in lists of one ----------------------------------

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> _Done:
        """Reduces a tensor over all ranks; sums and products are in the order of ranks."""
        kind = opts.reduceOp if opts else distributed.ReduceOp.SUM
        ways = {"SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul, "MAX": torch.maximum, "MIN": torch.minimum}
        way = next((name for name in ways if kind == getattr(distributed.ReduceOp, name)), None)
        if way is None:
            raise NotImplementedError(f"the process group of zerod reduces by {', '.join(ways)}, not {kind}")
        reduced = functools.reduce(ways[way], self._gather("all_reduce", tensors[0]))
        tensors[0].copy_(reduced / self.place[1] if way == "AVG" else reduced)
        return _Done()

    def allgather(self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any = None) -> _Done:
        """Gathers a tensor of each rank, all of one size."""
        if [out.shape for out in outputs[0]] != [inputs[0].shape] * self.place[1]:
            raise ValueError(f"all_gather of {list(inputs[0].shape)} needs {self.place[1]} outputs of that shape, one a rank")
        for out, part in zip(outputs[0], self._gather("all_gather", inputs[0])):
            out.copy_(part)
        return _Done()

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> _Done:
        """Gathers the ranks' tensors into one, one behind the other."""
        output.copy_(torch.cat([p.reshape(-1) for p in self._gather("all_gather", given)]).view(output.shape))
        return _Done()

    _allgather_base = all_gather_single  # its name in older PyTorch

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> _Done:
        """Gives all ranks the root's tensor."""
        tensors[0].copy_(self._gather("broadcast", tensors[0], only=opts.rootRank)[0])
        return _Done()

    def barrier(self, opts: Any = None) -> _Done:
        """Waits for all ranks."""
        self._gather("barrier", torch.zeros(1, dtype=torch.uint8))
        return _Done()

    # ---- through the service -----------------------------------------------------------------------

    def _gather(self, kind: str, tensor: torch.Tensor, only: int | None = None) -> list[torch.Tensor]:
        """Returns the ranks' tensors, on the tensor's device.  only: the one rank whose tensor is gathered."""
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
        name = f"torch {kind}, {len(mine)} bytes of {str(tensor.dtype).removeprefix('torch.')}"
        words = self._reduced(name, (sent.view(-1, WORD).double() @ powers).tolist())
        got = (torch.tensor(words, dtype=torch.int64)[:, None] >> 8 * torch.arange(WORD)) & 255
        got = got.to(torch.uint8).view(len(ranks), size)[:, :len(mine)]
        return [part.clone().view(tensor.dtype).view(tensor.shape).to(tensor.device) for part in got]

    def _reduced(self, name: str, words: list[float]) -> list[int]:
        """Returns the sum over the ranks."""
        attempt = _only_model("the process group of zerod goes through the only one, after zerod.torch.shard()").attempt
        found: list[float] = []
        for at in range(0, len(words), WORDS):
            found += attempt.all_reduce(name, words[at:at + WORDS], "sum")
        return [int(f) for f in found]


def init_process_group() -> None:
    """Makes the default group of torch.distributed, of the ranks that torchrun or Slurm names.  The ranks have no
    connection between them: no rendezvous, no gloo.  Call it before a framework makes a group of its own, as
    TrainingArguments does.

    Its collectives work once the only model of the process is sharded, and until the process ends.  They are
    all_reduce, all_gather, broadcast, barrier and torch's calls of them (all_gather_object), of 1 MiB at most, by all
    ranks.  Ranks start again together.  zerod.Aborted: a rank or daemon was lost; :func:`zerod.torch.steps` repeats the
    step.

    Errors: RuntimeError if there is a group; ValueError as from :func:`rank`.
    """
    if BACKEND not in distributed.Backend.backend_list:
        distributed.Backend.register_backend(BACKEND, lambda _, mine, ranks, __: ServiceGroup((mine, ranks)),
                                             devices=["cpu", "cuda"])
    distributed.init_process_group(BACKEND, store=distributed.HashStore(), rank=rank(), world_size=world_size())
