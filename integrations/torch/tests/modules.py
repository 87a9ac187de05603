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
    """Convolution, normalisation with running statistics, pooling, dropout."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.drop(self.body(x).flatten(1)))


class NormNet(nn.Module):
    """A small one with running statistics."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 5)
        self.norm = nn.BatchNorm1d(5)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.hidden(x))))


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
    """Two inputs: as arguments, or in one dictionary."""

    def __init__(self):
        super().__init__()
        self.left = nn.Linear(4, 3)
        self.right = nn.Bilinear(4, 2, 3)

    def forward(self, a, b=None):
        if isinstance(a, dict):
            a, b = a["a"], a["b"]
        return torch.sin(self.left(a)) + self.right(a, b)


class Branching(MLP):
    """Control flow that depends on numbers, which no trace can follow."""

    def forward(self, x):
        h = self.hidden(x)
        h = torch.tanh(h) if h.sum().item() > 0 else torch.sin(h)
        return self.head(h)


def trained(module):
    """The module after a few steps in train mode: its running statistics are its own."""
    shapes = {ConvNet: (8, 2, 4, 4), NormNet: (8, 4)}
    if type(module) in shapes:
        dtype = next(module.parameters()).dtype
        for _ in range(3):
            module(0.5 + 2 * torch.randn(shapes[type(module)], dtype=dtype))
    return module


def floats(*shape):
    return torch.randn(shape, dtype=torch.float64)


def tokens(n):
    return torch.randint(0, 7, (n, 5))


# Module -> its inputs, and how they are handed to `functionalize`.
CASES = {
    "MLP": (MLP, lambda n: floats(n, 4), {}),
    "CNN with BatchNorm": (ConvNet, lambda n: floats(n, 2, 4, 4), {}),
    "attention block": (Attention, tokens, {}),
    "shared weights": (Tied, tokens, {}),
    "frozen layers": (Frozen, lambda n: floats(n, 4), {}),
    "tuple": (Pair, lambda n: (floats(n, 4), floats(n, 2)), {"unpack": True}),
    "dictionary": (Pair, lambda n: {"a": floats(n, 4), "b": floats(n, 2)}, {}),
    "unpacked dictionary": (
        Pair,
        lambda n: {"a": floats(n, 4), "b": floats(n, 2)},
        {"unpack": True},
    ),
}


def at(x, n):
    """The n-th example as a batch of one."""
    if isinstance(x, dict):
        return {name: leaf[n : n + 1] for name, leaf in x.items()}
    if isinstance(x, tuple):
        return tuple(leaf[n : n + 1] for leaf in x)
    return x[n : n + 1]


def called(module, x, unpack=False):
    if unpack and isinstance(x, dict):
        return module(**x)
    return module(*x) if isinstance(x, tuple) else module(x)


def jacobian_rows(module, x, unpack=False):
    """One row of gradients for every output of every example, [n c p], in eval mode."""
    module = copy.deepcopy(module).eval()
    params = [parameter for parameter in module.parameters() if parameter.requires_grad]
    first = next(iter(x.values())) if isinstance(x, dict) else x
    first = first[0] if isinstance(x, tuple) else first
    rows = []
    for n in range(len(first)):
        y = called(module, at(x, n), unpack)[0]
        grads = [torch.autograd.grad(output, params, retain_graph=True) for output in y]
        rows.append(torch.stack([torch.cat([g.flatten() for g in row]) for row in grads]))
    return torch.stack(rows)


def kernel(module, x, unpack=False):
    """K[n,o,m,p] = <J[n,o], J[m,p]>."""
    rows = jacobian_rows(module, x, unpack)
    return torch.einsum("nop,mqp->nomq", rows, rows).numpy()
