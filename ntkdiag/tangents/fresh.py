"""Which results are fresh from a tap, so that what is added to them can share it."""

import dataclasses
from collections.abc import Callable
from typing import Any

from ntkdiag import _compat
from ntkdiag.tangents.layout import Layout
from ntkdiag.tangents.recorder import Recorder, Site

REARRANGING = frozenset({"transpose", "reshape", "squeeze"})


@dataclasses.dataclass(frozen=True, eq=False)
class Fresh:
    """A tapped result that only one equation reads, perhaps rearranged: a parameter added to it shares its tap.

    Attributes:
        site: The site.
        undo: How a layout in the shape of the variable is brought to the shape of the tapped result.
        rearranged: Whether the variable is anything but the tapped result itself, or a parameter added to it.
    """

    site: Site
    undo: Callable[[Layout], Layout | None]
    rearranged: bool = False


def follow(eqn: Any, fresh: dict[Any, Fresh], uses: dict[Any, int], site: Site | None = None) -> None:
    """Note that the output of an equation is the tapped result of a site, or a rearrangement of one."""
    out = eqn.outvars[0]
    if uses[out] != 1:
        return
    if site is not None:
        before = fresh.get(next((v for v in eqn.invars if not isinstance(v, _compat.Literal) and v in fresh), None))
        fresh[out] = before if site.use.kind == "ones" and before else Fresh(site, lambda layout: layout)
        return
    before, shape = fresh[eqn.invars[0]], eqn.invars[0].aval.shape
    if eqn.primitive.name == "transpose":
        inverse = tuple(sorted(range(len(shape)), key=eqn.params["permutation"].__getitem__))
        undo = lambda layout: before.undo(layout.transpose(inverse))
    else:
        undo = lambda layout: (plain := layout.reshape(shape)) and before.undo(plain)
    fresh[out] = Fresh(before.site, undo, rearranged=True)


def share(eqn: Any, fresh: dict[Any, Fresh], uses: dict[Any, int], recorder: Recorder) -> None:
    """Where the results of two contractions are added, as in a recurrent cell, they share the tap of the first."""
    first, second = (None if isinstance(v, _compat.Literal) else fresh.get(v) for v in eqn.invars)
    if first is None or second is None or first.rearranged or second.rearranged:
        return
    alike = len({(atom.aval.shape, atom.aval.dtype) for atom in (*eqn.invars, *eqn.outvars)}) == 1
    if alike and first.site.use.kind == second.site.use.kind == "outer":
        recorder.share(second.site.tap, first.site.tap)
        if uses[eqn.outvars[0]] == 1:
            fresh[eqn.outvars[0]] = first
