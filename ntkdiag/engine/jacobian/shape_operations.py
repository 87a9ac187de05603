"""Transposes, sums and broadcasts of arrays, written in the form that XLA runs fast.

Three observations, all measured on a CPU:

* a transpose that only moves axes of length 1 moves nothing, but XLA gives its result a layout of
  its own and pays for it with copies of the whole array: `arrange` leaves it out;
* a sum over an axis that is not the last one runs number by number, and XLA computes what goes into
  the sum again for each of them: `sum_positions` multiplies by ones instead, three to five times as
  fast;
* the derivative of a broadcast is such a sum: `repeat` is a broadcast whose derivative is
  `sum_positions`.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Shaped


def arrange(
    x: Shaped[Array, "..."], order: tuple[int, ...], shape: tuple[int, ...]
) -> Shaped[Array, "..."]:
    """Transpose to an order of axes and reshape, without a transpose that moves nothing."""
    # Axes of length 1 may go anywhere: only the order of the others decides whether numbers move.
    longer_axes = [axis for axis in order if x.shape[axis] != 1]
    if longer_axes == sorted(longer_axes):
        return x.reshape(shape)
    return jnp.transpose(x, order).reshape(shape)


def sum_positions(x: Shaped[Array, "*batch t d"]) -> Shaped[Array, "*batch d"]:
    """Sum over positions, the last axis but one: [... t d] -> [... d]."""
    if jax.default_backend() != "cpu" or x.shape[-2] == 1 or x.size == 0:
        return x.sum(-2)
    # x^0 rather than `jnp.ones`: it has the axes that `jax.vmap` hides, which then are batch axes
    # of the product.
    ones = lax.integer_pow(x[..., :1], 0)  # [... t 1]
    positions = x.ndim - 2
    batch = tuple(range(positions))
    dimension_numbers = (((positions,), (positions,)), (batch, batch))
    product = lax.dot_general(ones, x, dimension_numbers, precision="highest")  # [... 1 d]
    return product[..., 0, :]


def repeat(
    x: Shaped[Array | np.ndarray, "..."], shape: tuple[int, ...]
) -> Shaped[Array | np.ndarray, "..."]:
    """Repeat axes of length 1 to a shape with as many axes."""
    if x.shape == shape:
        return x
    # The axes from `kept` on agree, the ones before it are repeated.
    kept = 0
    for axis in range(len(shape) + 1):
        if x.shape[axis:] == shape[axis:]:
            kept = axis
            break
    only_leading_axes_repeat = math.prod(x.shape[:kept]) == 1
    if not only_leading_axes_repeat or math.prod(shape[:kept]) == 1:
        return lax.broadcast_in_dim(x, shape, range(len(shape)))
    return _repeat_over_positions(x.reshape(x.shape[kept:]), shape[:kept])


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _repeat_over_positions(
    x: Shaped[Array, "..."], positions: tuple[int, ...]
) -> Shaped[Array, "..."]:
    """New leading axes along which x is the same."""
    return lax.broadcast(x, positions)


def _repeat_forward(x, positions):
    return lax.broadcast(x, positions), None


def _repeat_backward(positions, _, cotangent):
    shape = cotangent.shape[len(positions) :]
    flat = cotangent.reshape(math.prod(positions), math.prod(shape))  # [t... d...] -> [t d]
    return (sum_positions(flat).reshape(shape),)


_repeat_over_positions.defvjp(_repeat_forward, _repeat_backward)
