#!/usr/bin/env python3
"""Frozen parameters of int8, uint8, fp8 and bool: the service has their bytes, and adapters beside them train as in
plain PyTorch."""
import copy
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402
from harness import case, cases_of  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import zerod.torch as zt  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402
from common import frozen_files, raises  # noqa: E402
from meshes import in_ranks, meet  # noqa: E402
from net import both, full, in_rank, loss_of, make  # noqa: E402

STEPS = 3
BYTES = (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)


class Packed(nn.Parameter):
    """As bitsandbytes' Params4bit: bytes with a state of their own, and some functions."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        assert func is not torch.chunk
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def __deepcopy__(self, memo):
        made = type(self)(self.data.clone(), requires_grad=False)
        made.quant_state = copy.deepcopy(self.quant_state, memo)
        return made


class Adapter(nn.Module):
    """A frozen layer that is dequantised in forward, and two small matrices that train (LoRA)."""

    def __init__(self, layer):
        super().__init__()
        self.quantise(layer.weight.detach())
        self.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)
        self.a = nn.Parameter(torch.randn(2, layer.in_features) / 4)
        self.b = nn.Parameter(torch.randn(layer.out_features, 2) / 4)

    def forward(self, x):
        return F.linear(x, self.dequantised(), self.bias) + x @ self.a.t() @ self.b.t()


class FourBits(Adapter):
    """Two values a byte, a scale for each 64 of them, in the class and the shape of bitsandbytes' layer."""

    def quantise(self, weight):
        flat = F.pad(weight.flatten(), (0, -weight.numel() % 64)).view(-1, 64)
        absmax = flat.abs().amax(1, keepdim=True)
        codes = ((flat / absmax + 1) * 7.5).round().to(torch.uint8).flatten()
        self.weight = Packed((codes[::2] << 4 | codes[1::2]).unsqueeze(1), requires_grad=False)
        self.weight.quant_state = {"absmax": absmax, "shape": weight.shape}

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight.absmax"] = self.weight.quant_state["absmax"]

    def dequantised(self):
        state, packed = self.weight.quant_state, self.weight.flatten()
        codes = torch.stack((packed >> 4, packed & 15), 1).view(-1, 64)
        return ((codes / 7.5 - 1) * state["absmax"]).flatten()[:state["shape"].numel()].view(state["shape"])


class EightBits(Adapter):
    """As torchao's weights of one byte, and a scale a row: both frozen parameters."""

    dtype = torch.int8

    def quantise(self, weight):
        top = 127 if self.dtype is torch.int8 else torch.finfo(self.dtype).max
        scale = weight.abs().amax(1, keepdim=True) / top
        values = weight / scale
        self.weight = nn.Parameter((values.round() if self.dtype is torch.int8 else values).to(self.dtype),
                                   requires_grad=False)
        self.scale = nn.Parameter(scale.to(torch.bfloat16), requires_grad=False)

    def dequantised(self):
        return self.weight.to(torch.float32) * self.scale


class E4M3(EightBits):
    dtype = torch.float8_e4m3fn


class E5M2(EightBits):
    dtype = torch.float8_e5m2


def quantised(kind):
    def prepare(model):
        torch.manual_seed(3)
        model.requires_grad_(False)
        for block in model.blocks:
            block.up, block.down = kind(block.up), kind(block.down)
        return model
    return prepare


@cases_of([(k, s) for k in (FourBits, EightBits, E4M3, E5M2) for s in (2, 3)], "{0[0].__name__}_{0[1]}")
def adapters_train_beside_bytes(what):
    """Two ranks on two nodes have the losses and the parameters of plain PyTorch."""
    kind, stage = what

    def run(_):
        reference, want, losses, got = both(stage, {}, prepare=quantised(kind))
        assert max(abs(a - b) for a, b in zip(reference, losses)) < 1e-4, (reference, losses)
        for name, value in want.items():
            assert value.requires_grad or raw({name: value}) == raw({name: got[name]}), name
            assert not value.requires_grad or (got[name] - value).norm() < 2e-3 * value.norm(), name
    ranks.run(run, [0, 1], ranks.shared(2))


@case
def what_a_class_saves_of_bytes_is_saved():
    """The state of quantised bytes, an attribute of theirs, is in state_dict(); a copy of the model computes the same."""
    def run():
        plain, model = (quantised(FourBits)(make()) for _ in range(2))
        want = plain.state_dict()
        got = zt.shard(model).state_dict()
        assert list(got) == list(want) and all(type(got[n]) is type(t) and torch.equal(got[n], t) for n, t in want.items())
        assert torch.equal(loss_of(copy.deepcopy(model), 0), loss_of(plain, 0))
    in_rank(run)


class Odd(nn.Module):
    """Parameters of all types, and of lengths that are no whole words."""

    def __init__(self, seed=1):
        super().__init__()
        torch.manual_seed(seed)
        for n in (1, 3, 4, 257, 70001):
            for dtype in BYTES:
                values = torch.randint(0, 256, (n,), dtype=torch.uint8)
                values[:256] = torch.arange(256, dtype=torch.uint8)[:n]  # all bytes: also fp8's NaN
                setattr(self, f"p{n}_{dtype}".replace("torch.", ""), nn.Parameter(values.view(dtype), requires_grad=False))
        self.mask = nn.Parameter(torch.rand(13) < 0.5, requires_grad=False)
        self.empty = nn.Parameter(torch.empty(0, 3, dtype=torch.int8), requires_grad=False)
        self.scalar = nn.Parameter(torch.tensor(-7, dtype=torch.int8), requires_grad=False)
        self.trained = nn.Parameter(torch.randn(5, dtype=torch.bfloat16))

    def forward(self):
        return {n: p.detach().clone() for n, p in self.named_parameters()}, self.trained.sum()


def raw(tensors):
    return {n: (t.dtype, t.shape, bytes(t.detach().reshape(-1).view(torch.uint8).tolist())) for n, t in tensors.items()
            if n != "trained"}


@cases_of([1, 3])
def all_bytes_are_kept(stage):
    """Every byte is as it was: in forward, state_dict(), a copy and a file, after steps too."""
    def run(rank):
        want = raw(dict(Odd().named_parameters()))
        model = zt.shard(Odd(), stage=stage)
        optimizer = zt.AdamW(model, lr=0.1)
        for _ in range(2):
            assert raw(model()[0]) == want
            model()[1].backward()
            optimizer.step()
        assert raw(model.state_dict()) == want and raw(full(model)) == want
        if rank == 0:
            assert raw(dict(copy.deepcopy(model).named_parameters())) == want
            assert all(p.full_tensor().dtype is p.dtype for p in model.parameters())
        model.sharded.barrier()
    ranks.run(run, [0, 1], ranks.shared(2))


@case
def bytes_are_written():
    """full_params(), load_state_dict() and files write bytes, each as it is; a file of another type is refused."""
    def run():
        other = raw(dict(Odd(2).named_parameters()))
        model = zt.shard(Odd())
        model.load_state_dict(Odd(2).state_dict())
        assert raw(full(model)) == other
        with tempfile.TemporaryDirectory() as path:
            zt.save_safetensors(model, path, dtype=torch.float32)
            with zt.full_params(model, write=True):
                model.p257_int8.data[2] = 77
                model.p3_float8_e5m2.data.view(torch.uint8)[1] = 255
            changed = full(model)
            assert changed["p257_int8"][2] == 77 and changed["p3_float8_e5m2"].view(torch.uint8)[1] == 255
            zt.load_safetensors(model, path)
            assert raw(full(model)) == other
            wrong = Odd()
            wrong.p4_uint8 = nn.Parameter(wrong.p4_uint8.data.view(torch.int8), requires_grad=False)
            model.sharded.client.close()
            wrong = zt.shard(wrong, job="wrong", keep=False)
            raises(ValueError, ["p4_uint8", "torch.uint8 in the checkpoint"], zt.load_safetensors, wrong, path)
    in_rank(run)


class Pair(nn.Module):
    """A frozen parameter of bytes, and one that trains."""

    def __init__(self, values, trained):
        super().__init__()
        self.bytes, self.trained = nn.Parameter(values, requires_grad=False), nn.Parameter(trained)

    def forward(self):
        return getattr(self.bytes, "_local_tensor", self.bytes).clone()


@case
def memory_is_that_of_the_bytes():
    """The service has the bytes once, no moments, and no copy in the type of the other parameters."""
    def run():
        model = Pair(torch.zeros(1000, 1001, dtype=torch.uint8), torch.zeros(128, dtype=torch.bfloat16))
        client = zt.shard(model).sharded.client
        group = client.query("shards", client.job)["jobs"][0]["groups"][0]
        held = group["shards"][0]["bytes"]
        assert group["dtype"] == "uint8" and 0 <= held.pop("master") - 1000 * 1001 < 512 and not any(held.values()), held
    in_rank(run)


def divided(rank, path, shape, axis):
    """The whole bytes, as they are written first and later, and what this rank's part has in forward."""
    mesh = meet(rank, path, shape, ("dp", "tp"))
    whole = torch.arange(91, dtype=torch.uint8).view(7, 13)
    model = zt.shard(Pair(distribute_tensor(whole, mesh["tp"], [Shard(axis)]), torch.zeros(1)), mesh=mesh)
    part = torch.chunk(whole, 2, axis)[rank]
    assert torch.equal(model(), part) and torch.equal(full(model)["bytes"], whole)
    model.load_state_dict({"bytes": whole + 100, "trained": torch.zeros(1)})
    assert torch.equal(model(), part + 100) and torch.equal(full(model)["bytes"], whole + 100)
    model.sharded.barrier()
    if rank == 0:
        model.sharded.write(model.sharded.params[0], "master", torch.tensor([1, 2, 3], dtype=torch.uint8), 45)
        values = model.sharded.read(model.sharded.params[0], "serve", 43, 7).tolist()
        assert values == [143, 144, 1, 2, 3, 148, 149], values
    model.sharded.barrier()


@cases_of([0, 1], "dimension_{}")
def bytes_are_divided(axis):
    """A DTensor of bytes, whose parts are no whole words."""
    in_ranks(divided, (1, 2), axis)


@case
def trained_bytes_are_refused():
    class Trained(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, dtype=torch.float8_e5m2))
    raises(TypeError, ["weight", "float8_e5m2", "requires_grad_(False)"], zt.shard, Trained())


# ---- in a base ----------------------------------------------------------------------

def with_odd_ones(kind):
    """A net with frozen bytes of a kind, and a parameter of each type of a byte that nothing uses."""
    model = quantised(kind)(make())
    for i, dtype in enumerate((*BYTES, torch.bool)):
        values = (torch.arange(256) % (2 if dtype is torch.bool else 256)).to(torch.uint8)  # also fp8's NaN
        model.register_parameter(f"odd{i}", nn.Parameter(values.view(dtype), requires_grad=False))
    return model


def adapt_bytes(rank, path, kind):
    """Losses, the trained parameters, and the frozen ones' bytes."""
    model = with_odd_ones(kind)
    attributes = {n: dict(vars(p)) for n, p in model.named_parameters() if not p.requires_grad}
    zt.shard(model, base=path and [path])
    optimizer, losses = zt.AdamW(model, lr=1e-2), []
    for t in range(STEPS):
        loss = loss_of(model, STEPS * rank + t)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    for name, p in model.named_parameters():
        if path and name in attributes:
            assert type(p) is type(with_odd_ones(kind).get_parameter(name)), name
            assert vars(p).keys() >= attributes[name].keys(), name
    state = model.state_dict()
    model.load_state_dict(state, strict=False)  # what a class saves beside its bytes, no module loads
    state["odd1"] = state["odd1"].flip(0)
    if path:
        raises(ValueError, "'odd1' is of the base", model.load_state_dict, state, False)
        assert all(p.trainable for p in model.sharded.params)
    return losses, {n: t.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for n, t in model.state_dict().items()}


@cases_of((FourBits, EightBits, E4M3, E5M2), "{0.__name__}")
def bytes_stay_as_they_are(kind):
    """In the layouts of bitsandbytes and torchao, beside adapters: as held by the service."""
    with frozen_files(with_odd_ones(kind)) as (path,):
        cluster = ranks.shared(2)
        without = ranks.run(adapt_bytes, [0, 1], cluster, arguments=(None, kind))
        on_base = ranks.run(adapt_bytes, [0, 1], cluster, arguments=(path, kind))
    for (losses, state), (found, other) in zip(without, on_base):
        assert losses == found and state == other


if __name__ == "__main__":
    ranks.main()
