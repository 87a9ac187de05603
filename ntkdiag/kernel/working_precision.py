"""Diagnostics compute in the precision of their kernels, whatever the session and the accelerator default to."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from jax.core import Tracer

from ntkdiag.kernel.spectrum import Spectrum

P = ParamSpec("P")
R = TypeVar("R")


def keeps_float64(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function with full matrix products, and in x64 mode when it is handed a concrete float64 matrix.

    Accelerators round the factors of a float32 product to 10 bits or fewer by default, and JAX casts float64 to float32
    without a word when x64 is off; either would lose digits that diagnostics need. Dtypes of tracers are left alone:
    inside `jax.jit` the caller chose them.
    Cost: one look at the arguments.

    Args:
        function: A diagnostic over kernels.

    Returns:
        The function. When it steps in, results are numpy float64: JAX arrays of that dtype would lose their digits
        in the next operation outside x64 mode.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.default_matmul_precision("highest"):
            if not _needs_x64((args, kwargs), kwargs.get("eigenvalues")):
                return function(*args, **kwargs)
            with jax.enable_x64(True):
                return jax.tree.map(lambda leaf: np.asarray(leaf)[()], function(*args, **kwargs))

    return call


def _needs_x64(arguments: Any, eigenvalues: Any) -> bool:
    if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
        return False  # x64 is on already
    arguments = jax.tree.map(_kernel_of, arguments, is_leaf=_is_spectrum)
    leaves, vectors = jax.tree.leaves(arguments), jax.tree.leaves(eigenvalues)
    wide = any(_is_float64(leaf, 2) for leaf in leaves) or any(
        _is_float64(leaf, 1) for leaf in vectors
    )
    return wide and not any(isinstance(leaf, Tracer) for leaf in leaves)


def _is_spectrum(value: object) -> bool:
    return isinstance(value, Spectrum)


def _kernel_of(value: object) -> object:
    """A spectrum is in float64 always: the precision it stands for is that of its kernel."""
    return value.kernel if isinstance(value, Spectrum) else value


def _is_float64(leaf: Any, n_axes: int) -> bool:
    return (
        isinstance(leaf, jax.Array | np.ndarray)
        and leaf.ndim >= n_axes
        and leaf.dtype == np.float64
    )
