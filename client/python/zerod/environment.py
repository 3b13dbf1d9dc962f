"""Who this process is in its job, as torchrun and Slurm tell it.

Pure: reads the mapping it is given and nothing else.  A variable that makes no sense is a
ValueError with its name.
"""
import getpass
import os
import re
import secrets
from collections.abc import Mapping
from typing import NamedTuple, Optional

from ._library import NAME_MAX, RANK_MAX

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_TASKS_PER_NODE")


class Place(NamedTuple):
    """A process among those of its job."""
    rank: int
    world_size: int
    local_world_size: int  # ranks on this node


def _number(environment, name, least, most):
    """A variable's value; None if it is not set or empty."""
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) or not least <= int(text) <= most:
        raise ValueError(f"{name} is {text[:40]!r}, not a number from {least} to {most}")
    return int(text)


def _tasks_of_node(text, node):
    """Entry of a node in Slurm's list, such as "4(x2),3"; None if it has none."""
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", part.strip(), re.ASCII)
        if not match:
            return None
        node -= int(match[2] or 1)
        if node < 0:
            return int(match[1])
    return None


def _torchrun(environment):
    rank = _number(environment, "RANK", 0, RANK_MAX - 1)
    world_size = _number(environment, "WORLD_SIZE", 1, RANK_MAX)
    local = _number(environment, "LOCAL_WORLD_SIZE", 1, RANK_MAX)
    if rank is None and world_size is None:
        return None
    return rank, world_size, local, TORCHRUN


def _slurm(environment):
    rank = _number(environment, "SLURM_PROCID", 0, RANK_MAX - 1)
    world_size = _number(environment, "SLURM_NTASKS", 1, RANK_MAX)
    if rank is None or world_size is None:
        return None
    node = _number(environment, "SLURM_NODEID", 0, RANK_MAX - 1) or 0
    name = SLURM[2] if environment.get(SLURM[2]) else "SLURM_TASKS_PER_NODE"
    tasks = environment.get(name, "")
    local = _tasks_of_node(tasks, node) if tasks else None
    if tasks and (local is None or not 1 <= local <= world_size):
        raise ValueError(f"{name} is {tasks[:40]!r}, which does not say how many of {world_size} tasks node {node} "
                         "runs")
    return rank, world_size, local, (SLURM[0], SLURM[1], name)


def _whole(value, name, least, most):
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is an int, not {type(value).__name__}")
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}, not from {least} to {most}")
    return value


def place(rank: Optional[int] = None, world_size: Optional[int] = None, local_world_size: Optional[int] = None,
          environment: Optional[Mapping[str, str]] = None) -> Place:
    """Rank, world size and ranks of this node: what is given, else what torchrun's variables
    say, else Slurm's, else 0 of 1.

    Raises ValueError, with the name of the variable or argument, where one is no number, out of
    range or missing.
    """
    environment = os.environ if environment is None else environment
    names = ["rank", "world_size", "local_world_size"]
    given = [rank, world_size, local_world_size]
    for i, (least, most) in enumerate(((0, RANK_MAX - 1), (1, RANK_MAX), (1, RANK_MAX))):
        if given[i] is not None:
            given[i] = _whole(given[i], names[i], least, most)
    if None in given:
        _complete(given, names, environment)
    rank, world_size, local = given
    if rank >= world_size:
        raise ValueError(f"{names[0]} is {rank}, which is no rank of {world_size} ({names[1]})")
    if local > world_size:
        raise ValueError(f"{names[2]} is {local}, more than the {world_size} of {names[1]}")
    return Place(rank, world_size, local)


def _complete(given, names, environment):
    """Fills in what was not given, and from where."""
    *found, variables = _torchrun(environment) or _slurm(environment) or (0, 1, None, names)
    if given[1] is not None and given[1] != found[1]:
        found[2] = None  # tasks of a node, but of another world
        if given[0] is None and found[1] == 1:
            found[0] = 0 if given[1] == 1 else None
    for i in (0, 1):
        if given[i] is None:
            if found[i] is None:
                other = variables[1 - i] if given[1 - i] is None else names[1 - i]
                raise ValueError(f"{other} is set but {variables[i]} is not; set it, or pass {('rank', 'world_size')[i]}")
            given[i], names[i] = found[i], variables[i]
    if given[2] is None:
        given[2] = found[2] if found[2] is not None else given[1]
        names[2] = variables[2]


# ---- the job's name ------------------------------------------------------------------------

def _clean(text):
    """Text as part of a job's name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[:NAME_MAX // 2]


def job(environment: Optional[Mapping[str, str]] = None) -> Optional[str]:
    """The job's name by the environment: $ZEROD_JOB as it stands, else "torchrun-" and
    torchrun's run id (its default "none" names nothing), else "slurm-" and Slurm's job id."""
    environment = os.environ if environment is None else environment
    if environment.get("ZEROD_JOB"):
        return environment["ZEROD_JOB"]
    run = environment.get("TORCHELASTIC_RUN_ID", "none")
    if run not in ("", "none"):
        return "torchrun-" + _clean(run)
    if environment.get("SLURM_JOB_ID"):
        return "slurm-" + _clean(environment["SLURM_JOB_ID"])
    return None


def own_job() -> str:
    """A name for a job of this process alone, that no other process has or had: process ids
    are used again, and containers have the same ones."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = f"uid{os.getuid()}"
    return f"{_clean(user)}-{os.getpid()}-{secrets.token_hex(4)}"
