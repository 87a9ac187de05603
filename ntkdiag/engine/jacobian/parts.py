"""The parts of the Jacobian: how uses of parameters are sorted into them, and their factors built.

The kernel is a sum over parts. A part is one leaf, or slices of a leaf, or several leaves whose
uses share one cotangent. Its factor is built from what a walk handed out: for each site (one use of
a parameter) the operand, which becomes a, and the cotangent of its tap (zeros added to its result),
which becomes c (see `rules`).

| kind        | what it is the sum of                          | factor                            |
|-------------|------------------------------------------------|-----------------------------------|
| "outer"     | products and convolutions of the same elements | `Outer`, their positions joined   |
| "rows"      | look-ups in one table                          | `Rows`, their positions joined    |
| "tied"      | look-ups in a table and products with it       | `Tied`                            |
| "dense"     | uses without structure                         | `Dense`, the VJP of the leaf      |
| "assembled" | anything else, such as overlapping slices      | `Dense`, formed and added up      |

From the sites of a walk to parts that are contracted separately (`sites_to_parts`):

1. Each leaf by itself: uses of the same elements are one part, uses of disjoint elements are parts
   of their own (the thirds of a fused QKV matrix); a table that is looked up and multiplied by is
   "tied"; a leaf with uses that overlap in any other way, or that has none with structure, is one
   dense part.
2. If parts may have several leaves ("fused"), those whose single uses share a cotangent are merged:
   weights side by side in one product become one weight, weights whose products are added up get
   their inputs side by side, and a bias rides with its weight.

The fewer parts, the fewer products of cotangents c c^T are taken.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from ntkdiag.engine.jacobian.factors import Dense, Factor, Outer, Rows, Tied
from ntkdiag.engine.jacobian.recorder import Path, Site
from ntkdiag.engine.jacobian.rules import WeightUse
from ntkdiag.jaxtools.cpu import arrange

Kind = Literal["outer", "rows", "tied", "dense", "assembled"]


@dataclasses.dataclass(frozen=True)
class Backpropagated:
    """What the forward and backward passes of one example give."""

    operands: dict[Path, Shaped[Array | np.ndarray, "..."]]  # the operands handed out, by key
    cotangents: dict[Path, Float[Array, "o _b _t _d"]]  # the c `[o b t d]` of each site, by its key
    # The VJPs `[o ...]` of the leaves with a use that has no structure.
    jacobians: dict[int, Float[Array, "o ..."]]


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """A part of the Jacobian."""

    leaves: tuple[int, ...]  # numbers of the leaves it belongs to
    sites: tuple[Site, ...]  # the structured uses of which it is the sum
    kind: Kind  # what is made of them: a row of the table above
    size: int  # number of parameters
    has_bias: bool = False  # whether a bias rides along, whose a is 1
    # Uses of more weights that share the cotangent of the one site, since their products are added
    # up: their inputs i stand beside its inputs.
    added_sites: tuple[Site, ...] = ()
    # Coordinates of the parts that it consists of, if `sites` and `added_sites` do not have them.
    merged_coordinates: tuple = ()

    @functools.cached_property
    def key(self) -> tuple:
        """Equal for equal parts of the same function."""
        sites = tuple(site.key for site in (*self.sites, *self.added_sites))
        return self.leaves, sites, self.kind, self.has_bias

    @property
    def coordinates(self) -> tuple:
        """Equal for parts whose factors have the same parameters in the same order."""
        if self.kind in ("dense", "assembled"):
            return self.leaves, "dense", self.size
        uses = map(weight_coordinates, (self.sites[0], *self.added_sites))
        return self.leaves, self.kind, self.has_bias, self.merged_coordinates, *uses

    def halves(self) -> tuple["Part", "Part"]:
        """The look-ups and the products of a tied table, as parts of their own."""
        lookups = tuple(site for site in self.sites if structured_kind(site) == "rows")
        products = tuple(site for site in self.sites if structured_kind(site) == "outer")
        rows = dataclasses.replace(self, sites=lookups, kind="rows")
        outer = dataclasses.replace(self, sites=products, kind="outer")
        return rows, outer

    def factor(self, example: Backpropagated) -> Factor:
        """The factor of one example."""
        # Uses without structure.
        if self.kind == "dense":
            j = example.jacobians[self.leaves[0]]
            return Dense(j.reshape(j.shape[0], -1))  # [o ...] -> [o P]
        if self.kind == "assembled":
            return self._assembled(example)
        if self.kind == "tied":
            rows, outer = self.halves()
            return Tied(rows.factor(example), outer.factor(example))
        # Uses of one kind: their positions t are put one after the other.
        a = [_operand_of(site, example) for site in self.sites]
        c = [example.cotangents[site.key] for site in self.sites]
        if self.kind == "rows":
            _, _, n_rows, _ = self.sites[0].use.sizes()
            index = jnp.concatenate(a)  # [t] each -> [t]
            without_blocks = [of_site[:, 0] for of_site in c]  # [o 1 t d] -> [o t d]
            c = jnp.concatenate(without_blocks, axis=1)
            # What was looked up in no row has no derivative.
            in_a_row = (index < n_rows)[:, None]  # [t 1], against [o t d]
            return Rows(index, jnp.where(in_a_row, c, 0), n_rows)
        c = jnp.concatenate(c, axis=2)  # [o b t d] each -> [o b t d]
        inputs = [jnp.concatenate(a, axis=1)]  # [b t i] each -> [b t i]
        # Weights whose products are added up: their inputs i stand beside these.
        inputs += [_operand_of(site, example) for site in self.added_sites]
        return Outer(jnp.concatenate(inputs, axis=2), c, self.has_bias)

    def _assembled(self, example: Backpropagated) -> Dense:
        """The sum over all uses, each formed and put into the order of the leaf."""
        terms = []
        # The uses without structure, all at once, by the VJP of the leaf.
        jacobian = example.jacobians.get(self.leaves[0])
        if jacobian is not None:
            terms.append(jacobian.reshape(jacobian.shape[0], -1))  # [o ...] -> [o P]
        for site in self.sites:
            part = dataclasses.replace(self, sites=(site,), kind=structured_kind(site))
            formed = part.factor(example).dense()
            terms.append(_in_leaf_order(formed.j, site, self.size))
        return Dense(functools.reduce(jnp.add, terms))


def structured_kind(site: Site) -> Literal["rows", "outer"]:
    """The kind of a part that is this site alone."""
    return "rows" if site.use.kind == "rows" else "outer"


def weight_coordinates(site: Site) -> tuple:
    """Equal for sites whose Jacobians have the same elements of a leaf in the same order."""
    # Axes of length 1 say nothing about where elements lie. Block axes of scans count as b.
    layout = site.use.weight
    axes = zip(layout.array.shape, layout.array.strides, strict=True)
    kept = tuple((size, stride) for size, stride in axes if size > 1)
    b, _, i, d = site.use.sizes()
    n_blocks = math.prod(layout.block_shape) * b
    return layout.offset, kept, n_blocks, i, d, structured_kind(site)


def arrange_cotangent(site: Site, c: Shaped[Array, "..."]) -> Shaped[Array, "b t d"]:
    """The cotangent of a site's tap, for one output direction, as c with its scans folded in."""
    arranged = _over_scans(site.use.arrange_cotangent, site)(c)
    return _fold_scans(arranged, site.scans)


def _operand_of(site: Site, example: Backpropagated) -> Shaped[Array, "..."]:
    """The operand of a site as a `[b t i]`, or row numbers `[t]`, with its scans folded in."""
    a = _over_scans(site.use.arrange_operand, site)(example.operands[site.operand_key])
    if site.use.kind == "rows":
        return a.reshape(-1)
    return _fold_scans(a, site.scans)


def _over_scans(function: Callable[..., Array], site: Site) -> Callable[..., Array]:
    """A function of one step of the enclosing scans, mapped over all steps."""
    for _ in site.scans:
        function = jax.vmap(function)
    return function


def _fold_scans(
    x: Shaped[Array, "*scans b t i"], scans: tuple[tuple[int, str], ...]
) -> Shaped[Array, "blocks positions i"]:
    """Make each scan a part of the blocks or of the positions: [scans... b t i] -> [b t i]."""
    # After the axes of scans come those of one step: b, t and i (or d, of a cotangent).
    n_scans = len(scans)
    blocks = [axis for axis, (_, role) in enumerate(scans) if role == "b"] + [n_scans]
    positions = [axis for axis, (_, role) in enumerate(scans) if role == "t"] + [n_scans + 1]
    b = math.prod(x.shape[axis] for axis in blocks)
    t = math.prod(x.shape[axis] for axis in positions)
    return arrange(x, (*blocks, *positions, n_scans + 2), (b, t, x.shape[-1]))


def _in_leaf_order(j: Float[Array, "o P"], site: Site, size: int) -> Float[Array, "o leaf"]:
    """The formed Jacobian of one site in the order of its leaf, with zeros where it has none."""
    layout = site.use.weight
    array = layout.array
    rank = array.ndim
    if site.use.kind != "rows":
        # Products are formed in the order [b d i]; rows come in the order of their table already.
        # [o (b d i)] -> [o b d i] -> [o b i d], each letter standing for several axes. `array` has
        # its axes in the order b (those of scans among them), i, d.
        n_b, n_i, _ = site.use.n_axes
        first_i = layout.n_block + n_b
        first_d = first_i + n_i
        shape = array.shape
        j = j.reshape(-1, *shape[:first_i], *shape[first_d:], *shape[first_i:first_d])
        n_d = rank - first_d
        b_axes = range(1, 1 + first_i)
        d_axes = range(1 + first_i, 1 + first_i + n_d)
        i_axes = range(1 + first_i + n_d, 1 + rank)
        j = jnp.transpose(j, (0, *b_axes, *i_axes, *d_axes))
    # A view of the whole leaf merely has its axes in another order: by descending stride they are
    # those of the leaf. Any other view is scattered into zeros.
    order = np.argsort([-abs(stride) for stride in array.strides], kind="stable")
    if array.size == size and array.transpose(order).flags.c_contiguous:
        return j.reshape(-1, *array.shape).transpose(0, *(1 + order)).reshape(-1, size)
    zeros = jnp.zeros((j.shape[0], size), j.dtype)
    return zeros.at[:, layout.indices().reshape(-1)].add(j.reshape(j.shape[0], -1))


# Which leaves may share a part; see `sites_to_parts`.
Form: TypeAlias = Literal["fused", "by leaf", "leaf order"]


def sites_to_parts(
    sites: list[Site], dense_leaves: frozenset[int], shapes: list[tuple[int, ...]], form: Form
) -> list[Part]:
    """Sort what a walk found into parts; leaves that are never used have none."""
    # With the form "fused" what shares a cotangent is one part, with "by leaf" no part has two
    # leaves, and with "leaf order" each leaf is one dense part, which other functions can be
    # compared with.
    # 1. Each leaf by itself.
    sites_of: dict[int, list[Site]] = {}
    for site in sites:
        sites_of.setdefault(site.leaf, []).append(site)
    parts = []
    for leaf, shape in enumerate(shapes):
        may_have_structure = leaf not in dense_leaves and form != "leaf order"
        if leaf in sites_of:
            parts += _parts_of_leaf(leaf, sites_of[leaf], shape, may_have_structure)
        elif leaf in dense_leaves:
            parts.append(Part((leaf,), (), "dense", math.prod(shape)))
    if form != "fused":
        return parts
    # 2. Leaves that share a cotangent.
    return _merge_by_cotangent(parts)


def _parts_of_leaf(
    leaf: int, sites: list[Site], shape: tuple[int, ...], may_have_structure: bool
) -> list[Part]:
    """The parts of one leaf with at least one structured use."""
    size = math.prod(shape)
    if may_have_structure:
        clusters = _clusters(sites)
        if clusters is not None:
            parts = []
            for cluster in clusters:
                first = cluster[0]
                n_used = first.use.weight.array.size
                parts.append(Part((leaf,), tuple(cluster), structured_kind(first), n_used))
            return parts
        if _is_tied(sites, shape):
            return [Part((leaf,), tuple(sites), "tied", size)]
    return [Part((leaf,), tuple(sites), "assembled", size)]


def _clusters(sites: list[Site]) -> list[list[Site]] | None:
    """The sites of one leaf by the elements they use; None if some of these overlap in part."""
    by_coordinates: dict[tuple, list[Site]] = {}
    for site in sites:
        by_coordinates.setdefault(weight_coordinates(site), []).append(site)
    clusters = list(by_coordinates.values())
    # Sites of one cluster use the same elements, so one of them speaks for all.
    layouts = [cluster[0].use.weight for cluster in clusters]
    for k, layout in enumerate(layouts):
        if any(layout.overlaps(later) for later in layouts[k + 1 :]):
            return None
    return clusters


def _is_tied(sites: list[Site], shape: tuple[int, ...]) -> bool:
    """Whether a table [v ...] is looked up by rows and multiplied by with its rows as outputs."""
    lookups = [site for site in sites if structured_kind(site) == "rows"]
    products = [site for site in sites if structured_kind(site) == "outer"]
    # All look-ups alike, all products alike, and no biases or layers of a scan among them.
    for alike in (lookups, products):
        if len({weight_coordinates(site) for site in alike}) != 1:
            return False
    for site in sites:
        if site.use.kind not in ("rows", "outer") or site.use.weight.n_block:
            return False
    lookup = lookups[0].use
    product = products[0].use
    n_rows = shape[0]
    # [b i d] -> [b d i]: with one block and the outputs d as rows this has to be the table itself.
    b, i, d = product.n_axes
    blocks = range(b)
    inputs = range(b, b + i)
    outputs = range(b + i, b + i + d)
    as_table = product.weight.transpose((*blocks, *outputs, *inputs))
    one_block = math.prod(as_table.shape[:b]) == 1
    outputs_are_rows = math.prod(as_table.shape[b : b + d]) == n_rows
    all_of_it = as_table.is_whole_leaf and lookup.weight.is_whole_leaf
    return one_block and outputs_are_rows and all_of_it and lookup.sizes()[2] == n_rows


def _merge_by_cotangent(parts: list[Part]) -> list[Part]:
    """Merge leaves whose single uses share a cotangent into one part, where the first stood."""
    merged = dict(enumerate(parts))
    # 1. Weights side by side, multiplied by one operand, become one weight where none has another
    # use.
    joined: dict[Path, list[int]] = {}
    for k, part in merged.items():
        if _is_single_use(part) and part.sites[0].joined:
            joined.setdefault(part.sites[0].operand_key, []).append(k)
    for first, *others in joined.values():
        n_joined, together = merged[first].sites[0].joined or (0, None)
        if together is not None and n_joined == 1 + len(others):
            group = [merged[first], *(merged.pop(k) for k in others)]
            merged[first] = _side_by_side(group, together)

    # 2. Weights whose products are added up get their inputs side by side.
    first_of: dict[Hashable, int] = {}
    for k, part in list(merged.items()):
        if not _is_single_use(part) or part.sites[0].use.kind != "outer":
            continue
        [site] = part.sites
        host = first_of.setdefault((_cotangent_read(site), site.use.window), k)
        if host != k:
            added = (*merged[host].added_sites, site)
            merged[host] = _with(merged[host], part, part.merged_coordinates, added_sites=added)
            del merged[k]

    # 3. A bias rides with the weight. A scaled one has a = scale, and not the 1 that rides along; a
    # second one stays a part of its own.
    for k, part in list(merged.items()):
        if not _is_single_use(part) or part.sites[0].use.kind != "ones":
            continue
        host = first_of.get((_cotangent_read(part.sites[0]), None))
        if host is None or merged[host].has_bias or part.sites[0].scaled:
            continue
        merged[host] = _with(merged[host], part, (part.coordinates,), has_bias=True)
        del merged[k]
    return list(merged.values())


def _side_by_side(group: list[Part], together: WeightUse) -> Part:
    """The part of all weights of a group that stand side by side, as one weight."""
    start_of: dict[int, tuple] = {}  # where its output begins in that of all -> coordinates
    for part in group:
        window = part.sites[0].use.window
        assert window is not None
        start_of[window.start] = part.coordinates
    coordinates = tuple(start_of[start] for start in sorted(start_of))
    site = dataclasses.replace(group[0].sites[0], use=together)
    size = sum(part.size for part in group)
    # Each leaf once, in the order in which they come.
    leaves = tuple(dict.fromkeys(leaf for part in group for leaf in part.leaves))
    return Part(leaves, (site,), "outer", size, merged_coordinates=coordinates)


def _with(host: Part, part: Part, coordinates: tuple, **changes: Any) -> Part:
    """A part that has taken in another one."""
    return dataclasses.replace(
        host,
        leaves=host.leaves + part.leaves,
        size=host.size + part.size,
        merged_coordinates=host.merged_coordinates + coordinates,
        **changes,
    )


def _is_single_use(part: Part) -> bool:
    """Whether a part is one use, of a weight in a product or of a bias, that others may join."""
    return part.kind == "outer" and len(part.sites) == 1


def _cotangent_read(site: Site) -> tuple:
    """Equal for sites that read one cotangent in one way; a tap may serve uses with other roles."""
    return site.tap_key, site.scans, site.use.out_shape, site.use.out_roles
