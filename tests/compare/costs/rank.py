"""A rank of costs.

    rank.py hooks SOCKET BLOCKS
        prints CPU milliseconds of a step's passes, of the same model alone and in two systems
    rank.py train SOCKET JOB RANK WORLD STEPS
        makes so many steps for each line that it reads, without computing, and answers with a line
"""
import json
import os
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "systems"))
import zerod  # noqa: E402

WIDTH, CONTEXT, WARM, STEPS, ROUNDS = 64, 16, 1, 10, 9
GROUPS, ELEMENTS = 16, 16 << 20
TIMEOUT_S = 60


def passes_ms(trainer, tokens):
    """CPU milliseconds of the process, of a step's forward and backward pass."""
    used = 0
    for _ in range(STEPS):
        before = time.process_time()
        trainer.model(tokens, tokens).backward()
        used += time.process_time() - before
        trainer.update()
    return 1000 * used / STEPS


def hooks(socket, blocks):
    import torch

    import model as gpt
    import ours
    import peers

    torch.set_num_threads(1)
    tokens = torch.randint(256, (1, CONTEXT))
    with tempfile.TemporaryDirectory() as directory:
        config = {"rank": 0, "world": 1, "local_world": 1, "directory": directory, "job": "hooks", "socket": socket, "stage": 3}
        systems = {**peers.SYSTEMS, "zerod": ours.Zerod}
        trainers = {name: systems[name](config, gpt.Gpt(WIDTH, int(blocks), 256)) for name in ("plain", "fsdp2", "zerod")}
        rounds = [{name: passes_ms(trainer, tokens) for name, trainer in trainers.items()} for _ in range(WARM + ROUNDS)][WARM:]
        for trainer in trainers.values():
            trainer.end()
    print(json.dumps({name: statistics.median(r[name] for r in rounds) for name in trainers}), flush=True)


def train(socket, job, rank, world, steps):
    layout = zerod.Layout()
    groups = []
    for i in range(GROUPS):
        groups.append(layout.group(f"g{i}", "fp32"))
        layout.tensor(groups[i], f"t{i}", (ELEMENTS,), init="normal", value=0.02, seed=i)
    with zerod.connect(job=job, socket=socket, rank=int(rank), world_size=int(world), local_world_size=int(world),
                       timeout=TIMEOUT_S) as client:
        client.attach(layout)
        for _ in sys.stdin:
            for _ in range(int(steps)):
                for g in groups:
                    client.grad(g)  # zeros
                    client.push(g)
                client.step([zerod.AdamWSet(lr=1e-3)])
                for g in reversed(groups):  # the last one is updated last: until then the rank sleeps
                    client.fetch(g)
                    client.release(g)
            print(flush=True)


if __name__ == "__main__":
    {"hooks": hooks, "train": train}[sys.argv[1]](*sys.argv[2:])
