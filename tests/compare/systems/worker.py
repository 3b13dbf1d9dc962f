"""One rank of one system: reads commands, a line of JSON each, and answers in kind.

    {"do": "build", ...}
        makes the trainer; what of the configuration it uses is in peers.py and ours.py
    {"do": "check", "steps": N}
        N steps from the first parameters: each loss, and the first gradient's norm
    {"do": "run", "steps": N, "pids": [...]}
        one step to warm up and N more: when each ended, and CPU seconds of the processes named
        from the first end to the last one
    {"do": "profile", "steps": N, "file": F}
        the same under cProfile

Ends when its input does.  A failure is answered with its text, and is the last answer.
"""
import cProfile
import ctypes
import importlib
import json
import os
import sys
import time

import memory

TICKS = os.sysconf("SC_CLK_TCK")
# The modules that a system's trainer imports: memory is counted above them.
IMPORTS = {"zerod": "zerod.torch", "zero1": "torch.distributed.optim",
           "fsdp2": "torch.distributed.fsdp", "deepspeed": "deepspeed"}


def cpu_seconds(pid):
    """User and system time so far, of all threads."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        fields = stat.read().rpartition(")")[2].split()  # the name in front may hold anything
    return (int(fields[11]) + int(fields[12])) / TICKS



class Rank:
    def __init__(self):
        self.trainer = self.config = None
        self.at = 0  # steps done

    def build(self, config):
        import torch
        import torch._dynamo  # noqa: F401  most systems do, sooner or later

        import model as gpt
        import ours
        import peers

        if config["system"] in IMPORTS:
            importlib.import_module(IMPORTS[config["system"]])
        torch.set_num_threads(1)
        imported = memory.anonymous("self"), memory.private("self")
        maker = {**peers.SYSTEMS, "zerod": ours.Zerod}[config["system"]]
        self.config, model = config, gpt.build(config["size"])
        parameters = sum(p.numel() for p in model.parameters())
        self.trainer = maker(config, model)
        del model
        ctypes.CDLL(None).malloc_trim(0)  # what building left is no part of training's memory
        return {"torch": torch.__version__, "anonymous": imported[0], "private": imported[1],
                "parameters": parameters}

    def one_step(self, want_norm=False):
        import torch

        import model as gpt

        batches = [gpt.batch(self.config["size"], self.at, rank, self.config["sequences"])
                   for rank in self.config["batches"]]
        self.at += 1
        tokens, following = map(torch.cat, zip(*batches))
        return self.trainer.step(tokens, following, want_norm)

    def check(self, steps):
        seen = [self.one_step(want_norm=i == 0) for i in range(steps)]
        return {"losses": [loss for loss, _ in seen], "norm": seen[0][1]}

    def run(self, steps, pids):
        ends, cpu = [], []
        for i in range(steps + 1):
            self.one_step()
            ends.append(time.monotonic())
            if i in (0, steps):
                cpu.append(sum(map(cpu_seconds, pids)))
        return {"ends": ends, "cpu": cpu[-1] - cpu[0]}

    def profile(self, steps, file):
        self.one_step()
        profile = cProfile.Profile()
        profile.runcall(lambda: [self.one_step() for _ in range(steps)])
        profile.dump_stats(file)
        return {}

    def answer(self, do, **fields):
        if do == "build":
            return self.build(fields)
        return {"check": self.check, "run": self.run, "profile": self.profile}[do](**fields)


def main():
    replies = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # libraries print
    rank = Rank()
    for line in sys.stdin:
        try:
            reply = rank.answer(**json.loads(line))
        except Exception as error:  # told to the one who asked, with its trace in the log
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=replies)
            raise
        print(json.dumps(reply), file=replies)
    if rank.trainer:
        rank.trainer.end()


if __name__ == "__main__":
    main()
