"""Placeholders: they stand in a sharded model for parameters that are not fetched.

Rule: a placeholder has a parameter's class, attributes, shape, dtype and name, and no values.
Whoever uses its values gets an error that names the parameter; nothing computes with garbage.
"""
from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from .unit import ShardedParam


class NotFetched(RuntimeError):
    """A parameter's values were used where its module does not have them."""


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
        """A DTensor's gradient has it."""
        return self.clone()  # raises

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise GradientsAreElsewhere(
            f"{func}: gradients of a sharded model are not in this process but in zerod. To clip, "
            "use model.clip_grad_norm_(max_norm) or zerod.torch.clip_grad_norm_(model, max_norm); "
            "to scale the loss, zerod.torch.GradScaler(optimizer); the norm after a step is "
            "optimizer.grad_norm")


class Placeholder(torch.Tensor):
    """An ``nn.Parameter`` (it passes isinstance) without values.

    ``shape``, ``dtype``, ``requires_grad``, ``numel()`` and identity are those of the parameter and
    stay the same for the life of the model, so that optimizers can hold it.
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
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return _detached(args[0].zerod_param)
        name = next((a.zerod_param.name for a in _flat(args, kwargs)
                     if isinstance(a, Placeholder)), "?")
        raise NotFetched(
            f"{func}: parameter '{name}' is in zerod and not fetched here. Inside the forward of "
            "its module it is there by itself; elsewhere read or change it within "
            "'with zerod.torch.full_params(module, write=...)'")

    def full_tensor(self) -> torch.Tensor:
        """All values, in the parameter's dtype and on the model's device, as DTensor's method of this name; any rank
        may call it alone."""
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
        """Raises :class:`NotFetched`."""
        raise self._no_data()

    @data.setter
    def data(self, value: Any) -> None:
        if value is not self:  # module.cpu() and the like, without effect
            raise self._no_data()

    def share_memory_(self) -> Any:
        """Raises :class:`NotFetched`."""
        raise self._no_data()

    def register_hook(self, hook: Any) -> Any:
        """Raises NotImplementedError: a placeholder takes no part in any backward pass."""
        raise NotImplementedError(f"parameter '{self.zerod_param.name}': a hook set after shard() "
                                  "would never run; set it before shard()")

    register_post_accumulate_grad_hook = register_hook

    def _no_data(self) -> NotFetched:
        return NotFetched(f"parameter '{self.zerod_param.name}' is in zerod and has no data here; "
                          "use 'with zerod.torch.full_params(module, write=...)'")

    def __deepcopy__(self, memo: Any) -> Any:
        raise NotFetched(f"parameter '{self.zerod_param.name}': a sharded model cannot be copied; "
                         "build the model again and load its state_dict()")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise NotFetched(f"parameter '{self.zerod_param.name}': a sharded model cannot be pickled; "
                         "save its state_dict(), or use zerod.torch.save_safetensors()")


@functools.cache
def _placeholder_class(kind: type) -> type:
    """The placeholder class for a parameter class: param-group code uses isinstance()."""
    if kind is nn.Parameter:
        return Placeholder
    return types.new_class(kind.__name__, (Placeholder, kind))


def placeholder_of(param: "ShardedParam", value: nn.Parameter) -> Placeholder:
    """A placeholder with the class and the attributes of the parameter that it stands for."""
    self = Placeholder.__new__(_placeholder_class(param.kind), param)
    self.__dict__.update({**vars(value), **vars(self)})
    return self


def _detached(param: "ShardedParam") -> Placeholder:
    self = Placeholder(param)
    self.requires_grad = False
    del self._is_param
    return self


def _flat(args: Any, kwargs: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves((args, kwargs or {}))  # pylint: disable=protected-access
