#!/usr/bin/env python3
"""A Lightning script whose model is in zerod: strategy= differs.

    ./deploy/local-cluster.sh --nodes 2 --ranks 2 client/examples/with_lightning.py

A small network learns which arm of a spiral a point lies on.  Tells the accuracy on points it has not seen.
"""
import argparse
import os

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from torch import nn
from torch.utils.data import DataLoader
from with_accelerate import network, spirals

from zerod.lightning import ZerodStrategy


class Spirals(pl.LightningModule):
    """Learns the arm of each point."""

    def __init__(self, lr: float):
        super().__init__()
        self.network, self.lr = network(), lr

    def training_step(self, batch: list[torch.Tensor], _number: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self) -> None:
        self.print(f"epoch {self.current_epoch + 1}  loss {self.trainer.callback_metrics['loss']:.3f}")

    def test_step(self, batch: list[torch.Tensor], _number: int) -> None:
        self.log("accuracy", (self.network(batch[0]).argmax(1) == batch[1]).float().mean(), sync_dist=True)

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        steps = self.trainer.estimated_stepping_batches
        return {"optimizer": optimizer, "lr_scheduler": {
            "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps), "interval": "step"}}


def train(args: argparse.Namespace) -> None:
    pl.seed_everything(args.seed, verbose=False)
    launched = "RANK" in os.environ  # else Lightning starts the ranks
    ranks, here = (int(os.environ[name]) if launched else args.devices for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    trainer = pl.Trainer(accelerator="cpu", devices=here, num_nodes=ranks // here,
                         strategy=ZerodStrategy(stage=args.stage), max_epochs=args.epochs, gradient_clip_val=1.0,
                         accumulate_grad_batches=args.accumulate, logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False,
                         plugins=[TorchElasticEnvironment()] if launched else None)
    model = Spirals(args.lr)
    trainer.fit(model, DataLoader(spirals(4096, 1), 32, shuffle=True))
    found = trainer.test(model, DataLoader(spirals(1024, 2), 256), verbose=False)[0]["accuracy"]
    if args.output:
        trainer.save_checkpoint(f"{args.output}/last.ckpt")
    model.print(f"with_lightning: accuracy {found:.3f}, by chance 0.333")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Learns spirals with Lightning and zerod.",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--devices", type=int, default=1, help="ranks that Lightning starts itself, without torchrun or local-cluster.sh")
    add("--epochs", type=int, default=4, help="passes over the data")
    add("--accumulate", type=int, default=1, help="micro-batches a step")
    add("--lr", type=float, default=5e-3, help="highest learning rate")
    add("--stage", type=int, default=3, choices=(1, 2, 3), help="ZeRO stage")
    add("--seed", type=int, default=0, help="of the parameters and the order")
    add("--output", help="directory for a checkpoint at the end; none: nothing is kept")
    return parser.parse_args()


if __name__ == "__main__":
    train(arguments())
    if torch.distributed.is_initialized():  # its threads must not outlive Python
        torch.distributed.destroy_process_group()
