"""What may be differentiated: real floating arrays, with live buffers, without NaN or infinity.

Each `require_` function looks at every leaf of a tree and names all that are wrong in one message,
so that a user with twenty of them is not sent twenty times.
"""

from typing import TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.models import paths

# Anything with a shape and a dtype will do: these are the ones that occur.
ArrayLeaf: TypeAlias = jax.Array | np.ndarray | jax.ShapeDtypeStruct


def is_array(leaf: object) -> TypeGuard[ArrayLeaf]:
    """Whether a leaf has a shape and a dtype."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def is_inexact(leaf: object) -> TypeGuard[ArrayLeaf]:
    """Whether a leaf is an array of a floating or complex dtype."""
    return is_array(leaf) and bool(jnp.issubdtype(leaf.dtype, jnp.inexact))


def as_jax(leaf: object) -> object:
    """Turn a NumPy array into a JAX array; everything else stays as it is."""
    if isinstance(leaf, np.ndarray | np.generic):
        return jnp.asarray(leaf)
    return leaf


def copied(tree: PyTree) -> PyTree:
    """Copy the arrays of a tree: a training step that donates its state deletes the user's own."""

    def copy_of(leaf: object) -> object:
        if not _is_concrete(leaf):
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.clone(leaf)  # its method `copy` fails inside a trace
        return leaf.copy()

    return jax.tree.map(copy_of, tree)


def require_real(tree: PyTree) -> None:
    """Refuse leaves that are not real and floating: there is nothing to differentiate by."""
    wrong = []
    for path, leaf in paths.leaves_by_path(tree).items():
        if not is_array(leaf) or not jnp.issubdtype(leaf.dtype, jnp.floating):
            wrong.append(f"{path}: {paths.describe(leaf)}")
    if wrong:
        raise errors.InvalidInputError(
            expected="trainable parameters of a real floating dtype",
            got=paths.shown(wrong),
            do="Leave them out with `trainable=` (integers have no derivative), or hold a complex "
            "parameter as its real and imaginary parts.",
        )


def require_live(tree: PyTree) -> None:
    """Refuse arrays whose buffers `jax.jit(step, donate_argnums=...)` has deleted."""
    deleted = []
    for path, leaf in paths.leaves_by_path(tree).items():
        if _is_concrete(leaf) and leaf.is_deleted():
            deleted.append(path)
    if deleted:
        raise errors.InvalidInputError(
            expected="live arrays",
            got=f"deleted buffers: {paths.shown(deleted)}",
            do="They were donated to a compiled function: pass what that function returned "
            "instead.",
        )


def require_finite(tree: PyTree) -> None:
    """Refuse arrays with NaN or infinity; values that are being traced cannot be seen and pass."""
    wrong = []
    for path, leaf in paths.leaves_by_path(tree).items():
        if _is_concrete(leaf) and not _is_finite(leaf):
            wrong.append(path)
    if wrong:
        raise errors.InvalidInputError(
            expected="finite parameters",
            got=f"NaN or infinity in {paths.shown(wrong)}",
            do="Take a checkpoint from before training diverged, or pass check=False to go on "
            "regardless.",
        )


def _is_concrete(leaf: object) -> TypeGuard[jax.Array]:
    """Whether a leaf is a JAX array whose numbers are known now."""
    return isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)


def _is_finite(leaf: jax.Array) -> bool:
    """Whether an array holds neither NaN nor infinity."""
    on_host = all(device.platform == "cpu" for device in leaf.devices())
    if leaf.is_fully_addressable and on_host:
        # NumPy reads host memory in place and compiles nothing.
        return bool(np.isfinite(np.asarray(leaf)).all())
    return bool(jnp.isfinite(leaf).all())
