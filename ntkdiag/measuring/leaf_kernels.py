"""The kernel of each parameter leaf by itself, small enough to keep for every leaf."""

import re
from collections.abc import Callable, Container

import numpy as np
from jaxtyping import Float, PyTree

from ntkdiag.engine.calls.call import Memory
from ntkdiag.engine.ntk import ntk
from ntkdiag.kernel.reduction import ReductionLike
from ntkdiag.models.paths import leaves_by_path

_LAYER = re.compile(r"\[\d+\]$")  # the number of a layer at the end of a path: "kernel[3]"


def leaf_kernels(
    f: Callable[..., PyTree],
    params: PyTree,
    x: PyTree,
    memory: Memory | None = None,
    reduction: ReductionLike = "trace",
) -> dict[str, Float[np.ndarray, "n n"]]:
    """Compute sum_c Theta_cc of every leaf; they add up to that of the model, sum_l J_l J_l^T.

    Cost: N C backward passes, N^2 C multiply-adds per factor; N^2 numbers per leaf are kept. With
    random directions k in the place of C.

    Args:
        f: `f(params, x)`, outputs `[N ...]`.
        params: Parameters.
        x: Probe.
        memory: Memory budget, as `ntk` takes it.
        reduction: "trace", or random directions, which estimate it.

    Returns:
        Path -> `[n n]` in float64, in leaf order; zeros for a leaf that the outputs do not depend
        on.
    """
    kernel = ntk(f, params, x, reduction=reduction, per_leaf=True, memory=memory)  # [n n]
    # A leaf that the outputs do not depend on has no entry in `kernel.leaves`: zeros stay.
    kernels = {path: np.zeros(kernel.shape) for path in leaves_by_path(params)}
    for name, part in (kernel.leaves or {}).items():
        path = leaf_of(name, kernels)
        kernels[path] = kernels[path] + np.asarray(part.array, np.float64)
    return kernels


def leaf_of(name: str, paths: Container[str]) -> str:
    """The path of the leaf that a kernel is of, or that its layer is stacked in."""
    return name if name in paths else _LAYER.sub("", name)
