"""A trainer of largest.py: `largest_trainer.py SYSTEM LAYERS` makes a few steps, and writes the number of parameters.

    zerod         stage 3, layer by layer, blocks' inputs in the stash; one daemon
    torch         PyTorch alone
    fsdp2         each block and the root under fully_shard, made on the meta device
    deepspeed3    DeepSpeed's ZeRO stage 3, parameters and optimizer offloaded to the CPU; no buffer larger than two blocks

Rule: everything is fp32; the optimizer is AdamW, fused where it is torch's.
"""
import os
import sys

import torch

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../torch"))
from gpt import GPT, batch_of  # noqa: E402

SHAPE = {"width": 1024, "heads": 16, "vocabulary": 256, "context": 64}
BLOCK = 12 * SHAPE["width"] ** 2  # elements of its matrices
STEPS, RATE = 2, 1e-4


def on_meta(layers):
    with torch.device("meta"):
        return GPT(layers, **SHAPE)


def by_zerod(layers):
    import zerod.torch as zt
    model = on_meta(layers)
    inputs = layers * SHAPE["context"] * SHAPE["width"] * 4
    zt.shard(model, stash=inputs + layers * 4096, prefetch=0)
    optimizer = zt.AdamW(model, lr=RATE)
    blocks = zt.LayerByLayer(model, model.blocks, micro_batches=1)

    def step(batch):
        loss = blocks.forward_backward(lambda m, part: m(part), batch)
        optimizer.step()
        return loss
    return step


def stepping(model):
    """A step of a model that torch alone holds; the model has no values yet."""
    for module in model.to_empty(device="cpu").modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, fused=True)

    def step(batch):
        loss = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss
    return step


def by_torch(layers):
    return stepping(on_meta(layers))


def meet():
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", GLOO_SOCKET_IFNAME="lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meet", rank=0, world_size=1)


def by_fsdp2(layers):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    meet()
    mesh = init_device_mesh("cpu", (1,))
    model = on_meta(layers)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return stepping(fully_shard(model, mesh=mesh))


def by_deepspeed3(layers):
    import deepspeed
    meet()
    most = 2 * BLOCK
    config = {"train_micro_batch_size_per_gpu": 1, "steps_per_print": 1 << 30, "gradient_clipping": 0.0,
              "optimizer": {"type": "AdamW", "params": {"lr": RATE}},
              "zero_optimization": {
                  "stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"},
                  "reduce_bucket_size": BLOCK, "stage3_prefetch_bucket_size": BLOCK, "sub_group_size": BLOCK,
                  "stage3_max_live_parameters": most, "stage3_max_reuse_distance": most}}
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = GPT(layers, **SHAPE)
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config,
                                  dist_init_required=False)[0]

    def step(batch):
        loss = engine(batch)
        engine.backward(loss)
        engine.step()
        return loss
    return step


SYSTEMS = {"zerod": by_zerod, "torch": by_torch, "fsdp2": by_fsdp2, "deepspeed3": by_deepspeed3}


def main(system, layers):
    torch.set_num_threads(2)
    step, batch = SYSTEMS[system](layers), batch_of(0, 1, SHAPE["vocabulary"], SHAPE["context"])
    losses = [step(batch).item() for _ in range(STEPS)]
    assert losses[-1] < losses[0], losses
    print(sum(p.numel() for p in on_meta(layers).parameters()), flush=True)
    os._exit(0)  # a tidy end takes long, and shows nothing


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
