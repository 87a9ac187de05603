"""What a walk over a jaxpr records: the sites it finds, and the operands it hands out.

A site is an equation that applies a parameter to data, which is its operand. A tap is an array of
zeros that is added to the result, h . w: the derivative by it is the cotangent of that result.

The first walk runs on shapes and determines which taps there are. Later walks are given these taps,
add them, and hand out the other operand at each site; one VJP of such a walk by its taps gives the
cotangents that belong to these operands.

What is added to a result that is fresh from a tap shares that tap (`TappedResults`). A bias that is
added to h . w has the same cotangent as the product, and so has a second product that is added, as
in a recurrent cell x . w + s . u: they read the cotangent of the first one's. This holds as long as
nothing else reads the result in between, so only variables that are read once count; transposes and
reshapes on the way are undone.
"""

import dataclasses
import math
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Shaped

from ntkdiag.engine.jacobian.leaf_layout import LeafLayout
from ntkdiag.engine.jacobian.rules import WeightUse
from ntkdiag.engine.jacobian.views import JoinedViews, View
from ntkdiag.jaxtools import jaxprs
from ntkdiag.jaxtools.jaxprs import Atom, Equation, Variable

# Where something stands in a jaxpr: the numbers of the equations that lead to it, outermost first.
# Sites, taps and operands are known by the path of their equation, with one more number where an
# equation has several.
Path: TypeAlias = tuple[int, ...]
# What a site hands out: the operand of a product, or the numbers of rows of a look-up.
Operand: TypeAlias = Shaped[ArrayLike, "..."]


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """One structured use of a leaf."""

    leaf: int  # number of the leaf
    primitive: str  # name of the primitive, for the plan
    use: WeightUse  # the use in normal form, enclosing scans not counted
    key: Path  # the key of this site
    # Key of the tap whose cotangent is the c of this use; uses that are added share one.
    tap_key: Path
    operand_key: Path  # key of the operand that was handed out; weights side by side share one
    # For each enclosing scan, outermost first: its length, and "b" if it runs over the leaf, else
    # "t".
    scans: tuple[tuple[int, str], ...]
    scaled: bool = False  # whether the operand carries the scalar factor of the view
    # For one of several weights side by side: how many they are, and the use of all of them as one
    # weight.
    joined: tuple[int, WeightUse] | None = None

    def sizes(self) -> tuple[int, int, int, int]:
        """The sizes (B, T, I, D) of this use, enclosing scans counted."""
        b, t, i, d = self.use.sizes()
        blocks = math.prod(length for length, role in self.scans if role == "b")
        repeats = math.prod(length for length, role in self.scans if role == "t")
        return b * blocks, t * repeats, i, d


@dataclasses.dataclass(eq=False)
class Recorder:
    """What a walk finds, and the operands it hands out."""

    taps: dict[Path, Array] | None = None  # None on the first walk, which finds them
    untapped: frozenset[Path] = frozenset()  # sites that read the cotangent of another one's tap
    sites: dict[Path, Site] = dataclasses.field(default_factory=dict)
    tap_avals: dict[Path, jax.ShapeDtypeStruct] = dataclasses.field(default_factory=dict)
    dense_leaves: set[int] = dataclasses.field(default_factory=set)
    stacked_leaves: dict[int, tuple[int, int]] = dataclasses.field(default_factory=dict)
    operands: dict[Path, Operand] = dataclasses.field(default_factory=dict)
    scans: tuple[tuple[Path, int], ...] = ()  # that run around what is walked, outermost first

    def inside(
        self, taps: dict[Path, Array] | None, scan: tuple[Path, int] | None = None
    ) -> "Recorder":
        """A recorder for the body of a control-flow primitive, which shares what is found."""
        # Operands are its own: they belong to the trace of the body, and leave it as outputs.
        scans = self.scans if scan is None else (*self.scans, scan)
        return dataclasses.replace(self, taps=taps, operands={}, scans=scans)

    def taps_inside(self, path: Path) -> dict[Path, Array] | None:
        """The taps of the sites inside the equation at a path."""
        if self.taps is None:
            return None
        # Their keys are longer paths that begin with this one.
        return {key: tap for key, tap in self.taps.items() if key[: len(path)] == path}

    def differentiable(self, value: object) -> Any:
        """The differentiable copy of a view; any other value as it is."""
        # From then on its leaf has a use without structure.
        if not isinstance(value, View | JoinedViews):
            return value
        if isinstance(value, JoinedViews):
            leaves = [view.leaf for view in value.views]
        else:
            leaves = [value.leaf]
        self.dense_leaves.update(leaves)
        if value.dense is None:
            raise RuntimeError(
                f"ntkdiag: a use of parameter leaf {leaves[0]} was not found by the first walk"
            )
        return value.dense

    def add_tap(
        self, key: Path, y: Shaped[Array, "..."], scale: ArrayLike | None = None
    ) -> Shaped[Array, "..."]:
        """y plus the tap of a site, times a scalar factor where there is one."""
        if self.taps is None:
            # Inside scans the tap has one entry for each step.
            lengths = tuple(length for _, length in self.scans)
            self.tap_avals[key] = jax.ShapeDtypeStruct((*lengths, *y.shape), y.dtype)
            return y
        if key in self.untapped:
            return y
        tap = self.taps[key]
        if scale is not None:
            tap = tap * jnp.asarray(scale, y.dtype)
        return lax.add(y, tap)

    def record(
        self, key: Path, tap_key: Path, view: View, primitive: str, use: WeightUse, operand: Operand
    ) -> None:
        """Record a site and hand out its operand, times the scalar factor of the view."""
        self.sites[key] = Site(
            leaf=view.leaf,
            primitive=primitive,
            use=use,
            key=key,
            tap_key=tap_key,
            operand_key=key,
            scans=self.roles(view),
            scaled=view.scale is not None,
        )
        # Row numbers stay whole numbers.
        is_multiplied = use.kind != "rows"
        if is_multiplied and not jnp.issubdtype(jnp.result_type(operand), jnp.inexact):
            operand = jnp.asarray(operand, view.dtype)
        if view.scale is not None:
            # y = (scale w) . h = w . (scale h). Callers keep the factor from row numbers.
            operand = operand * jnp.asarray(view.scale, jnp.result_type(operand))
        self.operands[key] = operand

    def record_joined(
        self,
        path: Path,
        joined: JoinedViews,
        primitive: str,
        uses: tuple[WeightUse | None, list[WeightUse]],
        operand: Operand,
    ) -> None:
        """Record a site for each of several weights side by side, and hand out their operand."""
        together, use_of_each = uses
        for k, (view, use) in enumerate(zip(joined.views, use_of_each, strict=True)):
            # They share the tap and the operand of the equation; the first has its key as well.
            key = (*path, k) if k else path
            site = Site(
                leaf=view.leaf,
                primitive=primitive,
                use=use,
                key=key,
                tap_key=path,
                operand_key=path,
                scans=self.roles(view),
            )
            if together is not None:
                site = dataclasses.replace(site, joined=(len(use_of_each), together))
            self.sites[key] = site
        self.operands[path] = operand

    def roles(self, view: View) -> tuple[tuple[int, str], ...]:
        """The length of each enclosing scan, with "b" if it runs over the leaf, else "t"."""
        roles = []
        for path, length in self.scans:
            runs_over_leaf = path in view.scans
            roles.append((length, "b" if runs_over_leaf else "t"))
        return tuple(roles)


REARRANGING = frozenset({"transpose", "reshape", "squeeze"})


@dataclasses.dataclass(frozen=True, eq=False)
class TappedResult:
    """A tapped result that one equation reads, perhaps with parameters added and rearranged."""

    site: Site  # the site of the tap
    rearrangements: tuple[Equation, ...] = ()  # the equations that rearranged it, in their order

    def undo(self, layout: LeafLayout) -> LeafLayout | None:
        """Bring a layout from the shape of the variable to that of the tapped result."""
        for eqn in reversed(self.rearrangements):
            shape = eqn.invars[0].aval.shape
            if eqn.primitive.name == "transpose":
                permutation = eqn.params["permutation"]
                inverse = tuple(sorted(range(len(shape)), key=permutation.__getitem__))
                layout = layout.transpose(inverse)
            else:
                reshaped = layout.reshape(shape)
                if reshaped is None:
                    return None
                layout = reshaped
        return layout


class TappedResults:
    """The variables of one jaxpr that hold tapped results."""

    def __init__(self, recorder: Recorder, uses: dict[Variable, int]):
        self._recorder = recorder
        self._uses = uses
        self._results: dict[Variable, TappedResult] = {}

    def get(self, atom: Atom) -> TappedResult | None:
        """The tapped result in a variable, if there is one."""
        if isinstance(atom, jaxprs.Literal):  # no variable, and not hashable
            return None
        return self._results.get(atom)

    def note_site(self, eqn: Equation, site: Site) -> None:
        """Note that an equation gave the result of a site."""
        result = TappedResult(site)
        if site.use.kind == "ones":
            # With a bias added it is still the result of the contraction, to which another bias or
            # product may be added.
            for atom in eqn.invars:
                contraction = self.get(atom)
                if contraction is not None:
                    result = contraction
                    break
        self._note(eqn, result)

    def note_rearrangement(self, eqn: Equation) -> None:
        """Note that an equation rearranged what it reads."""
        before = self.get(eqn.invars[0])
        if before is not None:
            rearrangements = (*before.rearrangements, eqn)
            self._note(eqn, dataclasses.replace(before, rearrangements=rearrangements))

    def share_tap_of_sum(self, eqn: Equation) -> None:
        """If an equation adds two results of contractions, let them share the tap of the first."""
        left, right = (self.get(atom) for atom in eqn.invars)
        if left is None or right is None or left.rearrangements or right.rearrangements:
            return
        # Both are added as they are: nothing is repeated or cast on the way.
        avals = {(atom.aval.shape, atom.aval.dtype) for atom in (*eqn.invars, *eqn.outvars)}
        both_are_products = left.site.use.kind == right.site.use.kind == "outer"
        if len(avals) == 1 and both_are_products:
            # The cotangents of both taps are equal.
            for key, site in self._recorder.sites.items():
                if site.tap_key == right.site.tap_key:
                    shared = dataclasses.replace(site, tap_key=left.site.tap_key)
                    self._recorder.sites[key] = shared
            self._note(eqn, left)

    def _note(self, eqn: Equation, result: TappedResult) -> None:
        """Note the tapped result in the output of an equation, if only one equation reads it."""
        # If it is read twice, its cotangent is the sum of two, and not that of what is added.
        if self._uses[eqn.outvars[0]] == 1:
            self._results[eqn.outvars[0]] = result
