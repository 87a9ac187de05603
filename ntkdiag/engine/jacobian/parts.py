"""One part of the Jacobian, and how its factor is built.

The kernel is a sum over parts. A part is one leaf, or slices of a leaf, or several leaves whose
uses share one cotangent. Its factor is built from what a walk handed out: for each site the
operand, which becomes a, and the cotangent of its tap (zeros added to its result), which becomes c
(see `weight_use`).

| kind        | what it is the sum of                          | factor                            |
|-------------|------------------------------------------------|-----------------------------------|
| "outer"     | products and convolutions of the same elements | `Outer`, their positions joined   |
| "rows"      | look-ups in one table                          | `Rows`, their positions joined    |
| "tied"      | look-ups in a table and products with it       | `Tied`                            |
| "dense"     | uses without structure                         | `Dense`, the VJP of the leaf      |
| "assembled" | anything else, such as overlapping slices      | `Dense`, formed and added up      |
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from ntkdiag.engine.jacobian.factors import Dense, Factor, Outer, Rows, Tied
from ntkdiag.engine.jacobian.recorder import Path, Site
from ntkdiag.engine.jacobian.shape_operations import arrange

Kind = Literal["outer", "rows", "tied", "dense", "assembled"]


@dataclasses.dataclass(frozen=True)
class Backpropagated:
    """What one forward and one backward pass of an example give.

    Attributes:
        operands: The operands handed out, by key; of a derivative rule a list of its inputs.
        cotangents: The c `[o b t d]` of each site, by its key.
        jacobians: The VJPs `[o ...]` of the leaves with a use that has no structure.
    """

    operands: dict[Path, Shaped[Array | np.ndarray, "..."] | list]
    cotangents: dict[Path, Float[Array, "o _b _t _d"]]
    jacobians: dict[int, Float[Array, "o ..."]]


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """A part of the Jacobian.

    Attributes:
        leaves: Numbers of the leaves it belongs to.
        sites: The structured uses of which it is the sum.
        kind: What is made of them: a row of the table at the top of this page.
        size: Number of parameters.
        has_bias: Whether a bias rides along, whose a is 1.
        added_sites: Uses of more weights that share the cotangent of the one site, since their
            products are added up: their inputs i stand beside its inputs.
        merged_coordinates: Coordinates of the parts of which it was put together, where `sites` and
            `added_sites` do not tell.
    """

    leaves: tuple[int, ...]
    sites: tuple[Site, ...]
    kind: Kind
    size: int
    has_bias: bool = False
    added_sites: tuple[Site, ...] = ()
    merged_coordinates: tuple = ()

    @functools.cached_property
    def key(self) -> tuple:
        """Equal for equal parts of the same function."""
        sites = tuple(site.key for site in (*self.sites, *self.added_sites))
        return self.leaves, sites, self.kind, self.has_bias

    @property
    def coordinates(self) -> tuple:
        """Equal for parts whose factors have the same parameters in the same order.

        The parts may be of different functions.
        """
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
    # A view of the whole leaf only has its axes in another order: by falling strides it is that of
    # the leaf. Any other view is scattered into zeros.
    order = np.argsort([-abs(stride) for stride in array.strides], kind="stable")
    if array.size == size and array.transpose(order).flags.c_contiguous:
        return j.reshape(-1, *array.shape).transpose(0, *(1 + order)).reshape(-1, size)
    zeros = jnp.zeros((j.shape[0], size), j.dtype)
    return zeros.at[:, layout.indices().reshape(-1)].add(j.reshape(j.shape[0], -1))
