"""What depends on what in a jaxpr."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp

from ntkdiag import _compat


@dataclasses.dataclass(frozen=True)
class Liveness:
    """What the outputs of a jaxpr need.

    Attributes:
        needed: For each equation, whether they need it.
        derived: For each equation, whether they need a derivative of it.
        uses: How often each variable is read by needed equations and by the outputs.
    """

    needed: list[bool]
    derived: list[bool]
    uses: dict[Any, int]


def liveness(jaxpr: Any, outputs: Iterable[Any] | None = None) -> Liveness:
    """What the outputs of a jaxpr need, or those of its variables that are given."""
    uses: dict[Any, int] = {}
    moving: set[Any] = set()

    def use(atoms, derived):
        for atom in _variables(atoms):
            uses[atom] = uses.get(atom, 0) + 1
            if derived and jnp.issubdtype(atom.aval.dtype, jnp.inexact):
                moving.add(atom)

    written = [var for var in (*jaxpr.constvars, *jaxpr.invars) if _compat.is_ref(var)]  # read again outside
    use([*jaxpr.outvars, *written] if outputs is None else outputs, True)
    needed, derived = [False] * len(jaxpr.eqns), [False] * len(jaxpr.eqns)
    for k in reversed(range(len(jaxpr.eqns))):
        eqn = jaxpr.eqns[k]
        if eqn.effects or any(var in uses for var in eqn.outvars):
            needed[k] = True
            derived[k] = eqn.primitive.name != "stop_gradient" and not moving.isdisjoint(_results(eqn))
            use(eqn.invars, derived[k])
    return Liveness(needed, derived, uses)


def without_dead(jaxpr: Any) -> Any:
    """The jaxpr without the equations that its outputs do not need, those of nested jaxprs left alone."""
    eqns = zip(jaxpr.eqns, liveness(jaxpr).needed, strict=True)
    return jaxpr.replace(eqns=[eqn for eqn, needed in eqns if needed])


def downstream(jaxpr: Any, sources: Iterable[Any]) -> set[Any]:
    """The variables that depend on some of the variables."""
    found = set(sources)
    for eqn in jaxpr.eqns:
        if not found.isdisjoint(_variables(eqn.invars)):
            found.update(_results(eqn))
    return found


def _results(eqn: Any) -> list[Any]:
    """Outputs of an equation, and the mutable arrays it may write to."""
    return [*eqn.outvars, *(var for var in _variables(eqn.invars) if _compat.is_ref(var))]


def _variables(atoms: Iterable[Any]) -> list[Any]:
    return [atom for atom in atoms if not isinstance(atom, _compat.Literal)]
