#!/usr/bin/env python3
"""Trainers started as users start them: by torchrun, on one node and on two, and alone."""
import os
import subprocess
import sys
import textwrap

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from cluster import Cluster, free_ports  # noqa: E402
from harness import case  # noqa: E402

from torchrun import END_S, finish, launch, worker_environment  # noqa: E402

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
                              script=script_in(cluster))])
        assert sorted(said) == [0, 1, 2] and len(set(said.values())) == 1, said
        job = said[0].split()[3].rstrip(":")
        assert job.startswith("torchrun-") and cluster[0].job(job)["version"] == 3, said


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
        out = subprocess.run([sys.executable, "-B", script_in(cluster)], capture_output=True,
                             text=True, timeout=END_S, check=False, stdin=subprocess.DEVNULL,
                             env=environment)
        assert out.returncode != 0 and "ZEROD_JOB" in out.stderr, out


if __name__ == "__main__":
    ranks.main()
