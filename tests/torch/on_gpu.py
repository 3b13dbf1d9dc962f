#!/usr/bin/env python3
"""PyTorch trainers on a GPU: they learn what plain PyTorch learns on the same GPU, from kernels that run long
after the calls that launched them, and their memory stays as it is.

On a real GPU with ZEROD_TEST_CUDA_PLUGIN=.../zerod-cuda.so; else on the stand-in of storages.py, which says that the
cases are right, and nothing of CUDA.
"""
import os
import sys

REAL = os.environ.get("ZEROD_TEST_CUDA_PLUGIN")  # harness.py removes it

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402
from cluster import Cluster  # noqa: E402
from fake_gpu import environment  # noqa: E402
from harness import Skip, case, cases_of  # noqa: E402

import torch  # noqa: E402

import zerod  # noqa: E402
import zerod.torch as zt  # noqa: E402
from zerod.torch import WrittenInPlace, place  # noqa: E402

import storages  # noqa: E402
from common import adapters_only, frozen_files, raises, zero  # noqa: E402
from gpt import batch_of, make  # noqa: E402

STEPS, BATCH = 20, 8
ADAMW = {"lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
APART = 2e-3  # of losses: as far as other orders of sums lead in so many steps
DEVICE = "cuda" if REAL else "cpu"
if REAL:
    os.environ["ZEROD_CUDA_PLUGIN"] = os.path.abspath(REAL)
else:
    storages.stand_in(sys.argv[1])


def plain(options):
    """Losses of plain PyTorch on the whole batch."""
    model = make(0, **options).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    losses = []
    for t in range(STEPS):
        optimizer.zero_grad()
        loss = model(batch_of(t, BATCH).to(DEVICE))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def needs_a_gpu():
    if not REAL:
        raise Skip("ZEROD_TEST_CUDA_PLUGIN names no plugin: there is no GPU")


def busy():
    """Keeps the GPU from what comes next for about a tenth of a second."""
    os.environ["FAKE_GPU_DELAY_MS"] = "5"  # of each event
    if REAL:
        torch.cuda._sleep(10**8)  # pylint: disable=protected-access


def sharded(rank, world, stage, options, slow=False, moved=False, apart=False, stash=None):
    """Losses of this rank's part of each batch; apart: on a GPU of its own; stash: keeps the inputs of blocks."""
    if apart:
        torch.cuda.set_device(rank)  # as LOCAL_RANK tells trainers
    model = make(0, **options)
    zt, model = zero(model.to(DEVICE) if moved else model, stage, device=None if moved else DEVICE, stash=stash)
    if stash:
        zt.checkpoint_blocks(model, model.blocks, where=stash.where)
    optimizer = zt.AdamW(model, **ADAMW)
    losses = []
    for t in range(STEPS):
        if slow:
            busy()
        loss = model(batch_of(t, BATCH).chunk(world)[rank].to(DEVICE))
        if slow:
            busy()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    assert all(loss.device.type == DEVICE for loss in losses)
    model.sharded.client.close()
    return [float(loss) for loss in losses]


def mean_of(world, stage, options, cluster=None, **more):
    runs = ranks.run(lambda rank: sharded(rank, world, stage, options, **more), world, cluster or ranks.shared(1))
    return [sum(values) / world for values in zip(*runs)]


def near(losses, wanted):
    worst = max(abs(a - b) for a, b in zip(losses, wanted))
    assert worst < APART and losses[-1] < losses[0] - 0.1, f"off by {worst:.1e}: {losses} is not {wanted}"


@cases_of([(stage, world) for stage in (1, 2, 3) for world in (1, 2)], "stage{0[0]}_ranks{0[1]}")
def learns_what_plain_pytorch_learns(what):
    stage, world = what
    near(mean_of(world, stage, {}, moved=world == 2), ranks.alone(plain, {}))


@cases_of([{"recompute": "reentrant"}, {"recompute": "nonreentrant"}, {"tied": True}], "{0}")
def learns_the_same(options):
    near(mean_of(2, 3, options), ranks.alone(plain, options))


def adapters(rank, path):
    """Losses of a model of which a part is trained, the rest frozen, in a base if there is one."""
    model = adapters_only(make(0), (".up.",))
    zt.shard(model, device=DEVICE, base=path and [path])
    optimizer, losses = zt.AdamW(model, **ADAMW), []
    for t in range(STEPS):
        loss = model(batch_of(t, BATCH).chunk(2)[rank].to(DEVICE))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert all(p.device.type == DEVICE for p in model.parameters())
    values = model.state_dict()
    model.load_state_dict(values)
    values["wte.weight"] = values["wte.weight"] + 1
    if path:
        assert all(p.trainable for p in model.sharded.params)
        raises(ValueError, "of the base", model.load_state_dict, values)
    model.sharded.client.close()
    return losses


@case
def frozen_parameters_of_a_base_are_on_the_gpu():
    with frozen_files(adapters_only(make(0), (".up.",))) as (path,):
        wanted, found = (ranks.run(adapters, 2, ranks.shared(1), arguments=(of,)) for of in (None, path))
    for losses, without in zip(found, wanted):
        same(losses, without)


def on_base(path):
    model = adapters_only(make(0), (".up.",))
    zt.shard(model, device=DEVICE, base=[path])
    base, = model.sharded.client.query("status")["bases"]
    return model, base


def look(rank, path):
    model, base = on_base(path)
    plain = dict(adapters_only(make(0), (".up.",)).named_parameters())
    for name, p in model.named_parameters():
        if not p.requires_grad:
            assert p.zerod_mapped and torch.equal(p.cpu(), plain[name]), name
    assert base["gpus"] == 1, base
    model.sharded.client.close()


@case
def ranks_of_a_gpu_map_one_copy_of_a_base():
    with frozen_files(adapters_only(make(0), (".up.",))) as (path,):
        ranks.run(look, 2, ranks.shared(1), arguments=(path,))


def write(_, path):
    """What becomes of an operation in place."""
    os.environ["FAKE_GPU_WRITABLE"] = "1"
    model, _ = on_base(path)
    optimizer = zt.AdamW(model, **ADAMW)
    loss = model(batch_of(0, BATCH).to(DEVICE))
    loss.backward()
    with torch.no_grad():
        model.wte.weight.add_(1)
    try:
        if REAL:
            torch.cuda.synchronize()
    except RuntimeError as e:
        print(f"a write to a base: {e}")
        return
    print("a write to a base: the driver maps all memory writable")
    raises(zt.WrittenToBase, "wte.weight", optimizer.step)


@case
def write_to_a_base_is_a_fault_or_told():
    with frozen_files(adapters_only(make(0), (".up.",))) as (path,):
        ranks.run(write, 1, ranks.shared(1), arguments=(path,))


def keep_apart(_, path):
    model, base = on_base(path)
    assert base["gpus"] == 0 and not any(p.zerod_mapped for p in model.sharded.base), base
    with torch.no_grad():
        model.wte.weight.add_(1)  # of this process alone
    model.sharded.client.close()


@case
def processes_keep_copies_where_the_driver_exports_no_descriptors():
    if REAL:
        raise Skip("on the stand-in alone")
    with environment(FAKE_GPU_HANDLES=1), Cluster(1, device="cuda") as cluster, \
            frozen_files(adapters_only(make(0), (".up.",))) as (path,):
        ranks.run(keep_apart, 1, cluster, arguments=(path,))


def same(losses, wanted):
    """A GPU may add up in another order each time."""
    worst = max(abs(a - b) for a, b in zip(losses, wanted))
    assert worst <= (1e-4 if REAL else 0), f"off by {worst:.1e}"


@cases_of([(where, world) for where in ("windows", "host") for world in (1, 2)], "{0[0]}_ranks{0[1]}")
def a_stash_learns_the_same(what):
    """With the inputs of blocks in the service, of which copies go up and down while the GPU is behind."""
    where, world = what
    stash = zerod.Stash(8 << 20, where=where)
    same(mean_of(world, 3, {}, stash=stash, slow=True), mean_of(world, 3, {"recompute": "nonreentrant"}))


@case
def ranks_on_a_gpu_each_learn_the_same():
    needs_a_gpu()
    if ranks.alone(torch.cuda.device_count) < 2:
        raise Skip("there is one GPU")
    near(mean_of(2, 3, {}, apart=True), ranks.alone(plain, {}))


@case
def a_gpu_that_is_behind_computes_the_same():
    """Copies and kernels that run after the calls that name their events."""
    same(mean_of(2, 3, {}, slow=True), mean_of(2, 3, {}))


@case
def a_gpu_that_its_trainers_wait_for_computes_the_same():
    """The driver does not let the daemon open their events, as if they were another user's."""
    if REAL:
        raise Skip("the fake GPU alone has a switch for that")
    wanted = mean_of(2, 3, {})
    with environment(FAKE_GPU_NO_EVENTS=1), Cluster(1) as c:
        same(mean_of(2, 3, {}, c, slow=True), wanted)
        assert "waits for its GPU itself" in c[0].log()


def on_a_stream(_):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        return sharded(0, 1, 3, {}, slow=True)


# ---- gradients that the update adds up -------------------------------------------------------------------------------

ADDED_STEPS = 4


def pushed(rank, world, dtype, batches, options):
    """What a rank has after some steps, its push slots, its groups, and how many sums of groups were left to the update."""
    zt, model = zero(make(0).to(dtype), device=DEVICE, **options)
    optimizer = zt.AdamW(model, **ADAMW)
    for t in range(ADDED_STEPS):
        for batch in batch_of(t, BATCH).chunk(world)[rank].chunk(batches):
            model(batch.to(DEVICE)).backward()
        if t % 2:
            model.clip_grad_norm_(1.0)
        optimizer.step()
    client, values = model.sharded.client, {n: v.clone() for n, v in model.state_dict().items()}
    job, = (j for j in client.query("jobs")["jobs"] if j["job"] == client.job)
    slots, = (s["push_slots"] for s in job["sessions"] if s["rank"] == rank)
    client.close()
    return values, slots, len(model.sharded.groups), job["reduce"]["deferred"]


ADDED = {"one_rank": (1, torch.float32, 1, True), "one_rank_bf16": (1, torch.bfloat16, 1, True),
         "two_micro_batches": (1, torch.bfloat16, 2, False), "two_ranks": (2, torch.bfloat16, 1, False)}


@cases_of(list(ADDED), "{}")
def the_update_adds_gradients_up(what):
    """In a job of one rank with its states on the GPU there is a slot for each group; the bits are the same.  Several
    micro-batches are added up by the owner."""
    world, dtype, batches, deferred = ADDED[what]
    wanted = ranks.run(pushed, world, ranks.shared(1), arguments=(world, dtype, batches, {"push_groups": 2}))
    with Cluster(1, device="cuda", optimizer="device") as cluster:
        found = ranks.run(pushed, world, cluster, arguments=(world, dtype, batches, {}))
        assert ("a push slot for each group" in cluster[0].log()) == (world == 1)
    for (values, slots, groups, n), (expected, *_, none) in zip(found, wanted):
        assert slots == (groups if world == 1 else 2) and n == (ADDED_STEPS * groups if deferred else 0) and none == 0, (slots, n)
        assert all(torch.equal(value, expected[name]) for name, value in values.items())


@case
def another_stream_computes_the_same():
    needs_a_gpu()
    same(ranks.run(on_a_stream, 1, ranks.shared(1))[0], mean_of(1, 3, {}))


def used_after_steps(_):
    zt, model = zero(make(0), 3, device=DEVICE)
    optimizer = zt.AdamW(model, **ADAMW)
    used = []
    for t in range(60):
        model(batch_of(t, BATCH).to(DEVICE)).backward()
        optimizer.step()
        units = [g.home.flat.untyped_storage().size() for g in model.sharded.groups]
        used.append(torch.cuda.memory_allocated() if REAL else sum(units))
    return used


@case
def memory_stays_as_it_is():
    used, = ranks.run(used_after_steps, 1, ranks.shared(1))
    assert max(used[10:]) == min(used[10:]), used


@case
def writing_in_place_is_an_error():
    def scale(module, _inputs):
        module.weight.detach().mul_(2)

    def write(_):
        zt, model = zero(make(0), 3, device=DEVICE)
        model.blocks[0].ln1.register_forward_pre_hook(scale)
        raises(WrittenInPlace, "blocks.0.ln1.weight", model, batch_of(0, BATCH).to(DEVICE))
        assert all(p.device.type == DEVICE for p in model.parameters()), "of placeholders"
        with zt.full_params(model):
            assert all(p.device.type == DEVICE for p in model.parameters())
        assert all(t.device.type == "cpu" for t in model.state_dict().values())
    ranks.run(write, 1, ranks.shared(1))


def address(dtype):
    """A tensor over memory that another one has."""
    where = place.Gpu(torch.device("cuda", torch.cuda.current_device()))
    memory = torch.arange(1000, device=DEVICE).to(dtype)
    found = where.tensor_at(memory.data_ptr() + 16 * memory.itemsize, 100, dtype)
    assert found.dtype is dtype and torch.equal(found, memory[16:116])
    found.fill_(7)
    assert memory[15:17].tolist() == [15, 7] and memory[115:117].tolist() == [7, 116]
    assert where.tensor_at(0, 0, dtype).numel() == 0


@cases_of([torch.float32, torch.bfloat16, torch.float16], "{}")
def tensors_over_addresses(dtype):
    needs_a_gpu()
    ranks.alone(address, dtype)


if __name__ == "__main__":
    ranks.main()
