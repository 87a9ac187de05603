"""How labels are read: one reading for every loss and for every diagnostic.

Beside outputs `[n ... c]` labels are one of two things:

- class numbers: integers, one for each example (and position), `[n ...]` or `[n ... 1]`, where
  c > 1;
- targets: as many numbers as there are outputs, row by row. Integers may be targets too: one-hot
  rows, counts.

Values are checked where they are known; inside `jax.jit` only shapes and dtypes are.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ntkdiag import errors
from ntkdiag.arrays import as_array, is_one_array
from ntkdiag.scalars import is_concrete

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
        expected=f'labels `y` as one array beside loss="{loss}"',
        got=f"a {type(y).__name__} with {', '.join(names) or 'nothing'}",
        do="Weights stand beside the labels: train=(x, y, weights). A function loss(outputs, y) "
        "gets a tree as it comes.",
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
            do="Number the classes from 0; pass floating point targets if these are no classes.",
        )
    # Before it is an array of JAX: of one from the host nothing is compiled.
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
            do="Labels go row by row with the examples.",
        )
    # Counts and one-hot rows of integers are numbers like others.
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
            do="For targets that are no probabilities use squared error.",
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
