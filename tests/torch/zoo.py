#!/usr/bin/env python3
"""Hugging Face's architectures, made small from their configurations: each trains ten steps through zerod as it
does in plain PyTorch, and generates the same tokens.

Two ranks have half a batch each; plain PyTorch has the mean of both halves.  Dropout stays as each
configuration has it: all runs draw the same numbers.  client/python/docs/frameworks.md has the table of what runs here.
"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from harness import case, cases_of  # noqa: E402

import numpy  # noqa: E402
import torch  # noqa: E402

try:
    import transformers
except ImportError:
    ranks.leave_out("no transformers: set TESTS_PYTHON to a Python that has deploy/python-requirements")

import zerod.torch as zt  # noqa: E402

STEPS, RANKS, ROWS, LENGTH, VOCABULARY = 10, 2, 4, 12, 61
# eps: the gradient of a key's bias is rounding noise, and AdamW would make whole updates of it
ADAMW = {"lr": 1e-3, "eps": 1e-3, "weight_decay": 0.1}
LOSS, PARAMETER = 1e-5, 1e-5  # relative, a parameter's norm-wise
OLD = transformers.__version__ < "5"
# T5 of transformers 4 begins so that rounding grows: plain PyTorch in fp32 is 1.5e-4 away from itself in fp64
ROUGH = {"t5": 1e-4} if OLD else {}
README = os.path.join(ranks.CLIENT, "docs/frameworks.md")
REQUIREMENTS = os.path.join(ranks.ROOT, "deploy/python-requirements")
NEW = 8  # tokens that are generated

TEXT = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 48, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
PICTURE = {"image_size": 16, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
           "intermediate_size": 48}
BOTH = {"encoder_layers": 2, "decoder_layers": 6, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "d_model": 32, "vocab_size": VOCABULARY, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}

# ---- batches: of a rank's rows, by the step and the rank ---------------------------


def drawn(step, rank):
    return torch.Generator().manual_seed(100 * step + rank)


def text(step, rank):
    tokens = torch.randint(3, VOCABULARY, (ROWS, LENGTH), generator=drawn(step, rank))
    return {"input_ids": tokens, "labels": tokens}


def choice(step, rank):
    draw = drawn(step, rank)
    return {"input_ids": torch.randint(3, VOCABULARY, (ROWS, LENGTH), generator=draw),
            "labels": torch.randint(2, (ROWS,), generator=draw)}


def pictures(step, rank):
    draw = drawn(step, rank)
    return {"pixel_values": torch.randn(ROWS, 3, 16, 16, generator=draw),
            "labels": torch.randint(2, (ROWS,), generator=draw)}


def captions(step, rank):
    return {"input_ids": text(step, rank)["input_ids"], "pixel_values": pictures(step, rank)["pixel_values"],
            "return_loss": True}


def sounds(step, rank):
    draw = drawn(step, rank)
    return {"input_values": torch.randn(ROWS, 400, generator=draw),
            "labels": torch.randint(3, VOCABULARY, (ROWS, 4), generator=draw)}


def spectra(step, rank):
    draw = drawn(step, rank)
    return {"input_features": torch.randn(ROWS, 8, 32, generator=draw),
            "labels": torch.randint(3, VOCABULARY, (ROWS, LENGTH), generator=draw)}


# ---- architectures -----------------------------------------------------------------

CAUSAL = transformers.AutoModelForCausalLM, text
MASKED = transformers.AutoModelForMaskedLM, text
CLASSES = transformers.AutoModelForSequenceClassification, choice
TRANSLATION = transformers.AutoModelForSeq2SeqLM, text
KINDS = {
    "bloom": (*CAUSAL, TEXT),
    "falcon": (*CAUSAL, TEXT),
    "gemma": (*CAUSAL, GROUPED),
    "gpt2": (*CAUSAL, TEXT),
    "gpt_neox": (*CAUSAL, TEXT),
    "llama": (*CAUSAL, GROUPED),
    "mamba": (*CAUSAL, {**TEXT, "state_size": 4}),
    "mistral": (*CAUSAL, GROUPED),
    "mixtral": (*CAUSAL, {**GROUPED, "num_local_experts": 4, "output_router_logits": True}),
    "opt": (*CAUSAL, {**TEXT, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "phi": (*CAUSAL, TEXT),
    "qwen2": (*CAUSAL, GROUPED),
    "qwen3": (*CAUSAL, GROUPED),
    "albert": (*MASKED, {**TEXT, "embedding_size": 16}),
    "bert": (*MASKED, TEXT),
    "distilbert": (*MASKED, {**TEXT, "n_layers": 2, "n_heads": 4, "dim": 32, "hidden_dim": 48}),
    "electra": (*CLASSES, {**TEXT, "embedding_size": 16}),
    "deberta-v2": (*CLASSES, {**TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "roberta": (*CLASSES, TEXT),
    "bart": (*TRANSLATION, BOTH),
    "t5": (*TRANSLATION, {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 5, "num_heads": 4,
                          "decoder_start_token_id": 0}),
    "whisper": (transformers.AutoModelForSpeechSeq2Seq, spectra,
                {**BOTH, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 64,
                 "begin_suppress_tokens": None, "suppress_tokens": None}),
    "clip": (transformers.AutoModel, captions,
             {"text_config": TEXT, "vision_config": PICTURE, "projection_dim": 16}),
    "vit": (transformers.AutoModelForImageClassification, pictures, PICTURE),
    "wav2vec2": (transformers.AutoModelForCTC, sounds,
                 {**TEXT, "conv_dim": [16, 16], "conv_kernel": [10, 3], "conv_stride": [5, 2],
                  "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
                  "feat_extract_norm": "layer", "mask_time_length": 2}),
}
GENERATE = (transformers.AutoModelForCausalLM, transformers.AutoModelForSeq2SeqLM, transformers.AutoModelForSpeechSeq2Seq)


def make(kind):
    head, _, sizes = KINDS[kind]
    torch.manual_seed(0)
    return head.from_config(transformers.AutoConfig.for_model(kind, **sizes), attn_implementation="eager").train()


def loss_of(model, kind, step, rank):
    torch.manual_seed(1000 * step + rank)
    numpy.random.seed(1000 * step + rank)  # wav2vec2 masks by it
    return model(**KINDS[kind][1](step, rank)).loss


def trained_plainly(kind):
    """The model after all steps, and each rank's losses."""
    model = make(kind)
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    losses = []
    for step in range(STEPS):
        parts = [loss_of(model, kind, step, rank) for rank in range(RANKS)]
        (sum(parts) / RANKS).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append([part.item() for part in parts])
    return model, list(zip(*losses))


def generated(model, kind):
    """Tokens that follow what the first batch begins with."""
    given = {k: v for k, v in KINDS[kind][1](0, 0).items() if k != "labels"}
    return model.eval().generate(**given, max_new_tokens=NEW, do_sample=False)


def compare(rank, kind):
    plain, wanted = trained_plainly(kind)
    model = zt.shard(make(kind), stage=3)
    optimizer = zt.AdamW(model, **ADAMW)
    for step in range(STEPS):
        loss = loss_of(model, kind, step, rank)
        loss.backward()
        optimizer.step()
        off = abs(loss.item() / wanted[rank][step] - 1)
        assert off <= LOSS, f"step {step}: the loss is off by {off:.1e}"
    found = model.state_dict()
    for name, value in plain.named_parameters():
        moves = STEPS * ADAMW["lr"] * value.numel() ** 0.5  # at most
        off = float((found[name] - value.detach()).norm() / value.detach().norm().clamp_min(moves))
        assert off <= ROUGH.get(kind, PARAMETER), f"{name} is off by {off:.1e}"
    plain.load_state_dict(found)
    if KINDS[kind][0] in GENERATE and not (OLD and kind == "mixtral"):  # there the plain model raises too
        assert torch.equal(generated(model, kind), generated(plain, kind))
    model.sharded.barrier()  # nobody leaves while another reads


@cases_of(KINDS)
def trains_as_plain_pytorch(kind):
    with torch.device("meta"):
        make(kind)  # imports once, in the parent of all ranks
    ranks.run(compare, RANKS, ranks.shared(1), arguments=(kind,))


def table():
    """What the README says of this suite."""
    with open(REQUIREMENTS, encoding="utf-8") as f:
        versions = dict(line.strip().split("==") for line in f if "==" in line)
    lines = [f"| transformers {versions['transformers']}, PyTorch {versions['torch']} | trains as plain PyTorch | "
             "`generate()` |", "|---|---|---|"]
    for head in dict.fromkeys(head for head, *_ in KINDS.values()):
        kinds = [k for k, (h, *_) in KINDS.items() if h is head]
        said = "the same tokens" if head in GENERATE else ""
        lines.append(f"| `{head.__name__}` | {', '.join(kinds)} | {said} |")
    return "\n".join(lines) + "\n"


@case
def the_readme_has_the_table():
    with open(README, encoding="utf-8") as f:
        assert table() in f.read(), "client/python/docs/frameworks.md should have\n" + table()


if __name__ == "__main__":
    ranks.main()
