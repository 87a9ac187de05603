"""One walk over a jaxpr that finds every use of every parameter.

Values that are views of a parameter (see `views`) are followed. Where one enters a primitive with a rule, the
primitive runs with the weight as a constant, a zero *tap* is added to its result and its other operand is handed out:
the cotangent of the tap and that operand are the two factors of the weight's Jacobian. Where one enters anything else,
the differentiable copy of the leaf is used, and that part of its Jacobian is an ordinary VJP. Every use is one of the
two; a use that is neither cannot be executed.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ntkdiag import _compat
from ntkdiag.tangents import contraction, positions
from ntkdiag.tangents.custom import custom
from ntkdiag.tangents.fresh import REARRANGING, Fresh, follow, share
from ntkdiag.tangents.joined import Joined
from ntkdiag.tangents.liveness import liveness
from ntkdiag.tangents.recorder import Recorder
from ntkdiag.tangents.rules import RULES
from ntkdiag.tangents.rules.gather import as_gather
from ntkdiag.tangents.rules.ragged_dot import REWRITES
from ntkdiag.tangents.views import View, views_of

# Elementwise primitives that repeat axes of length 1.
_REPEATING = frozenset(("add", "sub", "mul", "div"))


def walk(jaxpr: Any, consts: list, inputs: list, recorder: Recorder, path: tuple = ()) -> list:
    """Evaluate a jaxpr whose inputs may be views; only what its outputs need is evaluated."""
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, inputs, strict=True))
    read = lambda atom: atom.val if isinstance(atom, _compat.Literal) else env[atom]
    live = liveness(jaxpr)
    fresh: dict[Any, Fresh] = {}
    still = set(jaxpr.constvars)  # what has no derivative, as far as it is seen here
    for k, eqn in enumerate(jaxpr.eqns):
        if not live.needed[k]:
            continue
        values = [read(atom) for atom in eqn.invars]
        if not live.derived[k]:
            values = [value.value if isinstance(value, View | Joined) else value for value in values]
        if eqn.primitive.name in REWRITES and (rewritten := REWRITES[eqn.primitive.name](eqn)) is not None:
            outputs = walk(*rewritten, values, recorder, (*path, k))
        elif any(isinstance(value, View | Joined) for value in values):
            outputs = _apply(eqn, values, recorder, (*path, k), fresh, still)
            if (*path, k) in recorder.handed and len(outputs) == 1:
                follow(eqn, fresh, live.uses, recorder.sites[(*path, k)])
        else:
            outputs = _compat.bind(eqn, values)
            if eqn.primitive.name in REARRANGING and _variable(eqn.invars[0]) in fresh:
                follow(eqn, fresh, live.uses)
            elif eqn.primitive.name == "add":
                share(eqn, fresh, live.uses, recorder)
        env.update(zip(eqn.outvars, outputs, strict=True))
        if eqn.primitive.name == "stop_gradient" or all(_is_still(atom, still) for atom in eqn.invars):
            still.update(var for var in eqn.outvars if not _compat.is_ref(var))
    return [read(atom) for atom in jaxpr.outvars]


def _apply(eqn: Any, values: list, recorder: Recorder, path: tuple, fresh: dict[Any, Fresh], still: set[Any]) -> list:
    """One equation with at least one view, or several side by side, among its inputs."""
    name = eqn.primitive.name
    if name in _CONTROL_FLOW:
        return _CONTROL_FLOW[name](eqn, values, recorder, path)
    if (joined := Joined.of(eqn, values)) is not None:
        return [joined]
    views = [k for k, value in enumerate(values) if isinstance(value, View | Joined)]
    if len(views) == 2 and name in RULES and (smaller := _weight_on_parameter(eqn, values)) is not None:
        values = [recorder.differentiable(value) if k == smaller else value for k, value in enumerate(values)]
        views.remove(smaller)
    if len(views) == 1 and isinstance(values[views[0]], Joined):
        if (seen := values[views[0]].through(eqn)) is not None:
            return [seen]
        if name in RULES and (tapped := _contract_joined(eqn, values, views[0], recorder, path)) is not None:
            return tapped
    elif len(views) == 1:
        seen = views_of(eqn, values)
        if seen is not None:
            return seen
        if name in RULES and (tapped := _contract(eqn, values, views[0], recorder, path)) is not None:
            return tapped
        if name == "dynamic_slice" and views == [0] and math.prod(jnp.shape(values[0].value)):
            return walk(*as_gather(eqn), values, recorder, path)
        if name in ("add", "sub") and (shifted := _shift(eqn, values, views[0], still)) is not None:
            return [shifted]
        if name == "add" and (added := _add_bias(eqn, values, views[0], recorder, path, fresh)) is not None:
            return added
    inputs = [recorder.differentiable(value) for value in values]
    if name in _REPEATING:
        shape = eqn.outvars[0].aval.shape
        inputs = [positions.repeat(x, shape) if k in views and jnp.ndim(x) else x for k, x in enumerate(inputs)]
    return _compat.bind(eqn, inputs)


def _weight_on_parameter(eqn: Any, values: list) -> int | None:
    """Which of two parameters that are multiplied is the input of the other (a learned query, say), if it pays.

    It does where the product is smaller than the larger of them, whose derivative is not formed then.
    """
    sizes = [math.prod(jnp.shape(value.value)) for value in values]
    return int(np.argmin(sizes)) if math.prod(eqn.outvars[0].aval.shape) < max(sizes) else None


def _contract(eqn: Any, values: list, position: int, recorder: Recorder, path: tuple) -> list | None:
    """A view in a primitive with a rule: tap the result, hand out the other operand."""
    view, other = values[position], values[1 - position]
    layout = view.layout
    if layout.repeats:
        return None
    use = RULES[eqn.primitive.name](eqn.params, position, layout, jnp.shape(other))
    if use is None or (use.kind == "rows" and layout.n_block):  # stacked embedding tables go the general way
        return None
    scale = view.scale if use.kind == "rows" else None  # an index cannot carry the scalar factor of the view
    found = view if scale is None else dataclasses.replace(view, scale=None)
    recorder.found(path, found, eqn.primitive.name, use, path, other)
    constant = [view.value, other] if position == 0 else [other, view.value]
    return [recorder.tap(path, _compat.bind(eqn, constant)[0], scale)]


def _contract_joined(eqn: Any, values: list, position: int, recorder: Recorder, path: tuple) -> list | None:
    """Views side by side in a primitive with a rule: one product and one tap, of which each has its part."""
    joined, other = values[position], values[1 - position]
    uses = joined.uses(RULES[eqn.primitive.name], eqn.params, position, jnp.shape(other))
    if uses is None:
        return None
    recorder.found_joined(path, joined, eqn.primitive.name, uses, other)
    constant = [joined.value, other] if position == 0 else [other, joined.value]
    return [recorder.tap(path, _compat.bind(eqn, constant)[0])]


def _variable(atom: Any) -> Any:
    return None if isinstance(atom, _compat.Literal) else atom


def _is_still(atom: Any, still: set[Any]) -> bool:
    return isinstance(atom, _compat.Literal) or atom in still


def _shift(eqn: Any, values: list, position: int, still: set[Any]) -> View | None:
    """A parameter plus or minus what has no derivative is the parameter, with other numbers."""
    view, other = values[position], eqn.invars[1 - position]
    if not _is_still(other, still) or view.layout.shape != eqn.outvars[0].aval.shape:
        return None
    put = lambda copy: _compat.bind(eqn, [copy, values[1]] if position == 0 else [values[0], copy])[0]
    return view.put(put, view.layout, -1.0 if position == 1 and eqn.primitive.name == "sub" else None)


def _add_bias(
    eqn: Any, values: list, position: int, recorder: Recorder, path: tuple, fresh: dict[Any, Fresh]
) -> list | None:
    """A parameter added straight to the tapped result of a contraction: it shares that tap."""
    view, other_var = values[position], eqn.invars[1 - position]
    if isinstance(other_var, _compat.Literal) or other_var not in fresh:
        return None
    site, shape = fresh[other_var].site, other_var.aval.shape
    own = ["b" if name in view.scans else "t" for name, _ in recorder.scans]
    if len(view.layout.shape) != len(shape) or own != [role for _, role in site.scans]:
        return None
    if shape != eqn.outvars[0].aval.shape:  # `add` repeats the result of the contraction: that is no bias of it
        return None
    layout = fresh[other_var].undo(view.layout.broadcast(shape, tuple(range(len(shape)))))  # `add` repeats axes of 1
    if layout is None:
        return None
    use = contraction.bias(site.use, layout)
    if use is None:
        return None
    y = values[1 - position]
    recorder.found(path, view, "add", use, site.tap, np.ones((), y.dtype))
    return [_compat.bind(eqn, [view.value, y] if position == 0 else [y, view.value])[0]]


def _call(eqn: Any, values: list, recorder: Recorder, path: tuple) -> list:
    """`jit`: walk into it."""
    jaxpr, consts = _compat.open_jaxpr(eqn.params["jaxpr"])
    return walk(jaxpr, consts, values, recorder, path)


def _checkpoint(eqn: Any, values: list, recorder: Recorder, path: tuple) -> list:
    """`checkpoint`: walk inside and rebuild with the same policy; operands and taps cross the border."""
    jaxpr, consts = _compat.open_jaxpr(eqn.params["jaxpr"])
    boxes, arrays = _unbox(values)

    def body(arrays, taps):
        inner = recorder.inside(taps)
        outputs = walk(jaxpr, consts, _rebox(boxes, arrays), inner, path)
        return [inner.differentiable(value) for value in outputs], inner.handed

    rebuilt = jax.checkpoint(body, policy=eqn.params["policy"], prevent_cse=eqn.params["prevent_cse"])
    outputs, handed = rebuilt(arrays, recorder.below(path))
    recorder.handed.update(handed)
    return outputs


def _scan(eqn: Any, values: list, recorder: Recorder, path: tuple) -> list:
    """`scan`: rebuild it with taps as scanned inputs and operands as stacked outputs.

    A leaf that is scanned over gets the scan as a block axis, a constant of the scan as a position axis.
    """
    body, consts = _compat.open_jaxpr(eqn.params["jaxpr"])
    n_const, n_carry = _compat.scan_counts(eqn.params)
    constants, carry, scanned = values[:n_const], values[n_const : n_const + n_carry], values[n_const + n_carry :]
    followed = lambda v: isinstance(v, View) and v.layout.shape  # no scalars, nothing side by side
    scanned = [v if followed(v) else recorder.differentiable(v) for v in scanned]
    boxes, arrays = _unbox(scanned)
    for box in boxes:
        if box and box.layout.whole and not box.layout.n_block:
            recorder.stacked[box.leaf] = box.layout.shape[0]
    boxes = [
        dataclasses.replace(box, layout=box.layout.enter_scan(), scans=(*box.scans, path)) if box else None
        for box in boxes
    ]

    def step(carry, xs):
        arrays, taps = xs
        inner = recorder.inside(taps, (path, eqn.params["length"]))
        outputs = walk(body, consts, [*constants, *carry, *_rebox(boxes, arrays)], inner, path)
        outputs = [inner.differentiable(value) for value in outputs]
        return outputs[:n_carry], (outputs[n_carry:], inner.handed)

    initial = [recorder.differentiable(value) for value in carry]
    options = {key: eqn.params[key] for key in ("length", "reverse", "unroll")}
    final, (stacked, handed) = lax.scan(step, initial, (arrays, recorder.below(path)), **options)
    recorder.handed.update(handed)
    return [*final, *stacked]


def _cond(eqn: Any, values: list, recorder: Recorder, path: tuple) -> list:
    """`cond` and `switch`: every branch gets all taps, and hands out zeros in place of the operands of the others."""
    if eqn.params.get("branches_platforms"):  # `platform_dependent`: the other branches may not compile here
        return _compat.bind(eqn, [recorder.differentiable(value) for value in values])
    index, *operands = values
    boxes, arrays = _unbox(operands)
    taps = recorder.below(path)

    def inside(number, closed):
        jaxpr, consts = _compat.open_jaxpr(closed)

        def run(arrays, taps):
            inner = recorder.inside(taps)
            outputs = walk(jaxpr, consts, _rebox(boxes, arrays), inner, (*path, number))
            return [inner.differentiable(value) for value in outputs], inner.handed

        return run

    def completed(run):
        def branch(arrays, taps):
            outputs, handed = run(arrays, taps)
            zeros = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), avals)
            return outputs, zeros | handed

        return branch

    branches = [inside(number, closed) for number, closed in enumerate(eqn.params["branches"])]
    avals = {}
    for branch in branches:
        avals |= jax.eval_shape(branch, arrays, taps)[1]
    outputs, handed = lax.switch(index, [completed(branch) for branch in branches], arrays, taps)
    recorder.handed.update(handed)
    return outputs


def _unbox(values: list) -> tuple[list, list]:
    """Split views into their static part and their arrays, so that they can cross into another trace."""
    boxes = [value if isinstance(value, View | Joined) else None for value in values]
    same = lambda v: v.dense is None or v.dense is v.value
    arrays = [
        value if not isinstance(value, View | Joined) else (value.value,) if same(value) else (value.value, value.dense)
        for value in values
    ]
    return boxes, arrays


def _rebox(boxes: list, arrays: list) -> list:
    """Inverse of `_unbox`, with the arrays of the new trace."""
    values = []
    for box, array in zip(boxes, arrays, strict=True):
        if box is None:
            values.append(array)
        else:
            dense = None if box.dense is None else array[-1]
            values.append(dataclasses.replace(box, value=array[0], dense=dense))
    return values


_CONTROL_FLOW = {
    "jit": _call,
    "pjit": _call,
    "closed_call": _call,
    "core_call": _call,
    "remat2": _checkpoint,
    "checkpoint": _checkpoint,
    "scan": _scan,
    "cond": _cond,
    "custom_jvp_call": custom,
    "custom_vjp_call": custom,
}
