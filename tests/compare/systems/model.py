"""The GPT that every system of the benchmark trains, and its data: the same on every rank and run.

Rule: parameters depend on SEED alone, a batch on (step, rank) alone.  Parameters are fp32.
"""
import torch
from torch import nn
from torch.nn import functional

SEED = 1
# Heads are 64 wide; the parameters are 25.5, 48.2, 99.6, 124 and 353 million.
SIZES = {
    "tiny": {"width": 64, "layers": 2, "vocabulary": 256},
    "25m": {"width": 512, "layers": 8, "vocabulary": 256},
    "48m": {"width": 576, "layers": 12, "vocabulary": 256},
    "100m": {"width": 768, "layers": 14, "vocabulary": 256},
    "125m": {"width": 768, "layers": 12, "vocabulary": 50257},
    "350m": {"width": 1024, "layers": 28, "vocabulary": 256},
}
CONTEXT = 256
ADAMW = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a layer norm.

    (batch, context, width) in and out.
    """

    def __init__(self, width):
        super().__init__()
        self.heads = width // 64
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def attention(self, x):
        batch, context, width = x.shape
        heads = self.qkv(x).view(batch, context, 3, self.heads, 64).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads.unbind(0), is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, context, width))

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))


class Gpt(nn.Module):
    """Tokens (batch, context) and those that follow them in, the mean loss out.

    Head and embedding are tied.
    """

    def __init__(self, width, layers, vocabulary):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, following):
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), following.flatten())


def build(size):
    """The model with its first parameters."""
    torch.manual_seed(SEED)
    model = Gpt(**SIZES[size])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.02)
    return model


def batch(size, step, rank, sequences):
    """Tokens and those that follow them, int64, (sequences, CONTEXT) each; learnable."""
    vocabulary = SIZES[size]["vocabulary"]
    chance = torch.Generator().manual_seed(1000 * step + rank)
    tokens = torch.empty(sequences, CONTEXT + 1, dtype=torch.long)
    tokens[:, 0] = torch.randint(vocabulary, (sequences,), generator=chance)
    noise = torch.randint(2, (sequences, CONTEXT), generator=chance)
    for i in range(CONTEXT):
        tokens[:, i + 1] = (5 * tokens[:, i] + 1 + noise[:, i]) % vocabulary
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
