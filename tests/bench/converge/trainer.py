"""One rank of a run of tests/bench/converge.

    trainer.py offers       prints the formats' arguments that zerod.torch has: a list in JSON
    trainer.py '{...}'      trains; rank 0 prints a line of JSON for each validation, the last one with the states' bytes

Parameters are bf16, and so are gradients.  Activations are fp32: PyTorch's bf16 kernels take twice the time on a CPU,
and this comparison is one of states.
"""
import inspect
import json
import os
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
sys.path.append(f"{ROOT}/client/examples")
import torch_gpt  # noqa: E402  (its place is known only now)
import zerod  # noqa: E402
import zerod.torch as zt  # noqa: E402
from configurations import BETAS, CLIP, CONFIGURATIONS, SHORT, WEIGHT_DECAY  # noqa: E402


class Linear(nn.Linear):
    def forward(self, x):
        return F.linear(x, self.weight.float(), None if self.bias is None else self.bias.float())


class Embedding(nn.Embedding):
    def forward(self, x):
        return F.embedding(x, self.weight.float())


class LayerNorm(nn.LayerNorm):
    def forward(self, x):
        return F.layer_norm(x, self.normalized_shape, self.weight.float(), self.bias.float(), self.eps)


COMPUTES_IN_FP32 = {nn.Linear: Linear, nn.Embedding: Embedding, nn.LayerNorm: LayerNorm}


def build(job):
    torch.manual_seed(job["seed"])
    model = torch_gpt.GPT(job["layers"], job["heads"], job["width"], job["context"]).bfloat16()
    for module in model.modules():
        module.__class__ = COMPUTES_IN_FP32.get(type(module), type(module))
    return model


def offered(function, formats):
    """Those that this build's function has."""
    return {k: v for k, v in formats.items() if k in inspect.signature(function).parameters}


class Zerod:
    def __init__(self, job, configuration):
        formats, kind = configuration.formats, configuration.optimizer
        self.client = zerod.connect("converge", job["rank"], configuration.ranks, configuration.ranks, job["socket"])
        model = build(job)
        self.count = sum(p.numel() for p in model.parameters())
        named = zt.muon_split(model, split={"*.qkv.weight": 3}) if kind == "muon" else kind
        self.model = zt.shard(model, stage=2, client=self.client, optimizer=named, accumulate=configuration.accumulate,
                              **offered(zt.shard, formats))
        decay, lr = configuration.weight_decay, configuration.lr
        if kind == "muon":
            self.optimizer = zt.Muon(self.model, lr=lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw",
                                     adamw={"lr": lr, "betas": BETAS, "weight_decay": WEIGHT_DECAY})
        else:
            make = zt.Lion if kind == "lion" else zt.AdamW
            self.optimizer = make(self.model, torch_gpt.param_groups(self.model, decay), lr=lr, betas=BETAS,
                                  **offered(make, formats))

    def step(self):
        self.model.clip_grad_norm_(CLIP)
        self.optimizer.step()

    def bytes_of_states(self):
        groups = self.client.query("shards", self.client.job)["jobs"][0]["groups"]
        return sum(sum(s["bytes"].values()) for g in groups for s in g["shards"])

    def end(self):
        self.client.close()


class Alone:
    """torch.optim.AdamW of fp32 copies of a bf16 model's parameters, which no other process shares."""

    def __init__(self, job, configuration):
        self.model = build(job)
        self.count = sum(p.numel() for p in self.model.parameters())
        self.masters = {p: p.detach().float() for p in self.model.parameters()}
        groups = torch_gpt.param_groups(self.model, configuration.weight_decay)
        for group in groups:
            group["params"] = [self.masters[p] for p in group["params"]]
        self.optimizer = torch.optim.AdamW(groups, lr=configuration.lr, betas=BETAS, fused=True)

    @torch.no_grad()
    def step(self):
        for p, master in self.masters.items():
            master.grad, p.grad = p.grad.float(), None
        nn.utils.clip_grad_norm_(self.masters.values(), CLIP)
        self.optimizer.step()
        for p, master in self.masters.items():
            p.copy_(master)

    def bytes_of_states(self):
        kept = [t for p, m in self.masters.items() for t in (p, m, m.grad, *self.optimizer.state[m].values())]
        return sum(t.nbytes for t in kept if t.dim())  # not the counts of steps

    def end(self):
        pass


def loss_of(model, tokens):
    return torch_gpt.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])


@torch.no_grad()
def validation(model, windows):
    return sum(loss_of(model, part).item() for part in windows.chunk(4)) / 4


def train(job):
    configuration = CONFIGURATIONS[SHORT[job["name"]]]
    torch.set_num_threads(job["threads"] if configuration.ranks == 1 else 1)
    text = torch_gpt.Text(job["text"], job["context"])
    windows = text.windows(job["windows"])
    trainer = (Alone if configuration.ranks == 1 else Zerod)(job, configuration)
    steps, parts = job["steps"], configuration.micro_batches
    scheduler = torch.optim.lr_scheduler.LambdaLR(trainer.optimizer,
                                                  lambda t: torch_gpt.schedule(t, steps, max(1, steps // 10)))

    def tell(done, held_out, **more):
        print(json.dumps({"step": done, "loss": validation(trainer.model, held_out), **more}), flush=True)

    times, cpu = [], []
    for t in range(job["until"]):
        if job["rank"] == 0 and t % job["every"] == 0:
            tell(t, windows[::4])
        begin, used = time.monotonic(), time.process_time()
        batch = text.batch(job["seed"], t, job["batch"]).chunk(configuration.ranks)[job["rank"]]
        for part in batch.chunk(parts):
            (loss_of(trainer.model, part) / parts).backward()
        trainer.step()
        scheduler.step()
        times.append(time.monotonic() - begin)
        cpu.append(time.process_time() - used)
    if job["rank"] == 0:
        tell(job["until"], windows, step_s=statistics.median(times), step_cpu_s=statistics.median(cpu),
             bytes=trainer.bytes_of_states() / trainer.count, parameters=trainer.count,
             torch=torch.__version__, zerod=zerod.__version__)
    trainer.end()


if __name__ == "__main__":
    if sys.argv[1] == "offers":
        print(json.dumps([name for f in (zt.shard, zt.AdamW) for name in offered(f, {"state": 0, "master": 0})]))
    else:
        train(json.loads(sys.argv[1]))
