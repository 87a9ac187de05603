"""The explicit method of the torch.func tutorial "Neural Tangent Kernels".

`vmap(jacrev)`, then a product per leaf, as a matrix product, which is faster than the tutorial's
einsum; the Jacobian is made once where the tutorial makes it for x1 and x2.

Of a large kernel one pair of chunks is measured: one Jacobian and one contraction, as in a loop
that keeps the rows'.
"""

from typing import Any

from benchmarks.peers.job import Job
from benchmarks.workloads import Workload


def build(workload: Workload, reduction: str) -> Job:
    import torch

    f, params, x = load(workload)

    def single(params, x):
        return f(params, x[None])[0]

    kernel = _explicit(single, reduction)
    x = x[: workload.chunk]

    def compute() -> Any:
        with torch.no_grad():
            return kernel(params, x)

    return Job(compute, scale=workload.pairs)


def _explicit(single, reduction: str):
    from torch.func import jacrev, vmap
    from torch.utils._pytree import tree_leaves

    def gram(j):  # [n o ...] -> [n o m p], or [n m]
        n, o = j.shape[:2]
        if reduction == "full":
            rows = j.reshape(n * o, -1)
            return (rows @ rows.T).reshape(n, o, n, o)
        # The trace sums over outputs as it sums over parameters.
        rows = j.reshape(n, -1)
        return rows @ rows.T

    def kernel(params, x):
        return sum(gram(leaf) for leaf in tree_leaves(vmap(jacrev(single), (None, 0))(params, x)))

    return kernel


def load(workload: Workload):
    """f(params, x) of a workload in PyTorch, its parameters and its batch."""
    import numpy as np
    import torch
    from torch.utils._pytree import tree_map

    params, x = workload.params(), workload.inputs()
    if hasattr(workload.module, "to_torch"):
        params, x = workload.module.to_torch(params, x)

    def tensor(leaf):
        return torch.from_numpy(np.ascontiguousarray(leaf))

    x = tensor(x)
    if not x.is_floating_point():
        x = x.long()
    return workload.module.in_torch(**workload.sizes), tree_map(tensor, params), x
