"""This process's place in its job, according to torchrun and Slurm.

Rule: a function reads its mapping and nothing else.  A variable that makes no sense is a ValueError with its name.
"""

import getpass
import numbers
import os
import re
import secrets
import uuid
from collections.abc import Mapping
from typing import NamedTuple

from ._library import ALL, JOB_MAX, RANK_MAX

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_TASKS_PER_NODE")
SLURM_STEP_TASKS = "SLURM_STEP_TASKS_PER_NODE"  # of srun's step, which may have fewer than the job
RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
ARGUMENTS = ("rank", "world_size", "local_world_size")
LEAST = (0, 1, 1)
MOST = (RANK_MAX - 1, RANK_MAX, RANK_MAX)


class Place(NamedTuple):
    """The place of a process among those of its job."""

    rank: int
    world_size: int
    local_world_size: int  # ranks on this node


# ---- variables -----------------------------------------------------------------------------


def _number(environment, name, least, most):
    """Returns a variable's value; None if it is not set or empty."""
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise ValueError(f"{name} is {text[:40]!r}, not a number from {least} to {most}")
    return int(text)


def _tasks_of_node(text, node):
    """Returns a node's entry in Slurm's list, such as "4(x2),3"; None if the node has none."""
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", part.strip())
        if not match:
            return None
        node -= int(match[2] or 1)
        if node < 0:
            return int(match[1])
    return None


def _slurm_tasks(environment, name):
    """Returns the number of tasks of this node; None if the variable is not set."""
    text = environment.get(name, "").strip()
    if not text:
        return None
    node = _number(environment, "SLURM_NODEID", 0, RANK_MAX - 1) or 0
    tasks = _tasks_of_node(text, node)
    if tasks is None or not 1 <= tasks <= RANK_MAX:
        raise ValueError(
            f"{name} is {text[:40]!r}, which does not say how many tasks node {node} runs"
        )
    return tasks


def _source(environment):
    """Returns the names of the variables with rank, world size and ranks of the node; None if none are set."""
    if environment.get(TORCHRUN[0]) or environment.get(TORCHRUN[1]):
        return TORCHRUN
    if environment.get(SLURM[0]) and environment.get(SLURM[1]):
        return (*SLURM[:2], SLURM_STEP_TASKS if environment.get(SLURM_STEP_TASKS) else SLURM[2])
    return None


def _told(environment, source, i):
    if not source:
        return None
    if i == 2 and source != TORCHRUN:
        return _slurm_tasks(environment, source[2])
    return _number(environment, source[i], LEAST[i], MOST[i])


# ---- the place -----------------------------------------------------------------------------


def _argument(value, i):
    """Checks an argument and returns it; None if it was not given."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{ARGUMENTS[i]} is an int, not {type(value).__name__}")
    if not LEAST[i] <= value <= MOST[i]:
        raise ValueError(f"{ARGUMENTS[i]} is {value}, not from {LEAST[i]} to {MOST[i]}")
    return int(value)


def _missing(i, source):
    if not source:
        return ValueError(f"{ARGUMENTS[i]} is not known: pass it, or set {TORCHRUN[i]}")
    return ValueError(
        f"{source[i]} is not set, though {source[1 - i]} is: set it, or pass {ARGUMENTS[i]}"
    )


def place(
    rank: int | None = None,
    world_size: int | None = None,
    local_world_size: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Place:
    """Returns rank, world size and ranks of this node: the arguments, else torchrun's variables, else Slurm's, else
    rank 0 of 1.

    Raises ValueError, with the name of the variable or argument, if one is not a number, is out of range or is missing.
    """
    environment = os.environ if environment is None else environment
    given = [_argument(v, i) for i, v in enumerate((rank, world_size, local_world_size))]
    source = _source(environment) if None in given else None
    names = [
        a if v is not None or not source else s
        for a, v, s in zip(ARGUMENTS, given, source or ARGUMENTS)
    ]
    found = [v if v is not None else _told(environment, source, i) for i, v in enumerate(given[:2])]
    if not source and given[1] is None:
        found[1] = 1
    if not source and given[0] is None and found[1] == 1:
        found[0] = 0
    for i, value in enumerate(found):
        if value is None:
            raise _missing(i, source)
    found.append(given[2] if given[2] is not None else _local(environment, source, found[1]))
    return _checked(Place(*found), names)


def _local(environment, source, world_size):
    """Returns the ranks of this node by the environment, if that has the same world size; else all ranks."""
    if source and _told(environment, source, 1) == world_size:
        return _told(environment, source, 2) or world_size
    return world_size


def _checked(found, names):
    if found.rank >= found.world_size:
        raise ValueError(
            f"{names[0]} is {found.rank}, not a rank in a world of {found.world_size} ({names[1]})"
        )
    if found.local_world_size > found.world_size:
        raise ValueError(
            f"{names[2]} is {found.local_world_size}, more than {names[1]}, {found.world_size}"
        )
    return found


# ---- how often it was started ------------------------------------------------------------


def incarnation(environment: Mapping[str, str] | None = None) -> int:
    """Returns how often this rank was started before: torchrun's restart count, else Slurm's, else 0.

    Raises ValueError, with the name of the variable, if it is not a number.
    """
    environment = os.environ if environment is None else environment
    for name in RESTARTS:
        count = _number(environment, name, 0, ALL)
        if count is not None:
            return count
    return 0


# ---- the job's name ------------------------------------------------------------------------


def _clean(text):
    """Makes a text a part of a job's name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[: JOB_MAX // 2]


def job(environment: Mapping[str, str] | None = None) -> str | None:
    """Returns the job's name by the environment: $ZEROD_JOB, else "torchrun-" and torchrun's run id, else "slurm-" and
    Slurm's job id.  None: there is none of these.  torchrun's default run id "none" names nothing."""
    environment = os.environ if environment is None else environment
    if environment.get("ZEROD_JOB"):
        return environment["ZEROD_JOB"]
    run = environment.get("TORCHELASTIC_RUN_ID", "none")
    if run not in ("", "none"):
        return "torchrun-" + _clean(run)
    if environment.get("SLURM_JOB_ID"):
        return "slurm-" + _clean(environment["SLURM_JOB_ID"])
    return None


def job_is_random(environment: Mapping[str, str] | None = None) -> bool:
    """Returns True if nobody chose the name of :func:`job`: torchrun on one node makes a UUID, as a number or with
    dashes."""
    environment = os.environ if environment is None else environment
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    if environment.get("ZEROD_JOB") or environment.get("GROUP_WORLD_SIZE") != "1":
        return False
    try:
        return (uuid.UUID(int=int(run)) if run.isdecimal() else uuid.UUID(run)).version == 4
    except ValueError:
        return False


def own_job() -> str:
    """Returns a name for a job of this process alone, which no other process has or had.  A process id is not enough:
    systems reuse them, and containers have the same ones."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = f"uid{os.getuid()}"
    return f"{_clean(user)}-{os.getpid()}-{secrets.token_hex(4)}"
