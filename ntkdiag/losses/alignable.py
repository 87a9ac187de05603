"""Labels as targets that a kernel can be compared with, or why there are none.

Alignment, label power and leave-one-out compare a kernel with one target for every output. A loss
takes more than that: weights, positions without a label, trees of arrays, labels of another shape
than the outputs. Then the targets are not known, and these numbers are left out with the reason.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag.arrays import AnyArray, as_array, is_concrete, is_one_array
from ntkdiag.losses.custom_loss import CustomLoss
from ntkdiag.losses.loss import Loss, Shape
from ntkdiag.losses.means import MeanLoss
from ntkdiag.losses.targets import (
    Labels,
    Weighted,
    are_class_numbers,
    are_classes_below,
    have_all_weight,
    is_integer,
    read_targets,
)

NO_LABELS = "no labels were given"


def alignable_targets(y: PyTree, shape: Shape, loss: Loss | None) -> Float[Array, "n *o"] | None:
    """Labels of a probe as targets beside outputs of a shape; None where they are none."""
    if why_not_alignable(y, shape, loss):
        return None
    return read_targets(y.y if isinstance(y, Weighted) else y, shape)


def why_not_alignable(y: PyTree, shape: Shape, loss: Loss | None) -> str:
    """Why labels are no targets of outputs of a shape, as a part of a sentence; "" if they are."""
    if y is None:
        return NO_LABELS
    if isinstance(y, Weighted):
        if not have_all_weight(y.weights):
            return "not all labels have weight"
        y = y.y
    if not is_one_array(y):
        return f"the labels are a {type(y).__name__}, in which the targets are not known"
    is_counted = loss.counted(y, shape) if isinstance(loss, MeanLoss) else None
    if is_counted is not None and not have_all_weight(is_counted):
        return "some labels are ignored"
    # Targets that are 0 everywhere, such as residuals, have a loss and no alignment.
    if loss is not None and _are_one_target(as_array(y, "y")):
        return "the labels are the same for every example"
    # Only a function of the user takes labels that do not fit; others refuse them by themselves.
    return why_not_targets(y, shape) if isinstance(loss, CustomLoss) else ""


def why_not_targets(y: AnyArray | list, shape: Shape) -> str:
    """Why labels as one array are no targets of outputs of a shape; "" if they are."""
    array = as_array(y, "y")
    if jnp.issubdtype(array.dtype, jax.dtypes.extended):
        return "the labels are random keys"
    if _are_one_target(array):
        return "the labels are the same for every example"
    if are_class_numbers(array, shape):
        are_known = are_classes_below(array, shape[-1])
        return "" if are_known else f"some labels are not from 0 to {shape[-1] - 1}"
    if array.shape[:1] != shape[:1] or array.size != math.prod(shape):
        shapes = f"shape {tuple(array.shape)} beside outputs of {tuple(shape)}"
        return f"labels of {shapes} are not a target for each output"
    is_known = is_concrete(array) and not is_integer(array)
    if is_known and not np.isfinite(np.asarray(array, np.float64)).all():
        return "some labels are not finite"
    return ""


def _are_one_target(y: Labels) -> bool:
    """Whether labels are numbers, no classes, and known to be the same for every example."""
    if not is_concrete(y) or not jnp.issubdtype(y.dtype, jnp.floating) or y.ndim == 0:
        return False
    numbers = np.asarray(y)
    return bool((numbers == numbers[:1]).all())
