"""NaN and infinity in a step, looked for at every step without reading all of it.

A batch with NaN makes NaN of nearly all numbers of a gradient, and so does an overflow in the loss
or in the activations. So some numbers of each array are looked at in every step, spread over all of
its axes:

    n^(1/d) places along each of d axes, n = 8:  8 of a vector, 3 x 3 of a matrix, 2 x 2 x 2, ...

0 x is 0 of a number, and NaN of what is none. The sum of these over all arrays is one small program
beside the step, where to put them into one array is a program for each of them.

Where there are several devices arrays may be in parts over them, and a look at each takes
collectives of its own. There the smallest array of the gradient stands for all.

What is broken in a few elements alone, as a row of an embedding, is seen where all of them are
counted: at measured steps, where it stays in the parameters, or in the steps after.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from ntkdiag.optimizer.state_fields import is_float

# Numbers of each array that are looked at, where it has so many.
_LOOKED_AT = 8


def looks_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether those numbers of all arrays that are looked at are finite."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if is_float(leaf) and leaf.size]
    if jax.device_count() > 1 and leaves:
        smallest = min(leaves, key=lambda leaf: leaf.size)
        return (0.0 * smallest.astype(jnp.float32)).sum() == 0.0
    sums: dict[int, Float[Array, " n"]] = {}  # number of elements -> their sum over arrays
    for leaf in leaves:
        some = 0.0 * _spread(leaf)
        sums[some.size] = sums.get(some.size, 0.0) + some
    total = jnp.zeros((), jnp.float32)
    for some in sums.values():
        total += some.sum()
    return total == 0.0


def _spread(leaf: Array) -> Float[Array, " n"]:
    """Some numbers of an array, in float32: what is too large for that is infinity."""
    places = math.ceil(_LOOKED_AT ** (1 / max(leaf.ndim, 1)))
    slices = tuple(slice(None, None, math.ceil(length / places)) for length in leaf.shape)
    return leaf[slices].reshape(-1)[:_LOOKED_AT].astype(jnp.float32)
