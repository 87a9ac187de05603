"""`ragged_dot`: rewritten as a product over all groups with masked rows.

JAX can batch neither `ragged_dot` nor its derivatives, so it runs as the batched product that it
stands for. Its weights are then ordinary weights with one block for each group.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer

from ntkdiag.jaxtools import jaxprs
from ntkdiag.jaxtools.jaxprs import Equation, Jaxpr

# y[t] = h[t] . w[group of t]: h [t i] and w [g i d] are contracted over i.
_PLAIN_DIMENSIONS = (((1,), (1,)), ((), ()))


def masked_dot(eqn: Equation) -> tuple[Jaxpr, list] | None:
    """A jaxpr of y[t] = h[t] . w[group of t] and its constants; None for other dimensions."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    contracted, batch = numbers.dot_dimension_numbers
    dimensions = tuple(map(tuple, contracted)), tuple(map(tuple, batch))
    is_plain = dimensions == _PLAIN_DIMENSIONS and tuple(numbers.lhs_ragged_dimensions) == (0,)
    if not is_plain or eqn.params["group_offset"] is not None:
        return None
    dtype = eqn.outvars[0].aval.dtype

    def product(
        h: Float[Array, "t i"], w: Float[Array, "g i d"], sizes: Integer[Array, " g"]
    ) -> Float[Array, "t d"]:
        ends = jnp.cumsum(sizes)
        position = jnp.arange(h.shape[0])
        member = (position < ends[:, None]) & (position >= (ends - sizes)[:, None])  # [g t]
        rows = jnp.where(member[..., None], h, jnp.zeros((), h.dtype))  # [g t i]
        return jax.lax.batch_matmul(rows, w).sum(0).astype(dtype)  # [g t d] -> [t d]

    shapes = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in eqn.invars]
    return jaxprs.open_jaxpr(jax.make_jaxpr(product)(*shapes))


# Primitive -> what an equation of it is rewritten as, before the walk looks at it.
REWRITES = {"ragged_dot_general": masked_dot, "ragged_dot": masked_dot}
