"""Tangent factors: the structured Jacobian of one part of the parameters for a block of examples.

Axis letters: n m examples, o p output directions, b blocks, t s positions, i inputs, d outputs of a contraction. Every
array may lack its example axis; it then does not depend on the example and is kept once.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ntkdiag.tangents.positions import add_up
from ntkdiag.tangents.precision import HIGHEST, Precision


def register(*fields: str, static: tuple[str, ...] = ()):
    """Make a dataclass of arrays a pytree."""
    return functools.partial(jax.tree_util.register_dataclass, data_fields=list(fields), meta_fields=list(static))


@register("j")
@dataclasses.dataclass(frozen=True)
class Dense:
    """J[n,o,P] as it is: j [n o P] or [o P]."""

    j: jax.Array

    ndims: ClassVar = {"j": 3}
    cut: ClassVar = "j"
    outputs_axis: ClassVar = -2
    blocks: ClassVar = {}

    @property
    def jacobian_shape(self) -> tuple[int, ...]:
        """(o, P) of one example."""
        return self.j.shape[-2:]

    def take(self, rows: slice) -> "Dense":
        """The factor of some of the examples."""
        return _each(self, lambda array: array[rows])

    def gram(self, other: Any, reduction: str, dot: Precision = HIGHEST) -> jax.Array:
        """Inner products over P."""
        return _inner(self.j, other.j, reduction, dot)

    def dense(self) -> "Dense":
        """Itself."""
        return self


@register("a", "c", static=("ones",))
@dataclasses.dataclass(frozen=True)
class Outer:
    """J[n,o][b,i,d] = sum_t a[n,b,t,i] c[n,o,b,t,d]; with `ones` also that of a bias, where a = 1.

    Shapes: a [n b t i] or [b t i], c [n o b t d] or [o b t d].
    """

    a: jax.Array
    c: jax.Array
    ones: bool = False

    ndims: ClassVar = {"a": 4, "c": 5}
    cut: ClassVar = "c"
    outputs_axis: ClassVar = -4
    blocks: ClassVar = {"a": -3, "c": -3}

    @property
    def jacobian_shape(self) -> tuple[int, int]:
        """(o, P) of one example."""
        *_, o, b, _, d = self.c.shape
        return o, b * d * (self.a.shape[-1] + self.ones)

    def take(self, rows: slice) -> "Outer":
        """The factor of some of the examples."""
        return _each(self, lambda array: array[rows])

    def gram(self, other: Any, reduction: str, dot: Precision = HIGHEST) -> jax.Array:
        """sum over b, t, s of (a a^T + ones) * (c c^T)."""
        one_position = self.c.shape[-2] == 1 == other.c.shape[-2]
        block = self._gram_of_positions if not one_position else self._gram_of_one_position
        n_blocks, of = self.c.shape[-3], lambda b: block(other, b, reduction, dot)
        return jax.lax.fori_loop(1, n_blocks, lambda b, total: total + of(b), of(0)) if n_blocks > 1 else of(0)

    def _gram_of_one_position(self, other: "Outer", b: int, reduction: str, dot: Precision) -> jax.Array:
        """T = 1: the elementwise product of two Gram matrices."""
        a1, a2 = (jnp.atleast_2d(f.a[..., b, 0, :]) for f in (self, other))
        ga = dot.einsum("ni,mi->nm", a1, a2) + float(self.ones)
        gc = _inner(self.c[..., b, 0, :], other.c[..., b, 0, :], reduction, dot)
        shape = {"full": (slice(None), None, slice(None), None), "trace": (...,), "diagonal": (..., None)}
        return ga[shape[reduction]] * gc

    def _gram_of_positions(self, other: "Outer", b: int, reduction: str, dot: Precision) -> jax.Array:
        """T > 1: one row example at a time, so that nothing larger than [o t m p s] exists."""
        a1, c1 = with_examples(self.a[..., b, :, :], 3, self.c[..., b, :, :], 4)
        a2, c2 = with_examples(other.a[..., b, :, :], 3, other.c[..., b, :, :], 4)  # [m s i], [m p s d]

        def row(ac):
            a1, c1 = ac  # [t i], [o t d]
            return _weighted(dot.einsum("ti,msi->tms", a1, a2) + float(self.ones), c1, c2, reduction, dot)

        return jax.lax.map(row, (a1, c1))

    def apart(self) -> "tuple[Outer, Dense]":
        """The weight, and the bias that rides with it formed: both in products of round sizes."""
        bias = add_up(self.c)  # [n o b d]
        return Outer(self.a, self.c), Dense(bias.reshape(*bias.shape[:-2], -1))

    def dense(self) -> Dense:
        """Form J, in the order [b d i]: one batched matrix product; a bias is one more input, the constant 1."""
        a = self.a
        if self.ones:
            a = jnp.concatenate([a, jnp.ones((*a.shape[:-1], 1), a.dtype)], axis=-1)

        def form(c, a):  # [o b t d], [b t i] -> [o b d i]; in this order nothing but c is transposed
            product = jax.lax.dot_general(c, a, (((2,), (1,)), ((1,), (0,))), precision="highest")
            return jnp.swapaxes(product, 0, 1)

        axes = (0 if self.c.ndim == 5 else None, 0 if a.ndim == 4 else None)
        j = (form if axes == (None, None) else jax.vmap(form, in_axes=axes))(self.c, a)
        return Dense(j.reshape(*j.shape[:-3], -1))


@register("index", "c", static=("rows",))
@dataclasses.dataclass(frozen=True)
class Rows:
    """J[n,o][v,d] = sum_t [index[n,t] = v] c[n,o,t,d]: an embedding lookup; index = `rows` stands for no row.

    Shapes: index [n t] or [t], c [n o t d] or [o t d].
    """

    index: jax.Array
    c: jax.Array
    rows: int

    ndims: ClassVar = {"index": 2, "c": 4}
    cut: ClassVar = "c"
    outputs_axis: ClassVar = -3
    blocks: ClassVar = {}

    @property
    def jacobian_shape(self) -> tuple[int, int]:
        """(o, P) of one example."""
        *_, o, _, d = self.c.shape
        return o, self.rows * d

    def take(self, rows: slice) -> "Rows":
        """The factor of some of the examples."""
        return _each(self, lambda array: array[rows])

    def gram(self, other: Any, reduction: str, dot: Precision = HIGHEST) -> jax.Array:
        """sum over t, s with equal rows of c c^T: the outer form whose a a^T is an equality test."""
        index1, c1 = with_examples(self.index, 2, self.c, 4)
        index2, c2 = with_examples(other.index, 2, other.c, 4)  # [m s], [m p s d]

        def row(ic):
            index, c1 = ic  # [t], [o t d]
            own = index[:, None, None]
            same = ((own == index2[None]) & (own < self.rows)).astype(c1.dtype)  # [t m s]
            if reduction != "full":
                return _weighted(same, c1, c2, reduction, dot)
            picked = dot.einsum("tms,mpsd->tdmp", same, c2)  # what the other side holds for the row of position t
            return dot.einsum("otd,tdmp->omp", c1, picked)

        return jax.lax.map(row, (index1, c1))

    def dense(self) -> Dense:
        """Form J by adding rows."""

        def scatter(index, c):  # [t], [o t d] -> [o v d]
            return jnp.zeros((c.shape[0], self.rows, c.shape[-1]), c.dtype).at[:, index].add(c, mode="drop")

        axes = (0 if self.index.ndim == 2 else None, 0 if self.c.ndim == 4 else None)
        j = (scatter if axes == (None, None) else jax.vmap(scatter, in_axes=axes))(self.index, self.c)
        return Dense(j.reshape(*j.shape[:-2], -1))


def join(blocks: list, n: int | None) -> Any:
    """One factor of (the first n) examples of consecutive blocks."""
    first, *others = blocks
    if not others:
        return first
    return _each(first, lambda *arrays: jnp.concatenate(arrays)[:n], *others)


def room(factor: Any, n: int) -> Any:
    """Zeros for the factor of n examples like these, and copies of what is kept once."""
    zeros = _each(factor, lambda array: jnp.zeros((n, *array.shape[1:]), array.dtype))
    return jax.tree.map(lambda new, old: jnp.copy(old) if new is old else new, zeros, factor)


def place(block: Any, factor: Any, start: Any) -> Any:
    """A block with the factor of some of its examples, from `start` on, written in."""
    return _each(block, lambda whole, own: jax.lax.dynamic_update_slice_in_dim(whole, own, start, 0), factor)


def merge(factors: list, multiple: int = 1) -> list:
    """All dense factors as one, side by side, and then the others.

    Args:
        factors: Factors of one example.
        multiple: Zeros fill the dense one up to a multiple of so many columns, if it has more than that.
    """
    dense = [factor.j for factor in factors if isinstance(factor, Dense)]
    others = [factor for factor in factors if not isinstance(factor, Dense)]
    if not dense:
        return others
    columns = sum(j.shape[-1] for j in dense)
    fill = -columns % multiple if columns > multiple else 0
    zeros = [jnp.zeros((*dense[0].shape[:-1], fill), dense[0].dtype)] if fill else []
    return [Dense(jnp.concatenate([*dense, *zeros], axis=-1)), *others]


def _weighted(weight: jax.Array, c1: jax.Array, c2: jax.Array, reduction: str, dot: Precision) -> jax.Array:
    """sum_ts weight[t m s] <c1[o t], c2[m p s]>, reduced over outputs."""
    if reduction == "full":
        return jnp.einsum("tms,omtps->omp", weight, dot.einsum("otd,mpsd->omtps", c1, c2))
    if reduction == "trace":
        return jnp.einsum("tms,tms->m", weight, dot.einsum("otd,mosd->tms", c1, c2))
    return jnp.einsum("tms,omts->mo", weight, dot.einsum("otd,mosd->omts", c1, c2))


def _each(factor: Any, function: Callable, *others: Any) -> Any:
    """`function` of every array that has an example axis, and of the same arrays of other factors."""
    if not hasattr(factor, "ndims"):  # a factor made of factors
        names = [field.name for field in dataclasses.fields(factor)]
        parts = {name: [getattr(f, name) for f in (factor, *others)] for name in names}
        return dataclasses.replace(factor, **{name: _each(f[0], function, *f[1:]) for name, f in parts.items()})
    arrays = {
        name: function(*(getattr(f, name) for f in (factor, *others)))
        for name, ndim in factor.ndims.items()
        if getattr(factor, name).ndim == ndim
    }
    return dataclasses.replace(factor, **arrays)


def with_examples(x: jax.Array, x_ndim: int, y: jax.Array, y_ndim: int) -> tuple[jax.Array, jax.Array]:
    """Give both arrays an example axis of the same length (1 where neither depends on the example)."""
    x, y = (v if v.ndim == ndim else v[None] for v, ndim in ((x, x_ndim), (y, y_ndim)))
    n = max(x.shape[0], y.shape[0])
    return jnp.broadcast_to(x, (n, *x.shape[1:])), jnp.broadcast_to(y, (n, *y.shape[1:]))


def _inner(x: jax.Array, y: jax.Array, reduction: str, dot: Precision) -> jax.Array:
    """Inner products over the last axis of [n o P] or [o P] and the same: one large matrix product."""
    x, y = (v if v.ndim == 3 else v[None] for v in (x, y))
    (n, o, size), (m, p, _) = x.shape, y.shape
    if reduction == "full":
        return dot.einsum("aP,bP->ab", x.reshape(n * o, size), y.reshape(m * p, size)).reshape(n, o, m, p)
    if reduction == "trace":
        return dot.einsum("nP,mP->nm", x.reshape(n, o * size), y.reshape(m, p * size))
    return dot.einsum("noP,moP->nmo", x, y)
