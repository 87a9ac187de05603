"""What may be differentiated: floating arrays without NaN or infinity."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ntkdiag import errors
from ntkdiag.adapters import structure


def is_array(leaf: Any) -> bool:
    """Tell whether a leaf has a shape and a dtype."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def is_inexact(leaf: Any) -> bool:
    """Tell whether a leaf is an array of a floating or complex dtype."""
    return is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact)


def as_jax(leaf: Any) -> Any:
    """Turn a NumPy array into a JAX array; leave everything else as it is."""
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray | np.generic) else leaf


def owned(tree: Any) -> Any:
    """Copy the arrays of a tree: a training step that donates its state would pull the user's own away."""
    return jax.tree.map(lambda leaf: leaf.copy() if _is_concrete(leaf) else leaf, tree)


def require_real(tree: Any, *, call: str) -> None:
    """Refuse leaves in which nothing can be differentiated.

    Args:
        tree: The leaves chosen as trainable.
        call: The call to name in the message, in code form.

    Raises:
        InvalidInputError: If one is not real and floating.
    """
    leaves = structure.leaves_by_path(tree)
    wrong = [
        f"{path}: {structure.describe(leaf)}"
        for path, leaf in leaves.items()
        if not is_array(leaf) or not jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    if wrong:
        raise errors.InvalidInputError(
            errors.message(
                call,
                expected="trainable parameters of a real floating dtype",
                got=structure.shown(wrong),
                do="Leave them out with `trainable=` (integers have no derivative), "
                "or hold a complex parameter as its real and imaginary parts.",
            )
        )


def require_live(tree: Any, *, call: str) -> None:
    """Refuse arrays whose buffers were given away.

    Args:
        tree: Arrays.
        call: The call to name in the message, in code form.

    Raises:
        InvalidInputError: If a buffer was deleted, as `jax.jit(step, donate_argnums=...)` does to its arguments.
    """
    gone = [p for p, leaf in structure.leaves_by_path(tree).items() if _is_concrete(leaf) and leaf.is_deleted()]
    if gone:
        raise errors.InvalidInputError(
            errors.message(
                call,
                expected="live arrays",
                got="deleted buffers: " + structure.shown(gone),
                do="They were donated to a compiled function: pass what that function returned instead.",
            )
        )


def require_finite(tree: Any, *, call: str) -> None:
    """Refuse NaN and infinity in concrete arrays; values that are being traced cannot be looked at and pass.

    Args:
        tree: Floating arrays.
        call: The call to name in the message, in code form.

    Raises:
        InvalidInputError: If a leaf holds NaN or infinity; the message names the paths.
    """
    wrong = [p for p, leaf in structure.leaves_by_path(tree).items() if _is_concrete(leaf) and not _finite(leaf)]
    if wrong:
        raise errors.InvalidInputError(
            errors.message(
                call,
                expected="finite parameters",
                got="NaN or infinity in " + structure.shown(wrong),
                do="Take a checkpoint from before training diverged, or pass check_finite=False to go on regardless.",
            )
        )


def _is_concrete(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)


def _finite(leaf: jax.Array) -> bool:
    on_host = leaf.is_fully_addressable and all(device.platform == "cpu" for device in leaf.devices())
    # NumPy reads host memory in place and compiles nothing.
    return bool(np.isfinite(np.asarray(leaf)).all()) if on_host else bool(jnp.isfinite(leaf).all())
