"""What becomes of a parameter in one equation: followed, tapped, or left to JAX.

An equation that reads a view of a parameter is one of three things, tried in this order:

1. its outputs are views again, and the walk follows them;
2. its primitive has a rule (`rules`), or it adds the parameter to the result of one: a use with
   structure. It runs with the weight as a constant, a tap (an array of zeros) is added to its
   result, and the other operand is handed out. The cotangent of the tap and that operand are the
   two factors of the weight's Jacobian;
3. anything else: it runs with the differentiable copy of the leaf, and this part of the Jacobian is
   an ordinary VJP.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ntkdiag.engine.jacobian.recorder import Path, Recorder, TappedResults
from ntkdiag.engine.jacobian.rules import RULES, bias_use
from ntkdiag.engine.jacobian.views import JoinedViews, View, views_of
from ntkdiag.jaxtools import jaxprs
from ntkdiag.jaxtools.cpu import repeat
from ntkdiag.jaxtools.jaxprs import Atom, Equation, Variable
from ntkdiag.jaxtools.tracing import Tracer

# Elementwise primitives that repeat axes of length 1.
_REPEATING = frozenset(("add", "sub", "mul", "div"))


@dataclasses.dataclass(frozen=True, eq=False)
class WalkState:
    """What a walk knows while it is in one jaxpr."""

    recorder: Recorder  # what it finds and hands out
    tapped: TappedResults  # the variables that hold results fresh from a tap
    constants: set[Variable]  # the variables that have no derivative, as far as this jaxpr tells

    def is_constant(self, atom: Atom) -> bool:
        """Whether a variable or literal has no derivative, as far as this jaxpr tells."""
        return isinstance(atom, jaxprs.Literal) or atom in self.constants


def is_view(value: object) -> bool:
    """Whether a value of the walk is a view, or several side by side."""
    return isinstance(value, View | JoinedViews)


def apply_to_views(eqn: Equation, values: list, path: Path, state: WalkState) -> list:
    """The outputs of an equation with a view, or several, among its inputs."""
    recorder = state.recorder
    # Parameters that are concatenated stay views, side by side.
    joined = JoinedViews.of(eqn, values)
    if joined is not None:
        return [joined]
    # Which operands are views, by number: 0 is the left one.
    sides = [k for k, value in enumerate(values) if is_view(value)]
    # If two parameters are multiplied, one of them may be treated as data.
    if len(sides) == 2 and eqn.primitive.name in RULES:
        smaller = _smaller_of_two(eqn, values)
        if smaller is not None:
            values = list(values)
            values[smaller] = recorder.differentiable(values[smaller])
            sides.remove(smaller)
    # One parameter and data, in order: views again, or a use with structure.
    outputs = None
    if len(sides) == 1 and isinstance(values[sides[0]], JoinedViews):
        outputs = _apply_to_joined(eqn, values, sides[0], path, recorder)
    elif len(sides) == 1:
        outputs = _apply_to_view(eqn, values, sides[0], path, state)
    if outputs is not None:
        return outputs
    # No structure: JAX differentiates this equation, with the copies of the parameters.
    inputs = [recorder.differentiable(value) for value in values]
    if eqn.primitive.name in _REPEATING:
        shape = eqn.outvars[0].aval.shape
        # What the primitive repeats is repeated before it, in the form with the fast derivative.
        for side in sides:
            if jnp.ndim(inputs[side]):
                inputs[side] = repeat(inputs[side], shape)
    return jaxprs.bind(eqn, inputs)


def _smaller_of_two(eqn: Equation, values: list) -> int | None:
    """Which of two parameters that are multiplied becomes the input of the other, if any."""
    # This pays where the product is smaller than the larger of them (a learned query, say),
    # whose derivative is then not formed.
    sizes = [math.prod(jnp.shape(view.value)) for view in values]
    size_of_product = math.prod(eqn.outvars[0].aval.shape)
    if size_of_product >= max(sizes):
        return None
    return int(np.argmin(sizes))


def _apply_to_view(
    eqn: Equation, values: list, side: int, path: Path, state: WalkState
) -> list | None:
    """The outputs of an equation with one view; None where it has no structure."""
    name = eqn.primitive.name
    outputs = views_of(eqn, values)
    # A weight: w . h.
    if outputs is None and name in RULES:
        outputs = _tap(eqn, values, side, path, state.recorder)
    # A parameter with an offset: w + 1, or w - w_0.
    if outputs is None and name in ("add", "sub"):
        outputs = _shift(eqn, values, side, state)
    # A bias: w . h + b.
    if outputs is None and name == "add":
        outputs = _add_bias(eqn, values, side, path, state)
    return outputs


def _apply_to_joined(
    eqn: Equation, values: list, side: int, path: Path, recorder: Recorder
) -> list | None:
    """The outputs of an equation with views side by side; None where it has no structure."""
    outputs = values[side].through(eqn)
    if outputs is not None:
        return [outputs]
    if eqn.primitive.name in RULES:
        return _tap_joined(eqn, values, side, path, recorder)
    return None


def _tap(eqn: Equation, values: list, side: int, path: Path, recorder: Recorder) -> list | None:
    """A view in a primitive with a rule: tap the result and hand out the other operand."""
    view = values[side]
    operand = values[1 - side]
    # Of a view that repeats elements of its leaf the derivative would have to be summed up.
    if view.layout.repeats:
        return None
    name = eqn.primitive.name
    use = RULES[name](eqn.params, side, view.layout, jnp.shape(operand))
    if use is None:
        return None
    scale = None
    if use.kind == "rows":
        # One factor of look-ups has one table: those that a scan stacks are left to JAX.
        if view.layout.n_block:
            return None
        # Row numbers cannot carry the scalar factor of the view, so the tap does.
        scale = view.scale
        view = dataclasses.replace(view, scale=None)
    recorder.record(path, path, view, name, use, operand)
    [y] = jaxprs.bind(eqn, _with_constant(values, side))
    return [recorder.add_tap(path, y, scale)]


def _tap_joined(
    eqn: Equation, values: list, side: int, path: Path, recorder: Recorder
) -> list | None:
    """Views side by side in a primitive with a rule: one product, one tap, a window for each."""
    name = eqn.primitive.name
    joined = values[side]
    operand = values[1 - side]
    uses = joined.uses(RULES[name], eqn.params, side, jnp.shape(operand))
    if uses is None:
        return None
    recorder.record_joined(path, joined, name, uses, operand)
    [y] = jaxprs.bind(eqn, _with_constant(values, side))
    return [recorder.add_tap(path, y)]


def _shift(eqn: Equation, values: list, side: int, state: WalkState) -> list[View] | None:
    """A parameter plus or minus what has no derivative: a view of it with other numbers."""
    view = values[side]
    keeps_shape = view.layout.shape == eqn.outvars[0].aval.shape
    if not keeps_shape or not state.is_constant(eqn.invars[1 - side]):
        return None

    def shifted(numbers):
        inputs = list(values)
        inputs[side] = numbers
        return jaxprs.bind(eqn, inputs)[0]

    factor = None
    if side == 1 and eqn.primitive.name == "sub":  # subtracted: constant - parameter
        factor = -1.0
    return [view.with_numbers(shifted, view.layout, factor)]


def _add_bias(eqn: Equation, values: list, side: int, path: Path, state: WalkState) -> list | None:
    """A parameter added to the tapped result of a contraction: a use that shares its tap."""
    view = values[side]
    y = values[1 - side]
    recorder = state.recorder
    y_variable = eqn.invars[1 - side]
    result = state.tapped.get(y_variable)
    if result is None:
        return None
    # Both have to be in the same scans in the same roles, and the result may not be repeated by the
    # addition: what is added then is no bias of it.
    shape = y_variable.aval.shape
    same_rank = len(view.layout.shape) == len(shape)
    if not same_rank or recorder.roles(view) != result.site.scans:
        return None
    if shape != eqn.outvars[0].aval.shape:
        return None
    # `add` repeats the axes of length 1 of the parameter. What rearranged the result since it was
    # tapped is undone: the cotangent of the tap has the shape it had then.
    repeated = view.layout.broadcast(shape, tuple(range(len(shape))))
    layout = result.undo(repeated)
    if layout is None:
        return None
    use = bias_use(result.site.use, layout)
    if use is None:
        return None
    recorder.record(path, result.site.tap_key, view, "add", use, np.ones((), y.dtype))
    return jaxprs.bind(eqn, _with_constant(values, side))


def _with_constant(values: list, side: int) -> list:
    """The inputs of an equation, with the numbers of its view as a constant."""
    inputs = list(values)
    inputs[side] = values[side].value
    return inputs


# Functions with a derivative rule of their own (`custom_vjp`, `custom_jvp`) read the differentiable
# copy of a parameter, and their rule is left to JAX: the Jacobian is exact, and has no structure. A
# straight-through estimator, whose rule hands the cotangent of its output on to the parameter, is a
# view of the parameter, with other numbers.


def apply_derivative_rule(eqn: Equation, values: list, recorder: Recorder, path: Path) -> list:
    """The outputs of a function with a rule of its own, with views among its arguments."""
    constants = _constants(eqn, values)
    # A constant becomes an array of JAX's: a rule may index it by tracers.
    values = [v if _is_traced(v) else lax.optimization_barrier(v) for v in values]
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
        # Constants stay outside: JAX refuses to differentiate with respect to values that a
        # function closes over.
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


def _is_floating(atom: Variable) -> bool:
    """Whether a variable holds floating-point numbers."""
    return jnp.issubdtype(atom.aval.dtype, jnp.floating)


def _shape(atom: Variable) -> jax.ShapeDtypeStruct:
    """Shape and dtype of a variable."""
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)
