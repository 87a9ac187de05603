"""Which exact way of contracting each part is cheapest, by counting multiply-adds."""

import dataclasses
import math
from typing import Any

from ntkdiag.tangents.parts import Part
from ntkdiag.tangents.tangents import Tangents


@dataclasses.dataclass(frozen=True)
class Way:
    """How one part is contracted.

    Attributes:
        part: The part.
        name: "outer" (products of Grams of the two factors), "rows" (the same with an equality test) or "dense"
            (the Jacobian is formed once per example).
        form: Multiply-adds to form the factor of one example, beyond the network passes.
        gram: Multiply-adds per pair of examples.
        size: Numbers kept per example.
    """

    part: Part
    name: str
    form: int
    gram: int
    size: int


def choose(tangents: Tangents, n: int, m: int, k: int, contraction: str) -> list[Way]:
    """The cheapest way for every part.

    Args:
        tangents: The structure of the Jacobian.
        n: Row examples.
        m: Column examples.
        k: Output directions.
        contraction: "full", "trace" or "diagonal".
    """
    pairs = k * k if contraction == "full" else k
    return [min(_ways(part, k, pairs), key=lambda way: (_cost(way, n, m), way.size)) for part in tangents.parts]


def _cost(way: Way, n: int, m: int) -> int:
    return way.form * (n + m) + way.gram * n * m


def _ways(part: Part, k: int, pairs: int) -> list[Way]:
    if not part.sites or part.kind == "assembled":
        return [Way(part, "dense", 0, pairs * part.size, k * part.size)]
    sizes = [positions(site) for site in part.sites]
    (b, _, i, d), t = sizes[0], sum(size[1] for size in sizes)
    dense = Way(part, "dense", k * b * t * i * d, pairs * part.size, k * part.size)
    if part.kind == "rows":
        direct = t * t * k * d + pairs * t * d if pairs > k else t * t * k * d
        return [dense, Way(part, "rows", 0, direct, t * (1 + k * d))]
    outer = b * t * t * (i + pairs * d + pairs)
    # With several positions the Grams are [t s] blocks, small products that run far below the rate of a large one.
    return [dense, Way(part, "outer", 0, outer if t == 1 else 4 * outer, b * t * (i + k * d))]


def positions(site: Any) -> tuple[int, int, int, int]:
    """(B, T, I, D) of a site, enclosing scans counted."""
    b, t, i, d = site.use.sizes()
    blocks = math.prod(length for length, role in site.scans if role == "b")
    repeats = math.prod(length for length, role in site.scans if role == "t")
    return b * blocks, t * repeats, i, d
