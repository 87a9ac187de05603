"""What an optimizer does with a gradient, read from the optimizer itself.

Near a minimum the gradient is H theta, and what decides about stability is the answer of the
optimizer to a gradient that changes its sign at every step: once momentum swings with it, that
update is -2 E g - b theta, with E by parameter. With b the largest decay of any of them, the
iteration has no eigenvalue -1 before

    lambda_max(E^1/2 H E^1/2) + b / 2 = 1.

This is where stability ends with one momentum buffer, or with averages side by side. Buffers one
after the other, as in `chain(trace(...), adam(...))`, lose it long before, to a slower oscillation:
they are told by how they answer a single gradient, and have no margin.

So E = rate / 2 for plain descent, rate / (2 (1 + beta)) with momentum, and for Adam
rate (1 - beta1) / (2 (1 + beta1)) over its denominator. Nobody has to say so:

1. Of the usual optimizers it is known what their buffers are: `linear_response` differentiates
   their own `update`, and `explain_step` compares with the update that was made.
2. Of all others `linearized_update` finds that out by derivatives, too, in a program several times
   as large, and `explain` compares.
3. An array of which the update is not explained is not understood, and says so.
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ntkdiag.descent import Descent
from ntkdiag.optimizer.effective_rate import learning_rate_of
from ntkdiag.optimizer.explained_step import explain_step
from ntkdiag.optimizer.explained_update import explain
from ntkdiag.optimizer.linear_response import LinearResponse
from ntkdiag.optimizer.linearized_update import (
    Leaves,
    LinearizedUpdate,
    accumulator_paths,
    floats_of,
    is_float,
    linearized_update,
    signs,
    zeros_like,
)
from ntkdiag.optimizer.optimizer_error import OptimizerError, guarded
from ntkdiag.optimizer.state_fields import buffers_of, can_be_undone, state_classes
from ntkdiag.optimizer.undone_step import state_before

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
    NO_STEP = 10
    FAILED = 11
    UNRESOLVED = 12
    NOT_LOOKED_AT = 13


REASONS = {
    Reading.RECOGNISED: "The update that was made is explained, or its rule was stated.",
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
        "predict, in arrays that matter: the optimizer is unknown there, and the margin is NaN."
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
    Reading.NO_STEP: (
        "No step was made yet: second moments are empty, and the margin is NaN until the next "
        "measurement."
    ),
    Reading.REFUSED: (
        "The optimizer evaluates gradients elsewhere, searches along a line, adds up updates, or "
        "cannot be differentiated: no update rule is known, and the margin is NaN."
    ),
    Reading.FAILED: (
        "Reading the optimizer failed, by an error of ntkdiag that a warning has said: the margin "
        "is NaN."
    ),
    Reading.UNRESOLVED: (
        "The iteration did not resolve the largest curvature, as where it is below the rounding of "
        "the loss: the margin is NaN."
    ),
    Reading.NOT_LOOKED_AT: (
        "The state of this optimizer before a step does not follow from that after it, and keeping "
        "it would copy it at every step: without data it is not read, and the margin is NaN."
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
    "MuonState": "orthogonalises its momentum, whose size no longer matters",
    "ScheduleFreeState": "takes its gradient between two sets of parameters",
}

_TOLERANCE = 1e-3
_TOLERANCE_IN_ROUNDINGS = 4.0
_MOST_TOLERANCE = 3e-2
# Shares of a parameter that are roundoff of its update.
_NO_DECAY = 2e-8
# By how much answers to a single gradient are bent where buffers are in series, in tolerances.
_BENT = 10.0
_MOST_BENT = 0.05


def _as_it_is(tree: PyTree) -> PyTree:
    return tree


@dataclasses.dataclass(frozen=True)
class ArrayReading:
    """How an optimizer answers gradients at one step, array by array, E where it is needed."""

    # E by the paths of parameters, in float32 at least, as a function of `unity`: half the update
    # that answers a gradient of 1 that changes its sign at every step; see `LinearResponse`.
    respond: Callable[[Float[Array, ""] | float], Leaves]
    params: PyTree  # a tree like the parameters
    arrays: tuple[str, ...]  # the paths of the parameters that have a gradient
    is_explained: Bool[Array, " L"]  # whether the update of each of them is, `[L]`
    decay: Float[Array, ""]  # b, the largest share of a parameter that weight decay takes in a step
    # Of the update that was made, what the prediction does not explain, relative; NaN where it was
    # not compared.
    residual: Float[Array, ""]
    # 1 / (1 - beta2), the steps that second moments remember; 0 without any.
    memory: Float[Array, ""]
    # A `Reading`, of the arrays that are explained: their share of the whole is not judged here.
    status: Int[Array, ""]
    # Of this step; NaN where it is not known, or arrays have several.
    learning_rate: Float[Array, ""] = dataclasses.field(
        default_factory=lambda: jnp.asarray(jnp.nan)
    )
    # Puts a tree like the parameters into the structure that the measured function takes.
    place: Callable[[PyTree], PyTree] = _as_it_is

    @property
    def has_numbers(self) -> Bool[Array, ""]:
        """Whether there is a margin for what is explained."""
        return _has_numbers(self.status)

    def response(self, unity: Float[Array, ""] | float = 1.0) -> PyTree:
        """E like the parameters, as far as it is known also of arrays that are not explained."""
        known = self.respond(unity)

        def response_at(path: tuple, leaf: object) -> Array:
            """E of one array of parameters."""
            nothing = _no_response(leaf)
            array = known.get(jax.tree_util.keystr(path), nothing)
            return jnp.where(self.has_numbers, array, 0.0).astype(nothing.dtype)

        return self.place(jax.tree_util.tree_map_with_path(response_at, self.params))

    def explained(self) -> PyTree:
        """1 for every array of parameters whose update is explained, 0 for others."""
        number_of = {path: number for number, path in enumerate(self.arrays)}

        def flag_at(path: tuple, leaf: object) -> Array:
            """The flag of one array of parameters; what has no gradient has nothing to explain."""
            number = number_of.get(jax.tree_util.keystr(path))
            flag = jnp.ones((), bool) if number is None else self.is_explained[number]
            return flag.astype(_no_response(leaf).dtype)

        return self.place(jax.tree_util.tree_map_with_path(flag_at, self.params))


@dataclasses.dataclass(frozen=True)
class _Predicted:
    """An answer to be compared with an update, by the paths of the gradient."""

    response: Leaves  # e, before what scales it is known
    decay: Leaves  # b by parameter, likewise
    made: Leaves  # the update that was made, without noise
    directions: list[Leaves]  # what momentum, gradient and parameters add to the update
    # What momentum adds with signs flipped before and back after: the same where it acts
    # elementwise.
    mixed: Leaves
    is_in_series: Array  # whether momentum goes through buffers one after the other


class _Extremes(NamedTuple):
    """What the largest and smallest answers say."""

    decay: Float[Array, ""]
    goes_uphill: Array
    is_finite: Array


def objection_to_reading(opt_state: PyTree, params: PyTree) -> str | None:
    """Why an optimizer is not read, as a sentence; None where nothing speaks against it."""
    for name in sorted(state_classes(opt_state)):
        if name in _REFUSED_STATES:
            return f"An optimizer with a {name} {_REFUSED_STATES[name]}: the margin is NaN."
    if len(accumulator_paths(opt_state)) > 1:
        return "Gradients are accumulated in several places: the margin is NaN."
    for leaf in jax.tree.leaves(params):
        if jnp.issubdtype(getattr(leaf, "dtype", np.bool_), jnp.complexfloating):
            return "Parameters are complex numbers: the margin is NaN."
    return None


def read_arrays(
    update: Update,
    gradient: PyTree,
    state: PyTree,
    params: PyTree,
    made: PyTree,
    *,
    step: Int[Array, ""] | int,
    state_after: PyTree = None,
    extra_args: Mapping[str, object] | None = None,
    note: Callable[[str], None] | None = None,
) -> ArrayReading:
    """Read from a step of training how its optimizer answers gradients."""
    arguments = dict(extra_args or {})
    update = guarded(update)
    objection = objection_to_reading(state, params)
    if objection is None:
        try:
            if state_after is None:
                _, state_after = update(gradient, state, params, **arguments)
            buffers = buffers_of(state)
            if buffers is not None:
                response = LinearResponse.of_step(
                    update, state, state_after, gradient, params, buffers, arguments
                )
                tolerance = _tolerance(made, state)
                reading = _of_response(response, params, made, tolerance, step)
                adds_up = _adds_up_updates(state, state_after)
                status = jnp.where(adds_up, Reading.REFUSED, reading.status)
                return dataclasses.replace(reading, status=status.astype(jnp.int32))
            quiet = linearized_update(update, gradient, state, state_after, params, arguments)
        except OptimizerError as error:
            objection = _undifferentiable(error)
        else:
            tolerance = _tolerance(made, state)
            predicted = _predict(quiet, gradient, params, made, tolerance)
            return _compared(predicted, params, quiet.memory, tolerance, step)
    if note is not None:
        note(objection)
    return unread(params, Reading.REFUSED)


def read_arrays_after(
    update: Update,
    state_after: PyTree,
    params: PyTree,
    *,
    step: Int[Array, ""] | int,
    made: PyTree | None = None,
    gradient: PyTree | None = None,
    extra_args: Mapping[str, object] | None = None,
    note: Callable[[str], None] | None = None,
) -> ArrayReading:
    """Read an optimizer outside of the step, where only the state after it is at hand."""
    arguments = dict(extra_args or {})
    update = guarded(update)
    objection = objection_to_reading(state_after, params)
    if objection is None and accumulator_paths(state_after):
        objection = (
            "Gradients are accumulated over micro-steps, and the state after a step does not say "
            "over how many: the margin is NaN."
        )
    if objection is None:
        like_gradient = made if gradient is None else gradient
        like_gradient = _only_floats(params) if like_gradient is None else like_gradient
        got = gradient
        if got is None:
            got = jax.tree.map(jnp.zeros_like, like_gradient)
        try:
            if made is not None and can_be_undone(state_after):
                state = state_before(update, got, state_after, params, arguments)
                reading = read_arrays(
                    update,
                    got,
                    state,
                    params,
                    made,
                    step=step,
                    state_after=state_after,
                    extra_args=arguments,
                    note=note,
                )
                return reading if gradient is not None else _unverified_if_unexplained(reading)
            buffers = buffers_of(state_after)
            if buffers is not None:
                response = LinearResponse.of_step(
                    update, state_after, state_after, got, params, buffers, arguments
                )
                return _unverified(response, params)
            quiet = linearized_update(update, got, state_after, state_after, params, arguments)
        except OptimizerError as error:
            objection = _undifferentiable(error)
        else:
            return _bare(quiet, params)
    if note is not None:
        note(objection)
    return unread(params, Reading.REFUSED)


def stated_arrays(descent: Descent, params: PyTree, step: Int[Array, ""] | int) -> ArrayReading:
    """The reading of an update rule that was stated: E = rate / (threshold P)."""
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

    response, _ = floats_of(jax.tree.map(response_of, params, preconditioner))
    return ArrayReading(
        respond=lambda unity: response,
        params=params,
        arrays=tuple(response),
        is_explained=jnp.ones(len(response), bool),
        decay=jnp.asarray(rate * now.weight_decay, jnp.result_type(float)),
        residual=jnp.asarray(jnp.nan),
        memory=jnp.zeros(()),
        status=jnp.asarray(int(Reading.RECOGNISED), jnp.int32),
        learning_rate=jnp.asarray(rate, jnp.result_type(float)),
    )


def unread(params: PyTree, status: Reading) -> ArrayReading:
    """A reading without numbers."""
    return ArrayReading(
        respond=lambda unity: {},
        params=params,
        arrays=(),
        is_explained=jnp.ones(0, bool),
        decay=jnp.zeros(()),
        residual=jnp.asarray(jnp.nan),
        memory=jnp.zeros(()),
        status=jnp.asarray(int(status), jnp.int32),
    )


def _of_response(
    response: LinearResponse,
    params: PyTree,
    made: PyTree,
    tolerance: float,
    step: Int[Array, ""] | int,
) -> ArrayReading:
    """The reading of an optimizer whose buffers are known, compared with a step that it made."""
    updates, _ = floats_of(made)
    explained = explain_step(response, updates)
    has_update = explained.squares > 0.0
    is_explained = explained.misfits <= tolerance**2 * explained.squares
    is_explained &= jnp.isfinite(explained.scales)
    total = explained.squares.sum()
    residual = jnp.sqrt(explained.misfits.sum() / jnp.where(total == 0.0, 1.0, total))

    memory = explained.memory
    status = jnp.where(step < memory, Reading.YOUNG, Reading.RECOGNISED)
    status = jnp.where(jnp.any(has_update & explained.goes_uphill), Reading.UPHILL, status)
    none_is_explained = ~jnp.any(has_update & is_explained)
    status = jnp.where(none_is_explained, Reading.UNEXPLAINED, status)
    none_is_proportional = ~jnp.any(has_update & explained.is_proportional)
    status = jnp.where(none_is_explained & none_is_proportional, Reading.NOT_PROPORTIONAL, status)
    status = jnp.where(jnp.any(has_update), status, Reading.NO_UPDATE)

    def respond(unity: Float[Array, ""] | float) -> Leaves:
        """E, with what clips and trust ratios make of it."""
        scaled = {}
        for number, (path, leaf) in enumerate(response.response(unity).items()):
            scaled[path] = explained.scales[number].astype(leaf.dtype) * leaf
        return scaled

    return ArrayReading(
        respond=respond,
        params=params,
        arrays=tuple(updates),
        is_explained=is_explained,
        decay=_largest_decay(explained.decay_scales * explained.decay),
        residual=residual.astype(jnp.zeros(()).dtype),
        memory=memory,
        status=status.astype(jnp.int32),
        learning_rate=learning_rate_of(response),
    )


def _unverified(response: LinearResponse, params: PyTree) -> ArrayReading:
    """The reading of an optimizer whose buffers are known, without a step to compare with."""
    arrays = tuple(response.inputs.gradient)
    status = jnp.where(response.has_moments(), Reading.UNVERIFIED, Reading.NO_STEP)
    return ArrayReading(
        respond=response.response,
        params=params,
        arrays=arrays,
        is_explained=jnp.ones(len(arrays), bool),
        decay=_largest_decay(
            jnp.stack([jnp.max(leaf, initial=0.0) for leaf in response.decay().values()])
        ),
        residual=jnp.asarray(jnp.nan),
        learning_rate=learning_rate_of(response),
        memory=response.memory(),
        status=status.astype(jnp.int32),
    )


def _largest_decay(decays: Float[Array, " L"]) -> Float[Array, ""]:
    """b of the array that decays most; what is rounding of the update is none."""
    largest = jnp.max(decays, initial=0.0).astype(jnp.zeros(()).dtype)
    return jnp.where(largest > _NO_DECAY, largest, 0.0)


def _predict(
    quiet: LinearizedUpdate, gradient: PyTree, params: PyTree, made: PyTree, tolerance: float
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


def _compared(
    predicted: _Predicted,
    params: PyTree,
    memory: Float[Array, ""],
    tolerance: float,
    step: Int[Array, ""] | int,
) -> ArrayReading:
    """The reading that the comparison of a prediction with the update leads to."""
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
    return _of_arrays(response, extremes.decay, residual, memory, status, params)


def _bare(quiet: LinearizedUpdate, params: PyTree) -> ArrayReading:
    """The reading of a quiet point without an update to compare with."""
    swung, decay_swung = quiet.swinging()
    response = {}
    decay = {}
    for path, leaf in quiet.by_gradient.items():
        wide = jnp.promote_types(leaf.dtype, jnp.float32)
        response[path] = (-0.5 * (leaf - swung[path])).astype(wide)
        decay[path] = -(quiet.by_params[path] - decay_swung[path]).astype(wide)
    extremes = _extremes(response, decay, _TOLERANCE)
    status = jnp.asarray(Reading.UNVERIFIED)
    status = jnp.where(quiet.in_series(_BENT * _TOLERANCE), Reading.IN_SERIES, status)
    status = jnp.where(extremes.goes_uphill, Reading.UPHILL, status)
    status = jnp.where(_any_nonzero(quiet.by_gradient), status, Reading.NOT_PROPORTIONAL)
    # What the size of the parameters scales an update by is not seen at the quiet point.
    weights, _ = floats_of(params)
    by_gradient, drive = quiet.by_gradient_at(weights)
    is_scaled = _distance(by_gradient, quiet.by_gradient) > _TOLERANCE
    is_scaled |= _distance(drive, quiet.drive) > _TOLERANCE
    status = jnp.where(is_scaled | ~extremes.is_finite, Reading.UNEXPLAINED, status)
    status = jnp.where(quiet.is_before_first_step, Reading.NO_STEP, status)
    return _of_arrays(response, extremes.decay, jnp.asarray(jnp.nan), quiet.memory, status, params)


def _of_arrays(
    response: Leaves,
    decay: Float[Array, ""],
    residual: Float[Array, ""],
    memory: Float[Array, ""],
    status: Array,
    params: PyTree,
) -> ArrayReading:
    """A reading of all arrays together."""
    return ArrayReading(
        respond=lambda unity: response,
        params=params,
        arrays=tuple(response),
        is_explained=jnp.ones(len(response), bool),
        decay=decay.astype(jnp.zeros(()).dtype),
        residual=residual.astype(jnp.zeros(()).dtype),
        memory=memory.astype(jnp.zeros(()).dtype),
        status=status.astype(jnp.int32),
    )


def _unverified_if_unexplained(reading: ArrayReading) -> ArrayReading:
    """A reading by momentum alone, which shows nothing where the gradient is missed."""
    is_missed = (reading.status == Reading.UNEXPLAINED) | ~reading.is_explained.all()
    status = jnp.where(is_missed, Reading.UNVERIFIED, reading.status)
    return dataclasses.replace(
        reading,
        is_explained=jnp.ones_like(reading.is_explained),
        residual=jnp.where(is_missed, jnp.nan, reading.residual),
        status=status.astype(jnp.int32),
    )


def _has_numbers(status: Int[Array, ""]) -> Bool[Array, ""]:
    """Whether a reading comes with numbers."""
    has_numbers = jnp.zeros((), bool)
    for reading in _WITH_NUMBERS:
        has_numbers = has_numbers | (status == reading)
    return has_numbers


def _adds_up_updates(state: PyTree, state_after: PyTree) -> Bool[Array, ""]:
    """Whether updates are added up over steps; `optax.apply_every(1)` does not.

    It counts modulo the number of steps, and is at 0 before and after a step only where that is 1.
    """

    def counts(tree: PyTree) -> list[Array]:
        """The counts of all such states."""
        nodes = jax.tree.leaves(tree, is_leaf=_is_apply_every)
        return [jnp.asarray(node.count) for node in nodes if _is_apply_every(node)]

    adds_up = jnp.zeros((), bool)
    for count in (*counts(state), *counts(state_after)):
        adds_up = adds_up | (count != 0)
    return adds_up


def _is_apply_every(node: object) -> bool:
    return type(node).__name__ == "ApplyEvery"


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


def _undifferentiable(error: OptimizerError) -> str:
    """The sentence about an optimizer whose update has no derivative."""
    return f"The optimizer's update cannot be differentiated ({error}): the margin is NaN."


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
