"""Runs one test with a directory of its own as $TMPDIR, on tmpfs where there is one.

usage: alone.py COMMAND...

Exit status: the command's, 128 + signal, or 1 if it passed and left a file behind.  Its last line says how much of a
CPU the test and its children took.

Rule: the directory goes, whatever ends the test.  Where meson ends it, by SIGTERM and soon by SIGKILL to the group, a
process of another session ends the group and deletes the directory.
"""
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TRIES = 100  # processes that were killed may still make files


def delete(directory):
    for _ in range(TRIES):
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.exists(directory):
            return
        time.sleep(0.05)


def give_up(directory):
    group = os.getpgrp()
    if os.fork() == 0:
        os.setsid()
        os.killpg(group, signal.SIGKILL)
        delete(directory)
        os._exit(0)
    while True:
        signal.pause()


def main():
    place = tempfile.gettempdir()
    if not place.startswith("/dev/shm/") and os.access("/dev/shm", os.W_OK):
        place = "/dev/shm"
    directory = tempfile.mkdtemp(prefix="z", dir=place)
    os.chmod(directory, 0o711)  # some tests have processes of other users
    if os.getpgrp() == os.getpid():
        signal.signal(signal.SIGTERM, lambda *_: give_up(directory))
    status = subprocess.run(sys.argv[1:], env={**os.environ, "TMPDIR": directory}, check=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"# {used.ru_utime + used.ru_stime:.1f} s of a CPU", file=sys.stderr)
    left = os.listdir(directory)
    delete(directory)
    if status == 0 and left:
        print(f"left behind in $TMPDIR: {' '.join(left)}", file=sys.stderr)
        return 1
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
