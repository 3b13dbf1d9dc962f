"""The model that the suites of this folder wrap, and its training beside plain PyTorch's."""
import ranks  # first: it goes on under a Python that has PyTorch

import torch
import torch._dynamo  # noqa: F401  once, in the parent of all ranks
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import zerod.torch as zt

WIDTH = 24


class Block(nn.Module):
    def __init__(self, width=WIDTH, inside=False):
        super().__init__()
        self.inside = inside  # checkpoint a part of the block
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def change(self, x):
        return self.down(F.gelu(self.up(self.norm(x))))

    def forward(self, x):
        return x + (checkpoint(self.change, x, use_reentrant=False) if self.inside else self.change(x))


class Net(nn.Module):
    """mode: how forward walks over the blocks."""

    def __init__(self, blocks=3, mode="plain", tied=False):
        super().__init__()
        self.mode = mode
        self.embed = nn.Embedding(11, WIDTH)
        self.blocks = nn.ModuleList(Block(inside=mode == "inside") for _ in range(blocks))
        self.head = nn.Linear(WIDTH, 11, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        for i, block in enumerate(self.blocks):
            if self.mode == "reentrant":
                x = checkpoint(block, x, use_reentrant=True)
            elif self.mode == "nonreentrant":
                x = checkpoint(block, x, use_reentrant=False)
            elif self.mode == "twice":
                x = block(block(x))
            elif self.mode == "skip" and i == 1:
                continue
            else:
                x = block(x)
        return self.head(x)


def tokens(step, n=6):
    g = torch.Generator().manual_seed(step)
    return torch.randint(0, 11, (4, n), generator=g)


def loss_of(model, step):
    t = tokens(step)
    return F.cross_entropy(model(t[:, :-1]).flatten(0, 1), t[:, 1:].flatten())


def train(model, optimizer, steps=4, backward=None):
    losses = []
    for step in range(steps):
        loss = backward(model, step) if backward else loss_of(model, step)
        if not backward:
            loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def make(seed=0, **options):
    torch.manual_seed(seed)
    return Net(**options)


def fetched(model):
    return [u.name for u in zt.sharded_of(model).units if u.fetched]


def full(model):
    with zt.full_params(model):
        return {n: p.detach().clone() for n, p in model.named_parameters(remove_duplicate=False)}


def both(stage, options, backward=None, steps=4, prepare=None, shard_options=None):
    """The parameters after some steps by plain PyTorch and by zerod; both trained alike."""
    prepare = prepare or (lambda model: model)
    plain = prepare(make(**options))
    reference = train(plain, torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], lr=1e-2),
                      steps, backward)
    model = prepare(make(**options))
    zt.shard(model, stage=stage, **(shard_options or {}))
    losses = train(model, zt.AdamW(model, lr=1e-2), steps, backward)
    assert stage < 3 or not fetched(model), fetched(model)
    return reference, dict(plain.named_parameters(remove_duplicate=False)), losses, full(model)


def same(stage, options, **more):
    reference, want, losses, got = both(stage, options, **more)
    assert max(abs(a - b) for a, b in zip(reference, losses)) < 1e-4, (reference, losses)
    assert sorted(want) == sorted(got)
    for name, value in want.items():
        distance = (got[name] - value).norm() / value.norm().clamp_min(1e-6)
        assert distance < 2e-3, f"{name}: {distance}"


def in_rank(function, *arguments, ranks_=1, nodes=1):
    return ranks.run(lambda rank: function(*arguments), ranks_, ranks.shared(nodes))
