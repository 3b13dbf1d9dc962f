"""Following a job with PyTorch: a version's parameters as tensors."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from zerod.layout import Layout

from .. import follower as base
from .form import Form, JobTensor, Plan
from .pipeline import TORCH_DTYPES
from .plan import DTYPES
from .place import host_tensor_at


class Weights(base.Weights):
    """A whole version of a job's parameters; iterates over (name, tensor).

    The tensors lie in the service's read-only memory until release(): copy what stays, and write to none.
    """

    def view(self, tensor: int) -> torch.Tensor:
        """Returns a tensor in its shape."""
        shape = self.layout.shape(tensor)
        elements = torch.Size(shape).numel()  # in a group of bytes a shape counts bytes
        return host_tensor_at(self.address(tensor), elements, TORCH_DTYPES[self.dtype(tensor)]).view(shape)

    def metadata(self) -> list[tuple[str, Any, tuple[int, ...]]]:
        """Returns name, torch.dtype and shape of each tensor, in the order of the iteration."""
        return [(name, TORCH_DTYPES[dtype], shape) for name, dtype, shape in super().metadata()]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Returns all tensors by name.  A module's load_state_dict() copies them."""
        return dict(self)


class Formed(Weights):
    """A whole version in the reader's form; iterates over (name, tensor) of the outputs.

    Boxes are views, as all tensors of a version.  Joined boxes are copied when they are first asked for, into memory
    that the follower keeps: after release() later versions are copied there.
    """

    def __init__(self, reader: "base._Reader", held: Any, plan: Plan):
        super().__init__(reader, held)
        self._plan = plan
        self._joined: set[str] = set()
        self._memory = plan.free.pop() if plan.free else {}

    def output(self, name: str) -> torch.Tensor:
        """Returns an output's tensor.  Raises KeyError, and ValueError after release()."""
        self._at()
        output = self._plan.outputs[name]
        parts = [box.view(self.view(box.tensor.number)) for box in output.boxes]
        if len(parts) == 1:
            return parts[0]
        if name not in self._memory:
            self._memory[name] = torch.empty(output.shape, dtype=output.dtype)
        if name not in self._joined:
            torch.cat(parts, output.dim, out=self._memory[name])
            self._joined.add(name)
        return self._memory[name]

    def metadata(self) -> list[tuple[str, Any, tuple[int, ...]]]:
        """Returns name, torch.dtype and shape of each output, in the form's order."""
        return [(o.name, o.dtype, o.shape) for o in self._plan.outputs.values()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name in self._plan.outputs:
            yield name, self.output(name)

    def release(self) -> None:
        if self._addresses is not None:
            self._plan.free.append(self._memory)
        super().release()


class Follower(base.Follower):
    """A reader of a job; its versions are Weights of tensors."""

    _kind: Callable[..., Weights] = Weights
    _wanted: Form | None = None  # follow()'s form
    _plan: Plan

    def _form(self, layout: Layout) -> base.Form:
        form = super()._form(layout)
        if self._wanted is None:
            return form
        groups = [layout.tensor_group(t) for t in range(layout.tensors)]
        self._plan = Plan(self._wanted, {layout.tensor_name(t): JobTensor(t, layout.shape(t), TORCH_DTYPES[form[g]])
                                         for t, g in enumerate(groups)})
        self._kind = lambda reader, held: Formed(reader, held, self._plan)
        needed = {groups[t] for t in self._plan.tensors()}
        return {g: dtype for g, dtype in form.items() if g in needed}

    def __iter__(self) -> Iterator[Weights]:
        return super().__iter__()  # type: ignore[return-value]


def follow(job: str | None = None, socket: str | None = None, timeout: float | None = None, *,
           groups: Iterable[str | int] | None = None, dtype: torch.dtype | None = None, form: Form | None = None) -> Follower:
    """Follows a job's parameters, as :func:`zerod.follow` does, with tensors.

    dtype: torch.bfloat16, float16 or float32.
    form: the tensors that versions have, by name, each made of boxes of the job's tensors (:class:`Box`,
    :class:`Output`); None: the job's tensors.  Or a function that makes the form of {name: shape} of the job's tensors.
    Groups that no box needs are not read.  The first wait() checks the form, and raises NoGroup, OutOfRange, ValueError
    or TypeError with the names of the output and the tensor.

        with zerod.torch.follow("my-job") as job:
            for weights in job:
                with weights:
                    model.load_state_dict(weights.state_dict(), strict=False)
    """
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype}, not one of {', '.join(map(str, DTYPES))}")
    if groups is not None and form is not None:
        raise ValueError("pass groups or form: a form reads the groups that its boxes need")
    follower = Follower(job, socket, timeout, groups, DTYPES[dtype] if dtype else None)
    follower._wanted = form
    return follower
