"""A trainer whose model states are in zerod."""
import torch

import model as gpt
import peers


class Zerod(peers.Trainer):
    """config: also job, socket, local_world and stage; shard, more arguments of zerod.torch.shard(); clip, a norm."""
    def __init__(self, config, model):
        import zerod
        import zerod.torch

        self.client = zerod.connect(job=config["job"], socket=config["socket"],
                                    rank=config["rank"], world_size=config["world"],
                                    local_world_size=config["local_world"])
        if config.get("dtype") == "bf16":
            model.to(torch.bfloat16)
        self.clip = config.get("clip")
        self.model = zerod.torch.shard(model, stage=config["stage"], client=self.client,
                                       **config.get("shard", {}))
        self.optimizer = zerod.torch.AdamW(self.model, **config.get("adamw", gpt.ADAMW))

    def step(self, tokens, following, want_norm=False):
        loss = self.model(tokens, following)
        self.backward(loss)
        if self.clip:
            self.model.clip_grad_norm_(self.clip)
        self.update()
        return loss.item(), self.optimizer.grad_norm if want_norm else None

    def parameters(self):
        return {name: p.full_tensor() for name, p in self.model.named_parameters()}

    def end(self):
        self.client.finish()
        self.client.close()
