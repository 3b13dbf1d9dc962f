"""Placeholders: they stand in a sharded model for parameters that are not fetched.

Rule: a placeholder has a parameter's class, attributes, shape, dtype and name, but no values.  An operation that reads
values gets a copy of the parameter, whose gradient is the parameter's.  An operation that writes values raises an error
that names the parameter, so nothing is lost silently.
"""
from __future__ import annotations

import functools
import logging
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

if TYPE_CHECKING:
    from .unit import ShardedParam


log = logging.getLogger("zerod")

GRAPHS = (torch.autograd.backward, torch.autograd.grad)
READS_MEMORY = (torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.tolist, torch.Tensor.__dlpack__)


class NotFetched(RuntimeError):
    """A parameter's values were used while its module does not have them."""


class _Reads(NotFetched):
    """An operation only reads values: a copy of the parameter will do."""


class WrittenInPlace(RuntimeError):
    """A gathered parameter, or a copy of one, was changed in place."""

    def __init__(self, name: str, where: str):
        super().__init__(f"parameter '{name}' was changed in place {where}; the change is lost. Change parameters "
                         "within 'with zerod.torch.full_params(module, write=True)'")


class WrittenToBase(RuntimeError):
    """A parameter of a base was changed in place on a GPU whose driver maps all memory writable."""

    def __init__(self, name: str):
        super().__init__(f"parameter '{name}' is of a base, and was changed in place. All processes of this user that have "
                         "the base on this GPU read the change: end them all, and start them again")


class GradientsAreElsewhere(RuntimeError):
    """A gradient was used in the trainer; gradients of a sharded model are in the service."""


def _bare(cls: type, param: "ShardedParam", requires_grad: bool) -> torch.Tensor:
    return torch.Tensor._make_wrapper_subclass(  # pylint: disable=protected-access
        cls, param.shape, dtype=param.dtype, device=param.sharded.place.device,
        requires_grad=requires_grad)


class Gradient(torch.Tensor):
    """``parameter.grad`` after a backward pass: every operation on it raises."""

    @staticmethod
    def __new__(cls, param: "ShardedParam") -> "Gradient":
        self = _bare(cls, param, False)
        self.param = param
        return self

    def __repr__(self) -> str:  # pylint: disable=signature-differs
        return f"<gradient of '{self.param.name}', in zerod>"

    def full_tensor(self) -> torch.Tensor:
        """Raises, as every operation does.  A DTensor's gradient has this method."""
        return self.clone()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise GradientsAreElsewhere(
            f"{func}: gradients of a sharded model are not in this process but in zerod. To clip, "
            "use model.clip_grad_norm_(max_norm) or zerod.torch.clip_grad_norm_(model, max_norm); "
            "to scale the loss, zerod.torch.GradScaler(optimizer); the norm after a step is "
            "optimizer.grad_norm, that of each parameter before it zerod.torch.grad_norms(model)")


class Placeholder(torch.Tensor):
    """An ``nn.Parameter`` (it passes isinstance) without values.

    ``shape``, ``dtype``, ``requires_grad``, ``numel()`` and identity are those of the parameter.  They stay the same
    for the life of the model, so optimizers can hold a placeholder.
    """

    @staticmethod
    def __new__(cls, param: "ShardedParam") -> "Placeholder":
        self = _bare(cls, param, param.trainable)
        self.zerod_param = param
        self._is_param = True
        return self

    def __repr__(self) -> str:  # pylint: disable=signature-differs
        return (f"<parameter '{self.zerod_param.name}' {tuple(self.shape)} {self.dtype}, "
                "in zerod, not fetched>")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in GRAPHS:  # placeholders are in no graph: as inputs= they would get no gradient
            args, kwargs = tree_map_only(Placeholder, functools.partial(_in_graph, func), (args, kwargs))
        if func not in READS_MEMORY and all(issubclass(t, Placeholder) for t in types):
            try:
                with torch._C.DisableTorchFunctionSubclass():  # pylint: disable=protected-access
                    return func(*args, **kwargs)
            except _Reads:  # else it needs no values, or writes some
                pass
        return _on_copies(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return _detached(args[0].zerod_param)
        written = _placeholders(list(_written(func, args, kwargs or {})))
        if not written:
            read = _placeholders((args, kwargs))
            raise _Reads(f"{func}: parameter '{read[0].zerod_param.name if read else '?'}' is in zerod and not "
                         "fetched here, and torch calls zerod too late to fetch it. Read it within 'with "
                         "zerod.torch.full_params(module)', or name the method that uses it, "
                         "zerod.torch.register_forward_method(model, 'method')")
        raise NotFetched(f"{func}: parameter '{written[0].zerod_param.name}' is in zerod and cannot be written here: "
                         "change it within 'with zerod.torch.full_params(module, write=True)'")

    def full_tensor(self) -> torch.Tensor:
        """Returns all values, in the parameter's dtype and on the model's device, like DTensor's method of this name.
        Any rank may call it alone."""
        param = self.zerod_param
        return param.sharded.read(param, "serve").view(param.shape).to(param.sharded.place.device)

    @property
    def grad(self) -> Any:  # type: ignore[override]
        """None, or a :class:`Gradient` if this step has gradients."""
        param = self.zerod_param
        return Gradient(param) if param.trainable and param.sharded.has_gradients else None

    @grad.setter
    def grad(self, value: Any) -> None:
        if value is not None:
            raise GradientsAreElsewhere(f"the gradient of '{self.zerod_param.name}' is pushed by "
                                        "its backward pass and cannot be set")
        if self.grad is not None:
            raise GradientsAreElsewhere(f"the gradient of '{self.zerod_param.name}' is in zerod "
                                        "and cannot be dropped alone: use model.zero_grad() or "
                                        "optimizer.zero_grad() on all ranks")

    @grad.deleter
    def grad(self) -> None:
        pass

    @property
    def data(self) -> Any:  # type: ignore[override]
        """Returns detach(), which can be read and not be written."""
        return self.detach()

    @data.setter
    def data(self, value: Any) -> None:
        if value is not self:  # module.cpu() and the like set it without a change
            raise self._no_data(value.dtype)

    def share_memory_(self) -> Any:
        """Raises :class:`NotFetched`."""
        raise self._no_data()

    def register_hook(self, hook: Any) -> Any:
        """Raises NotImplementedError: a placeholder is part of no backward pass."""
        raise NotImplementedError(f"parameter '{self.zerod_param.name}': a hook set after shard() "
                                  "would never run; set it before shard()")

    register_post_accumulate_grad_hook = register_hook

    def _no_data(self, wanted: torch.dtype | None = None) -> NotFetched:
        if wanted not in (None, self.dtype):
            return NotFetched(f"parameter '{self.zerod_param.name}' is in zerod as {self.dtype}: convert the model to {wanted} "
                              "before shard(), or a copy of it, copy.deepcopy(model)")
        return NotFetched(f"parameter '{self.zerod_param.name}' is in zerod and has no data here; "
                          "use 'with zerod.torch.full_params(module, write=...)'")

    def __deepcopy__(self, memo: Any) -> Any:
        raise NotFetched(f"parameter '{self.zerod_param.name}': a part of a sharded model cannot be copied: "
                         "copy the whole model, copy.deepcopy(model), or take the part's state_dict()")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise NotFetched(f"parameter '{self.zerod_param.name}': a part of a sharded model cannot be pickled: save "
                         "its state_dict(), or the whole model by zerod.torch.save_safetensors(model, path)")


@functools.cache
def _placeholder_class(kind: type) -> type:
    """Returns the placeholder class for a parameter class, because param-group code uses isinstance()."""
    if kind is nn.Parameter:
        return Placeholder
    return types.new_class(kind.__name__, (Placeholder, kind))


def placeholder_of(param: "ShardedParam", value: nn.Parameter) -> Placeholder:
    """Makes a placeholder with the class and the attributes of the parameter that it stands for."""
    self = Placeholder.__new__(_placeholder_class(param.kind), param)
    self.__dict__.update({**vars(value), **vars(self)})
    return self


def _detached(param: "ShardedParam") -> Placeholder:
    self = Placeholder(param)
    self.requires_grad = False
    del self._is_param
    return self


def _in_graph(func: Any, placeholder: Placeholder) -> torch.Tensor:
    """Returns the tensor that stands in the graph for a parameter, if forward has used it."""
    param = placeholder.zerod_param
    there = param.gathered if func is torch.autograd.backward else param.shown
    return placeholder if there is None or placeholder is not param.placeholder else there


def _placeholders(values: Any) -> list[Placeholder]:
    leaves = torch.utils._pytree.tree_leaves(values)  # pylint: disable=protected-access
    return [v for v in leaves if isinstance(v, Placeholder)]


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """Yields the arguments that an operator writes."""
    for position, a in enumerate(func._schema.arguments):  # pylint: disable=protected-access
        if a.alias_info is not None and a.alias_info.is_write:
            yield args[position] if position < len(args) else kwargs.get(a.name)


def _on_copies(func: Any, args: Any, kwargs: Any) -> Any:
    """Returns the function's result on copies of the parameters.  WrittenInPlace if the function changes one.

    Autograd saves the copies, so the graph is valid however often the parameters come and go."""
    copies: dict[Placeholder, torch.Tensor] = {}

    def copy_of(placeholder: Placeholder) -> torch.Tensor:
        if placeholder not in copies:
            param = placeholder.zerod_param
            log.debug("parameter '%s' is fetched for %s, outside of its module's forward", param.name,
                      getattr(func, "__name__", func))
            copy = param.sharded.hooks.copy_of(placeholder)
            copies[placeholder] = copy if placeholder is param.placeholder else copy.detach()
        return copies[placeholder]

    args, kwargs = tree_map_only(Placeholder, copy_of, (args, kwargs))
    result = func(*args, **kwargs)
    if func in (torch.Tensor.numpy, torch.Tensor.__array__):
        result.setflags(write=False)
    for placeholder, copy in copies.items():
        placeholder.zerod_param.sharded.hooks.copies.add(placeholder.zerod_param.name, copy, result)
    return result


class Copies:
    """Watches copies of parameters.  The user may still have a view of a copy, in any thread, and a change through that
    view would be lost."""

    def __init__(self) -> None:
        self.watched: list[tuple[str, torch.Tensor]] = []

    def add(self, name: str, copy: torch.Tensor, result: Any) -> None:
        """Watches a copy if the result has its memory.  WrittenInPlace if the copy was changed already."""
        self.check()
        copy = getattr(copy, "_local_tensor", copy)
        if copy._version:
            raise WrittenInPlace(name, "outside of its module's forward")
        address = copy.untyped_storage().data_ptr()
        for t in torch.utils._pytree.tree_leaves(result):  # pylint: disable=protected-access
            t = getattr(t, "_local_tensor", t)
            if isinstance(t, torch.Tensor) and t.layout is torch.strided and not t.is_meta and (
                    t.untyped_storage().data_ptr() == address):
                with torch.no_grad():
                    counter = copy.detach()
                    counter.data = torch.empty(0, dtype=copy.dtype, device=copy.device)  # it shares the version alone
                self.watched.append((name, counter))
                return

    def check(self) -> None:
        """Raises WrittenInPlace if a copy was changed."""
        name = next((name for name, counter in self.watched if counter._version), None)
        if name is not None:
            self.watched.clear()
            raise WrittenInPlace(name, "outside of its module's forward")
