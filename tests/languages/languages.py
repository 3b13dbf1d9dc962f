#!/usr/bin/env python3
"""Programs in other languages build by zero.h, or by declarations made by hand, and train as two ranks, whose place and job
the environment names.  So do the program of client/README.md and the man pages' examples."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tests", "support")]

from cluster import REPLY_S, Cluster, Tools, spawn  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402

INCLUDES = [f"-I{ROOT}/client/include", f"-I{ROOT}/proto"]
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
COMPILERS = {
    "c++": ("CXX", "c++", ["-std=c++17", *WARNINGS, *INCLUDES], "fit.cpp"),
    "rust": ("RUSTC", "rustc", ["-D", "warnings"], "fit.rs"),
    "fortran": ("FC", "gfortran", ["-Wall", "-Werror"], "fit.f90"),
}


def library():
    return os.path.join(os.path.dirname(os.path.abspath(Tools.zerod)), "..", "client", "lib")


def built(variable, compiler, flags, source, directory):
    """The command that runs the program."""
    compiler = os.environ.get(variable, compiler)
    if not shutil.which(compiler):
        raise Skip(f"there is no {compiler}")
    path = ["-C", f"link-arg=-Wl,-rpath,{library()}", "-L", library()] if compiler == "rustc" else \
        [f"-L{library()}", "-lzero", f"-Wl,-rpath,{library()}"]
    done = subprocess.run([compiler, *flags, source, "-o", f"{directory}/program", *path], cwd=directory, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=REPLY_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [f"{directory}/program"]


def run(cluster, command, ranks=1, job="fit"):
    """What the ranks print, who all end well."""
    started = []
    for rank in range(ranks):
        environment = {**os.environ, "ZEROD_SOCKET": cluster[0].socket, "ZEROD_JOB": job, "RANK": str(rank),
                       "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        started.append(spawn(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             text=True))
    cluster.others += started
    told = [p.communicate(timeout=REPLY_S) for p in started]
    assert all(p.returncode == 0 for p in started), told
    return [out for out, _ in told]


def losses(text):
    return {int(step): float(loss) for step, loss in re.findall(r"step +(\d+):? loss +(\S+)", text)}


def trains(command):
    """Two ranks begin with w at 0.25, as rank 0 gives it, fit it, and find the fitted one when they are started again."""
    with Cluster(1) as cluster:
        for out in run(cluster, command, ranks=2):
            assert abs(losses(out)[0] - 72.79) < 0.01 and losses(out)[300] < 0.01, out
        again = [losses(out) for out in run(cluster, command, ranks=2)]
        assert [list(of) for of in again] == [[300], [300]] and again[0][300] < 0.01, again


@cases_of(COMPILERS)
def trains_in(language):
    variable, compiler, flags, source = COMPILERS[language]
    with tempfile.TemporaryDirectory() as directory:
        trains(built(variable, compiler, flags, os.path.join(HERE, source), directory))


@case
def trains_by_ctypes():
    trains([sys.executable, "-B", os.path.join(HERE, "fit.py"), os.path.join(library(), "libzero.so.0")])


@case
def readme_program():
    """That of client/README.md prints its losses, and the last one when it is run again."""
    with open(f"{ROOT}/client/README.md", encoding="utf-8") as f:
        program = re.search(r"^<!-- program.*?\n```c\n(.*?)^```$", f.read(), re.M | re.S)[1]
    with tempfile.TemporaryDirectory() as directory, Cluster(1) as cluster:
        with open(f"{directory}/fit.c", "w", encoding="utf-8") as f:
            f.write(program)
        command = built("CC", "cc", ["-Wall", "-Wextra", "-Werror", *INCLUDES], f"{directory}/fit.c", directory)
        first, again = (losses(run(cluster, command)[0]) for _ in range(2))
        assert list(first) == list(range(0, 301, 50)) and first[300] < 0.01 < first[0], first
        assert again == {300: first[300]}, again


@case
def examples_of_the_man_pages():
    with tempfile.TemporaryDirectory() as directory, Cluster(1) as cluster:
        source = os.path.join(ROOT, "client", "examples", "calls.c")
        command = built("CC", "cc", ["-Wall", "-Wextra", "-Werror", *INCLUDES], source, directory)
        for _ in range(2):
            outs = run(cluster, command, ranks=2)
            assert all(losses(out)[100] < 0.1 and '"jobs"' in out for out in outs), outs


@case
def a_variable_that_makes_no_sense_is_named():
    with Cluster(1) as cluster:
        for wrong, words in (({"RANK": "one"}, "RANK is 'one'"), ({"WORLD_SIZE": ""}, "WORLD_SIZE is not"),
                             ({"RANK": "7"}, "rank 7 is not in a world of 1"), ({"ZEROD_JOB": "a b"}, "a job's name"),
                             ({"ZEROD_JOB": ""}, "$ZEROD_JOB")):
            environment = {**os.environ, "ZEROD_SOCKET": cluster[0].socket, "ZEROD_JOB": "fit", "RANK": "0", "WORLD_SIZE": "1",
                           **wrong}
            done = subprocess.run([sys.executable, "-B", os.path.join(HERE, "fit.py"), os.path.join(library(), "libzero.so.0")],
                                  env=environment, capture_output=True, text=True, timeout=REPLY_S, check=False)
            assert done.returncode == 1 and words in done.stderr, (wrong, done.stderr)


if __name__ == "__main__":
    main()
