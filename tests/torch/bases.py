#!/usr/bin/env python3
"""shard(base=...): frozen parameters that are mapped out of one copy of their files, and what is refused."""
import contextlib
import copy
import faulthandler
import json
import os
import signal
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from harness import case, cases_of  # noqa: E402

import torch  # noqa: E402

import zerod  # noqa: E402
import zerod.torch as zt  # noqa: E402
from zerod.torch import files  # noqa: E402
from cluster import until  # noqa: E402
from common import frozen_files, raises, save  # noqa: E402
from gpt import batch_of, make  # noqa: E402
from survivor import survive  # noqa: E402

STEPS = 3


def frozen(trained=".up.", **options):
    """A GPT of which the parameters with that in their names are trained."""
    model = make(**options)
    for name, p in model.named_parameters():
        p.requires_grad_(trained in name)
    return model


def train(rank, path, tied, blank=False):
    """Losses, trained parameters, and the names of what is in the service."""
    model = frozen(tied=tied)
    if blank:
        with torch.no_grad():
            for p in model.parameters():
                if not p.requires_grad:
                    p.zero_()
    zt.shard(model, base=path and [path])
    optimizer, losses = zt.AdamW(model, lr=1e-2), []
    for t in range(STEPS):
        loss = model(batch_of(t).chunk(2)[rank])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with zt.full_params(model):
        values = {n: p.detach().numpy().tobytes() for n, p in model.named_parameters()}
    assert model.state_dict().keys() == frozen(tied=tied).state_dict().keys()
    return losses, values, [p.name for p in model.sharded.params]


@cases_of((False, True), "tied_{}")
def trains_to_the_same_bits(tied):
    with frozen_files(frozen(tied=tied)) as (path,):
        cluster = ranks.shared(1)
        without = ranks.run(train, 2, cluster, arguments=(None, tied))
        on_base = ranks.run(train, 2, cluster, arguments=(path, tied, True))
    for (losses, values, _), (found, other, names) in zip(without, on_base):
        assert (losses, values) == (found, other)
        assert names and all(".up." in n for n in names), names


@cases_of((False, True), "tied_{}")
def nodes_have_a_copy_each(tied):
    """Ranks on two nodes have the bits of ranks on one."""
    with frozen_files(frozen(tied=tied)) as (path,):
        cluster = ranks.shared(2)
        want = ranks.run(train, 2, cluster, arguments=(path, tied, True))
        found = ranks.run(train, [0, 1], cluster, arguments=(path, tied, True))
    assert [f[:2] for f in found] == [w[:2] for w in want]
    for daemon in cluster.daemons:
        until(lambda d=daemon: not d.status()["bases"], what="the end of the base")


# ---- adapters ------------------------------------------------------------------------

def adapt(_, path):
    import peft
    import transformers
    config = transformers.LlamaConfig(vocab_size=61, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=4)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    save(path, dict(model.named_parameters()))
    tokens = torch.arange(32).view(2, 16)
    lora = peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2, modules_to_save=["norm"])
    plain = peft.get_peft_model(model, lora)
    want = plain(input_ids=tokens, labels=tokens).loss.item()
    zt.shard(plain, base=[path])
    assert all("lora_" in p.name or "modules_to_save" in p.name for p in plain.sharded.params)
    optimizer = zt.AdamW(plain, lr=1e-2)
    losses = []
    for _ in range(STEPS):
        loss = plain(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == want and losses[-1] < losses[0], (losses, want)
    with torch.no_grad():
        want = plain(input_ids=tokens, labels=tokens).loss.item()
        with zt.full_params(plain):
            for merge in (plain.merge_adapter, plain.merge_and_unload):
                raises(RuntimeError, ["q_proj", "of the base", "copy.deepcopy(model)"], merge)
        merged = copy.deepcopy(plain).merge_and_unload()
        assert abs(merged(input_ids=tokens, labels=tokens).loss.item() - want) < 1e-5
        assert plain(input_ids=tokens, labels=tokens).loss.item() == want


@case
def adapters_of_peft_find_the_names_before_peft():
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        ranks.run(adapt, 1, ranks.shared(1), arguments=(os.path.join(directory, "base.safetensors"),))


# ---- what is written -----------------------------------------------------------------

def write(_, path):
    model = zt.shard(frozen(), base=[path])
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        faulthandler.enable(tell)
        with torch.no_grad():
            model.wte.weight.add_(1)
        os._exit(0)
    os.close(tell)
    with open(told, encoding="utf-8") as f:
        said = f.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV
    assert f'"{__file__}", line {write.__code__.co_firstlineno + 7} in write' in said, said
    assert torch.equal(model.wte.weight, frozen().wte.weight)


@case
def operation_in_place_ends_the_process_and_changes_nothing():
    with frozen_files(frozen()) as (path,):
        ranks.run(write, 1, ranks.shared(1), arguments=(path,))


# ---- what is killed ------------------------------------------------------------------

def disturbed(moment, restart, how, target, placement=(0, 0, 0)):
    with frozen_files(frozen()) as (path,), tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        options, cluster = (("base", path),), ranks.shared(len(set(placement)))
        want = ranks.run(survive, placement, cluster, arguments=(options,))
        with ranks.Ranks(survive, placement, cluster, arguments=(options, moment, directory, target, how)) as job:
            restart(job)
            said = job.finish()
        cluster[0].ctl("drop", job.job)
        assert os.listdir(directory), "nothing was killed"
        assert said == want and said[0] == said[1] == said[2]


@cases_of(("forward", "backward", "step"), "in_{}")
def rank_is_started_again(moment):
    disturbed(moment, lambda job: job.restart(2), signal.SIGKILL, None)


@cases_of(("forward", "step"), "in_{}")
def daemon_is_started_again(moment):
    daemon = ranks.shared(1)[0]

    def restart(_job):
        daemon.process.wait(ranks.DEADLINE_S)
        daemon.start()
    disturbed(moment, restart, signal.SIGKILL, daemon.process.pid)


@cases_of((0, 1), "on_node_{}")
def daemon_of_one_of_two_nodes_is_started_again(node):
    """Its ranks bring it the base again; the other node keeps its copy."""
    cluster = ranks.shared(2)

    def restart(_job):
        cluster[node].process.wait(ranks.DEADLINE_S)
        cluster[node].start()
    disturbed("backward", restart, signal.SIGKILL, cluster[node].process.pid, (0, 0, 1))


# ---- what is refused -----------------------------------------------------------------

def refuse(_, path, other):
    good = {n: p for n, p in frozen().named_parameters() if not p.requires_grad}

    def refused(kind, words, tensors, model=None, **options):
        if tensors is not None:
            save(path, tensors)
        raises(kind, words, zt.shard, model or frozen(), base=options.pop("base", [path]), **options)
    refused(ValueError, ["'blocks.0.qkv.weight' is frozen", "in no file"],
            {n: t for n, t in good.items() if n != "blocks.0.qkv.weight"})
    refused(ValueError, ["'wte.weight'", "float32 (61, 48)", "bfloat16 (61, 48)"],
            {**good, "wte.weight": good["wte.weight"].bfloat16()})
    refused(ValueError, ["'wte.weight'", "(61, 48)", "(48, 61)"], {**good, "wte.weight": good["wte.weight"].T})
    refused(ValueError, ["'blocks.0.up.weight' is trained and in the base"], {**good, "blocks.0.up.weight": torch.zeros(1)})
    refused(ValueError, "no parameter of the model is frozen", {"x": torch.zeros(1)}, make())
    refused(TypeError, "list of safetensors files", None, base=path)
    save(other, {"wte.weight": good["wte.weight"]})
    refused(files.CheckpointError, ["wte.weight", "another file"], good, base=[path, other])
    refused(zerod.InputOutput, "cannot open", None, base=[path + ".no"])


@case
def refusals_name_the_parameter():
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        ranks.run(refuse, 1, ranks.shared(1), arguments=(f"{directory}/a.safetensors", f"{directory}/b.safetensors"))


def header(entries, data=b"", length=None):
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": [(end - begin) // 4], "data_offsets": [begin, end]}


HOSTILE = {"no_header": (b"short", "not a safetensors file"),
           "header_too_large": (header({}, length=1 << 40), "header would have"),
           "truncated": (header({"a": entry(0, 64)}, bytes(60)), "truncated"),
           "overlapping": (header({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)), "overlap"),
           "wrong_size": (header({"a": {**entry(0, 8), "shape": [3]}}, bytes(8)), "needs 12 bytes"),
           "twice": (header({}).replace(b"{}", b'{"a":1,"a":2}', 1), "safetensors"),
           "not_aligned": (header({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "b": entry(1, 5)}, bytes(5)),
                           "not aligned")}


def hostile(_, path, words):
    raises(files.CheckpointError, words, zt.shard, frozen(), base=[path])


@cases_of(HOSTILE)
def hostile_file(name):
    content, words = HOSTILE[name]
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        path = os.path.join(directory, "base.safetensors")
        with open(path, "wb") as f:
            f.write(content)
        ranks.run(hostile, 1, ranks.shared(1), arguments=(path, words))


def load(_, path):
    model = zt.shard(frozen(), base=[path])
    values = model.state_dict()
    model.load_state_dict(values)
    values["wte.weight"] = values["wte.weight"] + 1
    raises(ValueError, ["'wte.weight' is of the base"], model.load_state_dict, values)
    assert torch.equal(model.wte.weight, frozen().wte.weight)


@case
def load_state_dict_takes_the_same_values_alone():
    with frozen_files(frozen()) as (path,):
        ranks.run(load, 1, ranks.shared(1), arguments=(path,))


if __name__ == "__main__":
    ranks.main()
