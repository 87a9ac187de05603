"""`gather` of whole rows: an embedding lookup, whose one-hot operand is never built."""

import math

import jax.numpy as jnp
from jax import lax

from ntkdiag.tangents.contraction import Contraction
from ntkdiag.tangents.layout import Layout


def gather(params: dict, position: int, layout: Layout, other: tuple[int, ...]) -> Contraction | None:
    """Weight [V ...] looked up along its leading axis by integer indices [... 1].

    Indices out of range under a filling mode belong to no row: the lookup has no gradient there.
    """
    numbers = params["dimension_numbers"]
    rows, *row_shape = layout.shape
    whole_rows = (
        position == 0
        and tuple(numbers.collapsed_slice_dims) == (0,)
        and tuple(numbers.start_index_map) == (0,)
        and not numbers.operand_batching_dims
        and tuple(params["slice_sizes"]) == (1, *row_shape)
        and other[-1] == 1
    )
    if not whole_rows:
        return None
    fill = params["mode"] == lax.GatherScatterMode.FILL_OR_DROP

    def operand(index):
        index = index.reshape(-1)
        index = index.astype(jnp.int32)
        if fill:  # row V stands for "no row"
            return jnp.where((index >= 0) & (index < rows), index, rows)
        return jnp.clip(index, 0, rows - 1)

    out_rank = len(other) - 1 + len(row_shape)
    positions = iter(other[:-1])
    features = iter(row_shape)
    shape = [next(features) if k in numbers.offset_dims else next(positions) for k in range(out_rank)]
    roles = ["d" if k in numbers.offset_dims else "t" for k in range(out_rank)]
    if math.prod(row_shape) == 0:
        return None
    return Contraction(layout, (0, 1, len(row_shape)), operand, tuple(shape), tuple(roles), "rows")
