"""A small model, and what suites of divided models compare: losses and parameters of one process with the whole batch."""
import contextlib
import os
import signal
import tempfile

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

import ranks
import zerod
import zerod.torch as zt
from cluster import until

STEPS, BATCH, LENGTH, WIDTH, VOCABULARY = 20, 8, 6, 16, 13
MIB = 1 << 20


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 52), nn.Linear(52, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, blocks=3):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        h = self.embed(tokens[:, :-1])
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy(self.head(h).flatten(0, 1), tokens[:, 1:].flatten())


def make(kind=Model):
    torch.manual_seed(5)
    return kind()


def batch_of(step):
    draw = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=draw)
    tokens[0, 0], tokens[-1, 0] = 0, 1  # each expert is used: what has no gradient in a step stays as it is
    if step % 3 == 0:  # each half of the batch goes to one expert
        tokens[:, 0] = torch.arange(BATCH) // (BATCH // 2)
    return tokens


def meet(rank, path, shape, names):
    distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank,
                                   world_size=torch.Size(shape).numel())
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def values(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def train(model, dp, n_dp, optimizer=None, clip=0.5, first=0, steps=STEPS):
    """Losses of the whole batch, as far as this rank knows them, and parameters."""
    optimizer = optimizer or zt.AdamW(model, lr=1e-2)
    losses = []
    for t in range(first, first + steps):
        loss = model(batch_of(t).chunk(n_dp)[dp])
        losses.append(loss.detach())
        loss.backward()
        norm = (model.clip_grad_norm_ if hasattr(model, "clip_grad_norm_")
                else lambda most: nn.utils.clip_grad_norm_(model.parameters(), most))(clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(norm.detach())
    return torch.stack(losses), values(model)


def one_process(kind=Model):
    model = make(kind)
    return train(model, 0, 1, torch.optim.AdamW(model.parameters(), lr=1e-2))


def close(found, wanted):
    """found: of ranks in the order of dp, then the parallel dimension."""
    n_dp = len(found)
    losses = torch.stack([f[0][0] for f in found])
    mean = torch.stack([losses[:, 0::2].mean(0), losses[:, 1::2].mean(0)], 1).flatten()
    assert torch.allclose(mean, wanted[0], rtol=2e-4, atol=2e-5), (n_dp, mean - wanted[0])
    for of in found:
        for got in of:
            assert got[1].keys() == wanted[1].keys()
            for name, value in wanted[1].items():
                assert torch.allclose(got[1][name], value, rtol=1e-3, atol=2e-4), (name, (got[1][name] - value).abs().max())


def in_ranks(function, shape, *arguments, nodes=1):
    n = torch.Size(shape).numel()
    with tempfile.TemporaryDirectory() as directory:
        found = ranks.run(function, [r * nodes // n for r in range(n)], ranks.shared(nodes),
                          arguments=(f"{directory}/meet", shape, *arguments))
    return [found[i:i + shape[1]] for i in range(0, n, shape[1])]


# ---- kills --------------------------------------------------------------------------------


@contextlib.contextmanager
def ending_with_others(killed):
    """As under torchrun, what a kill does to the other ranks ends them."""
    try:
        yield
    except (zerod.Error, RuntimeError) as error:  # gloo's, if another rank has ended
        if not killed:
            raise
        os._exit(3 if not isinstance(error, zerod.Aborted) or "start again together" in error.__notes__[0] else 4)


def start_again(until_the_end, shape, node):
    """A daemon or, with node None, a rank is killed in step 7.  All ranks start again and end at the bits of an undisturbed
    run.  until_the_end(rank, path, shape, killed): killed is the step and the process, 0 for rank 0's own, or None."""
    placement = [0, 1]
    with tempfile.TemporaryDirectory() as directory, ranks.Cluster(2) as cluster:
        wanted = ranks.run(until_the_end, placement, cluster, arguments=(f"{directory}/a", shape, None))
        daemon = cluster[node or 0]
        kill = 7, 0 if node is None else daemon.process.pid
        with ranks.Ranks(until_the_end, placement, cluster, "killed", (f"{directory}/b", shape, kill), None) as first:
            if node is not None:
                until(lambda: daemon.process.poll() is not None, what="the kill")
                daemon.start()
            first.wait(ranks.DEADLINE_S, stop=True)  # and then, as torchrun does, the other one is ended too
            ends = {p.outcome for p in first.processes} - {None}
            assert ends and ends <= {("died", 3), ("died", -signal.SIGKILL)}, ends
        found = ranks.run(until_the_end, placement, cluster, "killed", arguments=(f"{directory}/c", shape, None),
                          environment={"TORCHELASTIC_RESTART_COUNT": 1})
        for got, want in zip(found, wanted):
            assert got.keys() == want.keys()
            for name, value in want.items():
                assert torch.equal(got[name], value), name
