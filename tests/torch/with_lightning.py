#!/usr/bin/env python3
"""A LightningModule trains alike with zerod.lightning.ZerodStrategy and with Lightning's own: losses, gradient norms and
metrics, on one rank and on two, with accumulation and clipping; checkpoints go from one to the other."""
import hashlib
import importlib.util
import logging
import os
import signal
import subprocess
import sys
import tempfile
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402
import forks  # noqa: E402
from cluster import free_ports  # noqa: E402
from common import adapters_only, frozen_files, raises  # noqa: E402
from harness import case, cases_of  # noqa: E402

if importlib.util.find_spec("lightning") is None:
    ranks.leave_out("the package lightning is not installed: deploy/python-requirements names it")

import lightning.pytorch as pl  # noqa: E402
import torch  # noqa: E402
import torchmetrics  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.plugins.environments import TorchElasticEnvironment  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import zerod  # noqa: E402
import zerod.torch as zt  # noqa: E402
from zerod.lightning import ZerodStrategy  # noqa: E402

TOLERANCE = 1e-5
WIDTH, ROWS, BATCH = 16, 24, 2
TOGETHER = [0, 1]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(pl.LightningModule):
    """Its steps use a parameter outside of any forward."""

    def __init__(self, optimizer="AdamW", automatic=True):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.blocks = nn.Linear(4, WIDTH), nn.ModuleList([Block(), Block()])
        self.last, self.scale = nn.Linear(WIDTH, 1), nn.Parameter(torch.ones(1))
        self.kind, self.automatic_optimization, self.told = optimizer, automatic, []

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)

    def loss_of(self, batch):
        return nn.functional.mse_loss(self(batch[0]) * self.scale, batch[1])

    def training_step(self, batch, _number):
        loss = self.loss_of(batch)
        self.log("loss", loss, sync_dist=True, on_epoch=True, on_step=False)
        self.told.append((float(loss.detach()), self.trainer.optimizers[0].param_groups[0]["lr"]))
        return loss

    def validation_step(self, batch, _number):
        self.log("val", self.loss_of(batch), sync_dist=True)

    def test_step(self, batch, _number):
        self.log("test", self.loss_of(batch), sync_dist=True)

    def predict_step(self, batch, _number):
        return self(batch[0]) * self.scale

    def configure_optimizers(self):
        decays, rest = ([p for p in self.parameters() if (p.ndim > 1) is wanted] for wanted in (True, False))
        optimizer = getattr(torch.optim, self.kind)([{"params": decays}, {"params": rest, "weight_decay": 0.0}], lr=1e-2,
                                                    weight_decay=0.1)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40), "interval": "step"}]


def data():
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS, 4, generator=draw)
    return DataLoader(TensorDataset(x, x.prod(1, keepdim=True)), BATCH)


def run(function, placement, *arguments):
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_ports(1)[0]}
    return ranks.run(function, placement, ranks.shared(2), arguments=arguments, environment=place)


def trainer_of(kind, directory, **options):
    """kind: "plain", or the options of ZerodStrategy."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    world, local = (int(os.environ.get(name, 1)) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    return pl.Trainer(accelerator="cpu", devices=local, num_nodes=world // local, logger=False, default_root_dir=directory,
                      enable_progress_bar=False, enable_model_summary=False,
                      plugins=[TorchElasticEnvironment()] if world > 1 else None,
                      strategy="ddp" if kind == "plain" else ZerodStrategy(**kind),
                      **{"max_epochs": 2, "enable_checkpointing": False, "gradient_clip_val": 0.3, **options})


def train(_rank, kind, directory, options=None, resume=None, optimizer="AdamW", trained=("",)):
    """Losses and learning rates, and what validating, testing and predicting gives; trained: words in the names of what
    is not frozen."""
    trainer, model = trainer_of(kind, directory, **(options or {})), adapters_only(Net(optimizer), trained)
    trainer.fit(model, data(), data(), ckpt_path=resume)
    found = [*model.told, (float(trainer.callback_metrics["loss"]), float(trainer.callback_metrics["val"]))]
    found.append((trainer.validate(model, data(), verbose=False)[0]["val"],
                  trainer.test(model, data(), verbose=False)[0]["test"]))
    found += [tuple(t.flatten().tolist()) for t in trainer.predict(model, data())]
    if kind != "plain":
        assert isinstance(trainer.strategy.lightning_module.sharded.optimizer(), zt.ServiceOptimizer)
    return found


def alike(found, wanted, what=""):
    assert len(found) == len(wanted) > 10
    off = max(abs(a - b) for got, want in zip(found, wanted) for a, b in zip(got, want, strict=True))
    assert off <= TOLERANCE, f"{what}: off by {off:.1e}\n{found}\n{wanted}"


@cases_of([[0], TOGETHER], "on_nodes_{}")
def fits_validates_tests_and_predicts_as_lightning(placement):
    """With clipping, accumulation, param groups, a schedule, and a parameter that a step uses itself."""
    options = {"accumulate_grad_batches": 2}
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        wanted = run(train, placement, "plain", directory, options)
        for kind in ({"stage": 3}, {"stage": 1, "accumulate": "trainer"}):
            for found, plain in zip(run(train, placement, kind, directory, options), wanted):
                alike(found, plain, kind)


@case
def frozen_parameters_are_of_a_base():
    trained = "blocks.1", "scale"
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory, frozen_files(adapters_only(Net(), trained)) as paths:
        wanted, found = (run(train, TOGETHER, kind, directory, {}, None, "AdamW", trained) for kind in ("plain", {"base": paths}))
        for got, plain in zip(found, wanted):
            alike(got, plain)


@case
def the_gradient_is_clipped():
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        found, wanted = (run(train, [0], kind, directory, {"gradient_clip_val": 0.01}, None, "SGD")[0] for kind in ({}, "plain"))
        alike(found, wanted)
        other = run(train, [0], {}, directory, {"gradient_clip_val": None}, None, "SGD")[0]
        assert abs(other[-1][0] - wanted[-1][0]) > 1e-3, "without clipping it is the same"


@case
def bf16_is_autocast():
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        alike(*(run(train, [0], kind, directory, {"precision": "bf16-mixed"})[0] for kind in ({}, "plain")))


def save(_rank, kind, directory):
    keeper = ModelCheckpoint(directory, filename="last", save_top_k=1)
    trainer_of(kind, directory, enable_checkpointing=True, callbacks=[keeper], max_epochs=1).fit(Net(), data())


@case
def checkpoints_go_to_lightning_and_back():
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        for name, kind in (("zerod", {}), ("plain", "plain")):
            run(save, TOGETHER, kind, f"{directory}/{name}")
            again = [run(train, TOGETHER, other, directory, {}, f"{directory}/{name}/last.ckpt")[0] for other in ({}, "plain")]
            assert len(again[0]) == len(again[1]) and len(again[0]) < 22, "the first epoch was trained again"
            alike(*again, f"from a checkpoint of {name}")


@case
def lightning_starts_the_ranks_itself():
    """They have no RANK, and rank 0 names the job."""
    cluster = ranks.shared(2)
    environment = {k: v for k, v in os.environ.items() if k not in ("ZEROD_JOB", "RANK", "WORLD_SIZE")}
    done = subprocess.run([forks.PYTHON, f"{ranks.ROOT}/client/examples/with_lightning.py", "--devices", "2", "--epochs", "2"],
                          env={**environment, "ZEROD_SOCKET": cluster[0].socket, "ZEROD_LIBRARY": ranks.LIBRARY,
                               "GLOO_SOCKET_IFNAME": "lo"}, text=True,
                          capture_output=True, timeout=ranks.DEADLINE_S, check=False)
    assert done.returncode == 0 and "with_lightning: accuracy 0." in done.stdout, done.stdout + done.stderr
    assert "MEMBER: 2/2" in done.stdout + done.stderr, done.stderr
    for job in cluster[0].status()["jobs"]:
        cluster[0].ctl_run("drop", job["job"])


class Killer(Net):
    """A node's last daemon is killed in a pass ("forward" or "backward") of a micro-batch, once."""

    def __init__(self, daemon, micro_batch, direction):
        super().__init__()
        self.daemon, self.micro_batch, self.direction = daemon, micro_batch, direction
        self.mean, self.drop = torchmetrics.MeanMetric(), nn.Dropout(0.1)
        self.register_buffer("seen", torch.zeros(WIDTH))

    def kill(self, *_):
        daemon, self.daemon = self.daemon, None
        if daemon:
            os.kill(daemon, signal.SIGKILL)

    def forward(self, x):
        x = self.drop(self.first(x))
        x = self.blocks[0](x)
        if self.training:
            self.seen.lerp_(x.detach().mean(0), 0.1)
        if len(self.told) == self.micro_batch and self.training:
            if self.direction == "forward":
                self.kill()
            else:
                x.register_hook(self.kill)
        return self.last(self.blocks[1](x))

    def training_step(self, batch, number):
        loss = super().training_step(batch, number)
        self.log("now", loss, sync_dist=True)
        self.log("mean", self.mean(loss))
        return {"loss": loss}


def survive(rank, directory, daemon, *at):
    """Metrics of the epoch, a checksum of the parameters and of a buffer, and what zerod warns of."""
    told = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logging.getLogger("zerod").addHandler(handler)
    model = Killer(daemon if rank == 1 else None, *at)
    trainer = trainer_of({"timeout": 120}, directory, accumulate_grad_batches=2)
    trainer.fit(model, data(), data())
    found = [float(trainer.callback_metrics[name]) for name in ("loss", "now", "val")]
    values = torch.cat([*(model.sharded.read(p, "master") for p in model.sharded.params), model.seen])
    trainer.strategy.barrier()
    return found, trainer.global_step, hashlib.sha256(values.numpy().tobytes()).hexdigest(), told


@cases_of([(2, "forward"), (2, "backward"), (3, "forward"), (3, "backward")], "in_micro_batch_{0[0]}_{0[1]}")
def a_lost_daemon_is_waited_for(at):
    """The step is repeated with the same dropout, and logged once.  Two micro-batches are a step; a rank that has no
    gradient yet does not notice."""
    cluster = ranks.shared(2)
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        wanted = run(survive, TOGETHER, directory, None, *at)
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_ports(1)[0]}
        with ranks.Ranks(survive, TOGETHER, cluster, arguments=(directory, cluster[1].process.pid, *at),
                         environment=place) as job:
            assert cluster[1].process.wait(ranks.DEADLINE_S) == -signal.SIGKILL
            cluster[1].start()
            found = job.finish()
            cluster[0].ctl("drop", job.job)
    for rank in TOGETHER:
        assert found[rank][:3] == wanted[rank][:3], f"rank {rank}: {found}\nundisturbed: {wanted}"
    warned = any("metrics count its batches twice: mean" in text for _, _, _, told in found for text in told)
    assert warned or at == (2, "forward"), found


def refuses(_rank, directory):
    raises(TypeError, "nonsense", ZerodStrategy, nonsense=1)
    for options, model, word in (({}, Net(automatic=False), "automatic_optimization"),
                                 ({"precision": "64-true"}, Net(), "64-true"),
                                 ({"gradient_clip_algorithm": "value"}, Net(), "gradient_clip_algorithm"),
                                 ({}, Net("Adagrad"), "Adagrad")):
        if word == "automatic_optimization":
            options["gradient_clip_val"] = None
        raises(ValueError, word, trainer_of({}, directory, **options).fit, model, data())


@case
def what_cannot_be_is_refused_by_name():
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        run(refuses, [0], directory)


if __name__ == "__main__":
    ranks.main()
