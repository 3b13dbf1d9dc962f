"""A unit: a module whose parameters are fetched, shown and released together.

*Fetched* means that the rank holds the unit's groups.  *Shown* means that the module's attributes are the gathered
parameters and not placeholders.  A gathered parameter is made once.  The tensors that autograd saved of it are valid
again whenever the group is fetched again: see place.py.

Rule: a unit that is shown is fetched.  If a gathered parameter was written to, hiding it raises, and the service's
values do not change.
"""
from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import zerod
from torch import nn

from .parameter import WrittenInPlace, placeholder_of
from .plan import BYTES, WORD
from .split import is_dtensor
from .turn import Parameters

if TYPE_CHECKING:
    from .place import Gpu, Host
    from .sharded import Sharded
    from .split import Split


class ShardedParam:
    """One parameter of a sharded model, however many modules share it.

    name: its first fully qualified name.  names: all of them.  index: of the layout's tensor.  group: of the layout.
    offset: in the group, in elements of the parameter.  placeholder: stands in the model while the parameter is not
    shown.  With a tensor-parallel parameter index, group and offset are those of this rank's part, and parts are the
    layout's tensors of all coordinates.  matrices: the rows of each matrix that Muon updates; None: it has none.
    formats: of its moments and its master weights.
    """

    def __init__(self, sharded: "Sharded", names: list[str], places: list[tuple[nn.Module, str]],
                 value: nn.Parameter, split: "Split | None" = None, matrices: list[int] | None = None,
                 formats: tuple[str, str] = ("fp32", "fp32")):
        self.sharded, self.names, self.places, self.split, self.matrices = sharded, names, places, split, matrices
        self.formats = formats
        self.shape, self.dtype, self.numel = value.shape, value.dtype, value.numel()
        self.local_shape = split.shape(split.own) if split else value.shape  # of the part that this rank fetches
        self.local_numel = self.local_shape.numel()
        self.of_element = WORD if self.dtype in BYTES else 1  # the parameter's elements in one of the layout
        self.parts: list[int] = []
        self.unit: Unit
        self.trainable = value.requires_grad
        self.index = self.group = self.offset = -1
        self.position = -1  # among its group's tensors
        self.writer = self.part_writer = -1  # the ranks that write its first or loaded values
        self.everywhere = False  # all ranks have all of it
        self.kind = nn.Parameter if is_dtensor(value) else type(value)
        self.dtensor = (value.device_mesh, value.placements) if is_dtensor(value) else None
        self.placeholder = placeholder_of(self, value)
        # pylint: disable=protected-access
        self.hooks, self.post_hooks = value._backward_hooks, value._post_accumulate_grad_hooks
        self.gathered: nn.Parameter | None = None  # made at the first fetch
        self.shown: torch.Tensor | None = None  # the tensor that the model sees while the unit is shown
        self.full: torch.Tensor | None = None  # the tensor that it sees within full_params()
        self.seen = 0  # the gathered parameter's version counter at the last check

    @property
    def name(self) -> str:
        """Its first fully qualified name."""
        return self.names[0]

    def __repr__(self) -> str:
        return f"<ShardedParam '{self.name}' {tuple(self.shape)} {self.dtype}>"

    def frozen_text(self) -> str:
        """Returns a text: a parameter that was frozen cannot be trained, and the way to train it."""
        return (f"parameter '{self.name}' was frozen (requires_grad=False) when the model was sharded: the service keeps no "
                "state to train it. Shard the model with requires_grad=True, and freeze the parameter after shard(). To "
                "train it later, make the optimizer of all parameters, or add this one by add_param_group()")

    def put_in_place(self, value: nn.Parameter | torch.Tensor) -> None:
        """Sets the attribute of all modules that have the parameter."""
        for module, attribute in self.places:
            module._parameters[attribute] = value  # pylint: disable=protected-access

    def is_in_place(self) -> bool:
        """Returns True if the modules have the parameter, and False for a tensor of torch.func.functional_call().
        ValueError if they have another parameter."""
        for module, attribute in self.places:
            found = module._parameters.get(attribute)  # pylint: disable=protected-access
            if found is not self.placeholder and found is not self.shown:
                if isinstance(found, torch.Tensor) and not isinstance(found, nn.Parameter):
                    return False
                if self.full is None:
                    raise ValueError(
                        f"parameter '{self.name}' is not the service's here: it was replaced after "
                        "shard(). Replace modules and tie weights before shard(); change values by "
                        "full_params(write=True); give functional_call() tensors, and no nn.Parameter")
        return True

    def parameter(self, values: torch.Tensor, requires_grad: bool) -> nn.Parameter:
        """Makes a parameter with these values, of the user's class.  It shares its dict of attributes with the
        placeholder."""
        made = torch.Tensor._make_subclass(  # pylint: disable=protected-access
            self.kind, values, requires_grad)
        made.__dict__ = self.placeholder.__dict__
        return made

    def gather(self, values: torch.Tensor) -> None:
        """Makes the gathered parameter, over memory whose values come and go with the group.

        The user's hooks stay in the user's dicts, so their handles remove them."""
        self.gathered = self.parameter(values, self.trainable)
        # pylint: disable=protected-access
        self.gathered._backward_hooks = self.hooks
        self.gathered._post_accumulate_grad_hooks = self.post_hooks
        self.seen = self.gathered._version
        self._show()

    @torch.enable_grad()
    def _show(self) -> None:
        """Makes the tensor to show.  A DTensor is made of the gathered part, and gives it its gradient in the part's
        placement."""
        self.shown = self.gathered
        if self.dtensor:
            from torch.distributed.tensor import DTensor  # pylint: disable=import-outside-toplevel
            self.shown = DTensor.from_local(self.gathered, *self.dtensor, run_check=False, shape=self.shape,
                                            stride=torch.empty(self.shape, device="meta").stride())
            self.shown.zerod_param = self

    def follow_requires_grad(self, wanted: bool) -> None:
        """Gives the gathered parameter the placeholder's requires_grad, which the user may have set."""
        if wanted and not self.trainable:
            raise ValueError(self.frozen_text())
        if self.gathered.requires_grad != wanted:
            self.gathered.requires_grad_(wanted)
            self._show()


class Group:
    """A group of the layout: parameters of one unit, one dtype, all trained or all frozen.

    elements: of its flat array, gaps included.  home: the place of its values while it is fetched.
    """

    def __init__(self, place: "Host | Gpu", params: list[ShardedParam]):
        self.index, self.params = -1, params
        self.trainable, self.dtype = params[0].trainable, params[0].dtype
        self.elements = 0
        self.home = place.home(self)


class Unit:
    """A unit of a sharded model, as the module's docstring says.

    depth: calls of its forward that have not returned.  held: the number of hold() contexts that hold it.  full: the
    number of its parameters that full_params() shows.  inner: the hooks that modules inside it have while its forward
    makes a graph."""

    def __init__(self, sharded: "Sharded", name: str, module: nn.Module, groups: list[Group]):
        self.sharded, self.name, self.module, self.groups = sharded, name, module, groups
        self.params = [p for g in groups for p in g.params]
        for p in self.params:
            p.unit = self
        self.forward: Callable[..., Any] = module.forward  # without the hooks
        self.is_root = module is sharded.model
        self.fetched = self.shown = self.guarded = False
        self.visible: list[ShardedParam] = []  # the parameters that are shown
        self.memory: set[int] = set()  # addresses of the storages of fetched parameters
        self.depth = self.held = self.full = 0
        self.inner: dict[nn.Module, Callable[..., None]] = {}
        self.call: Any = None  # the newest call
        self.calls: set[object] = set()  # calls whose backward is under way
        self.arrived: set[int] = set()  # tensors whose gradient came in this backward pass
        self.awaited = 0  # the number of gradients that will come, counted at the first one

    def __repr__(self) -> str:
        return f"<Unit '{self.name}' of {len(self.params)} parameters>"

    @property
    def has_frozen(self) -> bool:
        """True if backward uses parameters that get no gradient.  Only for a unit that was shown."""
        return any(not p.gathered.requires_grad for p in self.params)

    def is_given(self) -> bool:
        """Returns True if functional_call() has replaced all parameters: the unit's, or, if it has none, the
        model's."""
        return not any(p.is_in_place() for p in self.params or self.sharded.params)

    def hold(self) -> None:
        """Holds the unit's groups.  Blocks."""
        if not self.fetched:
            try:
                for g in self.groups:
                    g.home.fetch(self.sharded.attempt)
            except BaseException as error:
                self._abandon_groups()
                if isinstance(error, zerod.TooManyHeld):
                    raise zerod.TooManyHeld(
                        f"{error}, and now '{self.name}' is needed. A block stays fetched until a tensor that it was given "
                        "in a list, a dict or an object has its gradient: pass the tensor as an argument, or use stage 2"
                    ) from error
                raise
            self.fetched = True
            if not (self.memory and self.sharded.place.holds):  # a view stays where it is
                self.memory = {p.gathered.untyped_storage().data_ptr() for p in self.params if p.numel}

    def guard(self) -> None:
        """Makes other threads see placeholders, if there are any.  It costs time, which a single thread saves."""
        if self.guarded or threading.active_count() == 1:
            return
        self.guarded = True
        for module in {m for p in self.params for m, _ in p.places}:
            there = module._parameters  # pylint: disable=protected-access
            module._parameters = Parameters(self.sharded.turn, there)  # pylint: disable=protected-access

    def show(self) -> None:
        """Shows the parameters of a unit that is fetched."""
        if not self.shown:
            self.guard()
            params = [p for p in self.params if p.full is None]
            with torch._C.DisableTorchFunctionSubclass():  # pylint: disable=protected-access  # a placeholder's own answer is slow
                wanted = [p.placeholder.requires_grad for p in params]
            self.visible = [p for p in params if p.is_in_place()]
            for p, trains in zip(params, wanted):
                if p.gathered.requires_grad is not trains:
                    p.follow_requires_grad(trains)
            for p in self.visible:
                p.put_in_place(p.shown)
            self.shown = True

    def has_memory_of(self, tensor: torch.Tensor) -> bool:
        """Returns True if the tensor is one of the unit's gathered parameters, or a view of one."""
        tensor = getattr(tensor, "_local_tensor", tensor)
        while torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # pylint: disable=protected-access  # such as vmap's
            tensor = torch._C._functorch.get_unwrapped(tensor)  # pylint: disable=protected-access
        if tensor.layout is not torch.strided or tensor.device != self.sharded.place.device:
            return False
        return tensor.untyped_storage().data_ptr() in self.memory

    def hide(self) -> None:
        """Puts the placeholders back.  WrittenInPlace if a parameter was changed."""
        if not self.shown:
            return
        self.shown = False
        for p in self.visible:
            if p.full is None:
                p.put_in_place(p.placeholder)
        self._check_written()

    def release(self) -> None:
        """Hides the parameters and releases the groups."""
        try:
            self.hide()
        finally:
            if self.fetched:
                self.fetched = False
                for g in self.groups:
                    g.home.release(self.sharded.attempt)

    def abandon(self) -> None:
        """Calls release() while another error is being raised, which outweighs further ones."""
        with contextlib.suppress(WrittenInPlace):
            self.hide()
        if self.fetched:
            self.fetched = False
            self._abandon_groups()

    def _abandon_groups(self) -> None:
        for g in self.groups:
            g.home.abandon(self.sharded.attempt)

    def forget(self) -> None:
        """Forgets the unit's groups after a step: the service has taken them back already."""
        self.fetched = False
        self.arrived.clear()
        self.calls.clear()
        for g in self.groups:
            g.home.forget()
        self.hide()

    def _check_written(self) -> None:
        written = [p for p in self.params if p.gathered._version != p.seen]  # pylint: disable=protected-access
        for p in written:
            p.seen = p.gathered._version  # pylint: disable=protected-access
        if written:
            raise WrittenInPlace(written[0].name, "while it was fetched")

    def gradient_arrived(self, param: ShardedParam) -> bool:
        """Notes a gradient.  Returns True if all trained parameters have theirs now; counting then starts again."""
        if not self.arrived:
            self.awaited = sum(p.trainable and p.gathered.requires_grad for p in self.params)
        self.arrived.add(param.index)
        if len(self.arrived) < self.awaited:
            return False
        self.arrived.clear()
        return True
