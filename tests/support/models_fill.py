"""Random values for abstract parameters, without compiling an initialiser."""

import zlib

import jax
import jax.numpy as jnp
import numpy as np


def images(*shape):
    """A batch of 3 float32 inputs."""
    return jnp.asarray(np.random.default_rng(7).standard_normal((3, *shape)), jnp.float32)


def tokens(length, vocabulary):
    """A batch of 3 token sequences, int32."""
    return jnp.asarray(np.random.default_rng(8).integers(0, vocabulary, (3, length)), jnp.int32)


def last(y):
    """The outputs at the last position."""
    return y[:, -1]


def fill(tree):
    """Random values for every shape in a tree, the same at every run."""
    return jax.tree_util.tree_map_with_path(_value, tree)


def _value(path, leaf):
    if not hasattr(leaf, "dtype"):
        return leaf
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0), leaf.shape)
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.zeros(leaf.shape, leaf.dtype)
    name = jax.tree_util.keystr(path)
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if "var" in name:
        values = rng.uniform(0.5, 1.5, leaf.shape)
    elif "scale" in name:
        values = 1 + 0.3 * rng.standard_normal(leaf.shape)
    else:
        values = rng.standard_normal(leaf.shape) / np.sqrt(max(2, np.prod(leaf.shape[-2:]) ** 0.5))
    return jnp.asarray(values, jnp.float32)
