"""The step from one parameter tree to another, as `jax.jvp` wants it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ntkdiag import errors
from ntkdiag.adapters import structure


def as_arrays(params: Any) -> Any:
    """Turn every leaf into an array, Python numbers included.

    Cost: none beyond the conversion.

    Args:
        params: Any pytree of numbers.

    Returns:
        The tree with array leaves.
    """
    return jax.tree.map(jnp.asarray, params)


def tangent(base: Any, params: Any, call: str) -> Any:
    """The tangent params - base, float0 zeros at integer leaves.

    Nothing is broadcast: every path, shape and dtype has to agree. The containers may differ.
    Cost: one pass over the parameters.

    Args:
        base: Where f is expanded.
        params: Where the expansion is evaluated.
        call: The public call, for the message.

    Returns:
        A tree with the structure of `base`.

    Raises:
        StructureError: When the two trees differ in a path, shape or dtype, which the message lists.
        InvalidInputError: When a leaf that cannot be differentiated (integer, boolean) has another value.
    """
    structure.require_same(base, params, call=call)
    params = structure.repack(params, base, call=call)
    steps = [
        _step(structure.path_string(path), leaf, other, call)
        for (path, leaf), other in zip(
            jax.tree_util.tree_flatten_with_path(base)[0], jax.tree.leaves(params), strict=True
        )
    ]
    return jax.tree.unflatten(jax.tree.structure(base), steps)


def add(output: Any, change: Any) -> Any:
    """Add a tangent to a tree of outputs; integer outputs stay as they are.

    Cost: one pass over the outputs.

    Args:
        output: A pytree.
        change: Its tangent, float0 at integer leaves.

    Returns:
        The sum.
    """
    return jax.tree.map(lambda y, dy: y if dy.dtype == jax.dtypes.float0 else y + dy, output, change)


def _step(path: str, base: Any, params: Any, call: str) -> Any:
    if jnp.issubdtype(jnp.result_type(base), jnp.inexact):
        return jnp.asarray(params) - jnp.asarray(base)
    known = not isinstance(params, Tracer) and not isinstance(base, Tracer)
    if known and not np.array_equal(params, base):
        raise errors.InvalidInputError(
            errors.message(
                call,
                expected="the same values in leaves without a derivative",
                got=f"{path or 'the whole tree'}: {structure.describe(base)} with other values",
                do="Expand around parameters that hold these values, or leave the leaf out of the parameters.",
            )
        )
    return np.zeros(np.shape(base), jax.dtypes.float0)
