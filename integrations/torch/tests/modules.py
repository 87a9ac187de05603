"""Modules of the tests, and their kernels by torch.autograd alone."""

import copy

import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.hidden(x)))


class ConvNet(nn.Module):
    """Convolution, normalization with running statistics, pooling, dropout."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.drop(self.body(x).flatten(1)))


class Attention(nn.Module):
    """Token and position embeddings, and a block of a transformer with a causal mask."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(7, 8)
        self.positions = nn.Parameter(torch.randn(5, 8))
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.mask = torch.triu(torch.full((5, 5), float("-inf")), 1)  # a plain attribute
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = self.block(self.tokens(x) + self.positions, src_mask=self.mask.to(self.positions))
        return self.head(h[:, -1])


class Tied(nn.Module):
    """One matrix that embeds tokens and reads them out."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.read = nn.Linear(5, 7, bias=False)
        self.read.weight = self.embed.weight

    def forward(self, x):
        return self.read(torch.tanh(self.embed(x).mean(1)))


class Frozen(MLP):
    """The body is held fixed."""

    def __init__(self):
        super().__init__()
        self.hidden.requires_grad_(False)


class Pair(nn.Module):
    """Two inputs as arguments."""

    def __init__(self):
        super().__init__()
        self.left = nn.Linear(4, 3)
        self.right = nn.Bilinear(4, 2, 3)

    def forward(self, a, b):
        return torch.sin(self.left(a)) + self.right(a, b)


class Branching(MLP):
    """Control flow that depends on numbers, which no trace can follow."""

    def forward(self, x):
        h = self.hidden(x)
        h = torch.tanh(h) if h.sum().item() > 0 else torch.sin(h)
        return self.head(h)


def trained(module):
    """The module after a few steps in train mode: its running statistics are its own."""
    if isinstance(module, ConvNet):
        dtype = next(module.parameters()).dtype
        for _ in range(3):
            module(0.5 + 2 * torch.randn(8, 2, 4, 4, dtype=dtype))
    return module


def floats(*shape):
    return torch.randn(shape, dtype=torch.float64)


def tokens(n):
    return torch.randint(0, 7, (n, 5))


# Module -> its inputs, and how they are handed to `functionalize`.
CASES = {
    "CNN with BatchNorm": (ConvNet, lambda n: floats(n, 2, 4, 4), {}),
    "attention block": (Attention, tokens, {}),
    "shared weights": (Tied, tokens, {}),
    "frozen layers": (Frozen, lambda n: floats(n, 4), {}),
    "two inputs": (Pair, lambda n: (floats(n, 4), floats(n, 2)), {"unpack": True}),
}


def called(module, x):
    return module(*x) if isinstance(x, tuple) else module(x)


def kernel(module, x):
    """K[n,o,m,p] = <J[n,o], J[m,p]>, in eval mode, row by row by torch.autograd."""
    module = copy.deepcopy(module).eval()
    params = [parameter for parameter in module.parameters() if parameter.requires_grad]
    outputs = called(module, x)
    rows = []
    for output in outputs.flatten():
        gradients = torch.autograd.grad(output, params, retain_graph=True)
        rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    rows = torch.stack(rows).reshape(*outputs.shape, -1)
    return torch.einsum("nop,mqp->nomq", rows, rows).numpy()
