"""Programs in Python that are forks of one process, which has imported torch.  To import it takes a program two seconds of
a CPU, and torchrun with two ranks three times that.

PYTHON is what a test starts in place of sys.executable.  It ends as the fork does, and a fork whose PYTHON is gone is
killed.  What differs from a python of its own: torch is there already, with one thread; all programs have one hash seed;
and the process has another parent and session.
"""
import atexit
import builtins
import contextlib
import ctypes
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile

from cluster import die_with_parent

PYTHON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "forked_python.py")


def execute(code, name, **more):
    names = sys.modules["__main__"].__dict__
    names.clear()
    names.update(__name__="__main__", __builtins__=builtins, __spec__=None, **more)
    exec(compile(code, name, "exec"), names)  # pylint: disable=exec-used


def start_as_python(what, *arguments):
    """What follows the options -B and -u on python's command line."""
    libraries = [p for p in sys.path if p.startswith((sys.prefix, sys.base_prefix))]
    paths = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *libraries]
    sys.path[:] = [os.path.dirname(os.path.abspath(what)) if what not in ("-m", "-c") else os.getcwd(), *paths]
    if what == "-m":
        sys.argv = list(arguments)
        runpy._run_module_as_main(arguments[0])  # pylint: disable=protected-access
    elif what == "-c":
        sys.argv = ["-c", *arguments[1:]]
        execute(arguments[0], "<string>")
    else:
        sys.argv = [what, *arguments]
        with open(what, "rb") as script:
            code = script.read()
        execute(code, what, __file__=what)


def run_as_python(program, *arguments):
    """The exit status."""
    sys.executable, status = program, 0
    for name in [n for n, m in sys.modules.items() if (getattr(m, "__file__", None) or "").startswith(os.path.dirname(PYTHON))]:
        del sys.modules[name]
    while arguments[0] in ("-B", "-u"):
        if arguments[0] == "-u":
            sys.stdout.reconfigure(write_through=True)
        arguments = arguments[1:]
    try:
        start_as_python(*arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:  # pylint: disable=broad-except
        sys.excepthook(*sys.exc_info())
        status = 1
    return status & 0xff


def become(arguments, environment, directory, files):
    """Never returns."""
    try:
        die_with_parent()
        for to, file in enumerate(files):
            os.dup2(file, to)
        os.closerange(3, max(files) + 1)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(directory)
        tempfile.tempdir = None
        sys.modules["torch"].set_num_threads(1)  # makes torch's pool of threads anew, before two threads want to at once
        ctypes.pythonapi.Py_Exit(run_as_python(*arguments))  # ends threads of torch first; libzero looks at the status
    finally:
        os._exit(1)


def serve_one(connection):
    """In a session of its own, so that all of it ends if the client does."""
    os.setsid()
    die_with_parent()
    size, files, _, _ = socket.recv_fds(connection, 4, 3)
    with connection.makefile("rb") as stream:
        told = json.loads(stream.read(int.from_bytes(size, "little")))
    pid = os.fork()
    if pid == 0:
        become(**told, files=files)
    for file in files:
        os.close(file)
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(b"%d\n" % pid)
        ended = os.pidfd_open(pid)
        if ended not in select.select([ended, connection], [], [])[0]:
            os.killpg(0, signal.SIGKILL)
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def serve(listening):
    running = {}  # pidfd: pid
    while True:
        for file in select.select([listening, *running], [], [])[0]:
            if file in running:
                os.waitpid(running.pop(file), 0)
                os.close(file)
                continue
            connection, _ = listening.accept()
            pid = os.fork()
            if pid == 0:
                try:
                    listening.close()
                    serve_one(connection)
                finally:
                    os._exit(0)
            connection.close()
            running[os.pidfd_open(pid)] = pid


def start(directory):
    """Forks the process that serves PYTHON until this one ends.  It listens in the directory."""
    path = os.path.join(directory, "forks")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(64)
        pid = os.fork()
        if pid == 0:
            try:
                die_with_parent()
                serve(listening)
            finally:
                os._exit(1)
    os.environ["TESTS_FORKS"] = path

    @atexit.register
    def end():
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
