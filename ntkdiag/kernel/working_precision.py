"""Diagnostics compute in the precision of their kernels, whatever the session and the device do.

Accelerators round the factors of a float32 product to 10 bits or fewer by default, and JAX silently
casts float64 to float32 when x64 is off. Either loses digits that a diagnostic needs, so one that
is decorated with `keeps_float64` runs with full products, and in x64 mode where a float64 matrix is
among its arguments.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag.arrays import is_concrete
from ntkdiag.kernel.spectrum import Spectrum

P = ParamSpec("P")
R = TypeVar("R")


def keeps_float64(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function with full matrix products, and in x64 mode where a matrix is float64."""
    # Dtypes of tracers are left alone: inside `jax.jit` the caller chose them. Results are
    # NumPy's: JAX arrays of float64 lose their digits in the next operation outside x64 mode.

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.default_matmul_precision("highest"), usual_promotion():
            if not _needs_x64((args, kwargs)):
                return function(*args, **kwargs)
            with jax.enable_x64(True):
                return jax.tree.map(_as_numpy, function(*args, **kwargs))

    return call


@contextlib.contextmanager
def usual_promotion() -> Iterator[None]:
    """Where formulas, as over modes and times [T k], may be written as in the papers."""
    # The session may forbid promotion of ranks and dtypes; here it is intended.
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def _as_numpy(leaf: object) -> np.ndarray | np.generic:
    """An array of NumPy; a number of NumPy where it has no axes."""
    return np.asarray(leaf)[()]


def _needs_x64(arguments: PyTree) -> bool:
    """Whether x64 mode is off and a known float64 matrix among the arguments would lose digits."""
    x64_is_on = jax.dtypes.canonicalize_dtype(np.float64) == np.float64
    if x64_is_on:
        return False
    # A spectrum is in float64 always: the precision it stands for is that of its kernel.
    nodes = jax.tree.leaves(arguments, is_leaf=lambda node: isinstance(node, Spectrum))
    kernels = [node.kernel if isinstance(node, Spectrum) else node for node in nodes]
    leaves = jax.tree.leaves(kernels)
    return any(map(_is_float64_matrix, leaves)) and all(map(is_concrete, leaves))


def _is_float64_matrix(leaf: object) -> bool:
    """Whether a leaf is a float64 array of two axes or more, as kernels are."""
    # Numbers and vectors beside a kernel do not decide about the precision.
    # Arrays of other libraries have dtypes of their own, which say float64 too.
    has_axes = len(getattr(leaf, "shape", ())) >= 2
    return has_axes and "float64" in str(getattr(leaf, "dtype", ""))
