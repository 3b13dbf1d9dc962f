"""A plain model from a sharded one, for copy.deepcopy() and pickle.

Rule: what shard() puts over a module's attributes goes through override(), and plain() takes all of it away.
"""
from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from torch import nn

BEFORE = "_zerod_before"  # a module's own attributes that were put aside; None: there was none


def override(module: nn.Module, name: str, value: Any) -> None:
    """Sets an attribute of one module, over what its class has."""
    module.__dict__.setdefault(BEFORE, {}).setdefault(name, module.__dict__.get(name))
    module.__dict__[name] = value


@contextlib.contextmanager
def plain(model: nn.Module) -> Iterator[None]:
    """Inside, the model is as it was before shard(), but for its parameters."""
    kind, kept = type(model), [(m, dict(m.__dict__)) for m in model.modules()]
    try:
        model.__class__ = kind.__bases__[1]
        for module, attributes in kept:
            for name, value in module.__dict__.pop(BEFORE, {}).items():
                del module.__dict__[name]
                if value is not None:
                    module.__dict__[name] = value
            module.__dict__["_forward_hooks"] = OrderedDict(
                (k, h) for k, h in attributes["_forward_hooks"].items() if not hasattr(h, "zerod"))
        yield
    finally:
        model.__class__ = kind
        for module, attributes in kept:
            module.__dict__.clear()
            module.__dict__.update(attributes)
