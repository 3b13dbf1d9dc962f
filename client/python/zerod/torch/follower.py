"""Following a job with PyTorch: a version's parameters as tensors."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .. import follower as base
from .pipeline import TORCH_DTYPES
from .place import host_tensor_at


class Weights(base.Weights):
    """A whole version of a job's parameters; iterates over (name, tensor).

    The tensors lie in the service's read-only memory until release(): copy what stays, and write to none.
    """

    def view(self, tensor: int) -> torch.Tensor:
        """Returns a tensor in its shape."""
        dtype = TORCH_DTYPES[self.layout.dtype(self.layout.tensor_group(tensor))]
        shape = self.layout.shape(tensor)
        elements = torch.Size(shape).numel()  # in a group of bytes a shape counts bytes
        return host_tensor_at(self.address(tensor), elements, dtype).view(shape)

    def metadata(self) -> list[tuple[str, Any, tuple[int, ...]]]:
        """Returns name, torch.dtype and shape of each tensor, in the order of the iteration."""
        return [(name, TORCH_DTYPES[dtype], shape) for name, dtype, shape in super().metadata()]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Returns all tensors by name.  A module's load_state_dict() copies them."""
        return dict(self)


class Follower(base.Follower):
    """A reader of a job; its versions are Weights of tensors."""

    _kind = Weights

    def __iter__(self) -> Iterator[Weights]:
        return super().__iter__()  # type: ignore[return-value]


def follow(job: str | None = None, socket: str | None = None, timeout: float | None = None) -> Follower:
    """Follows a job's parameters, as :func:`zerod.follow` does, with tensors.

        with zerod.torch.follow("my-job") as job:
            for weights in job:
                with weights:
                    model.load_state_dict(weights.state_dict(), strict=False)
    """
    return Follower(job, socket, timeout)
