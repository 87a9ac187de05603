"""Which exact way of contracting each part is cheapest, by counting multiply-adds."""

import dataclasses
import functools
import math

from ntkdiag.tangents.parts import Part
from ntkdiag.tangents.recorder import Site


@dataclasses.dataclass(frozen=True, eq=False)
class Way:
    """How one part is contracted.

    Attributes:
        part: The part.
        name: "outer" (products of Grams of the two factors), "rows" (the same with an equality test), "tied" (both),
            "dense" (the Jacobian is formed once per example) or "streamed" (formed piece by piece while contracted).
        form: Multiply-adds to form the factor of one example, beyond the network passes.
        gram: Multiply-adds per pair of examples.
        size: Numbers kept per example.
        unformed: Numbers in the two factors of one example, where the Jacobian can be formed later; else 0.
        operand: How many of them are those of the first factor.
        slowness: How many times longer a multiply-add per pair takes than in a large product: in choosing only.
    """

    part: Part
    name: str
    form: int
    gram: int
    size: int
    unformed: int = 0
    operand: int = 0
    slowness: int = 1

    @functools.cached_property
    def key(self) -> tuple:
        """Equal for ways that build the same factor of the same function."""
        return self.part.key, self.name


def choose(parts: list[Part], n: int, m: int, k: int, contraction: str, prefer: str | None = None) -> tuple[Way, ...]:
    """The cheapest way for every part.

    Args:
        parts: The parts.
        n: Row examples.
        m: Column examples; 0 where they are the rows.
        k: Output directions.
        contraction: "full", "trace" or "diagonal".
        prefer: "dense" or "structured" to take that wherever a part can be contracted so, whatever it costs.
    """
    pairs = k * k if contraction == "full" else k
    cost = lambda way: way.form * (n + m) + way.slowness * way.gram * n * (m or n)
    chosen = []
    for part in parts:
        ways = _ways(part, k, pairs)
        wanted = [way for way in ways if prefer and (way.name == "dense") == (prefer == "dense")]
        chosen.append(min(wanted or ways, key=lambda way: (cost(way), way.size)))
    return tuple(chosen)


def _ways(part: Part, k: int, pairs: int) -> list[Way]:
    if not part.sites or part.kind == "assembled":
        form = sum(k * math.prod(positions(site)) for site in part.sites)
        return [Way(part, "dense", form, pairs * part.size, k * part.size)]
    if part.kind == "tied":
        return _tied_ways(part, k, pairs)
    sizes = [positions(site) for site in part.sites]
    (b, _, i, d), t = sizes[0], sum(size[1] for size in sizes)
    i += sum(positions(site)[2] for site in part.beside)
    if part.kind == "rows":
        unformed = t * (1 + k * d)
        dense = Way(part, "dense", k * t * d, pairs * part.size, k * part.size, unformed, t)
        direct = t * t * k * d + (pairs * t * d if pairs > k else 0)
        return [dense, Way(part, "rows", 0, direct, unformed, slowness=4 if pairs > k else 2)]
    unformed = b * t * (i + k * d)
    dense = Way(part, "dense", k * b * t * i * d, pairs * part.size, k * part.size, unformed, b * t * i)
    outer = b * t * t * (i + pairs * d + pairs)
    # With several positions the Grams are [t s] blocks: small products that run far below the rate of a large one.
    return [dense, Way(part, "outer", 0, outer, unformed, slowness=1 if t == 1 else 4)]


def streamed(ways: tuple[Way, ...]) -> tuple[Way, ...]:
    """The same, with Jacobians formed while they are contracted wherever their factors are smaller.

    For a kernel that is one tile: every tile of several would have to form them again.
    """
    smaller = lambda way: way.name == "dense" and 0 < way.unformed < way.size
    return tuple(dataclasses.replace(way, name="streamed", size=way.unformed) if smaller(way) else way for way in ways)


def _tied_ways(part: Part, k: int, pairs: int) -> list[Way]:
    """A table looked up and multiplied by: its two halves and their cross terms, or the Jacobian."""
    (dense, rows), (dense2, outer) = (_ways(half, k, pairs) for half in part.halves())
    t, s = (sum(positions(site)[1] for site in half.sites) for half in part.halves())
    d = positions(part.halves()[1].sites[0])[2]
    across = 2 * t * s * (k * d + pairs)
    gram = rows.gram + outer.gram + across
    slow = rows.slowness * rows.gram + outer.slowness * outer.gram + across
    return [
        Way(part, "dense", dense.form + dense2.form, pairs * part.size, k * part.size),
        Way(part, "tied", 0, gram, rows.size + outer.size, slowness=-(-slow // gram)),
    ]


def positions(site: Site) -> tuple[int, int, int, int]:
    """(B, T, I, D) of a site, enclosing scans counted."""
    b, t, i, d = site.use.sizes()
    blocks = math.prod(length for length, role in site.scans if role == "b")
    repeats = math.prod(length for length, role in site.scans if role == "t")
    return b * blocks, t * repeats, i, d
