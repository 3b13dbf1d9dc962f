#!/usr/bin/env python3
"""zeroctl simulate counts the messages that real daemons send: every node's, of every kind, in a step.  The same seed
gives the same output, another one the same counts.  Both widths of the machines' sets of nodes behave alike."""
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import REPLY_S, SETS, Cluster, Tools, finish_all, group, tensor, until  # noqa: E402
from harness import case, cases_of, main  # noqa: E402

STEPS = 3
# the coordinator and the nodes send these at times, however many steps pass meanwhile
TIMED = {"progress", "query", "query_reply"}
OPENING = {"join", "open", "opened", "start"}


def zeroctl(*arguments, program=None):
    """Without a daemon: there is no socket of this name."""
    return subprocess.run([Tools.zeroctl, "--socket", "/nonexistent", *map(str, arguments)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=REPLY_S, check=False,
                          env={**os.environ, **({"ZEROCTL_SIMULATE": program} if program else {})})


def simulate(*arguments, program=None):
    r = zeroctl("--json", "simulate", *arguments, program=program)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)["sizes"]


def refused(words, *arguments, code=2):
    r = zeroctl("simulate", *arguments)
    assert r.returncode == code and not r.stdout, (r.returncode, r.stdout, r.stderr)
    for word in words:
        assert word in r.stderr, f"'{word}' is not in: {r.stderr}"


# ---- what daemons count ----

def model(large):
    """Groups of one slice, of some and of one for each owner, frozen tensors; large: one of several parts."""
    groups = [group(f"norm{i}", tensor(f"n{i}", 700 + 200 * i), dtype="bf16") for i in range(3)]
    groups += [group("frozen", tensor("f", 70000, frozen=True), dtype="bf16")]
    groups += [group(f"block{i}", tensor(f"b{i}.w", 300, 300 + 100 * i), tensor(f"b{i}.f", 9000, frozen=True), dtype="bf16")
               for i in range(4)]
    return groups + [group("embed", tensor("wte", 9000 if large else 700, 1000), dtype="bf16")]


CLUSTERS = {
    "2_nodes": {"nodes": 2, "stage": 3, "large": True},
    "4_nodes": {"nodes": 4, "stage": 3},
    "8_nodes": {"nodes": 8, "stage": 3},
    "16_nodes": {"nodes": 16, "stage": 2},
    "ranks_share_nodes": {"nodes": 4, "stage": 2, "ranks": 2},
    "mirrors": {"nodes": 5, "stage": 2, "mirror": True},
    "devices": {"nodes": 2, "stage": 3, "devices": 2},
    "mirrored_devices": {"nodes": 3, "stage": 3, "devices": 2, "mirror": True},
    "owners": {"nodes": 4, "stage": 3, "owners": 2},
    "micro_batches": {"nodes": 2, "stage": 2, "micro_batches": 3},
    "announced_offers": {"nodes": 4, "stage": 2, "bulk": "ucx", "large": True},
}


def sent(daemon):
    """{kind: messages} to other nodes."""
    counts = {}
    for peer in daemon.status()["peers"]:
        for kind, n in peer["messages"].items() if not peer["self"] else ():
            counts[kind] = counts.get(kind, 0) + n
    return {kind: n for kind, n in counts.items() if kind not in TIMED}


def sent_by_all(cluster, done):
    """What all nodes have sent, once each node's owners have carried out so many steps, and so sent all."""
    def counted():
        counts = [sent(d) for d in cluster.daemons]
        return counts if all(c.get("done", 0) >= n for c, n in zip(counts, done)) else None
    return until(counted, what="the end of the last update")


def grown(before, after):
    kinds = {k: n - before.get(k, 0) for k, n in after.items()}
    return {k: n for k, n in kinds.items() if n}


def options_of(what):
    """Of zeroctl simulate."""
    flags = [f"--{name.replace('_', '-')}={what[name]}" for name in ("nodes", "owners", "devices", "ranks", "stage",
                                                                      "micro_batches") if name in what]
    return [*flags, "--hold=3", "--push=2", f"--bulk={what.get('bulk', 'tcp')}", *(["--mirror"] if what.get("mirror") else [])]


@cases_of(CLUSTERS)
def counts(name):
    what = CLUSTERS[name]
    nodes, devices, stage = what["nodes"], what.get("devices", 1), what["stage"]
    placement = [n for n in range(nodes) for _ in range(what.get("ranks", 1))]
    owners = " ".join(f"n{i}*{devices}" for i in range(what.get("owners", nodes)))
    with Cluster(nodes, owners=owners, mirror=int(what.get("mirror", False)), bulk=what.get("bulk", "tcp")) as c:
        actors = c.ranks("job", model(what.get("large")), placement, hold=-1 if stage < 3 else 3, push=2, grad="bf16", reduce="bf16")
        said, = c[0].ctl("simulate", "job", *options_of(what))["sizes"]
        for daemon, simulated in zip(c.daemons, said["opening"]["nodes"]):
            opening = {k: n for k, n in sent(daemon).items() if k in OPENING}
            expected = {k: n for k, n in simulated["sent"].items() if k in OPENING}
            assert opening == expected, f"{daemon.name}: {opening} sent to open the job, {expected} simulated"
        done = [node["sent"].get("done", 0) for node in said["step"]["nodes"]]

        def steps(n, all_steps):
            for a in actors:
                a.start("train", steps=n, stage=stage, micro_batches=what.get("micro_batches", 1), sets=SETS)
            finish_all(actors)
            return sent_by_all(c, [all_steps * n for n in done])
        before = steps(1, 1)
        after = steps(STEPS, 1 + STEPS)
    seen = [grown(b, a) for b, a in zip(before, after)]
    for node, (counted, simulated) in enumerate(zip(seen, said["step"]["nodes"])):
        assert counted == {k: n * STEPS for k, n in simulated["sent"].items()}, (
            f"n{node}: {counted} sent in {STEPS} steps, {simulated['sent']} simulated for each")
    print(f"# {name}: {said['step']['total']} messages a step on {nodes} nodes: {said['step']['kinds']}")
    assert sum(sum(s.values()) for s in seen) == STEPS * said["step"]["total"]


# ---- the simulator ----

SIZES = ["--layers", 6, "--hidden", 1024, "--vocab", 20000]


@case
def a_seed_gives_the_same_output():
    def run(seed):
        return zeroctl("--json", "simulate", *SIZES, "--nodes", 32, "--mirror", "--seed", seed).stdout
    assert run(7) and run(7) == run(7)


@case
def another_seed_gives_another_order_and_the_same_counts():
    one, two = (simulate(*SIZES, "--nodes", 100, "--owners", 90, "--ranks", 3, "--seed", s)[0] for s in (1, 2))
    assert one["decision_s"] != two["decision_s"] and one["opening_s"] != two["opening_s"]
    for key in ("step", "opening", "memory", "coordinator", "version", "links"):
        assert one[key] == two[key], key


@cases_of([2, 3, 16, 64])
def both_widths_are_alike(nodes):
    """The objects that zerod is linked of, with sets of 64 nodes, and the same sources with sets of 4,096."""
    for more in ([], ["--mirror", "--devices", 2, "--owners", min(nodes, 32)], ["--ranks", 5, "--seed", 3]):
        arguments = ["--json", "simulate", *SIZES, "--nodes", nodes, *more]
        wide, narrow = zeroctl(*arguments), zeroctl(*arguments, program=os.environ["SIMULATE_NARROW"])
        assert wide.stdout and wide.stdout == narrow.stdout, (wide.stderr, narrow.stderr)


@case
def nodes_in_full_get_what_is_counted():
    """What comes in at a node message by message is what is counted from the partition."""
    for options in ([], ["--micro-batches", 2, "--stage", 2], ["--owners", 17]):
        said, = simulate(*SIZES, "--nodes", 40, "--bulk", "ucx", "--hold", 2, *options)
        for full in said["in_full"]:
            received = said["step"]["nodes"][full["node"]]["received"]
            assert full["offers"] == received.get("offer", 0), (full, received)
            # owners read offers of such a size without asking for them
            assert full["pulls"] == received.get("pull", 0), (full, received)


@case
def thousands_of_nodes():
    said = simulate(*SIZES)
    assert [s["nodes"] for s in said] == [64, 256, 1024, 4096]
    for s in said:
        n, kinds = s["nodes"], s["step"]["kinds"]
        assert s["version"] == 3 and s["links"] == {"of_each": n - 1, "total": n * (n - 1) // 2}
        assert all(kinds[k] == n - 1 for k in ("ready", "answer", "prepare", "prepared", "decision", "done")), kinds
        assert s["opening"]["kinds"] == {"join": n - 1, "open": 2 * (n - 1), "opened": 2 * (n - 1), "start": n - 1,
                                         "answer": n - 1}, s["opening"]
        assert s["incast"]["senders"] <= n - 1 and s["memory"]["host"] > s["memory"]["planes"] > 0
        assert bool(s["limits"]) == (n > 64), s["limits"]
        assert s["time"]["bound_by"] in ("link", "loop", "decision") and s["time"]["at_least_s"] > s["decision_s"]


@case
def memory_is_the_plan_and_the_peers():
    options = [*SIZES, "--nodes", 8, "--mirror"]
    planned = json.loads(zeroctl("--json", "plan", *options).stdout)
    (over_ucx,), (over_tcp,) = (simulate(*options, "--bulk", bulk) for bulk in ("ucx", "tcp"))
    most = max(planned["nodes"], key=lambda n: n["host_bytes"])
    for s, peers in ((over_ucx, 7 * 6000000), (over_tcp, 7 * 150000)):
        m = s["memory"]
        assert m["planes"] == sum(most["planes"].values()) and m["peers"] == peers, m
        assert m["host"] == most["host_bytes"] + m["peers"] + m["queues"], m


# ---- bad input ----

BAD_OPTIONS = {
    "nodes": ([*SIZES, "--nodes", 4097], ["--nodes is 1 to 4096, not 4097"]),
    "no_nodes": ([*SIZES, "--nodes", 0], ["--nodes is 1 to 4096, not 0"]),
    "ranks_of_a_size": (["--layers", 1, "--hidden", 8, "--vocab", 8, "--ranks", 17], ["4096 nodes", "--ranks"]),
    "owners": ([*SIZES, "--owners", 65], ["64 nodes", "--owners"]),
    "ranks": ([*SIZES, "--ranks", 17, "--nodes", 4096], ["--ranks is such that all nodes have at most 65536"]),
    "devices": ([*SIZES, "--nodes", 4096, "--devices", 2], ["--devices", "4096"]),
    "latency": ([*SIZES, "--latency", "-1"], ["--latency is 0 to 1000000", "'-1'"]),
    "message": ([*SIZES, "--message", "fast"], ["--message", "'fast'"]),
    "bulk": ([*SIZES, "--bulk", "rdma"], ["--bulk is ucx or tcp", "'rdma'"]),
    "model": (["--layers", 4], ["simulate:", "--hidden", "belong together"]),
    "paper": (["--paper"], ["--paper is not an option of this command"]),
    "of_plan": ([*SIZES, "--states", "disk"], ["simulate:", "host or gpu"]),
}


@cases_of(BAD_OPTIONS)
def bad_option(name):
    arguments, words = BAD_OPTIONS[name]
    refused(words, *arguments)


@case
def groups_of_some_ranks():
    with Cluster(1) as c:
        c.ranks("job", [group("both", tensor("b", 64)), group("left", tensor("l", 64), ranks=[0])], [0, 0], hold=1, push=1)
        r = c[0].ctl_run("simulate", "job", "--nodes", "2")
        assert r.returncode == 1 and "'left'" in r.stderr and "zeroctl plan" in r.stderr, r.stderr


def program(text):
    return subprocess.run([os.environ["ZEROCTL_SIMULATE"]], input=text, capture_output=True, text=True, timeout=REPLY_S,
                          check=False)


DESCRIPTION = {"nodes": 2, "owners": 2, "devices": 1, "ranks": 1, "mirror": False, "announces": True, "seed": 1, "job": "j",
               "latency_ns": 1, "message_ns": 1, "step_ns": 1, "update_ns": 1, "link": 1.0, "reduce_size": 2, "pushes": 1,
               "groups": [{"dtype": 1, "gathers": 1, "tensors": [[1000, False]]}]}
BAD_DESCRIPTIONS = {
    "nodes": {"nodes": 4097}, "owners": {"owners": 3}, "no_devices": {"devices": 0}, "ranks": {"ranks": 65536},
    "text": {"seed": "1"}, "real": {"latency_ns": 1.5}, "negative": {"message_ns": -1}, "hours": {"step_ns": 10 ** 13},
    "reduce": {"reduce_size": 3}, "pushes": {"pushes": 0}, "link": {"link": 0}, "job": {"job": "j" * 256},
    "no_job": {"job": None}, "no_groups": {"groups": []}, "groups": {"groups": {}}, "dtype": {"groups": [
        {"dtype": 9, "gathers": 1, "tensors": []}]},
    "tensor": {"groups": [{"dtype": 1, "gathers": 1, "tensors": [[-1, False]]}]},
    "elements": {"groups": [{"dtype": 1, "gathers": 1, "tensors": [[1 << 41, False]]}]},
    "gathers": {"groups": [{"dtype": 1, "gathers": 10 ** 10, "tensors": [[1, False]]}]},
    "more": {"groups": [{"dtype": 1, "gathers": 1, "tensors": [], "more": 1}]},
    "too_many_slices": {"nodes": 4096, "owners": 4096, "groups": 20000 * [DESCRIPTION["groups"][0]]},
    "too_large": {"nodes": 4096, "owners": 1, "groups": [{"dtype": 1, "gathers": 1, "tensors": [[1 << 40, False]]}]},
}


@cases_of(BAD_DESCRIPTIONS)
def bad_description(name):
    assert program(json.dumps(DESCRIPTION)).returncode == 0
    r = program(json.dumps({**DESCRIPTION, **BAD_DESCRIPTIONS[name]}))
    assert r.returncode == 1 and not r.stdout, (r.returncode, r.stdout)
    assert ("2^40" if name == "elements" else "the description of the cluster") in r.stderr, r.stderr


@case
def owners_vote_after_the_update_before():
    """All is asked for at once; the update takes a second."""
    r = program(json.dumps({**DESCRIPTION, "nodes": 5, "step_ns": 0, "update_ns": 10 ** 9}))
    said = json.loads(r.stdout)
    assert said["version"] == 3 and 1 <= said["decision_s"] < 1.001, said


@case
def no_description():
    for text in ("", "[]", "{", "{}", '{"nodes": 1, "nodes": 2}', "\0"):
        r = program(text)
        assert r.returncode == 1 and "description" in r.stderr, (r.returncode, r.stderr)
    assert subprocess.run([os.environ["ZEROCTL_SIMULATE"], "x"], capture_output=True, check=False).returncode == 2


@case
def the_program_is_named_if_it_cannot_run():
    r = zeroctl("simulate", *SIZES, "--nodes", 2, program="/nowhere/zerod-simulate")
    assert r.returncode == 1 and "/nowhere/zerod-simulate" in r.stderr and "ZEROCTL_SIMULATE" in r.stderr, r.stderr


@case
def text():
    r = zeroctl("simulate", *SIZES, "--nodes", 100)
    assert r.returncode == 0 and not r.stderr, r.stderr
    for word in ("NODES", "INCAST", "by kind", "PEERS", "BOUND BY", "at most 64"):
        assert word in r.stdout, f"'{word}' is not in: {r.stdout}"


if __name__ == "__main__":
    main()
