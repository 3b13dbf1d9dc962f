"""The systems that zerod is compared with, each in the form its own documentation gives for speed.

Rule: a system has the same model, data and AdamW (torch's fused one) as all others, and changes
only who holds and sums what.  FSDP2 and DeepSpeed's stage 3 free a block's parameters after its forward pass.
"""
import os

import torch
import torch.distributed as dist

import model as gpt


def meet(config):
    """Joins the other ranks, by a file: no port has to be chosen."""
    os.environ.update({"RANK": str(config["rank"]), "WORLD_SIZE": str(config["world"]),
                       "LOCAL_RANK": str(config["rank"]), "LOCAL_WORLD_SIZE": str(config["world"])})
    dist.init_process_group("gloo", init_method=f"file://{config['directory']}/meet",
                            rank=config["rank"], world_size=config["world"])


def replicated(config):
    """The model under DistributedDataParallel, gradients in its buckets."""
    return torch.nn.parallel.DistributedDataParallel(gpt.build(config["size"]),
                                                     gradient_as_bucket_view=True)


class Trainer:
    """One rank of a system.  Subclasses set `model` and `optimizer`."""

    model = optimizer = None

    def norm(self):
        """Norm of the gradient that the optimizer is about to use."""
        return torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters()])

    def step(self, tokens, following, want_norm=False):
        """One training step; the loss of this rank's batch, and the gradient's norm if wanted."""
        loss = self.model(tokens, following)
        loss.backward()
        norm = float(self.norm()) if want_norm else None
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item(), norm

    def end(self):
        if dist.is_initialized():
            dist.destroy_process_group()


class Plain(Trainer):
    """One process that knows of no other."""

    def __init__(self, config):
        self.model = gpt.build(config["size"])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **gpt.ADAMW, fused=True)

    def norm(self):
        """In fp64, which the others are held against: fp32 loses 4e-4 over 38 million elements."""
        squares = [p.grad.double().square().sum() for p in self.model.parameters()]
        return torch.stack(squares).sum().sqrt()


class Ddp(Trainer):
    def __init__(self, config):
        meet(config)
        self.model = replicated(config)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **gpt.ADAMW, fused=True)


class Zero1(Trainer):
    """DDP with torch's ZeroRedundancyOptimizer."""

    def __init__(self, config):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        meet(config)
        self.model = replicated(config)
        self.optimizer = ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.AdamW,
                                                 **gpt.ADAMW, fused=True)


class Fsdp2(Trainer):
    def __init__(self, config):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        meet(config)
        mesh = init_device_mesh("cpu", (config["world"],))
        self.model = gpt.build(config["size"])
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **gpt.ADAMW, fused=True)

    def norm(self):
        return super().norm().full_tensor()


class DeepSpeed(Trainer):
    """DeepSpeed's ZeRO as it sets itself, but without clipping, which it has at 1."""

    def __init__(self, config):
        import deepspeed

        meet(config)
        model = gpt.build(config["size"])
        self.optimizer = torch.optim.AdamW(model.parameters(), **gpt.ADAMW, fused=True)
        settings = {"train_micro_batch_size_per_gpu": config["sequences"],
                    "steps_per_print": 1 << 30, "gradient_clipping": 0.0,
                    "zero_allow_untested_optimizer": True, "zero_optimization": {"stage": config["stage"]}}
        self.model = deepspeed.initialize(model=model, optimizer=self.optimizer, config=settings,
                                          dist_init_required=False)[0]

    def step(self, tokens, following, want_norm=False):
        loss = self.model(tokens, following)
        self.model.backward(loss)
        self.model.step()
        return loss.item(), float(self.model.get_global_grad_norm()) if want_norm else None
