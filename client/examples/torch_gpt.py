#!/usr/bin/env python3
"""A small byte-level GPT, trained by any number of ranks; its state is in zerod.

On this machine, with two nodes and two ranks:

    ./deploy/local-cluster.sh --nodes 2 --ranks 2 client/examples/torch_gpt.py

With --tensor-parallel 2, two ranks divide the layers of each block; with --layer-by-layer --accumulate 4, all four
micro-batches of a step pass a block while it is there, and zerod keeps their inputs.

On nodes where zerod runs, under any launcher that sets torchrun's variables, or Slurm's:

    torchrun --nnodes 2 --nproc-per-node 4 --rdzv-id my-run --rdzv-backend c10d \
        --rdzv-endpoint HOST:29500 torch_gpt.py --text FILE

Lines marked with zerod: are those that differ from a trainer without it.  There is no checkpoint to
load after a crash: parameters, moments and the number of steps are in the service.  A rank that
dies is started again by torchrun --max-restarts, or by hand with the same command under the same
job name, and takes its place in the step that the others are in; a zerod that dies is waited for.
Whatever happens, the result is the same.
"""
import argparse
import glob
import math
import time

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

import zerod.torch

VOCABULARY = 256  # bytes


class Block(nn.Module):
    """Pre-LayerNorm: causal attention, then a GELU layer of four times the width."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """tokens (batch, length), int64 -> mean cross entropy in nats of each token after the first."""

    def __init__(self, layers: int, heads: int, width: int, context: int):
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                into_residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * layers) if into_residual else 0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        x = self.token(inputs) + self.position(torch.arange(inputs.shape[1], device=inputs.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class Text:
    """Bytes of one file, or of all; the last tenth is for validation."""

    def __init__(self, paths: list[str], context: int):
        text = bytearray()
        for path in paths:
            with open(path, "rb") as f:
                text += f.read()
        if len(text) < 20 * (context + 1):
            raise SystemExit(f"{len(text)} bytes of text are too few for a context of {context}")
        self.context = context
        whole = torch.frombuffer(text, dtype=torch.uint8)
        self.train, self.validation = whole.split([len(text) - len(text) // 10, len(text) // 10])

    def sequences(self, part: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
        """(number of begins, context + 1), int64."""
        return part[begins[:, None] + torch.arange(self.context + 1)].long()

    def batch(self, seed: int, step: int, size: int) -> torch.Tensor:
        """The same for a seed and a step, however many ranks there are."""
        draw = torch.Generator().manual_seed(seed * 1_000_003 + step)
        begins = torch.randint(len(self.train) - self.context, (size,), generator=draw)
        return self.sequences(self.train, begins)

    def windows(self, count: int) -> torch.Tensor:
        """Evenly spaced in the validation part."""
        last = len(self.validation) - self.context - 1
        return self.sequences(self.validation, torch.linspace(0, last, count).long())


def param_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Matrices decay; biases and norms do not."""
    decays = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": decays, "weight_decay": weight_decay},
            {"params": others, "weight_decay": 0.0}]


def schedule(step: int, steps: int, warmup: int) -> float:
    """Linear warm-up, then half a cosine down to a tenth."""
    if step < warmup:
        return (step + 1) / warmup
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


@torch.no_grad()
def validation_loss(model: nn.Module, text: Text, count: int, batch: int) -> float:
    """By one replica alone: a fetch is no collective, and the others wait in their next step."""
    model.eval()
    parts = text.windows(count).to(next(model.parameters()).device).split(batch)
    total = sum(len(p) * model(p).item() for p in parts)
    model.train()
    return total / count


def divide(model: GPT, ranks: int) -> DeviceMesh:
    """Divides the wide layer of each block among so many ranks; the mesh of all ranks."""
    distributed.init_process_group("gloo")
    if distributed.get_world_size() % ranks:
        raise SystemExit(f"--tensor-parallel {ranks} does not divide {distributed.get_world_size()} ranks")
    mesh = init_device_mesh("cpu", (distributed.get_world_size() // ranks, ranks), mesh_dim_names=("dp", "tp"))
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return mesh


def train(args: argparse.Namespace) -> None:
    text = Text(args.text, args.context)
    torch.manual_seed(args.seed)
    model = GPT(args.layers, args.heads, args.width, args.context)
    mesh = divide(model, args.tensor_parallel) if args.tensor_parallel > 1 else None
    inputs = args.batch * args.context * args.width * 4  # bytes of a block's, at most
    # zerod: groups are the blocks, and the rest
    model = zerod.torch.shard(model, stage=args.stage, device=args.device, mesh=mesh,
                              stash=2 * args.layers * inputs if args.layer_by_layer else None)
    client = model.sharded.client
    replicas = client.world_size // args.tensor_parallel  # ranks with batches of their own
    replica = client.rank // args.tensor_parallel
    validates = replica == 0  # with its partners, if it has any
    layers = zerod.torch.LayerByLayer(model, model.blocks, args.accumulate) if args.layer_by_layer else None
    optimizer = zerod.torch.AdamW(model, param_groups(model, args.weight_decay), lr=args.lr,
                                  betas=(0.9, 0.95))  # zerod: the model comes first
    first = model.sharded.steps_made  # zerod: by the job; 0 for a new one
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: schedule(t, args.steps, args.warmup))
    if args.batch % (replicas * args.accumulate):
        raise SystemExit(f"--batch {args.batch} is no multiple of {replicas} ranks times "
                         f"{args.accumulate} micro-batches")

    def report(step: int, **values: float) -> None:
        if client.rank == 0:
            told = [f"{k} {v:,.0f}" if v >= 100 else f"{k} {v:.4g}" for k, v in values.items()]
            print(f"step {step}/{args.steps}  " + "  ".join(told), flush=True)

    if client.rank == 0:
        print(f"job {client.job}: {sum(p.numel() for p in model.parameters()):,} parameters, "
              f"{client.world_size} ranks" + (f", goes on after step {first}" if first else ""))
    if validates:
        report(first, validation=validation_loss(model, text, args.windows, args.batch))
    began, since = time.monotonic(), first
    # zerod: steps() begins where the job stands, and steps the scheduler; a step during which
    # something dies ends without an exception, and comes again with the same number
    for step in zerod.torch.steps(model, until=args.steps, scheduler=scheduler, seed=args.seed):
        with step as done:
            batch = text.batch(args.seed, done, args.batch).to(args.device)
            batch, loss = batch.chunk(replicas)[replica], 0.0
            if layers:
                loss = layers.forward_backward(lambda m, part: m(part) / args.accumulate, batch).sum().item()
            for part in () if layers else batch.chunk(args.accumulate):
                part_loss = model(part) / args.accumulate
                part_loss.backward()  # zerod: pushes each block's gradient when it is complete
                loss += part_loss.item()
            model.clip_grad_norm_(args.clip)  # zerod: a method of the model
            optimizer.step()
        if step.aborted:
            continue
        done += 1
        if done % args.log_every == 0:
            now = time.monotonic()
            tokens = (done - since) * args.batch * args.context
            report(done, loss=loss, grad_norm=optimizer.grad_norm,
                   lr=scheduler.get_last_lr()[0], **{"tokens/s": tokens / (now - began)})
            began, since = now, done
        if validates and args.eval_every and done % args.eval_every == 0:
            report(done, validation=validation_loss(model, text, args.windows, args.batch))
    if validates:
        loss = validation_loss(model, text, args.windows, args.batch)
    if client.rank == 0:
        print(f"torch_gpt: validation loss {loss:.4f} nats/byte, {max(first, args.steps)} steps")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a byte-level GPT whose state is in zerod.",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--text", nargs="+", metavar="FILE", default=None,
        help="bytes to learn; none: the quotations of Debian's package fortunes")
    add("--steps", type=int, default=300, help="of the job, those made before included")
    add("--batch", type=int, default=32, help="sequences a step, of all ranks together")
    add("--accumulate", type=int, default=1, help="micro-batches a step")
    add("--tensor-parallel", type=int, default=1, metavar="RANKS", help="that divide the layers of each block")
    add("--layer-by-layer", action="store_true", help="all micro-batches pass a block together; their inputs go to zerod")
    add("--stage", type=int, default=3, choices=(1, 2, 3), help="ZeRO stage")
    add("--device", default="cpu", help="cpu, or cuda:N, which the node's zerod has too")
    add("--layers", type=int, default=4, help="blocks")
    add("--heads", type=int, default=4, help="attention heads")
    add("--width", type=int, default=128, help="of the residual stream")
    add("--context", type=int, default=64, help="bytes a prediction may look at")
    add("--lr", type=float, default=3e-3, help="highest learning rate")
    add("--warmup", type=int, default=20, help="steps until it is reached")
    add("--weight-decay", type=float, default=0.1, help="of matrices")
    add("--clip", type=float, default=1.0, help="to this gradient norm")
    add("--seed", type=int, default=0, help="of first values and batches")
    add("--windows", type=int, default=256, help="sequences of a validation")
    add("--eval-every", type=int, default=100, help="steps; 0: only before and after")
    add("--log-every", type=int, default=25, help="steps")
    args = parser.parse_args()
    if args.text is None:
        names = sorted(glob.glob("/usr/share/games/fortunes/*"))
        args.text = [n for n in names if not n.endswith((".dat", ".u8"))]
    if not args.text:
        parser.error("which --text? The package fortunes is not installed")
    return args


if __name__ == "__main__":
    train(arguments())
