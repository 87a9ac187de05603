"""`ragged_dot`: rewritten as a product over all groups with masked rows.

JAX cannot batch `ragged_dot` or its derivatives, so it runs as the batched product it stands for; its weights are then
ordinary per-group weights (a block axis).
"""

from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag import _compat


def masked_dot(eqn: Any) -> tuple[Any, list] | None:
    """An equivalent jaxpr for y[t] = h[t] . w[group of t], or None for other ragged dimension numbers."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    plain = (((1,), (1,)), ((), ()))
    dims = tuple(tuple(tuple(axes) for axes in pair) for pair in numbers.dot_dimension_numbers)
    if dims != plain or tuple(numbers.lhs_ragged_dimensions) != (0,) or eqn.params["group_offset"] is not None:
        return None
    dtype = eqn.outvars[0].aval.dtype

    def product(h, w, sizes):  # [t i], [g i d], [g] -> [t d]
        ends = jnp.cumsum(sizes)
        position = jnp.arange(h.shape[0])
        member = (position < ends[:, None]) & (position >= (ends - sizes)[:, None])  # [g t]
        rows = jnp.where(member[..., None], h, jnp.zeros((), h.dtype))
        return jax.lax.batch_matmul(rows, w).sum(0).astype(dtype)

    closed = jax.make_jaxpr(product)(*(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars))
    return _compat.open_jaxpr(closed)


REWRITES = {"ragged_dot_general": masked_dot, "ragged_dot": masked_dot}
