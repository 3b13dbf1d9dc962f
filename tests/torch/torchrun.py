"""torchrun on nodes of a cluster, and what its workers say."""
import os
import signal
import subprocess

import forks
import ranks
from cluster import spawn

END_S = 240


def worker_environment(cluster, node=0):
    """Of a trainer that nobody has named the job to."""
    environment = {k: v for k, v in os.environ.items() if k != "ZEROD_JOB"}
    if ranks.LIBRARY:
        environment["ZEROD_LIBRARY"] = ranks.LIBRARY
    return {**environment, "ZEROD_SOCKET": cluster[node].socket}


def launch(cluster, node, *options, job=None, script, arguments=(), python=forks.PYTHON):
    """torchrun on a node."""
    environment = {**worker_environment(cluster, node), "GLOO_SOCKET_IFNAME": "lo", "TMPDIR": cluster.directory}
    if job:
        environment["ZEROD_JOB"] = job
    process = spawn([python, "-B", "-m", "torch.distributed.run", *options, script, *arguments],
                    env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, text=True, start_new_session=True)
    cluster.others.append(process)
    return process


def started_again(cluster, text, ranks_, job, arguments=()):
    """What the ranks of one node said that run a script, and may die once."""
    script = f"{cluster.directory}/trains.py"
    with open(script, "w", encoding="utf-8") as f:
        f.write(text)
    return finish([launch(cluster, 0, "--standalone", f"--nproc-per-node={ranks_}", "--max-restarts=1", job=job, script=script,
                          arguments=arguments)])


def finish(processes):
    """What the ranks said: {rank: line}; all must have ended well."""
    said = []
    try:
        for process in processes:
            out, _ = process.communicate(timeout=END_S)
            assert process.returncode == 0, f"torchrun ended with {process.returncode}:\n{out}"
            said += [line for line in out.splitlines() if line.startswith("RANK ")]
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return {int(line.split()[1]): line.split(" ", 2)[2] for line in said}
