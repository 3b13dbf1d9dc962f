#!/usr/bin/env python3
"""zerod.transformers.TrainerMixin makes other Trainers train a sharded model alike: transformers.Seq2SeqTrainer, which
generates when it evaluates, and TRL's SFTTrainer and DPOTrainer, with and without adapters."""
import importlib.util
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402
from cluster import free_ports  # noqa: E402
from harness import Skip, case, cases_of  # noqa: E402

import torch  # noqa: E402
import transformers  # noqa: E402
from torch import distributed  # noqa: E402

import zerod.transformers  # noqa: E402

TOLERANCE = 1e-5
WORDS = [f"w{i}" for i in range(28)]
COMMON = {"use_cpu": True, "max_steps": 4, "per_device_train_batch_size": 2, "learning_rate": 2e-3, "logging_steps": 1,
          "save_strategy": "no", "report_to": [], "disable_tqdm": True, "log_level": "error"}


def need(*packages):
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise Skip(f"the package {package} is not installed: deploy/python-requirements names it")


def run(function, placement, *arguments):
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_ports(1)[0]}
    with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
        return ranks.run(function, placement, ranks.shared(2), arguments=(directory, *arguments), environment=place)[0]


def mixed(kind, sharded):
    return type("Mixed", (zerod.transformers.TrainerMixin, kind), {}) if sharded else kind


def history(trainer):
    """Losses and gradient norms."""
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    found = [(entry["loss"], entry["grad_norm"]) for entry in trainer.state.log_history if "loss" in entry]
    assert len(found) == COMMON["max_steps"]
    return found


def meet():
    if distributed.is_initialized():
        distributed.barrier()


def same(found, wanted):
    off = max(abs(a - b) for got, want in zip(found, wanted, strict=True) for a, b in zip(got, want, strict=True))
    assert off <= TOLERANCE, f"off by {off:.1e}:\n{found}\n{wanted}"


# ---- transformers ----------------------------------------------------------------------------


class Pairs(torch.utils.data.Dataset):
    """Four tokens, and the same backwards."""

    def __len__(self):
        return 12

    def __getitem__(self, i):
        row = (torch.arange(4) * (1 + i % 3) + i) % 20 + 2
        return {"input_ids": row, "labels": row.flip(0)}


def seq2seq(_rank, directory, sharded, stage):
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=32, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1))
    args = transformers.Seq2SeqTrainingArguments(directory, predict_with_generate=True, generation_max_length=6, **COMMON)
    trainer = mixed(transformers.Seq2SeqTrainer, sharded)(model, args, train_dataset=Pairs(), eval_dataset=Pairs(),
                                                          **({"stage": stage} if sharded else {}))
    losses = history(trainer)
    predicted = trainer.predict(Pairs())
    meet()
    return [*losses, (predicted.metrics["test_loss"],)], predicted.predictions.tolist()


@cases_of([([0], 3), ([0], 1), ([0, 1], 3)], "{0[0]}_at_stage_{0[1]}")
def seq2seq_trains_and_generates(way):
    placement, stage = way
    found, wanted = (run(seq2seq, placement, sharded, stage) for sharded in (True, False))
    same(found[0], wanted[0])
    assert found[1] == wanted[1], "other tokens were generated"


# ---- TRL ---------------------------------------------------------------------------------------


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>",
                                                unk_token="<unk>")


def llama(seed=0):
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0, eos_token_id=1))


def text(i, count=5):
    return " ".join(WORDS[(i * 5 + j * (1 + i % 2)) % len(WORDS)] for j in range(count))


def adapters(wanted):
    if not wanted:
        return {}
    import peft
    return {"peft_config": peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)}


def sft(_rank, directory, sharded, peft):
    import trl
    from datasets import Dataset
    torch.manual_seed(1)
    model = llama()
    trainer = mixed(trl.SFTTrainer, sharded)(
        model=model, args=trl.SFTConfig(directory, max_length=16, **COMMON), processing_class=tokenizer(),
        train_dataset=Dataset.from_list([{"text": text(i)} for i in range(12)]), **adapters(peft),
        **({"groups": model._no_split_modules} if sharded else {}))
    found = history(trainer)
    meet()
    return found


def dpo(_rank, directory, sharded, peft):
    import trl
    from datasets import Dataset
    torch.manual_seed(1)
    rows = [{"prompt": text(i, 2), "chosen": " " + text(i + 1), "rejected": " " + text(i + 7)} for i in range(12)]
    trainer = mixed(trl.DPOTrainer, sharded)(
        model=llama(), ref_model=None if peft else llama(2), args=trl.DPOConfig(directory, max_length=16, **COMMON),
        processing_class=tokenizer(), train_dataset=Dataset.from_list(rows), **adapters(peft))
    found = history(trainer)
    meet()
    return found


@cases_of([("sft", False, [0]), ("sft", True, [0, 1]), ("dpo", False, [0, 1]), ("dpo", True, [0])], "{0[0]}_{0[1]}_on_{0[2]}")
def trl_trains(way):
    """With adapters and without."""
    need("trl", "peft", "datasets")
    kind, peft, placement = way
    importlib.import_module("datasets").disable_progress_bars()
    function = {"sft": sft, "dpo": dpo}[kind]
    same(run(function, placement, True, peft), run(function, placement, False, peft))


if __name__ == "__main__":
    ranks.main()
