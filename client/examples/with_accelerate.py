#!/usr/bin/env python3
"""An Accelerate script whose model is in zerod: two lines differ, the import and stage=.

    ./deploy/local-cluster.sh --nodes 2 --ranks 2 client/examples/with_accelerate.py

A small network learns which arm of a spiral a point lies on.  Tells the accuracy on points it has not seen.
"""
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from zerod.accelerate import Accelerator  # without zerod: from accelerate import Accelerator


def spirals(count: int, seed: int, arms: int = 3) -> TensorDataset:
    """Points in the plane, and the number of the arm of each."""
    draw = torch.Generator().manual_seed(seed)
    arm = torch.randint(arms, (count,), generator=draw)
    radius = torch.rand(count, generator=draw)
    angle = 4 * radius + 2 * torch.pi / arms * arm + 0.1 * torch.randn(count, generator=draw)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], 1), arm)


def network(width: int = 64) -> nn.Module:
    return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate, stage=args.stage)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data, test = DataLoader(spirals(4096, 1), 32, shuffle=True), DataLoader(spirals(1024, 2), 256)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(data))
    model, optimizer, data, test, scheduler = accelerator.prepare(model, optimizer, data, test, scheduler)
    for epoch in range(args.epochs):
        model.train()
        for points, arms in data:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(points), arms)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch + 1}  loss {accelerator.reduce(loss.detach(), 'mean'):.3f}")
        if args.output:
            accelerator.save_state(args.output)
    model.eval()
    with torch.no_grad():
        right = [accelerator.gather_for_metrics(model(points).argmax(1) == arms) for points, arms in test]
    accelerator.print(f"with_accelerate: accuracy {torch.cat(right).float().mean():.3f}, by chance 0.333")
    accelerator.end_training()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Learns spirals with Accelerate and zerod.",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--epochs", type=int, default=4, help="passes over the data")
    add("--accumulate", type=int, default=1, help="micro-batches a step")
    add("--lr", type=float, default=5e-3, help="highest learning rate")
    add("--stage", type=int, default=3, choices=(1, 2, 3), help="ZeRO stage")
    add("--seed", type=int, default=0, help="of the parameters and the order")
    add("--output", help="directory for the state after each epoch; none: nothing is kept")
    return parser.parse_args()


if __name__ == "__main__":
    train(arguments())
    if torch.distributed.is_initialized():  # its threads must not outlive Python
        torch.distributed.destroy_process_group()
