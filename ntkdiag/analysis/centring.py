"""Centring over examples, the same for kernels and labels."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.jit
def centre_kernel(array: Float[Array, "..."]) -> Float[Array, "..."]:
    """Remove the mean over examples on both sides: H K H with H = (I - 11^T/N) kron I_C.

    For a kernel `[n m]`, `[n o m p]` or `[n m o]`. Each output is centred by itself, so a full
    kernel and the labels `[n o]` are centred alike: Cortes et al. 2012, "Algorithms for learning
    kernels based on centered alignment", eq. 2, here per output.
    """
    column_examples = 2 if array.ndim == 4 else 1  # [n o m p], else [n m] or [n m o]
    array = array - array.mean(axis=0, keepdims=True)  # H K
    return array - array.mean(axis=column_examples, keepdims=True)  # H K H


@jax.jit
def centre_labels(labels: Float[Array, "n o"]) -> Float[Array, "n o"]:
    """Remove the mean over examples of each output."""
    return labels - jnp.mean(labels, axis=0, keepdims=True)
