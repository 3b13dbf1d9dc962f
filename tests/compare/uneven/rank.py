"""One rank of uneven work: rank.py SYSTEM CONFIGURATION

The rank trains on its own sequences, whose lengths have a long tail, and says how long a step takes: {"event": "step",
"at": seconds} a line, and {"event": "done", "digest": of all parameters} at the end.

The blocks' arithmetic is small.  A pause of `pause` seconds a token stands for the rest, so that four ranks have a
processor each on a machine that has two.
"""
import hashlib
import json
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "systems"))
import torch  # noqa: E402
from torch import nn  # noqa: E402

import ours  # noqa: E402
import peers  # noqa: E402
import work  # noqa: E402

WIDTH, BLOCKS = 64, 6
ADAMW = {"lr": 1e-3}
BACKWARD = 2  # times a forward pass


class Pause(torch.autograd.Function):
    """Stands for a block's arithmetic: `seconds` forward, twice that backward."""
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        time.sleep(BACKWARD * ctx.seconds)
        return grad, None


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, seconds):
        return x + self.down(torch.relu(self.up(Pause.apply(x, seconds))))


class Model(nn.Module):
    def __init__(self, pause):
        super().__init__()
        self.pause = pause
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x, self.pause * len(x) / BLOCKS)
        return self.head(x).square().sum()


def data(step, rank, i, tokens):
    return torch.randn(tokens, WIDTH, generator=torch.Generator().manual_seed(1000 * (1009 * step + rank) + i))


class Rank:
    def __init__(self, config, trainer):
        self.config, self.trainer = config, trainer
        self.rank, self.world = config["rank"], config["world"]

    def step(self, step):
        """The batch's gradient is the mean over its tokens, whoever has them.  Where collectives must match, ranks agree
        on the number of micro-batches, and those that have fewer run empty ones."""
        every = work.tokens(step, self.world, self.config["uneven"])
        total, mine = sum(map(sum, every)), every[self.rank]
        rounds = max(map(len, every)) if self.config["lockstep"] else len(mine)
        for i in range(rounds):
            tokens = mine[i] if i < len(mine) else 0
            x = data(step, self.rank, i, max(tokens, 1)).requires_grad_()  # or the first block has no backward pass
            with self.trainer.micro_batch(last=i == rounds - 1):
                loss = self.trainer.model(x) * (self.world / total) * (tokens > 0)
                self.trainer.backward(loss)
        self.trainer.update()


def main():
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print
    system, config = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    config.update(adamw=ADAMW, sequences=1)
    trainer = {**peers.SYSTEMS, "zerod": ours.Zerod}[system](config, Model(config["pause"]))
    rank = Rank(config, trainer)
    for step in range(config["steps"]):
        rank.step(step)
        print(json.dumps({"event": "step", "at": time.monotonic()}), file=events, flush=True)
    whole = trainer.parameters()
    digest = hashlib.sha256(b"".join(whole[name].detach().numpy().tobytes() for name in sorted(whole))).hexdigest()
    print(json.dumps({"event": "done", "digest": digest}), file=events, flush=True)
    trainer.end()


if __name__ == "__main__":
    main()
