"""The fake GPU (fake_gpu.c) for integration tests."""
import contextlib
import os

from cluster import Tools


def plugin():
    return os.path.join(os.path.dirname(os.path.abspath(Tools.actor)), "zerod-fake-gpu.so")


@contextlib.contextmanager
def environment(**variables):
    """Sets variables for processes that the block starts."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
