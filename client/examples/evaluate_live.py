#!/usr/bin/env python3
"""Evaluates each k-th version of a model while torch_gpt.py trains it; ranks wait for nothing.

On this machine, in two shells; the options of torch_gpt.py are the same in both:

    ./deploy/local-cluster.sh --nodes 2 --ranks 2 client/examples/torch_gpt.py
    ZEROD_SOCKET=$(echo /dev/shm/zerod-local-cluster.*/b.sock) ZEROD_JOB=local-cluster \
        PYTHONPATH=client/python python3 client/examples/evaluate_live.py --every 50

ZEROD_SOCKET is that of any node with ranks or shards of the job, and a node of its own has room for the evaluation.
"""
import argparse
import sys

import torch

import torch_gpt
import zerod.torch as zt


@torch.no_grad()
def validation_loss(model: torch.nn.Module, windows: torch.Tensor) -> float:
    parts = windows.split(32)
    return sum(len(part) * torch_gpt.loss_of(model, part).item() for part in parts) / len(windows)


def evaluate(every: int) -> None:
    args = torch_gpt.arguments()
    text = torch_gpt.Text(args.text, args.context)
    model = torch_gpt.GPT(args.layers, args.heads, args.width, args.context, args.experts).eval()
    version = 0
    with zt.follow() as job:  # $ZEROD_JOB; the trainers may start later than this
        while version < args.steps:
            due = min(version - version % every + every, args.steps)
            with job.wait(newer_than=due - 1) as weights:  # due, or the newest above
                model.load_state_dict(weights.state_dict(), strict=False)  # the head has the embedding's weight
                version = weights.version
            loss = validation_loss(model, text.windows(args.windows))
            print(f"version {version}: validation loss {loss:.4f} nats/byte", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--every", type=int, default=50)
    own, sys.argv[1:] = parser.parse_known_args()
    evaluate(own.every)
