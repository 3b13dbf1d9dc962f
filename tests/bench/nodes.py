"""Daemons on loopback for a benchmark, in one directory in memory, which goes with them.

    with Nodes(build, 2, bulk="ucx") as nodes:
        nodes.sockets[0], nodes.pids

Invariant: whatever ends the block, an exception or SIGTERM, every process started here is ended
by its id and the directory is removed.
"""
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time

READY_S = 30
STOP_S = 15


def exit_on_signals():
    """Makes SIGTERM, SIGHUP and SIGINT run what `with` and `finally` are for."""

    def leave(number, frame):
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, leave)


def free_ports(n):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


def end(process, seconds=STOP_S):
    """SIGTERM, and SIGKILL if that has no effect in time."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Nodes:
    def __init__(self, build, count, **options):
        self.build = build
        self.count = count
        self.options = options  # of zerod, with _ for -
        self.processes = []

    def program(self, *path):
        return os.path.join(self.build, *path)

    def start(self, command, log, **more):
        """A process that does not outlive this one."""
        return subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *command], stdin=subprocess.DEVNULL,
                                stderr=open(os.path.join(self.directory, log), "ab"), **more)

    def __enter__(self):
        self.directory = tempfile.mkdtemp(prefix="zerod-bench.", dir="/dev/shm")
        try:
            self.start_daemons()
            self.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            end(process)
        shutil.rmtree(self.directory, ignore_errors=True)

    def file(self, name):
        return os.path.join(self.directory, name)

    def start_daemons(self):
        names = [f"n{i}" for i in range(self.count)]
        self.sockets = [self.file(f"{name}.sock") for name in names]
        common = []
        if self.count > 1:
            with open(os.open(self.file("key"), os.O_WRONLY | os.O_CREAT, 0o600), "wb") as key:
                key.write(secrets.token_bytes(32))
            ports = free_ports(self.count)
            peers = " ".join(f"{name}=127.0.0.1:{port}" for name, port in zip(names, ports))
            common = [f"--peers={peers}", f"--key-file={self.file('key')}"]
        common += [f"--{name.replace('_', '-')}={value}" for name, value in self.options.items()]
        for name, path in zip(names, self.sockets):
            command = [self.program("daemon/zerod"), f"--node={name}", f"--socket={path}",
                       f"--state-dir={self.file(name + '.state')}", "--config=/dev/null", *common]
            self.processes.append(self.start(command, f"{name}.log", stdout=subprocess.DEVNULL))

    def log(self, name):
        with open(self.file(name), encoding="utf-8", errors="replace") as log:
            return "".join(log.readlines()[-20:])

    def peers(self, path):
        """What a daemon says of its peers; None if it does not answer."""
        ctl = [self.program("client/zeroctl/zeroctl"), "--socket", path, "--timeout", "2", "--json", "status"]
        answer = subprocess.run(ctl, capture_output=True, text=True, check=False)
        return json.loads(answer.stdout)["peers"] if answer.returncode == 0 else None

    def ready(self, path):
        peers = self.peers(path)
        return peers is not None and all(p["self"] or p["up"] for p in peers)

    def wait_ready(self):
        until = time.monotonic() + READY_S
        for i, path in enumerate(self.sockets):
            while not self.ready(path):
                if time.monotonic() > until or self.processes[i].poll() is not None:
                    raise RuntimeError(f"daemon n{i} is not ready:\n{self.log(f'n{i}.log')}")
                time.sleep(0.05)

    @property
    def pids(self):
        return [process.pid for process in self.processes]
