"""Centring over examples, and what DEAD and COLLAPSED mean.

A working network distinguishes examples. On a probe it can fail in two ways:

- DEAD: no training step can make it distinguish them. The kernel is zero, and no parameter moves an
  output; or it is constant over examples (all of it is the mean mode), and every parameter moves
  the outputs of all examples alike, as the last bias does behind units that are off. No gradient
  step from there changes that.
- COLLAPSED: the outputs are equal over examples, although parameters could distinguish them. They
  are equal up to rounding; or their spread is below 1 % of what it was at A, and the loss is at
  that of the best constant outputs, or above.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

# Centring a constant leaves rounding errors: at most so many unit roundoffs of the constant.
ROUNDOFFS_OF_CENTRING = 8
# Outputs are equal over examples if their spread is at most so many unit roundoffs of their size.
_ROUNDOFFS_OF_OUTPUTS = 2
LEAST_SPREAD = 0.01  # of outputs over examples, beside that at A
AT_CONSTANT_LOSS = 0.99  # of the loss of the best constant outputs


@jax.jit
def centre_kernel(array: Float[Array, "..."]) -> Float[Array, "..."]:
    """Remove the mean over examples on both sides: H K H with H = (I - 11^T/N) kron I_C."""
    # For a kernel [n m], [n o m p] or [n m o]. Each output is centred by itself, so that a full
    # kernel and the labels [n o] are centred alike: Cortes et al. 2012, "Algorithms for learning
    # kernels based on centered alignment", eq. 2, here per output.
    column_examples = 2 if array.ndim == 4 else 1
    array = array - array.mean(axis=0, keepdims=True)  # H K
    return array - array.mean(axis=column_examples, keepdims=True)  # H K H


@jax.jit
def is_constant(array: Float[Array, "..."], roundoff: jax.typing.ArrayLike) -> Bool[Array, ""]:
    """Whether a kernel, centred over its examples, is zero up to rounding; as a zero kernel is."""
    largest = jnp.max(jnp.abs(array))
    if array.shape[0] == 1:
        return largest == 0
    return jnp.max(jnp.abs(centre_kernel(array))) <= ROUNDOFFS_OF_CENTRING * roundoff * largest


def spread_over_examples(outputs: Float[np.ndarray, "n o"]) -> float:
    """Root mean square of the outputs about their mean over examples, in units of the outputs."""
    return float(np.sqrt(np.mean((outputs - outputs.mean(axis=0)) ** 2)))


def are_equal(outputs: Float[np.ndarray, "n o"], roundoff: float) -> bool:
    """Whether the outputs are the same for every example, up to the rounding of the model."""
    size = float(np.sqrt(np.mean(outputs**2)))
    return spread_over_examples(outputs) <= _ROUNDOFFS_OF_OUTPUTS * roundoff * size


def have_collapsed(
    *, equal: bool, spread: float, spread_before: float, at_constant_loss: bool
) -> bool:
    """Whether outputs are COLLAPSED beside what they were, by the definition above."""
    return equal or (at_constant_loss and spread < LEAST_SPREAD * spread_before)
