"""The layers that numbers by layer are of: the leaves of the parameters."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag.jaxtools.precision import at_least_float32

# Numbers of a piece, of which XLA makes one sum; and of all leaves that are joined: a copy of more
# would take too much memory.
_PIECE = 32
_MOST_JOINED = 2**20


def sums_of_squares(tree: PyTree) -> Float[Array, " L"]:
    """||a||^2 of each leaf, in float32 at least."""
    leaves = [_real(leaf) for leaf in jax.tree.leaves(tree)]
    if sum(leaf.size for leaf in leaves) > _MOST_JOINED:
        return jnp.stack([jnp.square(leaf).sum() for leaf in leaves])
    return _joined_sums([jnp.square(leaf) for leaf in leaves])


def _real(leaf: Array) -> Float[Array, " i"]:
    """A leaf, flat, as real numbers."""
    numbers = jnp.asarray(leaf, at_least_float32(leaf.dtype)).reshape(-1)
    if jnp.iscomplexobj(numbers):
        return jnp.concatenate([jnp.real(numbers), jnp.imag(numbers)])
    return numbers


def _joined_sums(leaves: Sequence[Float[Array, " i"]]) -> Float[Array, " L"]:
    """The sum of each array, from pieces of one length: XLA compiles one sum, not one for each."""
    n_pieces = [-(-leaf.size // _PIECE) for leaf in leaves]
    filled = [
        jnp.pad(leaf, (0, n * _PIECE - leaf.size)) for leaf, n in zip(leaves, n_pieces, strict=True)
    ]
    sums = jnp.concatenate(filled).reshape(-1, _PIECE).sum(axis=1)
    layers = np.repeat(np.arange(len(leaves)), n_pieces)
    return jnp.zeros(len(leaves), sums.dtype).at[layers].add(sums)
