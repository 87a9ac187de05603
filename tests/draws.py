"""Random inputs of the case table."""

import jax.numpy as jnp
import numpy as np


def normal(*shape, seed=0, scale=0.6):
    rng = np.random.default_rng([seed, *shape])
    return jnp.asarray(rng.normal(size=shape) * scale, jnp.float32)


def tokens(n, t, vocabulary, seed=0):
    return jnp.asarray(np.random.default_rng(seed).integers(0, vocabulary, (n, t)))


X = normal(3, 5, scale=1.0)
NHWC = ("NHWC", "HWIO", "NHWC")


def table(*functions):
    """Name -> case."""
    return {f.__name__.replace("_", "-"): f for f in functions}
