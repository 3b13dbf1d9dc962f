#!/usr/bin/env python3
"""The examples in PyTorch do what they say, as ranks of deploy/local-cluster.sh on two daemons, and leave
nothing behind."""
import functools
import glob
import importlib.util
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402
import forks  # noqa: E402
from cluster import SLOW, Tools, spawn  # noqa: E402
from harness import Skip, case, cases_of  # noqa: E402

EXAMPLES = os.path.join(ranks.ROOT, "client/examples")
SCRIPT = os.path.join(ranks.ROOT, "deploy/local-cluster.sh")
DEADLINE_S = 300 * SLOW
TEXT = b"".join(b"%d and %d make %d; " % (a, b, a + b) for a in range(40) for b in range(0, 40, 3))
SMALL = ("--layers", "2", "--heads", "2", "--width", "32", "--context", "32", "--batch", "8", "--steps", "40",
         "--warmup", "4", "--windows", "16", "--log-every", "10", "--eval-every", "0")

# an example's first life ends when rank 1 is about to end its sixth step
DIES_ONCE = """
import os, runpy, signal, sys
import zerod.torch
mark, sys.argv = sys.argv[1], sys.argv[2:]
step = zerod.torch.AdamW.step
def dying(self, closure=None):
    if self.version == 5 and os.environ["RANK"] == "1" and not os.path.exists(mark):
        open(mark, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, closure)
zerod.torch.AdamW.step = dying
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# rank 0 brings a process that evaluates, and ends with it; what both say would mix in one pipe, amid lines too
EVALUATED = """
import os, runpy, subprocess, sys
evaluation = os.environ["RANK"] == "0" and subprocess.Popen([sys.executable, sys.argv[1], "--every", "10", *sys.argv[3:]],
                                                            stdout=subprocess.PIPE, text=True)
sys.argv = sys.argv[2:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
if evaluation:
    print(evaluation.communicate()[0])
    sys.exit(evaluation.returncode)
"""


def local_cluster(*arguments):
    """What the command writes; it must succeed, and end with nothing left."""
    tree = os.path.dirname(os.path.dirname(os.path.abspath(Tools.zerod)))
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as own:
        process = spawn([SCRIPT, "--tree", tree, "--nodes", "2", *map(str, arguments)], stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                        env={**os.environ, "ZEROD_PYTHON": forks.PYTHON, "TMPDIR": own})
        try:
            out, err = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            out, err = process.communicate(timeout=30)
        assert process.returncode == 0, f"status {process.returncode}\n{out}\n{err}"
        left = os.listdir(own) + glob.glob(f"/dev/shm/zerod-local-cluster.{process.pid}.*")
        assert not left, f"left behind: {left}"
    return out


def gpt(directory, *arguments, nodes_ranks=("--ranks", 2), program=(f"{EXAMPLES}/torch_gpt.py",)):
    """First and last validation loss, and all that was written."""
    text = f"{directory}/text"
    if not os.path.exists(text):
        with open(text, "wb") as f:
            f.write(TEXT)
    out = local_cluster(*nodes_ranks, *program, "--text", text, *SMALL, *arguments)
    first = re.search(r"^step \d+/\d+  validation ([0-9.]+)$", out, re.MULTILINE)
    last = re.search(r"^torch_gpt: validation loss ([0-9.]+) nats/byte, 40 steps$", out, re.MULTILINE)
    assert first and last, out
    return float(first[1]), float(last[1]), out


def alike(found, wanted):
    """Of gpt(): the same losses, as far as they are written; 40 steps in another order lose less than the last digit."""
    assert abs(found[0] - wanted[0]) < 2e-3 and abs(found[1] - wanted[1]) < 2e-4, f"{found[:2]}, wanted {wanted[:2]}"


@functools.cache
def usual():
    """gpt() of two ranks."""
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        return gpt(directory)


@case
def torch_gpt_learns_alike_with_any_ranks():
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        first, last, out = usual()
        assert first > 5.4 and last < 3.0, out
        assert re.search(r"^step 40/40  loss [0-9.]+  grad_norm [0-9.]+  lr 0.0003051  tokens/s [0-9,.]+$", out,
                         re.MULTILINE), out
        alike(gpt(directory, "--accumulate", 2, "--stage", 2, nodes_ranks=("--ranks", 1)), usual())


@cases_of([("--tensor-parallel", 2), ("--pipeline-parallel", 2), ("--layer-by-layer", "--accumulate", 2)], "{0[0]}")
def torch_gpt_learns_alike(way):
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        alike(gpt(directory, *way), usual())


@case
def torch_gpt_learns_alike_with_divided_experts():
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        alike(gpt(directory, "--experts", 4, "--expert-parallel", 2, nodes_ranks=("--ranks", 4)),
              gpt(directory, "--experts", 4, nodes_ranks=("--ranks", 1)))


@case
def torch_gpt_goes_on_after_a_kill():
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        _, wanted, _ = usual()
        script = f"{directory}/dies_once.py"
        with open(script, "w", encoding="utf-8") as f:
            f.write(DIES_ONCE)
        _, last, out = gpt(directory, nodes_ranks=("--ranks", 2, "--max-restarts", 1),
                           program=(script, f"{directory}/mark", f"{EXAMPLES}/torch_gpt.py"))
        assert "goes on after step 5\n" in out, out
        assert last == wanted, f"{last}, uninterrupted {wanted}"


@case
def evaluate_live_reads_versions_in_order():
    """The last one is what the ranks end with."""
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        script = f"{directory}/evaluated.py"
        with open(script, "w", encoding="utf-8") as f:
            f.write(EVALUATED)
        _, last, out = gpt(directory, program=(script, f"{EXAMPLES}/evaluate_live.py", f"{EXAMPLES}/torch_gpt.py"))
        found = re.findall(r"^version (\d+): validation loss ([0-9.]+) nats/byte$", out, re.MULTILINE)
        versions = [int(version) for version, _ in found]
        assert len(versions) > 1 and versions == sorted(set(versions)) and versions[-1] == 40, out
        assert abs(float(found[-1][1]) - last) < 2e-4, (found, last)


@case
def finetune_hf_trains_saves_and_resumes():
    if not glob.glob("/usr/share/games/fortunes/*.dat"):
        raise Skip("the package fortunes is not installed")
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        small = ("--ranks", 2, f"{EXAMPLES}/finetune_hf.py", "--batch", 2, "--length", 12, "--test", 32,
                 "--log-every", 1, "--output", f"{directory}/out", "--save-every", 2)
        told = r"^finetune_hf: accuracy 0\.\d{3} -> 0\.\d{3} on 32 quotations of 8 topics, always '\S+' 0\.\d{3}$"
        for arguments, checkpoints in ((("--steps", 2), ["checkpoint-2"]),
                                       (("--steps", 4, "--resume"), ["checkpoint-2", "checkpoint-4"])):
            out = local_cluster(*small, *arguments)
            assert re.search(told, out, re.MULTILINE), out
            assert len(re.findall("'grad_norm'", out)) == 2, out
            found = sorted(os.listdir(f"{directory}/out"))
            assert {*checkpoints, "model.safetensors", "config.json", "tokenizer.json"} <= set(found), found


@case
def rollout_learns_though_a_worker_dies():
    out = local_cluster("--ranks", 1, f"{EXAMPLES}/rollout.py", "--steps", 40, "--batch", 32)
    found = re.search(r"^rollout: reward (0[.]\d+) -> (0[.]\d+), by chance 0.100; 1 worker started again$", out, re.MULTILINE)
    assert found and float(found[2]) > 2 * float(found[1]), out
    assert "worker 1 has ended with status -9" in out and "step 30/40  answers of versions [" in out, out


@cases_of(["accelerate", "lightning"])
def example_learns_with(framework):
    if importlib.util.find_spec(framework) is None:
        raise Skip(f"the package {framework} is not installed: deploy/python-requirements names it")
    out = local_cluster("--ranks", 2, f"{EXAMPLES}/with_{framework}.py", "--epochs", 2)
    found = re.search(f"^with_{framework}: accuracy (0[.][0-9]+), by chance 0.333$", out, re.MULTILINE)
    assert found and float(found[1]) > 0.6, out


if __name__ == "__main__":
    ranks.main()
