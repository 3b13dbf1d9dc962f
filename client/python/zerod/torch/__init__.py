"""PyTorch trainers whose parameters, gradients and optimizer state are in zerod.

    model = zerod.torch.shard(model, stage=3)
    optimizer = zerod.torch.AdamW(model, lr=3e-4)
    for step in zerod.torch.steps(model, until=1000, seed=0):
        with step as t:  # repeated, with the same t, if a daemon, a node or a rank dies
            loss_of(model, batch(t)).backward()
            model.clip_grad_norm_(1.0)
            optimizer.step()

The tests run it with PyTorch 2.15.0 and 2.6.0; no other version is claimed.
"""
from zerod import drop

from . import muon, optim
from .activations import checkpoint, checkpoint_blocks
from .checkpoints import load_checkpoint, load_safetensors, save_checkpoint, save_safetensors
from .clip_grad import clip_grad_norm_
from .follower import follow
from .form import Box, Output, Part
from .grad_scaler import GradScaler
from .layerwise import LayerByLayer
from .matrices import MuonSplit, muon_split
from .muon import *
from .norms import grad_norms, weight_norms
from .optim import *
from .parameter import GradientsAreElsewhere, NotFetched, WrittenInPlace, WrittenToBase
from .process_group import init_process_group
from .ranks import all_reduce, rank, world_size
from .sharded import Sharded, sharded_of
from .state import ema_params, full_params, hold, register_forward_method
from .steps import Step, manual_seed, steps
from .turn import UsedByAnotherThread
from .unit import ShardedParam
from .wrap import ZeroModule, fully_shard, shard

__all__ = [
    "Box", "GradScaler", "GradientsAreElsewhere", "LayerByLayer", "MuonSplit", "NotFetched", "Output", "Part",
    "Sharded", "ShardedParam", "Step", "UsedByAnotherThread", "WrittenInPlace", "WrittenToBase", "ZeroModule", "all_reduce", "checkpoint",
    "checkpoint_blocks", "clip_grad_norm_", "drop", "ema_params", "follow", "full_params", "fully_shard", "grad_norms",
    "hold", "init_process_group", "load_checkpoint", "load_safetensors", "manual_seed", "muon_split", "rank",
    "register_forward_method", "save_checkpoint", "save_safetensors", "shard", "sharded_of", "steps",
    "weight_norms", "world_size",
]
__all__ += optim.__all__
__all__ += muon.__all__
