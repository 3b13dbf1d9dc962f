"""A GPU for zerod.torch where there is none.

Everything runs as for a model on a GPU, but for the calls of CUDA: the daemon's windows are on the fake
GPU, whose memory trainers can read, and tensors are on the CPU.
"""
import contextlib
import os

import torch

from zerod.torch import place, wrap


class Stand(place.Gpu):
    """One stream, which does at once what is enqueued.  drawn: the state of its generator, which counts."""

    followed = []
    drawn = torch.zeros(16, dtype=torch.uint8)

    def __init__(self):
        super().__init__(torch.device("cpu"))

    def needs(self):
        return {"device": "cuda:0"}

    def tensor_at(self, address, elements, dtype, owner=None):
        return place.host_tensor_at(address, elements, dtype, owner)

    stream = 0

    def mark(self):
        return "stream"

    def follow(self, mark, tensor):
        assert mark == "stream", f"the tensor has no mark: {mark}"
        self.followed.append(tensor)

    def beside(self):
        return contextlib.nullcontext()

    def random_state(self):
        return Stand.drawn.clone()

    def restore_random_state(self, state):
        Stand.drawn = state.clone()

    @staticmethod
    def draw():
        """The generator's next number, below 1."""
        Stand.drawn[0] += 1
        return int(Stand.drawn[0]) * 37 % 64 / 64


def stand_in(zerod):
    """From now on every model that is sharded is on the stand-in, and daemons that are started have its
    GPU; zerod: the daemon of the build tree."""
    plugin = os.path.join(os.path.dirname(zerod), "../tests/support/zerod-fake-gpu.so")
    os.environ["ZEROD_CUDA_PLUGIN"] = os.path.abspath(plugin)  # of daemons and trainers
    wrap.place_of = lambda device, values: Stand()
