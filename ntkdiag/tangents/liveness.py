"""Which equations of a jaxpr its outputs need."""

from typing import Any

from ntkdiag import _compat


def liveness(jaxpr: Any) -> tuple[list[bool], dict[Any, int]]:
    """Which equations the outputs need, and how often each variable is read by those."""
    uses: dict[Any, int] = {}

    def use(atoms):
        for atom in atoms:
            if not isinstance(atom, _compat.Literal):
                uses[atom] = uses.get(atom, 0) + 1

    use(jaxpr.outvars)
    needed = [False] * len(jaxpr.eqns)
    for k in reversed(range(len(jaxpr.eqns))):
        eqn = jaxpr.eqns[k]
        if eqn.effects or any(var in uses for var in eqn.outvars):
            needed[k] = True
            use(eqn.invars)
    return needed, uses
