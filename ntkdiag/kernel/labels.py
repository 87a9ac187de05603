"""Labels beside a kernel, as numbers `[n o]` that fit its rows.

What labels are is decided in `ntkdiag.losses.targets`, from the shape of the outputs. Here that
shape is found: a full kernel `[n o m p]` and a convention state it, a bare matrix is read in the
light of the labels that come with it.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag import errors
from ntkdiag.kernel.kernel_argument import KernelArgument
from ntkdiag.losses.targets import are_class_numbers, as_numbers, is_integer, read_targets


def read_labels(
    y: jax.typing.ArrayLike, operand: KernelArgument, name: str = "y"
) -> tuple[KernelArgument, Float[Array, "n o"]]:
    """Targets for a kernel: regression values, one-hot rows, or class numbers where C is known."""
    numbers = as_numbers(y, name)
    n, o = operand.n_examples, operand.n_outputs
    # How many classes class numbers may name; None where the kernel does not say it.
    n_classes = o if operand.array.ndim == 4 else None
    if operand.convention is not None:
        n_classes = operand.convention.n_outputs
    # Class numbers become one-hot rows, where it is known how many classes there are.
    if n_classes is not None and are_class_numbers(numbers, (n, n_classes)):
        numbers = read_targets(numbers, (n, n_classes), name)
    if n_classes is None and is_integer(numbers) and numbers.ndim == 1:
        raise errors.InvalidInputError(
            expected=f"`{name}` as floating point targets, since a bare array does not say how "
            "many classes there are",
            got=f"integers of shape {tuple(numbers.shape)}",
            do=f"Pass `jax.nn.one_hot({name}, n_classes)`, or `{name}.astype(float)` if these are "
            "targets.",
        )
    # Targets `[n o]` tell how a bare matrix is to be read; otherwise they have to fit its axes.
    targets = jnp.asarray(numbers, operand.array.dtype)
    if _counts_outputs(targets, operand):
        array = operand.array.reshape(*targets.shape, *targets.shape)  # [(n o) (m p)] -> [n o m p]
        return dataclasses.replace(operand, array=array), targets
    if targets.shape == (n * o,):
        return operand, targets.reshape(n, o)
    if targets.ndim == 2 and targets.shape[0] == n:
        # A matrix [n n] stands for every output: labels may have any number of columns.
        is_full = operand.array.ndim == 4
        if targets.shape[1] == o or not is_full:
            return operand, targets
    raise errors.InvalidInputError(
        expected=f"`{name}` of shape {_accepted(operand, n_classes)}",
        got=f"shape {tuple(numbers.shape)}",
        do="Labels go row by row with the probe examples of the kernel.",
    )


def _counts_outputs(targets: Float[Array, "..."], operand: KernelArgument) -> bool:
    """Whether targets `[n o]` say what the rows of a bare matrix `[(n o) (n o)]` stand for."""
    if operand.convention is not None or operand.array.ndim != 2 or targets.ndim != 2:
        return False
    # Nothing says yet that the rows of a bare matrix are more than examples.
    rows = operand.n_examples
    return targets.size == rows and targets.shape[0] < rows


def _accepted(operand: KernelArgument, n_classes: int | None) -> str:
    """The shapes that labels of this kernel may have, in words."""
    n = operand.n_examples
    if operand.array.ndim != 4:
        return f"({n},) or ({n}, C)"
    targets = f"({n}, {operand.n_outputs})"
    if n_classes is not None and n_classes > 1:
        return f"{targets}, or integer class numbers ({n},)"
    return targets
