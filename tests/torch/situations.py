#!/usr/bin/env python3
"""Situations that trainers of other kinds were reported to get wrong.  On each of two nodes a rank trains with data of its
own; plain PyTorch trains beside it with the data of both, and losses and parameters are compared."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from harness import Skip, case, cases_of  # noqa: E402

import contextlib  # noqa: E402
import importlib.util  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

import zerod.torch as zt  # noqa: E402
from net import WIDTH, Block, fetched, full, loss_of, make, tokens  # noqa: E402

WORLD, STEPS = 2, 4
BLOCKS = 9  # more than the window has places


def close(mine, theirs, what):
    distance = (mine - theirs).norm() / theirs.norm().clamp_min(1e-6)
    assert distance < 1e-4, f"{what}: {distance}"


def one_batch(model, step, rank):
    loss = loss_of(model, WORLD * step + rank)
    loss.backward()
    return loss.detach()


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def nothing(*_):
    pass


def same(build, backward=one_batch, parameters=trained, before=nothing, after=nothing):
    """build() makes the model; backward(model, step, rank) goes backward and gives the loss; before(model, optimizer, step)
    comes ahead of each step, after(plain, model) at the end."""
    def run(rank):
        plain, model = build(), build()
        zt.shard(model, stage=3)
        theirs, mine = torch.optim.AdamW(parameters(plain), lr=1e-2), zt.AdamW(model, parameters(model), lr=1e-2)
        for step in range(STEPS):
            before(plain, theirs, step)
            before(model, mine, step)
            losses = [backward(plain, step, r) for r in range(WORLD)]
            close(backward(model, step, rank), losses[rank], f"loss of step {step}")
            for p in plain.parameters():
                if p.grad is not None:
                    p.grad /= WORLD
            theirs.step()
            mine.step()
            plain.zero_grad()
            mine.zero_grad()
            assert not fetched(model), fetched(model)
        got = full(model)
        for name, p in plain.named_parameters(remove_duplicate=False):
            close(got.pop(name), p.detach(), name)
        assert not got, got.keys()
        after(plain, model)
    ranks.run(run, [0, 1], ranks.shared(2))


def net(kind=Block):
    model = make(blocks=BLOCKS)
    for i in range(BLOCKS):
        model.blocks[i] = kind()
    return model


# ---- models ------------------------------------------------------------------------


class Equilibrium(nn.Module):
    """A deep equilibrium network: forward finds a fixed point without a graph, and a hook within backward solves for its
    gradient, by many backward passes of one application."""

    def __init__(self):
        super().__init__()
        self.state, self.input = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.state.weight.data *= 0.5  # it contracts

    def apply_once(self, z, x):
        return torch.tanh(self.state(z) + self.input(x))

    @staticmethod
    def solve(function, z):
        for _ in range(12):
            z = function(z)
        return z

    def forward(self, x):
        with torch.no_grad():
            z = self.solve(lambda z: self.apply_once(z, x), torch.zeros_like(x))
        z = self.apply_once(z, x)
        if z.requires_grad:
            start = z.detach().requires_grad_()
            once = self.apply_once(start, x)
            z.register_hook(lambda gradient: self.solve(
                lambda g: torch.autograd.grad(once, start, g, retain_graph=True)[0] + gradient, gradient))
        return x + z


class Recomputed(torch.autograd.Function):
    """Keeps its output alone; backward finds the input from it, and has a backward pass for each half."""

    @staticmethod
    def forward(ctx, x, f, g):
        a, b = x.chunk(2, -1)
        a = a + f(b)
        b = b + g(a)
        ctx.halves = f, g
        out = torch.cat([a, b], -1)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, gradient):
        f, g = ctx.halves
        a, b = (half.detach().requires_grad_() for half in ctx.saved_tensors[0].chunk(2, -1))
        of_a, of_b = gradient.chunk(2, -1)
        with torch.enable_grad():
            added = g(a)
        torch.autograd.backward(added, of_b)
        of_a = of_a + a.grad
        b = (b - added).detach().requires_grad_()
        with torch.enable_grad():
            added = f(b)
        torch.autograd.backward(added, of_a)
        return torch.cat([of_a, of_b + b.grad], -1), None, None


class Reversible(nn.Module):
    def __init__(self):
        super().__init__()
        self.f, self.g = Block(WIDTH // 2), Block(WIDTH // 2)

    def forward(self, x):
        return Recomputed.apply(x, self.f, self.g)


class Spectral(nn.Module):
    """A real parameter that forward uses as complex numbers."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH // 2 + 1, 2) / 4)

    def forward(self, x):
        return x + torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(self.weight), n=WIDTH)


@cases_of([Equilibrium, Reversible, Spectral], "{0.__name__}")
def network(kind):
    same(lambda: net(kind))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts, self.chosen = nn.ModuleList(Block() for _ in range(3)), 0

    def forward(self, x):
        return self.experts[self.chosen](x)


def routed(model, step, rank):
    """In each step a rank uses one expert of each block, and no rank uses the third."""
    for i, block in enumerate(model.blocks):
        block.chosen = (step + rank + i) % 3
    return one_batch(model, step, rank)


@case
def experts_that_a_rank_does_not_use():
    same(lambda: net(Experts), routed)


# ---- passes ------------------------------------------------------------------------


@cases_of([False, True], "no_sync_{0}")
def ranks_have_unequal_numbers_of_micro_batches(no_sync):
    def backward(model, step, rank):
        """None and two, one and three, two and none, three and one."""
        total, count = torch.zeros(()), (step + 2 * rank) % 4
        for micro in range(count):
            kept = no_sync and micro < count - 1 and isinstance(model, zt.ZeroModule)
            with model.no_sync() if kept else contextlib.nullcontext():
                loss = loss_of(model, 100 * step + 10 * rank + micro) / count
                loss.backward()
            total += loss.detach()
        return total
    same(net, backward)


@case
def saved_tensors_are_kept_elsewhere():
    def backward(model, step, rank):
        with torch.autograd.graph.save_on_cpu():
            loss = loss_of(model, WORLD * step + rank)
        loss.backward()
        return loss.detach()
    same(net, backward)


# ---- what comes later --------------------------------------------------------------


@case
def a_param_group_is_added_later():
    """Its step count, and so its bias correction, begins with it; what it had as gradients before is gone."""
    def before(model, optimizer, step):
        if step == 2:
            optimizer.add_param_group({"params": [*model.head.parameters(), *model.blocks[3].parameters()], "lr": 3e-2})
    same(net, before=before, parameters=lambda m: [*m.embed.parameters(), *m.blocks[1].parameters()])


@case
def two_adapters_of_peft_in_one_pass():
    """Training adds them up; evaluation takes the one or the other by row."""
    if importlib.util.find_spec("peft") is None:
        raise Skip("no peft")
    import peft
    config = peft.LoraConfig(r=2, target_modules=["up", "down"], init_lora_weights=False)

    def build():
        model = peft.get_peft_model(net(), config, "one")
        model.add_adapter("two", config)
        model.base_model.set_adapter(["one", "two"])
        return model

    def after(plain, model):
        names = {n.split(".")[-2] for n, p in plain.named_parameters() if p.requires_grad}
        assert names == {"one", "two"}, names
        with torch.no_grad():
            theirs, mine = (m.eval()(tokens(9), adapter_names=["one", "two", "__base__", "two"]) for m in (plain, model))
        for row in range(4):
            close(mine[row], theirs[row], f"row {row}")
    same(build, after=after)


class Rows:
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return tokens(i)[0]


def epochs():
    while True:
        yield from DataLoader(Rows(), 4, num_workers=2, multiprocessing_context="fork")


@case
def workers_of_a_dataloader_are_forked_while_it_trains():
    """Two workers for each epoch of two batches."""
    loaded = epochs()  # begins in each rank

    def backward(model, step, rank):
        first = 4 * (step % 2)
        batch = next(loaded) if isinstance(model, zt.ZeroModule) else torch.stack([Rows()[i] for i in range(first, first + 4)])
        loss = model(batch.roll(rank, 1)).square().mean()
        loss.backward()
        return loss.detach()
    same(net, backward, after=lambda *_: loaded.close())


if __name__ == "__main__":
    ranks.main()
