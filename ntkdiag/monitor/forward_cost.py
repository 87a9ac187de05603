"""What a forward pass costs, by XLA's own count and without compiling."""

from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Array, PyTree


def forward_flops(f: Callable[..., PyTree], params: PyTree, x: PyTree) -> float:
    """Floating-point operations of f for one of the examples x; 0 where XLA does not count them."""
    cost = jax.jit(f).lower(params, jax.tree.map(_one_example, x)).cost_analysis()
    if not isinstance(cost, dict):
        return 0.0
    return float(cost.get("flops", 0.0))


def _one_example(leaf: Array | np.ndarray) -> jax.ShapeDtypeStruct:
    """The shape of one example."""
    return jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype)
