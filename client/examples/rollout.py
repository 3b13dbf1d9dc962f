#!/usr/bin/env python3
"""Policy gradient with two rollout workers, which generate with the newest parameters that zerod has.

    ./deploy/local-cluster.sh --nodes 2 --ranks 1 client/examples/rollout.py

A small language model of random parameters learns to count: each token should be one more than the token before it.
Workers are processes of their own.  They follow the job, and label their answers with the version that made them.  The
trainer sends them nothing and waits for none of them.  Half way one worker is killed; the trainer starts another.
Tells the reward, a token's chance to be right.  Nothing is downloaded.
"""
import argparse
import json
import queue
import subprocess
import sys
import threading

import torch
import transformers

import zerod.torch

TOKENS = 10  # the vocabulary
WORKERS = 2
WAIT_S = 120


def language_model() -> transformers.GPT2LMHeadModel:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=TOKENS, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        bos_token_id=None, eos_token_id=None))


# ---- a rollout worker ------------------------------------------------------------------


def roll_out(args: argparse.Namespace) -> None:
    """Writes a line of answers for each version that is the newest when the last line is written."""
    model = language_model().eval()
    with zerod.torch.follow(timeout=WAIT_S) as job:  # zerod: the job, as for the trainer
        for weights in job:
            with weights:
                model.load_state_dict(weights.state_dict(), strict=False)  # without the head, which is the embedding
            torch.manual_seed(1000 * weights.version + args.worker)
            prompts = torch.randint(TOKENS, (args.batch, 1))
            answers = model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=True, pad_token_id=0,
                                     max_new_tokens=args.length)
            print(json.dumps({"version": weights.version, "tokens": answers.tolist()}), flush=True)


class Worker:
    """A worker's process.  Its lines, and None at its end, go into the queue."""

    def __init__(self, number: int, args: argparse.Namespace, lines: queue.Queue):
        self.number, self.lines = number, lines
        options = (f"--{name}={getattr(args, name)}" for name in ("batch", "length"))
        self.process = subprocess.Popen([sys.executable, __file__, f"--worker={number}", *options], stdout=subprocess.PIPE,
                                        stdin=subprocess.DEVNULL, text=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        for line in self.process.stdout:
            self.lines.put((self, json.loads(line)))
        self.lines.put((self, None))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


# ---- the trainer -----------------------------------------------------------------------


def rewards_of(tokens: torch.Tensor) -> torch.Tensor:
    """tokens (batch, length + 1) -> rewards (batch, length): 1 where a token is the one before plus one, else 0."""
    return (tokens[:, 1:] == (tokens[:, :-1] + 1) % TOKENS).float()


def loss_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """REINFORCE; the baseline is the batch's mean."""
    chances = model(tokens[:, :-1], use_cache=False).logits.log_softmax(-1)
    chosen = chances.gather(-1, tokens[:, 1:, None])[..., 0]
    rewards = rewards_of(tokens)
    return -(chosen * (rewards - rewards.mean())).mean()


class Rollout:
    """The workers and their answers."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.lines = args, queue.Queue()
        self.workers = [Worker(i, args, self.lines) for i in range(WORKERS)]
        self.restarts = 0
        self.late: Worker | None = None  # was started again, and has not answered yet

    def take(self) -> list[tuple[int, torch.Tensor]]:
        """Waits for answers of any worker, and takes all that are there: versions, and tokens (batch, length + 1).  Starts
        a worker again that has ended."""
        found: list[tuple[int, torch.Tensor]] = []
        while not found or not self.lines.empty():
            worker, line = self.lines.get(timeout=WAIT_S)
            if line is not None:
                self.late = None if worker is self.late else self.late
                found.append((line["version"], torch.tensor(line["tokens"])))
                continue
            worker.end()
            print(f"worker {worker.number} has ended with status {worker.process.returncode}, and is started again")
            self.workers[worker.number] = self.late = Worker(worker.number, self.args, self.lines)
            self.restarts += 1
        return found

    def end(self) -> None:
        for worker in self.workers:
            worker.end()


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    model = zerod.torch.shard(language_model(), stage=3)
    optimizer = zerod.torch.AdamW(model, lr=args.lr)
    rollout, rewards = Rollout(args), []
    try:
        for step in zerod.torch.steps(model, until=args.steps):
            with step as t:
                answers = rollout.take()
                while t == args.steps * 3 // 4 and (rollout.late or not rollout.restarts):  # steps are faster than its start
                    answers += rollout.take()
                versions, tokens = {version for version, _ in answers}, torch.cat([tokens for _, tokens in answers])
                rewards.append(float(rewards_of(tokens).mean()))
                loss_of(model, tokens).backward()
                optimizer.step()
                if t % args.log_every == 0:
                    print(f"step {t}/{args.steps}  answers of versions {sorted(versions)}  reward {rewards[-1]:.3f}")
                if t == args.steps // 2:
                    rollout.workers[1].process.kill()
    finally:
        rollout.end()
    few = max(1, args.steps // 10)
    first, last = (sum(some) / few for some in (rewards[:few], rewards[-few:]))
    print(f"rollout: reward {first:.3f} -> {last:.3f}, by chance {1 / TOKENS:.3f}; {rollout.restarts} worker started again")
    assert rollout.restarts == 1 and rollout.late is None, "the worker that was killed did not come back"
    assert last > 2 * first, "the reward does not rise"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Policy gradient with rollout workers that follow the job.",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--steps", type=int, default=100, help="optimizer steps")
    add("--batch", type=int, default=64, help="answers of a worker to a version")
    add("--length", type=int, default=8, help="tokens of an answer")
    add("--lr", type=float, default=3e-3, help="learning rate")
    add("--seed", type=int, default=0, help="of the parameters")
    add("--log-every", type=int, default=10, help="steps")
    add("--worker", type=int, help="be this rollout worker")
    return parser.parse_args()


if __name__ == "__main__":
    torch.set_num_threads(1)  # the processes share the cores
    transformers.utils.logging.set_verbosity_error()
    options = arguments()
    (train if options.worker is None else roll_out)(options)
