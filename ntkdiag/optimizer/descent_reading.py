"""What an optimizer does with a gradient, read from the optimizer itself.

Near a minimum the gradient is H theta, and what decides about stability is the answer of the
optimizer to a gradient that changes its sign at every step: once momentum swings with it, that
update is -2 E g - b theta, with E and b by parameter, and the iteration has an eigenvalue -1 where

    lambda_max(E^1/2 H E^1/2) + b / 2 = 1.

This is where stability ends with one momentum buffer, or with averages side by side. Buffers one
after the other, as in `chain(trace(...), adam(...))`, lose it long before, to a slower oscillation:
they are told by how they answer a single gradient, and have no margin.

So E = rate / 2 for plain descent, rate / (2 (1 + beta)) with momentum, and for Adam
rate (1 - beta1) / (2 (1 + beta1)) over its denominator. Nobody has to say so:

1. Of the usual optimizers it is known what their buffers are: `fit` finds the numbers that explain
   the update that was made.
2. Of all others `quiet_point` makes of the optimizer's own `update` the linear map that it is while
   second moments stand still, and E and b come from there. `explain` compares with the update that
   was made. What it was scaled by (clipping, trust ratios) scales E.
3. What is left unexplained says whether the optimizer was recognised.
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ntkdiag.descent import Descent
from ntkdiag.nouns import pytree
from ntkdiag.optimizer.explained_update import explain
from ntkdiag.optimizer.fitted_update import Fitted, fit, usual_buffers
from ntkdiag.optimizer.quiet_point import (
    Leaves,
    QuietPoint,
    accumulator_paths,
    floats_of,
    is_float,
    quiet_point,
    signs,
    zeros_like,
)
from ntkdiag.scalars import Number

Update = Callable[..., tuple[PyTree, PyTree]]


class Reading(enum.IntEnum):
    """Whether the optimizer was recognised."""

    RECOGNISED = 0
    YOUNG = 1
    UNVERIFIED = 2
    UNEXPLAINED = 3
    NOT_PROPORTIONAL = 4
    UPHILL = 5
    NO_UPDATE = 6
    REFUSED = 7
    IN_SERIES = 8
    FIRST_STEP = 9
    NO_STEP = 10


REASONS = {
    Reading.RECOGNISED: "The update that was made is explained.",
    Reading.YOUNG: (
        "The optimizer's second moments are younger than the steps that they remember: the margin "
        "holds for this step, and changes while they grow."
    ),
    Reading.UNVERIFIED: (
        "The optimizer was read from its state, without an update that shows whether it was read "
        "rightly."
    ),
    Reading.UNEXPLAINED: (
        "The update that was made is not the one that the optimizer's state and the gradient "
        "predict: the optimizer is unknown, and the margin is NaN."
    ),
    Reading.NOT_PROPORTIONAL: (
        "The update does not shrink with the gradient, as that of sign descent: there is no margin "
        "of stability, and it is NaN."
    ),
    Reading.UPHILL: (
        "What was wrapped goes along the gradient instead of against it, as a part of an optimizer "
        "does that gets its rate elsewhere: wrap the whole optimizer. The margin is NaN."
    ),
    Reading.NO_UPDATE: "The step made no update: there is nothing to read, and the margin is NaN.",
    Reading.IN_SERIES: (
        "Momentum goes through several buffers one after the other: stability ends at a slower "
        "oscillation than that of the margin, which is NaN."
    ),
    Reading.FIRST_STEP: (
        "Momentum is empty before the first step, which does not tell how much of it is kept: the "
        "margin is NaN until the next measurement."
    ),
    Reading.NO_STEP: (
        "No step was made yet: second moments are empty, and the margin is NaN until the next "
        "measurement."
    ),
    Reading.REFUSED: (
        "The optimizer evaluates gradients elsewhere, searches along a line, or cannot be "
        "differentiated: no update rule is known, and the margin is NaN."
    ),
}

# Readings that come with numbers.
_WITH_NUMBERS = (Reading.RECOGNISED, Reading.YOUNG, Reading.UNVERIFIED)

# Class name of a state -> what the optimizer does that no update rule tells.
_REFUSED_STATES = {
    "SAMState": "takes its gradient at other parameters",
    "ScaleByLBFGSState": "builds its direction from pairs of steps",
    "ZoomLinesearchState": "searches along a line",
    "ScaleByZoomLinesearchState": "searches along a line",
    "BacktrackingLineSearchState": "searches along a line",
    "ScaleByBacktrackingLinesearchState": "searches along a line",
    "LookaheadState": "moves a second set of parameters",
    "ApplyEvery": "adds up updates, not gradients",
}

_TOLERANCE = 1e-3
_TOLERANCE_IN_ROUNDINGS = 4.0
_MOST_TOLERANCE = 3e-2
# Shares of a parameter that are roundoff of its update.
_NO_DECAY = 2e-8
# Sums of a prediction that cancel leave roundoff: less than this of it is none.
_CANCELLED = 1e-4
# By how much answers to a single gradient are bent where buffers are in series, in tolerances.
_BENT = 10.0
_MOST_BENT = 0.05


@pytree("response", "decay", "residual", "memory", "status")
@dataclasses.dataclass(frozen=True, eq=False)
class DescentReading:
    """How an optimizer answers gradients at one step.

    Attributes:
        response: E, like the parameters, in float32 at least: half the update that answers a
            gradient of 1 that changes its sign at every step; 0 for what is not trained, and
            everywhere if the optimizer was not recognised.
        decay: b, the largest share of a parameter that weight decay takes in a step.
        residual: Of the update that was made, what the prediction does not explain, relative; NaN
            where it was not compared.
        memory: 1 / (1 - beta2), the steps that second moments remember; 0 without any.
        status: A `Reading`.
    """

    response: PyTree
    decay: Float[Array, ""]
    residual: Float[Array, ""]
    memory: Float[Array, ""]
    status: Int[Array, ""]

    def margin(self, curvature: Float[Array, ""] | Number) -> Float[Array, ""]:
        """lambda_max(E^1/2 H E^1/2) + b / 2, of which the first is passed; 1 at the edge.

        NaN where the optimizer was not recognised.
        """
        has_numbers = jnp.zeros((), bool)
        for reading in _WITH_NUMBERS:
            has_numbers = has_numbers | (self.status == reading)
        return jnp.where(has_numbers, curvature + 0.5 * self.decay, jnp.nan)


@dataclasses.dataclass(frozen=True)
class _Predicted:
    """An answer to be compared with an update, by the paths of the gradient.

    Attributes:
        response: E, before what scales it is known.
        decay: b by parameter, likewise.
        made: The update that was made, without noise.
        directions: What momentum, gradient and parameters add to the update.
        mixed: What momentum adds if it acts elementwise.
        is_in_series: Whether momentum goes through buffers one after the other.
    """

    response: Leaves
    decay: Leaves
    made: Leaves
    directions: list[Leaves]
    mixed: Leaves
    is_in_series: Array


class _Extremes(NamedTuple):
    """What the largest and smallest answers say."""

    decay: Float[Array, ""]
    goes_uphill: Array
    is_finite: Array


def objection_to_reading(opt_state: PyTree, params: PyTree) -> str | None:
    """Why an optimizer is not read, as a sentence; None where nothing speaks against it."""
    names = set()

    def note_name(node: object) -> bool:
        """Note the class of a state on the way down the tree."""
        if hasattr(node, "_fields"):
            names.add(type(node).__name__)
        return False  # no node is a leaf: the walk goes on into it

    jax.tree.leaves(opt_state, is_leaf=note_name)
    for name in sorted(names):
        if name in _REFUSED_STATES:
            return f"An optimizer with a {name} {_REFUSED_STATES[name]}: the margin is NaN."
    if len(accumulator_paths(opt_state)) > 1:
        return "Gradients are accumulated in several places: the margin is NaN."
    for leaf in jax.tree.leaves(params):
        if jnp.issubdtype(getattr(leaf, "dtype", np.bool_), jnp.complexfloating):
            return "Parameters are complex numbers: the margin is NaN."
    return None


def read_descent(
    update: Update,
    gradient: PyTree,
    state: PyTree,
    params: PyTree,
    made: PyTree,
    *,
    step: Int[Array, ""] | int,
    extra_args: Mapping[str, object] | None = None,
    note: Callable[[str], None] | None = None,
    by_fit: bool = True,
) -> DescentReading:
    """Read from a step of training how its optimizer answers gradients.

    Args:
        update: `optimizer.update`. It is called and differentiated, and has to be pure.
        gradient: What the optimizer got at this step.
        state: The state of the optimizer before the step.
        params: The parameters before the step.
        made: The update that the optimizer made of it.
        step: Updates made before this one.
        extra_args: Further arguments that `update` got.
        note: Gets a sentence while the step is traced where the optimizer is refused.
        by_fit: Whether the usual optimizers are fitted. Of arrays of a few numbers a fit may not
            tell what a derivative does.

    Returns:
        The reading; rates and bias corrections are those of this step.

    Cost: about ten elementwise passes over parameters and state. The usual optimizers are fitted,
    in a program as large as their own; the others are differentiated, in one ten times as large.
    """
    arguments = dict(extra_args or {})
    objection = objection_to_reading(state, params)
    before = usual_buffers(state, params) if by_fit else None
    if objection is None:
        try:
            _, state_after = update(gradient, state, params, **arguments)
            after = usual_buffers(state_after, params)
            if before is not None and after is not None:
                fitted = fit(gradient, before, after, params, made)
                return _of_fit(fitted, params, _tolerance(made, state), step)
            quiet = quiet_point(update, gradient, state, state_after, params, arguments)
        except Exception as error:  # whatever an unknown optimizer does under differentiation
            objection = _undifferentiable(error)
        else:
            tolerance = _tolerance(made, state)
            predicted = _predict(quiet, gradient, params, made, tolerance)
            return _compared(predicted, params, quiet.memory, tolerance, step)
    if note is not None:
        note(objection)
    return unread(params, Reading.REFUSED)


def read_descent_after(
    update: Update,
    state_after: PyTree,
    params: PyTree,
    *,
    step: Int[Array, ""] | int,
    made: PyTree | None = None,
    gradient: PyTree | None = None,
    extra_args: Mapping[str, object] | None = None,
    note: Callable[[str], None] | None = None,
) -> DescentReading:
    """Read an optimizer outside of the step, where only the state after it is at hand.

    Rates of schedules and bias corrections are those of the next step, unless the update that was
    made shows by what they differ. Clipping of a gradient that went into momentum is not seen.

    Args:
        update: `optimizer.update`. It is called and differentiated, and has to be pure.
        state_after: The state of the optimizer after the step.
        params: The parameters before the step.
        step: Updates made before the one that led to this state.
        made: That update. Without it nothing is verified.
        gradient: The gradient of that step. Without it only updates that are multiples of the
            momentum buffer are verified, such as those of Adam or of heavy-ball momentum.
        extra_args: Further arguments that `update` got.
        note: Gets a sentence while this is traced where the optimizer is refused.

    Returns:
        The reading.
    """
    arguments = dict(extra_args or {})
    objection = objection_to_reading(state_after, params)
    if objection is None and accumulator_paths(state_after):
        objection = (
            "Gradients are accumulated over micro-steps, and the state after a step does not say "
            "over how many: the margin is NaN."
        )
    if objection is None:
        like_gradient = gradient if gradient is not None else made
        if like_gradient is None:
            like_gradient = _only_floats(params)
        try:
            quiet = quiet_point(update, like_gradient, state_after, state_after, params, arguments)
        except Exception as error:  # whatever an unknown optimizer does under differentiation
            objection = _undifferentiable(error)
        else:
            tolerance = _tolerance(like_gradient, state_after)
            predicted, is_verifiable = _predict_after(quiet, gradient, params, made, tolerance)
            reading = _compared(predicted, params, quiet.memory, tolerance, step)
            bare = _bare(predicted, params, quiet)
            # What the size of the parameters scales it by is not seen at the quiet point. Where
            # that goes into momentum, even the update does not show it.
            weights, _ = floats_of(params)
            by_gradient, drive = quiet.by_gradient_at(weights)
            is_hidden = _distance(drive, quiet.drive) > tolerance
            is_scaled = _distance(by_gradient, quiet.by_gradient) > tolerance
            is_unknown = is_hidden | (~is_verifiable & is_scaled)
            reading = _chosen(is_verifiable, reading, bare)
            reading = _chosen(is_unknown, unread(params, Reading.UNEXPLAINED), reading)
            return _chosen(quiet.is_before_first_step, unread(params, Reading.NO_STEP), reading)
    if note is not None:
        note(objection)
    return unread(params, Reading.REFUSED)


def reading_of(descent: Descent, params: PyTree, step: Int[Array, ""] | int) -> DescentReading:
    """The reading of an update rule that was stated: E = rate / (threshold P).

    Raises:
        InvalidInputError: The update rule has no learning rate.
    """
    now = descent.at(step)
    rate = now.require_learning_rate()
    preconditioner = 1.0 if now.preconditioner is None else now.preconditioner
    if jax.tree_util.treedef_is_leaf(jax.tree.structure(preconditioner)):
        # One number for all parameters.
        leaves, structure = jax.tree.flatten(params)
        preconditioner = jax.tree.unflatten(structure, [preconditioner] * len(leaves))

    def response_of(leaf: object, scale: jax.typing.ArrayLike) -> Array:
        """E of one array of parameters."""
        if not is_float(leaf):
            return _no_response(leaf)
        return _no_response(leaf) + rate / (now.threshold * scale)

    response = jax.tree.map(response_of, params, preconditioner)
    return DescentReading(
        response=response,
        decay=jnp.asarray(rate * now.weight_decay, jnp.result_type(float)),
        residual=jnp.asarray(jnp.nan),
        memory=jnp.zeros(()),
        status=jnp.asarray(int(Reading.RECOGNISED), jnp.int32),
    )


def unread(params: PyTree, status: Reading) -> DescentReading:
    """A reading without numbers."""
    return DescentReading(
        response=jax.tree.map(_no_response, params),
        decay=jnp.zeros(()),
        residual=jnp.asarray(jnp.nan),
        memory=jnp.zeros(()),
        status=jnp.asarray(int(status), jnp.int32),
    )


def _predict(
    quiet: QuietPoint, gradient: PyTree, params: PyTree, made: PyTree, tolerance: float
) -> _Predicted:
    """What the optimizer should have done with this gradient, and how it answers swinging ones."""
    gradients, _ = floats_of(gradient)
    weights, _ = floats_of(params)
    updates, _ = floats_of(made)
    shuffled = {path: signs(leaf) * leaf for path, leaf in quiet.buffers.items()}
    by_gradient, by_params = quiet.by_gradient, quiet.by_params
    (by_momentum, _), (by_shuffled, _) = quiet.to_buffers(quiet.buffers, shuffled)

    # The gradient of a step is that of all its micro-steps, and each of them sees the curvature.
    along_gradient = {path: by_gradient[path] * gradients[path] for path in updates}
    if quiet.accumulated:
        ((by_accumulated, _),) = quiet.to_buffers(_ones_at(quiet.accumulated, quiet.buffers))
        earlier = _accumulated_by(updates, quiet.accumulated)
        for path in updates:
            along_gradient[path] += by_accumulated[path] * earlier[path]
    swung, decay_swung = quiet.swinging()
    response = {}
    decay = {}
    for path in updates:
        whole = by_gradient[path] * quiet.micro_steps
        response[path] = -0.5 * (whole - swung[path])
        decay[path] = -(by_params[path] - decay_swung[path])

    along_params = {path: by_params[path] * weights[path] for path in updates}
    unshuffled = {path: signs(leaf) * leaf for path, leaf in by_shuffled.items()}
    return _Predicted(
        response=response,
        decay=decay,
        made={path: updates[path] - quiet.rest[path] for path in updates},
        directions=[by_momentum, along_gradient, along_params],
        mixed=unshuffled,
        is_in_series=quiet.in_series(min(_BENT * tolerance, _MOST_BENT)),
    )


def _predict_after(
    quiet: QuietPoint,
    gradient: PyTree | None,
    params: PyTree,
    made: PyTree | None,
    tolerance: float,
) -> tuple[_Predicted, Array]:
    """The same from the momentum m after the step, and whether it can be compared with the update.

    The momentum before was A^-1 (m - B g - C theta), which leaves

        u = U_m A^-1 m + (U_g - U_m A^-1 B) g + (U_t - U_m A^-1 C) theta,

    where the second term is zero if the update is a multiple of the momentum.
    """
    weights, _ = floats_of(params)
    by_gradient, by_params = quiet.by_gradient, quiet.by_params
    drive, decay_drive = quiet.drive, quiet.decay_drive
    ((_, kept),) = quiet.to_buffers(quiet.momentum_of(jax.tree.map(jnp.ones_like, quiet.buffers)))
    swung, decay_swung = quiet.swinging()

    momentum = _divided(quiet.buffers, kept)
    shuffled = {path: signs(leaf) * leaf for path, leaf in momentum.items()}
    (by_momentum, _), (of_gradient, _), (of_params, _), (by_shuffled, _) = quiet.to_buffers(
        momentum, _divided(drive, kept), _divided(decay_drive, kept), shuffled
    )
    beside_momentum = _difference(by_gradient, of_gradient)
    needs_gradient = _any_nonzero(beside_momentum)

    nothing = zeros_like(quiet.gradient)
    gradients = nothing if gradient is None else floats_of(gradient)[0]
    updates = nothing if made is None else floats_of(made)[0]
    response = {path: -0.5 * (by_gradient[path] - swung[path]) for path in nothing}
    decay = {path: -(by_params[path] - decay_swung[path]) for path in nothing}
    params_beside = _difference(by_params, of_params)
    unshuffled = {path: signs(leaf) * leaf for path, leaf in by_shuffled.items()}
    predicted = _Predicted(
        response=response,
        decay=decay,
        made={path: updates[path] - quiet.rest[path] for path in nothing},
        directions=[
            by_momentum,
            {path: beside_momentum[path] * gradients[path] for path in nothing},
            {path: params_beside[path] * weights[path] for path in nothing},
        ],
        mixed=unshuffled,
        is_in_series=quiet.in_series(min(_BENT * tolerance, _MOST_BENT)),
    )
    has_update = jnp.asarray(made is not None)
    return predicted, has_update & (jnp.asarray(gradient is not None) | ~needs_gradient)


def _compared(
    predicted: _Predicted,
    params: PyTree,
    memory: Float[Array, ""],
    tolerance: float,
    step: Int[Array, ""] | int,
) -> DescentReading:
    """The reading that the comparison with the update leads to."""
    explained = explain(predicted.made, predicted.directions, predicted.mixed)
    residual = jnp.maximum(explained.residual, explained.mixing)
    response = {}
    decay = {}
    for path, leaf in predicted.response.items():
        of_momentum, of_gradient, of_params = explained.scales[path]
        # Without anything along the gradient it is the momentum that tells by what it is scaled.
        scale = jnp.where(explained.along_gradient[path], of_gradient, of_momentum)
        response[path] = scale * leaf.astype(residual.dtype)
        decay[path] = of_params * predicted.decay[path].astype(residual.dtype)
    extremes = _extremes(response, decay, tolerance)

    status = jnp.where(step < memory, Reading.YOUNG, Reading.RECOGNISED)
    status = jnp.where(predicted.is_in_series, Reading.IN_SERIES, status)
    status = jnp.where(extremes.goes_uphill, Reading.UPHILL, status)
    is_explained = (residual <= tolerance) & extremes.is_finite
    status = jnp.where(is_explained, status, Reading.UNEXPLAINED)
    is_out_of_proportion = ~is_explained & ~explained.is_proportional
    status = jnp.where(is_out_of_proportion, Reading.NOT_PROPORTIONAL, status)
    status = jnp.where(explained.has_update, status, Reading.NO_UPDATE)
    return _with_status(response, extremes.decay, residual, memory, status, params)


def _of_fit(
    fitted: Fitted, params: PyTree, tolerance: float, step: Int[Array, ""] | int
) -> DescentReading:
    """The reading that a fit of the update leads to."""
    # A decay that is rounding of the update is none.
    decay = jnp.where(fitted.decay > _NO_DECAY, fitted.decay, 0.0)
    status = jnp.where(step < fitted.memory, Reading.YOUNG, Reading.RECOGNISED)
    status = jnp.where(fitted.has_history, status, Reading.FIRST_STEP)
    status = jnp.where(fitted.is_downhill, status, Reading.UPHILL)
    is_explained = (fitted.residual <= tolerance) & jnp.isfinite(decay)
    status = jnp.where(is_explained, status, Reading.UNEXPLAINED)
    status = jnp.where(fitted.has_update, status, Reading.NO_UPDATE)
    return _with_status(fitted.response, decay, fitted.residual, fitted.memory, status, params)


def _bare(predicted: _Predicted, params: PyTree, quiet: QuietPoint) -> DescentReading:
    """The reading without a comparison."""
    dtype = jnp.promote_types(jnp.result_type(*predicted.response.values()), jnp.float32)
    response = {path: leaf.astype(dtype) for path, leaf in predicted.response.items()}
    decay = {path: leaf.astype(dtype) for path, leaf in predicted.decay.items()}
    extremes = _extremes(response, decay, _TOLERANCE)
    is_proportional = _any_nonzero(quiet.by_gradient)
    status = jnp.asarray(Reading.UNVERIFIED)
    status = jnp.where(predicted.is_in_series, Reading.IN_SERIES, status)
    status = jnp.where(extremes.goes_uphill, Reading.UPHILL, status)
    status = jnp.where(is_proportional, status, Reading.NOT_PROPORTIONAL)
    status = jnp.where(extremes.is_finite, status, Reading.UNEXPLAINED)
    unknown = jnp.asarray(jnp.nan, dtype)
    return _with_status(response, extremes.decay, unknown, quiet.memory, status, params)


def _with_status(
    response: Leaves,
    decay: Float[Array, ""],
    residual: Float[Array, ""],
    memory: Float[Array, ""],
    status: Array,
    params: PyTree,
) -> DescentReading:
    """A reading like the parameters; zeros where the optimizer was not recognised."""
    has_numbers = jnp.zeros((), bool)
    for reading in _WITH_NUMBERS:
        has_numbers = has_numbers | (status == reading)

    def response_at(path: tuple, leaf: object) -> Array:
        """E of one array of parameters."""
        nothing = _no_response(leaf)
        known = response.get(jax.tree_util.keystr(path))
        if known is None:
            return nothing
        return jnp.where(has_numbers, known, 0.0).astype(nothing.dtype)

    return DescentReading(
        response=jax.tree_util.tree_map_with_path(response_at, params),
        decay=jnp.where(has_numbers, decay, 0.0).astype(jnp.zeros(()).dtype),
        residual=residual.astype(jnp.zeros(()).dtype),
        memory=memory.astype(jnp.zeros(()).dtype),
        status=status.astype(jnp.int32),
    )


def _no_response(leaf: object) -> Array:
    """E of what is not trained; a number for what is no array of floating-point numbers."""
    if not is_float(leaf):
        return jnp.zeros(getattr(leaf, "shape", ()), jnp.float32)
    array = jnp.asarray(leaf)
    return jnp.zeros(array.shape, jnp.promote_types(array.dtype, jnp.float32))


def _tolerance(made: PyTree, state: PyTree) -> float:
    """The misfit that roundoff of the coarsest of these arrays may leave."""
    roundings = [
        float(jnp.finfo(leaf.dtype).eps)
        for leaf in jax.tree.leaves((made, state))
        if is_float(leaf)
    ]
    rounding = _TOLERANCE_IN_ROUNDINGS * max(roundings, default=0.0)
    return min(max(_TOLERANCE, rounding), _MOST_TOLERANCE)


def _undifferentiable(error: Exception) -> str:
    """The sentence about an optimizer whose update has no derivative."""
    lines = str(error).strip().splitlines() or [""]
    return (
        f"The optimizer's update cannot be differentiated ({type(error).__name__}: {lines[0]}): "
        "the margin is NaN."
    )


def _chosen(condition: Array, reading: DescentReading, other: DescentReading) -> DescentReading:
    """One of two readings."""

    def choose(leaf: Array, other_leaf: Array) -> Array:
        """One of two arrays."""
        return jnp.where(condition, leaf, other_leaf)

    return jax.tree.map(choose, reading, other)


def _only_floats(params: PyTree) -> PyTree:
    """The parameters that a gradient has; None for others."""
    return jax.tree.map(lambda leaf: leaf if is_float(leaf) else None, params)


def _ones_at(chosen: Leaves, buffers: Leaves) -> Leaves:
    """Ones for some leaves of a state, zeros for all others."""
    ones = {path: jnp.ones_like(leaf) for path, leaf in chosen.items()}
    return zeros_like(buffers) | ones


def _accumulated_by(updates: Leaves, accumulated: Leaves) -> Leaves:
    """The accumulated gradients by the paths of parameters, which theirs end with."""
    found = {}
    for path in updates:
        for accumulated_path, leaf in accumulated.items():
            _, _, parameter_path = accumulated_path.partition(".acc_grads")
            if parameter_path == path:
                found[path] = leaf
    return found


def _divided(buffers: Leaves, kept: Leaves) -> Leaves:
    """Momentum over the share of it that a step keeps; zero where nothing is kept."""
    divided = {}
    for path, leaf in buffers.items():
        share = kept[path]
        divided[path] = jnp.where(share == 0.0, 0.0, leaf / jnp.where(share == 0.0, 1.0, share))
    return divided


def _difference(leaves: Leaves, subtracted: Leaves) -> Leaves:
    """Differences, zero where they are roundoff."""
    differences = {}
    for path, leaf in leaves.items():
        difference = leaf - subtracted[path]
        is_roundoff = jnp.abs(difference) < _CANCELLED * jnp.abs(leaf)
        differences[path] = jnp.where(is_roundoff, 0.0, difference)
    return differences


def _distance(leaves: Leaves, others: Leaves) -> Float[Array, ""]:
    """The distance of two updates relative to the second; 0 where both are zero."""
    apart = jnp.zeros(())
    size = jnp.zeros(())
    for path, leaf in leaves.items():
        largest = jnp.max(jnp.abs(others[path] - leaf), initial=0.0)
        apart = jnp.maximum(apart, largest.astype(apart.dtype))
        size = jnp.maximum(size, jnp.max(jnp.abs(others[path]), initial=0.0).astype(size.dtype))
    return jnp.where(apart == 0.0, 0.0, apart / jnp.where(size == 0.0, 1.0, size))


def _extremes(response: Leaves, decay: Leaves, tolerance: float) -> _Extremes:
    """The extremes over all arrays, with one reduction for each of them."""
    goes_uphill = jnp.zeros((), bool)
    is_finite = jnp.ones((), bool)
    largest_decay = jnp.zeros(())
    for path, leaf in response.items():
        signed = jnp.stack([leaf, -leaf, decay[path]])
        downhill, uphill, share = jnp.max(signed, axis=range(1, signed.ndim), initial=0.0)
        is_finite = is_finite & jnp.isfinite(downhill + uphill + share)
        goes_uphill = goes_uphill | (uphill > tolerance * jnp.maximum(downhill, uphill))
        largest_decay = jnp.maximum(largest_decay, share.astype(largest_decay.dtype))
    return _Extremes(largest_decay, goes_uphill, is_finite)


def _any_nonzero(leaves: Leaves) -> Array:
    """Whether some number is not zero."""
    nonzero = jnp.zeros((), bool)
    for leaf in leaves.values():
        nonzero = nonzero | jnp.any(leaf != 0.0)
    return nonzero
