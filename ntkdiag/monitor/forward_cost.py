"""What a forward pass costs, by XLA's own count and without compiling."""

from collections.abc import Callable

import jax
from jaxtyping import PyTree


def forward_flops(f: Callable[..., PyTree], params: PyTree, x: PyTree) -> float:
    """Floating-point operations of f(params, x); 0 where XLA does not count them.

    The body of a loop is counted once.
    """
    cost = jax.jit(f).lower(params, x).cost_analysis()
    if not isinstance(cost, dict):
        return 0.0
    return float(cost.get("flops", 0.0))
