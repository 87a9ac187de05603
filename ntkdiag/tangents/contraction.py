"""A use of a weight, brought to one normal form: J[o][b,i,d] = sum_t a[b,t,i] c[o][b,t,d]."""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from ntkdiag.tangents.arrange import arrange
from ntkdiag.tangents.layout import Layout


@dataclasses.dataclass(frozen=True, eq=False)
class Contraction:
    """One use of a weight in normal form; rules build these from shapes alone.

    Attributes:
        weight: Layout of the weight with visible axes arranged as b axes, i axes, d axes.
        n_axes: How many axes of each kind (b, i, d) `weight` has.
        operand: The other operand -> `a[b t i]` (or, for an embedding, the row indices `[t]`).
        out_shape: Shape the output is brought to before its axes are named (splits feature groups off).
        out_roles: One of "b", "t", "d" for each axis of `out_shape`, in any order.
        kind: "outer", "rows" (the operand is an integer index of a row) or "ones" (a = 1, a bias).
        window: Of a weight beside others, (out_shape of all of them, axis, start of its own part); None for all of it.
    """

    weight: Layout
    n_axes: tuple[int, int, int]
    operand: Callable[[jax.Array], jax.Array]
    out_shape: tuple[int, ...]
    out_roles: tuple[str, ...]
    kind: str = "outer"
    window: tuple[tuple[int, ...], int, int] | None = None

    def sizes(self) -> tuple[int, int, int, int]:
        """(B, T, I, D) of this use, enclosing scans not counted."""
        b, i, _ = self.n_axes
        shape = self.weight.shape
        positions = [s for s, role in zip(self.out_shape, self.out_roles, strict=True) if role == "t"]
        return math.prod(shape[:b]), math.prod(positions), math.prod(shape[b : b + i]), math.prod(shape[b + i :])

    def out_axes(self, role: str) -> tuple[int, ...]:
        """Axes of `out_shape` with this role."""
        return tuple(k for k, r in enumerate(self.out_roles) if r == role)

    def cotangent(self, c: jax.Array) -> jax.Array:
        """Cotangent of the output -> c [b t d]."""
        order = self.out_axes("b") + self.out_axes("t") + self.out_axes("d")
        b, t, _, d = self.sizes()
        if self.window is not None:
            shape, axis, start = self.window
            c = lax.slice_in_dim(c.reshape(shape), start, start + self.out_shape[axis], axis=axis)
        return arrange(c.reshape(self.out_shape), order, (b, t, d))


def bias(of: Contraction, layout: Layout) -> Contraction | None:
    """A parameter added to the output of a contraction: the same c, with a = 1.

    None unless the parameter is repeated exactly along the positions t of that contraction.
    """
    view = layout.reshape(of.out_shape) if of.window is None else None
    if view is None or of.kind != "outer":
        return None
    strides = view.array.strides[view.n_block :]
    repeated = [stride == 0 for stride, size in zip(strides, of.out_shape, strict=True) if size > 1]
    roles = [role for role, size in zip(of.out_roles, of.out_shape, strict=True) if size > 1]
    if any(again != (role == "t") for again, role in zip(repeated, roles, strict=True)):
        return None
    first = view.slice(tuple(slice(0, 1) if role == "t" else slice(None) for role in of.out_roles))
    weight = first.transpose(of.out_axes("b") + of.out_axes("t") + of.out_axes("d"))
    n_axes = (len(of.out_axes("b")), len(of.out_axes("t")), len(of.out_axes("d")))
    b, t, _, _ = of.sizes()
    ones = lambda scale: jnp.broadcast_to(scale, (b, t, 1))
    return Contraction(weight, n_axes, ones, of.out_shape, of.out_roles, "ones")
