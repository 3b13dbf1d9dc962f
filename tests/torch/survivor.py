"""A trainer that goes on, and in which something dies once: for the suites that kill, as a rank of theirs
or as a worker of torchrun."""
import hashlib
import os
import signal

import torch

import zerod
import zerod.torch as zt
from gpt import batch_of, make

VICTIM = 2  # the rank that kills
STEPS, AT, MICRO_BATCHES, SEED = 5, 2, 2, 7  # AT: the step in which something dies
LONG_S = 120 * int(os.environ.get("TESTS_SLOW", 1))  # for whoever waits for what is started again


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def prepare(model, moment, act):
    """Has `act` called in the next step, once its begin is behind; what ends it again."""
    block = model.blocks[1]
    if moment == "forward":
        return block.up.register_forward_pre_hook(lambda *_: act())
    if moment == "backward":
        def watch(_module, _inputs, output):
            if output.requires_grad:
                output.register_hook(lambda _: act())
        return block.ln2.register_forward_hook(watch)
    return None


def sum_of(model):
    """Of all parameters' bits."""
    with zt.full_params(model):
        values = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(values).hexdigest()


def once(directory, act):
    """A function that acts when it is called first, whoever calls it."""
    def first(*_):
        try:
            os.close(os.open(f"{directory}/done", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        act()
    return first


def survive(rank, options, moment=None, directory=None, target=None, how=signal.SIGKILL):
    """Trains with dropout, clipping, a schedule and micro-batches; in one step the victim kills itself, or
    the process `target`.  (checksum of the parameters, what was kept, learning rate)"""
    options = dict(options)
    stage, accumulate = options.pop("stage", 3), options.pop("accumulate", "owner")
    at, layerwise, stash = options.pop("at", AT), options.pop("layerwise", False), options.pop("stash", False)
    eager, base, ema = options.pop("eager", False), options.pop("base", None), options.pop("ema", None)
    reduce = options.pop("reduce", False)
    model = make(dropout=0.1, **options)
    for name, p in model.named_parameters():
        p.requires_grad_(base is None or ".up." in name)
    zt.shard(model, stage, client=zerod.connect(timeout=LONG_S), stash=1 << 20 if stash else None, eager=eager,
             base=[base] if base else None, ema=ema is not None)
    if stash and not layerwise:
        zt.checkpoint_blocks(model, model.blocks)
    optimizer = zt.AdamW(model, lr=1e-2, ema_decay=ema)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    layers = zt.LayerByLayer(model, model.blocks, MICRO_BATCHES)
    act = once(directory, lambda: os.kill(target or os.getpid(), how))
    for step in zt.steps(model, until=STEPS, scheduler=scheduler, seed=SEED):
        with step as t:
            assert optimizer.kept == (b"after %d" % (t - 1) if t else b""), (t, optimizer.kept)
            doomed = moment is not None and rank == VICTIM and t == at
            batch = batch_of(t, 24).chunk(model.sharded.world_size)[rank]
            if layerwise:
                handle = prepare(model, moment, act) if doomed else None
                layers.forward_backward(lambda m, part: m(part), batch)
                if handle:
                    handle.remove()
            for i, part in enumerate(() if layerwise else batch.chunk(MICRO_BATCHES)):
                handle = prepare(model, moment, act) if doomed and i == 1 else None
                if accumulate == "trainer" and i == 0:
                    with model.no_sync():
                        model(part).backward()
                else:
                    model(part).backward()
                if handle:
                    handle.remove()
            if reduce:
                assert zt.all_reduce(t, "max") == t
            if not eager:
                model.clip_grad_norm_(1.0)
            if doomed and moment == "step":
                act()
            optimizer.step(blob=b"after %d" % t)
            if reduce:
                assert zt.all_reduce(torch.tensor([t, 1])).tolist() == [4 * t, 4]
    with zt.full_params(model) if ema is None else zt.ema_params(model):
        values = sum_of(model)
    return values, optimizer.kept, scheduler.get_last_lr()
