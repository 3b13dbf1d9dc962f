"""One of two ranks: rank.py CONFIGURATION

Brings a group together and reduces its gradient by zerod, and as many bytes by gloo, in turn.  A line of JSON a size:
{"size": bytes, operation: seconds of each round}.
"""
import array
import ctypes
import json
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import zerod

DATA, MARK = 0, 1  # asking for room for the second group's gradient waits for the first one's
WAIT_S = 120


def timed(call, *arguments):
    dist.barrier()
    begin = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begin


class Ours:
    def __init__(self, config, size):
        self.size, self.rank, self.socket, self.job = size, config["rank"], config["socket"], f"paths-{size}"
        layout = zerod.Layout()
        for name, n in (("data", size // 2), ("mark", 1)):
            layout.tensor(layout.group(name, "bf16", optimizer="sgd"), name, (n,))
        self.client = zerod.connect(self.job, self.rank, 2, 1, self.socket, timeout=WAIT_S)
        self.client.attach(layout, grad_dtype="bf16", reduce_dtype="bf16")

    def push(self):
        self.client.push(DATA)
        self.mark = self.client.grad(MARK)  # when all owners have the gradient

    def round(self):
        ctypes.memset(self.client.grad(DATA), 0, self.size)
        reduce = timed(self.push)
        ctypes.memset(self.mark, 0, 2)
        self.client.push(MARK)
        self.client.step([zerod.SGDSet(0.0)])
        value = array.array("f", [0])
        for at in (0, self.size // 2 - 1):  # owners update after the step
            self.client.get(DATA, "master", at, 1, value)
        gather = timed(self.client.fetch, DATA)
        self.client.release(DATA)
        return {"reduce": reduce, "gather": gather}

    def end(self):
        self.client.close()
        dist.barrier()
        if self.rank == 0:
            zerod.drop(self.job, self.socket)
        dist.barrier()


class Gloo:
    def __init__(self, size):
        self.whole, self.part = torch.zeros(size // 2, dtype=torch.bfloat16), torch.zeros(size // 4, dtype=torch.bfloat16)

    def round(self):
        return {"all_gather": timed(dist.all_gather_into_tensor, self.whole, self.part),
                "reduce_scatter": timed(dist.reduce_scatter_tensor, self.part, self.whole)}


def main():
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # libraries print
    config = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{config['store']}", rank=config["rank"], world_size=2,
                            timeout=timedelta(seconds=WAIT_S))
    for size in config["sizes"]:
        ours, gloo = Ours(config, size), Gloo(size)
        rounds = [{**ours.round(), **gloo.round()} for _ in range(config["rounds"] + 1)][1:]  # the first one warms up
        ours.end()
        print(json.dumps({"size": size, **{k: [r[k] for r in rounds] for k in rounds[0]}}), file=events, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
