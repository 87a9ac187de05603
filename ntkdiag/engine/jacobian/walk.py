"""One walk over a jaxpr that follows every parameter from where it comes in to where it is used.

A parameter leaf begins as a view of itself. The walk evaluates the equations in order. One that
reads no view runs as it is; one that reads a view is looked at by `parameter_uses`. There a use
with structure gets a tap (zeros added to its result, whose cotangent is wanted) and hands out its
operand (what the parameter is applied to); any other use reads the differentiable copy of the leaf,
and is left to JAX. So every use of a parameter either has a tap or goes through its differentiable
copy; one that does neither cannot run.

Control flow is rebuilt around the same walk:

* `jit` is walked into;
* `checkpoint` is walked into and rebuilt with its policy;
* `scan` is rebuilt with the taps as scanned inputs and the operands as stacked outputs. A leaf that
  is scanned over (stacked layers) gets the scan as a block axis b, a constant of the scan (a
  recurrent weight) as positions t;
* `cond` is rebuilt with all taps going into every branch, and zeros for the operands of the others;
* straight-through estimators are views of their parameter (`apply_derivative_rule`);
* anything else, such as `while`, runs with the differentiable copies.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ntkdiag.engine.jacobian.parameter_uses import (
    WalkState,
    apply_derivative_rule,
    apply_to_views,
    is_view,
)
from ntkdiag.engine.jacobian.recorder import REARRANGING, Path, Recorder, TappedResults
from ntkdiag.engine.jacobian.rules import REWRITES, as_gather
from ntkdiag.engine.jacobian.views import View
from ntkdiag.jaxtools import jaxprs
from ntkdiag.jaxtools.jaxprs import Atom, ClosedJaxpr, Equation, Jaxpr, Variable, liveness


def walk(jaxpr: Jaxpr, consts: list, inputs: list, recorder: Recorder, path: Path = ()) -> list:
    """Evaluate a jaxpr whose inputs may be views, as far as its outputs need it."""
    # Any: a value is an array, a number, or a view of one parameter or of several.
    known: dict[Variable, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    known.update(zip(jaxpr.invars, inputs, strict=True))
    live = liveness(jaxpr)
    state = WalkState(recorder, TappedResults(recorder, live.uses), set(jaxpr.constvars))
    for k, eqn in enumerate(jaxpr.eqns):
        if not live.needed[k]:
            continue
        values = [_read(atom, known) for atom in eqn.invars]
        if not live.differentiated[k]:
            # Only the numbers matter: here a parameter is a constant.
            values = [value.value if is_view(value) else value for value in values]
        # The number of an equation in its jaxpr, after the path to that jaxpr, is its address: the
        # first walk and all later ones give the same site the same key.
        outputs = _evaluate(eqn, values, (*path, k), state)
        known.update(zip(eqn.outvars, outputs, strict=True))
        # What is computed from constants alone is constant; a mutable array may change later.
        stops_gradient = eqn.primitive.name == "stop_gradient"
        if stops_gradient or all(state.is_constant(atom) for atom in eqn.invars):
            state.constants.update(var for var in eqn.outvars if not jaxprs.is_ref(var))
    return [_read(atom, known) for atom in jaxpr.outvars]


def _read(atom: Atom, known: dict[Variable, Any]) -> Any:
    """The value of a variable or literal."""
    return atom.val if isinstance(atom, jaxprs.Literal) else known[atom]


def _evaluate(eqn: Equation, values: list, path: Path, state: WalkState) -> list:
    """The outputs of one equation."""
    recorder = state.recorder
    name = eqn.primitive.name
    # 1. Primitives that are written in terms of others.
    rewritten = _rewrite(eqn, values)
    if rewritten is not None:
        jaxpr, consts = rewritten
        return walk(jaxpr, consts, values, recorder, path)
    # 2. Equations that read a parameter.
    if any(map(is_view, values)):
        if name in _CONTROL_FLOW:
            return _CONTROL_FLOW[name](eqn, values, recorder, path)
        outputs = apply_to_views(eqn, values, path, state)
        # If that was a use with structure, its result is fresh from a tap.
        if path in recorder.operands:
            state.tapped.note_site(eqn, recorder.sites[path])
        return outputs
    # 3. All others run as they are. What they do to results that have a tap is noted, because a
    # bias or a second product that is added to one can share its tap.
    outputs = jaxprs.bind(eqn, values)
    if name in REARRANGING:
        state.tapped.note_rearrangement(eqn)
    elif name == "add":
        state.tapped.share_tap_of_sum(eqn)
    return outputs


def _rewrite(eqn: Equation, values: list) -> tuple[Jaxpr, list] | None:
    """The jaxpr, with its constants, that is walked in place of an equation, if any."""
    name = eqn.primitive.name
    if name in REWRITES:
        return REWRITES[name](eqn)
    if name == "dynamic_slice":
        table, *starts = values
        is_table = isinstance(table, View) and not any(map(is_view, starts))
        if is_table and math.prod(table.layout.shape):
            return as_gather(eqn)
    return None


def _call(eqn: Equation, values: list, recorder: Recorder, path: Path) -> list:
    """`jit`: walk into it."""
    jaxpr, consts = jaxprs.open_jaxpr(eqn.params["jaxpr"])
    return walk(jaxpr, consts, values, recorder, path)


def _checkpoint(eqn: Equation, values: list, recorder: Recorder, path: Path) -> list:
    """`checkpoint`: walk inside and rebuild it; only operands and taps cross its border."""
    jaxpr, consts = jaxprs.open_jaxpr(eqn.params["jaxpr"])
    views, arrays = _take_arrays_out(values)

    def body(arrays, taps):
        """What is checkpointed: arrays and taps -> outputs and operands."""
        inner = recorder.inside(taps)
        inputs = _put_arrays_in(views, arrays)
        outputs = walk(jaxpr, consts, inputs, inner, path)
        return [inner.differentiable(value) for value in outputs], inner.operands

    options = {key: eqn.params[key] for key in ("policy", "prevent_cse")}
    rebuilt = jax.checkpoint(body, **options)
    outputs, operands = rebuilt(arrays, recorder.taps_inside(path))
    recorder.operands.update(operands)
    return outputs


def _scan(eqn: Equation, values: list, recorder: Recorder, path: Path) -> list:
    """`scan`: rebuild it with taps as scanned inputs and operands as stacked outputs."""
    # The inputs of a scan: constants of all steps, the carry, and what it runs over.
    body, consts = jaxprs.open_jaxpr(eqn.params["jaxpr"])
    n_consts, n_carry = jaxprs.scan_counts(eqn.params)
    constants = values[:n_consts]
    carry = values[n_consts : n_consts + n_carry]
    scanned = values[n_consts + n_carry :]
    # The carry changes from step to step and is never a view.
    initial = [recorder.differentiable(value) for value in carry]
    # What is scanned over is one if it has an axis of its own leaf to run over: no scalar factors,
    # nothing side by side.
    for k, value in enumerate(scanned):
        has_axis = isinstance(value, View) and value.layout.shape
        if not has_axis:
            scanned[k] = recorder.differentiable(value)
    # In one step a view is that of a slice of the leaf: its leading axis has become a block axis.
    views, arrays = _take_arrays_out(scanned)
    views_of_step = []
    for view in views:
        if view is not None:
            # A scan over all of a leaf: it is a stack of layers, which can be told apart later. Of
            # several axes that scans run over, the outermost one is that of the layers.
            layout = view.layout
            n_layers = layout.shape[0]
            is_all = 0 < layout.array.size == layout.size and not layout.repeats
            if is_all and n_layers > 1 and not layout.n_block:
                stack = layout.size // (n_layers * abs(layout.strides[0])), n_layers
                known = recorder.stacked_leaves.get(view.leaf, stack)
                recorder.stacked_leaves[view.leaf] = min(stack, known)
            view = dataclasses.replace(view, layout=layout.enter_scan(), scans=(*view.scans, path))
        views_of_step.append(view)

    def step(carry, scanned):
        """One step: carry, arrays and taps -> carry, outputs and operands."""
        arrays, taps = scanned
        inner = recorder.inside(taps, scan=(path, eqn.params["length"]))
        inputs = [*constants, *carry, *_put_arrays_in(views_of_step, arrays)]
        outputs = walk(body, consts, inputs, inner, path)
        outputs = [inner.differentiable(value) for value in outputs]
        return outputs[:n_carry], (outputs[n_carry:], inner.operands)

    options = {key: eqn.params[key] for key in ("length", "reverse", "unroll")}
    # Taps [length ...] are scanned over and operands stacked to [length ...]: one for each step.
    xs = (arrays, recorder.taps_inside(path))
    final, (stacked, operands) = lax.scan(step, initial, xs, **options)
    recorder.operands.update(operands)
    return [*final, *stacked]


def _cond(eqn: Equation, values: list, recorder: Recorder, path: Path) -> list:
    """`cond` and `switch`: rebuild them with all taps going into every branch."""
    if eqn.params.get("branches_platforms"):
        # `platform_dependent` chooses when it is compiled, and not by a number: the branches of
        # other platforms may not compile here.
        return jaxprs.bind(eqn, [recorder.differentiable(value) for value in values])
    index, *inputs = values
    views, arrays = _take_arrays_out(inputs)
    taps = recorder.taps_inside(path)

    def walk_branch(number: int, closed: ClosedJaxpr) -> Callable:
        """A branch as a function of arrays and taps, with outputs and its own operands."""
        jaxpr, consts = jaxprs.open_jaxpr(closed)

        def branch(arrays, taps):
            inner = recorder.inside(taps)
            inputs = _put_arrays_in(views, arrays)
            outputs = walk(jaxpr, consts, inputs, inner, (*path, number))
            return [inner.differentiable(value) for value in outputs], inner.operands

        return branch

    branches = [walk_branch(number, closed) for number, closed in enumerate(eqn.params["branches"])]
    # All branches have to hand out the same: what that is, is known when all have been walked.
    operands_of_all = {}
    for branch in branches:
        _, operands = jax.eval_shape(branch, arrays, taps)
        operands_of_all |= operands

    def with_zeros(branch: Callable) -> Callable:
        """The same function, with the operands of all branches."""

        def completed(arrays, taps):
            # Operands of a branch that is not taken are zero, and so are their Jacobians.
            outputs, operands = branch(arrays, taps)
            zeros = jax.tree.map(lambda aval: jnp.zeros(aval.shape, aval.dtype), operands_of_all)
            return outputs, zeros | operands

        return completed

    completed_branches = [with_zeros(branch) for branch in branches]
    outputs, operands = lax.switch(index, completed_branches, arrays, taps)
    recorder.operands.update(operands)
    return outputs


def _take_arrays_out(values: list) -> tuple[list, list]:
    """The views among some values (None for the others), and the arrays of all of them."""
    # Only arrays can cross into another trace. A view has one, or two where its differentiable
    # copy differs from its numbers.
    views = []
    arrays = []
    for value in values:
        if not is_view(value):
            views.append(None)
            arrays.append(value)
        elif value.dense is None or value.dense is value.value:
            views.append(value)
            arrays.append((value.value,))
        else:
            views.append(value)
            arrays.append((value.value, value.dense))
    return views, arrays


def _put_arrays_in(views: list, arrays: list) -> list:
    """The inverse of `_take_arrays_out`, with the arrays of the other trace."""
    values = []
    for view, array in zip(views, arrays, strict=True):
        if view is None:
            values.append(array)
            continue
        dense = None if view.dense is None else array[-1]
        values.append(dataclasses.replace(view, value=array[0], dense=dense))
    return values


_CONTROL_FLOW: dict[str, Callable[[Equation, list, Recorder, Path], list]] = {
    "jit": _call,
    "pjit": _call,
    "closed_call": _call,
    "core_call": _call,
    "remat2": _checkpoint,
    "checkpoint": _checkpoint,
    "scan": _scan,
    "cond": _cond,
    "custom_jvp_call": apply_derivative_rule,
    "custom_vjp_call": apply_derivative_rule,
}
