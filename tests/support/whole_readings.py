"""A reading of an optimizer with all arrays together: one that is not explained leaves none."""

import dataclasses

import jax
import jax.numpy as jnp
from internals import (
    ArrayReading,
    Reading,
    floats_of,
    pytree,
    read_arrays,
    read_arrays_after,
    stated_arrays,
)
from jaxtyping import Array, Float, Int, PyTree


@pytree("response", "decay", "residual", "memory", "status")
@dataclasses.dataclass(frozen=True, eq=False)
class WholeReading:
    """The fields of an `ArrayReading` that a test looks at, E like the parameters."""

    response: PyTree
    decay: Float[Array, ""]
    residual: Float[Array, ""]
    memory: Float[Array, ""]
    status: Int[Array, ""]

    def margin(self, curvature):
        """lambda_max(E^1/2 H E^1/2) + b / 2, of which the first is passed; NaN without numbers."""
        return jnp.where(by_array(self).has_numbers, curvature + 0.5 * self.decay, jnp.nan)


def whole(reading):
    """An `ArrayReading` as one."""
    is_whole = reading.is_explained.all() | ~reading.has_numbers
    status = jnp.where(is_whole, reading.status, Reading.UNEXPLAINED)
    keeps = dataclasses.replace(reading, status=status).has_numbers

    def kept(leaf):
        return jnp.where(keeps, leaf, 0.0).astype(leaf.dtype)

    return WholeReading(
        response=jax.tree.map(kept, reading.response()),
        decay=kept(reading.decay),
        residual=reading.residual,
        memory=reading.memory,
        status=status.astype(jnp.int32),
    )


def by_array(reading):
    """The other way: as an `ArrayReading`."""
    response, _ = floats_of(reading.response)
    return ArrayReading(
        respond=lambda unity: response,
        params=reading.response,
        arrays=tuple(response),
        is_explained=jnp.ones(len(response), bool),
        decay=reading.decay,
        residual=reading.residual,
        memory=reading.memory,
        status=reading.status,
    )


def read_whole(*arguments, **keywords):
    """`read_arrays`, whole."""
    return whole(read_arrays(*arguments, **keywords))


def read_whole_after(*arguments, **keywords):
    """`read_arrays_after`, whole."""
    return whole(read_arrays_after(*arguments, **keywords))


def stated_whole(descent, params, step):
    """`stated_arrays`, whole."""
    return whole(stated_arrays(descent, params, step))
