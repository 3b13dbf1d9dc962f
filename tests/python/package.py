#!/usr/bin/env python3
"""The package as it is installed, and where it finds libzero."""
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap

from common import LIBRARY, PACKAGE, zerod
from harness import Skip, case, main

EXAMPLE = re.compile(r"(?<=\n\n)(?: {4}.*\n|\n)+")  # an indented block of a docstring
SHOW = "import zerod._library as l; print(l.library()._name)"


def modules(directory):
    """Files of the package below a directory."""
    found = set()
    for path, _, names in os.walk(os.path.join(directory, "zerod")):
        found |= {os.path.relpath(os.path.join(path, n), directory) for n in names
                  if n.endswith(".py") or n == "py.typed"}
    return found


def run(directory, script=SHOW, **variables):
    """Runs Python with only the package of this directory: status, output, errors."""
    environment = {"PATH": "/nowhere", "LD_LIBRARY_PATH": "", "PYTHONPATH": directory, **variables}
    done = subprocess.run([sys.executable, "-B", "-c", script], env=environment, cwd="/", stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout.strip(), done.stderr


def copied(directory):
    shutil.copytree(os.path.join(PACKAGE, "zerod"), os.path.join(directory, "zerod"),
                    ignore=shutil.ignore_patterns("__pycache__"))


def pkg_config():
    tool = shutil.which("pkg-config")
    if not tool:
        raise Skip("there is no pkg-config")
    return tool


def for_pkg_config(directory):
    """libzero, and what pkg-config says of it."""
    shutil.copy(LIBRARY, os.path.join(directory, "libzero.so.0"))
    with open(os.path.join(directory, "zero.pc"), "w", encoding="ascii") as f:
        f.write(f"libdir={directory}\nName: zero\nDescription: zero\nVersion: 0\n")


@case
def built_package_is_complete():
    with tempfile.TemporaryDirectory() as directory:
        source, built = os.path.join(directory, "source"), os.path.join(directory, "built")
        shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
        if subprocess.run([sys.executable, "-c", "import setuptools"], capture_output=True, check=False).returncode:
            raise Skip("setuptools is not installed")
        done = subprocess.run([sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", "build", "--build-lib",
                               built], cwd=source, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=250, check=False)
        assert done.returncode == 0, done.stderr
        assert modules(built) == modules(PACKAGE)
        assert run(built, ZEROD_LIBRARY=LIBRARY)[:2] == (0, LIBRARY)


def builder():
    """A Python that makes wheels without a network, that of the suites in PyTorch if this one does not."""
    makes = "import setuptools, pip; from setuptools.command import bdist_wheel"
    for python in filter(None, (sys.executable, os.environ.get("TESTS_PYTHON"))):
        if subprocess.run([python, "-c", makes], capture_output=True, check=False).returncode == 0:
            return python
    raise Skip("no Python with pip and setuptools 70.1 or later")


def pip(python, *arguments):
    done = subprocess.run([python, "-m", "pip", "-q", "--disable-pip-version-check", *arguments], cwd="/",
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr


@case
def a_wheel_needs_no_checkout():
    """It is one for all Pythons and machines, and finds the libzero that is installed there."""
    python = builder()
    with tempfile.TemporaryDirectory() as directory:
        source, wheels, installed = (os.path.join(directory, n) for n in ("source", "wheels", "installed"))
        shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
        pip(python, "wheel", "--no-index", "--no-build-isolation", "--no-deps", "-w", wheels, source)
        assert os.listdir(wheels) == [f"zerod-{zerod.__version__}-py3-none-any.whl"], os.listdir(wheels)
        pip(python, "install", "--no-index", "--no-deps", "--target", installed, os.path.join(wheels, os.listdir(wheels)[0]))
        shutil.rmtree(source)
        assert modules(installed) == modules(PACKAGE)
        for_pkg_config(directory)
        status, out, err = run(installed, PATH=os.path.dirname(pkg_config()), PKG_CONFIG_PATH=directory)
        assert (status, out) == (0, os.path.join(directory, "libzero.so.0")), err


def pinned(name):
    with open(os.path.join(PACKAGE, "../../deploy", name), encoding="utf-8") as f:
        return dict(line.strip().split("==") for line in f if "==" in line)


@case
def the_readme_has_the_versions_that_are_tested():
    newest, oldest = pinned("python-requirements"), pinned("python-requirements-oldest")
    names = {"torch": "PyTorch", "numpy": "NumPy", "trl": "TRL"}
    wanted = "".join(f"| {names.get(n, n)} | {version} | {oldest.get(n, '')} |\n" for n, version in newest.items()
                     if "-" not in n)
    with open(os.path.join(PACKAGE, "docs/versions.md"), encoding="utf-8") as f:
        assert wanted in f.read(), f"client/python/docs/versions.md should have\n{wanted}"


@case
def sources_are_python_3_10():
    """The syntax; no other Python than this one runs here."""
    for path in modules(PACKAGE):
        if path.endswith(".py"):
            with open(os.path.join(PACKAGE, path), encoding="utf-8") as f:
                ast.parse(f.read(), path, feature_version=(3, 10))


@case
def examples_of_docstrings_are_python():
    found = set()
    for path in (p for p in modules(PACKAGE) if p.endswith(".py")):
        with open(os.path.join(PACKAGE, path), encoding="utf-8") as f:
            nodes = [n for n in ast.walk(ast.parse(f.read())) if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef))]
        for example in (e for n in nodes for e in EXAMPLE.findall(f"{ast.get_docstring(n) or ''}\n")):
            ast.parse(textwrap.dedent(example), path)
            found.add(path)
    assert "zerod/torch/__init__.py" in found, found


@case
def library_by_the_environment():
    assert run(PACKAGE, ZEROD_LIBRARY=LIBRARY)[:2] == (0, LIBRARY)


@case
def wrong_library_of_the_environment_is_an_error():
    """If $ZEROD_LIBRARY is wrong, the package does not look elsewhere."""
    status, _, err = run(PACKAGE, ZEROD_LIBRARY="/nowhere/libzero.so.0")
    assert status and "ImportError" in err and "/nowhere/libzero.so.0" in err and "ZEROD_LIBRARY" in err, err


@case
def library_beside_the_package():
    with tempfile.TemporaryDirectory() as directory:
        copied(directory)
        own = os.path.join(directory, "zerod", "libzero.so.0")
        shutil.copy(LIBRARY, own)
        assert run(directory)[:2] == (0, own)


@case
def library_of_the_checkout():
    with tempfile.TemporaryDirectory() as directory:
        copied(os.path.join(directory, "client", "python"))
        built = os.path.join(directory, "build", "client", "lib")
        os.makedirs(built)
        shutil.copy(LIBRARY, os.path.join(built, "libzero.so.0"))
        status, out, err = run(os.path.join(directory, "client", "python"))
        assert (status, out) == (0, os.path.join(built, "libzero.so.0")), err


@case
def library_by_pkg_config():
    with tempfile.TemporaryDirectory() as directory:
        copied(directory)
        for_pkg_config(directory)
        status, out, err = run(directory, PATH=os.path.dirname(pkg_config()), PKG_CONFIG_PATH=directory)
        assert (status, out) == (0, os.path.join(directory, "libzero.so.0")), err


@case
def missing_library_error_lists_the_places():
    with tempfile.TemporaryDirectory() as directory:
        copied(directory)
        status, out, err = run(directory)
        if status == 0:
            raise Skip(f"libzero is installed here: {out}")
        for place in ("ImportError", "ZEROD_LIBRARY", directory, "pkg-config", "system"):
            assert place in err, err


@case
def other_libraries_are_refused():
    """A library that is not libzero, and a file that is no library."""
    with tempfile.TemporaryDirectory() as directory:
        text = os.path.join(directory, "text")
        with open(text, "w", encoding="ascii") as f:
            f.write("no library\n")
        for path, word in ((text, "cannot load"), ("libc.so.6", "is not the libzero")):
            status, _, err = run(PACKAGE, ZEROD_LIBRARY=path)
            assert status and word in err and "ImportError" in err, err


@case
def import_needs_neither_library_nor_pytorch():
    with tempfile.TemporaryDirectory() as directory:
        copied(directory)
        script = "import sys, zerod; print(zerod.__version__, 'torch' in sys.modules)"
        assert run(directory, script)[:2] == (0, f"{zerod.__version__} False")


if __name__ == "__main__":
    main()
