#!/usr/bin/env python3
"""zeroctl report on real clusters: what is in the archive, what must not be, and what a full disk leaves."""
import base64
import json
import os
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import REPLY_S, SETS, Cluster, Tools, finish_all, small_layout, spawn, until  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402
from mounts import private_mounts, small_disks  # noqa: E402

LOG_BYTES = 8 << 20


def unpacked(path):
    """{name: bytes} of the archive."""
    directory = path + ".unpacked"
    os.mkdir(directory)
    subprocess.run(["tar", "--extract", "--zstd", "--force-local", "--file", path, "--directory", directory], check=True)
    assert os.listdir(directory) == ["zerod-report"], os.listdir(directory)
    found = {}
    for name in os.listdir(f"{directory}/zerod-report"):
        with open(f"{directory}/zerod-report/{name}", "rb") as f:
            found[name] = f.read()
    return found


def report(daemon, path, *options):
    """The archive's files."""
    r = daemon.ctl_run("report", path, *options)
    assert r.returncode == 0 and "neither parameters nor keys" in r.stdout, r
    assert os.stat(path).st_mode & 0o777 == 0o600
    files = unpacked(path)
    assert sorted(n for n in os.listdir(os.path.dirname(path)) if n.startswith("r.tar")) == ["r.tar.zst", "r.tar.zst.unpacked"]
    return files


def write_secret(path, secret):
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as f:
        f.write(secret.hex())


def forms(secret):
    yield secret
    yield secret.hex().encode()
    yield secret.hex().upper().encode()
    for shift in range(3):  # base64 of the secret somewhere in a longer text
        yield base64.b64encode(b"\0" * shift + secret)[4:-4]


def trained(c, job="job"):
    ranks = c.ranks(job, small_layout(), [0, 1], hold=2, push=2)
    for a in ranks:
        a.start("train", steps=3, sets=SETS)
    finish_all(ranks)


@case
def what_is_in_it_and_what_is_not():
    with Cluster(2, start=False) as c:
        secrets = [os.urandom(32) for _ in range(3)]
        for name, secret in zip(("key", "next", "token"), secrets):
            path = f"{c.directory}/{name}"
            if os.path.exists(path):
                os.remove(path)
            write_secret(path, secret)
        for d in c.daemons:
            d.options.update(key_next_file=f"{c.directory}/next", http=f"{c.directory}/{d.name}.http",
                             http_token_file=f"{c.directory}/token", log_level="debug")
        c.start()
        trained(c)
        files = report(c[0], f"{c.directory}/r.tar.zst", "--log", c[0].log_path)
        assert sorted(files) == ["about.txt", "config.json", "doctor.json", "log", "members.json", "missing.txt", "moves.json",
                                 "nodes.json", "ping.json", "status.json", "trace-job-0.json"], sorted(files)
        assert files["missing.txt"] == b"", files["missing.txt"]
        nodes = json.loads(files["nodes.json"])
        assert [n["node"] for n in nodes["nodes"]] == ["n0", "n1"] and nodes["unheard"] == [], nodes
        assert all(n["jobs"][0]["version"] == 3 for n in nodes["nodes"]), nodes
        processes = {e["args"]["name"] for e in json.loads(files["trace-job-0.json"])["traceEvents"] if e["name"] == "process_name"}
        assert processes == {"node n0", "node n1"}, processes
        options = {o["name"]: o["value"] for o in json.loads(files["config.json"])["options"]}
        assert options["key_file"] == f"{c.directory}/key" and options["node"] == "n0", options
        assert {n["node"] for n in json.loads(files["doctor.json"])["nodes"]} == {"n0", "n1"}
        assert b"node n0 of 2" in files["log"], files["log"]
        with open(f"{c.directory}/r.tar.zst", "rb") as f:
            everything = [f.read(), *files.values()]
        for secret in secrets:
            for form in forms(secret):
                assert not any(form in text for text in everything), "a secret is in the report"
        for d in c.daemons:
            for name in d.state_files():
                with open(f"{d.options['state_dir']}/{name}", "rb") as f:
                    state = f.read()
                for at in range(0, len(state) - 32, 997 * 4):
                    piece = state[at:at + 32]
                    assert len(set(piece)) < 16 or not any(piece in text for text in everything), (name, at)


@case
def without_a_daemon_there_is_the_log():
    with Cluster(1) as c:
        c[0].kill()
        size = os.stat(c[0].log_path).st_size
        with open(c[0].log_path, "ab") as f:
            f.write(b"the log's last line\n".rjust(LOG_BYTES + 1000, b"-"))
        r = c[0].ctl_run("report", f"{c.directory}/r.tar.zst", "--log", c[0].log_path)
        assert r.returncode == 0 and "without what zerod knows" in r.stderr, r
        files = unpacked(f"{c.directory}/r.tar.zst")
        assert sorted(files) == ["about.txt", "log", "missing.txt"] and b"all that zerod knows" in files["missing.txt"], files.keys()
        assert len(files["log"]) == LOG_BYTES < size + LOG_BYTES and files["log"].endswith(b"-the log's last line\n")
        os.mkfifo(f"{c.directory}/fifo")
        open(f"{c.directory}/empty", "wb").close()
        for name, words in (("nowhere", b"No such file"), ("fifo", b"not a file"), ("empty", b"nothing is there")):
            r = c[0].ctl_run("--json", "report", f"{c.directory}/{name}.tar.zst", "--log", f"{c.directory}/{name}")
            files = unpacked(f"{c.directory}/{name}.tar.zst")
            assert r.returncode == 0 and name.encode() + b": " + words in files["missing.txt"] and "log" not in files, (r, files)
            assert json.loads(r.stdout) == {"file": f"{c.directory}/{name}.tar.zst", "missing": 2}, r.stdout


@case
def a_job_with_the_longest_name():
    with Cluster(2) as c:
        trained(c, "j" * 200)
        files = report(c[0], f"{c.directory}/r.tar.zst", "--log", c[0].log_path)
        assert files["missing.txt"] == b"" and json.loads(files[f"trace-{'j' * 120}-0.json"])["traceEvents"], files.keys()


# ---- the programs that it runs ----

def stand_in(c, name, script):
    """The environment in which a shell script stands for that program."""
    os.makedirs(f"{c.directory}/bin", exist_ok=True)
    with open(os.open(f"{c.directory}/bin/{name}", os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o755), "w", encoding="ascii") as f:
        f.write(f"#!/bin/sh\n{script}\n")
    return {**os.environ, "PATH": f"{c.directory}/bin:{os.environ['PATH']}"}


def report_with(c, env, *options):
    return subprocess.run([Tools.zeroctl, *options, "--socket", c[0].socket, "report", f"{c.directory}/r.tar.zst"], env=env,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=REPLY_S, check=False)


JOURNALS = {
    "nothing": ("", b"", b"nothing is there; --log"),
    "it_fails": ("echo line; exit 1", b"line\n", b"it failed; --log"),
    "it_does_not_end": ("echo line; exec sleep 1000", b"line\n", b"it did not end; see --timeout; --log"),
    "more_than_is_taken": (f"head -c {LOG_BYTES} /dev/zero; echo end", b"\0" * (LOG_BYTES - 4) + b"end\n", b""),
}


@cases_of(JOURNALS)
def journal(name):
    script, log, missing = JOURNALS[name]
    with Cluster(1) as c:
        r = report_with(c, stand_in(c, "journalctl", script), "--timeout", "5")
        files = unpacked(f"{c.directory}/r.tar.zst")
        assert r.returncode == 0 and files.get("log", b"") == log and missing in files["missing.txt"], (r, files["missing.txt"])
        assert bool(missing) == bool(files["missing.txt"]), files["missing.txt"]


def left_by(c):
    return [n for n in os.listdir(c.directory) if n.startswith("r.tar")]


@case
def an_error_leaves_the_file_as_it_was():
    with Cluster(1) as c:
        with open(f"{c.directory}/r.tar.zst", "wb") as f:
            f.write(b"before")
        for script, words in (("exit 1", "tar --zstd: it failed"), ("exec sleep 1000", "tar --zstd: it did not end")):
            r = report_with(c, stand_in(c, "tar", script), "--timeout", "5")
            assert r.returncode == 1 and words in r.stderr and left_by(c) == ["r.tar.zst"], (r, left_by(c))
            with open(f"{c.directory}/r.tar.zst", "rb") as f:
                assert f.read() == b"before"


def interrupted(c, number, env, begun):
    """Sends the signal once `begun` says that the report is there."""
    if signal.getsignal(number) == signal.SIG_IGN:  # as under nohup: zeroctl would ignore the signal, too
        signal.signal(number, signal.SIG_DFL)
    with spawn([Tools.zeroctl, "--socket", c[0].socket, "report", f"{c.directory}/r.tar.zst", "--log", c[0].log_path],
               env=env, stdin=subprocess.DEVNULL) as p:
        until(begun)
        p.send_signal(number)
        assert p.wait(REPLY_S) == -number and left_by(c) == [], (p.returncode, left_by(c))


@cases_of(["SIGINT", "SIGTERM", "SIGHUP"])
def interrupted_while_tar_runs(name):
    with Cluster(1) as c:
        pid = f"{c.directory}/pid"
        env = stand_in(c, "tar", f"echo $$ >{pid}.new; mv {pid}.new {pid}; exec sleep 1000")
        interrupted(c, getattr(signal, name), env, lambda: os.path.exists(pid))
        with open(pid, encoding="ascii") as f:
            assert not os.path.exists(f"/proc/{int(f.read())}"), "tar still runs"


@case
def interrupted_while_zerod_does_not_answer():
    with Cluster(2) as c:
        trained(c)
        os.kill(c[1].process.pid, signal.SIGSTOP)  # its parts of the answers do not come
        try:
            interrupted(c, signal.SIGTERM, None, lambda: any(os.path.exists(f"{c.directory}/{n}/zerod-report/config.json")
                                                             for n in left_by(c)))
        finally:
            os.kill(c[1].process.pid, signal.SIGCONT)


@case
def another_user_gets_what_is_not_secret():
    if os.geteuid() != 0:
        raise Skip("only root can become another user")
    with Cluster(2) as c:
        trained(c)
        directory = f"{c.directory}/nobody"
        os.mkdir(directory)
        os.chown(directory, 65534, 65534)
        r = subprocess.run([Tools.zeroctl, "--socket", c[0].socket, "report", f"{directory}/r.tar.zst", "--log", c.key_file],
                           user=65534, group=65534, extra_groups=[], capture_output=True, text=True, check=False, timeout=60)
        assert r.returncode == 0, r
        files = unpacked(f"{directory}/r.tar.zst")
        missing = files["missing.txt"].decode()
        assert "trace of job job" in missing and "doctor.json: " in missing and "Permission denied" in missing, missing
        assert not {"trace-job-0.json", "doctor.json", "log"} & files.keys() and "nodes.json" in files, files.keys()


def unpacked_elsewhere(c, name):
    shutil.copy(f"{c.directory}/disk/{name}", c.directory)
    return unpacked(f"{c.directory}/{name}")


@case
def a_full_disk_leaves_no_file():
    private_mounts()
    with Cluster(2) as c:
        trained(c)
        failures = []
        for size in range(4, 1024, 8):  # KiB: from no room for a directory to room for everything
            with small_disks([f"{c.directory}/disk"], f"{size}k"):
                r = c[0].ctl_run("report", f"{c.directory}/disk/r.tar.zst", "--log", c[0].log_path)
                left = os.listdir(f"{c.directory}/disk")
                if r.returncode == 0:
                    assert left == ["r.tar.zst"] and "trace-job-0.json" in unpacked_elsewhere(c, left[0]), left
                    break
                assert r.returncode == 1 and "No space left on device" in r.stderr and not r.stdout and left == [], (r, left)
                failures.append(r.stderr)
            os.rmdir(f"{c.directory}/disk")
        else:
            raise AssertionError(f"no size suffices: {failures[-1]}")
        assert any("report: tar" in f or "tar --zstd" in f for f in failures) and any(".json: No space" in f for f in failures), failures


@case
def refusals():
    with Cluster(1) as c:
        for arguments, code, words in (([f"{c.directory}/r.tgz"], 2, ".tar.zst"), ([], 2, "FILE is missing"),
                                       (["/nonexistent/r.tar.zst"], 1, "No such file")):
            r = c[0].ctl_run("report", *arguments)
            assert r.returncode == code and words in r.stderr, r


if __name__ == "__main__":
    main()
