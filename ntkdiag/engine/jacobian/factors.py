"""Tangent factors: the Jacobian of one part of the parameters, for a block of examples.

A factor stands for J[n, o, P], and its `gram` with that of the column examples is their term of the
kernel,

    K[n, o, m, p] = sum_P J[n, o, P] J'[m, p, P]

computed from the arrays it is made of. Axis letters: n m examples, o p output directions, b blocks,
t s positions, i inputs and d outputs of a contraction, v rows of a table, P parameters.

| factor  | J[n, o]                                          | product of two                    |
|---------|--------------------------------------------------|-----------------------------------|
| `Dense` | j[n, o, P]                                       | j j'^T                            |
| `Outer` | [b, i, d] = sum_t a[n, b, t, i] c[n, o, b, t, d] | sum_bts (a a'^T)(c c'^T)          |
| `Rows`  | [v, d] = sum_t [index[n, t] = v] c[n, o, t, d]   | sum_ts [index = index'] (c c'^T)  |
| `Tied`  | a `Rows` and an `Outer` of one table             | like with like, and across        |

An array that does not depend on the example lacks its example axis and is kept once. Products are
reduced over outputs as they are made: "full" keeps [n o m p], "trace" sums over o = p to [n m],
"diagonal" keeps o = p as [n m o].
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, PyTree, Shaped

from ntkdiag.jaxtools.cpu import sum_positions
from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.kernel.reduction import MIRROR, Contraction

Index = int | Integer[Array, ""]


# Of a field that is no array.
_STATIC = {"static": True}

# JAX also builds such trees of shapes, axes or None in place of arrays, which is why the types of
# the fields below allow a `PyTree`.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dense:
    """The Jacobian J[n, o, P] as it is."""

    j: Float[Array, "*n o P"] | PyTree  # `[n o P]` or `[o P]`

    # For each array its number of axes where it depends on the example.
    batched_ndims: ClassVar = {"j": 3}
    # The array that is cut into chunks where a Jacobian is formed while it is contracted, and where
    # in it the output directions are; for each array with blocks the axis they are on.
    streamed_array: ClassVar = "j"
    output_axis: ClassVar = -2
    block_axes: ClassVar = {}

    @property
    def jacobian_shape(self) -> tuple[int, int]:
        """The shape (o, P) of the Jacobian of one example."""
        *_, o, n_params = self.j.shape
        return o, n_params

    def gram(self, columns: "Factor", contraction: Contraction) -> Float[Array, "..."]:
        """The product with the factor of column examples: one large matrix product over P."""
        assert isinstance(columns, Dense)
        return _inner_products(self.j, columns.j, contraction)

    def dense(self) -> "Dense":
        """The factor with its Jacobian formed: this one."""
        return self


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Outer:
    """A sum of outer products, J[n, o][b, i, d] = sum_t a[n, b, t, i] c[n, o, b, t, d]."""

    # Two letters, n and m, for the one axis of examples: either array may lack it.
    a: Float[Array, "*n b t i"] | PyTree  # what goes into the contraction, `[n b t i]` or `[b t i]`
    # The cotangents of what comes out of it, `[n o b t d]` or `[o b t d]`.
    c: Float[Array, "*m o b t d"] | PyTree
    # Whether the Jacobian of a bias rides along: that of one more input, a = 1.
    has_bias: bool = dataclasses.field(default=False, metadata=_STATIC)

    batched_ndims: ClassVar = {"a": 4, "c": 5}
    streamed_array: ClassVar = "c"
    output_axis: ClassVar = -4
    block_axes: ClassVar = {"a": -3, "c": -3}

    @property
    def jacobian_shape(self) -> tuple[int, int]:
        """The shape (o, P) of the Jacobian of one example."""
        *_, o, b, _, d = self.c.shape
        return o, b * d * (self.a.shape[-1] + self.has_bias)

    def gram(self, columns: "Factor", contraction: Contraction) -> Float[Array, "..."]:
        """The product with the factor of column examples."""
        # It is the sum over b, t, s of (a a'^T + has_bias) * (c c'^T), where * is
        # elementwise.
        assert isinstance(columns, Outer)
        # For T = 1 the sums over t and s are gone, and both Grams are plain matrix products.
        one_position = self.c.shape[-2] == 1 == columns.c.shape[-2]
        gram_of_block = self._gram_of_positions
        if one_position:
            gram_of_block = self._gram_of_one_position

        def add_block(b, total):
            return total + gram_of_block(columns, b, contraction)

        of_first_block = gram_of_block(columns, 0, contraction)
        n_blocks = self.c.shape[-3]
        if n_blocks <= 1:
            return of_first_block
        # A loop rather than one product with a batch axis: no more than one block at a time exists.
        return jax.lax.fori_loop(1, n_blocks, add_block, of_first_block)

    def _gram_of_one_position(
        self, columns: "Outer", b: Index, contraction: Contraction
    ) -> Float[Array, "..."]:
        """The product of block b where T = 1: two Gram matrices, multiplied element by element."""
        a1 = jnp.atleast_2d(self.a[..., b, 0, :])  # [n b t i] -> [n i]
        a2 = jnp.atleast_2d(columns.a[..., b, 0, :])  # [m b s i] -> [m i]
        # The bias is one more input with a = 1 on both sides: it adds 1 to every product.
        gram_of_a = _einsum("ni,mi->nm", a1, a2) + float(self.has_bias)
        c1 = self.c[..., b, 0, :]  # [n o b t d] -> [n o d]
        c2 = columns.c[..., b, 0, :]  # [m p b s d] -> [m p d]
        gram_of_c = _inner_products(c1, c2, contraction)
        # Axes of length 1 stand for the output directions that a a^T does not depend on.
        if contraction == "full":
            gram_of_a = gram_of_a[:, None, :, None]  # [n m] -> [n 1 m 1]
        elif contraction == "diagonal":
            gram_of_a = gram_of_a[..., None]  # [n m] -> [n m 1]
        return gram_of_a * gram_of_c

    def _gram_of_positions(
        self, columns: "Outer", b: Index, contraction: Contraction
    ) -> Float[Array, "..."]:
        """The product of block b where T > 1."""
        # One row example at a time, so that no array is larger than [o t m p s]. Block b of the
        # rows, [n t i] and [n o t d], and of the columns, [m s i] and [m p s d].
        a1, c1 = _with_examples(self.a[..., b, :, :], 3, self.c[..., b, :, :], 4)
        a2, c2 = _with_examples(columns.a[..., b, :, :], 3, columns.c[..., b, :, :], 4)

        def gram_of_row(row):
            a1, c1 = row  # [t i], [o t d]
            # [t i] [m s i] -> [t m s]; a bias adds 1 as above.
            weight = _einsum("ti,msi->tms", a1, a2) + float(self.has_bias)
            return _weighted_inner_products(weight, c1, c2, contraction)

        return jax.lax.map(gram_of_row, (a1, c1))

    def split_bias(self) -> tuple["Outer", Dense]:
        """The weight alone, and the bias formed: products of both then have round sizes."""
        bias = sum_positions(self.c)  # [n o b t d] -> [n o b d]
        return Outer(self.a, self.c), Dense(bias.reshape(*bias.shape[:-2], -1))

    def dense(self) -> Dense:
        """The factor with its Jacobian formed, in the order [b d i]: one batched matrix product."""
        a = self.a
        if self.has_bias:
            ones = jnp.ones((*a.shape[:-1], 1), a.dtype)
            a = jnp.concatenate([a, ones], axis=-1)  # [n b t i+1]

        def form(c: Float[Array, "o b t d"], a: Float[Array, "b t i"]) -> Float[Array, "o b d i"]:
            # [b o d i], contracted over t. In the order d i nothing but c is transposed.
            product = jax.lax.dot_general(c, a, (((2,), (1,)), ((1,), (0,))), precision="highest")
            return jnp.swapaxes(product, 0, 1)

        j = _vmap_examples(form, (self.c, 5), (a, 4))
        return Dense(j.reshape(*j.shape[:-3], -1))  # [n o b d i] -> [n o P]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rows:
    """An embedding lookup, J[n, o][v, d] = sum_t [index[n, t] = v] c[n, o, t, d]."""

    # Number of the row for each position, `[n t]` or `[t]`; `n_rows` stands for no row.
    index: Integer[Array, "*n t"] | PyTree
    # The cotangents of the rows looked up, `[n o t d]` or `[o t d]`.
    c: Float[Array, "*m o t d"] | PyTree
    n_rows: int = dataclasses.field(metadata=_STATIC)  # how many rows the table has

    batched_ndims: ClassVar = {"index": 2, "c": 4}
    streamed_array: ClassVar = "c"
    output_axis: ClassVar = -3
    block_axes: ClassVar = {}

    @property
    def jacobian_shape(self) -> tuple[int, int]:
        """The shape (o, P) of the Jacobian of one example."""
        *_, o, _, d = self.c.shape
        return o, self.n_rows * d

    def gram(self, columns: "Factor", contraction: Contraction) -> Float[Array, "..."]:
        """The product with the factor of column examples."""
        # It is that of an `Outer` whose a a'^T is an equality test of row numbers.
        assert isinstance(columns, Rows)
        index1, c1 = _with_examples(self.index, 2, self.c, 4)  # [n t], [n o t d]
        index2, c2 = _with_examples(columns.index, 2, columns.c, 4)  # [m s], [m p s d]

        def gram_of_row(row):
            index, c1 = row  # [t], [o t d]
            index = index[:, None, None]  # [t] -> [t 1 1], against [1 m s]
            looked_up_in_both = (index == index2[None]) & (index < self.n_rows)  # [t m s]
            weight = looked_up_in_both.astype(c1.dtype)
            if contraction != "full":
                return _weighted_inner_products(weight, c1, c2, contraction)
            # Where all directions are paired, inner products of all positions would cost more, T^2
            # k^2 D of them. So the columns are summed up first, by the row of each position: [t m
            # s] [m p s d] -> [t d m p], then [o t d] [t d m p] -> [o m p].
            columns_by_position = _einsum("tms,mpsd->tdmp", weight, c2)
            return _einsum("otd,tdmp->omp", c1, columns_by_position)

        return jax.lax.map(gram_of_row, (index1, c1))

    def dense(self) -> Dense:
        """The factor with its Jacobian formed, by adding rows to zeros."""

        def form(index: Integer[Array, " t"], c: Float[Array, "o t d"]) -> Float[Array, "o v d"]:
            o, _, d = c.shape
            # With mode="drop" the number n_rows, which stands for no row, adds to none.
            zeros = jnp.zeros((o, self.n_rows, d), c.dtype)
            return zeros.at[:, index].add(c, mode="drop")

        j = _vmap_examples(form, (self.index, 2), (self.c, 4))
        return Dense(j.reshape(*j.shape[:-2], -1))  # [n o v d] -> [n o P]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tied:
    """The Jacobian of a table [v d] that is looked up and multiplied by."""

    rows: Rows | PyTree  # that of the look-ups
    # That of the products, whose inputs i are the columns and whose outputs d the rows.
    outer: Outer | PyTree

    def gram(self, columns: "Factor", contraction: Contraction) -> Float[Array, "..."]:
        """The product with the factor of column examples."""
        # With J = R + W, look-ups and products, it is R R'^T + W W'^T + R W'^T + W R'^T.
        assert isinstance(columns, Tied)
        lookups = self.rows.gram(columns.rows, contraction)
        products = self.outer.gram(columns.outer, contraction)
        # R W'^T, and W R'^T as the transpose of R' W^T.
        across = _cross_gram(self.rows, columns.outer, contraction)
        across_transposed = _cross_gram(columns.rows, self.outer, contraction)
        return lookups + products + across + across_transposed.transpose(MIRROR[contraction])

    def dense(self) -> Dense:
        """The factor with its Jacobian formed."""
        return Dense(self.rows.dense().j + self.outer.dense().j)


Factor: TypeAlias = Dense | Outer | Rows | Tied
_Kind = TypeVar("_Kind", bound=Factor)


def take_examples(factor: _Kind, examples: slice) -> _Kind:
    """The factor of some of the examples."""
    return _map_batched(lambda array: array[examples], factor)


def concatenate_examples(blocks: Sequence[_Kind], n: int | None) -> _Kind:
    """One factor of (the first n) examples of consecutive blocks of examples."""
    if len(blocks) == 1:
        return blocks[0]

    def join(*arrays):
        # The last block is cut before, not all of them after: that would be a second copy.
        *before, last = arrays
        kept = None if n is None else n - sum(array.shape[0] for array in before)
        return jnp.concatenate([*before, last[:kept]])

    return _map_batched(join, *blocks)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Piece:
    """What is kept of one part, or of several that stand side by side."""

    way: str = dataclasses.field(metadata=_STATIC)  # how it is contracted, the name of a `Way`
    factor: Factor | PyTree  # the arrays


def zeros_for_examples(pieces: list[Piece], n: int) -> list[Piece]:
    """Zeros for the pieces of n examples like these, and copies of what is kept once."""
    # Copies, because their memory is donated when examples are written into them.

    def zeros_like_n(array):
        return jnp.zeros((n, *array.shape[1:]), array.dtype)

    zeros = [_map_batched(zeros_like_n, piece) for piece in pieces]

    def copy_if_kept_once(new, old):
        # What has no example axis comes through `_map_batched` as it is: the same object.
        return jnp.copy(old) if new is old else new

    return jax.tree.map(copy_if_kept_once, zeros, pieces)


def write_examples(block: list[Piece], pieces: list[Piece], start: Index) -> list[Piece]:
    """A block of examples with the pieces of some of them, from `start` on, written into it."""

    def write(of_block, of_examples):
        return jax.lax.dynamic_update_slice_in_dim(of_block, of_examples, start, 0)

    return [_map_batched(write, *pair) for pair in zip(block, pieces, strict=True)]


def merge_dense(pieces: list[Piece], multiple: int) -> list[Piece]:
    """All dense pieces of one example as one, and then the others."""
    # The product of Jacobians side by side is the sum of their products, as one large product.
    jacobians = [piece.factor.j for piece in pieces if isinstance(piece.factor, Dense)]
    structured = [piece for piece in pieces if not isinstance(piece.factor, Dense)]
    if not jacobians:
        return structured
    # Columns of zeros change no product.
    n_columns = sum(j.shape[-1] for j in jacobians)
    n_missing = -n_columns % multiple
    if n_columns > multiple and n_missing:
        first = jacobians[0]
        jacobians.append(jnp.zeros((*first.shape[:-1], n_missing), first.dtype))
    return [Piece("dense", Dense(jnp.concatenate(jacobians, axis=-1))), *structured]


# Any: factors or pieces, all of one kind, and the result is of that kind too.
def _map_batched(function: Callable[..., Array], factor: Any, *more: Any) -> Any:
    """Apply a function to every array with an example axis, of one factor or of several."""
    if isinstance(factor, Piece):
        factors = (piece.factor for piece in more)
        return Piece(factor.way, _map_batched(function, factor.factor, *factors))
    if isinstance(factor, Tied):
        rows = _map_batched(function, factor.rows, *(tied.rows for tied in more))
        outer = _map_batched(function, factor.outer, *(tied.outer for tied in more))
        return Tied(rows, outer)
    mapped = {}
    for name, ndim in factor.batched_ndims.items():
        array = getattr(factor, name)
        if array.ndim == ndim:
            arrays_of_more = [getattr(factor_of_more, name) for factor_of_more in more]
            mapped[name] = function(array, *arrays_of_more)
    return dataclasses.replace(factor, **mapped)


def _vmap_examples(form: Callable[..., Array], *arrays: tuple[Array, int]) -> Array:
    """A function of arrays of one example, mapped over the arrays that have an example axis."""
    in_axes = tuple(0 if array.ndim == ndim else None for array, ndim in arrays)
    if any(axis == 0 for axis in in_axes):
        form = jax.vmap(form, in_axes=in_axes)
    return form(*(array for array, _ in arrays))


def _with_examples(
    x: Shaped[Array, "..."], x_ndim: int, y: Shaped[Array, "..."], y_ndim: int
) -> tuple[Shaped[Array, "n ..."], Shaped[Array, "n ..."]]:
    """Give two arrays an example axis of one length, which is 1 where neither has one."""
    x = x if x.ndim == x_ndim else x[None]
    y = y if y.ndim == y_ndim else y[None]
    n = max(x.shape[0], y.shape[0])
    return jnp.broadcast_to(x, (n, *x.shape[1:])), jnp.broadcast_to(y, (n, *y.shape[1:]))


def _einsum(pattern: str, x: Float[Array, "..."], y: Float[Array, "..."]) -> Float[Array, "..."]:
    """An einsum in float32 at least; how its products are rounded is the session's choice."""
    x = x.astype(at_least_float32(x.dtype))
    y = y.astype(at_least_float32(y.dtype))
    return jnp.einsum(pattern, x, y)


def _inner_products(
    x: Float[Array, "*n o P"],
    y: Float[Array, "*m p P"],
    contraction: Contraction,
) -> Float[Array, "..."]:
    """Inner products over the last axis, as one large matrix product."""
    # An array without an example axis counts as one example: [o P] -> [1 o P].
    x = x if x.ndim == 3 else x[None]
    y = y if y.ndim == 3 else y[None]
    n, o, size = x.shape
    m, p, _ = y.shape
    if contraction == "full":
        # [(n o) P] [(m p) P] -> [(n o) (m p)] -> [n o m p]
        x = x.reshape(n * o, size)
        y = y.reshape(m * p, size)
        return _einsum("aP,bP->ab", x, y).reshape(n, o, m, p)
    if contraction == "trace":
        # The sum over o = p joins that over P: [n (o P)] [m (o P)] -> [n m].
        x = x.reshape(n, o * size)
        y = y.reshape(m, p * size)
        return _einsum("nP,mP->nm", x, y)
    return _einsum("noP,moP->nmo", x, y)


def _weighted_inner_products(
    weight: Float[Array, "t m s"],
    c1: Float[Array, "o t d"],
    c2: Float[Array, "m p s d"],
    contraction: Contraction,
) -> Float[Array, "..."]:
    """The products of one row example, sum_ts weight[t, m, s] <c1[o, t], c2[m, p, s]>."""
    # First the inner products over d, which are large; then the sum over positions t, s.
    if contraction == "full":
        inner = _einsum("otd,mpsd->omtps", c1, c2)
        return jnp.einsum("tms,omtps->omp", weight, inner)
    if contraction == "trace":
        inner = _einsum("otd,mosd->tms", c1, c2)
        return jnp.einsum("tms,tms->m", weight, inner)
    inner = _einsum("otd,mosd->omts", c1, c2)
    return jnp.einsum("tms,omts->mo", weight, inner)


def _cross_gram(rows: Rows, outer: Outer, contraction: Contraction) -> Float[Array, "..."]:
    """The product of the look-ups and the products of one table."""
    # sum_ts <c1[n, o, t], a[m, s]> c2[m, p, s, index[n, t]]
    index, c1 = _with_examples(rows.index, 2, rows.c, 4)  # [n t], [n o t d]
    # The one block of a tied table.
    a, c2 = _with_examples(outer.a[..., 0, :, :], 3, outer.c[..., 0, :, :], 4)  # [m s d], [m p s v]
    pattern = {"full": "otms,mpst->omp", "trace": "otms,most->m", "diagonal": "otms,most->mo"}

    def gram_of_row(row):
        index, c1 = row  # [t], [o t d]
        # Where a position looked up no row, `fill` puts 0.
        looked_up = jnp.take(c2, index, axis=-1, mode="fill", fill_value=0)  # [m p s t]
        inner = _einsum("otd,msd->otms", c1, a)  # <c1[o, t], a[m, s]>
        return _einsum(pattern[contraction], inner, looked_up)

    return jax.lax.map(gram_of_row, (index, c1))
