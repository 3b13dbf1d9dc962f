#!/usr/bin/env python3
"""zerod.transformers.Trainer does what transformers.Trainer does: the same losses and gradient norms,
on one rank and on two, after resuming too; and its clipping is there."""
import hashlib
import itertools
import json
import logging
import os
import signal
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import ranks  # noqa: E402
from cluster import Cluster, free_ports  # noqa: E402
from common import frozen_files  # noqa: E402
from harness import case  # noqa: E402

import torch  # noqa: E402
import transformers  # noqa: E402
from torch import distributed  # noqa: E402
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig  # noqa: E402

import zerod.torch as zt  # noqa: E402
import zerod.transformers  # noqa: E402
from zerod.torch.checkpoints import load_plain  # noqa: E402

VOCABULARY, LENGTH = 61, 16
NEW = int(transformers.__version__.partition(".")[0]) >= 5
STEPS, SAVE_AT = 16, 8
TOLERANCE = 1e-3
TOGETHER = [0, 1]  # two ranks, the node of each
COMMON = {"use_cpu": True, "max_steps": STEPS, "per_device_train_batch_size": 4, "learning_rate": 1e-2,
          "weight_decay": 0.1, "max_grad_norm": 0.5, "warmup_steps": 2, "lr_scheduler_type": "cosine",
          "logging_steps": 1, "save_strategy": "no", "report_to": [], "disable_tqdm": True,
          "ddp_find_unused_parameters": False}


SAVING = {"save_strategy": "steps"}


class Rows(torch.utils.data.Dataset):
    """Sequences that go up by three, some by two."""

    def __init__(self, count, seed):
        draw = torch.Generator().manual_seed(seed)
        begin = torch.randint(VOCABULARY, (count, 1), generator=draw)
        stride = 2 + (torch.rand(count, 1, generator=draw) < 0.7).long()
        self.rows = (begin + stride * torch.arange(LENGTH)) % VOCABULARY

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


def gpt2():
    """Tied, with dropout."""
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=3, n_head=2,
                                      bos_token_id=0, eos_token_id=0))


def llama(dtype=torch.float32):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH, bos_token_id=0, eos_token_id=0), dtype=dtype)


def trainer_of(kind, directory, model, arguments, **options):
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    arguments = {**COMMON, **arguments}
    if arguments["save_strategy"] != "no":
        arguments["save_steps"] = SAVE_AT
    trainer = kind(model, transformers.TrainingArguments(directory, log_level="error", **arguments),
                   train_dataset=Rows(64, 0), eval_dataset=Rows(24, 1), **options)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def history(trainer, key):
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def meet(trainer):
    """Nobody leaves while another works."""
    if trainer.args.world_size > 1:
        distributed.barrier()


def train(_rank, kind, directory, make, arguments, options, resume=None):
    """Losses, gradient norms and the last evaluation loss."""
    trainer = trainer_of(kind, directory, make(), arguments, **options)
    trainer.train(resume_from_checkpoint=resume)
    found = history(trainer, "loss"), history(trainer, "grad_norm"), trainer.evaluate()["eval_loss"]
    meet(trainer)
    return found


def run(function, placement, cluster, *arguments, **options):
    """ranks.run() with what torch.distributed needs."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_ports(1)[0]}
    return ranks.run(function, placement, cluster, arguments=arguments, environment=place, **options)


def plain(placement, directory, make=gpt2, arguments=None, resume=None, **options):
    return run(train, placement, None, transformers.Trainer, directory, make, arguments or {}, {}, resume, **options)[0]


def sharded(placement, directory, make=gpt2, arguments=None, resume=None, cluster=None, options=None, **more):
    return run(train, placement, cluster or ranks.shared(2), zerod.transformers.Trainer, directory, make,
               arguments or {}, options or {}, resume, **more)[0]


def same(found, wanted, what):
    for name, a, b in zip(("loss", "gradient norm"), found, wanted):
        assert len(a) == len(b), f"{what}: {len(a)} {name}s, not {len(b)}"
        off = max(abs(x - y) for x, y in zip(a, b))
        assert off <= TOLERANCE, f"{what}: {name} off by {off:.1e}:\n{a}\n{b}"
    assert abs(found[2] - wanted[2]) <= TOLERANCE, f"{what}: evaluation loss {found[2]}, not {wanted[2]}"


def in_directory(function):
    def within():
        with tempfile.TemporaryDirectory(prefix="zerod-test-") as directory:
            function(directory)
    within.__name__ = function.__name__
    return within


@case
@in_directory
def one_rank_trains_as_without(directory):
    """Dropout is drawn alike too, and the same parameters decay."""
    wanted = plain([0], directory)
    assert wanted[0][-1] < wanted[0][0] - 0.3, "nothing was learnt"
    for stage in (1, 2, 3):
        same(sharded([0], directory, options={"stage": stage}), wanted, f"stage {stage}")


@case
@in_directory
def two_ranks_train_as_with_ddp(directory):
    """Each has its own part of the data; micro-batches, activation checkpointing."""
    arguments = {"gradient_accumulation_steps": 2, "activation_checkpointing" if NEW else "gradient_checkpointing": True}
    wanted = plain(TOGETHER, directory, arguments=arguments)
    for accumulate in ("owner", "trainer"):
        same(sharded(TOGETHER, directory, arguments=arguments, options={"accumulate": accumulate}), wanted, accumulate)


def first_moments(_rank, directory, clip):
    """The norm of all exp_avg after one step, as if the betas were 0, and the norm that was logged."""
    trainer = trainer_of(zerod.transformers.Trainer, directory, gpt2(), {"max_steps": 1, "max_grad_norm": clip})
    trainer.train()
    moments = [trainer.model.sharded.read(p, "exp_avg") for p in trainer.model.sharded.params]
    meet(trainer)
    logged = history(trainer, "grad_norm") if clip or NEW else [trainer.model.sharded.optimizer().grad_norm]
    return float(torch.cat(moments).norm()) / (1 - trainer.args.adam_beta1), logged[0]


@case
@in_directory
def the_gradient_is_clipped(directory):
    """max_grad_norm reaches the service: 0 is no clipping, and the norm is logged all the same."""
    for placement in ([0], TOGETHER):
        clipped, norm = run(first_moments, placement, ranks.shared(2), directory, 0.25)[0]
        assert norm > 0.5 and abs(clipped - 0.25) < 1e-4, f"clipped to {clipped}, the gradient had {norm}"
        whole, norm = run(first_moments, placement, ranks.shared(2), directory, 0.0)[0]
        assert abs(whole - norm) < 1e-4 * norm, f"{whole} without clipping, the gradient had {norm}"


def train_compiled(rank, directory, resume=None):
    found = train(rank, zerod.transformers.Trainer, directory, gpt2, {
        **SAVING, "torch_compile": True, "torch_compile_backend": "eager"}, {}, resume)
    assert torch._dynamo.utils.counters["frames"]["ok"], "nothing was compiled"
    return found


@case
@in_directory
def a_compiled_model_trains_as_one_that_is_not(directory):
    """The Trainer compiles it; so it does when it resumes."""
    wanted = sharded(TOGETHER, f"{directory}/a")
    same(run(train_compiled, TOGETHER, ranks.shared(2), f"{directory}/b")[0], wanted, "from the beginning")
    checkpoint = f"{directory}/b/checkpoint-{SAVE_AT}"
    same(run(train_compiled, TOGETHER, ranks.shared(2), f"{directory}/c", checkpoint)[0], wanted, "resumed")


def write_by_save_checkpoint(_rank, directory, checkpoint):
    """Makes of a checkpoint what Trainer once wrote."""
    trainer = trainer_of(zerod.transformers.Trainer, directory, gpt2(), {})
    optimizer = trainer.create_optimizer()
    load_plain(checkpoint, optimizer)
    zt.load_safetensors(trainer.model, checkpoint)
    zt.save_checkpoint(checkpoint, trainer.model, optimizer)
    os.unlink(f"{checkpoint}/optimizer.pt")


@case
@in_directory
def resumes_as_if_uninterrupted(directory):
    """By a job that has gone on since, a new job of other daemons, and from the checkpoints of a plain Trainer and of
    save_checkpoint().  What was logged before is in the checkpoint."""
    saving = {"save_strategy": "steps"}
    wanted = sharded(TOGETHER, f"{directory}/a", arguments=saving, job="resumed", keep=True)
    checkpoint = f"{directory}/a/checkpoint-{SAVE_AT}"
    with open(f"{checkpoint}/trainer_state.json", encoding="utf-8") as f:
        assert json.load(f)["global_step"] == SAVE_AT
    ahead = sharded(TOGETHER, f"{directory}/b", resume=checkpoint, job="resumed")
    same(ahead, wanted, "the job that is ahead")
    with Cluster(1) as new:
        same(sharded([0, 0], f"{directory}/c", resume=checkpoint, cluster=new), wanted, "a new job")
    run(write_by_save_checkpoint, [0], ranks.shared(2), f"{directory}/f", checkpoint)
    same(sharded(TOGETHER, f"{directory}/f", resume=checkpoint), wanted, "a checkpoint of save_checkpoint()")
    wanted = plain(TOGETHER, f"{directory}/d", arguments=saving)
    checkpoint = f"{directory}/d/checkpoint-{SAVE_AT}"
    same(sharded(TOGETHER, f"{directory}/e", resume=checkpoint), wanted, "a plain checkpoint")


def train_by_sgd(_rank, kind, directory, resume=None):
    """As train(), with an optimizer of the caller's."""
    model, own = gpt2(), {"lr": 0.3, "momentum": 0.9}
    if kind is zerod.transformers.Trainer:
        optimizer = zt.SGD(zt.shard(model, optimizer="sgd-momentum"), **own)
    else:
        optimizer = torch.optim.SGD(model.parameters(), **own)
    trainer = trainer_of(kind, directory, model, {"save_strategy": "steps"}, optimizers=(optimizer, None))
    trainer.train(resume_from_checkpoint=resume)
    return history(trainer, "loss"), history(trainer, "grad_norm"), trainer.evaluate()["eval_loss"]


@case
@in_directory
def an_optimizer_of_the_callers_goes_to_plain_torch_and_back(directory):
    kinds = {"zerod": zerod.transformers.Trainer, "plain": transformers.Trainer}
    found = {name: run(train_by_sgd, [0], ranks.shared(2), kind, f"{directory}/{name}")[0]
             for name, kind in kinds.items()}
    same(found["zerod"], found["plain"], "from the beginning")
    groups = [torch.load(f"{directory}/{name}/checkpoint-{SAVE_AT}/optimizer.pt", weights_only=True)["param_groups"]
              for name in kinds]
    assert groups[0][0].keys() == groups[1][0].keys(), groups
    for name, other in (("zerod", "plain"), ("plain", "zerod")):
        again = run(train_by_sgd, [0], ranks.shared(2), kinds[other], f"{directory}/{other}-again",
                    f"{directory}/{name}/checkpoint-{SAVE_AT}")[0]
        same(again, found[name], f"{other} from the checkpoint of {name}")


def train_by_muon(_rank, directory, resume=None):
    optimizer = zt.Muon(zt.shard(gpt2(), optimizer="muon"), lr=1e-2, adamw={"lr": 1e-3})
    trainer = trainer_of(zerod.transformers.Trainer, directory, optimizer.sharded.model, {"save_strategy": "steps"},
                         optimizers=(optimizer, None))
    trainer.train(resume_from_checkpoint=resume)
    return history(trainer, "loss"), history(trainer, "grad_norm"), trainer.evaluate()["eval_loss"]


@case
@in_directory
def muon_resumes(directory):
    wanted = run(train_by_muon, [0], ranks.shared(2), f"{directory}/a")[0]
    same(run(train_by_muon, [0], ranks.shared(2), f"{directory}/b", f"{directory}/a/checkpoint-{SAVE_AT}")[0], wanted, "resumed")


def partly_frozen():
    """Tied; some of what decays and of what does not is frozen."""
    model = gpt2()
    first, second, third = model.transformer.h
    for part in (model.transformer.wpe, first.ln_1, second.mlp, third.attn.c_attn):
        part.requires_grad_(False)
    return model


@case
@in_directory
def trains_and_resumes_on_a_base(directory):
    """A checkpoint has what is not in the base."""
    with frozen_files(partly_frozen()) as (path,):
        options = {"base": [path]}
        wanted = plain(TOGETHER, f"{directory}/a", partly_frozen)
        same(sharded(TOGETHER, f"{directory}/b", partly_frozen, SAVING, options=options), wanted, "from the beginning")
        checkpoint = f"{directory}/b/checkpoint-{SAVE_AT}"
        same(sharded(TOGETHER, f"{directory}/c", partly_frozen, SAVING, checkpoint, options=options), wanted, "resumed")


class Saved(Exception):
    pass


def save_at_once(_rank, directory, make, checkpoint):
    """zerod's Trainer resumes, and saves before its first step."""
    trainer = trainer_of(zerod.transformers.Trainer, directory, make(), SAVING)

    class AtOnce(transformers.TrainerCallback):
        def on_step_begin(self, *_, **__):
            trainer._save_checkpoint(trainer.model, None)
            raise Saved
    trainer.add_callback(AtOnce())
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    except Saved:
        return
    raise AssertionError("no step was begun")


def go_on_plainly(_rank, directory, make, checkpoint):
    """What a plain Trainer logs, and its parameters, optimizer state and schedule at the end."""
    trainer = trainer_of(transformers.Trainer, directory, make(), SAVING)
    trainer.train(resume_from_checkpoint=checkpoint)
    state = trainer.optimizer.state_dict()
    tensors = [*trainer.model.parameters(), *(t for entry in state["state"].values() for t in entry.values())]
    digest = hashlib.sha256(torch.cat([t.detach().flatten() for t in tensors]).numpy().tobytes()).hexdigest()
    return (history(trainer, "loss"), history(trainer, "grad_norm"), history(trainer, "learning_rate"), digest,
            state["param_groups"], trainer.lr_scheduler.state_dict())


@case
@in_directory
def a_plain_trainer_goes_on_to_the_same_bits(directory):
    """From a plain Trainer's checkpoint, and from the one that zerod's Trainer makes of it."""
    uninterrupted = plain([0], f"{directory}/a", partly_frozen, SAVING)
    original, passed_on = (f"{directory}/{name}/checkpoint-{SAVE_AT}" for name in "ab")
    run(save_at_once, [0], ranks.shared(2), f"{directory}/b", partly_frozen, original)
    wanted = run(go_on_plainly, [0], None, f"{directory}/c", partly_frozen, original)[0]
    found = run(go_on_plainly, [0], None, f"{directory}/d", partly_frozen, passed_on)[0]
    assert wanted[:2] == uninterrupted[:2], "a plain Trainer does not even go on from its own checkpoint"
    assert found == wanted, f"{found}\nnot {wanted}"


def master_weights(_rank, directory, checkpoint):
    """A checksum of a bf16 model's fp32 masters at the end, and what zerod said."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("zerod").addHandler(handler)
    trainer = trainer_of(zerod.transformers.Trainer, directory, llama(torch.bfloat16), SAVING)
    trainer.train(resume_from_checkpoint=checkpoint)
    values = [trainer.model.sharded.read(p, "master") for p in trainer.model.sharded.params]
    return hashlib.sha256(torch.cat(values).numpy().tobytes()).hexdigest(), " ".join(said)


@case
@in_directory
def a_bf16_job_goes_on_from_its_master_weights(directory):
    """To the same bits; and without them, with a word.  A plain Trainer goes on from the 16-bit values."""
    checkpoint = f"{directory}/a/checkpoint-{SAVE_AT}"
    (wanted, _), = run(master_weights, [0], ranks.shared(2), f"{directory}/a", None)
    (found, said), = run(master_weights, [0], ranks.shared(2), f"{directory}/b", checkpoint)
    assert found == wanted and "master" not in said, said
    assert len(plain([0], f"{directory}/c", lambda: llama(torch.bfloat16), SAVING, resume=checkpoint)[0]) == STEPS
    os.unlink(f"{checkpoint}/master.pt")
    (found, said), = run(master_weights, [0], ranks.shared(2), f"{directory}/d", checkpoint)
    assert found != wanted and "no master.pt" in said, said


DIES_AT = 5 if NEW else 3  # steps before; transformers 4 goes on in the middle of the first epoch alone


def perish(rank, directory, arguments, target=None):
    """Trains; in the last micro-batch of a step rank 1 kills `target` (0: nothing), or all ranks kill themselves, once.
    (losses and gradient norms, global step, checksum of the parameters and this rank's buffers)"""
    model = gpt2()
    model.register_buffer("seen", torch.zeros(32))

    def see(module, _inputs, output):
        if module.training:
            model.seen.lerp_(output.detach().mean((0, 1)), 0.1)
    model.transformer.ln_f.register_forward_hook(see)
    trainer = trainer_of(zerod.transformers.Trainer, directory, model, arguments, client=zerod.connect(timeout=120))
    mark = f"{directory}/mark{rank}"

    def act(_gradient):
        if trainer.state.global_step == DIES_AT and not os.path.exists(mark) and (rank == 1 or not target):
            if next(backward_passes) == trainer.args.gradient_accumulation_steps - 1:
                open(mark, "w", encoding="ascii").close()
                os.kill(target or os.getpid(), signal.SIGKILL)

    def watch(_module, _inputs, output):
        (output if isinstance(output, torch.Tensor) else output[0]).register_hook(act)
    backward_passes = itertools.count()
    if target != 0:
        trainer.model.transformer.h[1].register_forward_hook(watch)
    trainer.train()
    values = [*(trainer.model.sharded.read(p, "master") for p in trainer.model.sharded.params), model.seen]
    assert model.seen.any()
    found = (history(trainer, "loss"), history(trainer, "grad_norm"), trainer.state.global_step,
             hashlib.sha256(torch.cat(values).numpy().tobytes()).hexdigest())
    meet(trainer)
    return found


ACCUMULATING = {"gradient_accumulation_steps": 2, "max_steps": 9}


def undisturbed(directory):
    return run(perish, TOGETHER, ranks.shared(2), f"{directory}/undisturbed", ACCUMULATING, 0)


def place_of_job():
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_ports(1)[0]}


@case
@in_directory
def a_lost_daemon_is_waited_for(directory):
    """The step that it was lost in is done again, with the same dropout."""
    cluster = ranks.shared(2)
    wanted = undisturbed(directory)
    with ranks.Ranks(perish, TOGETHER, cluster, arguments=(directory, ACCUMULATING, cluster[1].process.pid),
                     environment=place_of_job()) as job:
        assert cluster[1].process.wait(ranks.DEADLINE_S) == -signal.SIGKILL
        cluster[1].start()
        assert job.finish() == wanted
        cluster[0].ctl("drop", job.job)


@case
@in_directory
def processes_started_again_go_on(directory):
    """In the middle of an epoch, where the service stands."""
    cluster = ranks.shared(2)
    wanted = undisturbed(directory)
    with ranks.Ranks(perish, TOGETHER, cluster, arguments=(directory, ACCUMULATING), environment=place_of_job()) as job:
        assert job.wait(ranks.DEADLINE_S)
        assert [p.outcome for p in job.processes] == [("died", -signal.SIGKILL)] * 2, [p.outcome for p in job.processes]
        again = ranks.run(perish, TOGETHER, cluster, job=job.job, arguments=(directory, ACCUMULATING),
                          environment={**place_of_job(), "TORCHELASTIC_RESTART_COUNT": 1})
    for found, complete in zip(again, wanted):
        assert found[2:] == complete[2:], f"{found}\nundisturbed: {complete}"
        assert found[0] == complete[0][DIES_AT:] and found[1] == complete[1][DIES_AT:], f"{found}\n{complete}"


def use(rank, directory):
    """A bf16 Llama: the best of its checkpoints is loaded at the end, it generates on one rank, is saved and
    opened without zerod."""
    trainer = trainer_of(zerod.transformers.Trainer, directory, llama(torch.bfloat16), {
        "max_steps": 2 * SAVE_AT, "eval_strategy": "steps", "eval_steps": SAVE_AT, "save_strategy": "steps",
        "load_best_model_at_end": True})
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    losses = [before, *history(trainer, "eval_loss"), trainer.evaluate()["eval_loss"]]
    trainer.save_model(f"{directory}/last")
    if rank == 0:
        prompt = torch.tensor([[5, 8, 11]])
        tokens = trainer.model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
        with torch.no_grad():
            logits = trainer.model(prompt).logits
            opened = AutoModelForCausalLM.from_pretrained(f"{directory}/last", dtype="auto").eval()
            assert opened.dtype is torch.bfloat16
            assert torch.equal(opened(prompt).logits, logits), "saved and opened it says something else"
        assert tokens.shape == (1, 11)
        assert torch.equal(tokens, opened.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0))
    meet(trainer)
    return losses


@case
@in_directory
def a_bf16_model_is_evaluated_saved_and_generates(directory):
    losses = run(use, TOGETHER, ranks.shared(2), directory)
    assert losses[0] == losses[1], "the ranks have evaluated other things"
    before, *evaluated, best = losses[0]
    assert min(evaluated) < before - 0.3
    assert abs(best - min(evaluated[1:])) < 1e-6, f"{best} is not the best of {evaluated[1:]}"


def refused(_rank, directory, arguments, options):
    try:
        trainer_of(zerod.transformers.Trainer, directory, gpt2(), arguments, **options)
    except ValueError as error:
        if distributed.is_initialized():
            distributed.barrier()  # rank 0 has what the others meet by
        return str(error)
    return "not refused"


@case
@in_directory
def what_cannot_be_is_refused(directory):
    wrong = [({"optim": "sgd"}, {}, "AdamW"), ({}, {"model_init": gpt2}, "model_init"), ({}, {"timeout": 0}, "timeout is 0 seconds"),
             ({"auto_find_batch_size": True}, {}, "auto_find_batch_size"),
             ({}, {"optimizers": (torch.optim.SGD([torch.zeros(1)]), None)}, "zerod.torch.AdamW")]
    for arguments, options, word in wrong:
        said = run(refused, [0], ranks.shared(2), directory, arguments, options)[0]
        assert word in said, f"{arguments}, {options}: {said}"
    if NEW:  # without use_cpu, Trainer sees no other ranks
        for said in run(refused, TOGETHER, ranks.shared(2), directory, {"use_cpu": False}, {}):
            assert "use_cpu" in said, said


if __name__ == "__main__":
    ranks.main()
