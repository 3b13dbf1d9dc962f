"""A GPU for zerod.torch where there is none.

Everything runs as for a model on a GPU, in torch's own storages that are filled by copies from the
daemon's window, but for the calls of CUDA: tensors are on the CPU.
"""
import torch

from zerod.torch import place, sharded


class Stand(place.Gpu):
    """One stream, which does at once what is enqueued."""

    followed = []

    def __init__(self):
        super().__init__(torch.device("cpu"))

    def needs(self):
        return {}

    def tensor_at(self, address, elements, dtype):
        return place.host_tensor_at(address, elements, dtype)

    stream = None

    def mark(self):
        return "stream"

    def follow(self, mark, tensor):
        assert mark == "stream", f"the tensor has no mark: {mark}"
        self.followed.append(tensor)


def stand_in():
    """From now on every model that is sharded is on the stand-in."""
    sharded.place_of = lambda device, values: Stand()
