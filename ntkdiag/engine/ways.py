"""Every exact way of contracting one part of the Jacobian, and which is cheapest.

The kernel is a sum over parts. A weight that enters a contraction has per example the Jacobian
J[o][b, i, d] = sum_t a[b, t, i] c[o][b, t, d], where a is what the weight is multiplied by and c
the cotangent of the result, b are blocks, t and s positions, i inputs and d outputs. Capital
letters are how many of them there are, P = B I D. Its term of the kernel can be had in several
ways. Per pair of examples, with k output directions and pairs = k^2 (full) or k (trace, diagonal):

    outer     (a a^T) * (c c^T), summed over positions t, s          B T^2 (I + pairs D + pairs)
    rows      an embedding: a a^T is a test whether two rows are     T^2 k D + pairs T D
              equal
    tied      a table that is looked up and multiplied by: rows,     the sum
              outer and their cross terms
    dense     J is formed once per example, then one large product   pairs P
    streamed  as dense, but J is formed chunk by chunk while it is   pairs P
              contracted

Multiply-adds are counted from shapes, and every part is contracted in its own cheapest way.
"""

import dataclasses
import functools
import math

from ntkdiag.engine.jacobian.parts import Part
from ntkdiag.kernel.reduction import Contraction

# How many times longer than in a large product a multiply-add takes in products of [t s] blocks.
_SLOWNESS_OF_POSITIONS = 4
# The same for embeddings, whose equality tests are no products, where equal outputs are paired.
_SLOWNESS_OF_EQUAL_ROWS = 2


@dataclasses.dataclass(frozen=True, eq=False)
class Way:
    """How one part is contracted."""

    part: Part  # the part
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
    def is_dense(self) -> bool:
        """Whether the Jacobian is formed once per example."""
        return self.name == "dense"

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
    pairs = k
    if contraction == "full":
        pairs = k * k
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
        if way.is_dense and 0 < way.unformed < way.size:
            way = dataclasses.replace(way, name="streamed", size=way.unformed)
        formed_late.append(way)
    return tuple(formed_late)


def ways_of(part: Part, k: int, pairs: int) -> list[Way]:
    """All ways of contracting a part, the dense one first."""
    # Without structure there is one way: the VJP gave the Jacobian, or it is put together.
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
    # a a^T [t s] takes I multiply-adds per entry, c c^T [t s] D per pair of directions, and so does
    # their elementwise product one.
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
    _, _, d, _ = half_of_outer.sites[0].sizes()
    # Cross terms: <c[o, t], a[s]> for every two positions, k D each, times what is looked up in the
    # cotangents of the products, one for each pair; both ways round.
    across = 2 * t * s * (k * d + pairs)
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
    for site in part.added_sites:
        _, _, added, _ = site.sizes()
        n_inputs += added
    return b, _positions(part), n_inputs, d


def _positions(part: Part) -> int:
    """T: positions of all sites of a part."""
    total = 0
    for site in part.sites:
        _, positions, _, _ = site.sizes()
        total += positions
    return total
