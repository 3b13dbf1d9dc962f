"""One rank of a peer under fire, started by torchrun: peer.py CONFIGURATION

Trains from the newest checkpoint that is whole, and saves one every `every` steps: FSDP2 by DCP's async_save, DeepSpeed by
its save_checkpoint.  Rank 0 says {"event": "step", "t": steps made, "at": seconds} after each step.
"""
import json
import os
import shutil
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "systems"))
import torch  # noqa: E402

import model as gpt  # noqa: E402
import peers  # noqa: E402


class Saved:
    """Saves checkpoints into a directory and keeps the newest few, because the last may not be whole."""

    def __init__(self, trainer, config):
        self.trainer, self.place, self.every = trainer, config["saved"], config["every"]

    def steps(self):
        return sorted(int(d) for d in os.listdir(self.place) if d.isdigit())

    def newest(self):
        return max((t for t in self.steps() if self.is_whole(f"{self.place}/{t}")), default=0)

    def after(self, t, rank):
        if t % self.every:
            return
        self.save(t)
        if rank == 0:
            for old in self.steps()[:-3]:
                shutil.rmtree(f"{self.place}/{old}", ignore_errors=True)


class Dcp(Saved):
    """As torch.distributed.checkpoint's documentation has it."""

    def __init__(self, trainer, config):
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
        super().__init__(trainer, config)
        self.dcp, self.get, self.set, self.running = checkpoint, get_state_dict, set_state_dict, None
        self.group = torch.distributed.new_group(backend="gloo")  # the thread that saves meets others of its own

    def is_whole(self, place):
        return os.path.exists(f"{place}/.metadata")

    def state(self):
        model, optimizer = self.get(self.trainer.model, self.trainer.optimizer)
        return {"model": model, "optimizer": optimizer}

    def save(self, t):
        if self.running:
            self.running.result()  # DCP refuses two at a time
        self.running = self.dcp.async_save(self.state(), checkpoint_id=f"{self.place}/{t}", process_group=self.group)

    def load(self, t):
        state = self.state()
        self.dcp.load(state, checkpoint_id=f"{self.place}/{t}")
        self.set(self.trainer.model, self.trainer.optimizer, model_state_dict=state["model"],
                 optim_state_dict=state["optimizer"])


class DeepSpeed(Saved):
    def is_whole(self, place):
        return os.path.exists(f"{place}/whole")

    def save(self, t):
        self.trainer.model.save_checkpoint(self.place, tag=str(t))
        torch.distributed.barrier()
        if torch.distributed.get_rank() == 0:
            with open(f"{self.place}/{t}/whole", "x", encoding="ascii"):
                pass

    def load(self, t):
        self.trainer.model.load_checkpoint(self.place, tag=str(t))


def main():
    config = json.loads(sys.argv[1])
    events = open(config["events"], "a", encoding="utf-8")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    config.update(rank=rank, world=world)
    trainer = peers.SYSTEMS[config["system"]](config, gpt.build(config["size"]))
    saved = {"fsdp2": Dcp, "deepspeed": DeepSpeed}[config["system"]](trainer, config)
    t = saved.newest()
    if t:
        saved.load(t)
    while True:
        trainer.step(*gpt.batch(config["size"], t, rank, config["sequences"]), want_norm=False)
        t += 1
        saved.after(t, rank)
        print(json.dumps({"event": "step", "t": t, "at": time.monotonic(), "rank": rank, "pid": os.getpid()}),
              file=events, flush=True)


if __name__ == "__main__":
    main()
