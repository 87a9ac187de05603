"""Centring over examples, the same for kernels and labels."""

import jax
import jax.numpy as jnp


@jax.jit
def centre_kernel(array: jax.Array) -> jax.Array:
    """Remove the mean over examples on both sides: H K H with H = (I - 11^T/N) kron I_C.

    Each output is centred by itself, so a full kernel and the labels `[n o]` are centred alike.
    Cost: two passes over the kernel. Source: Cortes et al. 2012, "Algorithms for learning kernels
    based on centered alignment", eq. 2, here per output.

    Args:
        array: `[n m]`, `[n o m p]` or `[n m o]`.

    Returns:
        The centred kernel, of the same shape.
    """
    columns = 2 if array.ndim == 4 else 1
    array = array - array.mean(axis=0, keepdims=True)
    return array - array.mean(axis=columns, keepdims=True)


@jax.jit
def centre_labels(labels: jax.Array) -> jax.Array:
    """Remove the mean over examples of each output.

    Cost: one pass.

    Args:
        labels: `[n o]`.

    Returns:
        The centred labels `[n o]`.
    """
    return labels - jnp.mean(labels, axis=0, keepdims=True)
