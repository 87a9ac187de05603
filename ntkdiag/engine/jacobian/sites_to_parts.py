"""From the sites of a walk to the parts of the Jacobian that are contracted separately.

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
import math
from collections.abc import Hashable
from typing import Literal, TypeAlias

from ntkdiag.engine.jacobian.parts import Part, structured_kind, weight_coordinates
from ntkdiag.engine.jacobian.recorder import Site

# Which leaves may share a part; see `sites_to_parts`.
Form: TypeAlias = Literal["fused", "by leaf", "leaf order"]


def sites_to_parts(
    sites: list[Site], dense_leaves: frozenset[int], shapes: list[tuple[int, ...]], form: Form
) -> list[Part]:
    """Sort what a walk found into parts; leaves that are never used have none.

    With the form "fused" what shares a cotangent is one part, with "by leaf" no part has two
    leaves, and with "leaf order" there is one dense part for each leaf, in the order of the leaf:
    what can be compared between different functions.
    """
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
    # 2. Leaves that share a cotangent, in this order: weights side by side may be added to others,
    # and both may have a bias.
    parts = _merge_joined(parts)
    parts = _merge_added(parts)
    return _merge_biases(parts)


def _parts_of_leaf(
    leaf: int, sites: list[Site], shape: tuple[int, ...], may_have_structure: bool
) -> list[Part]:
    """The parts of one leaf with at least one structured use."""
    size = math.prod(shape)
    if may_have_structure:
        clusters = _clusters(sites)
        if clusters is not None:
            return [_part_of_cluster(leaf, cluster) for cluster in clusters]
        if _is_tied(sites, shape):
            return [Part((leaf,), tuple(sites), "tied", size)]
    return [Part((leaf,), tuple(sites), "assembled", size)]


def _part_of_cluster(leaf: int, cluster: list[Site]) -> Part:
    """The part of sites that use the same elements of a leaf, of which one speaks for all."""
    first = cluster[0]
    return Part((leaf,), tuple(cluster), structured_kind(first), first.use.weight.array.size)


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
    """Whether a table [v ...] is looked up by rows and multiplied by with its rows as outputs.

    Every use has to be of all of it.
    """
    lookups = [site for site in sites if structured_kind(site) == "rows"]
    products = [site for site in sites if structured_kind(site) == "outer"]
    # All look-ups alike, all products alike, and no biases or layers of a scan among them.
    for alike in (lookups, products):
        if len({weight_coordinates(site) for site in alike}) != 1:
            return False
    for site in sites:
        if site.use.kind not in ("rows", "outer") or site.use.weight.n_block:
            return False
    # Of sites that are alike one speaks for all.
    lookup = lookups[-1].use
    product = products[-1].use
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


def _merge_joined(parts: list[Part]) -> list[Part]:
    """Make one part of weights side by side, where each of them is used there only."""
    # Weights side by side were handed out one operand; any other part is a group by itself.
    groups: dict[Hashable, list[Part]] = {}
    for k, part in enumerate(parts):
        key: Hashable = k
        if _is_single_product(part) and part.sites[0].joined:
            key = part.sites[0].operand_key
        groups.setdefault(key, []).append(part)
    merged = []
    for group in groups.values():
        if len(group) == _n_side_by_side(group[0]):
            merged.append(_side_by_side(group))
        else:
            # Not side by side, or some of those that are have other uses too.
            merged += group
    return merged


def _n_side_by_side(part: Part) -> int:
    """With how many weights that of a part stands side by side, itself included; 0 for none."""
    if not part.sites or part.sites[0].joined is None:
        return 0
    n_weights, _ = part.sites[0].joined
    return n_weights


def _side_by_side(group: list[Part]) -> Part:
    """The part of all weights of a group that stand side by side, as one weight."""
    first = group[0].sites[0]
    assert first.joined is not None
    _, together = first.joined
    site = dataclasses.replace(first, use=together)
    leaves: dict[int, None] = {}  # each leaf once, in the order in which they come
    for part in group:
        leaves.update(dict.fromkeys(part.leaves))
    in_order = sorted(group, key=_start_of_window)
    coordinates = tuple(part.coordinates for part in in_order)
    size = sum(part.size for part in group)
    return Part(tuple(leaves), (site,), "outer", size, merged_coordinates=coordinates)


def _start_of_window(part: Part) -> int:
    """Where the output of a weight begins in that of all weights side by side."""
    window = part.sites[0].use.window
    assert window is not None
    return window.start


def _merge_added(parts: list[Part]) -> list[Part]:
    """Make one part of weights whose products are added up, where each of them is used there only.

    Their cotangents have to be brought to [b t d] in the same way.
    """
    merged: dict[Hashable, Part] = {}
    for k, part in enumerate(parts):
        key: Hashable = k  # a part that is merged with no other one
        if _is_single_product(part) and part.sites[0].use.kind == "outer":
            use = part.sites[0].use
            b, t, _, d = use.sizes()
            key = (*_cotangent_read(part.sites[0]), use.window, (b, t, d))
        if key in merged:
            part = _with_added_inputs(merged[key], part)
        merged[key] = part
    return list(merged.values())


def _with_added_inputs(host: Part, part: Part) -> Part:
    """A part with the inputs of another one beside its own."""
    return dataclasses.replace(
        host,
        leaves=host.leaves + part.leaves,
        size=host.size + part.size,
        added_sites=(*host.added_sites, *part.sites),
        merged_coordinates=host.merged_coordinates + part.merged_coordinates,
    )


def _merge_biases(parts: list[Part]) -> list[Part]:
    """Let a bias ride with the weight whose cotangent it shares, if each has one use only."""
    # Where several weights read a cotangent in one way, the last one takes the bias.
    weights: dict[tuple, int] = {}
    for k, part in enumerate(parts):
        if _is_single_product(part):
            use = part.sites[0].use
            if use.kind == "outer" and use.window is None:
                weights[_cotangent_read(part.sites[0])] = k
    # A host takes the place of its weight, and None that of the bias it took.
    merged: list[Part | None] = list(parts)
    for k, part in enumerate(parts):
        if not _is_single_product(part):
            continue
        [site] = part.sites
        # A scaled bias has a = scale, and not the 1 that rides along.
        if site.use.kind != "ones" or site.scaled:
            continue
        # A weight takes one bias; a second one stays a part of its own.
        home = weights.get(_cotangent_read(site))
        if home is None:
            continue
        host = merged[home]
        if host is None or host.has_bias:
            continue
        merged[home] = dataclasses.replace(
            host,
            leaves=host.leaves + part.leaves,
            size=host.size + part.size,
            has_bias=True,
            merged_coordinates=(*host.merged_coordinates, part.coordinates),
        )
        merged[k] = None
    return [part for part in merged if part is not None]


def _is_single_product(part: Part) -> bool:
    """Whether a part is one use, of a weight in a product or of a bias, that others may join."""
    return part.kind == "outer" and len(part.sites) == 1


def _cotangent_read(site: Site) -> tuple:
    """Equal for sites that read one cotangent in one way; a tap may serve uses with other roles."""
    return site.tap_key, site.scans, site.use.out_shape, site.use.out_roles
