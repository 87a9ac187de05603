"""The CNN of PyTorch's tutorial on neural tangent kernels, by ntkdiag and by torch.func.

    python benchmarks/tutorial.py [--n 20] [--m 5] [--repeats 5]

Kernels between n and m images: by torch.func explicitly (Jacobians, contracted) and implicitly
(products of the kernel with vectors), and by ntkdiag by way of torchax and of torch.func. Each time
is the best of several in this process; the first call, which compiles, is apart. Every kernel is
compared with the explicit one.
"""

import argparse
import functools
import time

import jax
import numpy as np
import torch
from torch import nn
from torch.func import functional_call, jacrev, jvp, vjp, vmap

import ntkdiag

# Of an explicit contraction over parameters p and a reduction over outputs.
EINSUM = {"full": "nop,mqp->nmoq", "trace": "nop,mop->nm", "diagonal": "nop,mop->nmo"}
REDUCTIONS = tuple(EINSUM)


class CNN(nn.Module):
    """Three convolutions of 32 channels, and ten classes, for images of 3 x 32 x 32."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3)
        self.conv2 = nn.Conv2d(32, 32, 3)
        self.conv3 = nn.Conv2d(32, 32, 3)
        self.fc = nn.Linear(32 * 26 * 26, 10)

    def forward(self, x):
        h = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        return self.fc(self.conv3(h).flatten(1))


def parameters_of(module):
    return {name: tensor.detach() for name, tensor in module.named_parameters()}


def explicit(module, x, x2, reduction):
    """Jacobians of all examples, contracted over the parameters, one parameter at a time."""

    def one(params, example):
        return functional_call(module, params, (example[None],))[0]

    def jacobians(x):
        by_name = vmap(jacrev(one), (None, 0))(parameters_of(module), x)
        return [jacobian.flatten(2) for jacobian in by_name.values()]  # [n o p]

    parts = zip(jacobians(x), jacobians(x2), strict=True)
    return sum(torch.einsum(EINSUM[reduction], *pair) for pair in parts)


def implicit(module, x, x2, reduction):
    """K v = J(x) J(x2)^T v for every pair of examples and every unit vector v."""
    params = parameters_of(module)

    def of_pair(x, x2):
        _, pull = vjp(lambda params: functional_call(module, params, (x2[None],))[0], params)

        def product(v):
            f = lambda params: functional_call(module, params, (x[None],))[0]
            return jvp(f, (params,), pull(v))[1]

        return vmap(product, out_dims=1)(torch.eye(10, dtype=x.dtype))  # [o q]

    full = vmap(vmap(of_pair, (None, 0)), (0, None))(x, x2)  # [n m o q]
    if reduction == "full":
        return full
    diagonal = full.diagonal(dim1=2, dim2=3)
    return diagonal.sum(-1) if reduction == "trace" else diagonal


def by_ntkdiag(fn, x, x2, reduction):
    """The same, [n m ...] as torch.func has it."""
    kernel = ntkdiag.ntk(*fn, x, x2, reduction=reduction)
    array = np.asarray(kernel.array)
    return array.transpose(0, 2, 1, 3) if reduction == "full" else array  # [n o m q] -> [n m o q]


def problem(n, m, dtype):
    torch.manual_seed(0)
    module = CNN().to(dtype)
    return module, torch.randn(n, 3, 32, 32, dtype=dtype), torch.randn(m, 3, 32, 32, dtype=dtype)


def _timed(call, repeats):
    """Seconds of the first call, the best of the others, and what it returns."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        result = np.asarray(call())
        seconds.append(time.perf_counter() - start)
    return seconds[0], min(seconds[1:]), result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=20)
    parser.add_argument("--m", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, jax {jax.__version__}, {options.n} x {options.m} images")
    print(f"{'':9}{'reduction':11}{'computed by':28}{'first s':>9}{'best s':>9}{'ratio':>8}  error")
    for dtype in (torch.float32, torch.float64):
        with jax.enable_x64(dtype == torch.float64):
            _table(dtype, options)


def _table(dtype, options):
    """Print one line for each way and reduction; the ratio is to explicit torch.func."""
    module, x, x2 = problem(options.n, options.m, dtype)
    by_torchax = ntkdiag.functionalize(module, via="torchax")
    by_callbacks = ntkdiag.functionalize(module, via="torch.func")
    ways = {
        "torch.func, explicit": lambda reduction: explicit(module, x, x2, reduction),
        "torch.func, implicit": lambda reduction: implicit(module, x, x2, reduction),
        "ntkdiag by torchax": lambda reduction: by_ntkdiag(by_torchax, x, x2, reduction),
        "ntkdiag by torch.func": lambda reduction: by_ntkdiag(by_callbacks, x, x2, reduction),
    }
    for reduction in REDUCTIONS:
        expected, reference = None, None
        for name, way in ways.items():
            first, best, result = _timed(functools.partial(way, reduction), options.repeats)
            if expected is None:
                expected, reference = result, best
            error = np.abs(result - expected).max() / np.abs(expected).max()
            print(
                f"{str(dtype)[6:]:9}{reduction:11}{name:28}{first:9.3f}{best:9.3f}"
                f"{best / reference:8.2f}  {error:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
