"""Tolerances and casts in one place."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np

RELATIVE = {np.dtype(np.float64): 1e-10, np.dtype(np.float32): 1e-5}


def relative_error(got, want):
    """max |got - want| / max |want|."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, (got.shape, want.shape)
    return float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-300))


def assert_close(got, want, dtype=None):
    """Relative agreement to 1e-10 in float64 and 1e-5 in float32."""
    bound = RELATIVE[np.dtype(dtype or got.dtype)]
    error = relative_error(got, want)
    assert error <= bound, f"relative error {error:.2e} > {bound:.0e}"


@contextlib.contextmanager
def double(*trees):
    """In float64 mode, with the floating leaves of trees in float64."""
    with jax.enable_x64(True):
        cast = lambda a: jnp.asarray(a, jnp.float64) if jnp.issubdtype(a.dtype, jnp.floating) else a
        yield tuple(jax.tree.map(cast, tree) for tree in trees)
