#!/usr/bin/env python3
"""Programs run from where `meson install` put them, without build tree, LD_LIBRARY_PATH or ldconfig."""
import contextlib
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import REPLY_S, SLOW, Tools, end_process, spawn, until  # noqa: E402
from harness import Skip, case, main  # noqa: E402

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
TEXT = b"".join(b"%d and %d make %d; " % (a, b, a + b) for a in range(40) for b in range(0, 40, 3))
SMALL = ("--steps", "2", "--layers", "1", "--heads", "2", "--width", "32", "--context", "32", "--batch", "2",
         "--eval-windows", "4", "--threads", "1")
FUNCTION = re.compile(r"\bzero_[a-z_]+")


@contextlib.contextmanager
def installed():
    """Installs into a temporary directory; the prefix in it."""
    tree = os.path.dirname(os.path.dirname(os.path.abspath(Tools.zerod)))
    meson = shutil.which("meson")
    if not meson or not os.path.exists(f"{tree}/build.ninja"):
        raise Skip("needs meson and a build tree")
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        done = subprocess.run([meson, "install", "-C", tree, "--no-rebuild", "--destdir", f"{directory}/root"],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=REPLY_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        page, = glob.glob(f"{directory}/root/**/man3/zero.3", recursive=True)
        yield os.path.abspath(f"{page}/../../../..")


def environment(prefix, **variables):
    """Environment of a user who has the programs in PATH."""
    left = {k: v for k, v in os.environ.items() if not k.startswith(("ZEROD_", "LD_LIBRARY_PATH"))}
    return {**left, "PATH": f"{prefix}/bin:{os.environ['PATH']}", **variables}


def run(prefix, *command, **variables):
    done = subprocess.run(command, env=environment(prefix, **variables), cwd=prefix, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=REPLY_S, check=False)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def write_text(prefix):
    if Tools.gpt == "-":
        raise Skip("the example is not built")
    with open(f"{prefix}/text", "wb") as f:
        f.write(TEXT)


@case
def by_hand_as_the_readme_says():
    with installed() as prefix:
        write_text(prefix)
        place = {"ZEROD_SOCKET": f"{prefix}/sock", "ZEROD_STATE_DIR": f"{prefix}/states", "ZEROD_USER": "root"}
        with open(f"{prefix}/log", "wb") as log:
            daemon = spawn(["zerod"], env=environment(prefix, **place), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            until(lambda: os.path.exists(f"{prefix}/sock"), what="the daemon's socket")
            assert "validation loss" in run(prefix, "zerod-gpt", "--data", "text", *SMALL, **place)
            assert "gpt" in run(prefix, "zeroctl", "status", **place)
            assert "100 nodes: " in run(prefix, "zeroctl", "simulate", "--nodes", "100")
        finally:
            assert end_process(daemon, 15 * SLOW)


@case
def local_cluster():
    with installed() as prefix:
        write_text(prefix)
        out = run(prefix, "zerod-local-cluster", "--nodes", "2", "--ranks", "2", "zerod-gpt", "--data", "text", *SMALL)
        assert "validation loss" in out, out


@case
def local_cluster_of_sixteen():
    """The list of 16 peers is one long line of the configuration file."""
    if SLOW > 1:
        raise Skip("16 daemons with sanitizers")
    with installed() as prefix:
        run(prefix, "zerod-local-cluster", "--nodes", "16", "--ranks", "1", "true")


@case
def local_cluster_runs_python():
    """With the installed package and the installed library."""
    if SLOW > 1:
        raise Skip("a plain Python cannot load a libzero with sanitizers")
    with installed() as prefix:
        with open(f"{prefix}/show.py", "w", encoding="ascii") as f:
            f.write("import zerod, zerod._library as l; print(zerod.__file__); print(l.library()._name)\n")
        out = run(prefix, "zerod-local-cluster", "show.py", ZEROD_PYTHON=sys.executable,
                  PYTHONDONTWRITEBYTECODE="1")
        assert all(os.path.realpath(line).startswith(prefix) for line in out.split()), out


@case
def local_cluster_with_keep():
    with installed() as prefix:
        with open(f"{prefix}/log", "wb") as log:
            script = spawn(["zerod-local-cluster", "--nodes", "2", "--keep", "true"], env=environment(prefix),
                           stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            until(lambda: b"are kept" in open(f"{prefix}/log", "rb").read(), what="the message that nodes are kept")
            directory, = glob.glob(f"/dev/shm/zerod-local-cluster.{script.pid}.*")
            run(prefix, "zeroctl", "--socket", f"{directory}/b.sock", "ping")
        finally:
            script.send_signal(signal.SIGINT)
            assert script.wait(30 * SLOW) == 0, script.returncode
        assert not os.path.exists(directory)


@case
def every_function_has_a_page():
    with open(f"{ROOT}/client/lib/libzero.map", encoding="ascii") as f:
        exported = set(FUNCTION.findall(f.read()))
    with installed() as prefix:
        pages = f"{prefix}/share/man/man3"
        with open(f"{pages}/zero.3", encoding="utf-8") as f:
            named = set(FUNCTION.findall(f.read()))
        assert exported <= named, f"zero.3 omits {exported - named}"
        for function in exported:
            with open(f"{pages}/{function}.3", encoding="utf-8") as f:
                text = f.read()
            if text.startswith(".so "):
                with open(f"{prefix}/share/man/{text.split()[1]}", encoding="utf-8") as f:
                    text = f.read()
            synopsis = text.split(".SH SYNOPSIS")[1].split(".SH DESCRIPTION")[0]
            assert re.search(rf"^[a-z][a-z0-9_ *]*\b{function}\(", synopsis, re.MULTILINE), f"{function}.3 has no prototype"
            assert ".SH RETURN VALUE" in text and (".SH ERRORS" in text) == ("enum zero_status" in text), function


@case
def a_page_is_its_own_functions():
    """Formulas keep their lines, which are read where man is, and no page has the text of the function before."""
    with installed() as prefix:
        pages = f"{prefix}/share/man/man3"
        text = {name: open(f"{pages}/{name}.3", encoding="utf-8").read() for name in ("zero", "zero_release", "zero_step")}
        assert "gather a group" not in text["zero_release"] and "Ends one zero_fetch()" in text["zero_release"]
        assert all(f".SH {title}\n" in text["zero_step"] for title in ("ERRORS", "EXAMPLES")), text["zero_step"]
        assert "int main(void)" in text["zero"]
        if shutil.which("man"):
            shown = run(prefix, "man", "-l", f"{pages}/zero_step.3", MANWIDTH="120")
            assert re.search(r"g\^2\n +p = p - lr / \(1 - beta1\^t\) m", shown), shown


@case
def documents():
    with installed() as prefix:
        for name in ("README.md", "LICENSE"):
            assert os.path.getsize(f"{prefix}/share/doc/zerod/{name}")
        unit, = glob.glob(f"{prefix}/**/zerod.service", recursive=True)
        with open(unit, encoding="utf-8") as f:
            start = re.search(r"^ExecStart=(\S+)", f.read(), re.MULTILINE).group(1)
        assert start.endswith("/bin/zerod") and os.access(f"{prefix}/bin/zerod", os.X_OK), start


if __name__ == "__main__":
    main()
