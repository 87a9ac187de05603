"""Labels as numbers `[n o]` that fit a kernel's rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ntkdiag.kernels.operands.operand import Operand, is_concrete, refuse


def read_labels(
    labels: jax.typing.ArrayLike, operand: Operand, call: str, name: str = "y"
) -> tuple[Operand, Float[Array, "n o"]]:
    """Read targets for a kernel: regression values or one-hot rows, or class numbers where C is known.

    Class numbers are integers `[n]`; they become one-hot rows when the kernel's convention states C > 1 outputs.
    Cost: one pass.

    Args:
        labels: `[n]`, `[n o]`, or a stacked vector `[(n o)]` for a full kernel.
        operand: The kernel they belong to.
        call: The public call, for the message.
        name: The argument's name, for the message.

    Returns:
        The operand, and `[n o]` with o the outputs its array holds; any number of columns for a reduced kernel.
        A bare matrix `[(n o) (n o)]` whose labels are `[n o]` comes back as `[n o n o]`.

    Raises:
        InvalidInputError: When the labels do not fit the rows, are not finite, are class numbers outside [0, C), or
            are integers for a kernel that does not say how many classes there are.
    """
    if not isinstance(labels, jax.Array | np.ndarray):
        labels = np.asarray(labels)
    if labels.dtype.kind not in "biuf" and not jnp.issubdtype(labels.dtype, jnp.floating):
        refuse(call, expected=f"`{name}` as numbers", got=f"dtype {labels.dtype}", do="Number the classes from 0.")
    given = tuple(labels.shape)
    if jnp.issubdtype(labels.dtype, jnp.integer) or labels.dtype == bool:
        labels = _from_integers(labels, operand, call, name)
    if is_concrete(labels) and not np.isfinite(np.asarray(labels, np.float64)).all():
        refuse(call, expected=f"finite `{name}`", got="NaN or Inf", do="Drop the examples without a label everywhere.")
    labels = jnp.asarray(labels, operand.array.dtype)
    rows = operand.n_examples * operand.n_outputs
    if operand.convention is None and labels.ndim == 2 and labels.shape[0] < rows == labels.size:
        array = operand.array.reshape(*labels.shape, *labels.shape)  # [(n o) (m p)] -> [n o m p]
        return dataclasses.replace(operand, array=array), labels
    return operand, labels.reshape(_shape_of(labels, given, operand, call, name))


def _shape_of(labels: jax.Array, given: tuple[int, ...], operand: Operand, call: str, name: str) -> tuple[int, int]:
    n, c, full = operand.n_examples, operand.n_outputs, operand.array.ndim == 4
    if labels.shape == (n * c,):
        return n, c
    if labels.ndim == 2 and labels.shape[0] == n and (labels.shape[1] == c or not full):
        return n, labels.shape[1]
    refuse(
        call,
        expected=f"`{name}` of shape ({n}, {c})" if full else f"`{name}` of shape ({n},) or ({n}, C)",
        got=f"shape {given}",
        do="Labels go row by row with the probe examples of the kernel.",
    )


def _from_integers(labels: jax.Array | np.ndarray, operand: Operand, call: str, name: str) -> jax.Array | np.ndarray:
    classes = None if operand.convention is None else operand.convention.n_outputs
    if classes is not None and classes > 1 and labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]  # class numbers as a column
    if labels.ndim == 2 or classes == 1:
        return labels.astype(operand.array.dtype)  # one-hot rows, or values for a single output
    if classes is None:
        refuse(
            call,
            expected=f"`{name}` as floating point targets, since a bare array does not say how many classes there are",
            got=f"integers of shape {tuple(labels.shape)}",
            do=f"Pass `jax.nn.one_hot({name}, n_classes)`, or `{name}.astype(float)` if these are targets.",
        )
    labels = labels.astype(np.int32)
    if is_concrete(labels) and (np.min(labels) < 0 or np.max(labels) >= classes):
        refuse(
            call,
            expected=f"class numbers in [0, {classes})",
            got=f"values from {np.min(labels)} to {np.max(labels)}",
            do=f"The kernel has C = {classes} outputs; pass floating point targets if these are no classes.",
        )
    return jax.nn.one_hot(labels, classes, dtype=operand.array.dtype)
