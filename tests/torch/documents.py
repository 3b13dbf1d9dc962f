#!/usr/bin/env python3
"""The diffs of client/python/docs/moving.md: the script before and the script after give the same losses, on two ranks."""
import importlib
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from cluster import free_ports  # noqa: E402
from harness import Skip, cases_of  # noqa: E402

import torch  # noqa: E402
from torch import distributed, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from net import Net  # noqa: E402

MOVING = os.path.join(ranks.CLIENT, "docs/moving.md")
TOLERANCE = 1e-5
STEPS, ROWS, RANKS = 3, 4, 2  # rows a rank has in a step


class Scored(nn.Module):
    """As models of transformers: its loss is a part of what it returns."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        net = Net()
        self.embed, self.blocks, self.head = net.embed, net.blocks, net.head

    def forward(self, tokens, labels):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return {"loss": F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())}


def rows():
    tokens = torch.randint(0, 11, (STEPS * ROWS * RANKS, 7), generator=torch.Generator().manual_seed(1))
    return [{"tokens": t[:-1], "labels": t[1:]} for t in tokens]


def batches(rank, world_size):
    for step in range(STEPS):
        mine = rows()[(step * world_size + rank) * ROWS:][:ROWS]
        yield {name: torch.stack([row[name] for row in mine]) for name in mine[0]}


def losses_of(_rank, source, directory):
    os.environ["ACCELERATE_USE_CPU"] = "1"
    names = {"os": os, "torch": torch, "model": Scored(), "batches": batches, "rows": rows(), "directory": directory,
             "loss_of": lambda model, batch: model(**batch)["loss"]}
    exec(compile(source, MOVING, "exec"), names)  # pylint: disable=exec-used
    if distributed.is_initialized():
        distributed.barrier()
    return names["losses"]


def diffs():
    """{heading: the lines of the diff}"""
    with open(MOVING, encoding="utf-8") as f:
        found = re.findall(r"^## From (?:a )?(.*?)\n\n```diff\n(.*?)^```", f.read(), re.M | re.S)
    return {name: text.splitlines() for name, text in found}


def side(lines, sign):
    return "\n".join(line[1:] for line in lines if line[:1] in ("", " ", sign)) + "\n"


def run(source):
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_ports(1)[0]}
        return ranks.run(losses_of, RANKS, ranks.shared(1), arguments=(source, directory), environment=place)


@cases_of(["FSDP2", "DeepSpeed", "Accelerate", "Lightning", "Trainer"], "from_{}")
def both_sides_train_alike(name):
    lines = diffs()[name]
    if name in ("FSDP2", "DeepSpeed") and torch.__version__ < "2.7":
        raise Skip(f"FSDP2 of PyTorch {torch.__version__} needs a GPU")
    for package in re.findall(r"^[ +](?:import|from) ([\w.]+)", "\n".join(lines), re.M):
        try:
            importlib.import_module(package)  # once, in the parent of all ranks
        except ImportError as error:
            raise Skip(f"{error}: deploy/python-requirements names what is needed") from error
    before, after = side(lines, "-"), run(side(lines, "+"))
    compile(before, MOVING, "exec")
    wanted = run(side(diffs()["FSDP2"] if name == "DeepSpeed" else lines, "-"))
    assert all(len(losses) == STEPS for losses in wanted), wanted
    off = max(abs(a - b) for got, want in zip(after, wanted) for a, b in zip(got, want, strict=True))
    assert off < TOLERANCE, f"off by {off:.1e}\n{after}\n{wanted}"


if __name__ == "__main__":
    ranks.main()
