"""The kernel of each parameter leaf by itself, small enough to keep for every leaf."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ntkdiag.engine.ntk import ntk
from ntkdiag.models.paths import leaves_by_path

_LAYER = re.compile(r"\[\d+\]$")


def leaf_kernels(
    f: Callable[..., Any], params: Any, x: Any, memory: Any = None
) -> dict[str, np.ndarray]:
    """Compute sum_c Theta_cc of every leaf, which add up to that of the whole model: Theta = sum_l J_l J_l^T.

    Layers that stand stacked in one leaf are added up.
    Cost: N C backward passes, N^2 C multiply-adds per factor; N^2 numbers per leaf are kept.

    Args:
        f: `f(params, x)`, outputs `[N ...]`.
        params: Parameters.
        x: Probe.
        memory: Memory budget, as `ntk` takes it.

    Returns:
        Path -> `[n n]` in float64, in leaf order; zeros for a leaf that the outputs do not depend on.
    """
    kernel = ntk(f, params, x, reduction="trace", per_leaf=True, memory=memory)
    paths = list(leaves_by_path(params))
    summed = {path: np.zeros(kernel.shape) for path in paths}
    for name, part in (kernel.leaves or {}).items():
        path = name if name in summed else _LAYER.sub("", name)
        summed[path] = summed[path] + np.asarray(part.array, np.float64)
    return summed
