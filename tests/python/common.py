"""Shared by the suites of the Python client."""
import contextlib
import os
import re
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PACKAGE = os.path.join(ROOT, "client", "python")
TYPES = os.path.join(ROOT, "proto", "zero_types.h")
HEADER = os.path.join(ROOT, "client", "include", "zero.h")
SETS_HEADER = os.path.join(ROOT, "client", "include", "zero_sets.h")
sys.path[:0] = [PACKAGE, os.path.join(ROOT, "tests", "support")]

from cluster import REPLY_S, Cluster, spawn  # noqa: E402
import zerod  # noqa: E402
from zerod import _library  # noqa: E402

# harness.py removes ZEROD_*, which daemons take for options: the library that $ZEROD_LIBRARY names is loaded now
LIBRARY = os.path.abspath(os.environ.get("ZEROD_LIBRARY") or _library.library()._name)
_library.library()
SETS = [zerod.AdamWSet(1e-2, 0.9, 0.99, 1e-8, 0.1)]
# variables that would change what a case sees
FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "ZEROD_JOB", "SLURM_PROCID",
           "SLURM_NTASKS", "SLURM_JOB_ID")
for name in FOREIGN:
    os.environ.pop(name, None)


def text_of(path):
    """The text of a header, and of zero_sets.h where it includes that, without their comments."""
    with open(path, encoding="utf-8") as f:
        text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
    sets = '#include "zero_sets.h"'
    return text.replace(sets, text_of(SETS_HEADER)) if sets in text else text


def declarations():
    """(result, arguments) of every function of zero.h, as text, by name."""
    found = re.findall(r"^([a-z][\w ]*?[ *]+)(zero_\w+)\(([^;]*?)\);", text_of(HEADER), re.M | re.S)
    return {name: (result.strip(), [a.strip() for a in arguments.split(",") if a != "void"]) for result, name, arguments in found}


@contextlib.contextmanager
def raises(kind, *words):
    """The block must raise that kind of exception, with those words in its text."""
    try:
        yield
    except kind as error:
        for word in words:
            assert word in str(error), f"'{word}' is not in the text: {error}"
        return
    raise AssertionError(f"{kind.__name__} was expected")


def small_layout(dtype="fp32"):
    """Two groups: w [3, 5], b [5], frozen [7] and head [4]."""
    layout = zerod.Layout()
    block = layout.group("block", dtype)
    layout.tensor(block, "w", [3, 5])
    layout.tensor(block, "b", (5,))
    layout.tensor(block, "frozen", [7], frozen=True)
    layout.tensor(layout.group("head", dtype), "head", [4])
    return layout


@contextlib.contextmanager
def attached(job=None, layout=None, **needs):
    """(cluster, client): one daemon, and an attached client that is the job's only rank."""
    with Cluster(1) as cluster, zerod.connect(job, socket=cluster[0].socket, timeout=60) as client:
        client.attach(layout or small_layout(), **needs)
        yield cluster, client


def together(*functions):
    """Runs the functions in parallel, each in a thread; their results."""
    results, errors = [None] * len(functions), []

    def run(i):
        try:
            results[i] = functions[i]()
        except BaseException as why:  # pylint: disable=broad-except
            errors.append(why)
    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(functions))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(REPLY_S)
        assert not t.is_alive(), "a thread did not end"
    if errors:
        raise errors[0]
    return results


def python(script, cluster):
    """A Python process that has the package and knows the daemon."""
    environment = {**os.environ, "PYTHONPATH": PACKAGE, "ZEROD_LIBRARY": LIBRARY,
                   "ZEROD_SOCKET": cluster[0].socket}
    process = spawn([sys.executable, "-B", "-c", script], env=environment, stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    cluster.others.append(process)
    return process


def output(process):
    """Status, standard output and standard error of a process that ends by itself."""
    out, err = process.communicate(timeout=REPLY_S)
    return process.returncode, out, err
