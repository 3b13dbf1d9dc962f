"""Which part of the data this process has.

    sampler = torch.utils.data.DistributedSampler(rows, zerod.torch.world_size(), zerod.torch.rank())

Rule: what the sharded models of this process say, before there is one what torchrun or Slurm says; no process group.
"""
from zerod.environment import place

from .wrap import _of_job


def _rank_and_world_size() -> tuple[int, int]:
    found = {(s.rank, s.world_size) for s in _of_job.values() if not s.client.closed} or {place()[:2]}
    if len(found) > 1:
        raise RuntimeError("the models of this process have different ranks or world sizes: take "
                           "model.sharded.rank and model.sharded.world_size")
    return found.pop()


def rank() -> int:
    """This process's rank in its job, 0 if it is alone; before shard() too.

    Errors: ValueError if a variable of torchrun or Slurm makes no sense; RuntimeError if this process has several
    models, of different ranks or world sizes.
    """
    return _rank_and_world_size()[0]


def world_size() -> int:
    """How many ranks the job has, 1 if this process is alone; otherwise as :func:`rank`.

    The ranks of a mesh that work on one batch together are no parts of the data: take the mesh's dimension for those.
    """
    return _rank_and_world_size()[1]
