"""What may be differentiated: floating arrays without NaN or infinity."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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


def require_real(tree: Any, *, call: str) -> None:
    """Refuse leaves that no kernel can be differentiated in.

    Args:
        tree: The leaves chosen as trainable.
        call: The call to name in the message, in code form.

    Raises:
        InvalidInputError: If there is no leaf, or one is not real and floating.
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
                got="; ".join(wrong),
                do="Leave them out with `trainable=` (integers have no derivative), "
                "or hold a complex parameter as its real and imaginary parts.",
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
    leaves = structure.leaves_by_path(tree)
    wrong = [path for path, leaf in leaves.items() if not _finite(leaf)]
    if wrong:
        raise errors.InvalidInputError(
            errors.message(
                call,
                expected="finite parameters",
                got="NaN or infinity in " + ", ".join(wrong),
                do="Take a checkpoint from before training diverged, or pass check_finite=False to go on regardless.",
            )
        )


def _finite(leaf: Any) -> bool:
    if isinstance(leaf, jax.core.Tracer | jax.ShapeDtypeStruct):
        return True
    on_host = isinstance(leaf, np.ndarray) or all(device.platform == "cpu" for device in leaf.devices())
    # NumPy reads host memory in place and compiles nothing.
    return bool(np.isfinite(np.asarray(leaf)).all()) if on_host else bool(jnp.isfinite(leaf).all())
