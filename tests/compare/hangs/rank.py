"""One rank of a situation in which training is known to hang: rank.py SYSTEM SITUATION CONFIGURATION

A situation is what one rank's script does otherwise than the other's.  Each is a function of a Rank, written once for all
systems.  Prints a line of JSON for each event, with the moment on the clock that all processes share:

    {"event": "deed"}    the ranks differ from here on
    {"event": "refused"} an error ended this rank's script, with its text
    {"event": "done"}    the script came to its end, with a loss that is the same on all ranks if they learned the same
"""
import json
import os
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "systems"))
import torch  # noqa: E402
from torch import nn  # noqa: E402

import ours  # noqa: E402
import peers  # noqa: E402

WIDTH, ROWS, STEPS, ODD = 32, 8, 5, 2  # ODD: the step in which ranks differ
SETTLE_S, AWAY_S = 1, 600
ALL = (0, 1, 2)
ADAMW = {"lr": 1e-2}


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    """A residual network of blocks.  `use` lists the blocks that a pass runs, in that order: as experts that a router
    chose, a branch for images, or layers that do not depend on each other."""
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Tower() for _ in range(3))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x, use=ALL, fail=False):
        y = x
        for i in use:
            y = y + self.blocks[i](x)
            if fail:
                raise MemoryError("out of memory")
        return self.head(y).square().mean()


def batch(step, rank):
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(97 * step + rank))


class Together:
    """What training should come to: the ranks are threads that share a model, and a step waits for both."""
    def __init__(self, world):
        self.world, self.model = world, Model()
        self.optimizer = peers.adamw(self.model, {"adamw": ADAMW})
        self.turn, self.all = threading.Lock(), threading.Barrier(world)

    def backward(self, loss):
        with self.turn:
            (loss / self.world).backward()

    def update(self):
        if self.all.wait() == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.all.wait()

    def parameters(self):
        return dict(self.model.named_parameters())

    def end(self):
        pass


class Rank:
    def __init__(self, rank, world, system):
        self.rank, self.world, self.system = rank, world, system

    @property
    def odd(self):
        """This rank is the one that differs."""
        return self.rank == self.world - 1

    def pass_(self, step, **how):
        self.system.backward(self.system.model(batch(step, self.rank), **how))

    def train(self, steps=STEPS, even=ALL, odd=ALL):
        """even, odd: the blocks of a pass from the step ODD on."""
        for step in range(steps):
            use = ALL
            if step == ODD:
                deed()
            if step >= ODD:
                use = odd if self.odd else even
            self.pass_(step, use=use)
            self.system.update()

    def loss(self):
        """Of a batch that is the same on all ranks, and the last that uses the model."""
        with torch.no_grad():
            return float(self.system.model(batch(0, 0)))


# ---- situations ----


def experts(r):
    """a router sends one rank's tokens to other experts"""
    r.train(even=(0, 2), odd=(0, 1))


def branch(r):
    """one rank's batch has no images, so the images' branch does not run"""
    r.train(odd=(0, 1))


def order(r):
    """one rank runs layers that do not depend on each other in another order"""
    r.train(odd=(2, 1, 0))


def micro_batches(r):
    """one rank has one micro-batch more in a step"""
    for step in range(STEPS):
        if step == ODD:
            deed()
            if r.odd:
                r.pass_(100)
        r.pass_(step)
        r.system.update()


def validation(r):
    """one rank has a validation batch more"""
    r.train(ODD)
    deed()
    with torch.no_grad():
        for i in range(2 if r.odd else 1):
            r.system.model(batch(200 + i, r.rank))
    r.train(ODD)


def epoch(r):
    """one rank's data end a step earlier"""
    r.train(ODD)
    deed()
    if not r.odd:
        r.train(1)


def exception(r):
    """one rank catches an error amid its forward pass and does that batch again"""
    for step in range(STEPS):
        if step == ODD:
            deed()
            if r.odd:
                try:
                    r.pass_(step, fail=True)
                except MemoryError:
                    pass
        r.pass_(step)
        r.system.update()


def save(r):
    """rank 0 alone reads all parameters, to save them"""
    r.train(ODD)
    deed()
    if r.rank == 0:
        r.system.parameters()
    r.train(ODD)


def killed(r):
    """a rank is killed amid a step"""
    r.train(ODD)
    deed()
    if r.odd:
        os.kill(os.getpid(), signal.SIGKILL)
    r.train(ODD)


def stuck(r):
    """a rank waits for its data loader for minutes"""
    r.train(ODD)
    deed()
    if r.odd:
        time.sleep(AWAY_S)
    r.train(ODD)


SITUATIONS = {f.__name__: f for f in (experts, branch, order, micro_batches, validation, epoch, exception, save,
                                      killed, stuck)}
EVENTS = None


def say(event, **more):
    print(json.dumps({"event": event, "at": time.monotonic(), **more}), file=EVENTS, flush=True)


def deed():
    """Until then no rank waits, and zeroctl status has seen that."""
    time.sleep(SETTLE_S)
    say("deed")


def run(r, situation):
    try:
        SITUATIONS[situation](r)
        say("done", loss=r.loss())
        r.system.end()
    except Exception as error:
        say("refused", text=f"{type(error).__name__}: {error}")
        raise


def main():
    global EVENTS  # pylint: disable=global-statement
    EVENTS = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print
    system, situation, config = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    config.update(adamw=ADAMW, sequences=ROWS, stage=3, deepspeed={"stage3_param_persistence_threshold": 0})
    rank, world = config["rank"], config["world"]
    if system == "together":
        made = Together(world)
        threading.Thread(target=run, args=(Rank(1, world, made), situation)).start()
    else:
        made = {**peers.SYSTEMS, "zerod": ours.Zerod}[system](config, Model())
    run(Rank(rank, world, made), situation)


if __name__ == "__main__":
    main()
