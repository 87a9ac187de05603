"""Seeds that are trained together under `jax.vmap`, and measured together."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool


@jax.custom_batching.custom_vmap
def any_is_due(is_due: Bool[Array, ""]) -> Bool[Array, ""]:
    """Whether a measurement is due for any of the seeds that are trained together.

    Under `jax.vmap` a conditional that seeds decide about one by one would measure at every step.
    """
    return is_due


@any_is_due.def_vmap
def _any_of_batch(
    axis_size: int, in_batched: list[bool], is_due: Bool[Array, " seeds"]
) -> tuple[Bool[Array, ""], bool]:
    """One answer for all seeds; they may be seeds of seeds."""
    del axis_size, in_batched
    return any_is_due(jnp.any(is_due)), False
