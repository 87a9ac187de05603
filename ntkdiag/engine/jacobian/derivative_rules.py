"""Parameters of functions with a derivative rule of their own (`custom_vjp`, `custom_jvp`).

The rule is opened (see `traced_vjp_rule`) to see where the cotangent of each parameter comes from.
Where it is a product a . c, the parameter becomes a constant of the function, and a tap, zeros of
the shape of c, becomes one more argument: the function with taps has a rule that returns c as the
cotangent of the tap. The product itself is then never made. Where the function hands the cotangent
of its output straight through to the parameter, its output is a view of the parameter. Everything
else is left to JAX.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ntkdiag import _jax
from ntkdiag._jax import Equation
from ntkdiag.engine.jacobian.leaf_layout import LeafLayout
from ntkdiag.engine.jacobian.recorder import Path, Recorder
from ntkdiag.engine.jacobian.traced_vjp_rule import (
    RuleProduct,
    TracedVjpRule,
    evaluate_atoms,
    is_floating,
    outputs_and_pullback,
)
from ntkdiag.engine.jacobian.views import JoinedViews, View


def apply_derivative_rule(eqn: Equation, values: list, recorder: Recorder, path: Path) -> list:
    """The outputs of a function with a rule of its own, with views among its arguments."""
    constants = _constants(eqn, values)
    values = [_as_array(value) for value in values]
    views = {}
    for k, value in enumerate(values):
        if isinstance(value, View) and not value.layout.repeats:
            views[k] = value
    if not views or not all(map(is_floating, eqn.outvars)):
        return _jax.bind(eqn, [recorder.differentiable(value) for value in values])

    # 1. Where does the cotangent of each parameter come from? A function that hands its cotangent
    # straight through has one output, which is a view; nothing else is to be done for it.
    rule = TracedVjpRule.of_equation(eqn, constants)
    products: dict[int, RuleProduct] = {}
    for k, view in views.items():
        source = rule.source(k, view.layout)
        if isinstance(source, LeafLayout):
            return [_straight_through(eqn, values, k, source, recorder)]
        if source is not None:
            products[k] = source
    if not products:
        return _jax.bind(eqn, [recorder.differentiable(value) for value in values])

    # 2. Parameters of products, and those that are biases of them, become constants.
    uses = {k: rule.weight_use(product) for k, product in products.items()}
    # The tap of a scaled view has a scaled cotangent, which is not that of a bias.
    uses_by_c = {}
    for k, product in products.items():
        if views[k].scale is None:
            use, _ = uses[k]
            uses_by_c[product.c] = use, (*path, k)
    biases = {}
    for k, view in views.items():
        bias = rule.bias_use(k, view.layout, uses_by_c)
        if bias is not None:
            biases[k] = bias
    inputs = []
    for k, value in enumerate(values):
        is_constant = k in products or k in biases
        inputs.append(value.value if is_constant else recorder.differentiable(value))

    # 3. Each product gets a tap, and hands out what its operand a is computed from.
    primitive = eqn.primitive.name
    taps = {}
    for k, (use, reads) in uses.items():
        key = (*path, k)
        # What is handed out is all that the rule reads, not a alone. It cannot carry the scalar
        # factor of the view, so the tap does.
        view = dataclasses.replace(views[k], scale=None)
        recorder.record(key, key, view, primitive, use, [inputs[read] for read in reads])
        c = products[k].c.aval
        taps[k] = recorder.add_tap(key, jnp.zeros(c.shape, c.dtype), views[k].scale)
    # A bias reads the cotangent of the tap of its product; its own operand is a = 1.
    for k, (use, tap_key) in biases.items():
        a = np.ones((), views[k].dtype)
        recorder.record((*path, k), tap_key, views[k], primitive, use, a)
    layouts = {k: views[k].layout for k in products}
    return _function_with_taps(eqn, constants, layouts)(inputs, taps)


def _straight_through(
    eqn: Equation, values: list, argument: int, layout: LeafLayout, recorder: Recorder
) -> View:
    """The output of a function that hands its cotangent through to one argument: a view of it."""
    inputs = list(values)
    for k, value in enumerate(values):
        if k != argument:
            inputs[k] = recorder.differentiable(value)

    def function(numbers):
        with_numbers = list(inputs)
        with_numbers[argument] = numbers
        [output] = _jax.bind(eqn, with_numbers)
        return output

    return values[argument].with_numbers(function, layout)


def _function_with_taps(
    eqn: Equation, constants: frozenset[int], layouts: dict[int, LeafLayout]
) -> Callable[[list, dict], list]:
    """An equation as a function of its inputs and of taps, whose cotangents are the c of products.

    `layouts` are those of the parameters with a tap, by number of the argument.
    """

    # The taps are zero and change no number: the function is that of the equation.
    @jax.custom_vjp
    def tapped(inputs, taps):
        return _jax.bind(eqn, inputs)

    def forward(inputs, taps):
        return outputs_and_pullback(eqn, constants, inputs)

    def backward(pullback, cotangents):
        """Cotangents of the inputs, and of the taps: the operand c of each product."""
        # The pullback is a pytree: what the forward pass kept, and how it is used.
        residuals, tree = jax.tree.flatten(pullback)
        # The rule again, now from the residuals of the forward pass instead of from the inputs.
        rule = TracedVjpRule.of(eqn, constants, tree.unflatten, residuals, cotangents)
        operands_c = []
        for k, layout in layouts.items():
            product = rule.source(k, layout)
            assert isinstance(product, RuleProduct)
            operands_c.append(product.c)
        # One evaluation gives the cotangents of all arguments, and the operand c of each product.
        # The cotangent of an argument with a tap, which is a constant, is not used: it is dropped.
        known = dict(zip(rule.jaxpr.invars, [*residuals, *cotangents], strict=True))
        atoms = [*rule.jaxpr.outvars, *operands_c]
        evaluated = evaluate_atoms(rule.jaxpr, rule.consts, known, atoms)
        n_arguments = len(rule.arguments)
        of_arguments = dict(zip(rule.arguments, evaluated[:n_arguments], strict=True))
        of_taps = dict(zip(layouts, evaluated[n_arguments:], strict=True))
        return [of_arguments.get(k) for k in range(len(eqn.invars))], of_taps

    tapped.defvjp(forward, backward)
    return tapped


def _constants(eqn: Equation, values: list) -> frozenset[int]:
    """Which inputs are constants: JAX refuses to differentiate by what a function closes over.

    Under `vmap` it no longer says which inputs these are, so every constant counts.
    """
    known = {k for k, value in enumerate(values) if not _is_traced(value)}
    closed_over = range(eqn.params.get("num_consts", 0))
    return frozenset(known.union(closed_over))


def _is_traced(value: object) -> bool:
    """Whether a value is a parameter, or what a tracer stands for; anything else is a constant."""
    return isinstance(value, View | JoinedViews | _jax.Tracer)


def _as_array(value: object) -> object:
    """A constant as an array of JAX's: a rule may index it by tracers."""
    return value if _is_traced(value) else lax.optimization_barrier(value)
