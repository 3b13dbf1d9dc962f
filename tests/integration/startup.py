#!/usr/bin/env python3
"""A daemon refuses to start with bad options, files and sockets; each error names the cause and what to do."""
import mmap
import os
import pwd
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import REPLY_S, SETS, Cluster, Tools, finish_all, small_layout, until  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402


def run(*arguments, **environment):
    return subprocess.run([Tools.zerod, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=REPLY_S, env={**os.environ, **environment}, check=False)


def refused(daemon, words, *arguments, **environment):
    """--check and a start both fail with all these words, and leave no socket."""
    daemon.configure()
    for check in (["--check"], []):
        r = run("--config", daemon.config, *check, *arguments, **environment)
        said = r.stderr + r.stdout
        assert r.returncode not in (0, None) and r.returncode > 0, f"status {r.returncode}: {said}"
        for word in words:
            assert word in said, f"'{word}' is not in: {said}"
    assert not os.path.exists(daemon.socket), "a refused daemon has left its socket"


def refused_start(daemon, words):
    daemon.configure()
    r = run("--config", daemon.config)
    assert r.returncode == 1, r
    for word in words:
        assert word in r.stderr, f"'{word}' is not in: {r.stderr}"
    assert not os.path.exists(daemon.socket), "a refused daemon has left its socket"


BAD_OPTIONS = {
    "misspelt": ({"sokcet": "/x"}, ["sokcet", "socket", ".conf:"]),
    "unknown": ({"memory_limits": "5G"}, ["memory_limits", "memory_limit"]),
    "out_of_range": ({"threads": 5000}, ["threads", "5000", "1024"]),
    "not_a_number": ({"chunk": "many"}, ["chunk", "many"]),
    "chunk_not_a_multiple": ({"chunk": 1000}, ["chunk", "1000", "128"]),
    "no_choice": ({"bulk": "carrier-pigeon"}, ["bulk", "carrier-pigeon", "ucx", "tcp"]),
    "device": ({"device": "host:sse9"}, ["device", "host:scalar"]),
    "mode": ({"socket_mode": "0999"}, ["socket_mode", "octal"]),
    "peers_without_key": ({"peers": "n0=127.0.0.1:4000 n1=127.0.0.1:4001"}, ["key_file"]),
    "peers_twice": ({"peers": "n0=127.0.0.1:4000 n0=127.0.0.1:4001"}, ["n0", "twice"]),
    "peers_port": ({"peers": "n0=127.0.0.1:70000 n1=127.0.0.1:1"}, ["peers", "n0"]),
    "node_not_among_peers": ({"peers": "a=127.0.0.1:4000 b=127.0.0.1:4001"}, ["n0"]),
    "owners_unknown": ({"peers": "n0=127.0.0.1:4000 n1=127.0.0.1:4001", "owners": "n7"}, ["owners", "n7"]),
}


@cases_of(BAD_OPTIONS)
def option(name):
    options, words = BAD_OPTIONS[name]
    with Cluster(1, start=False, **options) as c:
        refused(c[0], words)


NOBODY = "nobody"


def unprivileged(daemon):
    """The daemon's process has the user, groups and capabilities of NOBODY."""
    with open(f"/proc/{daemon.process.pid}/status", encoding="ascii") as f:
        fields = dict(line.split(":\t", 1) for line in f)
    wanted = pwd.getpwnam(NOBODY)
    assert set(fields["Uid"].split()) == {str(wanted.pw_uid)}, fields["Uid"]
    assert set(fields["Gid"].split()) == {str(wanted.pw_gid)}, fields["Gid"]
    assert "0" not in fields["Groups"].split(), fields["Groups"]
    assert int(fields["CapPrm"], 16) == int(fields["CapEff"], 16) == 0, fields["CapEff"]
    assert os.stat(f"/proc/{daemon.process.pid}").st_uid == wanted.pw_uid, "its files in /proc belong to another user"


@case
def root_becomes_another_user():
    """As that user the daemon trains a job and takes it up after a restart; a third user may not take it up."""
    if os.getuid():
        raise Skip("needs root")
    with Cluster(2, start=False, user=NOBODY) as c:
        os.chown(c.directory, pwd.getpwnam(NOBODY).pw_uid, -1)
        refused_start(c[0], ["key_file", "chown"])
        os.chown(c.key_file, pwd.getpwnam(NOBODY).pw_uid, -1)
        c.start()
        ranks = c.ranks("job", small_layout(), [0, 1])
        for a in ranks:
            a.start("train", steps=5, sets=SETS)
        finish_all(ranks)
        total = c.checksum("job")
        for a in ranks:
            c.dismiss(a)
        for d in c.daemons:
            unprivileged(d)
            d.restart()
        c.wait_up()
        assert c.checksum("job") == total
        for d in c.daemons:
            unprivileged(d)
            d.process.terminate()
            d.process.wait()
            d.options["user"] = "daemon"
            refused_start(d, ["state_dir", "chown -R daemon", "user = root"])


@case
def user_that_does_not_exist():
    if os.getuid():
        raise Skip("needs root")
    with Cluster(1, start=False, user="no-such-user") as c:
        refused_start(c[0], ["user = no-such-user", "no such user"])


@case
def option_on_the_command_line():
    with Cluster(1, start=False) as c:
        refused(c[0], ["--sokcet", "--socket"], "--sokcet=/x")
        refused(c[0], ["threads", "-1"], "--threads=-1")


@case
def option_in_the_environment():
    with Cluster(1, start=False) as c:
        refused(c[0], ["ZEROD_SOKCET", "socket"], ZEROD_SOKCET="/x")


@case
def no_such_file():
    r = run("--config", "/nonexistent/zerod.conf", "--check")
    assert r.returncode > 0 and "/nonexistent/zerod.conf" in r.stderr, r


@case
def check_of_a_good_file():
    with Cluster(2, start=False) as c:
        c[0].configure()
        r = run("--config", c[0].config, "--check")
        assert r.returncode == 0, r.stderr
        assert not os.path.exists(c[0].socket)


@case
def check_looks_up_the_hosts_of_peers():
    with Cluster(2, start=False) as c:
        c[0].configure()
        peers = c[0].options["peers"].replace("127.0.0.1", "localhost", 1)
        assert run("--config", c[0].config, "--check", "--peers", peers).returncode == 0
        name, _, port = peers.split()[1].partition("=127.0.0.1:")
        # of an empty label no resolver is asked; a start goes on without that node, and so must a reload
        for host, status, words in (("no..host", 0, ["node n1", "no..host"]), ("10.0.0.300", 1, ["10.0.0.300", "nor an address"])):
            r = run("--config", c[0].config, "--check", "--peers", f"{peers.split()[0]} {name}={host}:{port}")
            assert r.returncode == status and all(w in r.stderr for w in ["peers", *words]), r


@case
def check_looks_at_the_state_directory():
    """As a start does, but makes nothing."""
    with Cluster(1, start=False) as c:
        for path, words in ((f"{c.directory}/none/state", ["missing", f"{c.directory}/none"]), (f"{c.directory}/open", ["chmod 700"]),
                            (c[0].config, ["Not a directory"])):
            if path.endswith("open"):
                os.mkdir(path)
                os.chmod(path, 0o755)
            c[0].configure()
            r = run("--config", c[0].config, "--check", "--state-dir", path)
            assert r.returncode == 1 and all(w in r.stderr for w in words), (path, r)
        r = run("--config", c[0].config, "--check", "--state-dir", f"{c.directory}/new")
        assert r.returncode == 0 and not os.path.exists(f"{c.directory}/new"), r


def bad_key(words, prepare):
    with Cluster(2, start=False) as c:
        prepare(c.key_file)
        refused(c[0], ["key_file", *words])


@case
def key_is_missing():
    bad_key(["No such file"], os.unlink)


@case
def key_is_readable_for_others():
    bad_key(["0644", "chmod 600"], lambda path: os.chmod(path, 0o644))


@case
def key_is_too_short():
    bad_key(["32"], lambda path: Cluster.write_key(path, "abcd"))


@case
def key_is_all_zeros():
    bad_key(["zeros"], lambda path: Cluster.write_key(path, "00" * 32))


@case
def key_is_a_directory():
    def prepare(path):
        os.unlink(path)
        os.mkdir(path, 0o700)
    bad_key(["regular"], prepare)


def fails_to_start(daemon, *words):
    daemon.start()
    status = daemon.process.wait(REPLY_S)
    assert status > 0, f"status {status}: {daemon.log()}"
    for word in words:
        assert word in daemon.log(), f"'{word}' is not in: {daemon.log()}"
    daemon.process = None


@case
def second_daemon_on_a_state_directory():
    with Cluster(1) as c:
        a, = c.ranks("first", small_layout(), [0], hold=1, push=1)
        with Cluster(1, start=False, state_dir=c[0].options["state_dir"]) as other:
            fails_to_start(other[0], c[0].options["state_dir"])
        a.do("train", steps=2, sets=SETS)
        assert c[0].job("first")["version"] == 2


@case
def second_daemon_on_a_socket():
    with Cluster(1) as c:
        with Cluster(1, start=False, socket=c[0].socket) as other:
            fails_to_start(other[0], c[0].socket)
        c[0].status()


@case
def socket_left_over():
    """A socket on which nobody listens is replaced; any other file is left alone."""
    with Cluster(1, start=False) as c:
        s = socket.socket(socket.AF_UNIX)
        s.bind(c[0].socket)
        s.close()
        c.start()
    with Cluster(1, start=False) as c:
        with open(c[0].socket, "w", encoding="ascii") as f:
            f.write("mine")
        fails_to_start(c[0], c[0].socket)
        assert open(c[0].socket, encoding="ascii").read() == "mine"


@case
def port_is_taken():
    with Cluster(2, start=False) as c:
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # of old links the port has a minute
        s.bind(("127.0.0.1", c[0].port))
        s.listen()
        fails_to_start(c[0], str(c[0].port))
        s.close()


@case
def state_directory_of_somebody_else():
    with Cluster(1, start=False) as c:
        if os.getuid():
            raise Skip("needs root")
        path = c[0].options["state_dir"]
        os.mkdir(path, 0o700)
        os.chown(path, 65534, 65534)
        fails_to_start(c[0], path)


@case
def state_directory_for_everybody():
    with Cluster(1, start=False) as c:
        path = c[0].options["state_dir"]
        os.mkdir(path)
        os.chmod(path, 0o777)
        fails_to_start(c[0], path)


@case
def daemons_start_in_any_order():
    """One node starts and a rank attaches; the job begins when the other node has started too."""
    with Cluster(2, start=False) as c:
        c[1].start()
        until(lambda: c[1].alive() and c[1].ctl_run("status").returncode == 0, what="the first daemon")
        a = c.actor(1)
        a.do("connect", job="early", rank=0, world=1, timeout_ms=30000)
        a.do("layout", groups=small_layout())
        a.start("attach", hold=1, push=1)
        c[0].start()
        a.good(a.finish())
        a.do("train", steps=2, sets=SETS)


@case
def many_daemons_start_at_once():
    """24 daemons start at once, and all link soon enough to use shared memory instead of TCP."""
    with Cluster(24, bulk="auto") as c:
        for d in c.daemons:
            paths = {p["bulk"] for p in d.status()["peers"] if not p["self"]}
            assert paths == {"ucx"}, f"{d.name}: {paths}"


@case
def leftovers_of_ucx_are_removed():
    """UCX's files that no process has open are removed; those of a living process stay."""
    prefix = f"/dev/shm/ucx_shm_posix_{os.getpid()}"
    dead, living, mapped = (f"{prefix}{name}" for name in ("dead", "living", "mapped"))
    try:
        for path in (dead, living, mapped):
            with open(path, "wb") as f:
                f.write(bytes(mmap.PAGESIZE))
        with open(mapped, "r+b") as f:
            memory = mmap.mmap(f.fileno(), 0)
        with memory, open(living, "r+b"):
            with Cluster(2):
                assert not os.path.exists(dead)
                assert os.path.exists(living) and os.path.exists(mapped)
    finally:
        for path in (dead, living, mapped):
            if os.path.exists(path):
                os.unlink(path)


if __name__ == "__main__":
    main()
