"""Jaxprs: their classes, how to evaluate and rebuild them, and questions about them.

`jax.extend` carries no compatibility guarantee, so that the names, classes and parameters that
differ between versions are read here, and nowhere else. Differences are found by feature detection,
never by comparing version numbers.
"""

import dataclasses
import re
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.core
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval
from jaxtyping import Array, PyTree

# What a jaxpr is made of: variables and literals ("atoms"), and equations between them. JAX
# declares less than these have (an aval without a shape, for one), so a type checker takes them as
# they come; and it declares PyTreeDef as a variable, which is no type.
if TYPE_CHECKING:
    Jaxpr: TypeAlias = Any
    ClosedJaxpr: TypeAlias = Any
    Equation: TypeAlias = Any
    Variable: TypeAlias = Any
    Atom: TypeAlias = Any
    TreeStructure: TypeAlias = Any
else:
    Jaxpr = jex_core.Jaxpr
    ClosedJaxpr = jex_core.ClosedJaxpr
    Equation = jex_core.JaxprEqn
    Variable = jex_core.Var
    Atom = jex_core.Var | jex_core.Literal
    TreeStructure = jax.tree_util.PyTreeDef

Literal = jex_core.Literal
eval_jaxpr: Callable[..., list] = jax.core.eval_jaxpr


def open_jaxpr(jaxpr: Jaxpr | ClosedJaxpr) -> tuple[Jaxpr, list]:
    """Split an open or closed jaxpr into (jaxpr, consts)."""
    # From JAX 0.11 on both are one class, with `consts` and without `jaxpr`.
    opened = getattr(jaxpr, "jaxpr", jaxpr)
    consts = getattr(jaxpr, "consts", ())
    return opened, list(consts)


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """(number of constants, number of carries) among the inputs of a `scan` equation."""
    if "ft_in" in params:  # JAX >= 0.11: a tree (consts, carry, xs)
        consts, carry, _ = params["ft_in"].unpack()
        return len(consts), len(carry)
    return params["num_consts"], params["num_carry"]


def bind(eqn: Equation, values: list) -> list:
    """The outputs of an equation of a jaxpr, applied to other values."""
    primitive = eqn.primitive
    outputs = primitive.bind(*values, **primitive.get_bind_params(eqn.params))
    if primitive.multiple_results:
        return list(outputs)
    return [outputs]


def sub_jaxprs(eqn: Equation) -> list[Jaxpr]:
    """The jaxprs nested in one equation: bodies of loops, branches, calls."""
    return [open_jaxpr(jaxpr)[0] for jaxpr in jex_core.jaxprs_in_params(eqn.params)]


def with_bodies(eqn: Equation, rebuilt: Callable[[Jaxpr, list], ClosedJaxpr]) -> Equation:
    """The same equation with `rebuilt(jaxpr, consts)` in place of every jaxpr nested in it."""

    def rebuilt_parameter(value: Any) -> Any:
        """A parameter of the equation, rebuilt if it is a jaxpr or a tuple of some."""
        if _is_jaxpr(value):
            closed = rebuilt(*open_jaxpr(value))
            # An open jaxpr stays open: such a body has no place for constants.
            return closed if hasattr(value, "consts") else open_jaxpr(closed)[0]
        if isinstance(value, tuple) and value and all(map(_is_jaxpr, value)):
            return tuple(map(rebuilt_parameter, value))  # the branches of `cond`
        return value

    params = {name: rebuilt_parameter(value) for name, value in eqn.params.items()}
    return eqn.replace(params=params)


def _is_jaxpr(value: Any) -> bool:
    """Whether a parameter of an equation is a jaxpr, open or closed."""
    return hasattr(value, "eqns")


def is_ref(atom: Atom) -> bool:
    """Whether a value of a jaxpr is a mutable array (`jax.new_ref`)."""
    return hasattr(atom.aval, "inner_aval")


def vjp(f: Callable[..., tuple[Array, PyTree]], *primals: PyTree) -> tuple[Array, Callable, PyTree]:
    """`jax.vjp(f, *primals, has_aux=True)` inside a trace, traced in half the time."""
    # `jax.vjp` makes a jaxpr of every equation of f. Here one pass of JVP rules under the trace
    # that is there already leaves what is linear in the tangents, and only that is transposed.
    # y and aux do not depend on the tangents, so they are values of the enclosing trace; a function
    # that is to be transposed may only return what is linear, so they are handed out beside it.
    handed_out: list = []

    def pushforward(*tangents: PyTree) -> Array:
        y, dy, aux = jax.jvp(f, primals, tangents, has_aux=True)
        handed_out[:] = y, aux
        return dy

    pullback = jax.linear_transpose(pushforward, *primals)
    y, aux = handed_out
    return y, pullback, aux


# What was found about a jaxpr, for as long as it lives.
_PRIMITIVES: weakref.WeakKeyDictionary[Jaxpr, frozenset[str]] = weakref.WeakKeyDictionary()
_LIVENESS: "weakref.WeakKeyDictionary[Jaxpr, Liveness]" = weakref.WeakKeyDictionary()
MAKES_REF = "(makes a mutable array)"  # stands among the primitives of a jaxpr that does


def primitives(jaxpr: Jaxpr | ClosedJaxpr) -> frozenset[str]:
    """The names of all primitives in a jaxpr, and in the jaxprs nested in it."""
    opened, _ = open_jaxpr(jaxpr)
    names = _PRIMITIVES.get(opened)
    if names is None:
        found = set()
        for eqn in opened.eqns:
            found.add(eqn.primitive.name)
            if any(map(is_ref, eqn.outvars)):
                found.add(MAKES_REF)
            for body in sub_jaxprs(eqn):
                found |= primitives(body)
        names = _PRIMITIVES[opened] = frozenset(found)
    return names


def contains(jaxpr: Jaxpr | ClosedJaxpr, primitive: str) -> bool:
    """Whether a primitive occurs anywhere in a jaxpr."""
    return primitive in primitives(jaxpr)


def normalizes(jaxpr: Jaxpr | ClosedJaxpr) -> bool:
    """Whether a jaxpr sums and takes roots of arrays, as normalization layers do."""
    return contains(jaxpr, "reduce_sum") and _takes_roots(open_jaxpr(jaxpr)[0])


def _takes_roots(jaxpr: Jaxpr) -> bool:
    """Whether a root of an array is taken anywhere; a root of a scalar is that of a width."""
    for eqn in jaxpr.eqns:
        is_root = eqn.primitive.name in ("rsqrt", "sqrt", "pow")
        if is_root and eqn.outvars[0].aval.shape:
            return True
        if any(map(_takes_roots, sub_jaxprs(eqn))):
            return True
    return False


def judges_numbers(jaxpr: Jaxpr | ClosedJaxpr) -> tuple[bool, bool]:
    """Whether a jaxpr loops until something holds, and whether it calls back."""
    # Solvers iterate until a residual is small: one that is NaN never is, and the loop never
    # ends. Guards (`equinox.error_if`, those of lineax and diffrax) are callbacks: they raise
    # on NaN.
    names = primitives(jaxpr)
    return "while" in names, any("callback" in name for name in names)


def needs_inputs(f: Callable[[PyTree], PyTree], inputs: PyTree) -> bool:
    """Whether the outputs of f need any of these inputs; f is traced, not run."""
    jaxpr, _ = open_jaxpr(jax.make_jaxpr(f)(inputs))
    # Dead code is removed from nested jaxprs too: what is computed and not used counts as nothing.
    _, is_used = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return any(is_used)


def is_same_program(a: ClosedJaxpr, b: ClosedJaxpr) -> bool:
    """Whether two traces of a function gave the same operations on the same constants."""
    jaxpr_a, consts_a = open_jaxpr(a)
    jaxpr_b, consts_b = open_jaxpr(b)
    if len(consts_a) != len(consts_b) or _without_addresses(jaxpr_a) != _without_addresses(jaxpr_b):
        return False
    # Constants are usually the same objects; others are compared by value.
    pairs = zip(consts_a, consts_b, strict=True)
    return all(one is other or np.array_equal(one, other) for one, other in pairs)


def _without_addresses(jaxpr: Jaxpr) -> str:
    """A jaxpr as text, without the addresses of functions, which differ between traces."""
    return re.sub(r"0x[0-9a-f]+", "", str(jaxpr))


# What outputs need, and what depends on inputs, by one sweep each over the equations:
#
# * backwards from the outputs: an equation is needed if something reads one of its results, and its
#   derivative is needed if one of its results is floating and the derivative of a reader is needed;
# * forwards from some variables: whatever is computed from one of them depends on them.
#
# A mutable array (`jax.new_ref`) is an input that equations may write to, so it counts among the
# results of every equation that takes it.


@dataclasses.dataclass(frozen=True)
class Liveness:
    """What the outputs of a jaxpr need."""

    needed: list[bool]  # for each equation, whether they need its results
    differentiated: list[bool]  # for each equation, whether they need its derivative
    # How often each variable is read, by needed equations and as an output.
    uses: dict[Variable, int]


def liveness(jaxpr: Jaxpr) -> Liveness:
    """What the outputs of a jaxpr need."""
    if jaxpr in _LIVENESS:
        return _LIVENESS[jaxpr]
    # What is written to mutable arrays is read outside the jaxpr.
    written = [var for var in (*jaxpr.constvars, *jaxpr.invars) if is_ref(var)]
    uses: dict[Variable, int] = {}
    with_derivative: set[Variable] = set()

    def read(atoms: Iterable[Atom], differentiated: bool) -> None:
        """Note that variables are read, and whether the reader is differentiated."""
        for var in variables(atoms):
            uses[var] = uses.get(var, 0) + 1
            # Integers have no derivative: it ends where only they are read.
            if differentiated and jnp.issubdtype(var.aval.dtype, jnp.inexact):
                with_derivative.add(var)

    read([*jaxpr.outvars, *written], differentiated=True)
    n_equations = len(jaxpr.eqns)
    needed = [False] * n_equations
    differentiated = [False] * n_equations
    # From the last equation to the first: all readers of a result have been seen before it.
    for k in reversed(range(n_equations)):
        eqn = jaxpr.eqns[k]
        # An equation with effects (a callback, a write) runs also if nothing reads its results.
        if not eqn.effects and not any(var in uses for var in eqn.outvars):
            continue
        needed[k] = True
        if eqn.primitive.name != "stop_gradient":
            differentiated[k] = not with_derivative.isdisjoint(_results(eqn))
        read(eqn.invars, differentiated[k])
    found = _LIVENESS[jaxpr] = Liveness(needed, differentiated, uses)
    return found


def without_dead(jaxpr: Jaxpr) -> Jaxpr:
    """The jaxpr without equations that its outputs do not need; nested jaxprs stay as they are."""
    needed = liveness(jaxpr).needed
    kept = [eqn for k, eqn in enumerate(jaxpr.eqns) if needed[k]]
    return jaxpr.replace(eqns=kept)


def downstream(jaxpr: Jaxpr, sources: Iterable[Variable]) -> set[Variable]:
    """The variables that depend on some variables, these included."""
    dependent = set(sources)
    for eqn in jaxpr.eqns:
        if not dependent.isdisjoint(variables(eqn.invars)):
            dependent.update(_results(eqn))
    return dependent


def have_derivatives(jaxpr: Jaxpr, n_sources: int) -> bool:
    """Whether an output has a derivative by one of the first inputs; bodies count as wholes."""
    differentiated = set(jaxpr.invars[:n_sources])
    for eqn in jaxpr.eqns:
        is_reached = not differentiated.isdisjoint(variables(eqn.invars))
        if is_reached and eqn.primitive.name != "stop_gradient":
            for var in _results(eqn):
                if is_ref(var) or jnp.issubdtype(var.aval.dtype, jnp.inexact):
                    differentiated.add(var)
    return not differentiated.isdisjoint(variables(jaxpr.outvars))


def _results(eqn: Equation) -> list[Variable]:
    """The outputs of an equation, and the mutable arrays it may write to."""
    written = [var for var in variables(eqn.invars) if is_ref(var)]
    return [*eqn.outvars, *written]


def variables(atoms: Iterable[Atom]) -> list[Variable]:
    """The variables among atoms."""
    return [atom for atom in atoms if not isinstance(atom, Literal)]
