"""The places of gathered parameters and gradients: host memory, or a GPU.

Both keep the promise that autograd needs: a gathered parameter is made once.  Its values are at the same place whenever
its group is fetched, however often it was released.

- :class:`Host`: libzero maps a group at the same address each time, and trainers read the daemon's window itself
  (private views).  The group is held while it is fetched.
- :class:`Gpu`: a group has one storage of torch's own, which has memory only while the group is fetched.  Each fetch
  fills it by one copy from the daemon's window, and releases the window right behind that copy.

Rules of :class:`Gpu`
- All work goes to the current stream.  Calls pass that stream to the service, which waits for it.
- Parameters have version counters of their own.  Filling their storage does not count as a change, and a change in
  place is seen as on the CPU.
- A copy under way during an abort may read the window's next contents, so after a copy every abort is raised
  (:meth:`Attempt.copied`).

All use of CUDA is in :meth:`Gpu.tensor_at`, :meth:`Gpu.mark`, :meth:`Gpu.follow`, :meth:`Gpu.stream`,
:meth:`Gpu.current_stream`, :meth:`Gpu.beside`, :meth:`Gpu.random_state` and
:meth:`Gpu.restore_random_state`.
"""
from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .attempt import Attempt
    from .unit import Group


def host_tensor_at(address: int, elements: int, dtype: torch.dtype, owner: object = None) -> torch.Tensor:
    """Returns a flat tensor over host memory that the owner keeps; the tensor keeps the owner."""
    if elements == 0:
        return torch.empty(0, dtype=dtype)
    memory = (ctypes.c_char * (elements * dtype.itemsize)).from_address(address)
    memory.owner = owner  # type: ignore[attr-defined]
    return torch.frombuffer(memory, dtype=dtype, count=elements)


def trained_later() -> torch.inference_mode:
    """Leaves inference mode, so that parameters that are first used for inference can be trained."""
    return torch.inference_mode(False)


class Host:
    """Host memory, at addresses that libzero keeps."""

    device = torch.device("cpu")
    holds = True  # a fetched group is held
    stream = None  # all work is done when a call is made

    def needs(self) -> dict[str, Any]:
        """Returns arguments of Client.attach()."""
        return {"private_views": True}

    def home(self, group: "Group") -> "View":
        """Makes the home of a group's values while the group is fetched."""
        return View(group)

    def tensor_at(self, address: int, elements: int, dtype: torch.dtype, owner: object = None) -> torch.Tensor:
        """Returns a flat tensor over memory at an address from libzero; the tensor keeps the owner."""
        return host_tensor_at(address, elements, dtype, owner)

    def mark(self) -> Any:
        """Returns a mark behind the work that is enqueued now."""
        return None

    def follow(self, mark: Any, tensor: torch.Tensor) -> None:
        """Orders all later work, which uses the tensor, behind the marked work."""

    def current_stream(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which another thread uses this thread's current stream."""
        return contextlib.nullcontext()

    def beside(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which copies run beside the work of this thread."""
        return contextlib.nullcontext()

    def random_state(self) -> torch.Tensor | None:
        """Returns the state of the device's own generator; None if it has none."""
        return None

    def restore_random_state(self, state: torch.Tensor) -> None:
        """Does nothing: host memory has no use for the state of a GPU's generator."""


class View:
    """A group's private view."""

    def __init__(self, group: "Group"):
        self.group = group
        self.address: int | None = None  # from the first fetch on

    def fetch(self, attempt: "Attempt") -> None:
        """Gives the parameters their values.  Blocks."""
        address = attempt.fetch(self.group.index)
        if self.address is None:
            self.address = address
            self._make()
        assert address == self.address, "a private view has moved"

    @trained_later()
    def _make(self) -> None:
        for p in self.group.params:
            values = host_tensor_at(self.address + p.offset * p.dtype.itemsize, p.local_numel, p.dtype)
            p.gather(values.view(p.local_shape))

    def release(self, attempt: "Attempt") -> None:
        """Takes the values away."""
        attempt.release(self.group.index)

    def abandon(self, attempt: "Attempt") -> None:
        """Calls release() while another error is being raised, even if the group is not fetched."""
        attempt.release_quietly([self.group.index])

    def forget(self) -> None:
        """Does release()'s local part, after the service has ended the fetch itself."""


class Gpu:
    """A GPU of this process: device "cuda:N"."""

    holds = False

    def __init__(self, device: torch.device):
        self.device = device
        self._raw_stream = functools.partial(torch._C._cuda_getCurrentRawStream, device.index)  # pylint: disable=protected-access
        self._beside: torch.cuda.Stream | None = None  # made when it is first needed

    def needs(self) -> dict[str, Any]:
        """Returns arguments of Client.attach()."""
        return {"device": str(self.device)}

    def home(self, group: "Group") -> "Storage":
        """Makes the home of a group's values while the group is fetched."""
        return Storage(self, group)

    def tensor_at(self, address: int, elements: int, dtype: torch.dtype, owner: object = None) -> torch.Tensor:
        """Returns a flat tensor over memory at an address from libzero; the tensor keeps the owner."""
        if elements == 0:
            return torch.empty(0, dtype=dtype, device=self.device)
        memory = _DeviceMemory(address, elements * dtype.itemsize, owner)
        return torch.as_tensor(memory, device=self.device).view(dtype)

    @property
    def stream(self) -> int:
        """The current stream, as libzero takes it."""
        return self._raw_stream()

    def mark(self) -> Any:
        """Returns a mark behind the work that is enqueued now."""
        return torch.cuda.current_stream(self.device)

    def follow(self, mark: Any, tensor: torch.Tensor) -> None:
        """Orders all later work, which uses the tensor, behind the marked work."""
        if mark.cuda_stream != self._raw_stream():
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(mark)
            if tensor.is_cuda:
                tensor.record_stream(current)

    def current_stream(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which another thread uses this thread's current stream."""
        return torch.cuda.stream(torch.cuda.current_stream(self.device))

    def beside(self) -> contextlib.AbstractContextManager[Any]:
        """Returns a context in which copies run beside the work of this thread."""
        self._beside = self._beside or torch.cuda.Stream(self.device)
        return torch.cuda.stream(self._beside)

    def random_state(self) -> torch.Tensor | None:
        """Returns the state of the device's own generator."""
        return torch.cuda.get_rng_state(self.device)

    def restore_random_state(self, state: torch.Tensor) -> None:
        """Sets the state of the device's own generator."""
        torch.cuda.set_rng_state(state, self.device)


class _DeviceMemory:
    """Bytes on a GPU, for torch.as_tensor(), whose tensor keeps this object.  The protocol has a code for bytes, not
    for bf16."""

    def __init__(self, address: int, size: int, owner: object):
        self.owner = owner
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "strides": None,
                                         "data": (address, False), "version": 3}


class Storage:
    """A group's storage.  flat: a tensor over all of it, which no other code has.  sources: tensors over the daemon's
    windows, by address, because making one takes as long as the copy of a small group."""

    def __init__(self, place: Gpu, group: "Group"):
        self.place, self.group = place, group
        self.flat: torch.Tensor | None = None  # from the first fetch on
        self.sources: dict[int, torch.Tensor] = {}

    def fetch(self, attempt: "Attempt") -> None:
        """Gives the parameters their values.  Blocks until the service has them."""
        address = attempt.fetch(self.group.index)
        try:
            self._fill(address)
        except BaseException:  # out of memory, for example
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
        if address not in self.sources:
            self.sources[address] = self.place.tensor_at(address, elements, dtype)
        self.flat.copy_(self.sources[address])

    def _make(self) -> None:
        self.flat = torch.empty(self.group.elements, dtype=self.group.dtype,
                                device=self.place.device)
        for p in self.group.params:
            p.gather(_part(self.flat, p.offset, p.local_shape))

    def release(self, attempt: "Attempt") -> None:
        """Takes the values away."""
        del attempt
        self.forget()

    def abandon(self, attempt: "Attempt") -> None:
        """Calls release() while another error is being raised, even if the group is not fetched."""
        self.release(attempt)

    def forget(self) -> None:
        """Does release()'s local part, after the service has ended the fetch itself."""
        if self.flat is not None:
            self.flat.untyped_storage().resize_(0)


def _part(flat: torch.Tensor, offset: int, shape: torch.Size) -> torch.Tensor:
    """Returns a tensor in the same storage with a version counter of its own; a view would share it."""
    strides = torch.empty(shape, device="meta").stride()
    return torch.empty(0, dtype=flat.dtype, device=flat.device).set_(flat.untyped_storage(), offset,
                                                                     shape, strides)


def place_of(device: torch.device | str | int | None,
             values: Iterable[torch.Tensor]) -> "Host | Gpu":
    """Returns the place that `device` names.  None: the place of the values, or host memory if they are on meta."""
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
