"""The systems that zerod is compared with, each in the form its own documentation gives for speed.

Rule: a system has the same model, data and AdamW (torch's fused one) as all others, and changes
only who holds and sums what.  FSDP2 and DeepSpeed's stage 3 free a block's parameters after its forward pass.
"""
import contextlib
import os

import torch
import torch.distributed as dist

import model as gpt


def meet(config):
    """Joins the other ranks, unless they have met: by a file, so no port has to be chosen."""
    if dist.is_initialized():
        return
    os.environ.update({"RANK": str(config["rank"]), "WORLD_SIZE": str(config["world"]),
                       "LOCAL_RANK": str(config["rank"]), "LOCAL_WORLD_SIZE": str(config["world"])})
    dist.init_process_group("gloo", init_method=f"file://{config['directory']}/meet",
                            rank=config["rank"], world_size=config["world"])


def replicated(model):
    """The model under DistributedDataParallel, gradients in its buckets."""
    return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)


def autocast(config):
    """For a system that computes in bf16 with parameters in fp32."""
    return torch.autocast("cpu", torch.bfloat16) if config.get("dtype") == "bf16" else contextlib.nullcontext()


def adamw(model, config):
    return torch.optim.AdamW(model.parameters(), **config.get("adamw", gpt.ADAMW), fused=True)


class Trainer:
    """One rank of a system.  Subclasses set `model` and `optimizer` from a model that has `blocks`.

    config: rank, world and directory, where ranks meet; adamw: in place of gpt.ADAMW; deepspeed: more of its settings.
    """

    model = optimizer = None
    precision = contextlib.nullcontext()  # around a forward pass

    def norm(self):
        """Norm of the gradient that the optimizer is about to use."""
        return torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters()])

    def step(self, tokens, following, want_norm=False):
        """One training step; the loss of this rank's batch, and the gradient's norm if wanted."""
        with self.precision:
            loss = self.model(tokens, following)
        self.backward(loss)
        norm = float(self.norm()) if want_norm else None
        self.update()
        return loss.item(), norm

    def micro_batch(self, last):  # pylint: disable=unused-argument
        """Around a forward and a backward pass; last: the update follows."""
        return contextlib.nullcontext()

    def backward(self, loss):
        loss.backward()

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def parameters(self):
        """All parameters, whole, by name."""
        return {name: p.detach() for name, p in self.model.named_parameters()}

    def end(self):
        if dist.is_initialized():
            dist.destroy_process_group()


class Plain(Trainer):
    """One process that knows of no other."""

    def __init__(self, config, model):
        self.model, self.precision = model, autocast(config)
        self.optimizer = adamw(self.model, config)

    def norm(self):
        """In fp64, which the others are held against: fp32 loses 4e-4 over 38 million elements."""
        squares = [p.grad.double().square().sum() for p in self.model.parameters()]
        return torch.stack(squares).sum().sqrt()


class Ddp(Trainer):
    def __init__(self, config, model):
        meet(config)
        self.model, self.precision = replicated(model), autocast(config)
        self.optimizer = adamw(self.model, config)

    def micro_batch(self, last):
        return contextlib.nullcontext() if last else self.model.no_sync()


class Zero1(Trainer):
    """DDP with torch's ZeroRedundancyOptimizer."""

    def __init__(self, config, model):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        meet(config)
        self.model, self.precision = replicated(model), autocast(config)
        self.optimizer = ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.AdamW,
                                                 **config.get("adamw", gpt.ADAMW), fused=True)


class Fsdp2(Trainer):
    def __init__(self, config, model):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        meet(config)
        mesh = init_device_mesh("cpu", (config["world"],))
        self.model = model
        options = {"mesh": mesh}
        if config.get("dtype") == "bf16":
            options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        for block in self.model.blocks:
            fully_shard(block, **options)
        fully_shard(self.model, **options)
        self.optimizer = adamw(self.model, config)

    def norm(self):
        return super().norm().full_tensor()

    def parameters(self):
        return {name: p.full_tensor() for name, p in self.model.named_parameters()}


class DeepSpeed(Trainer):
    """DeepSpeed's ZeRO as it sets itself, but without clipping, which it has at 1."""

    def __init__(self, config, model):
        import deepspeed

        meet(config)
        self.optimizer = adamw(model, config)
        settings = {"train_micro_batch_size_per_gpu": config["sequences"],
                    "steps_per_print": 1 << 30, "gradient_clipping": 0.0,
                    "bf16": {"enabled": config.get("dtype") == "bf16"},
                    "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
                    "zero_optimization": {"stage": config["stage"], **config.get("deepspeed", {})}}
        self.model = deepspeed.initialize(model=model, optimizer=self.optimizer, config=settings,
                                          dist_init_required=False)[0]

    def norm(self):
        return self.model.get_global_grad_norm()

    def step(self, tokens, following, want_norm=False):
        with self.precision:
            loss = self.model(tokens, following)
        self.backward(loss)
        self.update()
        return loss.item(), float(self.norm()) if want_norm else None

    def backward(self, loss):
        self.model.backward(loss)

    def update(self):
        self.model.step()

    def parameters(self):
        import deepspeed

        with deepspeed.zero.GatheredParameters(list(self.model.parameters())):
            return {name: p.detach().clone() for name, p in self.model.module.named_parameters()}


SYSTEMS = {"plain": Plain, "ddp": Ddp, "zero1": Zero1, "fsdp2": Fsdp2, "deepspeed": DeepSpeed}
