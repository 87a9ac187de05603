"""`gather` of whole rows: an embedding lookup, whose one-hot operand is never built.

A table w [v0 ... vk d...] is looked up along its leading axes v0 ... vk by whole numbers [... j],
one column for each of these axes. With v the axes v0 ... vk as one,

    J[o][v, d] = sum_t [index[t] = v] c[o][t, d]

so all that is kept of the operand is the row number of each position. Under a filling mode, numbers
out of range belong to no row: the lookup has no gradient there.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Integer

from ntkdiag.engine.jacobian.leaf_layout import LeafLayout
from ntkdiag.engine.jacobian.weight_use import WeightUse
from ntkdiag.jaxtools import jaxprs
from ntkdiag.jaxtools.jaxprs import Equation, Jaxpr


def gather(
    params: dict[str, Any], side: int, layout: LeafLayout, operand_shape: tuple[int, ...]
) -> WeightUse | None:
    """The use of a table whose leading axes are looked up; None for any other kind of `gather`."""
    numbers = params["dimension_numbers"]
    slice_sizes = tuple(params["slice_sizes"])
    collapsed = tuple(numbers.collapsed_slice_dims)
    columns = tuple(numbers.start_index_map)
    shape = layout.shape
    taken_whole = [taken == size for taken, size in zip(slice_sizes, shape, strict=True)]
    # The axes before `first_kept` are looked up one entry at a time, the ones after it are kept
    # whole.
    looked_up = [axis for axis in range(len(shape)) if axis in collapsed or not taken_whole[axis]]
    first_kept = max(looked_up, default=-1) + 1
    one_row_at_a_time = all(size == 1 for size in slice_sizes[:first_kept])
    is_lookup = first_kept > 0 and one_row_at_a_time and all(taken_whole[first_kept:])
    is_table = side == 0 and math.prod(shape) > 0
    if not is_lookup or not is_table or numbers.operand_batching_dims:
        return None
    # Out of range: filled with NaN or zero, or clipped to the last entry.
    fills = params["mode"] == lax.GatherScatterMode.FILL_OR_DROP
    n_rows = math.prod(shape[:first_kept])

    def row_numbers(index: Integer[Array, "..."]) -> Integer[Array, " t"]:
        """The number of the row that each position looks up: [... j] -> [t]."""
        # The number of a row is that of its entry in [v0 ... vk], counted in C order: axis by axis,
        # row <- row * size + place.
        index = _as_int32(index.reshape(-1, len(columns)), max(shape))  # [t j]
        row = jnp.zeros(index.shape[:1], jnp.int32)
        inside = jnp.ones(index.shape[:1], bool)
        for axis, size in enumerate(shape):
            place = jnp.zeros_like(row)
            if axis in columns:
                place = index[:, columns.index(axis)]
            # An axis that is kept whole can only be taken from its beginning.
            last = size - 1 if axis < first_kept else 0
            inside &= (place >= 0) & (place <= last)
            if axis < first_kept:
                row = row * size + jnp.clip(place, 0, last)
        if not fills:
            return row
        # The number after the last row stands for no row.
        return jnp.where(inside, row, n_rows)

    # Each axis of the output is a position of the lookup or an axis of the table.
    positions = iter(operand_shape[:-1])
    table_axes = iter([axis for axis in range(len(shape)) if axis not in collapsed])
    out_shape = []
    out_roles = []
    for axis in range(len(operand_shape) - 1 + len(shape) - len(collapsed)):
        if axis not in numbers.offset_dims:
            out_shape.append(next(positions))
            out_roles.append("t")
            continue
        # An axis of the table that is looked up entry by entry has length 1 here: a position.
        table_axis = next(table_axes)
        out_shape.append(slice_sizes[table_axis])
        out_roles.append("d" if table_axis >= first_kept else "t")
    return WeightUse(
        weight=layout,
        n_axes=(0, first_kept, len(shape) - first_kept),
        arrange_operand=row_numbers,
        out_shape=tuple(out_shape),
        out_roles=tuple(out_roles),
        kind="rows",
    )


def as_gather(eqn: Equation) -> tuple[Jaxpr, list]:
    """A `dynamic_slice` as the `gather` that it becomes under `jax.vmap`, as a jaxpr."""
    slice_sizes = eqn.params["slice_sizes"]
    axes = tuple(range(len(slice_sizes)))
    look_up = functools.partial(
        lax.gather,
        dimension_numbers=lax.GatherDimensionNumbers(axes, (), axes),
        slice_sizes=slice_sizes,
        mode=lax.GatherScatterMode.CLIP,
    )

    def gathered(table, *starts):
        index = jnp.stack([_as_int32(start, max(table.shape)) for start in starts])
        return look_up(table, index)

    shapes = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in eqn.invars]
    return jaxprs.open_jaxpr(jax.make_jaxpr(gathered)(*shapes))


def _as_int32(index: Integer[Array, "..."], most: int) -> Integer[Array, "..."]:
    """Whole numbers as int32; those below 0 or above `most` stay on their side of it."""
    if jnp.iinfo(index.dtype).max <= jnp.iinfo(jnp.int32).max:
        return index.astype(jnp.int32)
    least = 0 if jnp.issubdtype(index.dtype, jnp.unsignedinteger) else -1
    lowest = jnp.asarray(least, index.dtype)
    highest = jnp.asarray(most, index.dtype)
    return jnp.clip(index, lowest, highest).astype(jnp.int32)
