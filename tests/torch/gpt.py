"""A small GPT and its data, for the suites in PyTorch: the same for a seed, whoever makes it.

Shapes: tokens are int64 (batch, context + 1): input and target of a step, one place apart.
"""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

VOCABULARY, CONTEXT = 61, 16


class Block(nn.Module):
    def __init__(self, width, heads, dropout=0.0):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(self.ln1(x)).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        x = x + self.down(F.gelu(self.up(self.ln2(x))))
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class GPT(nn.Module):
    """tied: the head is the embedding.  recompute: None, "reentrant" or "nonreentrant" activation
    checkpointing of each block."""

    def __init__(self, layers=2, width=48, heads=4, tied=False, recompute=None,
                 vocabulary=VOCABULARY, context=CONTEXT, dropout=0.0):
        super().__init__()
        self.recompute = recompute
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(self.init)
        if tied:
            self.head.weight = self.wte.weight

    @staticmethod
    def init(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.1)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def run_block(self, block, x):
        if self.recompute:
            return checkpoint(block, x, use_reentrant=self.recompute == "reentrant")
        return block(x)

    def forward(self, tokens):
        """The mean loss of (batch, context + 1) tokens."""
        x, y = tokens[:, :-1], tokens[:, 1:]
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            h = self.run_block(block, h)
        logits = self.head(self.ln(h))
        return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())


def make(seed=0, dtype=torch.float32, **options):
    """The model that the seed makes, drawn in fp32."""
    torch.manual_seed(seed)
    return GPT(**options).to(dtype)


def batch_of(step, size=8, vocabulary=VOCABULARY, context=CONTEXT):
    """Sequences that follow a rule, with one token in five at random: (size, context + 1)."""
    draw = torch.Generator().manual_seed(1000 + step)
    rows = [torch.randint(vocabulary, (size,), generator=draw)]
    for _ in range(context):
        noise = torch.randint(vocabulary, (size,), generator=draw)
        odd = torch.rand(size, generator=draw) < 0.2
        rows.append(torch.where(odd, noise, (rows[-1] * 3 + 7) % vocabulary))
    return torch.stack(rows, dim=1)
