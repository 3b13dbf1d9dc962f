"""A plain model from a sharded one, for copy.deepcopy() and pickle.

Rule: shard() replaces a module's attributes only by override(), and plain() takes all replacements away.
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

BEFORE = "_zerod_before"  # a module's own attributes that were put aside; None: it had none of that name


def override(module: nn.Module, name: str, value: Any) -> None:
    """Sets an attribute of one module, over its class's."""
    module.__dict__.setdefault(BEFORE, {}).setdefault(name, module.__dict__.get(name))
    module.__dict__[name] = value


def overridden(module: nn.Module, name: str) -> Any:
    """Returns the method under override(): the module's own, such as peft's recipes set, else the class's."""
    return module.__dict__[BEFORE].get(name) or functools.partial(getattr(type(module), name), module)


@contextlib.contextmanager
def plain(model: nn.Module) -> Iterator[None]:
    """Makes the model what it was before shard(), except for its parameters, inside the context."""
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
    """Makes torch._dynamo leave code alone as soon as it is imported.  Its import takes as long as torch's, so only a
    script that compiles waits for it."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self.asking = threading.local()

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Prepares torch._dynamo's import.  importlib asks it for every module, also without importing one."""
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
        """Makes torch._dynamo leave a code alone, from now on, or from its import on."""
        self.codes.add(code)
        decorators = getattr(sys.modules.get("torch._dynamo"), "decorators", None)  # None: its import is not over
        if decorators:
            decorators.skip_code(code)


_importing = _Importing()
sys.meta_path.insert(0, _importing)


def not_traced(function: Any, reason: str) -> Any:
    """Does torch.compiler.disable(function, recursive=False, reason=reason), without importing torch._dynamo."""
    _importing.add(function.__code__)
    function._torchdynamo_disable, function._torchdynamo_disable_msg = True, reason  # pylint: disable=protected-access
    return function


def not_compiled(function: Any) -> Any:
    """Does torch.compiler.disable(function), once the process compiles anything.  For callers that are not traced."""
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
