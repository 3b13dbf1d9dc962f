#!/usr/bin/env python3
"""Trainers started as users start them: by torchrun, on one node and on two, and alone."""
import os
import re
import subprocess
import sys
import textwrap

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
import forks  # noqa: E402
from cluster import Cluster, free_ports, until  # noqa: E402
from harness import case, cases_of  # noqa: E402

from torchrun import END_S, finish, launch, started_again, worker_environment  # noqa: E402

SCRIPT = textwrap.dedent("""
    import os, sys, torch, zerod
    import zerod.torch as zt
    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ.get("RANK", 0)))   # rank 0's values are taken
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    zt.shard(model, stage=3)
    optimizer = zt.AdamW(model, lr=1e-2)
    client = model.sharded.client
    for step in range(3):
        model(torch.full((2, 8), 1.0 + client.rank)).square().mean().backward()
        optimizer.step()
    with zt.full_params(model):
        total = sum(p.double().sum().item() for p in model.parameters())
    said = f"RANK {client.rank} of {client.world_size} in {client.job}: {client.version} {total:.12f}"
    os.write(1, (said + "\\n").encode())  # at once: ranks share the pipe
    client.close()
""")


def script_in(cluster):
    path = f"{cluster.directory}/trainer.py"
    with open(path, "w", encoding="utf-8") as f:
        f.write(SCRIPT)
    return path


@case
def torchrun_on_one_node():
    with Cluster(1) as cluster:
        said = finish([launch(cluster, 0, "--standalone", "--nproc-per-node=3",
                              script=script_in(cluster), python=sys.executable)])
        assert sorted(said) == [0, 1, 2] and len(set(said.values())) == 1, said
        assert said[0].split()[3].startswith("torchrun-"), said
        until(lambda: cluster[0].status()["jobs"] == [], what="the end of a job that all ranks have closed")


@case
def torchrun_on_two_nodes():
    with Cluster(2) as cluster:
        port = free_ports(1)[0]
        script = script_in(cluster)
        said = finish([launch(cluster, node, "--nnodes=2", f"--node-rank={node}",
                              "--nproc-per-node=2", "--master-addr=127.0.0.1",
                              f"--master-port={port}", job="two", script=script)
                       for node in range(2)])
        assert sorted(said) == [0, 1, 2, 3] and len(set(said.values())) == 1, said
        assert "of 4 in two: 3 " in said[0], said


# before and behind an example of the READMEs: a model, data from a DataLoader with a worker, and how it ends
BEFORE = """
import os, sys, torch, zerod
from torch.nn.functional import mse_loss
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
data = torch.utils.data.DataLoader(torch.ones(6, 8), 2, num_workers=1)
loss_of = lambda model, batch: mse_loss(model(batch), batch)
batch = lambda t: list(data)[t]
"""
BEHIND = """
client = model.sharded.client
os.write(1, f"RANK {client.rank} of {client.world_size} after {client.version}\\n".encode())
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
"""


def example(end="", of="client/python/README.md"):
    with open(os.path.join(ranks.ROOT, of), encoding="utf-8") as f:
        block = re.search(r"^## PyTorch\n.*?```python\n(.*?)^```", f.read(), re.M | re.S)[1]
    return f"{BEFORE}{block}{BEHIND}{end}"


@case
def the_example_of_the_first_readme_runs_on_two_nodes():
    """By its line for two machines; run again, it finds nothing left to do."""
    text = example(of="README.md").replace("until=1000", "until=3")
    with open(os.path.join(ranks.ROOT, "README.md"), encoding="utf-8") as f:
        lines = re.findall(r"^torchrun (.*) train.py", f.read(), re.M)
    assert "until=3" in text and len(lines) == 2, lines
    with Cluster(2) as cluster:
        path, port = f"{cluster.directory}/example.py", free_ports(1)[0]
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        for _ in range(2):
            options = [line.replace("=a", "=127.0.0.1").replace("node=8", "node=2").split()
                       for line in lines]
            said = finish([launch(cluster, node, *options[node], f"--master-port={port}", script=path) for node in range(2)])
            assert said == {r: "of 4 after 3" for r in range(4)}, said
            job, = cluster[0].status()["jobs"]
            assert (job["job"], job["version"]) == ("run1", 3), job


@cases_of({"torchrun": (), "standalone": ("--standalone",)}.items(), "{0[0]}")
def the_example_of_the_package_leaves_nothing_behind(how):
    with Cluster(1) as cluster:
        path = f"{cluster.directory}/example.py"
        with open(path, "w", encoding="utf-8") as f:
            f.write(example())
        said = finish([launch(cluster, 0, *how[1], "--nproc-per-node=2", script=path)])
        assert said == {r: "of 2 after 3" for r in range(2)}, said
        until(lambda: cluster[0].status()["jobs"] == [], what="the end of the job")
        log = cluster[0].log()
        assert "was lost" not in log and log.count(" has left") == 2, log


@case
def a_job_that_is_to_be_kept_stays_whatever_its_name():
    with Cluster(1) as cluster:
        path, text = f"{cluster.directory}/example.py", example()
        with open(path, "w", encoding="utf-8") as f:
            f.write(text.replace("zt.shard(model", "zt.shard(model, keep=True"))
        assert "zt.shard(model" in text
        finish([launch(cluster, 0, "--standalone", "--nproc-per-node=2", script=path)])
        until(lambda: cluster[0].log().count(" has left") == 2, what="both ends")
        job, = cluster[0].status()["jobs"]
        assert job["version"] == 3, job


@cases_of(["raise ValueError('mine')", "sys.exit(3)", "os._exit(3)"])
def a_worker_that_ends_by(how):
    """torchrun starts all ranks again, and they go on where the job stood; then the job ends."""
    with Cluster(1) as cluster:
        said = started_again(cluster, example(f"if first and client.rank == 1: {how}\n"), 2, None)
        assert said == {r: "of 2 after 6" for r in range(2)}, said
        until(lambda: cluster[0].status()["jobs"] == [], what="the end of the job")
        assert "rank 1 on n0 was lost" in cluster[0].log(), cluster[0].log()


@case
def a_worker_that_raises_and_is_not_started_again_leaves_the_job():
    with Cluster(1) as cluster:
        path = f"{cluster.directory}/example.py"
        with open(path, "w", encoding="utf-8") as f:
            f.write(example("if client.rank == 1: raise ValueError('mine')\n"))
        several = launch(cluster, 0, "--standalone", "--nproc-per-node=2", script=path)
        out, _ = several.communicate(timeout=END_S)
        assert several.returncode != 0 and "ValueError: mine" in out, out
        until(lambda: not any(rank["attached"] for rank in cluster[0].status()["jobs"][0]["ranks"]), what="both ends")
        assert cluster[0].status()["jobs"][0]["version"] == 3


@case
def one_process_without_a_launcher():
    with Cluster(1) as cluster:
        out = subprocess.run([sys.executable, "-B", script_in(cluster)], capture_output=True,
                             text=True, timeout=END_S, check=False, stdin=subprocess.DEVNULL,
                             env=worker_environment(cluster))
        assert out.returncode == 0 and "RANK 0 of 1 in " in out.stdout, out
        assert cluster[0].status()["jobs"] == [], "an unnamed job is dropped at the end"


@case
def the_default_run_id_names_no_job():
    """torchrun's is "none"."""
    with Cluster(1) as cluster:
        script, port = script_in(cluster), free_ports(1)[0]
        said = finish([launch(cluster, 0, "--nproc-per-node=1", f"--master-port={port}", script=script)])
        assert "of 1 in " in said[0] and "none" not in said[0], said
        assert cluster[0].status()["jobs"] == [], "an unnamed job is dropped at the end"
        several = launch(cluster, 0, "--nproc-per-node=2", f"--master-port={port}", script=script)
        out, _ = several.communicate(timeout=END_S)
        assert several.returncode != 0 and "ZEROD_JOB" in out and "--rdzv-id" in out, out


@case
def two_unnamed_ranks_are_told_to_name_the_job():
    with Cluster(1) as cluster:
        environment = {**worker_environment(cluster), "RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        out = subprocess.run([forks.PYTHON, "-B", script_in(cluster)], capture_output=True,
                             text=True, timeout=END_S, check=False, stdin=subprocess.DEVNULL,
                             env=environment)
        assert out.returncode != 0 and "ZEROD_JOB" in out.stderr, out


@cases_of({"sys.exit(3)": 3, "sys.exit('mine')": 1, "1 / 0": 1, "os._exit(3)": 3, "print(1)": 0,
           "atexit.register(print, 1)": 0, "threading.Thread(target=print, args=(1,)).start()": 0,
           "os.kill(os.getpid(), 9)": -9, "os.kill(os.getppid(), 0); os.kill(os.getpid(), 15)": -15}.items(), "{0[0]}")
def a_fork_ends_as_a_python_does(what):
    script = f"import atexit, os, sys, threading; {what[0]}"
    by_each = [subprocess.run([python, "-c", script], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                              timeout=END_S) for python in (sys.executable, forks.PYTHON)]
    assert by_each[0].returncode == by_each[1].returncode == what[1], by_each
    assert by_each[0].stdout == by_each[1].stdout, by_each
    assert [r.stderr.splitlines()[-1:] for r in by_each][0] == by_each[1].stderr.splitlines()[-1:], by_each


@case
def a_fork_and_what_it_started_end_with_whoever_asked_for_it():
    script = "import os, time; os.fork(); os.write(1, b'%d\\n' % os.getpid()); time.sleep(600)"
    with subprocess.Popen([forks.PYTHON, "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as asked:
        pids = [int(asked.stdout.readline()) for _ in range(2)]
        asked.kill()
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), what="the end of both")


if __name__ == "__main__":
    ranks.main()
