"""The fingerprint of a probe batch: two kernels with the same one are of the same examples."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PyTree


def digest(x: PyTree) -> str:
    """SHA-256 of a batch: shapes, dtypes and bytes of its leaves, in tree order."""
    state = hashlib.sha256()
    for leaf in jax.tree.leaves(x):
        array = host_numbers(leaf)
        state.update(repr((array.shape, array.dtype.str)).encode())
        state.update(array.tobytes())
    return state.hexdigest()


def host_numbers(leaf: ArrayLike) -> np.ndarray:
    """An array on the host, contiguous; of random keys the numbers they are made of."""
    with jax.ensure_compile_time_eval():  # inside someone's jit too
        dtype = getattr(leaf, "dtype", np.float32)
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        return np.ascontiguousarray(leaf)
