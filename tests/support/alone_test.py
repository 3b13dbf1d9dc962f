"""What alone.py leaves of a test's directory: nothing, whatever ends the test.

usage: alone_test.py ALONE
"""
import os
import signal
import subprocess
import sys
import tempfile

# makes a file, says so, and does not end by SIGTERM; the same goes for its child
STUBBORN = "trap '' TERM; echo > $TMPDIR/file; mkfifo $TMPDIR/never; (cat $TMPDIR/never) & echo ready; cat $TMPDIR/never"
MAKE = "mkdir $TMPDIR/a; echo > $TMPDIR/a/file; "


def begin(place, script, **more):
    return subprocess.Popen([sys.executable, sys.argv[1], "sh", "-c", script], env={**os.environ, "TMPDIR": place},
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)


def expect(script, status, says=""):
    with tempfile.TemporaryDirectory() as place:
        test = begin(place, script)
        text = test.communicate()[0]
        assert test.returncode == status and says in text, (script, test.returncode, text)
        assert not os.listdir(place), script


def expect_nothing_of_a_test_at_its_limit():
    with tempfile.TemporaryDirectory() as place:
        test = begin(place, STUBBORN, start_new_session=True)
        assert test.stdout.readline() == "ready\n"
        os.killpg(test.pid, signal.SIGTERM)  # as meson does
        test.communicate()  # until no process has the pipe any more
        assert not os.listdir(place)


def main():
    expect("test -d $TMPDIR", 0)
    expect(MAKE + "exit 77", 77)
    expect(MAKE + "kill -ABRT $$", 128 + signal.SIGABRT)
    expect(MAKE + "rm -r $TMPDIR/a", 0)
    expect(MAKE, 1, "left behind in $TMPDIR: a")
    expect_nothing_of_a_test_at_its_limit()


if __name__ == "__main__":
    main()
