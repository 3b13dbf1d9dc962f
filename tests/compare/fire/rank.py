"""The ranks under fire.  A process imports PyTorch and forks a rank for each configuration, a packet of JSON on standard
input that comes with a pipe: so a rank takes a dead one's place at once.  The process answers with the rank's id.  A rank
trains and writes {"event": "step", "t": steps made, "at": seconds} to the pipe after each step, with a "digest" of all
parameters where t is a multiple of `digest`, and {"event": "void", "t": steps made} when the step has to be made again.

A rank of a node that is warned (SIGTERM) says so to all others in a step, and ends with its node's other ranks behind
that step."""
import ctypes
import hashlib
import json
import os
import signal
import socket
import sys
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "systems"))
import torch  # noqa: E402

import zerod  # noqa: E402
import zerod.torch as zt  # noqa: E402

import model as gpt  # noqa: E402

PR_SET_PDEATHSIG = 1  # prctl.h


def digest(model):
    """Of all parameters, whoever has them; or None, if a daemon or a node is lost meanwhile."""
    whole = hashlib.sha256()
    try:
        for _, p in sorted(model.named_parameters()):
            whole.update(p.full_tensor().detach().numpy())
    except zerod.Error:
        return None
    return whole.hexdigest()


def train(config, events):
    client = zerod.connect(job="fire", socket=config["socket"], rank=config["rank"], world_size=config["world"],
                           local_world_size=config["local_world"], incarnation=config["incarnation"])
    with torch.device("meta" if config["incarnation"] else "cpu"):  # a later rank gets the parameters that the job has
        model = gpt.build(config["size"])
    model = zt.shard(model, stage=3, client=client)
    optimizer = zt.AdamW(model, **gpt.ADAMW)
    node, warned = 1 + config["rank"] // config["local_world"], []
    signal.signal(signal.SIGTERM, lambda *_: warned.append(node))
    for step in zt.steps(model, until=1 << 40):
        with step as t:
            tokens, following = gpt.batch(config["size"], t, config["rank"], config["sequences"])
            model(tokens, following).backward()
            leaves, = client.all_reduce("warned", [warned[0] if warned else 0], "max")
            optimizer.step()
        made = model.sharded.steps_made
        told = {"event": "void" if step.aborted else "step", "at": time.monotonic(), "t": made}
        if not step.aborted and config["rank"] == 0 and made % config["digest"] == 0:
            told["digest"] = digest(model)
        print(json.dumps(told), file=events, flush=True)
        if not step.aborted and leaves == node:
            os._exit(1)  # without a farewell: the job waits for a successor


def become(config, pipe):
    """Never returns.  The rank ends with its parent."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        train(config, os.fdopen(pipe, "w", encoding="utf-8"))
    except BaseException:  # noqa: B036  else the parent's loop would go on here, too
        traceback.print_exc()
    os._exit(1)


def main():
    torch.set_num_threads(1)
    with torch.device("meta"):
        gpt.build("tiny")  # imports 900 modules more
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=0) as door:
        while True:
            data, pipes, _, _ = socket.recv_fds(door, 1 << 16, 1)
            if not data:
                return
            rank = os.fork()
            if rank == 0:
                door.close()
                become(json.loads(data), *pipes)
            os.close(*pipes)
            door.send(str(rank).encode())


if __name__ == "__main__":
    main()
