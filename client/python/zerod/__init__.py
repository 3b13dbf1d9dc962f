"""zerod: ZeRO parameter partition as a service (Rajbhandari et al., SC20, arXiv 1910.02054).

The node's daemon holds parameters, gradients and optimizer states in shards.  This package is the
trainer's side, over libzero, and needs nothing but Python.  zerod.torch puts PyTorch models into the
service.
"""

from ._library import ALL, AUTO, OBSERVER
from .client import AdamSet, AdamWSet, BaseCopy, Client, FileValues, LionSet, SGDSet, Stash, StepResult, connect, drop
from .errors import (
    Aborted,
    Busy,
    Closed,
    Conflict,
    Deadline,
    Error,
    Gpu,
    InputOutput,
    Internal,
    Invalid,
    LayoutMismatch,
    LostRank,
    NoGroup,
    NoJob,
    NoMemory,
    NoSharedMemory,
    NotAttached,
    NotHeld,
    NotPermitted,
    Order,
    OutOfRange,
    Peer,
    Protocol,
    ProtocolVersion,
    Quota,
    Rank,
    TooManyHeld,
    Window,
)
from .layout import Layout

__version__ = "0.1.0"

__all__ = [
    "ALL",
    "AUTO",
    "OBSERVER",
    "AdamSet",
    "AdamWSet",
    "BaseCopy",
    "Client",
    "FileValues",
    "Layout",
    "LionSet",
    "SGDSet",
    "Stash",
    "StepResult",
    "connect",
    "drop",
    "Aborted",
    "Busy",
    "Closed",
    "Conflict",
    "Deadline",
    "Error",
    "Gpu",
    "InputOutput",
    "Internal",
    "Invalid",
    "LayoutMismatch",
    "LostRank",
    "NoGroup",
    "NoJob",
    "NoMemory",
    "NoSharedMemory",
    "NotAttached",
    "NotHeld",
    "NotPermitted",
    "Order",
    "OutOfRange",
    "Peer",
    "Protocol",
    "ProtocolVersion",
    "Quota",
    "Rank",
    "TooManyHeld",
    "Window",
]
