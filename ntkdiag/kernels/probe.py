"""The fingerprint of a probe batch."""

import hashlib
from typing import Any

import jax
import numpy as np


def digest(x: Any) -> str:
    """SHA-256 of a batch: shapes, dtypes and bytes of its leaves, in tree order."""
    state = hashlib.sha256()
    for leaf in jax.tree.leaves(x):
        array = np.ascontiguousarray(leaf)
        state.update(repr((array.shape, array.dtype.str)).encode())
        state.update(array.tobytes())
    return state.hexdigest()
