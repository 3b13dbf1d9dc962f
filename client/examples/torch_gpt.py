#!/usr/bin/env python3
"""A small byte-level GPT, trained by any number of ranks; its state is in zerod.

On this machine, with two nodes and two ranks:

    ./deploy/local-cluster.sh --nodes 2 --ranks 2 client/examples/torch_gpt.py

Ways to divide the model among two ranks, or 2 x data parallel among more of them:

    --tensor-parallel 2                 the wide layers of each block
    --pipeline-parallel 2               the blocks; a step's micro-batches pass two stages
    --experts 4 --expert-parallel 2     the experts that stand in place of a block's wide layers

With --layer-by-layer --accumulate 4, all four micro-batches of a step pass a block while it is there, and zerod keeps
their inputs.

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
from collections.abc import Callable

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

import zerod.torch

VOCABULARY = 256  # bytes


class Experts(nn.Module):
    """GELU layers, of which each token passes the one that a router prefers (arXiv 2101.03961)."""

    def __init__(self, width: int, experts: int):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, width, 4 * width))
        self.down = nn.Parameter(torch.empty(experts, 4 * width, width))
        self.mesh: DeviceMesh | None = None

    def divide(self, mesh: DeviceMesh) -> None:
        """Each rank keeps its part of the experts; ranks send one another their tokens."""
        self.mesh = mesh
        for name in ("up", "down"):
            whole = getattr(self, name).detach()
            setattr(self, name, nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)])))

    def of_all(self, x: torch.Tensor) -> torch.Tensor:
        """The tensor's rows of all ranks of the mesh."""
        whole = DTensor.from_local(x, self.mesh, [Shard(0)], run_check=False)
        return whole.full_tensor(grad_placements=[Partial()])

    def run(self, x: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        """This rank's experts; zeros for the tokens of others."""
        up, down = (p.to_local() if isinstance(p, DTensor) else p for p in (self.up, self.down))
        first = self.mesh.get_local_rank() * len(up) if self.mesh else 0
        out = torch.zeros_like(x)
        for i in range(len(up)):
            mine = which == first + i
            out[mine] = F.gelu(x[mine] @ up[i]) @ down[i]
        return out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chance, which = self.router(x).softmax(-1).max(-1)
        if self.mesh is None:
            out = self.run(x, which)
        else:
            out = DTensor.from_local(self.run(self.of_all(x), self.of_all(which)), self.mesh, [Partial()], run_check=False)
            out = out.redistribute(placements=[Shard(0)]).to_local()
        return out * chance[..., None]


class Block(nn.Module):
    """Pre-LayerNorm: causal attention, then a GELU layer of four times the width, or one of several."""

    def __init__(self, width: int, heads: int, experts: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.experts = Experts(width, experts) if experts else None
        if not experts:
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm1(x))
        y = self.norm2(x)
        return x + (self.experts(y) if self.experts else self.down(F.gelu(self.up(y))))


class GPT(nn.Module):
    """tokens (batch, length), int64 -> logits (batch, length, VOCABULARY); the head has the embedding's weight."""

    def __init__(self, layers: int, heads: int, width: int, context: int, experts: int = 0):
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, experts) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.token.weight
        for name, p in self.named_parameters():
            if p.dim() > 1:
                into_residual = name.endswith(("out.weight", "down.weight", "down"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * layers) if into_residual else 0.02)

    def keep_stage(self, stage: int, stages: int) -> None:
        """Leaves the modules of one stage of a pipeline, under their names in the whole model."""
        for i in range(len(self.blocks)):
            if i * stages // len(self.blocks) != stage:
                self.blocks[i] = nn.Identity()
        if stage > 0:
            self.token = self.position = None
        if stage < stages - 1:
            self.norm = self.head = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.token is not None:
            x = self.token(x) + self.position(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean in nats a token."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Of each token after the first."""
    return cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])


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


def divide(model: GPT, kind: str, ranks: int) -> DeviceMesh:
    """Divides the model among so many ranks; the mesh of all ranks.  kind: tp, pp or ep."""
    distributed.init_process_group("gloo")
    world = distributed.get_world_size()
    if world % ranks:
        raise SystemExit(f"a model divided among {ranks} ranks needs a multiple of them, not {world}")
    mesh = init_device_mesh("cpu", (world // ranks, ranks), mesh_dim_names=("dp", kind))
    if kind == "pp":
        model.keep_stage(mesh.get_local_rank("pp"), ranks)
    for block in model.blocks:
        if kind == "tp":
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        elif kind == "ep":
            block.experts.divide(mesh["ep"])
    return mesh


class Pipeline:
    """The stages of a model, of which this rank has one."""

    def __init__(self, model: nn.Module, mesh: DeviceMesh, micro_batches: int):
        self.group, self.number, self.last = mesh.get_group(), mesh.get_local_rank(), mesh.size() - 1
        stage = PipelineStage(model, self.number, mesh.size(), torch.device("cpu"), group=self.group)
        self.schedule = Schedule1F1B(stage, micro_batches, loss_fn=lambda *of: cross_entropy(*of) / micro_batches,
                                     scale_grads=False)  # zerod: the service has the gradients

    def run(self, step: Callable[..., object], tokens: torch.Tensor) -> float:
        """step: the schedule's, or its eval(); the loss, on all stages."""
        losses: list[torch.Tensor] = []
        inputs = [tokens[:, :-1]] if self.number == 0 else []
        step(*inputs, **({"target": tokens[:, 1:], "losses": losses} if self.number == self.last else {}))
        loss = sum(losses, torch.zeros(())).detach()
        distributed.broadcast(loss, group=self.group, group_src=self.last)
        return loss.item()


def train(args: argparse.Namespace) -> None:
    text = Text(args.text, args.context)
    torch.manual_seed(args.seed)
    model = GPT(args.layers, args.heads, args.width, args.context, args.experts)
    size = sum(p.numel() for p in model.parameters())
    mesh = divide(model, args.kind, args.parts) if args.kind else None
    inputs = args.batch * args.context * args.width * 4  # bytes of a block's, at most
    # zerod: groups are the blocks, and the rest
    model = zerod.torch.shard(model, stage=args.stage, device=args.device, mesh=mesh,
                              data=("dp", "ep") if args.kind == "ep" else None,
                              pipeline="pp" if args.kind == "pp" else None,
                              tied=[("token.weight", "head.weight")] if args.kind == "pp" else (),
                              stash=2 * args.layers * inputs if args.layer_by_layer else None)
    client = model.sharded.client
    shared = 1 if args.kind == "ep" else args.parts  # ranks that have a batch together
    replicas, replica = client.world_size // shared, client.rank // shared
    validates = client.rank < args.parts
    pipeline = Pipeline(model, mesh["pp"], args.accumulate) if args.kind == "pp" else None
    layers = zerod.torch.LayerByLayer(model, model.blocks, args.accumulate) if args.layer_by_layer else None
    optimizer = zerod.torch.AdamW(model, param_groups(model, args.weight_decay), lr=args.lr,
                                  betas=(0.9, 0.95))  # zerod: the model comes first
    first = model.sharded.steps_made  # zerod: by the job; 0 for a new one
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: schedule(t, args.steps, args.warmup))
    if args.batch % (replicas * args.accumulate):
        raise SystemExit(f"--batch {args.batch} is no multiple of {replicas} ranks times "
                         f"{args.accumulate} micro-batches")
    if pipeline and args.windows % (args.batch // replicas):
        raise SystemExit(f"--windows {args.windows} is no multiple of the {args.batch // replicas} sequences that pass a "
                         "pipeline at once")

    @torch.no_grad()
    def validation_loss() -> float:
        """By one replica alone: a fetch is no collective, and the others wait in their next step."""
        model.eval()
        total = 0.0
        for part in text.windows(args.windows).to(args.device).split(args.batch // replicas):
            total += len(part) * (pipeline.run(pipeline.schedule.eval, part) if pipeline else loss_of(model, part).item())
        model.train()
        return total / args.windows

    def report(step: int, **values: float) -> None:
        if client.rank == 0:
            told = [f"{k} {v:,.0f}" if v >= 100 else f"{k} {v:.4g}" for k, v in values.items()]
            print(f"step {step}/{args.steps}  " + "  ".join(told), flush=True)

    if client.rank == 0:
        print(f"job {client.job}: {size:,} parameters, "
              f"{client.world_size} ranks" + (f", goes on after step {first}" if first else ""))
    if validates:
        report(first, validation=validation_loss())
    began, since = time.monotonic(), first
    # zerod: steps() begins where the job stands, and steps the scheduler; a step during which
    # something dies ends without an exception, and comes again with the same number
    for step in zerod.torch.steps(model, until=args.steps, scheduler=scheduler, seed=args.seed):
        with step as done:
            batch = text.batch(args.seed, done, args.batch).to(args.device)
            batch, loss = batch.chunk(replicas)[replica], 0.0
            if layers:
                loss = layers.forward_backward(lambda m, part: loss_of(m, part) / args.accumulate, batch).sum().item()
            if pipeline:
                loss = pipeline.run(pipeline.schedule.step, batch)
            for part in () if layers or pipeline else batch.chunk(args.accumulate):
                part_loss = loss_of(model, part) / args.accumulate
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
            report(done, validation=validation_loss())
    if validates:
        loss = validation_loss()
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
    add("--experts", type=int, default=0, help="of each block; 0: none, but a layer that all tokens pass")
    divided = parser.add_mutually_exclusive_group()
    for way, what in ("tensor", "the layers of each block"), ("pipeline", "the blocks"), ("expert", "the experts"):
        divided.add_argument(f"--{way}-parallel", type=int, default=1, metavar="RANKS", help=f"that divide {what}")
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
    ways = {"tp": args.tensor_parallel, "pp": args.pipeline_parallel, "ep": args.expert_parallel}
    args.kind, args.parts = next((way for way in ways.items() if way[1] > 1), (None, 1))
    if args.kind == "pp":
        args.accumulate = max(args.accumulate, args.parts)  # all stages have something to do
        if args.layer_by_layer:
            parser.error("--layer-by-layer and --pipeline-parallel exclude each other")
    if args.experts % args.expert_parallel or args.kind == "ep" and not args.experts:
        parser.error("--expert-parallel divides --experts")
    if args.kind == "tp" and args.experts:
        parser.error("--tensor-parallel divides no --experts: --expert-parallel does")
    if args.text is None:
        names = sorted(glob.glob("/usr/share/games/fortunes/*"))
        args.text = [n for n in names if not n.endswith((".dat", ".u8"))]
    if not args.text:
        parser.error("which --text? The package fortunes is not installed")
    return args


if __name__ == "__main__":
    train(arguments())
