"""Tangent factors: the structured Jacobian of one parameter leaf for a block of examples.

Axis letters: n m examples, o p outputs, b blocks, t s positions, i inputs, d outputs of a contraction. Every array may
lack its example axis; it then does not depend on the example and is kept once.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

REDUCTIONS = ("full", "trace", "diagonal")


def _register(*fields: str, static: tuple[str, ...] = ()):
    return functools.partial(jax.tree_util.register_dataclass, data_fields=list(fields), meta_fields=list(static))


@_register("j")
@dataclasses.dataclass(frozen=True)
class Dense:
    """J[n,o,P] as it is."""

    j: jax.Array

    def take(self, rows: slice) -> "Dense":
        """The factor of some of the examples."""
        return Dense(_take(self.j, 3, rows))

    def gram(self, other: "Dense", reduction: str) -> jax.Array:
        """Inner products over P."""
        return _inner(self.j, other.j, reduction)


@_register("a", "c", static=("ones",))
@dataclasses.dataclass(frozen=True)
class Outer:
    """J[n,o][b,i,d] = sum_t a[n,b,t,i] c[n,o,b,t,d]; with `ones`, also that of a bias, where a = 1.

    Shapes: a [n b t i] or [b t i], c [n o b t d] or [o b t d].
    """

    a: jax.Array
    c: jax.Array
    ones: bool = False

    def take(self, rows: slice) -> "Outer":
        """The factor of some of the examples."""
        return Outer(_take(self.a, 4, rows), _take(self.c, 5, rows), self.ones)

    def gram(self, other: "Outer", reduction: str) -> jax.Array:
        """Sum over b, t, s of (a a^T + ones) * (c c^T)."""
        blocks = [
            self._block(other, b, reduction) if self.c.shape[-2] > 1 else self._block_of_one(other, b, reduction)
            for b in range(self.c.shape[-3])
        ]
        return functools.reduce(jnp.add, blocks)

    def _block_of_one(self, other: "Outer", b: int, reduction: str) -> jax.Array:
        """T = 1: the product of two Gram matrices."""
        a1, a2 = (jnp.atleast_2d(f.a[..., b, 0, :]) for f in (self, other))
        ga = _matmul(a1, a2.T) + float(self.ones)  # [n m]
        gc = _inner(self.c[..., b, 0, :], other.c[..., b, 0, :], reduction)
        if reduction == "trace":
            return ga * gc
        if reduction == "diagonal":
            return ga[..., None] * gc
        return ga[:, None, :, None] * gc

    def _block(self, other: "Outer", b: int, reduction: str) -> jax.Array:
        """T > 1: one row example at a time, so that nothing larger than [o t m p s] exists."""
        a1, c1 = _with_examples(self.a[..., b, :, :], 3, self.c[..., b, :, :], 4)
        a2, c2 = _with_examples(other.a[..., b, :, :], 3, other.c[..., b, :, :], 4)  # [m s i], [m p s d]
        ones = float(self.ones)

        def row(ac):
            a1, c1 = ac  # [t i], [o t d]
            ga = jnp.einsum("ti,msi->tms", a1, a2, precision="highest") + ones
            if reduction == "full":
                gc = jnp.einsum("otd,mpsd->omtps", c1, c2, precision="highest")
                return jnp.einsum("tms,omtps->omp", ga, gc, precision="highest")
            if reduction == "trace":
                gc = jnp.einsum("otd,mosd->tms", c1, c2, precision="highest")
                return jnp.einsum("tms,tms->m", ga, gc, precision="highest")
            gc = jnp.einsum("otd,mosd->omts", c1, c2, precision="highest")
            return jnp.einsum("tms,omts->mo", ga, gc, precision="highest")

        return jax.lax.map(row, (a1, c1))

    def dense(self) -> list[Dense]:
        """Form J: one batched matrix product per leaf."""
        j = jnp.einsum("...bti,...obtd->...obid", self.a, self.c, precision="highest")
        lead = j.shape[: j.ndim - 3]
        weights = [Dense(j.reshape(*lead, -1))]
        if self.ones:
            weights.append(Dense(self.c.sum(-2).reshape(*self.c.shape[:-3], -1)))
        return weights


@_register("index", "c", static=("rows",))
@dataclasses.dataclass(frozen=True)
class Rows:
    """J[n,o][v,d] = sum_t [index[n,t] = v] c[n,o,t,d]: an embedding lookup; index = `rows` stands for no row."""

    index: jax.Array
    c: jax.Array
    rows: int

    def take(self, rows: slice) -> "Rows":
        """The factor of some of the examples."""
        return Rows(_take(self.index, 2, rows), _take(self.c, 4, rows), self.rows)

    def gram(self, other: "Rows", reduction: str) -> jax.Array:
        """Sum over t, s with equal rows of c c^T: the outer form whose a a^T is an equality test."""
        index1, c1 = _with_examples(self.index, 2, self.c, 4)
        index2, c2 = _with_examples(other.index, 2, other.c, 4)

        def row(ic):
            index, c1 = ic  # [t], [o t d]
            same = (index[:, None, None] == index2) & (index[:, None, None] < self.rows)  # [t m s]
            if reduction == "full":
                # rows of the other side that match position t, summed: [t m p d]
                picked = jnp.einsum("tms,mpsd->tmpd", same.astype(c1.dtype), c2, precision="highest")
                return jnp.einsum("otd,tmpd->omp", c1, picked, precision="highest")
            if reduction == "trace":
                gc = jnp.einsum("otd,mosd->tms", c1, c2, precision="highest")
                return jnp.einsum("tms,tms->m", same.astype(c1.dtype), gc, precision="highest")
            gc = jnp.einsum("otd,mosd->omts", c1, c2, precision="highest")
            return jnp.einsum("tms,omts->mo", same.astype(c1.dtype), gc, precision="highest")

        return jax.lax.map(row, (index1, c1))

    def dense(self) -> list[Dense]:
        """Form J by adding rows."""

        def scatter(index, c):  # [t], [o t d] -> [o v d]
            zeros = jnp.zeros((c.shape[0], self.rows, c.shape[-1]), c.dtype)
            return zeros.at[:, index].add(c, mode="drop")

        index, c = self.index, self.c
        if index.ndim == 2 or c.ndim == 4:
            axes = (0 if index.ndim == 2 else None, 0 if c.ndim == 4 else None)
            scatter = jax.vmap(scatter, in_axes=axes)
        j = scatter(index, c)
        return [Dense(j.reshape(*j.shape[:-2], -1))]


Factor = Dense | Outer | Rows


def _take(x: jax.Array, ndim: int, rows: slice) -> jax.Array:
    return x[rows] if x.ndim == ndim else x


def _with_examples(x: jax.Array, x_ndim: int, y: jax.Array, y_ndim: int) -> tuple[jax.Array, jax.Array]:
    """Give both arrays an example axis of the same length (1 where neither depends on the example)."""
    x, y = (v if v.ndim == ndim else v[None] for v, ndim in ((x, x_ndim), (y, y_ndim)))
    n = max(x.shape[0], y.shape[0])
    return jnp.broadcast_to(x, (n, *x.shape[1:])), jnp.broadcast_to(y, (n, *y.shape[1:]))


def _matmul(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.matmul(x, y, precision="highest")


def _inner(x: jax.Array, y: jax.Array, reduction: str) -> jax.Array:
    """Inner products over the last axis of [n o P] or [o P] and the same: one large matrix product."""
    x, y = (v if v.ndim == 3 else v[None] for v in (x, y))
    (n, o, size), (m, p, _) = x.shape, y.shape
    if reduction == "full":
        return _matmul(x.reshape(n * o, size), y.reshape(m * p, size).T).reshape(n, o, m, p)
    if reduction == "trace":
        return _matmul(x.reshape(n, o * size), y.reshape(m, p * size).T)
    return jnp.einsum("noP,moP->nmo", x, y, precision="highest")
