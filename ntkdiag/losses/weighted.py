"""Labels with weights: which examples, or positions, count how much in a loss.

    L = sum_i w_i l_i / sum_i w_i

Weights are read once, beside the outputs, and divided by their mean: then L = (1/D) sum_i w_i l_i
with the D of the loss without weights, and weights that are all equal change nothing. Where the
loss states its D, that is what sum_i w_i l_i is divided by, and weights stay as they are.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag import display, errors
from ntkdiag.arrays import as_array
from ntkdiag.pytree_dataclass import pytree
from ntkdiag.scalars import AnyArray, is_concrete


@pytree("y", "weights")
@dataclasses.dataclass(frozen=True, eq=False)
class Weighted:
    """Labels with a weight for each example, or position, for the losses of `ntkdiag.losses`.

    `train=(x, y, weights)` makes one; where labels are an argument by themselves, as in
    `stability_margin(..., y=...)`, write `y=Weighted(y, weights)`. What has no weight has no loss
    and no curvature.

    Attributes:
        y: Class numbers or targets, as the loss takes them without weights.
        weights: `[n]`, or with further leading axes of the outputs: `[n t]` for outputs `[n t v]`;
            numbers or truth values, none below 0.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntkdiag.losses import CrossEntropy
        >>> logits = jnp.zeros((2, 3, 4))
        >>> y = Weighted(jnp.zeros((2, 3), int), jnp.array([[1, 1, 0], [1, 0, 0]]))
        >>> loss = CrossEntropy()
        >>> round(float(loss(logits, loss.read(y, logits.shape))), 4)  # log 4, of three positions
        1.3863
    """

    y: PyTree
    weights: PyTree  # an array, or the shape of one for `plan`

    def __repr__(self) -> str:
        return display.described(self)


def require_weights(weights: Any) -> Any:
    """Weights as an array of numbers, refused where some are below 0, or none is above it."""
    if isinstance(weights, jax.ShapeDtypeStruct):  # `plan` takes shapes in place of arrays
        return weights
    array = as_array(weights, "weights")
    if jnp.issubdtype(array.dtype, jax.dtypes.extended) or not is_concrete(array):
        return array
    numbers = np.asarray(array, np.float64)
    if np.isfinite(numbers).all() and (numbers >= 0).all() and (numbers > 0).any():
        return array
    raise errors.InvalidInputError(
        expected="`weights` of 0 and above, one of them above 0",
        got=f"values from {numbers.min():.3g} to {numbers.max():.3g}",
        do="Weights below 0, such as advantages, go to a loss of your own: loss(outputs, y) with "
        "y a dictionary.",
    )


def read_weights(
    weights: AnyArray, shape: tuple[int, ...], *, divided_by_mean: bool
) -> Float[Array, "n *t"]:
    """Weights beside outputs, or positions, of a shape: their leading axes, mean 1 if asked for."""
    array = require_weights(weights)
    if array.shape not in _leading(shape) and array.shape[-1:] == (1,):
        array = array.reshape(array.shape[:-1])  # a column of weights beside a column of labels
    if array.shape not in _leading(shape):
        accepted = " or ".join(map(str, _leading(shape)))
        raise errors.InvalidInputError(
            expected=f"`weights` of shape {accepted}",
            got=f"shape {tuple(np.shape(weights))}",
            do="A weight is that of an example, or of a position.",
        )
    # In the widest float of the session: a mean of truth values in float32 would round in float64.
    numbers = jnp.asarray(array)
    with jax.numpy_dtype_promotion("standard"):
        numbers = numbers.astype(jnp.promote_types(numbers.dtype, jnp.zeros(()).dtype))
    if not divided_by_mean:
        return numbers
    mean = numbers.mean()
    return numbers / jnp.where(mean > 0, mean, 1.0)  # traced weights may all be 0


def with_filling(y: AnyArray | list, weights: AnyArray, filling: float | int) -> AnyArray | list:
    """Labels with a number that passes for one where there is no weight, whatever stands there."""
    array = as_array(y, "y")
    is_known = is_concrete(array) and is_concrete(weights)
    xp = np if is_known else jnp  # what is known stays known inside someone's trace too
    has_weight = xp.asarray(weights) > 0
    if has_weight.shape != array.shape[: has_weight.ndim]:
        return y  # which is refused, or a column of weights
    has_weight = has_weight.reshape(has_weight.shape + (1,) * (array.ndim - has_weight.ndim))
    return xp.where(has_weight, array, filling)


def beside(weights: AnyArray, ndim: int) -> Float[Array, "n *t"]:
    """Weights with as many axes as the numbers they stand beside: [n *t] -> [n *t 1 ...]."""
    return jnp.asarray(weights).reshape(weights.shape + (1,) * (ndim - weights.ndim))


def have_all_weight(weights: AnyArray) -> bool:
    """Whether no weight is 0, as far as is known."""
    return not is_concrete(weights) or bool((np.asarray(weights) > 0).all())


def _leading(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All leading parts of a shape: (n,), (n, t), ..."""
    return [shape[:count] for count in range(1, len(shape) + 1)]
