"""Numbers in place of tracers: a function is evaluated inside a trace whose values nobody knows.

Whether examples of a function interact is found out by evaluating it. Inside someone's jit its
parameters and inputs, or other variables of the model that it closes over, may be tracers. Whether
examples interact does not depend on their values: random numbers of their shapes will do.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ntkdiag.jaxtools import jaxprs
from ntkdiag.jaxtools.tracing import is_traced


def known(tree: PyTree, seed: int = 1) -> PyTree:
    """The tree with numbers in place of its tracers."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: _stand_in(rng, leaf) if is_traced(leaf) else leaf, tree)


def without_tracers(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """The same function, with numbers in place of the tracers it closes over."""

    def evaluated(*arguments: PyTree) -> PyTree:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        jaxpr, consts = jaxprs.open_jaxpr(closed)
        # In every trace of the function the same tracers, in the same order, get the same numbers.
        numbers = known(consts, seed=2)
        outputs = jaxprs.eval_jaxpr(jaxpr, numbers, *jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return evaluated


def _stand_in(rng: np.random.Generator, leaf: Any) -> Array:
    """Numbers as they may occur in a network, of the shape and dtype of a tracer."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        key = jax.random.key(1)
        return jax.random.split(key, leaf.shape) if leaf.ndim else key
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.asarray((np.arange(leaf.size) % 2).reshape(leaf.shape), leaf.dtype)
    drawn = rng.normal(size=leaf.shape)
    if leaf.ndim < 2:  # a vector may be a scale or a variance: near 1
        return jnp.asarray(1 + drawn / 10, leaf.dtype)
    # A matrix may be a weight: of unit gain.
    fan_in = max(1.0, float(np.prod(leaf.shape[:-1])))
    return jnp.asarray(drawn / fan_in**0.5, leaf.dtype)
