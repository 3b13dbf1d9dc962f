#!/usr/bin/env python3
"""The package under the Python versions that are not run here: what it uses is in all of them, and its types are the same."""
import os
import subprocess
import tempfile

from common import PACKAGE
from harness import Skip, case, main

OLDEST, VERSIONS = "3.10", ("3.10", "3.11", "3.12", "3.13")
RUN_S = 280


def tool(name, *arguments):
    """Status and what it said."""
    python = os.environ.get("TESTS_PYTHON_TYPES")
    if not python:
        raise Skip("no Python with mypy and vermin: set TESTS_PYTHON_TYPES to one that has what deploy/python-requirements-types "
                   "names; tests/run.sh makes one")
    done = subprocess.run([os.path.join(os.path.dirname(python), name), *arguments], cwd=PACKAGE, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=RUN_S, check=False)
    return done.returncode, done.stdout + done.stderr


@case
def nothing_is_newer_than_the_oldest_python():
    status, said = tool("vermin", "--quiet", "--no-tips", f"--target={OLDEST}-", "--violations", "zerod")
    assert status == 0, said


@case
def types_are_the_same_under_each_python():
    """What mypy finds, with frameworks taken as they come."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as cache:
        for version in VERSIONS:
            status, said = tool("mypy", "--python-version", version, "--cache-dir", cache, "--ignore-missing-imports", "zerod")
            assert status in (0, 1), said
            assert "checked" in said, said
            found[version] = set(said.splitlines())
    for version in VERSIONS[1:]:
        assert found[version] == found[OLDEST], f"{OLDEST} and {version}: {sorted(found[version] ^ found[OLDEST])}"


if __name__ == "__main__":
    main()
