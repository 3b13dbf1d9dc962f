#!/usr/bin/env python3
"""Options that change while zerod runs: by zeroctl set, and by SIGHUP from the configuration."""
import os
import shlex
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import REPLY_S, Cluster, Tools, small_layout, until  # noqa: E402
from harness import Skip, case, main  # noqa: E402


def option(daemon, name):
    return next(o for o in daemon.ctl("config")["options"] if o["name"] == name)


def attach(c, name):
    a = c.actor()
    a.do("connect", job=name, rank=0, world=1)
    a.do("layout", groups=small_layout())
    return a


def reload(daemon, **options):
    """Changes the file, and waits until the daemon has read it."""
    daemon.options.update(options)
    daemon.configure()
    read = daemon.log().count("reload: ")
    daemon.process.send_signal(signal.SIGHUP)
    until(lambda: daemon.log().count("reload: ") > read and daemon.log().rstrip().endswith("again"), what="the reload")


@case
def a_limit_that_is_set_counts_for_the_next_job():
    with Cluster(1) as c:
        assert c[0].ctl("set", "memory_limit", "1K") | {"doc": ""} == {
            "name": "memory_limit", "value": "1K", "source": "zeroctl set", "doc": ""}
        attach(c, "job").refused("EQUOTA", "attach", "memory_limit", hold=2, push=2)
        assert c[0].ctl("status")["memory"]["state_quota"] == 1024
        c[0].ctl("set", "memory_limit", "0")
        attach(c, "job").do("attach", hold=2, push=2)


@case
def a_reload_takes_what_may_change_and_tells_of_the_rest():
    with Cluster(1, job_limit=2) as c:
        threads = option(c[0], "threads")["value"]
        reload(c[0], job_limit=1, threads=33)
        assert option(c[0], "job_limit")["value"] == "1", c[0].log()
        assert option(c[0], "threads")["value"] == threads
        assert "reload: job_limit was 2 and is 1" in c[0].log()
        assert f"reload: threads stays {threads}: restart zerod to make it 33" in c[0].log()
        a = attach(c, "one")
        a.do("attach", hold=2, push=2)
        attach(c, "two").refused("EQUOTA", "attach", "job_limit", hold=2, push=2)


@case
def a_reload_of_a_bad_file_changes_nothing():
    with Cluster(1, job_limit=2) as c:
        reload(c[0], job_limit=0)
        assert "job_limit = '0': must be 1 to 4096" in c[0].log() and "keeps the options that it has" in c[0].log()
        assert option(c[0], "job_limit")["value"] == "2"


def reload_by_unit(daemon):
    """Runs the unit's commands as systemd does, up to the first that fails; its status and what it says."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../systemd/zerod.service.in"), encoding="utf-8") as f:
        commands = [line.partition("=")[2] for line in f if line.startswith("ExecReload=")]
    for command in commands:
        command = command.replace("@bindir@/zerod", os.path.abspath(Tools.zerod)).replace("$MAINPID", str(daemon.process.pid))
        r = subprocess.run(shlex.split(command), env={**os.environ, "ZEROD_CONFIG": daemon.config}, stdin=subprocess.DEVNULL,
                           capture_output=True, text=True, timeout=REPLY_S, check=False)
        if r.returncode:
            break
    return r


@case
def the_units_reload_fails_for_a_bad_file():
    """The daemon does not hear of it; with a good file it has the new value."""
    with Cluster(1, job_limit=2) as c:
        c[0].options["job_limit"] = 0
        c[0].configure()
        r = reload_by_unit(c[0])
        assert r.returncode == 1 and "job_limit = '0': must be 1 to 4096" in r.stderr and not r.stdout, r
        c[0].options["job_limit"] = 3
        c[0].configure()
        r = reload_by_unit(c[0])
        assert r.returncode == 0 and not r.stdout, r
        until(lambda: option(c[0], "job_limit")["value"] == "3", what="the reload")
        assert "keeps the options" not in c[0].log(), c[0].log()


@case
def what_cannot_be_set_is_refused():
    with Cluster(1) as c:
        for words, name, value in (("did you mean job_limit", "job_limt", "1"), ("must be 1 to 4096", "job_limit", "0"),
                                   ("takes effect when zerod starts", "peers", "a=b:1"), ("no option", "x" * 60, "1"),
                                   ("did you mean", "", "")):
            r = c[0].ctl_run("set", name, value)
            assert r.returncode == 1 and words in r.stderr, (name, r.returncode, r.stderr)
        r = c[0].ctl_run("set", "job_limit")
        assert r.returncode == 2 and "VALUE is missing" in r.stderr, r


@case
def other_users_may_not_set():
    if os.geteuid() != 0:
        raise Skip("needs root")
    with Cluster(1) as c:
        try:
            r = c[0].ctl_run("set", "job_limit", "1", user=65534)
        except PermissionError as why:
            raise Skip(f"nobody cannot run zeroctl here: {why}") from why
        assert r.returncode == 1 and "only root and the user zerod runs as" in r.stderr, r


if __name__ == "__main__":
    main()
