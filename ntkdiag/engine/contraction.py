"""How parts of the Jacobian are contracted to a kernel: the cheapest way of each, and the products.

The kernel is a sum over parts. A weight that enters a contraction has per example the Jacobian
J[o][b, i, d] = sum_t a[b, t, i] c[o][b, t, d], where a is what the weight is multiplied by and c
the cotangent of the result, b are blocks, t and s positions, i inputs and d outputs. Capital
letters are how many of them there are, P = B I D. Its term of the kernel can be had in several
ways. Per pair of examples, with k output directions and pairs = k^2 (full) or k (trace, diagonal):

    outer     (a a^T) * (c c^T), summed over positions t, s          B T^2 (I + pairs D + pairs)
    rows      an embedding: a a^T is a test whether two rows are     T^2 k D, and
              equal                                                  pairs T D if full
    tied      a table that is looked up and multiplied by: rows,     the sum
              outer and their cross terms
    dense     J is formed once per example, then one large product   pairs P
    streamed  as dense, but J is formed chunk by chunk while it is   pairs P
              contracted

Multiply-adds are counted from shapes, and every part is contracted in its own cheapest way.

The products of factors are added up to the kernel of a block of rows and a block of columns,
K = sum over parts l of J_l J_l^T (`Gram`). Every product is added to one total, or, where kernels
of single leaves are asked for, to the total of its group; a factor of scan-stacked layers is split
by layer. With a preconditioner each product is weighted by its inverse.

Only `Tile` knows the axes of a kernel, or of a tile of one:

    full       [n k m l]   every direction of a row with every direction of a column
    trace      [n m]       equal directions, added up
    diagonal   [n m k]     equal directions, side by side

Of a symmetric kernel K = J J^T only one triangle is computed. It is cut into strips of rows, each
multiplied by the examples from its first one on:

    +---+---+---+
    | 0 | 0 | 0 |      strip 0: rows of block 0 by all columns
    |---+---+---|      strip 1: rows of block 1 by columns of blocks 1, 2
    |   | 1 | 1 |      strip 2: rows of block 2 by columns of block 2
    |---+---+---|
    |   |   | 2 |      below the diagonal: mirror images
    +---+---+---+

The result is bitwise symmetric. More strips save more products, but each copies its factors.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ntkdiag.engine.jacobian.factors import Dense, Factor, Outer, take_examples
from ntkdiag.engine.jacobian.parts import Part
from ntkdiag.kernel.reduction import MIRROR, Contraction

# Ways of contracting a part.

# How many times longer a multiply-add takes in products of [t s] blocks than in a large one.
_SLOWNESS_OF_POSITIONS = 4
# The same for embeddings where equal outputs are paired: equality tests are no matrix products.
_SLOWNESS_OF_EQUAL_ROWS = 2


@dataclasses.dataclass(frozen=True, eq=False)
class Way:
    """How one part is contracted."""

    part: Part
    name: str  # "outer", "rows", "tied", "dense" or "streamed", as above
    form: int  # multiply-adds to form the factor of one example, beyond the network passes
    gram: int  # multiply-adds per pair of examples
    size: int  # numbers kept per example
    # Numbers in the two factors of one example, where the Jacobian can be formed later; else 0.
    unformed: int = 0
    operand: int = 0  # how many of them are those of the first factor
    # How many times longer a multiply-add per pair takes than in a large product: it counts in
    # choosing only.
    slowness: int = 1

    @functools.cached_property
    def key(self) -> tuple:
        """Equal for ways that build the same factor of the same function."""
        return self.part.key, self.name

    @property
    def forms_jacobian(self) -> bool:
        """Whether the Jacobian is formed, now or while it is contracted."""
        return self.name in ("dense", "streamed")

    def price(self, n: int, m: int) -> int:
        """Multiply-adds for n by m examples (m = 0: the rows again), as they weigh in choosing."""
        n_pairs = n * (m or n)
        return self.form * (n + m) + self.slowness * self.gram * n_pairs


def choose(
    parts: list[Part],
    n: int,
    m: int,
    k: int,
    contraction: Contraction,
) -> tuple[Way, ...]:
    """The cheapest way for every part: n by m examples (m = 0: the rows again), k directions."""
    # Pairs of output directions whose products are taken for each pair of examples.
    pairs = k * k if contraction == "full" else k
    chosen = []
    for part in parts:
        # Of equal prices the one that keeps less.
        chosen.append(min(ways_of(part, k, pairs), key=lambda way: (way.price(n, m), way.size)))
    return tuple(chosen)


def streamed(ways: tuple[Way, ...]) -> tuple[Way, ...]:
    """The same ways, but Jacobians larger than their factors are formed when contracted."""
    # For a kernel that is one tile: with several, every tile would have to form them again.
    formed_late = []
    for way in ways:
        if way.name == "dense" and 0 < way.unformed < way.size:
            way = dataclasses.replace(way, name="streamed", size=way.unformed)
        formed_late.append(way)
    return tuple(formed_late)


def ways_of(part: Part, k: int, pairs: int) -> list[Way]:
    """All ways of contracting a part, the dense one first."""
    # Without structure there is one way: the Jacobian comes from a VJP or is assembled.
    if not part.sites or part.kind == "assembled":
        form = sum(k * math.prod(site.sizes()) for site in part.sites)
        return [Way(part, "dense", form, pairs * part.size, k * part.size)]
    if part.kind == "tied":
        return _ways_of_tied(part, k, pairs)
    if part.kind == "rows":
        return _ways_of_rows(part, k, pairs)
    return _ways_of_outer(part, k, pairs)


def _ways_of_outer(part: Part, k: int, pairs: int) -> list[Way]:
    """A weight: form J = sum_t a c, or multiply the Grams of a and of c."""
    b, t, i, d = _sizes(part)
    # a[b t i] and c[o b t d] of one example.
    unformed = b * t * (i + k * d)
    # [b t i] [o b t d] -> [o b d i]
    form = k * b * t * i * d
    dense = Way(part, "dense", form, pairs * part.size, k * part.size, unformed, b * t * i)
    # With several positions the Grams are [t s] blocks: small products that run far below the
    # rate of a large one.
    slowness = 1
    if t > 1:
        slowness = _SLOWNESS_OF_POSITIONS
    # a a^T [t s] takes I multiply-adds per entry, c c^T [t s] D per pair of directions, and their
    # elementwise product one.
    gram = b * t * t * (i + pairs * d + pairs)
    return [dense, Way(part, "outer", 0, gram, unformed, slowness=slowness)]


def _ways_of_rows(part: Part, k: int, pairs: int) -> list[Way]:
    """An embedding: form J by adding rows, or compare the rows that were looked up."""
    _, t, _, d = _sizes(part)
    # index[t] and c[o t d] of one example.
    unformed = t * (1 + k * d)
    dense = Way(part, "dense", k * t * d, pairs * part.size, k * part.size, unformed, t)
    # Equal outputs: <c, c'> for every pair of positions. All pairs: rows of the other side are
    # looked up for every position first, and then multiplied.
    gram = t * t * k * d
    slowness = _SLOWNESS_OF_EQUAL_ROWS
    if pairs > k:
        gram += pairs * t * d
        slowness = _SLOWNESS_OF_POSITIONS
    return [dense, Way(part, "rows", 0, gram, unformed, slowness=slowness)]


def _ways_of_tied(part: Part, k: int, pairs: int) -> list[Way]:
    """A table looked up and multiplied by: both halves and their cross terms, or the Jacobian."""
    half_of_rows, half_of_outer = part.halves()
    dense_rows, rows = ways_of(half_of_rows, k, pairs)
    dense_outer, outer = ways_of(half_of_outer, k, pairs)
    t = _positions(half_of_rows)
    s = _positions(half_of_outer)
    _, _, width, _ = half_of_outer.sites[0].sizes()
    # Cross terms: <c[o, t], a[s]> for every two positions, k width each, times what is looked up in
    # the cotangents of the products, one for each pair; both ways round.
    across = 2 * t * s * (k * width + pairs)
    gram = rows.gram + outer.gram + across
    # The slowness that gives the sum the price of its terms, rounded up.
    weighed = rows.slowness * rows.gram + outer.slowness * outer.gram + across
    slowness = -(-weighed // gram)
    return [
        Way(part, "dense", dense_rows.form + dense_outer.form, pairs * part.size, k * part.size),
        Way(part, "tied", 0, gram, rows.size + outer.size, slowness=slowness),
    ]


def _sizes(part: Part) -> tuple[int, int, int, int]:
    """(B, T, I, D) of a part: positions of all its sites, inputs of all weights added to it."""
    b, _, n_inputs, d = part.sites[0].sizes()
    n_inputs += sum(site.sizes()[2] for site in part.added_sites)
    return b, _positions(part), n_inputs, d


def _positions(part: Part) -> int:
    """T: positions of all sites of a part."""
    return sum(site.sizes()[1] for site in part.sites)


# Products of factors.


@dataclasses.dataclass(frozen=True)
class Tile:
    """The axes of a kernel of n row examples and m column examples."""

    contraction: Contraction  # which output directions are paired
    n: int  # row examples
    m: int  # column examples
    k: int  # directions of a row
    l: int  # noqa: E741

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        if self.contraction == "full":
            return self.n, self.k, self.m, self.l
        if self.contraction == "trace":
            return self.n, self.m
        return self.n, self.m, self.k

    @property
    def column_axis(self) -> int:
        """The axis of the column examples; that of the rows is the first."""
        return 2 if self.contraction == "full" else 1

    def at(self, rows: slice, columns: slice) -> tuple[slice, ...]:
        """The index of the entries of some rows and columns."""
        if self.contraction == "full":
            return rows, slice(None), columns
        return rows, columns

    def mirrored(self, array: Float[Array | np.ndarray, "..."]) -> Float[Array | np.ndarray, "..."]:
        """An array of this layout with rows and columns exchanged."""
        return array.transpose(MIRROR[self.contraction])


# Rows of a matrix product from which strips save time, and from which more of them do.
_STRIPS = 128
_LARGE = 1024
# Rows of a strip of a product that is made chunk by chunk, at least, and how many strips there are
# at most: each copies from the chunk.
_ROWS_OF_STRIP = 80
_MOST_STRIPS = 6


def copies_at_once(tile: Tile) -> float:
    """How many copies of all factors a symmetric kernel that is contracted at once needs."""
    edges = edges_at_once(tile)
    n_strips = len(edges) - 1
    if n_strips == 1:
        return 0.0
    # The rows of all strips are one copy. The columns of the first strip are the factors as they
    # are, those of the last one its rows; all others have a copy of what is behind their first row.
    behind = [tile.n - first for first in edges[1 : n_strips - 1]]
    return 1.0 + sum(behind) / tile.n


def edges_at_once(tile: Tile) -> list[int]:
    """Where strips begin and end in a symmetric kernel that is contracted at once."""
    rows_of_product = math.prod(tile.shape[: tile.column_axis])
    if rows_of_product < _STRIPS:
        n_strips = 1
    elif rows_of_product < _LARGE:
        n_strips = 2
    else:
        n_strips = 4
    return _edges(tile.n, n_strips)


def edges_of_chunks(tile: Tile, symmetric: bool) -> list[int]:
    """Where strips begin and end in a kernel that is contracted chunk by chunk."""
    if not symmetric:
        return [0, tile.n]
    rows_of_product = math.prod(tile.shape[: tile.column_axis])
    return _edges(tile.n, min(_MOST_STRIPS, rows_of_product // _ROWS_OF_STRIP))


def assembled(
    strips: Sequence[Float[Array | np.ndarray, "..."]], edges: list[int], tile: Tile
) -> Float[Array, "..."]:
    """The whole symmetric kernel from its strips, which may be broadcast along examples."""
    # 1. Cut every strip into the blocks of the columns it covers.
    axis = tile.column_axis
    blocks: dict[tuple[int, int], Array] = {}
    for r, strip in enumerate(strips):
        shape = list(tile.shape)
        shape[0] = edges[r + 1] - edges[r]
        shape[axis] = edges[-1] - edges[r]
        cuts = [edge - edges[r] for edge in edges[r + 1 : -1]]
        along_row = jnp.split(jnp.broadcast_to(strip, shape), cuts, axis=axis)
        for c, block in enumerate(along_row, start=r):
            blocks[r, c] = block
    # 2. On the diagonal, products may differ from their transposes by rounding.
    for r in range(len(strips)):
        blocks[r, r] = (blocks[r, r] + tile.mirrored(blocks[r, r])) / 2
    # 3. A row of the kernel: transposes left of the diagonal, its strip from there on.
    rows = []
    for r in range(len(strips)):
        below = [tile.mirrored(blocks[c, r]) for c in range(r)]
        above = [blocks[r, c] for c in range(r, len(strips))]
        rows.append(jnp.concatenate([*below, *above], axis))
    return jnp.concatenate(rows, 0)


def _edges(n: int, n_strips: int) -> list[int]:
    """Edges of about as many strips as asked for, at least one example each."""
    n_strips = max(1, min(n, n_strips))
    return [n * k // n_strips for k in range(n_strips + 1)]


# 1/P of the parameters of one factor: a number, or one for every parameter.
Weight = Float[Array, "..."]


@dataclasses.dataclass(frozen=True)
class Gram:
    """Which products are taken, and which kernel each of them is added to."""

    contraction: Contraction  # which output directions are paired
    precision: str  # rounding of the products, as `jax.default_matmul_precision` takes it
    # For every factor, the group its product is added to; several where the factor is split by
    # layer.
    groups: tuple[tuple[int, ...], ...]
    rounds: tuple[int, ...]  # for every factor, how often its layers come round in a row of J
    n_groups: int  # number of groups; there is one kernel for each

    def __call__(
        self,
        rows: Sequence[Factor],
        columns: Sequence[Factor],
        weights: Sequence[Weight] | None = None,
    ) -> list[Float[Array | np.ndarray, "..."]]:
        """Kernels of rows by columns, one per group; axes of length 1 where no example matters."""
        totals: list[Array | None] = [None] * self.n_groups
        splits = list(zip(self.groups, self.rounds, strict=True))
        if self.n_groups == 1:  # dense factors may have been joined into one
            splits = [((0,), 1)] * len(rows)
        of_factors = zip(rows, columns, weights or [None] * len(rows), splits, strict=True)
        for row, column, weight, (groups, rounds) in of_factors:
            if weight is not None and jnp.ndim(weight) == 1:
                # One number for every parameter: its columns of J, on one side of the product. The
                # session may forbid rank promotion.
                assert isinstance(row, Dense)
                row = Dense(row.j * jnp.expand_dims(weight, range(row.j.ndim - 1)))  # -> [1 1 P]
                weight = None
            # One product per layer where layers belong to different groups, else one for all.
            rows_by_layer = _layers(row, len(groups), rounds)
            columns_by_layer = _layers(column, len(groups), rounds)
            for layer, group in enumerate(groups):
                with jax.default_matmul_precision(self.precision):
                    product = rows_by_layer[layer].gram(columns_by_layer[layer], self.contraction)
                if weight is not None:
                    product = product * weight
                total = totals[group]
                totals[group] = product if total is None else total + product
        # A group without a factor has a kernel of zeros with a shape that broadcasts.
        zero = np.zeros([1] * len(MIRROR[self.contraction]), np.float32)
        return [zero if total is None else total for total in totals]

    def symmetric(
        self, factors: Sequence[Factor], tile: Tile, weights: Sequence[Weight] | None = None
    ) -> list[Float[Array, "..."]]:
        """Kernels of a block with itself: strips of the upper triangle, mirrored."""
        # A strip: its own rows times all examples from its first row on.
        edges = edges_at_once(tile)
        by_strip = []
        for first, last in itertools.pairwise(edges):
            rows = [take_examples(factor, slice(first, last)) for factor in factors]
            columns = [take_examples(factor, slice(first, tile.n)) for factor in factors]
            by_strip.append(self(rows, columns, weights))
        by_group = zip(*by_strip, strict=True)
        return [assembled(of_group, edges, tile) for of_group in by_group]

    def rectangular(
        self,
        rows: Sequence[Factor],
        columns: Sequence[Factor],
        tile: Tile,
        weights: Sequence[Weight] | None = None,
    ) -> list[Float[Array, "..."]]:
        """Kernels of rows by columns, in their full shape."""
        return [jnp.broadcast_to(kernel, tile.shape) for kernel in self(rows, columns, weights)]


def _layers(factor: Factor, n: int, rounds: int) -> list[Factor]:
    """A factor of a stacked leaf by layer: the outermost part of b, or P = [round layer ...]."""
    if n == 1:
        return [factor]
    if isinstance(factor, Outer):
        inputs = jnp.split(factor.a, n, axis=-3)
        cotangents = jnp.split(factor.c, n, axis=-3)
        return [Outer(a, c, factor.has_bias) for a, c in zip(inputs, cotangents, strict=True)]
    assert isinstance(factor, Dense)
    *batch, size = factor.j.shape
    j = factor.j.reshape(*batch, rounds, n, size // (rounds * n))
    return [Dense(j[..., layer, :].reshape(*batch, size // n)) for layer in range(n)]
