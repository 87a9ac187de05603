"""Parameters of functions with a derivative rule of their own (`custom_vjp`, `custom_jvp`).

Such a function reads the differentiable copy of a parameter, and its rule is left to JAX: the
Jacobian is exact, and has no structure. A straight-through estimator, whose rule hands the
cotangent of its output on to the parameter, is a view of the parameter, with other numbers.
"""

import jax
import jax.numpy as jnp
from jax import lax

from ntkdiag.engine.jacobian.recorder import Path, Recorder
from ntkdiag.engine.jacobian.views import JoinedViews, View
from ntkdiag.jaxtools import jaxprs
from ntkdiag.jaxtools.jaxprs import Equation, Variable
from ntkdiag.jaxtools.tracing import Tracer


def apply_derivative_rule(eqn: Equation, values: list, recorder: Recorder, path: Path) -> list:
    """The outputs of a function with a rule of its own, with views among its arguments."""
    constants = _constants(eqn, values)
    values = [_as_array(value) for value in values]
    argument = _handed_through(eqn, values, constants)
    if argument is None:
        return jaxprs.bind(eqn, [recorder.differentiable(value) for value in values])
    view = values[argument]
    before = [recorder.differentiable(value) for value in values[:argument]]
    after = [recorder.differentiable(value) for value in values[argument + 1 :]]

    def with_numbers(numbers: jax.Array) -> jax.Array:
        [output] = jaxprs.bind(eqn, [*before, numbers, *after])
        return output

    return [view.with_numbers(with_numbers, view.layout)]


def _handed_through(eqn: Equation, values: list, constants: frozenset[int]) -> int | None:
    """Which view among the arguments has the cotangent of the only output as its own, if any."""
    if len(eqn.outvars) > 1 or not _is_floating(eqn.outvars[0]):
        return None
    views = [isinstance(value, View) and not value.layout.repeats for value in values]
    if not any(views):
        return None
    differentiated = [k for k in range(len(values)) if k not in constants]
    arguments = [k for k in differentiated if _is_floating(eqn.invars[k])]

    def rule(inputs: list, cotangent: jax.Array) -> list:
        # Constants stay outside: JAX refuses to differentiate by what a function closes over.
        def output(*of_inputs: jax.Array) -> jax.Array:
            changed = dict(zip(differentiated, of_inputs, strict=True))
            completed = [changed.get(k, value) for k, value in enumerate(inputs)]
            [y] = jaxprs.bind(eqn, completed)
            return y

        _, pullback = jax.vjp(output, *(inputs[k] for k in differentiated))
        cotangents = dict(zip(differentiated, pullback(cotangent), strict=True))
        return [cotangents[k] for k in arguments]

    inputs = [_shape(atom) for atom in eqn.invars]
    jaxpr, _ = jaxprs.open_jaxpr(jax.make_jaxpr(rule)(inputs, _shape(eqn.outvars[0])))
    for argument, cotangent in zip(arguments, jaxpr.outvars, strict=True):
        if views[argument] and cotangent is jaxpr.invars[-1]:
            return argument
    return None


def _constants(eqn: Equation, values: list) -> frozenset[int]:
    """Which inputs are constants: JAX refuses to differentiate by what a function closes over."""
    # Under `vmap` JAX no longer says which inputs these are, so every constant counts.
    known = {k for k, value in enumerate(values) if not _is_traced(value)}
    closed_over = range(eqn.params.get("num_consts", 0))
    return frozenset(known.union(closed_over))


def _is_traced(value: object) -> bool:
    """Whether a value is a parameter, or what a tracer stands for; anything else is a constant."""
    return isinstance(value, View | JoinedViews | Tracer)


def _as_array(value: object) -> object:
    """A constant as an array of JAX's: a rule may index it by tracers."""
    return value if _is_traced(value) else lax.optimization_barrier(value)


def _is_floating(atom: Variable) -> bool:
    """Whether a variable holds floating-point numbers."""
    return jnp.issubdtype(atom.aval.dtype, jnp.floating)


def _shape(atom: Variable) -> jax.ShapeDtypeStruct:
    """Shape and dtype of a variable."""
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)
