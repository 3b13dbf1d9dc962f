#!/usr/bin/env -S python3 -I -S
"""A python that has imported torch: its command line is carried out by a fork of the process at $TESTS_FORKS (forks.py).

It passes on the signals that ask for an end, and ends as the fork does."""
import json
import os
import signal
import socket
import sys


def main():
    told = json.dumps({"arguments": sys.argv, "environment": dict(os.environ), "directory": os.getcwd()}).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["TESTS_FORKS"])
        socket.send_fds(connection, [len(told).to_bytes(4, "little")], [0, 1, 2])
        connection.sendall(told)
        with connection.makefile("rb") as answers:
            pid = int(answers.readline())
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, lambda n, _: os.kill(pid, n))
            status = int(answers.readline() or -signal.SIGKILL)
    if status < 0:
        if status != -signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main()
