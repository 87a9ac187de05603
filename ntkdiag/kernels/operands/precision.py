"""Keep float64 kernels in float64, also in a session with x64 switched off."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from jax.core import Tracer

P = ParamSpec("P")
R = TypeVar("R")


def keeps_float64(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function in x64 mode when it is handed a concrete float64 matrix.

    JAX casts float64 to float32 without a word when x64 is off; a kernel computed in float64 would lose the
    digits its diagnostics need. Calls with tracers are left alone: inside `jax.jit` the caller chose the dtypes.
    Cost: one look at the arguments.

    Args:
        function: A diagnostic over kernels.

    Returns:
        The function. When it steps in, results are numpy float64: JAX arrays of that dtype would lose their digits
        in the next operation outside x64 mode.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        leaves = jax.tree.leaves((args, kwargs))
        if not any(_is_float64(leaf) for leaf in leaves) or any(isinstance(leaf, Tracer) for leaf in leaves):
            return function(*args, **kwargs)
        if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:  # x64 is on already
            return function(*args, **kwargs)
        with jax.enable_x64(True):
            return jax.tree.map(lambda leaf: np.asarray(leaf)[()], function(*args, **kwargs))

    return call


def _is_float64(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray) and leaf.ndim >= 2 and leaf.dtype == np.float64
