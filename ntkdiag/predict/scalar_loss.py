"""A loss of outputs is one number."""

from collections.abc import Callable

import jax
from jaxtyping import Array, Float, PyTree

from ntkdiag import errors


def require_scalar_loss(
    loss: Callable[[Float[Array, "n *o"]], PyTree], outputs: jax.Array | jax.ShapeDtypeStruct
) -> None:
    """Refuse a loss of outputs that does not return one number."""
    value = jax.eval_shape(loss, outputs)  # traced only: nothing is computed
    if getattr(value, "shape", None) != ():
        raise errors.InvalidInputError(
            expected="a `loss` that returns one number",
            got=f"{value}",
            do="Sum or average over examples.",
        )
