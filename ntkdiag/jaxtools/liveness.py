"""Which equations of a jaxpr are needed, which variables depend on which, and how they round.

The first two questions are answered by one sweep each over the equations:

* backwards from the outputs: an equation is needed if somebody reads one of its results, and its
  derivative is needed if one of its results is floating and the derivative of a reader is needed;
* forwards from some variables: whatever is computed from one of them depends on them.

A mutable array (`jax.new_ref`) is an input that equations may write to, so it counts among the
results of every equation that takes it.

How coarsely a function rounds follows from both, whatever the dtypes of its ends are. A network
with float32 parameters and float32 outputs may compute in bfloat16 in between. So the unit roundoff
of a function is the largest one of all values on the way from its inputs to its outputs.
"""

import dataclasses
from collections.abc import Iterable

import jax.numpy as jnp

from ntkdiag.jaxtools import jaxprs
from ntkdiag.jaxtools.jaxprs import Atom, Equation, Jaxpr, Variable


@dataclasses.dataclass(frozen=True)
class Liveness:
    """What the outputs of a jaxpr need."""

    needed: list[bool]  # for each equation, whether they need its results
    differentiated: list[bool]  # for each equation, whether they need its derivative
    # How often each variable is read, by needed equations and as an output.
    uses: dict[Variable, int]


def liveness(jaxpr: Jaxpr) -> Liveness:
    """What the outputs of a jaxpr need."""
    # What is written to mutable arrays is read outside of the jaxpr.
    written = [var for var in (*jaxpr.constvars, *jaxpr.invars) if jaxprs.is_ref(var)]
    uses: dict[Variable, int] = {}
    with_derivative: set[Variable] = set()

    def read(atoms: Iterable[Atom], differentiated: bool) -> None:
        """Note that variables are read, and whether the reader is differentiated."""
        for var in _variables(atoms):
            uses[var] = uses.get(var, 0) + 1
            # Whole numbers have no derivative, so it ends where only they are read.
            if differentiated and jnp.issubdtype(var.aval.dtype, jnp.inexact):
                with_derivative.add(var)

    read([*jaxpr.outvars, *written], differentiated=True)
    n_equations = len(jaxpr.eqns)
    needed = [False] * n_equations
    differentiated = [False] * n_equations
    # From the last equation to the first: all readers of a result have been seen before it.
    for k in reversed(range(n_equations)):
        eqn = jaxpr.eqns[k]
        # An equation with effects (a callback, a write) runs also if nobody reads its results.
        if not eqn.effects and not any(var in uses for var in eqn.outvars):
            continue
        needed[k] = True
        if eqn.primitive.name != "stop_gradient":
            differentiated[k] = not with_derivative.isdisjoint(_results(eqn))
        read(eqn.invars, differentiated[k])
    return Liveness(needed, differentiated, uses)


def without_dead(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr without equations that its outputs do not need; nested jaxprs stay as they are."""
    needed = liveness(jaxpr).needed
    kept = [eqn for k, eqn in enumerate(jaxpr.eqns) if needed[k]]
    return jaxpr.replace(eqns=kept)


def downstream(jaxpr: Jaxpr, sources: Iterable[Variable]) -> set[Variable]:
    """The variables that depend on some variables, these included."""
    dependent = set(sources)
    for eqn in jaxpr.eqns:
        if not dependent.isdisjoint(_variables(eqn.invars)):
            dependent.update(_results(eqn))
    return dependent


def depends_on(jaxpr: Jaxpr, n_fixed: int) -> list[bool]:
    """For each output of a jaxpr, whether it depends on an input after the first `n_fixed`."""
    varying = downstream(jaxpr, jaxpr.invars[n_fixed:])
    return [not isinstance(atom, jaxprs.Literal) and atom in varying for atom in jaxpr.outvars]


def have_derivatives(jaxpr: Jaxpr, n_sources: int) -> bool:
    """Whether an output has a derivative by one of the first inputs; bodies count as wholes."""
    differentiated = set(jaxpr.invars[:n_sources])
    for eqn in jaxpr.eqns:
        is_reached = not differentiated.isdisjoint(_variables(eqn.invars))
        if is_reached and eqn.primitive.name != "stop_gradient":
            results = [var for var in _results(eqn) if jaxprs.is_ref(var) or _is_real(var)]
            differentiated.update(results)
    return not differentiated.isdisjoint(_variables(jaxpr.outvars))


def _is_real(var: Variable) -> bool:
    """Whether a variable is of floating numbers: others have no derivative."""
    return jnp.issubdtype(var.aval.dtype, jnp.inexact)


def _results(eqn: Equation) -> list[Variable]:
    """The outputs of an equation, and the mutable arrays it may write to."""
    written = [var for var in _variables(eqn.invars) if jaxprs.is_ref(var)]
    return [*eqn.outvars, *written]


def _variables(atoms: Iterable[Atom]) -> list[Variable]:
    """The variables among variables and literals."""
    return [atom for atom in atoms if not isinstance(atom, jaxprs.Literal)]
