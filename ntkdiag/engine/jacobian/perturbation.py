"""Results that are fresh from a tap, so that what is added to them can share it.

A tap is an array of zeros that is added to a product with a parameter, h . w, to get the cotangent
of that product: it is the derivative by the tap. A bias that is added to h . w has the same
cotangent as the product, and so has a second product that is added, as in a recurrent cell x . w +
s . u. They need no tap of their own: they read the cotangent of the first one's. This holds as long
as nothing else reads the result in between, so only variables that are read once count; transposes
and reshapes on the way are undone.
"""

import dataclasses

from ntkdiag import _jax
from ntkdiag._jax import Atom, Equation, Variable
from ntkdiag.engine.jacobian.leaf_layout import LeafLayout
from ntkdiag.engine.jacobian.recorder import Recorder, Site

REARRANGING = frozenset({"transpose", "reshape", "squeeze"})


@dataclasses.dataclass(frozen=True, eq=False)
class TappedResult:
    """A tapped result that one equation reads, perhaps with parameters added and rearranged.

    Attributes:
        site: The site of the tap.
        rearrangements: The equations that rearranged it, in their order.
    """

    site: Site
    rearrangements: tuple[Equation, ...] = ()

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
    """The variables of one jaxpr that hold tapped results.

    Args:
        recorder: Of the walk.
        uses: How often each variable is read.
    """

    def __init__(self, recorder: Recorder, uses: dict[Variable, int]):
        self._recorder = recorder
        self._uses = uses
        self._results: dict[Variable, TappedResult] = {}

    def get(self, atom: Atom) -> TappedResult | None:
        """The tapped result in a variable, if there is one."""
        if isinstance(atom, _jax.Literal):  # no variable, and not hashable
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
            self._recorder.share_tap(right.site.tap_key, instead=left.site.tap_key)
            self._note(eqn, left)

    def _note(self, eqn: Equation, result: TappedResult) -> None:
        """Note the tapped result in the output of an equation, if only one equation reads it."""
        # If it is read twice, its cotangent is the sum of two, and not that of what is added.
        if self._uses[eqn.outvars[0]] == 1:
            self._results[eqn.outvars[0]] = result
