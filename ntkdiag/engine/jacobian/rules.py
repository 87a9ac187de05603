"""Uses of a weight in the normal form that all Jacobians of weights share, and rules that find it.

A weight w that is contracted with an operand h gives an output y = h . w. With c the cotangent of y
and a the operand, both with their axes put into groups,

    J[o][b, i, d] = sum_t a[b, t, i] c[o][b, t, d]

b are blocks (axes of w, h and y: experts, feature groups), t positions (of h and y, but not of w),
i inputs (of h and w) and d outputs (of w and y). A `WeightUse` says which axis of each belongs to
which group. It is made from shapes alone, and applied to arrays when the factors are computed.

There is one rule for each primitive whose weight has such a Jacobian,

    rule(params, side, layout, operand_shape) -> WeightUse | None

of the parameters of the equation, which operand the weight is (0 or 1), the `LeafLayout` of the
weight, and the shape of the other operand. Where it returns None, the use has no structure; the
Jacobian is then an ordinary VJP.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Integer, Shaped

from ntkdiag.engine.jacobian.leaf_layout import LeafLayout
from ntkdiag.jaxtools import jaxprs
from ntkdiag.jaxtools.cpu import arrange
from ntkdiag.jaxtools.jaxprs import Equation, Jaxpr


class Window(NamedTuple):
    """Where the output of one of several weights side by side lies in the output of all."""

    out_shape: tuple[int, ...]  # shape of the output of all of them
    axis: int  # the axis of it along which they stand side by side
    start: int  # where this one begins


@dataclasses.dataclass(frozen=True, eq=False)
class WeightUse:
    """One use of a weight in normal form; rules make these from shapes alone."""

    weight: LeafLayout  # layout of the weight, its axes arranged as b axes, i axes, d axes
    n_axes: tuple[int, int, int]  # how many axes of each kind (b, i, d) `weight` has
    # The other operand -> `a[b t i]`, or, for an embedding, row numbers `[t]`.
    arrange_operand: Callable[..., Shaped[Array, "..."]]
    # Shape the output is brought to before its axes have roles (feature groups split).
    out_shape: tuple[int, ...]
    out_roles: tuple[str, ...]  # "b", "t" or "d" for each axis of `out_shape`, in any order
    # "outer", "rows" (the operand holds numbers of rows) or "ones" (a = 1: a bias).
    kind: Literal["outer", "rows", "ones"] = "outer"
    # For a weight beside others, where its output lies in theirs; None for all of it.
    window: Window | None = None

    def sizes(self) -> tuple[int, int, int, int]:
        """The sizes (B, T, I, D), enclosing scans not counted."""
        b, i, _ = self.n_axes
        shape = self.weight.shape
        positions = [self.out_shape[axis] for axis in self.out_axes("t")]
        blocks = shape[:b]
        inputs = shape[b : b + i]
        outputs = shape[b + i :]
        return math.prod(blocks), math.prod(positions), math.prod(inputs), math.prod(outputs)

    def out_axes(self, role: str) -> tuple[int, ...]:
        """The axes of `out_shape` with a role."""
        return tuple(axis for axis, has in enumerate(self.out_roles) if has == role)

    def arrange_cotangent(self, c: Shaped[Array, "..."]) -> Shaped[Array, "b t d"]:
        """The cotangent of the output as `c[b t d]`."""
        if self.window is not None:
            # This weight's part of the output of all of them.
            shape, axis, start = self.window
            stop = start + self.out_shape[axis]
            c = lax.slice_in_dim(c.reshape(shape), start, stop, axis=axis)
        # [out_shape, in any order of roles] -> [b... t... d...] -> [b t d]
        order = self.out_axes("b") + self.out_axes("t") + self.out_axes("d")
        b, t, _, d = self.sizes()
        return arrange(c.reshape(self.out_shape), order, (b, t, d))


# What a rule is: (parameters of the equation, which operand the weight is, its
# layout, shape of the other operand) -> the use, or None where it has no structure.
Rule: TypeAlias = Callable[[dict[str, Any], int, LeafLayout, tuple[int, ...]], WeightUse | None]


def bias_use(product: WeightUse, layout: LeafLayout) -> WeightUse | None:
    """The use of a parameter that is added to the output of a product: the same c, with a = 1."""
    # `layout` is that of the parameter in the shape of the output. There is a use only where it
    # is repeated along the positions t of that output and along nothing else.
    if product.window is not None or product.kind != "outer":
        return None
    view = layout.reshape(product.out_shape)
    if view is None:
        return None
    # A bias that was repeated along d, or not along t, would not have the cotangent [b t d] summed
    # over t as its derivative.
    for size, stride, role in zip(product.out_shape, view.strides, product.out_roles, strict=True):
        repeated = stride == 0
        if size > 1 and repeated != (role == "t"):
            return None
    # The positions are axes of length 1 of the parameter; they count as its inputs i, of which
    # there is one: a = 1, or the scale of a bias that was scaled.
    first_position = []
    for role in product.out_roles:
        first_position.append(slice(0, 1) if role == "t" else slice(None))
    blocks = product.out_axes("b")
    positions = product.out_axes("t")
    outputs = product.out_axes("d")
    weight = view.select(tuple(first_position)).transpose((*blocks, *positions, *outputs))
    n_axes = (len(blocks), len(positions), len(outputs))
    b, t, _, _ = product.sizes()

    def repeat_over_positions(scale: Shaped[Array | np.ndarray, ""]) -> Shaped[Array, "b t 1"]:
        return jnp.broadcast_to(scale, (b, t, 1))

    return WeightUse(
        weight=weight,
        n_axes=n_axes,
        arrange_operand=repeat_over_positions,
        out_shape=product.out_shape,
        out_roles=product.out_roles,
        kind="ones",
    )


# `dot_general`: what the weight is contracted over are inputs, batch dimensions are blocks.
#
# What remains of the weight are outputs, what remains of the other operand are positions.


def dot_general(
    params: dict[str, Any], side: int, layout: LeafLayout, operand_shape: tuple[int, ...]
) -> WeightUse:
    """The use of a weight w in y = h . w, or y = w . h, over any dimensions."""
    # Letters: w the weight, h the other operand; b, t, i, d the roles of their axes.
    contracted, batch = params["dimension_numbers"]
    w_i, w_b = contracted[side], batch[side]
    h_i, h_b = contracted[1 - side], batch[1 - side]
    w_d = tuple(axis for axis in range(len(layout.shape)) if axis not in w_i + w_b)
    h_t = tuple(axis for axis in range(len(operand_shape)) if axis not in h_i + h_b)
    b = math.prod(operand_shape[axis] for axis in h_b)
    t = math.prod(operand_shape[axis] for axis in h_t)
    i = math.prod(operand_shape[axis] for axis in h_i)

    def arrange_operand(h: Shaped[Array, "..."]) -> Shaped[Array, "b t i"]:
        return arrange(h, h_b + h_t + h_i, (b, t, i))

    # The output has the batch axes, then those that remain of the left operand, then of the right.
    blocks = [("b", operand_shape[axis]) for axis in h_b]
    positions = [("t", operand_shape[axis]) for axis in h_t]
    outputs = [("d", layout.shape[axis]) for axis in w_d]
    if side == 1:
        out = blocks + positions + outputs
    else:
        out = blocks + outputs + positions
    return WeightUse(
        weight=layout.transpose(w_b + w_i + w_d),
        n_axes=(len(w_b), len(w_i), len(w_d)),
        arrange_operand=arrange_operand,
        out_shape=tuple(size for _, size in out),
        out_roles=tuple(role for role, _ in out),
    )


# `conv_general_dilated`: a convolution is a matrix product of patches, and the patches are a.
#
# With g feature groups, window offsets w and channels c, every output position t is
#
#     y[t, g, d] = sum_{w, c} patches[t, w, g, c] kernel[g, w, c, d]
#
# so groups are blocks b, positions (and images) are t, offsets and channels together are inputs i.


def conv_general_dilated(
    params: dict[str, Any], side: int, layout: LeafLayout, operand_shape: tuple[int, ...]
) -> WeightUse | None:
    """The use of a filter with any strides, padding, dilations and feature groups."""
    if side != 1 or params["batch_group_count"] != 1:
        return None
    spec = params["dimension_numbers"]
    groups = params["feature_group_count"]
    out_axis, in_axis, *window_axes = spec.rhs_spec
    n_out = layout.shape[out_axis] // groups
    n_in = layout.shape[in_axis]
    window = tuple(layout.shape[axis] for axis in window_axes)

    # Split the outputs into groups: [... (g d) ...] -> [... g d ...]. Axes after them move by one.
    before = layout.shape[:out_axis]
    after = layout.shape[out_axis + 1 :]
    split = layout.reshape((*before, groups, n_out, *after))
    if split is None:
        return None
    moved_window = [axis + (axis > out_axis) for axis in window_axes]
    moved_in = in_axis + (in_axis > out_axis)
    # -> [g w... c d]
    weight = split.transpose((out_axis, *moved_window, moved_in, out_axis + 1))

    # The image axis and the axes in space, in the order they have in the output.
    out_axis_of = (spec.out_spec[0], *spec.out_spec[2:])
    position_order = tuple(sorted(range(1 + len(window)), key=out_axis_of.__getitem__))

    def arrange_operand(h: Shaped[Array, "..."]) -> Shaped[Array, "g t i"]:
        """The patches of an image as a: groups are blocks, (w c) inputs."""
        order = (spec.lhs_spec[0], *spec.lhs_spec[2:], spec.lhs_spec[1])
        h = _reorder(h, order)  # -> [n space... (g c)]
        patches = _patches(h, window, params)  # -> [n space'... w... (g c)]
        # Positions t have to run as they do in the cotangent of the output.
        rest = range(len(position_order), patches.ndim)
        patches = _reorder(patches, (*position_order, *rest))
        t = math.prod(patches.shape[: 1 + len(window)])
        w = math.prod(window)
        patches = patches.reshape(t, w, groups, n_in)
        return arrange(patches, (2, 0, 1, 3), (groups, t, w * n_in))  # [t w g c] -> [g t (w c)]

    # The output has its features split into groups, and positions on all other axes.
    position_sizes = _position_sizes(operand_shape, window, params)
    out_shape = []
    out_roles = []
    for axis in range(len(operand_shape)):
        if axis == spec.out_spec[1]:
            out_shape += [groups, n_out]
            out_roles += ["b", "d"]
        else:
            out_shape += [position_sizes[axis]]
            out_roles += ["t"]
    return WeightUse(
        weight=weight,
        n_axes=(1, len(window) + 1, 1),
        arrange_operand=arrange_operand,
        out_shape=tuple(out_shape),
        out_roles=tuple(out_roles),
    )


def _reorder(x: Shaped[Array, "..."], order: tuple[int, ...]) -> Shaped[Array, "..."]:
    """Transpose to an order of axes."""
    return arrange(x, order, tuple(x.shape[axis] for axis in order))


def _position_sizes(
    operand_shape: tuple[int, ...], window: tuple[int, ...], params: dict[str, Any]
) -> dict[int, int]:
    """The sizes of the output axes but the feature axis, by axis."""
    spec = params["dimension_numbers"]
    sizes = {spec.out_spec[0]: operand_shape[spec.lhs_spec[0]]}
    for k, width in enumerate(window):
        low, high = params["padding"][k]
        size = operand_shape[spec.lhs_spec[2 + k]]
        padded = _dilated(size, params["lhs_dilation"][k]) + low + high
        last = _last_start(padded, width, params["rhs_dilation"][k])
        sizes[spec.out_spec[2 + k]] = last // params["window_strides"][k] + 1
    return sizes


def _dilated(size: int, dilation: int) -> int:
    """The size of an axis with `dilation - 1` gaps between neighbours."""
    return (size - 1) * dilation + 1 if size else 0


def _last_start(size: int, width: int, dilation: int) -> int:
    """Where the last window may begin; -1 where there is no room for one."""
    return max(-1, size - _dilated(width, dilation))


def _patches(
    h: Shaped[Array, "n *space c"], window: tuple[int, ...], params: dict[str, Any]
) -> Shaped[Array, "n *positions_window c"]:
    """What each window sees: [n space... c] -> [n space'... window... c]."""
    # Axis by axis, one strided slice for each offset in the window is put beside the others:
    # `lax.conv_general_dilated_patches`, a convolution with an identity kernel, costs 10 to 40
    # times as much on a CPU.
    #
    # Pad in space and spread the entries out (lhs_dilation): (low, high, zeros in between).
    padding = [(0, 0, 0)]
    for (low, high), dilation in zip(params["padding"], params["lhs_dilation"], strict=True):
        padding.append((low, high, dilation - 1))
    padding.append((0, 0, 0))
    h = lax.pad(h, jnp.zeros((), h.dtype), padding)
    channels = h.shape[-1]
    # From the last axis in space to the first, each offset of the window becomes the outermost part
    # of the last axis, so that in the end it is (window... c).
    for k in reversed(range(len(window))):
        axis = 1 + k
        dilation = params["rhs_dilation"][k]
        stride = params["window_strides"][k]
        last = _last_start(h.shape[axis], window[k], dilation)
        axes_before = (slice(None),) * axis
        slices = []
        for offset in range(0, window[k] * dilation, dilation):
            slices.append(h[(*axes_before, slice(offset, offset + last + 1, stride))])
        h = jnp.concatenate(slices, axis=-1)
    return h.reshape(*h.shape[:-1], *window, channels)


# `gather` of whole rows: an embedding lookup, whose one-hot operand is never built.
#
# A table w [v0 ... vk d...] is looked up along its leading axes v0 ... vk by integers [... j],
# one column for each of these axes. With v the axes v0 ... vk as one,
#
#     J[o][v, d] = sum_t [index[t] = v] c[o][t, d]
#
# so all that is kept of the operand is the row number of each position. Under a filling mode,
# numbers out of range belong to no row: the lookup has no gradient there.


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
            entry = jnp.zeros_like(row)
            if axis in columns:
                entry = index[:, columns.index(axis)]
            # An axis that is kept whole can only be taken from its beginning.
            last = size - 1 if axis < first_kept else 0
            inside &= (entry >= 0) & (entry <= last)
            if axis < first_kept:
                row = row * size + jnp.clip(entry, 0, last)
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
    numbers = lax.GatherDimensionNumbers(axes, (), axes)

    def gathered(table, *starts):
        index = jnp.stack([_as_int32(start, max(table.shape)) for start in starts])
        return lax.gather(table, index, numbers, slice_sizes, mode=lax.GatherScatterMode.CLIP)

    shapes = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in eqn.invars]
    return jaxprs.open_jaxpr(jax.make_jaxpr(gathered)(*shapes))


def _as_int32(index: Integer[Array, "..."], most: int) -> Integer[Array, "..."]:
    """Integers as int32; those below 0 or above `most` stay out of range, on their side."""
    if jnp.iinfo(index.dtype).max <= jnp.iinfo(jnp.int32).max:
        return index.astype(jnp.int32)
    least = 0 if jnp.issubdtype(index.dtype, jnp.unsignedinteger) else -1
    lowest = jnp.asarray(least, index.dtype)
    highest = jnp.asarray(most, index.dtype)
    return jnp.clip(index, lowest, highest).astype(jnp.int32)


# `ragged_dot`: rewritten as a product over all groups with masked rows.
#
# JAX can batch neither `ragged_dot` nor its derivatives, so it runs as the batched product that it
# stands for. Its weights are then ordinary weights with one block for each group.


# y[t] = h[t] . w[group of t]: h [t i] and w [g i d] are contracted over i.
_PLAIN_DIMENSIONS = (((1,), (1,)), ((), ()))
_BY_GROUP = (((2,), (1,)), ((0,), (0,)))


def masked_dot(eqn: Equation) -> tuple[Jaxpr, list] | None:
    """A jaxpr of y[t] = h[t] . w[group of t] and its constants; None for other dimensions."""
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    contracted, batch = numbers.dot_dimension_numbers
    dimensions = tuple(map(tuple, contracted)), tuple(map(tuple, batch))
    is_plain = dimensions == _PLAIN_DIMENSIONS and tuple(numbers.lhs_ragged_dimensions) == (0,)
    if not is_plain or eqn.params["group_offset"] is not None:
        return None
    dtype, precision = eqn.outvars[0].aval.dtype, eqn.params["precision"]

    def product(
        h: Float[Array, "t i"], w: Float[Array, "g i d"], sizes: Integer[Array, " g"]
    ) -> Float[Array, "t d"]:
        ends = jnp.cumsum(sizes)
        position = jnp.arange(h.shape[0])
        member = (position < ends[:, None]) & (position >= (ends - sizes)[:, None])  # [g t]
        rows = jnp.where(member[..., None], h, jnp.zeros((), h.dtype))  # [g t i]
        # [g t i] . [g i d] -> [g t d] -> [t d]
        return lax.dot_general(rows, w, _BY_GROUP, precision, dtype).sum(0)

    shapes = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in eqn.invars]
    return jaxprs.open_jaxpr(jax.make_jaxpr(product)(*shapes))


# Primitive -> what an equation of it is rewritten as, before the walk looks at it.
REWRITES = {"ragged_dot_general": masked_dot, "ragged_dot": masked_dot}

# Primitive -> its rule.
RULES = {"dot_general": dot_general, "conv_general_dilated": conv_general_dilated, "gather": gather}
