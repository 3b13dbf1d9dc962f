#!/usr/bin/env python3
"""zeroctl doctor on real clusters: what is wrong is named, with the node and what to do."""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from checkpointing import Place  # noqa: E402
from cluster import SETS, Cluster, ask_to_end, small_layout, until  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402


def examined(daemon, code):
    """{node: {check: finding}}"""
    r = daemon.ctl_run("--json", "doctor")
    assert r.returncode == code, (r.returncode, r.stdout, r.stderr)
    return {node["node"]: {f["check"]: f for f in node["findings"]} for node in json.loads(r.stdout)["nodes"]}


def in_memory(directory):
    """The votes of the test's nodes lie there too, which is an error."""
    r = subprocess.run(["stat", "-f", "-c", "%T", directory], capture_output=True, text=True, check=True)
    return r.stdout.strip() in ("tmpfs", "ramfs")


@case
def all_nodes_are_examined():
    with Cluster(2) as c:
        nodes = examined(c[0], 1 if in_memory(c.directory) else 0)
        assert sorted(nodes) == ["n0", "n1"], nodes
        for name, other in ("n0", "n1"), ("n1", "n0"):
            checks = nodes[name]
            for check in ("key_file", f"link {other}", "clock", "version", "open files", "locked memory"):
                assert checks[check]["state"] == "fine", checks[check]
            for check in ("state_dir", "membership_dir", "cgroup", "swap", "ECC"):
                assert check in checks, sorted(checks)
            for finding in checks.values():
                assert finding["state"] == "fine" or finding["advice"], finding


@case
def a_node_that_is_down_is_an_error():
    with Cluster(2) as c:
        c[1].kill()
        until(lambda: not c[0].peers_up(), what="the link's end")
        nodes = examined(c[0], 1)
        assert nodes["n0"]["link n1"]["state"] == "error", nodes
        assert "firewall" in nodes["n0"]["link n1"]["advice"], nodes
        assert nodes["n1"]["answer"]["state"] == "error", nodes


@case
def a_key_that_others_may_read_is_an_error():
    with Cluster(2) as c:
        os.chmod(c.key_file, 0o644)
        r = c[0].ctl_run("doctor")
        assert r.returncode == 1, r
        for words in ("n0    error  key_file", "n1    error  key_file", "mode 0644", "-> chmod 0600", " errors, "):
            assert words in r.stdout, f"'{words}' is not in: {r.stdout}"
        assert "version" not in r.stdout, r.stdout
        assert "version" in c[0].ctl_run("doctor", "--all").stdout


LAYOUT = small_layout(blocks=1)


def state_file(daemon):
    name, = (f for f in daemon.state_files() if f.endswith(".state"))
    return name


def stopped(c):
    for d in c.daemons:
        ask_to_end(d.process)
        assert d.ends_cleanly(), d.log()


def flip(daemon):
    """Flips a bit in the header of the daemon's state file."""
    with open(f"{daemon.options['state_dir']}/{state_file(daemon)}", "r+b") as f:
        f.seek(40)
        byte, = f.read(1)
        f.seek(40)
        f.write(bytes([byte ^ 1]))


@cases_of([1, 2], "of_{}")
def a_damaged_state_file_is_named(nodes):
    """To a trainer, too: nobody makes the job anew over the file."""
    with Place() as directory, Cluster(nodes) as c:
        a, = c.ranks("job", LAYOUT, [0], hold=2, push=2)
        a.do("train", steps=1, sets=SETS)
        saved, sums = c[0].ctl("checkpoint", "job", directory)["path"], c.checksum("job")
        c.dismiss(a)
        stopped(c)
        name = state_file(c[0])
        flip(c[0])
        c.start()
        found = examined(c[-1], 1)["n0"]["state file"]
        assert found["state"] == "error" and name in found["found"] and "move it away" in found["found"], found
        a = c.actor(nodes - 1)
        a.do("connect", job="job", rank=0, world=1)
        a.do("layout", groups=LAYOUT)
        a.refused("EIO", "attach", "node n0", name, "move it away", hold=2, push=2)
        r = c[0].ctl_run("restore", "job", saved)
        assert r.returncode == 1 and name in r.stderr, r
        assert all(map(state_file, c.daemons))
        c[0].ctl("drop", "job")
        for d in c.daemons:
            assert d.state_files() == [".lock"] and d.status()["memory"]["state_used"] == 0, d.state_files()
        c[0].ctl("restore", "job", saved)
        assert c.checksum("job") == sums


@case
def a_mirror_replaces_a_damaged_state_file():
    with Cluster(2, mirror=1) as c:
        a, = c.ranks("job", LAYOUT, [0], hold=2, push=2)
        a.do("train", steps=2, sets=SETS)
        sums = c.checksum("job")
        stopped(c)
        path = c[0].options["state_dir"]
        name = next(f for f in c[0].state_files() if f.endswith(".0.state"))
        with open(f"{path}/{name}", "r+b") as f:
            f.write(b"damaged")
        c.start()
        assert c.checksum("job") == sums
        assert "all are in use" in examined(c[1], 1 if in_memory(c.directory) else 0)["n0"]["state file"]["found"]
        c[0].ctl("drop", "job")
        for d in c.daemons:
            until(lambda d=d: d.status()["memory"]["state_used"] == 0, what=f"the end of the job on {d.name}")


@case
def what_an_opening_left_is_named():
    """One node has its part of a job that no rank has ever worked on, and the other node is away."""
    with Cluster(2) as c:
        c.rank("job", LAYOUT, [0, 1], 0, hold=2, push=2)  # waits for the other rank
        for d in c.daemons:
            until(lambda d=d: any(f.endswith(".state") for f in d.state_files()), what=f"the state on {d.name}")
        c.dismiss(c.actors[0])
        for d in c.daemons:
            d.kill()
        c[1].start()
        until(lambda: c[1].ctl_run("members").returncode == 0, what="n1")
        found = examined(c[1], 1)["n1"]["state file"]
        assert found["state"] == "warning" and state_file(c[1]) in found["found"], found
        assert "start the daemons of all owners" in found["advice"], found


@case
def other_users_may_not_examine():
    if os.geteuid() != 0:
        raise Skip("needs root")
    with Cluster(1) as c:
        try:
            r = c[0].ctl_run("doctor", user=65534)
        except PermissionError as why:
            raise Skip(f"nobody cannot run zeroctl here: {why}") from why
        assert r.returncode == 1 and "doctor: only root and the user zerod runs as" in r.stderr, r


if __name__ == "__main__":
    main()
