#!/usr/bin/env python3
"""Checkpoints: other tools open what zerod.torch saves, training resumes exactly, and a file that is
broken or somebody else's is refused before anything is written."""
import contextlib
import glob
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402
from harness import case, cases_of  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402

from common import raises, zero  # noqa: E402
from gpt import batch_of, make  # noqa: E402


def same(mine, theirs):
    assert set(mine) == set(theirs), set(mine) ^ set(theirs)
    for name, value in theirs.items():
        assert mine[name].dtype is value.dtype and torch.equal(mine[name], value), name


def near(mine, theirs):
    """Without the keys' biases: their gradient is rounding errors of 0, which Adam makes large."""
    for name in mine.keys() - {n for n in mine if n.endswith("qkv.bias")}:
        torch.testing.assert_close(mine[name], theirs[name], rtol=1e-4, atol=1e-5)


@contextlib.contextmanager
def directory():
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as path:
        yield path


def small_pieces(size=4096):
    """Tensors are read and written in many pieces."""
    from zerod.torch import files
    files.PIECE = size


def with_buffers(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3))
    model.register_buffer("mask", torch.tensor([True, False, True]))
    model.register_buffer("scratch", torch.ones(3), persistent=False)
    model.register_parameter("none", nn.Parameter(torch.empty(0, 3)))
    return model


def train(model, optimizer, steps, begin=0, rank=0, world=1):
    for t in range(begin, begin + steps):
        model(batch_of(t).chunk(world)[rank]).backward()
        optimizer.step()
        optimizer.zero_grad()


# ---- model files -------------------------------------------------------------------


@cases_of([torch.float32, torch.bfloat16, torch.float16])
def others_open_the_file(dtype):
    def run(_, path):
        from safetensors import safe_open
        from safetensors.torch import load_file, load_model
        small_pieces()
        zt, model = zero(make(tied=True, dtype=dtype))
        zt.save_safetensors(model, path, metadata={"who": "me"})
        wanted = make(tied=True, dtype=dtype).state_dict()
        del wanted["head.weight"]  # it is the embedding
        same(load_file(f"{path}/model.safetensors"), wanted)
        with safe_open(f"{path}/model.safetensors", "pt") as f:
            assert f.metadata() == {"format": "pt", "who": "me"}
        plain = make(1, tied=True, dtype=dtype)
        load_model(plain, f"{path}/model.safetensors")
        same(plain.state_dict(), model.state_dict())
        assert os.listdir(path) == ["model.safetensors"]
    with directory() as path:
        ranks.run(run, 1, ranks.shared(), arguments=(path,))


@case
def master_weights_are_exported():
    def run(_, path):
        from safetensors.torch import load_file
        zt, model = zero(make(dtype=torch.bfloat16))
        exact = make().state_dict()
        sharded = model.sharded
        for p in sharded.params:
            sharded.write(p, "master", exact[p.name])
        zt.save_safetensors(model, f"{path}/a.safetensors", dtype=torch.float32)
        same(load_file(f"{path}/a.safetensors"), exact)
        zt.save_safetensors(model, f"{path}/b.safetensors")
        same(load_file(f"{path}/b.safetensors"), {n: v.bfloat16() for n, v in exact.items()})
        zt.load_safetensors(model, f"{path}/b.safetensors")
        zt.load_safetensors(model, f"{path}/a.safetensors")
        assert torch.equal(sharded.read(sharded.params[0]), exact[sharded.params[0].name].flatten())
        raises(ValueError, ["floating"], zt.save_safetensors, model, path, dtype=torch.int64)
    with directory() as path:
        ranks.run(run, 1, ranks.shared(), arguments=(path,))


@case
def several_files_are_hugging_faces():
    def run(_, path):
        from safetensors.torch import load_file
        zt, model = zero(make())
        wanted = make().state_dict()
        zt.save_safetensors(model, path, max_shard_size="60KB")
        with open(f"{path}/model.safetensors.index.json", encoding="utf-8") as f:
            index = json.load(f)
        files = sorted(set(index["weight_map"].values()))
        assert files == [f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))]
        assert len(files) > 3 and index["metadata"]["total_size"] == sum(v.nbytes for v in wanted.values())
        found = {}
        for file in files:
            tensors = load_file(f"{path}/{file}")
            assert all(index["weight_map"][n] == file for n in tensors)
            assert len(tensors) == 1 or sum(v.nbytes for v in tensors.values()) <= 60000
            found.update(tensors)
        same(found, wanted)
        model.load_state_dict(make(1).state_dict())
        zt.load_safetensors(model, path)
        same(model.state_dict(), wanted)
        zt.save_safetensors(model, path, max_shard_size=1 << 30)
        assert os.listdir(path) == ["model.safetensors"], "files of the older save are left"
        for size in ("60XB", 0, "-3GB"):
            raises(ValueError, ["max_shard_size"], zt.save_safetensors, model, path, max_shard_size=size)
    with directory() as path:
        ranks.run(run, 1, ranks.shared(), arguments=(path,))


@case
def transformers_reads_and_is_read():
    def run(_, path):
        import transformers
        config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=61, n_positions=16,
                                         bos_token_id=0, eos_token_id=0)
        torch.manual_seed(0)
        zt, model = zero(transformers.GPT2LMHeadModel(config))
        zt.save_safetensors(model, path, max_shard_size=20000)
        config.save_pretrained(path)
        again, how = transformers.GPT2LMHeadModel.from_pretrained(path, output_loading_info=True)
        assert not any(how.values()), how
        same(again.state_dict(), model.state_dict())
        transformers.GPT2LMHeadModel(config).save_pretrained(f"{path}/other")
        zt.load_safetensors(model, f"{path}/other")
        same(model.state_dict(), transformers.GPT2LMHeadModel.from_pretrained(f"{path}/other").state_dict())
    with directory() as path:
        ranks.run(run, 1, ranks.shared(), arguments=(path,))


@case
def every_rank_loads_and_one_saves():
    def run(rank, path):
        from safetensors.torch import save_file
        small_pieces(64)
        zt, model = zero(with_buffers(), 2)
        wanted = with_buffers(1)
        for t in range(3):
            wanted(torch.randn(4, 5))
        if rank == 0:
            save_file(wanted.state_dict(), f"{path}/in.safetensors")
        model.sharded.barrier()
        model(torch.ones(2, 5))
        zt.load_safetensors(model, f"{path}/in.safetensors")
        if rank == 1:
            zt.save_safetensors(model, f"{path}/out/model.safetensors")
        assert not model.scratch.sub(1).any()
        return {n: v.tolist() for n, v in model.state_dict().items()}
    with directory() as path:
        said = ranks.run(run, [0, 1], ranks.shared(2), arguments=(path,))
        assert said[0] == said[1]

        def check():
            from safetensors.torch import load_file
            same(load_file(f"{path}/out/model.safetensors"), load_file(f"{path}/in.safetensors"))
        ranks.alone(check)


@case
def ranks_load_a_part_each():
    def run(rank, path):
        from safetensors.torch import save_file
        zt, model = zero(make(), 1)
        if rank == 0:
            save_file(make(1).state_dict(), f"{path}/model.safetensors")
        model.sharded.barrier()
        client, put_file, runs = model.sharded.client, model.sharded.client.put_file, []
        client.put_file = lambda fd, values: runs.extend(values) or put_file(fd, values)
        zt.load_safetensors(model, path)
        same(model.state_dict(), make(1).state_dict())
        return {v.tensor: v.count for v in runs}
    with directory() as path:
        parts = ranks.run(run, 3, ranks.shared(), arguments=(path,))
    whole = sum(v.numel() for v in make().parameters())
    assert sum(len(p) for p in parts) == len(set().union(*parts)) and sum(sum(p.values()) for p in parts) == whole
    assert all(0 < sum(p.values()) < whole / 2 for p in parts), parts


@case
def one_rank_loads_alone():
    def run(rank, path):
        from safetensors.torch import save_file
        zt, model = zero(make(), 1)
        model(batch_of(0)).sum()
        if rank == 1:
            save_file(make(1).state_dict(), f"{path}/model.safetensors")
            zt.load_safetensors(model, path, alone=True)
            same(model.state_dict(), make(1).state_dict())
            assert torch.allclose(model(batch_of(0)), make(1)(batch_of(0)), rtol=1e-5)
        model.sharded.barrier()
        assert torch.allclose(model(batch_of(0)), make(1)(batch_of(0)), rtol=1e-5)
    with directory() as path:
        ranks.run(run, 2, ranks.shared(), arguments=(path,))


@case
def an_interrupted_save_leaves_the_old_one():
    def run(_, path):
        zt, model = zero(make())
        zt.save_safetensors(model, path)
        with open(f"{path}/model.safetensors", "rb") as f:
            before = f.read()
        read = model.sharded.read
        reads = list(range(5))

        def fails(*arguments):
            reads.pop()
            return read(*arguments)
        model.sharded.read = fails
        for size in (None, 60000):
            raises(IndexError, [], zt.save_safetensors, model, path, max_shard_size=size)
            assert os.listdir(path) == ["model.safetensors"], os.listdir(path)
            with open(f"{path}/model.safetensors", "rb") as f:
                assert f.read() == before
    with directory() as path:
        ranks.run(run, 1, ranks.shared(), arguments=(path,))


# ---- what is refused ---------------------------------------------------------------


def packed(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(begin=0, end=16, shape=(4,), dtype="F32", **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end], **more}


DATA = bytes(16)
BROKEN = {
    "empty": (b"", "0 bytes"),
    "short": (b"\x01\x02", "2 bytes"),
    "header_longer_than_file": (packed(b"{}", length=1 << 20), "truncated"),
    "header_beyond_limit": (packed(b"{}", length=(1 << 63) + 5), "100000000"),
    "no_json": (packed(b"{\"a\": "), ""),
    "no_utf8": (packed(b"{\"\xff\": 1}"), ""),
    "no_object": (packed(b"[1, 2]"), "begin with {"),
    "leading_space": (packed(b" {}"), "begin with {"),
    "nested_deeply": (packed(b"{\"a\":" + b"[" * 200000 + b"]" * 200000 + b"}"), "nested"),
    "constant": (packed(b"{\"a\": NaN}"), "NaN"),
    "key_twice": (packed(b"{\"a\": 1, \"a\": 1}"), "twice"),
    "metadata_no_strings": (packed({"__metadata__": {"a": 1}}), "__metadata__"),
    "entry_no_object": (packed({"a": 1}), "exactly"),
    "entry_with_more": (packed({"a": entry(more=1)}, DATA), "exactly"),
    "dtype_unknown": (packed({"a": entry(dtype="F4")}, DATA), "F4"),
    "dtype_no_text": (packed({"a": entry(dtype=["F32"])}, DATA), "dtype"),
    "shape_negative": (packed({"a": entry(shape=(-1, -4))}, DATA), "-1"),
    "shape_true": (packed({"a": entry(shape=(True, 4))}, DATA), "True"),
    "shape_float": (packed({"a": entry(shape=(4.0,))}, DATA), "4.0"),
    "shape_huge": (packed({"a": entry(shape=(1 << 40, 1 << 40, 1 << 40))}, DATA), "larger"),
    "shape_many": (packed({"a": entry(shape=[1] * 65 + [4])}, DATA), "list of extents"),
    "shape_and_data_differ": (packed({"a": entry(shape=(5,))}, DATA), "20 bytes"),
    "offsets_three": (packed({"a": {**entry(), "data_offsets": [0, 8, 16]}}, DATA), "two numbers"),
    "offsets_swapped": (packed({"a": entry(16, 0)}, DATA), "-16"),
    "offset_enormous": (packed(b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 1'
                               + b"0" * 5000 + b"]}}", DATA), ""),
    "hole": (packed({"a": entry(0, 16), "b": entry(32, 48)}, DATA * 3), "hole of 16"),
    "hole_first": (packed({"a": entry(16, 32)}, DATA * 2), "hole"),
    "overlap": (packed({"a": entry(0, 16), "b": entry(8, 24)}, DATA + DATA[:8]), "overlap"),
    "same_twice": (packed({"a": entry(0, 16), "b": entry(0, 16)}, DATA), "overlap"),
    "truncated": (packed({"a": entry(0, 16)}, DATA[:-1]), "truncated"),
    "trailing": (packed({"a": entry(0, 16)}, DATA + b"x"), "follows"),
}


@case
def broken_files_are_refused():
    def run(_, path):
        zt, model = zero(make())
        from zerod.torch.checkpoints import CheckpointError
        job = model.sharded.client.job
        before = model.sharded.client.query("checksum", job)
        for name, (data, words) in BROKEN.items():
            with open(f"{path}/{name}.safetensors", "wb") as f:
                f.write(data)
            error = raises(CheckpointError, [words, f"{name}.safetensors"], zt.load_safetensors, model,
                           f"{path}/{name}.safetensors", strict=False)
            assert len(str(error)) < 1000, f"{name}: {len(str(error))} characters"
        os.mkfifo(f"{path}/pipe.safetensors")
        raises(CheckpointError, ["regular"], zt.load_safetensors, model, f"{path}/pipe.safetensors")
        raises(FileNotFoundError, [], zt.load_safetensors, model, f"{path}/nowhere")
        assert model.sharded.client.query("checksum", job) == before
        model(batch_of(0)).backward()
        raises(RuntimeError, ["between steps"], zt.load_safetensors, model, path)
    with directory() as path:
        ranks.run(run, 1, ranks.shared(), arguments=(path,))


@case
def files_go_to_the_service_without_this_process():
    """Types that the service takes as they stand; one that it does not take comes through torch."""
    def run(_, path):
        from safetensors.torch import save_file
        zt, model = zero(make(dtype=torch.bfloat16))
        sharded, write = model.sharded, type(model.sharded).write
        written = []
        type(sharded).write = lambda self, param, *rest: written.append(param) or write(self, param, *rest)
        try:
            for i, dtype in enumerate((torch.float32, torch.bfloat16, torch.float16, torch.float64)):
                wanted = {n: v.to(dtype) for n, v in make(i).state_dict().items()}
                save_file(wanted, f"{path}/model.safetensors")
                zt.load_safetensors(model, path)
                for p in sharded.params:
                    assert torch.equal(sharded.read(p).view(p.shape), wanted[p.name].float()), (dtype, p.name)
                assert set(written) == (set(sharded.params) if dtype is torch.float64 else set()), dtype
        finally:
            type(sharded).write = write
    with directory() as path:
        ranks.run(run, 1, ranks.shared(), arguments=(path,))


@case
def a_file_that_shrinks_while_it_is_loaded():
    def run(_, path):
        zt, model = zero(make())
        from zerod.torch.checkpoints import CheckpointError
        name, put_file = f"{path}/model.safetensors", model.sharded.client.put_file
        zt.save_safetensors(model, path)
        before = model.state_dict()

        def shrinks(*arguments):
            os.truncate(name, os.path.getsize(name) - 4)
            put_file(*arguments)
        model.sharded.client.put_file = shrinks
        raises(CheckpointError, [name, "shorter"], zt.load_safetensors, model, path)
        model.sharded.client.put_file = put_file
        same(model.state_dict(), before)
        zt.save_safetensors(model, path)
        zt.load_safetensors(model, path)
        same(model.state_dict(), before)
    with directory() as path:
        ranks.run(run, 1, ranks.shared(), arguments=(path,))


@case
def broken_indexes_are_refused():
    def run(_, path):
        zt, model = zero(make())
        from zerod.torch.checkpoints import CheckpointError
        zt.save_safetensors(model, path, max_shard_size=60000)
        name = f"{path}/model.safetensors.index.json"
        with open(name, encoding="utf-8") as f:
            good = json.load(f)
        first = next(iter(good["weight_map"]))

        def refused(words, index):
            with open(name, "w", encoding="utf-8") as f:
                json.dump(index, f)
            raises((CheckpointError, FileNotFoundError), words, zt.load_safetensors, model, path)
        refused(["weight_map"], {})
        refused(["weight_map"], {"weight_map": []})
        for bad in ("../x.safetensors", "/etc/passwd", "..", "", 5, "a\0b"):
            refused(["not the name of a file"], {"weight_map": {**good["weight_map"], first: bad}})
        refused(["x.safetensors"], {"weight_map": {n: "x.safetensors" for n in good["weight_map"]}})
        refused(["only one"], {"weight_map": {n: f for n, f in good["weight_map"].items() if n != first}})
        refused(["only one"], {"weight_map": {**good["weight_map"], "more": good["weight_map"][first]}})
    with directory() as path:
        ranks.run(run, 1, ranks.shared(), arguments=(path,))


@case
def misfits_are_listed_and_nothing_is_loaded():
    def run(_, path):
        from safetensors.torch import save_file
        zt, model = zero(make())
        before = model.state_dict()
        state = make(1).state_dict()
        state["extra"] = state.pop("blocks.0.up.weight")
        state["blocks.1.up.bias"] = torch.zeros(2)
        state["ln.bias"] = torch.zeros(48, dtype=torch.int64)
        save_file(state, f"{path}/model.safetensors")
        raises(ValueError, ['Missing key(s)', '"blocks.0.up.weight"', 'Unexpected key(s)', '"extra"',
                            "size mismatch for blocks.1.up.bias", "ln.bias"], zt.load_safetensors, model, path)
        raises(ValueError, ["size mismatch"], zt.load_safetensors, model, path, strict=False)
        assert torch.equal(model.state_dict()["head.weight"], before["head.weight"])
        del state["blocks.1.up.bias"], state["ln.bias"]
        save_file({n: v.double() for n, v in state.items()}, f"{path}/model.safetensors")
        zt.load_safetensors(model, path, strict=False)
        after = model.state_dict()
        assert torch.equal(after["head.weight"], state["head.weight"])
        assert torch.equal(after["ln.bias"], before["ln.bias"])
    with directory() as path:
        ranks.run(run, 1, ranks.shared(), arguments=(path,))


# ---- model and optimizer -----------------------------------------------------------


# class in zerod.torch and arguments, by name in the service
KINDS = {"adamw": ("AdamW", {"lr": 1e-3}), "adam": ("Adam", {"lr": 1e-3, "weight_decay": 0.1}),
         "lion": ("Lion", {"lr": 1e-3}), "sgd": ("SGD", {"lr": 0.1}),
         "sgd-momentum": ("SGD", {"lr": 0.1, "momentum": 0.9})}


def optimized(name, model, stage=3, params=None):
    """zerod.torch, the model sharded for this optimizer, and the optimizer."""
    zt, model = zero(model, stage, optimizer=name)
    kind, arguments = KINDS[name]
    return zt, model, getattr(zt, kind)(model, params and params(model), **arguments)


@cases_of([(torch.float32, "adamw"), *((torch.bfloat16, name) for name in KINDS)], "{0[0]} {0[1]}")
def resumes_exactly(case_of):
    dtype, name = case_of

    def groups(model):
        params = list(model.parameters())
        return [{"params": params[:5], "lr": 3e-3}, {"params": params[5:-1]}]

    def made(stage):
        return optimized(name, make(dtype=dtype, tied=True), stage, groups)

    def run(rank, path):
        zt, model, optimizer = made(3)
        train(model, optimizer, 3, 0, rank, 2)
        optimizer.param_groups[1]["lr"] = 5e-4
        if rank == 1:
            zt.save_checkpoint(path, model, optimizer, max_shard_size=100000)
        train(model, optimizer, 3, 3, rank, 2)
        if rank == 0:
            torch.save((model.state_dict(), optimizer.state_dict()), f"{path}/wanted")

    def resumed(rank, path):
        small_pieces(1000)
        zt, model, optimizer = made(2)
        train(model, optimizer, 1, 7, rank, 2)
        zt.load_checkpoint(path, model, optimizer)
        assert optimizer.param_groups[1]["lr"] == 5e-4
        assert optimizer.param_groups[0].items() >= {**optimizer.defaults, "lr": 3e-3}.items()
        train(model, optimizer, 3, 3, rank, 2)
        params, state = torch.load(f"{path}/wanted")
        same(model.state_dict(), params)
        mine = optimizer.state_dict()
        assert mine["param_groups"] == state["param_groups"]
        for i, values in state["state"].items():
            same(mine["state"][i], values)
    with directory() as path:
        ranks.run(run, [1, 0], ranks.shared(2), arguments=(path,))
        assert len(glob.glob(f"{path}/optimizer-*.safetensors")) > 1
        ranks.run(resumed, [1, 0], ranks.shared(2), arguments=(path,))


@case
def steps_go_on_after_a_checkpoint():
    """Numbers of steps, and so data, schedule and random numbers, go on where the checkpoint was saved: in a new job, in ranks
    that start again, and in a world of another size."""
    def loop(zt, model, optimizer, until, rank, world):
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (1 + t))
        seen = []
        for step in zt.steps(model, until=until, scheduler=scheduler, seed=5):
            with step as t:
                seen.append((t, round(optimizer.param_groups[0]["lr"], 9), float(torch.rand(1))))
                train(model, optimizer, 1, t, rank, world)
        return seen

    def began(rank, world, path):
        zt, model, optimizer = optimized("adamw", make(), 3)
        assert [t for t, *_ in loop(zt, model, optimizer, 4, rank, world)] == [0, 1, 2, 3]
        if rank == 0:
            zt.save_checkpoint(f"{path}/saved", model, optimizer)
        more = loop(zt, model, optimizer, 7, rank, world)
        if rank == 0:
            torch.save((more, model.state_dict()), f"{path}/wanted")

    def went_on(rank, world, path, load, first, until):
        zt, model, optimizer = optimized("adamw", make(), 3)
        if load:
            train(model, optimizer, 1, 9, rank, world)
            zt.load_checkpoint(f"{path}/saved", model, optimizer)
        assert model.sharded.steps_made == first
        seen = loop(zt, model, optimizer, until, rank, world)
        assert [t for t, *_ in seen] == list(range(first, until))
        wanted, params = torch.load(f"{path}/wanted")
        if rank == 0 and world == 2:
            assert seen == wanted[first - 4:until - 4], (seen, wanted)
            if until == 7:
                same(model.state_dict(), params)
    with directory() as path:
        ranks.run(began, [0, 0], ranks.shared(2), arguments=(2, path))
        there = ranks.shared(2)
        for world, load, first, until in ((2, True, 4, 5), (2, False, 5, 7), (3, False, 7, 8)):
            ranks.run(went_on, [0] * world, there, "again", arguments=(world, path, load, first, until), keep=world == 2)


@case
def checkpoints_of_another_optimizer_are_refused():
    def run(_, path, kind, load, words):
        zt, model, optimizer = optimized(kind, make())
        if load:
            raises(ValueError, words, zt.load_checkpoint, f"{path}/{load}", model, optimizer)
        else:
            train(model, optimizer, 1)
            zt.save_checkpoint(f"{path}/{kind}", model, optimizer)
    with directory() as path:
        for name in KINDS:
            ranks.run(run, 1, ranks.shared(), arguments=(path, name, None, []))
        for arguments in (("lion", "adamw", ["exp_avg_sq", "than lion"]),
                          ("adamw", "lion", ["has only exp_avg", "adamw keeps"]),
                          ("adam", "adamw", ["decoupled_weight_decay=True", "zerod.torch.AdamW"]),
                          ("sgd", "sgd-momentum", ["momentum_buffer", "than sgd"]),
                          ("sgd-momentum", "sgd", ["has only step", "momentum_buffer"])):
            ranks.run(run, 1, ranks.shared(), arguments=(path, *arguments))


@case
def checkpoints_that_do_not_fit_are_refused():
    def run(_, path):
        from safetensors.torch import load_file, save_file
        zt, model = zero(make())
        optimizer = zt.AdamW(model, lr=1e-3)
        train(model, optimizer, 1)
        zt.save_checkpoint(f"{path}/a", model, optimizer)
        zt.save_checkpoint(f"{path}/b", model, optimizer)
        job = model.sharded.client.job
        before = model.sharded.client.query("checksum", job)
        os.rename(f"{path}/b/optimizer.safetensors", f"{path}/a/optimizer.safetensors")
        raises(ValueError, ["different saves"], zt.load_checkpoint, f"{path}/a", model, optimizer)
        zt.save_checkpoint(f"{path}/a", model, optimizer)
        two = zt.AdamW(model, [{"params": [p]} for p in model.parameters()])
        raises(ValueError, ["param groups"], zt.load_checkpoint, f"{path}/a", model, two)
        from safetensors import safe_open
        with safe_open(f"{path}/a/optimizer.safetensors", "pt") as f:
            metadata = f.metadata()
        good = {n: t.clone() for n, t in load_file(f"{path}/a/optimizer.safetensors").items()}  # the file is written again

        def refused(words, change, **more):
            bad = dict(good)
            change(bad)
            save_file(bad, f"{path}/a/optimizer.safetensors", {**metadata, **more})
            raises(ValueError, words, zt.load_checkpoint, f"{path}/a", model, optimizer)
        refused(["exp_avg.nobody"], lambda d: d.update({"exp_avg.nobody": torch.zeros(1)}))
        refused(["grad.head.weight"], lambda d: d.update({"grad.head.weight": torch.zeros(1)}))
        refused(["only"], lambda d: d.pop("exp_avg_sq.head.weight"))
        refused(["exp_avg.ln.bias"], lambda d: d.update({"exp_avg.ln.bias": torch.zeros(2)}))
        refused(["step of 'ln.bias'"], lambda d: d.update({"step.ln.bias": torch.tensor(-1)}))
        for text in ("", "[", "5", "[5]", '[{"params": 5}]', "[" * 100000, '[{"params": [], "lr": 1' + "0" * 400 + "}]",
                     metadata["zerod.param_groups"].replace("0.001", "-1")):
            refused(["param groups"], lambda d: None, **{"zerod.param_groups": text})
        assert model.sharded.client.query("checksum", job) == before
        optimizer.param_groups[0]["odd"] = object()
        raises(ValueError, ["JSON"], zt.save_checkpoint, f"{path}/c", model, optimizer)
        assert not os.path.exists(f"{path}/c")
    with directory() as path:
        ranks.run(run, 1, ranks.shared(), arguments=(path,))


# ---- as transformers.Trainer has them ----------------------------------------------


@cases_of(["adam", "sgd", "sgd-momentum"])
def torchs_optimizer_goes_on_from_the_file(name):
    def run(_, path):
        from zerod.torch.checkpoints import load_plain, save_plain
        _, model, optimizer = optimized(name, make())
        theirs, (kind, arguments) = make(), KINDS[name]
        kind = getattr(torch.optim, kind)
        wanted = kind(theirs.parameters(), **{**arguments, "lr": 1.0})
        train(model, optimizer, 3)
        save_plain(path, optimizer)
        found = torch.load(f"{path}/optimizer.pt", weights_only=True)
        assert set(found["param_groups"][0]) == set(wanted.param_groups[0]), found["param_groups"]
        theirs.load_state_dict(model.state_dict())
        wanted.load_state_dict(found)
        train(theirs, wanted, 3, 3)
        train(model, optimizer, 3, 3)
        near(model.state_dict(), theirs.state_dict())
        torch.save(wanted.state_dict(), f"{path}/optimizer.pt")
        load_plain(path, optimizer)
        model.load_state_dict(theirs.state_dict())
        train(theirs, wanted, 3, 6)
        train(model, optimizer, 3, 6)
        near(model.state_dict(), theirs.state_dict())
    with directory() as path:
        ranks.run(run, 1, ranks.shared(), arguments=(path,))


@cases_of([torch.float32, torch.bfloat16])
def torch_loads_the_optimizers_file(dtype):
    def run(_, path):
        from zerod.torch.checkpoints import load_plain, save_plain
        small_pieces()
        model = make(dtype=dtype, tied=True)
        model.register_parameter("none", nn.Parameter(torch.empty(0, 3, dtype=dtype)))
        defaults = torch.optim.AdamW(model.parameters()).defaults
        zt, model = zero(model)
        optimizer = zt.AdamW(model, lr=1e-3)
        train(model, optimizer, 2)
        for name in "ab":
            save_plain(f"{path}/{name}", optimizer, defaults)
        found = torch.load(f"{path}/a/optimizer.pt", weights_only=True)
        if dtype is torch.bfloat16:
            for i, master in torch.load(f"{path}/a/master.pt", weights_only=True)["master"].items():
                found["state"][i]["master"] = master
        wanted = optimizer.state_dict()
        assert found["state"].keys() == wanted["state"].keys()
        for i, entry in wanted["state"].items():
            same(found["state"][i], entry)
        assert found["param_groups"] == [{k: v for k, v in {**defaults, **g}.items() if k in {*defaults, "params"}}
                                         for g in wanted["param_groups"]]
        if dtype is torch.bfloat16:
            masters = torch.load(f"{path}/a/master.pt", weights_only=True)
            for wrong, key in (({"weights": 1}, "zerod.save"), ({**masters, "master": {99: 1}}, "99"),
                               ({**masters, "master": {0: 1}}, "0"), ({**masters, "master": [1]}, "master"),
                               ({"zerod.save": masters["zerod.save"]}, "master")):
                torch.save(wrong, f"{path}/a/master.pt")
                raises(ValueError, [f"{path}/a/master.pt", f"'{key}'", "delete it"], load_plain, f"{path}/a", optimizer)
        os.rename(f"{path}/b/optimizer.pt", f"{path}/a/optimizer.pt")
        raises(ValueError, ["different saves"], load_plain, f"{path}/a", optimizer)
    with directory() as path:
        ranks.run(run, 1, ranks.shared(), arguments=(path,))


if __name__ == "__main__":
    ranks.main()
