"""Where gathered parameters and gradients are: in host memory, or on a GPU.

Both keep what autograd needs: a gathered parameter is made once, and its values are where it looks
for them whenever its group is fetched, however often it was released.

- :class:`Host`: libzero has a group at the same address each time, and trainers read the daemon's
  window itself (private views).  The group is held while it is fetched.
- :class:`Gpu`: a group has one storage of torch's own, which has memory only while the group is
  fetched.  One copy a fetch fills it from the daemon's window, which is given back behind that
  copy at once.

Rules of :class:`Gpu`
- Whatever is enqueued is enqueued on the current stream; the service is told to wait for it.
- Parameters have version counters of their own: filling their storage is no change of theirs, and a
  change in place is seen as on the CPU.
- A copy that is under way when the attempt is aborted may read what the window has next: where
  anything was copied, an abort is always told (:meth:`Attempt.copied`).

All that touches CUDA is in :meth:`Gpu.tensor_at`, :meth:`Gpu.mark`, :meth:`Gpu.follow`,
:meth:`Gpu.stream`, :meth:`Gpu.random_state` and :meth:`Gpu.restore_random_state`.
"""
from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .attempt import Attempt
    from .unit import Group


def host_tensor_at(address: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
    """A flat tensor over host memory that somebody else owns."""
    if elements == 0:
        return torch.empty(0, dtype=dtype)
    memory = (ctypes.c_char * (elements * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype, count=elements)


def trained_later() -> torch.inference_mode:
    """Parameters are made so that they can be trained, even if first used for inference."""
    return torch.inference_mode(False)


class Host:
    """Host memory, at addresses that libzero keeps."""

    device = torch.device("cpu")
    holds = True  # a fetched group is held
    stream = None  # nothing is under way when a call is made

    def needs(self) -> dict[str, Any]:
        """What Client.attach() is told."""
        return {"private_views": True}

    def home(self, group: "Group") -> "View":
        """What one group is in while it is fetched."""
        return View(group)

    def tensor_at(self, address: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """A flat tensor over memory that libzero has given an address of."""
        return host_tensor_at(address, elements, dtype)

    def mark(self) -> Any:
        """What the work that is enqueued now can be found by."""
        return None

    def follow(self, mark: Any, tensor: torch.Tensor) -> None:
        """What is enqueued from now on uses the tensor, and comes behind the marked work."""

    def random_state(self) -> torch.Tensor | None:
        """Bytes that the device's own generator goes on from; None: it has none."""
        return None

    def restore_random_state(self, state: torch.Tensor) -> None:
        """Nothing: what a rank on a GPU has kept is of no use here."""


class View:
    """A group's private view."""

    def __init__(self, group: "Group"):
        self.group = group
        self.address: int | None = None  # from the first fetch on

    def fetch(self, attempt: "Attempt") -> None:
        """The parameters have their values; blocks."""
        address = attempt.fetch(self.group.index)
        if self.address is None:
            self.address = address
            self._make()
        assert address == self.address, "a private view has moved"

    @trained_later()
    def _make(self) -> None:
        for p in self.group.params:
            values = host_tensor_at(self.address + p.offset * p.dtype.itemsize, p.numel, p.dtype)
            p.gather(values.view(p.shape))

    def release(self, attempt: "Attempt") -> None:
        """The parameters have no values any more."""
        attempt.release(self.group.index)

    def abandon(self, attempt: "Attempt") -> None:
        """release(), of what may not be fetched, while another error is on its way."""
        attempt.release_quietly([self.group.index])

    def forget(self) -> None:
        """release(), where the service has taken the group back already."""


class Gpu:
    """A GPU of this process: device "cuda:N"."""

    holds = False

    def __init__(self, device: torch.device):
        self.device = device

    def needs(self) -> dict[str, Any]:
        """What Client.attach() is told."""
        return {"device": str(self.device)}

    def home(self, group: "Group") -> "Storage":
        """What one group is in while it is fetched."""
        return Storage(self, group)

    def tensor_at(self, address: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
        """A flat tensor over memory that libzero has given an address of."""
        if elements == 0:
            return torch.empty(0, dtype=dtype, device=self.device)
        memory = _DeviceMemory(address, elements * dtype.itemsize)
        return torch.as_tensor(memory, device=self.device).view(dtype)

    @property
    def stream(self) -> int:
        """The current stream, as libzero is told of it."""
        return torch.cuda.current_stream(self.device).cuda_stream

    def mark(self) -> Any:
        """What the work that is enqueued now can be found by."""
        return torch.cuda.current_stream(self.device)

    def follow(self, mark: Any, tensor: torch.Tensor) -> None:
        """What is enqueued from now on uses the tensor, and comes behind the marked work."""
        current = torch.cuda.current_stream(self.device)
        if mark != current:
            current.wait_stream(mark)
            tensor.record_stream(current)

    def random_state(self) -> torch.Tensor | None:
        """Bytes that the device's own generator goes on from."""
        return torch.cuda.get_rng_state(self.device)

    def restore_random_state(self, state: torch.Tensor) -> None:
        """The device's own generator goes on from there."""
        torch.cuda.set_rng_state(state, self.device)


class _DeviceMemory:
    """Bytes on a GPU, for torch.as_tensor(); bf16 has no code in this protocol, bytes have."""

    def __init__(self, address: int, size: int):
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "strides": None,
                                         "data": (address, False), "version": 3}


class Storage:
    """A group's storage; flat: a tensor over all of it, which nobody else has."""

    def __init__(self, place: Gpu, group: "Group"):
        self.place, self.group = place, group
        self.flat: torch.Tensor | None = None  # from the first fetch on

    def fetch(self, attempt: "Attempt") -> None:
        """The parameters have their values; blocks until the service has them."""
        address = attempt.fetch(self.group.index)
        try:
            self._fill(address)
        except BaseException:  # out of memory, say
            attempt.release_quietly([self.group.index], self.place.stream)
            raise
        attempt.copied()
        attempt.release(self.group.index, self.place.stream)

    @trained_later()
    @torch.no_grad()
    def _fill(self, address: int) -> None:
        elements, dtype = self.group.elements, self.group.dtype
        if self.flat is None:
            self._make()
        self.flat.untyped_storage().resize_(elements * dtype.itemsize)
        self.flat.copy_(self.place.tensor_at(address, elements, dtype))

    def _make(self) -> None:
        self.flat = torch.empty(self.group.elements, dtype=self.group.dtype,
                                device=self.place.device)
        for p in self.group.params:
            p.gather(_part(self.flat, p.offset, p.shape))

    def release(self, attempt: "Attempt") -> None:
        """The parameters have no values any more."""
        del attempt
        self.forget()

    def abandon(self, attempt: "Attempt") -> None:
        """release(), of what may not be fetched, while another error is on its way."""
        self.release(attempt)

    def forget(self) -> None:
        """release(), where the service has taken the group back already."""
        if self.flat is not None:
            self.flat.untyped_storage().resize_(0)


def _part(flat: torch.Tensor, offset: int, shape: torch.Size) -> torch.Tensor:
    """A tensor in the same storage with a version counter of its own, which a view has not."""
    strides = torch.empty(shape, device="meta").stride()
    return torch.empty(0, dtype=flat.dtype, device=flat.device).set_(flat.untyped_storage(), offset,
                                                                     shape, strides)


def place_of(device: torch.device | str | int | None,
             values: Iterable[torch.Tensor]) -> "Host | Gpu":
    """The place that `device` names; None: where the values are, host memory if on meta."""
    if device is None:
        there = {v.device for v in values if v.device.type != "meta"}
        if len(there) > 1:
            raise ValueError("the model's parameters are on several devices, "
                             f"{', '.join(sorted(map(str, there)))}: name one, "
                             "shard(model, device=...)")
        device = there.pop() if there else torch.device("cpu")
    device = torch.device(device)
    if device.type == "cpu":
        return Host()
    if device.type != "cuda":
        raise ValueError(f"zerod serves host memory and CUDA devices, not {device}")
    if device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return Gpu(device)
