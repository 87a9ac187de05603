"""The fingerprint of a probe batch."""

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def digest(x: Any) -> str:
    """SHA-256 of a batch: shapes, dtypes and bytes of its leaves, in tree order."""
    state = hashlib.sha256()
    for leaf in jax.tree.leaves(x):
        random_key = jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)
        with jax.ensure_compile_time_eval():  # also inside someone's jit
            array = np.ascontiguousarray(jax.random.key_data(leaf) if random_key else leaf)
        state.update(repr((array.shape, array.dtype.str)).encode())
        state.update(array.tobytes())
    return state.hexdigest()
