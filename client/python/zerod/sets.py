"""Each optimizer's hyperparameters: the members of struct zero_set, in their order."""
from typing import NamedTuple

__all__ = ["AdamSet", "AdamWSet", "LionSet", "MuonSet", "SGDSet"]


class AdamWSet(NamedTuple):
    """One hyperparameter set of AdamW, as torch.optim.AdamW has them.  ema_decay: of groups that keep averages of
    their weights (Layout.group()); so it is with the other sets."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    maximize: bool = False
    ema_decay: float = 0.0

    @property
    def optimizer(self) -> str:
        return "adamw"


class AdamSet(NamedTuple):
    """One hyperparameter set of Adam, like torch.optim.Adam's: the weight decay is L2."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    maximize: bool = False
    ema_decay: float = 0.0

    @property
    def optimizer(self) -> str:
        return "adam"


class LionSet(NamedTuple):
    """One hyperparameter set of Lion (arXiv 2302.06675)."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.0
    maximize: bool = False
    ema_decay: float = 0.0

    @property
    def optimizer(self) -> str:
        return "lion"


class SGDSet(NamedTuple):
    """One hyperparameter set of SGD, like torch.optim.SGD's.  With momentum 0 its optimizer is "sgd", else
    "sgd-momentum"."""

    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False
    ema_decay: float = 0.0

    @property
    def optimizer(self) -> str:
        return "sgd-momentum" if self.momentum else "sgd"


class MuonSet(NamedTuple):
    """One hyperparameter set of Muon, like torch.optim.Muon's, for tensors of Layout.tensor(optimizer="muon").

    adjust_lr: "original", "match_rms_adamw" or "spectral_unclamped"; None: "original".
    ns_coefficients, eps, ns_steps: of Newton-Schulz, which has at most 99 steps."""

    lr: float = 1e-3
    momentum: float = 0.95
    weight_decay: float = 0.1
    nesterov: bool = True
    adjust_lr: "str | None" = None
    ns_coefficients: "tuple[float, float, float]" = (3.4445, -4.7750, 2.0315)
    eps: float = 1e-7
    ns_steps: int = 5
    ema_decay: float = 0.0

    @property
    def optimizer(self) -> str:
        return "muon"


# name of the optimizer: its set's fields, without ema_decay
HYPERPARAMETERS = {name: kind._fields[:-1] for name, kind in {
    "adamw": AdamWSet, "adam": AdamSet, "lion": LionSet, "sgd": SGDSet, "sgd-momentum": SGDSet, "muon": MuonSet}.items()}
