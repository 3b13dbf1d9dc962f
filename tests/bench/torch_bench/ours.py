"""A trainer whose model states are in zerod."""
import model as gpt
import peers


class Zerod(peers.Trainer):
    def __init__(self, config):
        import zerod
        import zerod.torch

        self.client = zerod.connect(job=config["job"], socket=config["socket"],
                                    rank=config["rank"], world_size=config["world"],
                                    local_world_size=config["local_world"])
        self.model = zerod.torch.shard(gpt.build(config["size"]), stage=config["stage"],
                                       client=self.client)
        self.optimizer = zerod.torch.AdamW(self.model, **gpt.ADAMW)

    def step(self, tokens, following, want_norm=False):
        loss = self.model(tokens, following)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item(), self.optimizer.grad_norm if want_norm else None

    def end(self):
        self.client.close()
