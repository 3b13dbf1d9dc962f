#!/usr/bin/env python3
"""Other threads than the one that trains: what only reads works in all of them, everything else raises where it is
called, and the loop has the losses of one that nobody disturbs, to the bit."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from harness import case, cases_of  # noqa: E402

import copy  # noqa: E402
import functools  # noqa: E402
import signal  # noqa: E402
import tempfile  # noqa: E402
import threading  # noqa: E402
from concurrent.futures import ThreadPoolExecutor  # noqa: E402

import torch  # noqa: E402

import zerod  # noqa: E402
import zerod.torch as zt  # noqa: E402
from common import raises  # noqa: E402
from net import WIDTH, in_rank, loss_of, make, tokens, train  # noqa: E402

BLOCKS, STEPS = 9, 4  # more blocks than the window has places
LONG_S = 120


@functools.cache
def pool():
    return ThreadPoolExecutor(1, "other")


def in_thread(function):
    """The function's result, or what it raises, from another thread."""
    return pool().submit(function).result(LONG_S)


# ---- what changes the model, in the middle of a step ------------------------------------


def shows_all(model, _):
    with zt.full_params(model):
        pass


def shows_a_part(model, _):
    with zt.full_params(model.blocks[0]):
        pass


def writes(model, _):
    with zt.full_params(model, write=True):
        pass


def holds(model, _):
    with zt.hold(model):
        pass


@torch.no_grad()
def evaluates(model, _):
    loss_of(model, 0)


def runs_forward(model, _):
    loss_of(model, 0)


def trains(model, _):
    loss_of(model, 0).backward()


def calls_a_block(model, _):
    model.blocks[1](torch.ones(2, WIDTH))


def reads_with_a_graph(model, _):
    model.blocks[1].up.weight.norm()


def copies(model, _):
    copy.deepcopy(model)


def loads(model, _):
    model.load_state_dict(make(blocks=BLOCKS).state_dict())


def steps(_, optimizer):
    optimizer.step()


def clips(model, _):
    model.clip_grad_norm_(1.0)


def reduces(_model, _optimizer):
    zt.all_reduce(1.0)


def loads_a_file(model, _):
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        zt.save_safetensors(model, directory)
        zt.load_safetensors(model, directory, alone=True)


def changes_the_mode(model, _):
    model.eval()


def keeps_gradients(model, _):
    with model.no_sync():
        pass


def keeps_gradients_from_now_on(model, _):
    model.set_requires_gradient_sync(False)


@torch.no_grad()
def gives_tensors(model, _):
    torch.func.functional_call(model, {n: torch.zeros(p.shape) for n, p in model.named_parameters()}, (tokens(0),))


def replaces_a_parameter(model, _):
    model.blocks[1].up.weight = torch.nn.Parameter(torch.zeros(2 * WIDTH, WIDTH))


def deletes_a_parameter(model, _):
    del model.blocks[1].up.weight


REFUSED = (shows_all, shows_a_part, writes, holds, evaluates, runs_forward, trains, calls_a_block, reads_with_a_graph, copies, loads, steps,
           clips, reduces, loads_a_file, changes_the_mode, keeps_gradients, keeps_gradients_from_now_on, gives_tensors, replaces_a_parameter,
           deletes_a_parameter)


class Meddling:
    """A backward pass in which another thread calls something: in forward, in backward, and behind it."""

    def __init__(self, call):
        self.call, self.calls = call, 0

    def now(self, *_):
        self.calls += 1
        in_thread(self.call)

    def in_both(self, _module, _args, output):
        self.now()
        output.register_hook(self.now)

    def __call__(self, model, step):
        handles = [model.blocks[4].register_forward_hook(self.in_both), model.blocks[4].up.register_forward_hook(self.now)]
        loss = loss_of(model, step)
        for handle in handles:
            handle.remove()
        loss.backward()
        self.now()
        return loss


def sharded(stage):
    model = zt.shard(make(blocks=BLOCKS), stage)
    in_thread(int)  # the thread is there before a pass begins
    return model, zt.AdamW(model, lr=1e-2)


@functools.cache
def undisturbed(stage):
    return in_rank(lambda: train(*sharded(stage), STEPS), nodes=2)[0]


def meddled(stage, wanted, call):
    model, optimizer = sharded(stage)
    meddling = Meddling(lambda: call(model, optimizer))
    got = train(model, optimizer, STEPS, meddling)
    assert meddling.calls == 4 * STEPS, meddling.calls
    assert got == wanted, (got, wanted)


def refused(stage, wanted, what):
    def call(model, optimizer):
        raises(zt.UsedByAnotherThread, ["'other_0'", "'MainThread'", "state_dict()"], what, model, optimizer)
    meddled(stage, wanted, call)


@cases_of([(what, stage) for what in REFUSED for stage in (1, 3)], "{0[0].__name__}_stage{0[1]}")
def raises_in_the_other_thread(what_stage):
    what, stage = what_stage
    in_rank(refused, stage, undisturbed(stage), what, nodes=2)


# ---- what only reads ---------------------------------------------------------------------


def state(model):
    return model.state_dict()


def whole_tensors(model):
    return {n: p.full_tensor() for n, p in model.named_parameters()}


@torch.no_grad()
def by_operations(model):
    return {n: p.clone() for n, p in model.named_parameters()}


@torch.no_grad()
def by_attributes(model):
    return {n: model.get_parameter(n) + 0 for n, _ in model.named_parameters()}


def by_arrays(model):
    return {n: torch.from_numpy(p.detach().numpy().copy()) for n, p in model.named_parameters()}


def by_files(model):
    from safetensors.torch import load_file
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        zt.save_safetensors(model, directory)
        zt.save_checkpoint(directory, model, model.sharded.optimizer())
        return load_file(os.path.join(directory, "model.safetensors"))


def by_norms(model):
    return {n: torch.tensor(norm) for n, norm in zt.weight_norms(model).items()}


READS = (state, whole_tensors, by_operations, by_attributes, by_arrays, by_files, by_norms)


def read_meanwhile(stage, wanted, read):
    def call(model, _):
        now = in_step.setdefault(model.sharded.version, {n: p.clone() for n, p in state(model).items()})
        found = read(model)
        for name, value in found.items():
            if read is by_norms:
                torch.testing.assert_close(value, now[name].norm(), rtol=1e-5, atol=0)
            else:
                assert torch.equal(value, now[name]), name
    in_step = {}
    meddled(stage, wanted, call)
    assert len(in_step) == STEPS


@cases_of([(read, stage) for read in READS for stage in (1, 3)], "{0[0].__name__}_stage{0[1]}")
def reads_in_every_thread(read_stage):
    read, stage = read_stage
    in_rank(read_meanwhile, stage, undisturbed(stage), read, nodes=2)


def one_version(read):
    """Reads again and again while the loop runs: each result is of one step."""
    model, optimizer = sharded(3)
    versions, found, over = [], [], threading.Event()

    def reads():
        while not over.is_set():
            found.append({n: t.clone() for n, t in read(model).items()})
    with ThreadPoolExecutor(1) as others:
        reader = others.submit(reads)
        try:
            for step in range(5 * STEPS):
                versions.append({n: t.clone() for n, t in state(model).items()})
                loss_of(model, step).backward()
                optimizer.step()
            versions.append({n: t.clone() for n, t in state(model).items()})
        finally:
            over.set()
        reader.result(LONG_S)
    assert found
    for of in found:
        assert any(all(torch.equal(of[n], t) for n, t in version.items()) for version in versions), "parts of several steps"


@cases_of([state, by_files], "{0.__name__}")
def a_whole_that_is_read_is_of_one_step(read):
    in_rank(one_version, read, nodes=2)


def reads_in_a_fork():
    model, _ = sharded(3)
    taken, over = threading.Event(), threading.Event()

    def reads():
        with model.sharded.turn.one_version():
            taken.set()
            assert over.wait(LONG_S)
    with ThreadPoolExecutor(1) as others:
        reader = others.submit(reads)
        assert taken.wait(LONG_S)
        child = os.fork()
        if child == 0:
            signal.alarm(LONG_S)
            try:
                model.state_dict()
            except zerod.Closed:
                os._exit(0)
            os._exit(1)
        status = os.waitpid(child, 0)[1]
        over.set()
        reader.result(LONG_S)
    assert status == 0, status


@case
def a_forked_process_waits_for_no_thread_of_its_parent():
    in_rank(reads_in_a_fork)


def writes_to_a_copy():
    model, _ = sharded(3)
    kept = in_thread(lambda: model.head.weight.detach().view(-1))
    in_thread(kept.zero_)
    raises(zt.WrittenInPlace, ["head.weight"], loss_of, model, 0)


@case
def what_another_thread_writes_to_a_copy_is_not_lost_silently():
    in_rank(writes_to_a_copy)


# ---- between steps -----------------------------------------------------------------------


def looks_between_steps(stage, wanted, in_context):
    """A context that another thread has opened between two steps: the loop waits for its end."""
    model, optimizer = sharded(stage)
    got, opened, waits = train(model, optimizer, 1), threading.Event(), threading.Event()
    enter = model.sharded.turn.enter

    def entering(*arguments, **more):
        if threading.current_thread() is threading.main_thread():
            waits.set()
        enter(*arguments, **more)

    def looks():
        with in_context(model), torch.no_grad():
            before = model(tokens(0))
            opened.set()
            assert waits.wait(LONG_S)
            for _ in range(5):
                assert torch.equal(model(tokens(0)), before)
    with ThreadPoolExecutor(1) as others:
        other = others.submit(looks)
        assert opened.wait(LONG_S) or other.result(0)
        model.sharded.turn.enter = entering
        got += train_from(1, model, optimizer)
        other.result(LONG_S)
    assert got == wanted, (got, wanted)


def train_from(first, model, optimizer):
    return train(model, optimizer, STEPS - first, lambda m, step: backward(m, step + first))


def backward(model, step):
    loss = loss_of(model, step)
    loss.backward()
    return loss


@cases_of([(c, stage) for c in (zt.full_params, zt.hold) for stage in (1, 3)], "{0[0].__name__}_stage{0[1]}")
def who_looks_between_steps_is_waited_for(context_stage):
    context, stage = context_stage
    in_rank(looks_between_steps, stage, undisturbed(stage), context, nodes=2)


def hands_over(stage, wanted):
    """Each step in a thread of its own, and an evaluation in another."""
    model, optimizer = sharded(stage)
    got = []
    loss_of(model, 0)  # whose backward pass never comes
    for step in range(STEPS):
        got += in_thread(lambda first=step: train(model, optimizer, 1, lambda m, _: backward(m, first)))
        in_thread(lambda: evaluates(model, None))
    assert got == wanted, (got, wanted)


@cases_of([1, 3], "stage{}")
def a_step_in_any_thread_is_a_step(stage):
    in_rank(hands_over, stage, undisturbed(stage), nodes=2)


def begins_a_step(stage, wanted):
    """A forward pass with gradients between two steps, of a thread that never trained, is no step of the loop."""
    model, optimizer = sharded(stage)
    got, losses = [], []
    for step in range(STEPS):
        got += train(model, optimizer, 1, lambda m, _, first=step: backward(m, first))
        in_thread(lambda: losses.append(loss_of(model, 0)))
    assert got == wanted, (got, wanted)


@cases_of([1, 3], "stage{}")
def a_forward_pass_of_another_thread_takes_no_turn(stage):
    in_rank(begins_a_step, stage, undisturbed(stage), nodes=2)


def ends_a_step_that_raised(stage, block):
    def fails(_):
        raise ArithmeticError
    model, _ = sharded(stage)
    handle = (model.blocks[block] if block else model).register_forward_hook(lambda _m, _a, output: output.register_hook(fails) and None)
    raises(ArithmeticError, [], loss_of(model, 0).backward)
    handle.remove()
    model.zero_grad()
    in_thread(lambda: evaluates(model, None))


@cases_of([(stage, block) for stage in (1, 3) for block in (0, 4)], "stage{0[0]}_block{0[1]}")
def a_backward_pass_that_raised_ends_with_its_step(stage_block):
    in_rank(ends_a_step_that_raised, *stage_block)


def many(rank, stage, meddles):
    model, optimizer = sharded(stage)
    over, counts = threading.Event(), [0] * len(REFUSED)

    def meddle(i, what):
        while not over.is_set():
            try:
                what(model, optimizer)
            except zt.UsedByAnotherThread:
                counts[i] += 1
    names = (shows_all, holds, evaluates, by_operations, state) if meddles and rank == 0 else ()
    with ThreadPoolExecutor(8) as threads:
        others = [threads.submit(meddle, i, (lambda m, o, w=w: w(m)) if w in READS else w) for i, w in enumerate(names)]
        try:
            losses = train(model, optimizer, 3 * STEPS)
        finally:
            over.set()
        for other in others:
            other.result(LONG_S)
    assert any(counts) == bool(names), counts
    return losses


@cases_of([1, 3], "stage{}")
def two_ranks_with_many_threads(stage):
    cluster = ranks.shared(2)
    wanted = ranks.run(many, [0, 1], cluster, arguments=(stage, False))
    assert ranks.run(many, [0, 1], cluster, arguments=(stage, True)) == wanted


if __name__ == "__main__":
    ranks.main()
