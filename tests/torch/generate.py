#!/usr/bin/env python3
"""What transformers, peft and sentence-transformers call besides forward gives what it gives with the plain
model.  peft is left out where it is not installed."""
import importlib.util
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402  first: it goes on under a Python that has PyTorch
from harness import Skip, case, cases_of  # noqa: E402

import torch  # noqa: E402
import transformers as hf  # noqa: E402

import zerod.torch as zt  # noqa: E402
from net import fetched, in_rank  # noqa: E402

# loaded once, in the parent of all ranks
LOADED = (hf.GPT2LMHeadModel, hf.LlamaForCausalLM, hf.T5ForConditionalGeneration, hf.BartForConditionalGeneration, hf.CLIPModel)
SMALL = {"vocab_size": 61, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
CONFIGS = {
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=5, n_embd=16, n_head=2, n_positions=32, **SMALL)),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=5, num_attention_heads=2, num_key_value_heads=2, **SMALL)),
    "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(
        d_model=16, d_kv=8, d_ff=32, num_layers=6, num_heads=2, decoder_start_token_id=0, **SMALL)),
    "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(
        d_model=16, encoder_layers=2, decoder_layers=6, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=32, decoder_start_token_id=0,
        forced_eos_token_id=None, **SMALL)),
}


def build(name, seed=0):
    torch.manual_seed(seed)
    return CONFIGS[name]().eval()


def ids(length=6):
    return torch.randint(3, 61, (2, length), generator=torch.Generator().manual_seed(5))


def answer(model):
    return model.generate(input_ids=ids(), max_new_tokens=8, min_new_tokens=8, do_sample=False)


def train(model, optimizer):
    model(input_ids=ids(), labels=ids()).loss.backward()
    optimizer.step()


def generates(name, stage):
    plain, model = build(name), zt.shard(build(name), stage=stage)
    want = answer(plain)
    assert torch.equal(answer(model), want)
    assert stage < 3 or not fetched(model), fetched(model)
    for context in (zt.hold, zt.full_params):
        with context(model):
            assert torch.equal(answer(model), want) and torch.equal(answer(model), want)
    train(plain, torch.optim.AdamW(plain.parameters(), lr=0.1))
    train(model, zt.AdamW(model, lr=0.1))
    assert torch.equal(answer(model), answer(plain))


@cases_of([(name, stage) for name in CONFIGS for stage in (2, 3)], "{0[0]}_stage{0[1]}")
def generate(name_stage):
    in_rank(generates, *name_stage, nodes=2)


def calls_of(model):
    """How many functions of Python are called while the model generates."""
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event == "call"
    sys.setprofile(count)
    answer(model)
    sys.setprofile(None)
    return calls


def held_generates_as_fast(stage, fits):
    """Where parameters stay, hardly anything runs besides the model."""
    plain = build("gpt2")
    model = zt.shard(build("gpt2"), stage=stage, prefetch=9 if fits else 1)
    train(model, zt.AdamW(model))
    calls_of(plain)  # what it does once is done
    want = calls_of(plain)
    for context in (zt.hold, zt.full_params):
        with context(model):
            calls_of(model)
            found = calls_of(model)
            assert found < 1.1 * want, f"{context.__name__}: {found} calls, and {want} of the plain model"


@cases_of([(2, True), (3, True), (3, False)], "stage{0[0]}_fits_{0[1]}")
def held(stage_fits):
    in_rank(held_generates_as_fast, *stage_fits)


def clip():
    torch.manual_seed(0)
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    return hf.CLIPModel(hf.CLIPConfig(
        text_config={**tower, **SMALL, "max_position_embeddings": 16}, projection_dim=8,
        vision_config={**tower, "image_size": 16, "patch_size": 8})).eval()


def features(model):
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(5))
    found = model.get_text_features(input_ids=ids()), model.get_image_features(pixel_values=images)
    return [getattr(f, "pooler_output", f) for f in found]


def clips(stage):
    plain, model = clip(), zt.shard(clip(), stage=stage)
    optimizers = torch.optim.AdamW(plain.parameters(), lr=1e-2), zt.AdamW(model, lr=1e-2)
    for _ in range(3):
        found = []
        for m, optimizer in zip((plain, model), optimizers):
            text, image = features(m)
            (text @ image.t()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append((text, image))
        for a, b in zip(*found):
            assert (a - b).abs().max() < 1e-4, (a - b).abs().max()
    assert stage < 3 or not fetched(model), fetched(model)


@cases_of([2, 3], "stage{}")
def clip_features(stage):
    in_rank(clips, stage, nodes=2)


def lora():
    import peft
    return peft.get_peft_model(build("gpt2"), peft.LoraConfig(r=4, target_modules=["c_attn"], init_lora_weights=False))


def adapts():
    torch.manual_seed(3)
    plain = lora()
    model = lora()
    model.load_state_dict(plain.state_dict())
    zt.shard(model, stage=3)
    assert torch.equal(answer(model), answer(plain))
    train(plain, torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], lr=0.1))
    train(model, zt.AdamW(model, lr=0.1))
    assert torch.equal(answer(model), answer(plain))
    with model.disable_adapter(), plain.disable_adapter():
        assert torch.equal(answer(model), answer(plain))
    assert not fetched(model), fetched(model)


@case
def peft_generates():
    if importlib.util.find_spec("peft") is None:
        raise Skip("no peft")
    in_rank(adapts, nodes=2)


def sentences(directory):
    from sentence_transformers import SentenceTransformer, models
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "rank", "owns", "its", "shard"]
    with open(f"{directory}/vocab.txt", "w", encoding="ascii") as f:
        f.write("\n".join(words))
    hf.BertTokenizer(f"{directory}/vocab.txt").save_pretrained(directory)
    torch.manual_seed(0)
    hf.BertModel(hf.BertConfig(vocab_size=len(words), hidden_size=16, num_hidden_layers=4, num_attention_heads=2,
                               intermediate_size=32, max_position_embeddings=16)).save_pretrained(directory)
    reader = models.Transformer(directory)
    return SentenceTransformer(modules=[reader, models.Pooling(16), models.Dense(16, 8)], device="cpu")


def embeds():
    with tempfile.TemporaryDirectory() as directory:
        model = sentences(directory)
    texts = ["a rank owns its shard", "its rank", "a shard"]
    want = model.encode(texts)
    zt.shard(model, stage=3)
    assert abs(model.encode(texts) - want).max() < 1e-6
    with zt.hold(model):
        assert abs(model.encode(texts) - want).max() < 1e-6


@case
def sentence_transformers_encode():
    if importlib.util.find_spec("sentence_transformers") is None:
        raise Skip("no sentence-transformers")
    in_rank(embeds, nodes=2)


if __name__ == "__main__":
    ranks.main()
