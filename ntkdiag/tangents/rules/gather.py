"""`gather` of whole rows: an embedding lookup, whose one-hot operand is never built."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ntkdiag import _compat
from ntkdiag.tangents.contraction import Contraction
from ntkdiag.tangents.layout import Layout


def gather(params: dict, position: int, layout: Layout, other: tuple[int, ...]) -> Contraction | None:
    """Weight [v0 ... vk ...] looked up along its leading axes by integer indices [... j], one column for each axis.

    Indices of axes that are taken whole are 0, or made so. Indices out of range under a filling mode belong to no row:
    the lookup has no gradient there.
    """
    numbers, sizes, shape = params["dimension_numbers"], tuple(params["slice_sizes"]), layout.shape
    collapsed, columns = tuple(numbers.collapsed_slice_dims), tuple(numbers.start_index_map)
    whole = [size == full for size, full in zip(sizes, shape, strict=True)]
    n = max([axis + 1 for axis in range(len(shape)) if axis in collapsed or not whole[axis]], default=0)
    leading = n > 0 and all(size == 1 for size in sizes[:n]) and all(whole[n:])
    if position != 0 or not leading or numbers.operand_batching_dims or math.prod(shape) == 0:
        return None
    fill = params["mode"] == lax.GatherScatterMode.FILL_OR_DROP
    total = math.prod(shape[:n])

    def operand(index):
        index = _as_int32(index.reshape(-1, len(columns)), max(shape))
        row, inside = jnp.zeros(index.shape[:1], jnp.int32), jnp.ones(index.shape[:1], bool)
        for axis, size in enumerate(shape):
            own = index[:, columns.index(axis)] if axis in columns else jnp.zeros_like(row)
            most = size - 1 if axis < n else 0
            inside &= (own >= 0) & (own <= most)
            row = row * size + jnp.clip(own, 0, most) if axis < n else row
        return jnp.where(inside, row, total) if fill else row  # one more row stands for "no row"

    positions, offsets = iter(other[:-1]), iter([axis for axis in range(len(shape)) if axis not in collapsed])
    out: list[tuple[int, str]] = []
    for k in range(len(other) - 1 + len(shape) - len(collapsed)):
        if k not in numbers.offset_dims:
            out.append((next(positions), "t"))
        else:
            axis = next(offsets)
            out.append((sizes[axis], "t" if axis < n else "d"))
    out_shape, roles = zip(*out, strict=True) if out else ((), ())
    return Contraction(layout, (0, n, len(shape) - n), operand, tuple(out_shape), tuple(roles), "rows")


def as_gather(eqn: Any) -> tuple[Any, list]:
    """A `dynamic_slice` as the `gather` that it becomes under `jax.vmap`, as a jaxpr of the same inputs."""
    rank = len(eqn.params["slice_sizes"])
    numbers = lax.GatherDimensionNumbers(tuple(range(rank)), (), tuple(range(rank)))
    look_up = functools.partial(
        lax.gather, dimension_numbers=numbers, slice_sizes=eqn.params["slice_sizes"], mode=lax.GatherScatterMode.CLIP
    )

    def gathered(operand, *starts):
        return look_up(operand, jnp.stack([_as_int32(start, max(operand.shape)) for start in starts]))

    shapes = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in eqn.invars]
    return _compat.open_jaxpr(jax.make_jaxpr(gathered)(*shapes))


def _as_int32(index: Any, most: int) -> Any:
    """Indices as int32; those out of range stay so, and on their side of it."""
    if jnp.iinfo(index.dtype).max <= jnp.iinfo(jnp.int32).max:
        return index.astype(jnp.int32)
    least = 0 if jnp.issubdtype(index.dtype, jnp.unsignedinteger) else -1
    return jnp.clip(index, jnp.asarray(least, index.dtype), jnp.asarray(most, index.dtype)).astype(jnp.int32)
