"""From the sites of a walk to the parts of the Jacobian that are contracted separately.

The kernel is a sum over parts. One part is one leaf, or disjoint slices of a leaf, or weights together with the bias
that share one cotangent.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag.tangents.arrange import arrange
from ntkdiag.tangents.factors import Dense, Outer, Rows
from ntkdiag.tangents.recorder import Site
from ntkdiag.tangents.tied import Tied

Factor = Dense | Outer | Rows | Tied


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """A part of the Jacobian and how its factor is built.

    Attributes:
        leaves: Numbers of the leaves it belongs to.
        sites: The structured uses of which it is the sum (their factors are concatenated along positions).
        kind: "outer", "rows", "tied" (both, of one table), "dense" (an ordinary VJP of the leaf) or "assembled" (VJP
            plus sites, in leaf order).
        size: Number of parameters.
        ones: Whether a bias rides along (its a is 1).
        beside: Uses of further weights that share the cotangent: their inputs stand beside those of the first.
        merged: Coordinates of the parts of which it was put together, where `sites` and `beside` do not tell.
    """

    leaves: tuple[int, ...]
    sites: tuple[Site, ...]
    kind: str
    size: int
    ones: bool = False
    beside: tuple[Site, ...] = ()
    merged: tuple = ()

    @functools.cached_property
    def key(self) -> tuple:
        """Equal for equal parts of the same function."""
        sites = tuple(site.key for site in (*self.sites, *self.beside))
        return self.leaves, sites, self.kind, self.ones

    @property
    def coordinates(self) -> tuple:
        """Equal for parts, also of different functions, whose factors are Jacobians in the same coordinates."""
        if self.kind in ("dense", "assembled"):
            return self.leaves, "dense", self.size
        return self.leaves, self.kind, self.ones, self.merged, *map(_signature, (self.sites[0], *self.beside))

    def halves(self) -> tuple["Part", "Part"]:
        """The look-ups and the products of a tied table."""
        of = lambda kind: tuple(site for site in self.sites if _kind(site) == kind)
        rows, outer = (dataclasses.replace(self, sites=of(kind), kind=kind) for kind in ("rows", "outer"))
        return rows, outer

    def factor(self, handed: dict, cotangents: dict, vjps: dict) -> Factor:
        """The factor of one example, from operands and cotangents c [o b t d] by site, and leaf VJPs [o ...]."""
        if self.kind == "dense":
            j = vjps[self.leaves[0]]
            return Dense(j.reshape(j.shape[0], -1))
        if self.kind == "assembled":
            return self._assembled(handed, cotangents, vjps)
        if self.kind == "tied":
            rows, outer = (part.factor(handed, cotangents, vjps) for part in self.halves())
            return Tied(rows, outer)  # type: ignore[arg-type]
        a = [operand(site, handed[site.handed]) for site in self.sites]
        c = [cotangents[site.key] for site in self.sites]
        if self.kind == "rows":
            rows = self.sites[0].use.sizes()[2]
            index, c = jnp.concatenate(a), jnp.concatenate([v[:, 0] for v in c], axis=1)
            return Rows(index, jnp.where((index < rows)[:, None], c, 0), rows)
        inputs = [jnp.concatenate(a, axis=1), *(operand(site, handed[site.handed]) for site in self.beside)]
        return Outer(jnp.concatenate(inputs, axis=2), jnp.concatenate(c, axis=2), self.ones)

    def _assembled(self, handed: dict, cotangents: dict, vjps: dict) -> Dense:
        """Every use in the order of the leaf, added up."""
        n_outputs = next(iter([*vjps.values(), *cotangents.values()])).shape[0]
        total = vjps.get(self.leaves[0])
        flat: Any = 0.0 if total is None else total.reshape(n_outputs, -1)
        for site in self.sites:
            part = dataclasses.replace(self, sites=(site,), kind="rows" if site.use.kind == "rows" else "outer")
            j = part.factor(handed, cotangents, vjps).dense().j
            flat = flat + _in_leaf_order(j, site, self.size)
        return Dense(flat)


def _in_leaf_order(j: jax.Array, site: Site, size: int) -> jax.Array:
    """[o (b d i)] of one site -> [o P] in the order of the leaf."""
    layout = site.use.weight
    array = layout.array
    n_b = layout.n_block + site.use.n_axes[0]
    n_i = site.use.n_axes[1]
    if site.use.kind != "rows":  # rows are formed in the order of the leaf already
        shape = array.shape
        j = j.reshape(-1, *shape[:n_b], *shape[n_b + n_i :], *shape[n_b : n_b + n_i])
        n_d = array.ndim - n_b - n_i
        axes = (*range(1 + n_b), *range(1 + n_b + n_d, 1 + array.ndim), *range(1 + n_b, 1 + n_b + n_d))
        j = jnp.transpose(j, axes)  # [o b i d]
    order = np.argsort([-abs(stride) for stride in array.strides], kind="stable")
    if array.size == size and array.transpose(order).flags.c_contiguous:
        return j.reshape(-1, *array.shape).transpose(0, *(1 + order)).reshape(-1, size)
    zeros = jnp.zeros((j.shape[0], size), j.dtype)
    return zeros.at[:, layout.indices().reshape(-1)].add(j.reshape(j.shape[0], -1))


def operand(site: Site, h: jax.Array) -> jax.Array:
    """a [b t i] (or index [t]) of a site, enclosing scans folded into b and t."""
    fn = site.use.operand
    for _ in site.scans:
        fn = jax.vmap(fn)
    a = fn(h)
    return a.reshape(-1) if site.use.kind == "rows" else _fold(a, site.scans)


def cotangent(site: Site, c: jax.Array) -> jax.Array:
    """c [b t d] of a site for one output direction, enclosing scans folded into b and t."""
    fn = site.use.cotangent
    for _ in site.scans:
        fn = jax.vmap(fn)
    return _fold(fn(c), site.scans)


def _fold(x: jax.Array, scans: tuple[tuple[int, str], ...]) -> jax.Array:
    """[scans... b t d] -> [b t d]: each scan is a block axis or a position axis."""
    k = len(scans)
    blocks = [axis for axis, (_, role) in enumerate(scans) if role == "b"]
    positions = [axis for axis, (_, role) in enumerate(scans) if role == "t"]
    b = math.prod(x.shape[axis] for axis in (*blocks, k))
    t = math.prod(x.shape[axis] for axis in (*positions, k + 1))
    return arrange(x, (*blocks, k, *positions, k + 1, k + 2), (b, t, x.shape[-1]))


def group(sites: list[Site], dense_leaves: set[int], shapes: list[tuple[int, ...]], form: str) -> list[Part]:
    """Sort the findings of a walk into parts; leaves that are never used have none.

    Args:
        sites: Structured uses.
        dense_leaves: Leaves with a use that has no structured form.
        shapes: Shapes of all leaves.
        form: "fused" (what shares a cotangent is one part), "by leaf" (no part has two leaves) or "leaf order" (one
            dense part per leaf, in the order of the leaf: what can be compared between different functions).
    """
    parts = []
    by_leaf: dict[int, list[Site]] = {}
    for site in sites:
        by_leaf.setdefault(site.leaf, []).append(site)
    for leaf, shape in enumerate(shapes):
        own, size = by_leaf.get(leaf, []), math.prod(shape)
        if not own and leaf in dense_leaves:
            parts.append(Part((leaf,), (), "dense", size))
        elif own:
            clusters = None if leaf in dense_leaves or form == "leaf order" else _clusters(own)
            if clusters is None:
                structured = leaf not in dense_leaves and form != "leaf order"
                kind = "tied" if structured and _is_tied(own, shape) else "assembled"
                parts.append(Part((leaf,), tuple(own), kind, size))
            else:
                parts += [Part((leaf,), tuple(c), _kind(c[0]), c[0].use.weight.array.size) for c in clusters]
    return _merge_biases(_merge_weights(_merge_joined(parts))) if form == "fused" else parts


def _kind(site: Site) -> str:
    return "rows" if site.use.kind == "rows" else "outer"


def _signature(site: Site) -> Any:
    """Sites with equal signatures have Jacobians in the same coordinates."""
    layout = site.use.weight
    kept = [(n, s) for n, s in zip(layout.array.shape, layout.array.strides, strict=True) if n > 1]
    b, _, i, d = site.use.sizes()
    blocks = math.prod(layout.block_shape)
    return layout.offset, tuple(kept), blocks * b, i, d, _kind(site)


def _clusters(sites: list[Site]) -> list[list[Site]] | None:
    """Group sites of one leaf by the elements they touch: the same, or disjoint; None if they overlap otherwise."""
    clusters: dict[Any, list[Site]] = {}
    for site in sites:
        clusters.setdefault(_signature(site), []).append(site)
    groups = list(clusters.values())
    for k, first in enumerate(groups):
        if any(first[0].use.weight.overlaps(second[0].use.weight) for second in groups[k + 1 :]):
            return None
    return groups


def _is_tied(sites: list[Site], shape: tuple[int, ...]) -> bool:
    """Whether one table [v ...] is looked up by rows and multiplied by with its rows as outputs, always all of it."""
    signatures = {kind: {_signature(s) for s in sites if _kind(s) == kind} for kind in ("rows", "outer")}
    if any(len(own) != 1 for own in signatures.values()):
        return False
    if not all(site.use.kind in ("rows", "outer") and not site.use.weight.n_block for site in sites):
        return False
    weight = {_kind(site): site.use for site in sites}
    b, i, d = weight["outer"].n_axes
    layout = weight["outer"].weight.transpose((*range(b), *range(b + i, b + i + d), *range(b, b + i)))
    one_block = math.prod(layout.shape[:b]) == 1 and math.prod(layout.shape[b : b + d]) == shape[0]
    return one_block and layout.whole and weight["rows"].weight.whole and weight["rows"].sizes()[2] == shape[0]


def _merge_joined(parts: list[Part]) -> list[Part]:
    """Make one weight of weights side by side, where each of them is in a single use."""
    together: dict[Any, list[Part]] = {}
    for k, part in enumerate(parts):
        joined = part.kind == "outer" and len(part.sites) == 1 and part.sites[0].joined
        together.setdefault(part.sites[0].handed if joined else k, []).append(part)
    merged = []
    for own in together.values():
        site = own[0].sites[0] if own[0].sites else None
        if site is None or site.joined is None or len(own) < site.joined[0]:
            merged += own
        else:
            leaves = tuple(dict.fromkeys(leaf for part in own for leaf in part.leaves))
            whole = dataclasses.replace(site, use=site.joined[1])
            own = sorted(own, key=lambda part: part.sites[0].use.window[2])  # type: ignore[index]
            size, coordinates = sum(part.size for part in own), tuple(part.coordinates for part in own)
            merged.append(Part(leaves, (whole,), "outer", size, merged=coordinates))
    return merged


def _merge_weights(parts: list[Part]) -> list[Part]:
    """Put the inputs of weights side by side that share a cotangent, brought to [b t d] alike, in a single use each."""
    merged: dict[Any, Part] = {}
    for k, part in enumerate(parts):
        key: Any = k
        if part.kind == "outer" and len(part.sites) == 1 and part.sites[0].use.kind == "outer":
            [site] = part.sites
            b, t, _, d = site.use.sizes()
            key = *_cotangent_of(site), site.use.window, (b, t, d)
        if key in merged:
            host = merged[key]
            part = dataclasses.replace(
                host,
                leaves=host.leaves + part.leaves,
                size=host.size + part.size,
                beside=(*host.beside, *part.sites),
                merged=host.merged + part.merged,
            )
        merged[key] = part
    return list(merged.values())


def _cotangent_of(site: Site) -> tuple:
    """Equal for sites that read one cotangent in one way: a tap alone may serve products of different roles."""
    return site.tap, site.scans, site.use.out_shape, site.use.out_roles


def _merge_biases(parts: list[Part]) -> list[Part]:
    """Let a bias ride with the weight whose cotangent it shares, where each is a single unscaled use."""
    weights = {
        _cotangent_of(part.sites[0]): k
        for k, part in enumerate(parts)
        if part.kind == "outer" and len(part.sites) == 1 and part.sites[0].use.kind == "outer"
        if part.sites[0].use.window is None
    }
    merged: list[Part | None] = list(parts)
    for k, part in enumerate(parts):
        if part.kind != "outer" or len(part.sites) != 1 or part.sites[0].use.kind != "ones" or part.sites[0].scaled:
            continue
        home = weights.get(_cotangent_of(part.sites[0]))
        host = None if home is None else merged[home]
        if home is None or host is None or host.ones:
            continue
        merged[home] = dataclasses.replace(
            host,
            leaves=host.leaves + part.leaves,
            size=host.size + part.size,
            ones=True,
            merged=(*host.merged, part.coordinates),
        )
        merged[k] = None
    return [part for part in merged if part is not None]
