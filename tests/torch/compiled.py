#!/usr/bin/env python3
"""torch.compile of a whole sharded model and of its blocks, before shard() and after: losses are those of the model that is
not compiled, each block is one graph, and what cannot be compiled is refused by name."""
import contextlib
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from cluster import Cluster  # noqa: E402
from harness import case, cases_of  # noqa: E402

import torch  # noqa: E402

import zerod.torch as zt  # noqa: E402
from common import raises  # noqa: E402
from net import Net, fetched, in_rank, loss_of, make, tokens, train  # noqa: E402
from torchrun import worker_environment  # noqa: E402

BLOCKS = 9  # more than the window has places


class Graphs:
    """A backend that runs graphs as they are, and counts how many there are and how often they run."""

    def __init__(self):
        self.made = self.runs = 0

    def __call__(self, graph, _inputs):
        self.made += 1

        def run(*arguments):
            self.runs += 1
            return graph.forward(*arguments)
        return run


class Between(Net):
    """Without a loop, which PyTorch leaves alone if its graph breaks there; something is computed between blocks."""

    def forward(self, tokens):
        first, second, third = self.blocks
        return self.head(third(second(first(self.embed(tokens)) * 0.5) * 0.5) * 0.5)


def between():
    torch.manual_seed(0)
    return Between()


def compile_blocks(model, **options):
    for block in model.blocks:
        block.compile(**options)
    return model


def compile_in_place(model, **options):
    model.compile(**options)
    return model


def wrap_blocks(model, **options):
    for i, block in enumerate(model.blocks):
        model.blocks[i] = torch.compile(block, **options)
    return model


WAYS = {"model": torch.compile, "model_in_place": compile_in_place, "blocks": compile_blocks, "blocks_wrapped": wrap_blocks}


def compiled(way, before, backend, stage=3, **options):
    """A model that is compiled and sharded."""
    model, way = make(**options), WAYS[way]
    if before:
        run = zt.shard(way(model, backend=backend), stage=stage)
    else:
        run = way(zt.shard(model, stage=stage), backend=backend)
    return run


def losses_of(model):
    return [*train(model, zt.AdamW(model, lr=1e-2), 3), evaluated(model)]


def evaluated(model):
    with torch.no_grad():
        return loss_of(model, 5).item()


def same(way, before, backend, stage, tolerance):
    torch._dynamo.reset()
    model = compiled(way, before, backend, stage, blocks=BLOCKS)
    got = losses_of(model)
    assert stage < 3 or not fetched(model), fetched(model)
    assert torch._dynamo.utils.counters["frames"]["ok"], "nothing was compiled"
    with zt.hold(model):
        assert evaluated(model) == got[-1]
    want = losses_of(zt.shard(make(blocks=BLOCKS), stage=stage, job="plain"))
    zt.drop("plain")
    assert max(abs(a - b) for a, b in zip(want, got)) <= tolerance, (want, got)


@cases_of([(way, before, stage) for way in WAYS for before in (True, False) for stage in (1, 3) if stage == 3 or way == "model"],
          "{0[0]}_before_shard_{0[1]}_stage{0[2]}")
def to_the_bit(way_before_stage):
    way, before, stage = way_before_stage
    in_rank(same, way, before, "eager", stage, 0, nodes=2)


@cases_of([("model", "aot_eager"), ("blocks", "inductor")], "{0[1]}")
def backends(way_backend):
    in_rank(same, way_backend[0], False, way_backend[1], 3, 1e-5)


def counts():
    graphs = Graphs()
    model = zt.shard(between(), stage=3)
    run = torch.compile(model, backend=graphs)
    breaks = 2 * len(model.blocks)  # before and after each
    for step in range(3):
        graphs.runs = 0
        loss_of(run, step).backward()
        assert graphs.runs == breaks + 1, f"{graphs.runs} graphs, and not one of each block and those around"
        made = made if step else graphs.made
    assert graphs.made == made < graphs.runs, f"{graphs.made} graphs of {made}, where blocks are alike"


@case
def two_breaks_a_block():
    in_rank(counts)


def state():
    model = zt.shard(make(), stage=3)
    run = torch.compile(model, backend="eager")
    found = run.state_dict()
    raises(RuntimeError, "compiled._orig_mod", run.load_state_dict, found)
    run._orig_mod.load_state_dict({name.removeprefix("_orig_mod."): 2 * value for name, value in found.items()})
    with zt.full_params(run):
        assert all(torch.equal(p, 2 * found[name]) for name, p in run.named_parameters())


@case
def a_compiled_model_loads_where_ranks_meet():
    in_rank(state)


LATE = """
import sys

import torch
import zerod.torch as zt


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.second(self.first(x).relu()).sum()


torch.manual_seed(0)
x = torch.randn(4, 8)
model = zt.shard(Net(), stage=3, groups=[torch.nn.Linear])
optimizer = zt.AdamW(model, lr=1e-2)
for _ in range(2):
    model(x).backward()
    optimizer.step()
    optimizer.zero_grad()
assert "torch._dynamo" not in sys.modules, "who compiles nothing waits for the compiler"
wanted = model(x)
try:
    torch.compile(model, backend="eager", fullgraph=True)(x)
except torch._dynamo.exc.Unsupported as why:
    print("refused:", why)
torch._dynamo.reset()
assert torch.equal(torch.compile(model, backend="eager")(x), wanted)
"""


@case
def the_compiler_is_imported_by_who_compiles():
    """To import it takes as long as to import torch.  It then does what it does when it is there from the beginning."""
    with Cluster(1) as cluster:
        out = subprocess.run([sys.executable, "-B", "-c", LATE], env=worker_environment(cluster), stdin=subprocess.DEVNULL,
                             capture_output=True, text=True, timeout=600, check=False)
    assert out.returncode == 0 and "refused:" in out.stdout and "block.compile(" in out.stdout, out


def refuses():
    model = zt.shard(make(), stage=3)
    run = torch.compile(model, backend="eager", fullgraph=True)
    words = ["zerod", "fullgraph=True", "block.compile("]
    raises(torch._dynamo.exc.Unsupported, words, loss_of, run, 0)
    assert not fetched(model), fetched(model)
    torch._dynamo.reset()
    compile_blocks(model, backend="eager", fullgraph=True)
    loss_of(model, 0).backward()
    assert not fetched(model), fetched(model)


@case
def a_full_graph_is_refused_and_those_of_blocks_are_not():
    in_rank(refuses)


def compiles_backward(stage, by_context):
    import torch._dynamo.compiled_autograd as compiled_autograd
    model = zt.shard(make(), stage=stage)
    with contextlib.ExitStack() as stack:
        loss = loss_of(model, 0)
        if by_context:
            stack.enter_context(compiled_autograd._enable(torch.compile(backend="eager")))
            backward = loss.backward
        else:
            stack.enter_context(torch._dynamo.config.patch(compiled_autograd=True))
            backward = torch.compile(loss.backward, backend="eager")
        raises(NotImplementedError, ["compiled autograd", "torch.compile(model)"], backward)
    reference = make()
    want = train(reference, torch.optim.AdamW(reference.parameters(), lr=1e-2), 2)
    model.zero_grad()
    got = train(model, zt.AdamW(model, lr=1e-2), 2)
    assert max(abs(a - b) for a, b in zip(want, got)) < 1e-4, (want, got)


@cases_of([(stage, by_context) for stage in (1, 3) for by_context in (True, False)], "stage{0[0]}_context_{0[1]}")
def compiled_autograd_is_refused(stage_by_context):
    in_rank(compiles_backward, *stage_by_context)


if __name__ == "__main__":
    ranks.main()
