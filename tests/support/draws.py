"""Random inputs of the case table."""

import jax.numpy as jnp
import numpy as np


def drawn(*shape, seed=0, scale=0.6):
    """Normal numbers in NumPy, for modules that must not compute while they are imported."""
    rng = np.random.default_rng([seed, *shape])
    return (rng.normal(size=shape) * scale).astype(np.float32)


def normal(*shape, seed=0, scale=0.6):
    """The same numbers on the device."""
    return jnp.asarray(drawn(*shape, seed=seed, scale=scale))


def tokens(n, t, vocabulary, seed=0):
    """Token numbers, in NumPy."""
    return np.random.default_rng(seed).integers(0, vocabulary, (n, t)).astype(np.int32)


X = drawn(3, 5, scale=1.0)
NHWC = ("NHWC", "HWIO", "NHWC")


def table(*functions):
    """Name -> case."""
    return {f.__name__.replace("_", "-"): f for f in functions}
