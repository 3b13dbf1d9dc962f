#!/usr/bin/env python3
"""zeroctl doctor on real clusters: what is wrong is named, with the node and what to do."""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import Cluster, until  # noqa: E402
from harness import Skip, case, main  # noqa: E402


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


@case
def other_users_may_not_examine():
    if os.geteuid() != 0:
        raise Skip("needs root")
    with Cluster(1) as c:
        try:
            r = c[0].ctl_run("doctor", user=65534)
        except PermissionError as why:
            raise Skip(f"nobody cannot run zeroctl here: {why}") from why
        assert r.returncode == 1 and "only root and the user zerod runs as" in r.stderr, r


if __name__ == "__main__":
    main()
