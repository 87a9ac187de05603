"""Keyword arguments of f for x1 and for x2: the same, one each, or the key `rng`.

As in neural-tangents a tuple of two is split: its first entry goes to x1, its second to x2.
`Shared` passes a pair as it is.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from ntkdiag import errors


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Shared:
    """A keyword argument that is the same for x1 and x2, also where it is a pair.

    Attributes:
        value: What f gets.
    """

    value: Any


def split_kwargs(
    kwargs: dict[str, Any], x1: PyTree, x2: PyTree
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keyword arguments for x1 and for x2, the same dict twice where x2 is None."""
    first, second = {}, {}
    for name, value in kwargs.items():
        if name == "rng":
            first[name], second[name] = split_key(value, x1, x2)
        elif _is_bare_pair(value):
            first[name], second[name] = value
        else:
            first[name] = value.value if isinstance(value, Shared) else value
            second[name] = first[name]
    return first, first if x2 is None else second


def _is_bare_pair(value: Any) -> bool:
    """Whether a value is a plain tuple of two; a namedtuple is one value."""
    return isinstance(value, tuple) and len(value) == 2 and not hasattr(value, "_fields")


def split_key(rng: Any, x1: PyTree, x2: PyTree) -> tuple[Array | None, Array | None]:
    """Keys for x1 and x2, from a key, a batch of keys (one per example), or a pair of either."""
    if rng is None:
        return None, None
    is_pair = isinstance(rng, tuple | list) and len(rng) == 2
    if is_pair and all(key is None or is_key(key) for key in rng):
        first, second = jax.tree.map(jnp.asarray, tuple(rng))
        return first, first if x2 is None else second
    if not is_key(rng):
        dtype = getattr(rng, "dtype", None)
        of_dtype = "" if dtype is None else f" of dtype {dtype}"
        raise errors.InvalidInputError(
            expected="`rng` as a key of jax.random, or a pair of them",
            got=type(rng).__name__ + of_dtype,
            do="Pass jax.random.key(seed).",
        )
    key = jnp.asarray(rng)
    if x2 is None or x1 is x2:
        return key, key
    # For a batch of keys, one other key each.
    folded = each_key(lambda key: jax.random.fold_in(key, 1), key)
    return key, jnp.where(_are_equal(x1, x2), key, folded)


def is_key(value: Any) -> bool:
    """Whether a value is a key, of the new or the old kind, or a batch of them."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return False
    of_old_kind = dtype == np.uint32 and np.ndim(value) in (1, 2) and value.shape[-1] == 2
    return jnp.issubdtype(dtype, jax.dtypes.prng_key) or of_old_kind


@jax.jit
def _are_equal(x1: PyTree, x2: PyTree) -> Bool[Array, ""]:
    """Whether two trees of inputs have the same shapes and dtypes, and are equal up to rounding."""
    same = jnp.array(jax.tree.structure(x1) == jax.tree.structure(x2))
    # Trees of different structure have been told apart: it does not matter what is compared then.
    for a, b in zip(jax.tree.leaves(x1), jax.tree.leaves(x2), strict=False):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return jnp.array(False)
        if not jnp.issubdtype(a.dtype, jnp.floating):
            same &= jnp.all(a == b)
            continue
        largest = jnp.max(jnp.abs(a), initial=0.0)
        tolerance = jnp.sqrt(jnp.finfo(a.dtype).eps).astype(a.dtype) * largest
        same &= jnp.all(jnp.abs(a - b) <= tolerance)
    return same


def each_key(function: Callable[[Array], Array], keys: Array) -> Array:
    """A function of one key, applied to a key or to every key of an array of them."""
    is_new = jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)
    n_axes = keys.ndim if is_new else keys.ndim - 1  # one of the old kind is two numbers
    for _ in range(n_axes):
        function = jax.vmap(function)
    return function(keys)
