"""The step from one parameter tree to another, as `jax.jvp` takes it.

A tangent has the structure of the parameters; where they hold integers or booleans, which have no
derivative, its leaves are zeros of the dtype float0.

    base     {"w": float32 [3 2], "n": int32 []}
    tangent  {"w": float32 [3 2], "n": float0 []}
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, PyTree

from ntkdiag import errors
from ntkdiag.arrays import with_arrays
from ntkdiag.jaxtools.leaf_names import leaf_name
from ntkdiag.jaxtools.tracing import Tracer
from ntkdiag.models import paths


def as_arrays(params: PyTree) -> PyTree[Array]:
    """Turn every leaf into an array, Python numbers included."""
    return jax.tree.map(jnp.asarray, with_arrays(params, "params"))


def tangent(base: PyTree[Array], params: PyTree[Array]) -> PyTree:
    """The tangent params - base, between trees of the same paths, shapes and dtypes."""
    paths.require_same(base, params)
    # The containers may differ: leaves are matched by path, and the tangent is built like the base.
    leaves_with_paths, structure = jax.tree_util.tree_flatten_with_path(base)
    leaves = jax.tree.leaves(paths.repack(params, base))
    steps = []
    for (path, start), end in zip(leaves_with_paths, leaves, strict=True):
        if jnp.issubdtype(start.dtype, jnp.inexact):
            steps.append(end - start)
        else:
            # No step leads from one integer to another: it has to stay.
            _require_equal(leaf_name(path), start, end)
            steps.append(np.zeros(start.shape, jax.dtypes.float0))
    return jax.tree.unflatten(structure, steps)


def add(output: PyTree, change: PyTree) -> PyTree:
    """Add a tangent to a tree of outputs; integer outputs stay as they are."""

    def moved(y: ArrayLike, dy: Array | np.ndarray) -> ArrayLike:
        if dy.dtype == jax.dtypes.float0:  # y has no derivative
            return y
        return y + dy

    return jax.tree.map(moved, output, change)


def _require_equal(path: str, start: Array, end: Array) -> None:
    """Refuse other values in a leaf without a derivative, where values are known."""
    if isinstance(start, Tracer) or isinstance(end, Tracer) or np.array_equal(start, end):
        return
    raise errors.InvalidInputError(
        expected="the same values in leaves without a derivative",
        got=f"{path or 'the whole tree'}: {paths.describe(start)} with other values",
        do="Expand around parameters that hold these values, or leave the leaf out of the "
        "parameters.",
    )
