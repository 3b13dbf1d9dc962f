#!/usr/bin/env python3
"""zeroctl plan predicts what zeroctl status counts on real clusters: planes and windows to the byte, bytes between
nodes within 10 %.  Sizes of known models; the paper's tables; bad input is refused by name."""
import json
import os
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from cluster import MUON_SETS, REPLY_S, SETS, Cluster, Tools, finish_all, group, tensor, until  # noqa: E402
from fake_gpu import environment, plugin  # noqa: E402
from harness import Skip, case, cases_of, main  # noqa: E402

STEPS = 3


def zeroctl(*arguments):
    """Without a daemon: there is no socket of this name."""
    return subprocess.run([Tools.zeroctl, "--socket", "/nonexistent", *map(str, arguments)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=REPLY_S, check=False)


def plan(*arguments):
    r = zeroctl("--json", "plan", *arguments)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)


def refused(words, *arguments, code=1):
    r = zeroctl("plan", *arguments)
    assert r.returncode == code and not r.stdout, (r.returncode, r.stdout, r.stderr)
    for word in words:
        assert word in r.stderr, f"'{word}' is not in: {r.stderr}"


# ---- what daemons count ----

def block_of(name, dtype, width=192, **more):
    return group(name, tensor(f"{name}.w", width, 4 * width + 5), tensor(f"{name}.b", 4 * width + 5), dtype=dtype, **more)


def model(dtype, blocks=10, width=192, **more):
    """Groups of two sizes, tensors that need padding, and a frozen one."""
    groups = [group("embed", tensor("wte", 301, width), tensor("wpe", 64, width, frozen=True), dtype=dtype, **more)]
    return groups + [block_of(f"b{i}", dtype, width, **more) for i in range(blocks)]


def matrices(blocks=8, width=192, **more):
    """Blocks that Muon's matrices share with vectors of AdamW."""
    of = {"optimizer": "muon", "set": len(SETS)}
    return [group(f"b{i}", tensor(f"b{i}.up", width, 4 * width, **of), tensor(f"b{i}.norm", width),
                  tensor(f"b{i}.down", 2, 2 * width, width, **of), dtype="bf16", **more) for i in range(blocks)]


def pipeline(stages, blocks=8):
    """Stage i is rank i; the first and the last one share the embedding."""
    return [group("embed", tensor("wte", 301, 192), dtype="bf16", ranks=[0, stages - 1])] + [
        block_of(f"s{s}.b{i}", "bf16", ranks=[s]) for s in range(stages) for i in range(blocks)]


def tensor_parallel(ranks, parts=2, blocks=8):
    """Rank r has part r % parts of every block, and with all others the embedding."""
    return model("bf16", blocks=0) + [block_of(f"b{i}.p{p}", "bf16", ranks=list(range(p, ranks, parts)))
                                      for i in range(blocks) for p in range(parts)]


CLUSTERS = {
    "2_nodes_stage_3": {"nodes": 2, "stage": 3, "dtype": "fp32"},
    "4_nodes_stage_3": {"nodes": 4, "stage": 3, "dtype": "bf16"},
    "ranks_share_a_window": {"nodes": 2, "stage": 3, "dtype": "bf16", "ranks": 2},
    "2_nodes_stage_2": {"nodes": 2, "stage": 2, "dtype": "bf16", "ranks": 2},
    "4_nodes_stage_2": {"nodes": 4, "stage": 2, "dtype": "fp32"},
    "stage_1": {"nodes": 2, "stage": 1, "dtype": "fp32"},
    "one_node": {"nodes": 1, "stage": 3, "dtype": "fp32", "ranks": 2},
    "one_owner": {"nodes": 2, "stage": 3, "dtype": "bf16", "owners": 1},
    "mirrors": {"nodes": 3, "stage": 3, "dtype": "fp32", "mirror": True},
    "devices": {"nodes": 2, "stage": 2, "dtype": "fp32", "devices": 2},
    "micro_batches": {"nodes": 2, "stage": 3, "dtype": "fp32", "micro_batches": 3},
    "8_nodes_stage_3": {"nodes": 8, "stage": 3, "dtype": "bf16"},
    "8_nodes_stage_2": {"nodes": 8, "stage": 2, "dtype": "fp32"},
    "16_nodes_stage_3": {"nodes": 16, "stage": 3, "dtype": "fp32"},
    "16_nodes_stage_1": {"nodes": 16, "stage": 1, "dtype": "bf16"},
    "16_nodes_2_ranks_each": {"nodes": 16, "stage": 3, "dtype": "bf16", "ranks": 2},
    "pipeline": {"nodes": 4, "stage": 3, "dtype": "bf16", "model": pipeline(4)},
    "pipeline_holds_all": {"nodes": 2, "stage": 1, "dtype": "bf16", "model": pipeline(2)},
    "pipeline_micro_batches": {"nodes": 2, "stage": 3, "dtype": "bf16", "model": pipeline(2), "micro_batches": 2},
    "tensor_parallel": {"nodes": 2, "stage": 3, "dtype": "bf16", "ranks": 2, "model": tensor_parallel(4)},
    "tensor_parallel_over_nodes": {"nodes": 4, "stage": 2, "dtype": "bf16", "model": tensor_parallel(4)},
    "eager": {"nodes": 2, "stage": 3, "dtype": "fp32", "mirror": True, "eager": True},
    "eager_one_owner": {"nodes": 1, "stage": 3, "dtype": "bf16", "ranks": 2, "eager": True},
    "lion_reduces_bf16": {"nodes": 2, "stage": 3, "dtype": "fp32", "reduce": "bf16", "optimizer": "lion"},
    "accumulates_in_the_wires_dtype": {"nodes": 3, "stage": 3, "dtype": "bf16", "mirror": True, "accumulate": "wire"},
    "a_group_larger_than_the_others": {"nodes": 2, "stage": 3, "dtype": "bf16", "ranks": 2,
                                       "model": [group("embed", tensor("wte", 7000, 192), dtype="bf16")] + model("bf16", blocks=8)[1:]},
    "average": {"nodes": 2, "stage": 3, "dtype": "bf16", "mirror": True, "ema": True},
    "moments_in_8_bits": {"nodes": 2, "stage": 3, "dtype": "fp32", "model": model("fp32", state="8bit", ema=True)},
    "eager_moments_in_bf16": {"nodes": 2, "stage": 3, "dtype": "bf16", "model": model("bf16", state="bf16", eager=True)},
    "masters_of_24_bits": {"nodes": 3, "stage": 3, "dtype": "bf16", "mirror": True, "accumulate": "wire",
                           "model": model("bf16", state="8bit", master="bf16+8")},
    "masters_of_32_bits_on_one_owner": {"nodes": 1, "stage": 3, "dtype": "bf16", "model": model("bf16", master="bf16+16")},
    "muon": {"nodes": 2, "stage": 3, "dtype": "bf16", "model": matrices()},
    "muon_in_8_bits_with_averages": {"nodes": 2, "stage": 3, "dtype": "bf16", "model": matrices(state="8bit", ema=True)},
}
OTHERS = {"lion": [["lion", 1e-4, 0.9, 0.99, 0.1]]}


def counted(daemon):
    """What the node has sent and received, and what its job counts."""
    status, job = daemon.status(), daemon.job("plan")
    peers = [p for p in status["peers"] if not p["self"]]
    bytes_of = {way: {kind: sum(p[way][kind] for p in peers) for kind in ("gather", "reduce", "stash")}
                for way in ("sent", "received")}
    return {**bytes_of, "elements": {"gather": job["gather"]["elements_received"],
                                     "reduce": job["reduce"]["elements_sent"]}}


def near(planned, seen, what, most=1):
    """most: how many times what is planned may be counted."""
    assert 0.9 * seen <= most * planned and planned <= 1.1 * seen, f"{what}: {planned} planned, {seen} counted"


def check_node(planned, daemon, before, after, each_rank, gathers):
    """gathers: of a group in a pass, at most.  A rank that falls behind may find it gone from the window."""
    job, state = daemon.job("plan"), daemon.status()["memory"]["state_used"]
    assert planned["planes"] == job["planes"], (planned, job["planes"])
    assert sum(planned["planes"].values()) <= state <= 1.01 * sum(planned["planes"].values()) + (5 << 18) * 4, state
    assert planned["gather"]["window_bytes"] == job["gather"]["window_bytes"], (planned, job["gather"])
    assert {s["push_window"] for s in job["sessions"]} == {each_rank["push_window"]}, (job["sessions"], each_rank)
    assert planned["push_windows"] == sum(s["push_window"] for s in job["sessions"])
    for way in ("sent", "received"):
        for kind in ("gather", "reduce", "stash"):
            seen = (after[way][kind] - before[way][kind]) / STEPS
            print(f"# {daemon.name} {way} {kind}: {planned[way][kind]} planned, {seen:.0f} counted a step")
            near(planned[way][kind], seen, f"{daemon.name} {way} {kind}", gathers if kind == "gather" else 1)
    for kind, name in (("gather", "gather_elements_received"), ("reduce", "reduce_elements_sent")):
        near(planned[name], (after["elements"][kind] - before["elements"][kind]) / STEPS, f"{daemon.name} {name}",
             gathers if kind == "gather" else 1)


@cases_of(CLUSTERS)
def counts(name):
    what = CLUSTERS[name]
    nodes, stage, devices, ranks = what["nodes"], what["stage"], what.get("devices", 1), what.get("ranks", 1)
    more = {k: what[k] for k in ("optimizer", "ema", "eager") if k in what}
    hold, accumulate = -1 if stage < 3 else 3, what.get("accumulate", "fp32")
    placement = [n for n in range(nodes) for _ in range(ranks)]
    names = [f"n{i}" for i in range(what.get("owners", nodes))]
    with Cluster(nodes, owners=" ".join(f"{n}*{devices}" for n in names), mirror=int(what.get("mirror", False))) as c:
        actors = c.ranks("plan", what.get("model") or model(what["dtype"], **more), placement, hold=hold, push=-1 if stage == 1 else 2,
                         grad=what["dtype"], reduce=what.get("reduce", what["dtype"]), accumulate=accumulate)

        def steps(n):
            for a in actors:
                a.start("train", steps=n, stage=stage, micro_batches=what.get("micro_batches", 1),
                        own=True, sets=OTHERS.get(what.get("optimizer"), [*SETS, *MUON_SETS]), ema_decay=0.9)
            finish_all(actors)
            until(lambda: [counted(d) for d in c.daemons] == [counted(d) for d in c.daemons], what="the step's end")
        steps(1)
        before = [counted(d) for d in c.daemons]
        steps(STEPS)
        after = [counted(d) for d in c.daemons]
        options = ["--nodes", nodes, "--owners", len(names), "--devices", devices, "--ranks", ranks, "--stage", stage,
                   "--hold", 3, "--push", 2, "--reduce-dtype", what.get("reduce", what["dtype"]), "--accumulate", accumulate,
                   "--micro-batches", what.get("micro_batches", 1), *(["--mirror"] if what.get("mirror") else [])]
        said = c[0].ctl("plan", "plan", *map(str, options))
        assert said["model"]["elements"] == c[0].job("plan")["parameters"]
        for planned, d, b, a in zip(said["nodes"], c.daemons, before, after):
            check_node(planned, d, b, a, said["rank"], ranks if stage == 3 else 1)


# [node of each rank], ranks of a set, entries, bytes of an entry
STASHES = {
    "alone": ([0, 1], 1, 3, 25 << 12),
    "shared_on_a_node": ([0, 0, 0, 0], 4, 5, 245 << 12),
    "shared_by_2_nodes": ([0, 1], 2, 12, 300_000),
    "shared_by_8_nodes": (list(range(8)), 8, 12, 300_000),
    "shared_by_16_nodes": (list(range(16)), 16, 12, 80 << 10),
    "two_sets_of_2_nodes": ([0, 1, 2, 3], 2, 4, 300_000),
    "2_of_4_on_a_node": ([0, 0, 1, 1], 4, 12, 1_000_000),
}


@cases_of(STASHES)
def stash(name):
    """What is reserved, to the byte; what comes from other nodes, within 10 %."""
    placement, set_ranks, entries, size = STASHES[name]
    nodes, ranks = max(placement) + 1, placement.count(0)
    with Cluster(nodes) as c:
        actors = [c.caller("plan", model("bf16", blocks=1), placement, rank) for rank in range(len(placement))]
        for rank, a in enumerate(actors):
            first = rank - rank % set_ranks
            a.start("attach", stash={"ranks": list(range(first, first + set_ranks)), "bytes": entries * size,
                                     "entry_bytes": size})
        for a in actors:
            finish_all([a, a, a])
        for key in range(entries):
            for a in actors:
                a.start("stash_write", key=key, bytes=size, seed=key)
            finish_all(actors)
        for key in reversed(range(entries)):  # together, as ranks of a set do: who lags behind has an entry brought again
            for a in actors:
                a.start("stash_read", key=key, seed=key)
            finish_all(actors)
            for a in actors:
                a.start("stash_release", key=key, last=True)
            finish_all(actors)
        until(lambda: all(d.job("plan")["stash"]["used"] == 0 for d in c.daemons), what="the stash to be empty")
        said = plan("--layers", entries, "--hidden", 8, "--vocab", 8, "--nodes", nodes, "--ranks", ranks,
                    "--tensor-parallel", set_ranks, "--stash", entries * size)
        for planned, d in zip(said["nodes"], c.daemons):
            seen, moved = d.job("plan")["stash"], counted(d)
            assert planned["stash"] == seen["reserved"], (planned["stash"], seen)
            near(planned["received"]["stash"], seen["received"], f"{d.name} stash received")
            for way in ("sent", "received"):
                near(planned[way]["stash"], moved[way]["stash"], f"{d.name} stash {way}")
        host = plan("--layers", entries, "--hidden", 8, "--vocab", 8, "--nodes", nodes, "--ranks", ranks)["nodes"][0]
        assert said["nodes"][0]["host_bytes"] == host["host_bytes"] + said["nodes"][0]["stash"]


STATES = {"host": {}, "device": {}, "device_in_fewer_bytes": {"state": "8bit", "master": "bf16+8"}}


@cases_of(STATES, "with_states_on_the_{}")
def gpus(name):
    """Each GPU has a window for its share of the ranks; only its session's transfer area is in host memory."""
    place = name.split("_", maxsplit=1)[0]
    with environment(FAKE_GPUS=2), Cluster(2, owners="n0*2 n1*2", device="cuda", cuda_plugin=plugin(),
                                           optimizer=place) as c, environment(ZEROD_CUDA_PLUGIN=plugin()):
        actors = [c.rank("plan", model("bf16", **STATES[name]), [0, 0, 1, 1], rank, hold=3, push=2, grad="bf16", reduce="bf16",
                         device=f"cuda:{rank % 2}") for rank in range(4)]
        for a in actors:
            finish_all([a, a, a])
        states = ["--states", "gpu"] if place == "device" else []
        options = "--nodes 2 --devices 2 --ranks 2 --gpus 2 --hold 3 --push 2".split()
        for planned, d in zip(c[0].ctl("plan", "plan", *options, *states)["nodes"], c.daemons):
            job = d.job("plan")
            assert planned["planes"] == job["planes"], (planned, job["planes"])
            assert job["planes_on_gpu"] == (sum(job["planes"].values()) if states else 0), job
            assert planned["gather"] == {k: job["gather"][k] for k in ("window_bytes", "slots")}, (planned, job)
            assert planned["push_windows"] == sum(s["push_window"] for s in job["sessions"]), (planned, job["sessions"])
            near(planned["gpu_bytes"], max(sum(a["bytes"] for a in gpu["allocations"]) for gpu in d.status()["gpus"]),
                 f"{d.name} GPU")


# ---- what daemons measure ----

def measured_of(c, *options):
    return c[0].ctl("plan", "--measure", *map(str, options))


@cases_of(["ucx", "tcp"], "payloads_by_{}")
def measure(bulk):
    """Every node measures updates, copies and what it receives from each other node; the memory goes back."""
    with Cluster(3, bulk=bulk) as c:
        before = [d.memory() for d in c.daemons]
        said = measured_of(c)["measured"]
        for d, node in zip(c.daemons, said["nodes"]):
            assert node["node"] == d.name
            assert sorted(link["from"] for link in node["links"]) == [o.name for o in c.daemons if o is not d], node
            assert all(link["bytes_per_s"] > 0 for link in node["links"]), node
        for what in ("update", "copy", "link"):
            name = f"{what}_bytes_per_s"
            assert said[name] == min(node[name] for node in said["nodes"]) > 0, said
        until(lambda: all(d.memory() < was + (16 << 10) for d, was in zip(c.daemons, before)), what="the memory")


@case
def measured_rates_bound_the_step():
    """What is given is not measured; one node has no links."""
    with Cluster(1) as c:
        said = measured_of(c, *SIZES, "--copy", 1e6)
        rate = said["measured"]["update_bytes_per_s"]
        assert sorted(said["measured"]) == ["link_bytes_per_s", "nodes", "update_bytes_per_s"], said["measured"]
        assert said["measured"]["link_bytes_per_s"] is None and said["step"]["link_s"] is None
        assert abs(said["step"]["update_s"] * rate - said["nodes"][0]["update_bytes"]) < 1e-6 * rate, said
        assert said["step"]["bound_by"] == "update", said["step"]


def not_measured(c, *words, user=None, options=()):
    r = c[0].ctl_run(*options, "plan", "--measure", user=user)
    assert r.returncode == 1 and not r.stdout, (r.returncode, r.stdout, r.stderr)
    for word in words:
        assert word in r.stderr, f"'{word}' is not in: {r.stderr}"


@case
def other_users_may_not_measure():
    if os.geteuid() != 0:
        raise Skip("needs root")
    with Cluster(1) as c:
        try:
            not_measured(c, "only root and the user zerod runs as", user=65534)
        except PermissionError as why:
            raise Skip(f"nobody cannot run zeroctl here: {why}") from why


@case
def a_job_with_ranks_is_not_disturbed():
    """Wherever its ranks are."""
    with Cluster(2) as c:
        rank, = c.ranks("plan", model("fp32", blocks=1), [1], hold=1, push=1)
        not_measured(c, "job 'plan' has ranks", "EBUSY")
        c.dismiss(rank)
        until(lambda: c[0].job("plan")["state"] == "idle", what="the rank to be gone")
        assert measured_of(c)["measured"]["link_bytes_per_s"] > 0
    r = zeroctl("plan", "--measure")
    assert r.returncode == 3 and "cannot connect" in r.stderr, r.stderr


@case
def a_node_that_does_not_answer_is_named():
    with Cluster(2) as c:
        c[1].stop()
        not_measured(c, "node n1 did not answer in time", options=["--timeout", "4"])
        c[1].kill()
        until(lambda: not c[0].peers_up(), what="the link's end")
        not_measured(c, "node n1 is not reachable")


# ---- models from files ----

def write_safetensors(path, tensors, spoil=b""):
    header, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = {"F32": 4, "BF16": 2, "I64": 8, "F64": 8}.get(dtype, 1)
        for extent in shape:
            size *= extent
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + spoil)
        f.truncate(8 + len(text) + at)


def block(i):
    return {f"h.{i}.w": ("BF16", [256, 300]), f"h.{i}.b": ("BF16", [300])}


@case
def safetensors_and_their_index():
    with tempfile.TemporaryDirectory() as d:
        one, two, index = f"{d}/1.safetensors", f"{d}/2.safetensors", f"{d}/model.safetensors.index.json"
        write_safetensors(one, {"wte": ("BF16", [1000, 256]), "ids": ("I64", [512]), **block(0)})
        write_safetensors(two, {**block(1), **block(10), **block(2)})
        with open(index, "w", encoding="utf-8") as f:
            json.dump({"weight_map": {"wte": "1.safetensors", "h.0.w": "1.safetensors", "h.1.w": "2.safetensors"}}, f)
        size = 256 * 300 + 300
        m = plan("--model", one)["model"]
        assert (m["parameters"], m["groups"], m["tensors_left_out"]) == (256000 + size, 2, 1), m
        m = plan("--model", index)["model"]
        assert (m["parameters"], m["groups"], m["largest_group"]) == (256000 + 4 * size, 5, 256000), m
        assert plan("--model", index, "--dtype", "fp32")["nodes"][0]["planes"]["serve"] == 0
        assert plan("--model", index, "--host-memory", "1M")["largest"]["layers"] is None
        os.rename(two, f"{d}/elsewhere")
        refused(["2.safetensors", "No such file"], "--model", index)
        write_safetensors(two, {"h.0.w": ("BF16", [1])})
        refused(["h.0.w", "in two files"], "--model", index)


@case
def exported_job():
    """The file of a job has the job's tensors."""
    with Cluster(1) as c, tempfile.TemporaryDirectory() as d:
        c.ranks("plan", model("fp32"), [0], hold=1, push=1)
        c[0].ctl("export", "plan", f"{d}/x.safetensors")
        of_job, of_file = c[0].ctl("plan", "plan")["model"], plan("--model", f"{d}/x.safetensors")["model"]
        assert of_job["parameters"] == of_file["parameters"] == of_file["trainable"] - (
            of_file["elements"] - of_file["parameters"])
        assert of_job["trainable"] == of_job["elements"] - 64 * 192, of_job
        assert c[0].ctl_run("plan", "nobody").returncode == 1
    assert zeroctl("plan", "nobody").returncode == 3


BERT = {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072, "vocab_size": 30522,
        "max_position_embeddings": 512, "type_vocab_size": 2}


def gated(hidden, layers, inner, vocab, heads, kv, **more):
    return {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": inner, "vocab_size": vocab,
            "num_attention_heads": heads, "num_key_value_heads": kv, **more}


def gpt2(hidden, layers):
    return {"n_embd": hidden, "n_layer": layers, "n_positions": 1024, "vocab_size": 50257, "n_inner": None}


def latent(layers, dense, heads, experts, vocab):
    """Latent attention and experts, with the sizes that DeepSeek-V3 and Kimi K2 share."""
    return {"hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": layers,
            "first_k_dense_replace": dense, "num_attention_heads": heads, "n_routed_experts": experts,
            "n_shared_experts": 1, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": vocab}


# the numbers of parameters that transformers counts
CONFIGS = {
    "gpt2": ("gpt2", gpt2(768, 12), 124439808),
    "gpt2_xl": ("gpt2", gpt2(1600, 48), 1557611200),
    "bert_base": ("bert", BERT, 109482240),
    "llama_2_7b": ("llama", gated(4096, 32, 11008, 32000, 32, 32), 6738415616),
    "llama_3_8b": ("llama", gated(4096, 32, 14336, 128256, 32, 8, tie_word_embeddings=False), 8030261248),
    "llama_3_2_1b": ("llama", gated(2048, 16, 8192, 128256, 32, 8, tie_word_embeddings=True, head_dim=64), 1235814400),
    "mistral_7b": ("mistral", gated(4096, 32, 14336, 32000, 32, 8), 7241732096),
    "qwen2_7b": ("qwen2", gated(3584, 28, 18944, 152064, 28, 4), 7615616512),
    "deepseek_v3": ("deepseek_v3", latent(61, 3, 128, 256, 129280), 671026404352),
    "qwen2_half_b": ("qwen2", gated(896, 24, 4864, 151936, 14, 2, tie_word_embeddings=True), 494032768),
}


def configured(config, check):
    with tempfile.TemporaryDirectory() as d:
        path = f"{d}/config.json"
        with open(path, "w", encoding="utf-8") as f:
            f.write(config if isinstance(config, str) else json.dumps(config))
        check("--model", path)


@cases_of(CONFIGS)
def config(name):
    family, sizes, parameters = CONFIGS[name]

    def check(*arguments):
        m = plan(*arguments)["model"]
        assert m["parameters"] == parameters, m
    configured({"model_type": family, **sizes}, check)


BAD_CONFIGS = {
    "family": ({"model_type": "mamba"}, ["mamba", "gpt2, bert, llama, mistral, qwen2, deepseek_v3 and kimi_k2", "safetensors"]),
    "no_key": ({"model_type": "gpt2", "n_embd": 8}, ["config.json", "gpt2", "vocab_size", "--layers"]),
    "text": ({"model_type": "gpt2", **gpt2("768", 12)}, ["n_embd", "whole number"]),
    "negative": ({"model_type": "gpt2", **gpt2(-768, 12)}, ["n_embd", "1 to 1000000000"]),
    "negative_dense": ({"model_type": "kimi_k2", **latent(2, -1, 2, 2, 8)}, ["first_k_dense_replace", "0 to 1000000000"]),
    "absurd": ({"model_type": "gpt2", **gpt2(1000000000, 2)}, ["layer0", "2^40"]),
    "layers": ({"model_type": "gpt2", **gpt2(1, 1000000000)}, ["no job of this model", "262144 tensors"]),
    "heads": ({"model_type": "llama", **gated(100, 2, 8, 8, 7, 7)}, ["hidden_size", "num_attention_heads"]),
    "bias": ({"model_type": "llama", **gated(64, 2, 8, 8, 8, 8, attention_bias=True)}, ["attention_bias"]),
    "neither": ({"architectures": []}, ["weight_map", "model_type"]),
    "no_object": ("[]", ["not a JSON object"]),
    "no_json": ("{", ["not a JSON object", "expected"]),
    "outside": ({"weight_map": {"w": "../x.safetensors"}}, ["weight_map", "'w'"]),
}


@cases_of(BAD_CONFIGS)
def bad_config(name):
    text, words = BAD_CONFIGS[name]
    configured(text, lambda *arguments: refused(words, *arguments))


@case
def bad_safetensors():
    with tempfile.TemporaryDirectory() as d:
        path = f"{d}/x.safetensors"
        with open(path, "w", encoding="ascii") as f:
            f.write("this is no safetensors file")
        refused([path, "not a safetensors file"], "--model", path)
        write_safetensors(path, {"w": ("F64", [4])})
        refused(["'w'", "F64", "BF16"], "--model", path)
        write_safetensors(path, {"w": ("I64", [4])})
        refused(["no parameters"], "--model", path)
        refused(["/nowhere", "No such file"], "--model", "/nowhere")
        refused(["not a regular file"], "--model", d)


SIZES = ["--layers", 4, "--hidden", 256, "--vocab", 1000]
BAD_OPTIONS = {
    "no_model": ([], ["JOB", "--model", "--layers", "--paper"]),
    "two_models": ([*SIZES, "--paper"], ["of which model"]),
    "measured_paper": (["--measure", "--paper"], ["of which model"]),
    "part": (["--layers", 4], ["--hidden", "belong together"]),
    "zero_nodes": ([*SIZES, "--nodes", 0], ["--nodes is 1 to 64, not 0"]),
    "nodes": ([*SIZES, "--nodes", 65], ["--nodes is 1 to 64, not 65"]),
    "owners": ([*SIZES, "--nodes", 2, "--owners", 3], ["--owners is 1 to 2, not 3"]),
    "zero_owners": ([*SIZES, "--owners", 0], ["--owners is 1 to 1, not 0"]),
    "hold": ([*SIZES, "--hold", 0], ["--hold is 1 to 65536, not 0"]),
    "seq": ([*SIZES, "--seq", 0], ["--seq"]),
    "devices": ([*SIZES, "--nodes", 64, "--devices", 2], ["--devices"]),
    "ranks": ([*SIZES, "--nodes", 2, "--ranks", 4096], ["--ranks", "4096"]),
    "stage": ([*SIZES, "--stage", 4], ["--stage is 1 to 3, not 4"]),
    "gpus": ([*SIZES, "--gpus", 2], ["--gpus", "--ranks"]),
    "states": ([*SIZES, "--states", "gpu"], ["--gpus", "--states gpu"]),
    "place": ([*SIZES, "--states", "disk"], ["host or gpu", "disk"]),
    "dtype": ([*SIZES, "--dtype", "fp8"], ["--dtype is fp32, bf16 or fp16, not 'fp8'"]),
    "optimizer": ([*SIZES, "--optimizer", "adagrad"], ["adagrad", "lion"]),
    "state": ([*SIZES, "--state", "4bit"], ["--state is fp32, bf16 or 8bit, not '4bit'"]),
    "master": ([*SIZES, "--master", "8bit"], ["--master is fp32, bf16+16 or bf16+8, not '8bit'"]),
    "muon_of_a_job": (["job", "--optimizer", "muon"], ["--optimizer muon", "--model"]),
    "size": ([*SIZES, "--host-memory", "80GB"], ["--host-memory", "suffix", "'80GB'"]),
    "negative": ([*SIZES, "--link", "-1"], ["--link", "above 0", "'-1'"]),
    "too_large": ([*SIZES, "--host-memory", "1048577T"], ["--host-memory", "up to 1048576T"]),
    "rate": ([*SIZES, "--copy", "1e300"], ["--copy", "up to 1000000000"]),
    "nan": ([*SIZES, "--link", "nan"], ["--link", "above 0"]),
    "stash": ([*SIZES, "--stash", "much"], ["--stash", "'much'"]),
    "tensor_parallel": ([*SIZES, "--ranks", 6, "--tensor-parallel", 4], ["--tensor-parallel", "divisor", "not 4"]),
    "tensor_parallel_world": ([*SIZES, "--ranks", 2, "--tensor-parallel", 4], ["--tensor-parallel", "1 to 2, not 4"]),
    "gpu_memory": ([*SIZES, "--gpu-memory", "80G"], ["--gpus", "--gpu-memory"]),
}


@cases_of(BAD_OPTIONS)
def bad_option(name):
    arguments, words = BAD_OPTIONS[name]
    refused(words, *arguments, code=2)


@case
def what_the_model_does_not_say():
    refused(["--stash auto", "--batch"], *SIZES, "--stash", "auto")
    with Cluster(1) as c:
        c.ranks("plan", pipeline(2, blocks=1), [0, 0], hold=1, push=1)
        r = c[0].ctl_run("plan", "plan")
        assert r.returncode == 1 and "--nodes and --ranks" in r.stderr, r.stderr
        assert c[0].ctl("plan", "plan", "--ranks", "2")["nodes"][0]["planes"] == c[0].job("plan")["planes"]


@case
def absurd_numbers():
    """No sum wraps round: what does not fit is refused."""
    most = ["--layers", 8000, "--hidden", 200000, "--vocab", 1000000]
    assert plan(*most)["model"]["parameters"] > 1 << 51
    refused(["2^63", "smaller numbers"], *most, "--nodes", 64, "--micro-batches", 1000000000)
    refused(["2^63"], *SIZES, "--batch", 1000000000, "--seq", 1000000000)
    refused(["at most 2^50"], *SIZES, "--batch", 1000000, "--seq", 1000000, "--stash", "auto")
    refused(["at most 2^50"], *SIZES, "--stash", "1025T")
    refused(["2^40"], "--layers", 1, "--hidden", 1000000000, "--vocab", 1000000000)


# ---- Muon ----

def operations(*matrices):
    """Of five steps of Newton-Schulz on (how many, rows, columns)."""
    return sum(count * 5 * (4 * min(a, b) ** 2 * max(a, b) + 2 * min(a, b) ** 3) for count, a, b in matrices)


def check_muon(matrices, memory, work, *arguments):
    said, plain = plan(*arguments, "--optimizer", "muon"), plan(*arguments)
    planes = {name: sum(node["planes"].get(name, 0) for node in said["nodes"]) for name in said["nodes"][0]["planes"]}
    others = said["model"]["elements"] - sum(count * a * b for count, a, b in matrices)
    assert planes["moment1"] == planes["grad"] == 4 * said["model"]["trainable"], planes
    assert planes["exp_avg_sq"] == 4 * others, (planes, others)
    assert abs(said["newton_schulz"]["flops"] / operations(*matrices) - 1) < 1e-9, said["newton_schulz"]
    assert said["largest_share"] <= memory and said["newton_schulz"]["largest_share"] <= work, said
    assert plain["newton_schulz"] is None and plain["zero_formula"]["bytes_per_parameter"] == 16, plain


@case
def muon_of_a_trillion_parameters():
    """Kimi K2: 61 layers, 60 of them with 384 experts, over 64 owners."""
    mlp = [(3, 18432, 7168), (60 * 384 * 3, 2048, 7168), (60 * 3, 2048, 7168), (60, 384, 7168)]
    attention = [(61, 1536, 7168), (61, 12288, 1536), (61, 576, 7168), (61, 16384, 512), (61, 8192, 7168)]
    configured({"model_type": "kimi_k2", **latent(61, 1, 64, 384, 163840)},
               lambda *model: check_muon(mlp + attention, 1.05, 1.1, *model, "--nodes", 64))


@case
def muon_of_a_decoder():
    matrices = [(12, 768, 2304), (12, 768, 768), (24, 768, 3072)]
    for nodes in (1, 3, 8):
        check_muon(matrices, 1.001, 1.03, "--layers", 12, "--hidden", 768, "--vocab", 50257, "--nodes", nodes)


@case
def muon_fits_where_adamw_does_not():
    options = ["--hidden", 1024, "--vocab", 50257, "--nodes", 2, "--host-memory", "24G"]
    said = {name: plan("--layers", 12, *options, "--optimizer", name)["largest"]["layers"] for name in ("adamw", "muon")}
    assert said["muon"] > said["adamw"], said


# ---- what fits ----

FORMATS = {18: [], 16: ["--accumulate", "wire"], 14: ["--accumulate", "wire", "--master", "bf16+16"],
           12: ["--accumulate", "wire", "--state", "bf16"],
           8.125: ["--accumulate", "wire", "--master", "bf16+16", "--state", "8bit"],
           7.125: ["--accumulate", "wire", "--master", "bf16+8", "--state", "8bit"]}


@cases_of(FORMATS, "of_{}_bytes_a_parameter")
def the_largest_model(size):
    """Of one machine: its memory over these bytes, less the windows of one layer and more."""
    memory = 118e9
    said = plan("--layers", 12, "--hidden", 4096, "--vocab", 50257, "--dtype", "bf16", "--host-memory", int(memory), *FORMATS[size])
    assert said["largest"]["parameters"] <= memory / size, said["largest"]
    print(f"# {said['largest']['parameters']} parameters, {memory / size:.0f} by the bytes of states alone")
    assert said["largest"]["parameters"] >= 0.97 * memory / size, said["largest"]


@case
def the_largest_model_fits_and_one_layer_more_does_not():
    options = ["--hidden", 1024, "--vocab", 50257, "--nodes", 2, "--host-memory", "24G"]
    said = plan("--layers", 12, *options)
    assert said["fits"] is True and not said["advice"]
    largest = said["largest"]
    assert largest["layers"] > 12
    again = plan("--layers", largest["layers"], *options)
    assert again["fits"] and again["model"]["parameters"] == largest["parameters"]
    over = plan("--layers", largest["layers"] + 1, *options)
    assert over["fits"] is False and over["largest"] == largest


@case
def advice_makes_it_fit():
    options = ["--layers", 48, "--hidden", 2048, "--vocab", 50257, "--nodes", 2, "--ranks", 4, "--gpus", 4,
               "--gpu-memory", "12G", "--host-memory", "60G", "--stage", 2, "--mirror", "--states", "gpu"]
    said = plan(*options, "--gpu-memory", "28G")
    assert said["fits"] is False and said["advice"], said["advice"]
    for change in said["advice"]:
        changed = [o for o in options if o != "--mirror"] if change == "no --mirror" else [*options, *change.split()]
        if change.startswith("--nodes"):
            n = int(change.split()[1])
            assert plan(*options, "--gpu-memory", "28G", "--nodes", n - 1)["fits"] is False
        assert plan(*changed, "--gpu-memory", "28G")["fits"], change
    assert "--nodes" in " ".join(said["advice"]), said["advice"]


@cases_of([("25G", "--state 8bit"), ("18G", "--state 8bit --master bf16+8")], "{0[0]}")
def advice_names_formats(what):
    memory, change = what
    options = ["--layers", 32, "--hidden", 2048, "--vocab", 50257, "--nodes", 1, "--host-memory", memory]
    said = plan(*options)
    assert said["fits"] is False and change in said["advice"], (said["advice"], said["nodes"])
    assert plan(*options, *change.split())["fits"] and sum("--state" in c for c in said["advice"]) == 1


@case
def a_step_is_bound_by_the_slowest():
    options = ["--layers", 12, "--hidden", 1024, "--vocab", 50257, "--nodes", 2]
    assert plan(*options)["step"]["bound_by"] is None
    said = plan(*options, "--link", 1, "--update", 100, "--compute", 0.1)
    node, step = said["nodes"][0], said["step"]
    moved = max(node[way]["gather"] + node[way]["reduce"] for way in ("sent", "received"))
    assert abs(step["link_s"] - moved / 1e9) < 0.02 * step["link_s"]
    # reads four planes and writes three, in fp32, and writes the parameters in bf16
    assert abs(step["update_s"] - 30 * said["model"]["elements"] / 2 / 1e11) < 0.02 * step["update_s"]
    assert step["bound_by"] == "link" and step["at_least_s"] == step["link_s"] and step["copy_s"] is None
    assert plan(*options, "--link", 1, "--compute", 60)["step"]["bound_by"] == "compute"


@case
def an_estimate_adds_what_does_not_overlap():
    options = ["--layers", 12, "--hidden", 1024, "--vocab", 50257, "--nodes", 2, "--ranks", 2, "--link", 10, "--update", 50]
    assert plan(*options, "--copy", 20)["step"]["estimate_s"] is None, "without the compute"
    assert plan(*options, "--compute", 1)["step"]["estimate_s"] is None, "without the copies"
    for compute in (0.001, 1):
        rates = [*options, "--copy", 20, "--compute", compute]
        cpu, gpu = plan(*rates)["step"], plan(*rates, "--gpus", 2)["step"]
        assert abs(cpu["estimate_s"] - sum(cpu[f"{what}_s"] for what in ("link", "update", "copy", "compute"))) < 1e-9, cpu
        served = gpu["link_s"] + gpu["copy_s"]
        assert abs(gpu["estimate_s"] - gpu["update_s"] - max(served, compute)) < 1e-9, gpu


@case
def a_rank_holds_what_a_torch_trainer_holds():
    """Four groups, or all where the embedding is so large that four slots of its size are more than the model."""
    for layers, slots in ((12, 13), (48, 4)):
        said = plan("--layers", layers, "--hidden", 1024, "--vocab", 50257, "--nodes", 2)
        assert said["nodes"][0]["gather"]["slots"] == slots, said["nodes"][0]["gather"]
    assert plan("--layers", 12, "--hidden", 1024, "--vocab", 50257, "--nodes", 2, "--hold", 2)["nodes"][0]["gather"][
        "slots"] == 2


@case
def a_window_is_never_larger_than_the_model():
    """With more ranks a window holds more groups, until all of them take no more than equal slots would."""
    def check(*arguments):
        said = [plan(*arguments, "--nodes", 4, "--ranks", n) for n in (1, 8, 9)]
        one, *more = [s["nodes"][0]["gather"] for s in said]
        every = 2 * said[0]["model"]["elements"]
        assert one["slots"] == 4 and one["window_bytes"] < every, one
        assert more[0] == more[1] and every <= more[0]["window_bytes"] <= 1.001 * every, more
    family, sizes, _ = CONFIGS["llama_3_8b"]
    configured({"model_type": family, **sizes}, check)


@case
def activations():
    """2 bytes for each element of a checkpoint a layer."""
    options = ["--layers", 12, "--hidden", 1024, "--vocab", 50257]
    assert plan(*options, "--batch", 8, "--seq", 512)["rank"]["activations"] == 2 * 8 * 512 * 1024 * 12
    assert plan(*options)["rank"]["activations"] == 0
    in_stash = plan(*options, "--batch", 8, "--seq", 512, "--stash", "auto")
    assert in_stash["rank"]["activations"] == 0 and in_stash["rank"]["stash"] == 2 * 8 * 512 * 1024 * 12
    shared = plan(*options, "--batch", 8, "--seq", 512, "--stash", "auto", "--ranks", 4, "--tensor-parallel", 4)
    assert shared["nodes"][0]["stash"] == in_stash["nodes"][0]["stash"] == in_stash["rank"]["stash"]


# ---- the paper ----

def same_digits(value, printed):
    """Whether the paper prints the value so: rounded or cut, to the digits that it has."""
    digit = 10.0 ** -len(f"{printed:g}".partition(".")[2])
    return abs(value - printed) <= digit


@case
def paper_table_1():
    rows = plan("--paper")["table1"]
    assert len(rows) == 54
    for row in rows:
        assert same_digits(row["gb"], row["paper_gb"]), row
    assert {(r["model"], r["processes"], r["stage"]): r["gb"] for r in rows}["7.5B", 64, 3] == 1.875


@case
def paper_table_2():
    """The paper doubles the rounded number of the row before."""
    rows = plan("--paper")["table2"]
    assert len(rows) == 20
    for row in rows:
        assert abs(row["billions"] - row["paper_billions"]) <= 0.025 * row["billions"], row


@case
def paper_table_3():
    """A model that ran fits by its model states alone."""
    rows = plan("--paper")["table3"]
    assert [r["configuration"] for r in rows] == ["C1", "C2", "C3", "C4", "C5"]
    assert [r["paper_billions"] for r in rows] == [40, 60, None, 140, 150]
    assert all(r["billions"] > (r["paper_billions"] or 0) for r in rows)


@case
def text():
    for arguments, words in {
            ("--paper",): ["arXiv 1910.02054", "Table 1", "Table 2", "Table 3", "C5"],
            ("--layers", 12, "--hidden", 768, "--vocab", 50257, "--host-memory", "1G"):
                ["does not fit", "124.4 M parameters", "exp_avg_sq", "--nodes"]}.items():
        r = zeroctl("plan", *arguments)
        assert r.returncode == 0 and not r.stderr, r.stderr
        for word in words:
            assert word in r.stdout, f"'{word}' is not in: {r.stdout}"
        assert words[0] in r.stdout.splitlines()[0], r.stdout


if __name__ == "__main__":
    main()
