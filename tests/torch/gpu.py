#!/usr/bin/env python3
"""Models on a GPU: what holds for models in host memory holds for them too, and what is their own.

The GPU is the stand-in of storages.py: the cases of the other suites run on it.
"""
import copy
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402
import harness  # noqa: E402
from harness import case, cases_of  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402

import zerod  # noqa: E402
from zerod.torch import place as places  # noqa: E402
from zerod.torch import wrap as core  # noqa: E402

import aborts  # noqa: E402 F401
import misuse  # noqa: E402 F401
import optim  # noqa: E402 F401
import parity  # noqa: E402 F401
import state  # noqa: E402 F401
import wrap  # noqa: E402 F401
from common import raises, zero  # noqa: E402

import storages  # noqa: E402

place_of = places.place_of
# each combination of parity.latin() once, with every stage and every number of ranks
ONE_STEPS = "one_step_stage1_ranks1", "one_step_stage2_ranks2", "one_step_stage3_ranks4"
# of models in host memory; here holds a_block_that_stays_fetched_takes_no_place_in_the_window
OTHERWISE = "what_the_package_does_not_do_is_refused_held_until_their_gradients"
harness.cases[:] = [c for c in harness.cases if not c.__name__.startswith("fifty_steps") and c.__name__ != OTHERWISE and
                    (not c.__name__.startswith("one_step") or c.__name__ in ONE_STEPS)]
storages.stand_in(sys.argv[1])


def blocks(n=4):
    return nn.Sequential(*[nn.Linear(64, 64) for _ in range(n)])


def there(sharded):
    """Units whose storages have memory."""
    return [u for u in sharded.units
            if any(g.home.flat is not None and g.home.flat.untyped_storage().size() for g in u.groups)]


def alone(function):
    """A case in one rank."""
    def run():
        ranks.run(lambda _: function(), 1, ranks.shared(1))
    run.__name__ = function.__name__
    return case(run)


@cases_of((1, 2, 3), "stage{}")
def memory_is_there_while_a_unit_is_fetched(stage):
    ranks.run(lambda _: watch_memory(stage), 1, ranks.shared(1))


class Watched(nn.Linear):
    """Calls look() within its forward, and its backward."""
    look = None

    def forward(self, x):
        y = super().forward(x)
        Watched.look()
        if y.requires_grad:
            y.register_hook(Watched.look)
        return y * 1.0


def watch_memory(stage):
    zt, model = zero(nn.Sequential(*[Watched(64, 64) for _ in range(4)]), stage)
    optimizer = zt.AdamW(model, lr=1e-2)
    most = 0

    def look(*_):
        nonlocal most
        most = max(most, len(there(model.sharded)))
    Watched.look = look
    for _ in range(3):
        model(torch.ones(2, 64)).sum().backward()
        assert len(there(model.sharded)) == (0 if stage == 3 else 4), there(model.sharded)
        optimizer.step()
        assert not there(model.sharded)
    assert most == (4 if stage < 3 else 1), most


@alone
def nothing_is_held_in_the_window_but_on_the_way():
    zt, model = zero(blocks(8), 1)
    client, held, most = model.sharded.client, set(), 0
    fetch, release = client.fetch, client.release

    def fetched(group):
        nonlocal most
        held.add(group)
        most = max(most, len(held))
        return fetch(group)

    def released(group, stream=None):
        held.discard(group)
        return release(group, stream)
    client.fetch, client.release = fetched, released
    model(torch.ones(2, 64)).sum().backward()
    assert most == 1 and not held
    needs = core._needs(model.sharded)
    assert needs == {"hold_groups": 3, "device": "cuda:0"}, needs


@alone
def a_block_that_stays_fetched_takes_no_place_in_the_window():
    """More such blocks than the window has places are trained; each has memory until the gradient has come."""
    plain = misuse.InAList()
    zt, model = zero(copy.deepcopy(plain))
    assert core._needs(model.sharded)["hold_groups"] < len(model.blocks)
    seen = []
    for net, optimizer in (plain, torch.optim.AdamW(plain.parameters(), lr=1e-2)), (model, zt.AdamW(model, lr=1e-2)):
        given = torch.ones(2, 3, requires_grad=True) * 2
        given.register_hook(lambda _gradient: seen.append(len(there(model.sharded))))
        net(given).backward()
        optimizer.step()
    assert seen == [0, len(model.blocks)] and not there(model.sharded), seen
    with zt.full_params(model):
        torch.testing.assert_close(dict(model.named_parameters()), dict(plain.named_parameters()))


@alone
def parameters_keep_their_storage_and_their_version():
    zt, model = zero(blocks(2))
    optimizer = zt.AdamW(model, lr=1e-2)
    model(torch.ones(2, 64)).sum().backward()
    params = model.sharded.params
    before = [(p.gathered, p.gathered._version) for p in params]
    assert len({p.gathered.untyped_storage()._cdata for p in params}) == 2, "one a group"
    optimizer.step()
    model(torch.ones(2, 64)).sum().backward()
    assert all(p.gathered is g and p.gathered._version == v for p, (g, v) in zip(params, before))


class Numbered(nn.Linear):
    """Notes in done when it runs."""

    def forward(self, x):
        self.done.append(f"run {self.number}")
        return super().forward(x)


def reads(where, batches=1, steps=1):
    """What the backward passes of four checkpointed blocks do in the last step, of one micro-batch after the other: read
    entries, and run blocks again."""
    zt, model = zero(nn.Sequential(*[Numbered(64, 64) for _ in range(4)]), 3, stash=zerod.Stash(1 << 20, where=where))
    optimizer = zt.AdamW(model)
    zt.checkpoint_blocks(model, model)
    done, view = [], model.sharded.client.stash_view
    for number, block in enumerate(model):
        block.number, block.done = number, done
    model.sharded.client.stash_view = lambda key: (done.append(f"read {key}"), view(key))[1]
    for _ in range(steps):
        losses = [model(torch.ones(2, 64, requires_grad=True)).sum() for _ in range(batches)]
        done.clear()
        for loss in losses:
            loss.backward()
        optimizer.step()
    model.sharded.client.close()
    return done


@alone
def an_entry_in_host_memory_comes_ahead_of_its_block():
    """The copy to the GPU of what is read next runs beside a block; in the GPU's memory nothing is on the way."""
    done = reads("host")
    assert done == ["read 2", "read 1", "run 3", "read 0", "run 2", "run 1", "run 0"], done


@alone
def entries_come_ahead_in_the_order_of_the_last_step():
    """Of a second micro-batch, whose backward pass follows that of the first, as well."""
    first = ["read 2", "read 1", "run 3", "read 0", "run 2"]
    second = ["read 4", "run 3", "read 3", "run 2", "run 1", "run 0"]
    assert reads("host", 2) == [*first, "run 1", "run 0", "read 5", *second]
    assert reads("host", 2, steps=2) == [*first, "read 5", "run 1", "run 0", *second]


@alone
def what_goes_to_host_memory_is_a_copy():
    """A block may write to its input while the GPU still copies."""
    zt, model = zero(blocks(4), 3, stash=zerod.Stash(1 << 20, where="host"))
    zt.checkpoint_blocks(model, model)
    outputs, written, write = [], [], model.sharded.client.stash_write
    for block in model:
        block.register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
    model.sharded.client.stash_write = lambda key, address, *more: (written.append(address), write(key, address, *more))
    model(torch.ones(2, 64, requires_grad=True))
    assert len(written) == 3 and not {o.data_ptr() for o in outputs} & set(written)


@alone
def an_entry_on_the_gpu_is_read_when_it_is_needed():
    done = reads("windows")
    assert done == ["read 2", "run 3", "read 1", "run 2", "read 0", "run 1", "run 0"], done


@alone
def a_full_gpu_leaves_nothing_behind():
    zt, model = zero(blocks(3))
    optimizer = zt.AdamW(model, lr=1e-2)
    place = model.sharded.place
    before, calls = place.tensor_at, 0

    def full(*arguments):
        nonlocal calls
        calls += 1
        if calls == 2:
            raise torch.OutOfMemoryError("full")
        return before(*arguments)
    place.tensor_at = full
    raises(torch.OutOfMemoryError, "full", model, torch.ones(2, 64))
    assert not there(model.sharded) and not model.sharded.attempt._held
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    assert model.sharded.version == 1


class Once:
    """Raises an abort at one call."""

    def __init__(self, call):
        self.call, self.due = call, False

    def __call__(self, *arguments):
        if self.due:
            self.due = False
            raise zerod.Aborted("another node was lost")
        return self.call(*arguments)


@alone
def an_abort_is_told_where_values_were_copied():
    """The copy may have come too late: the window had something else by then."""
    zt, model = zero(blocks(3), prefetch=0)
    optimizer = zt.AdamW(model, lr=1e-2)
    client = model.sharded.client
    client.fetch = Once(client.fetch)
    client.fetch.due = True
    model(torch.ones(2, 64)).sum().backward()  # the first fetch of a step: it is no matter
    optimizer.step()
    hook = model[0].register_forward_hook(lambda *_: setattr(client.fetch, "due", True))
    raises(zerod.Aborted, "lost", model, torch.ones(2, 64))
    hook.remove()
    assert not there(model.sharded) and model.sharded.attempt.number == 1
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    assert model.sharded.version == 2


@alone
def every_part_of_a_gradient_is_followed():
    """What made it may have run on another stream than the copy."""
    zt, model = zero(blocks(2))
    optimizer = zt.AdamW(model, lr=1e-2)
    storages.Stand.followed.clear()
    with model.no_sync():
        model(torch.ones(2, 64)).sum().backward()
    assert not storages.Stand.followed
    model(torch.ones(2, 64)).sum().backward()
    assert len(storages.Stand.followed) == 4 * 2, "added to, and copied"
    optimizer.step()


@case
def devices_that_are_meant():
    values = [torch.empty(1), torch.empty(1, device="meta")]
    for device in (None, "cpu", torch.device("cpu")):
        assert isinstance(place_of(device, values), places.Host)
    assert isinstance(place_of(None, values[1:]), places.Host)
    for device in ("cuda:3", torch.device("cuda", 3), torch.device("cuda:3")):
        place = place_of(device, values)
        assert isinstance(place, places.Gpu) and place.needs() == {"device": "cuda:3"}
    raises(ValueError, "xpu", place_of, "xpu", values)
    raises(RuntimeError, [], place_of, "nonsense", values)


@case
def shared_buffers_stay_shared():
    model = blocks(2)
    model[0].register_buffer("mask", torch.ones(3))
    model[1].register_buffer("mask", model[0].mask)
    model[1].register_buffer("none", None)
    core._move_buffers(model, torch.device("meta"))
    assert model[0].mask.is_meta and model[1].mask is model[0].mask and model[1].none is None


@alone
def a_gpu_that_is_not_there_is_named():
    core.place_of = place_of
    os.environ["ZEROD_CUDA_PLUGIN"] = "/nonexistent/plugin.so"
    import zerod.torch as zt
    raises(zerod.Gpu, "/nonexistent/plugin.so", zt.shard, blocks(1), device="cuda:0")


if __name__ == "__main__":
    ranks.main()
