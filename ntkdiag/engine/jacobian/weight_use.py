"""One use of a weight, brought to the normal form in which all of them have the same Jacobian.

A weight w that is contracted with an operand h gives an output y = h . w. With c the cotangent of y
and a the operand, both with their axes put into groups,

    J[o][b, i, d] = sum_t a[b, t, i] c[o][b, t, d]

b are blocks (axes of w, h and y: experts, feature groups), t positions (of h and y, but not of w),
i inputs (of h and w) and d outputs (of w and y). A `WeightUse` says which axis of each belongs to
which group. It is made from shapes alone, and applied to arrays when the factors are computed.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Shaped

from ntkdiag.engine.jacobian.leaf_layout import LeafLayout
from ntkdiag.jaxtools.cpu import arrange


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
            # The part of the output of all weights side by side that is that of this one.
            shape, axis, start = self.window
            stop = start + self.out_shape[axis]
            c = lax.slice_in_dim(c.reshape(shape), start, stop, axis=axis)
        # [out_shape, in any order of roles] -> [b... t... d...] -> [b t d]
        order = self.out_axes("b") + self.out_axes("t") + self.out_axes("d")
        b, t, _, d = self.sizes()
        return arrange(c.reshape(self.out_shape), order, (b, t, d))


# What a rule is (see `rules`): (parameters of the equation, which operand the weight is, its
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
    # there is one: a = 1.
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
