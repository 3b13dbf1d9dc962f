"""zerod: ZeRO parameter partition as a service (Rajbhandari et al., SC20, arXiv 1910.02054).

The node's daemon holds parameters, gradients and optimizer states in shards.  This package is the
trainer's side, over libzero, and needs nothing but Python.  zerod.torch puts PyTorch models into the
service.
"""

from . import errors, sets
from ._library import ALL, AUTO, OBSERVER
from .client import BaseCopy, Client, FileValues, Stash, StepResult, connect, drop
from .errors import *
from .follower import Follower, Weights, follow
from .layout import Layout
from .sets import *

__version__ = "0.1.0"

__all__ = ["ALL", "AUTO", "OBSERVER", "BaseCopy", "Client", "FileValues", "Follower", "Layout", "Stash", "StepResult",
           "Weights", "connect", "drop", "follow"]
__all__ += errors.__all__
__all__ += sets.__all__
