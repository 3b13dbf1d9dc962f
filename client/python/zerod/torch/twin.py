"""A plain model from a sharded one, for copy.deepcopy() and pickle.

Rule: what shard() puts over a module's attributes goes through override(), and plain() takes all of it away.
"""
from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.util
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch
from torch import nn

BEFORE = "_zerod_before"  # a module's own attributes that were put aside; None: there was none


def override(module: nn.Module, name: str, value: Any) -> None:
    """Sets an attribute of one module, over what its class has."""
    module.__dict__.setdefault(BEFORE, {}).setdefault(name, module.__dict__.get(name))
    module.__dict__[name] = value


def overridden(module: nn.Module, name: str) -> Any:
    """The method that override() stands over: the module's own, as peft's recipes set one, else the class's."""
    return module.__dict__[BEFORE].get(name) or functools.partial(getattr(type(module), name), module)


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


class _Importing(importlib.abc.MetaPathFinder):
    """Has torch._dynamo leave code alone as soon as it is imported.  To import it takes as long as to import torch: only who
    compiles shall wait for that."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self.asking = threading.local()

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """importlib asks for every module, and whoever wants to know if there is one."""
        if name != "torch._dynamo" or getattr(self.asking, "now", False):
            return None
        self.asking.now = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.asking.now = False
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                for code in list(self.codes):
                    module.decorators.skip_code(code)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def add(self, code: CodeType) -> None:
        """From now on, or from when it is imported."""
        self.codes.add(code)
        decorators = getattr(sys.modules.get("torch._dynamo"), "decorators", None)  # else its import is not over
        if decorators:
            decorators.skip_code(code)


_importing = _Importing()
sys.meta_path.insert(0, _importing)


def not_traced(function: Any, reason: str) -> Any:
    """torch.compiler.disable(function, recursive=False, reason=reason)."""
    _importing.add(function.__code__)
    function._torchdynamo_disable, function._torchdynamo_disable_msg = True, reason  # pylint: disable=protected-access
    return function


def not_compiled(function: Any) -> Any:
    """torch.compiler.disable(function), from when the process compiles anything; for callers that are not traced."""
    disabled = None

    @functools.wraps(function)
    def eager(*args: Any, **kwargs: Any) -> Any:
        nonlocal disabled
        if disabled is None:
            if "torch._dynamo" not in sys.modules:
                return function(*args, **kwargs)
            disabled = torch.compiler.disable(function)
        return disabled(*args, **kwargs)

    _importing.add(eager.__code__)
    return eager
