"""The ways of keeping states that tests/bench/converge compares: a row each, by name.

All share what nanoGPT trains its character model with: AdamW's learning rate 1e-3, betas 0.9 and 0.99, decay 0.1 of
matrices, a warm-up of a tenth of the steps, then a cosine to a tenth, gradients clipped at 1.  Lion has a fifth of this
learning rate and five times the decay, within the 3 to 10 times of its paper (arXiv 2302.06675).  Muon has the same
learning rate and decay, as its authors at Moonshot scale its updates (arXiv 2502.16982): adjust_lr_fn="match_rms_adamw".
"""
import dataclasses

REFERENCE = "AdamW, fp32"
WEIGHT_DECAY = 0.1
BETAS = (0.9, 0.99)
CLIP = 1.0


@dataclasses.dataclass(frozen=True)
class Configuration:
    """optimizer: adamw, lion or muon of zerod, or torch: torch's AdamW in one process.  formats: arguments of
    zerod.torch's AdamW that not every build has.  cost: the time of a step over the reference's."""

    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = WEIGHT_DECAY
    accumulate: str = "fp32"
    micro_batches: int = 1
    formats: dict = dataclasses.field(default_factory=dict)
    cost: float = 1.0

    @property
    def ranks(self):
        return 1 if self.optimizer == "torch" else 2


CONFIGURATIONS = {
    REFERENCE: Configuration(),
    "AdamW of torch alone": Configuration("torch"),
    'accumulate="wire"': Configuration(accumulate="wire"),
    'accumulate="wire", 8 micro-batches': Configuration(accumulate="wire", micro_batches=8, cost=3.4),
    "Muon": Configuration("muon", cost=3.3),
    "Lion": Configuration("lion", lr=2e-4, weight_decay=0.5),
    'state="bf16"': Configuration(formats={"state": "bf16"}),
    'state="8bit"': Configuration(formats={"state": "8bit"}),
    'master="bf16+16"': Configuration(formats={"master": "bf16+16"}),
    'master="bf16+8"': Configuration(formats={"master": "bf16+8"}),
}
# for command lines and files
SHORT = dict(zip(("adamw", "torch", "wire", "wire-8", "muon", "lion", "bf16", "8bit", "bf16+16", "bf16+8"),
                 CONFIGURATIONS))
