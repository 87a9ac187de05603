"""How labels are read, the same for every loss and diagnostic.

Beside outputs `[n ... c]` labels are one of two things:

- class numbers: integers, one for each example (and position), `[n ...]` or `[n ... 1]`, where
  c > 1;
- targets: as many numbers as there are outputs, row by row. Integers may be targets too: one-hot
  rows, counts.

Values are checked where they are known; inside `jax.jit` only shapes and dtypes are.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ntkdiag import display, errors
from ntkdiag.arrays import AnyArray, as_array, is_concrete, is_one_array
from ntkdiag.pytree_dataclass import pytree

Shape = tuple[int, ...]
Labels = jax.Array | np.ndarray


def as_numbers(y: jax.typing.ArrayLike | list, name: str = "y") -> Labels:
    """Labels as an array of real numbers, all of them finite."""
    array = as_array(y, name, do="Number the classes from 0.")
    # jnp knows bfloat16 as a floating dtype, NumPy does not.
    if array.dtype.kind not in "biuf" and not jnp.issubdtype(array.dtype, jnp.floating):
        raise errors.InvalidInputError(
            expected=f"`{name}` as numbers",
            got=f"dtype {array.dtype}",
            do="Number the classes from 0.",
        )
    if is_concrete(array) and not np.isfinite(np.asarray(array, np.float64)).all():
        raise errors.InvalidInputError(
            expected=f"finite `{name}`",
            got="NaN or Inf",
            do="Drop the examples without a label everywhere.",
        )
    return array


def require_one_array(y: PyTree, loss: str) -> None:
    """Refuse a tree of labels beside a loss that takes them as one array."""
    if is_one_array(y) or y is None:
        return
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(y)]
    raise errors.InvalidInputError(
        expected=f'labels `y` as one array for loss="{loss}"',
        got=f"a {type(y).__name__} with {', '.join(names) or 'nothing'}",
        do="Pass weights next to the labels: train=(x, y, weights). A function loss(outputs, y) "
        "receives any tree unchanged.",
    )


def is_integer(y: Labels) -> bool:
    """Whether labels are integers or booleans."""
    return bool(jnp.issubdtype(y.dtype, jnp.integer) or y.dtype == bool)


def are_class_numbers(y: Labels, shape: Shape) -> bool:
    """Whether labels are integers, one for each example (and position), of several classes."""
    if not is_integer(y) or len(shape) < 2 or shape[-1] < 2:
        return False
    per_position = shape[:-1]  # [n ...] of outputs [n ... c]
    return y.shape in (per_position, (*per_position, 1))


def are_classes_below(y: Labels, n_classes: int) -> bool:
    """Whether class numbers are from 0 to below so many, as far as is known."""
    if not is_concrete(y):
        return True
    classes = np.asarray(y)  # under `jax.jit` a reduction by JAX would be traced
    return bool((classes >= 0).all() and (classes < n_classes).all())


def read_class_numbers(y: Labels, shape: Shape, name: str = "y") -> Int[Array, "..."]:
    """Class numbers as int32 `[n ...]`, all in [0, c) for outputs of shape `[n ... c]`."""
    n_classes = shape[-1]
    if not are_classes_below(y, n_classes):
        raise errors.InvalidInputError(
            expected=f"class numbers `{name}` in [0, {n_classes})",
            got=f"values from {np.asarray(y).min()} to {np.asarray(y).max()}",
            do="Number the classes from 0; pass floating point targets if these are not classes.",
        )
    # Before conversion to a JAX array: for a NumPy array nothing is compiled.
    return jnp.asarray(y.astype(np.int32).reshape(shape[:-1]))


def read_targets(
    y: jax.typing.ArrayLike | list, shape: Shape, name: str = "y"
) -> Float[Array, "..."]:
    """Labels as targets shaped like the outputs; class numbers become one-hot rows."""
    labels = as_numbers(y, name)
    if are_class_numbers(labels, shape):
        return jax.nn.one_hot(read_class_numbers(labels, shape, name), shape[-1])
    return shaped_like_outputs(labels, shape, name)


def shaped_like_outputs(y: Labels, shape: Shape, name: str = "y") -> Float[Array, "..."]:
    """Targets with the shape of the outputs; integers become floating point numbers."""
    if y.shape[:1] != shape[:1] or y.size != math.prod(shape):
        raise errors.InvalidInputError(
            expected=_accepted(shape, name),
            got=f"{y.dtype} of shape {tuple(y.shape)}",
            do="Labels have one row for each example.",
        )
    # Counts and one-hot rows of integers are ordinary numbers.
    if not jnp.issubdtype(y.dtype, jnp.floating):
        y = y.astype(np.float32)
    return jnp.asarray(y.reshape(shape))


def _accepted(shape: Shape, name: str) -> str:
    """What labels beside outputs of a shape may look like, in words."""
    targets = f"`{name}` of shape {shape}"
    if len(shape) > 1 and shape[-1] > 1:
        return f"{targets}, or integer class numbers {shape[:-1]}"
    return targets


def require_probabilities(targets: Float[Array, "..."]) -> None:
    """Refuse targets that a softmax cannot be compared with: rows that are no probabilities."""
    if not is_concrete(targets):
        return
    # Probabilities that were rounded sum to nearly 1.
    rows = np.asarray(targets, np.float64)
    sums = rows.sum(axis=-1)
    smallest = rows.min()
    if smallest < 0 or np.abs(sums - 1).max() > 1e-3:
        raise errors.InvalidInputError(
            expected="class numbers, or probabilities in every row of `y`, for cross-entropy",
            got=f"entries from {smallest:.3g}, sums from {sums.min():.3g} to {sums.max():.3g}",
            do="For targets that are not probabilities use squared error.",
        )


def require_labels_differ(targets: Float[Array, "n *o"]) -> None:
    """Refuse targets that are the same for every example: nothing can be aligned with them."""
    rows = np.asarray(targets) if is_concrete(targets) else None
    if rows is not None and (rows == rows[:1]).all():
        raise errors.InvalidInputError(
            expected="labels that differ between examples",
            got="the same label for every example",
            do="Use a probe with several classes or targets, or leave the labels out.",
        )


# Labels with weights: which examples, or positions, count how much in a loss.
#
#     L = sum_i w_i l_i / sum_i w_i
#
# Weights are read once, beside the outputs, and divided by their mean: then L = (1/D) sum_i w_i l_i
# with the D of the loss without weights, and weights that are all equal change nothing. Where the
# loss states its D, that is what sum_i w_i l_i is divided by, and weights stay as they are.


@pytree("y", "weights")
@dataclasses.dataclass(frozen=True, eq=False)
class Weighted:
    """Labels with a weight for each example, or position, for the losses of `ntkdiag.losses`.

    `train=(x, y, weights)` makes one; where labels are an argument by themselves, as in
    `stability_margin(..., y=...)`, write `y=Weighted(y, weights)`. Entries with weight 0 have no
    loss and no curvature.

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
        do="Weights below 0, such as advantages, need a loss of your own: loss(outputs, y) with y "
        "a dictionary.",
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
            do="Pass one weight for each example, or for each position.",
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
    weights = as_array(weights, "weights")
    is_known = is_concrete(array) and is_concrete(weights)
    xp = np if is_known else jnp  # known values stay known inside the user's trace too
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
