"""The keyword argument `rng`: one key for the same inputs, two different ones for different inputs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors


def split_key(rng: Any, x1: Any, x2: Any) -> tuple[Any, Any]:
    """Keys for x1 and x2.

    x2=None: the same key. x1 and x2 equal up to rounding, sqrt(eps) of the largest entry: the same key. Otherwise the
    key for x2 is `jax.random.fold_in(rng, 1)`. A pair of keys is taken as it is.

    Args:
        rng: A key, a batch of keys (one per example), a pair of either, or None.
        x1: Row inputs.
        x2: Column inputs or None.

    Returns:
        Two keys, or None twice.

    Raises:
        InvalidInputError: It is no key.
    """
    if rng is None:
        return None, None
    if isinstance(rng, tuple | list) and len(rng) == 2 and all(_is_key(key) for key in rng):
        return jnp.asarray(rng[0]), jnp.asarray(rng[1] if x2 is not None else rng[0])
    if not _is_key(rng):
        dtype = getattr(rng, "dtype", None)
        raise errors.InvalidInputError(
            expected="`rng` as a key of jax.random, or a pair of them",
            got=type(rng).__name__ + ("" if dtype is None else f" of dtype {dtype}"),
            do="Pass jax.random.key(seed).",
        )
    key = jnp.asarray(rng)
    if x2 is None or x1 is x2:
        return key, key
    if not _same_shapes(x1, x2):
        return key, _folded(key)
    return _keys(key, x1, x2)


def _is_key(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return False
    return jnp.issubdtype(dtype, jax.dtypes.prng_key) or (
        dtype == np.uint32 and np.ndim(value) in (1, 2)
    )


def _same_shapes(x1: Any, x2: Any) -> bool:
    same = lambda a, b: np.shape(a) == np.shape(b) and jnp.result_type(a) == jnp.result_type(b)
    leaves1, leaves2 = jax.tree.leaves(x1), jax.tree.leaves(x2)
    return jax.tree.structure(x1) == jax.tree.structure(x2) and all(map(same, leaves1, leaves2))


@jax.jit
def _keys(key: jax.Array, x1: Any, x2: Any) -> tuple[jax.Array, jax.Array]:
    same = jnp.all(
        jnp.stack([jnp.array(True), *map(_equal, jax.tree.leaves(x1), jax.tree.leaves(x2))])
    )
    return key, jnp.where(same, key, _folded(key))


def _equal(a: jax.Array, b: jax.Array) -> jax.Array:
    if not jnp.issubdtype(a.dtype, jnp.floating):
        return jnp.all(a == b)
    tolerance = jnp.sqrt(jnp.finfo(a.dtype).eps).astype(a.dtype) * jnp.max(jnp.abs(a), initial=0.0)
    return jnp.all(jnp.abs(a - b) <= tolerance)


def _folded(key: jax.Array) -> jax.Array:
    """Another key; of a batch of keys, another one each."""
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    batched = key.ndim == (1 if typed else 2)
    fold = lambda key: jax.random.fold_in(key, 1)
    return jax.vmap(fold)(key) if batched else fold(key)
