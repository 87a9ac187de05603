r"""How an optimizer responds to gradients at a point of training, from one trial step.

A point lies between two steps: parameters :math:`\theta`, optimizer state and a gradient
:math:`g`. At fixed second moments :math:`v`, without clipping and trust ratios, the update of a
usual optimizer and its momentum :math:`m` are linear, element by element:

.. math::

    u = U_g g + U_m m + U_\theta \theta, \qquad m' = A m + B g + C \theta.

Near the edge of stability the gradient, the momentum and the parameters change sign at every step.
Then :math:`m' = -m`, the update is :math:`-2 E g - b\, \theta` with

.. math::

    E = -\tfrac{1}{2} \left(U_g - \frac{U_m B}{1 + A}\right), \qquad
    b = -\left(U_\theta - \frac{U_m C}{1 + A}\right),

and training is stable while the margin :math:`\lambda_{\max}(E^{1/2} H E^{1/2}) + b / 2` is
below 1.

1. A trial step :math:`u, s' = \mathrm{update}(g, s, \theta)` is taken.
2. The coefficients are derivatives of ``update`` on arrays of one element. :math:`U_g` of every
   element follows from one call of ``update`` with a small gradient, zero momentum and zero
   parameters, at the second moments of the trial step; all other coefficients are multiples of it.
3. Clipping scales the gradient by :math:`c`, a trust ratio the update by :math:`s`. Both are read
   from the trial step, array by array. What remains of its update is the misfit.

While the first moments are young, Adam scales updates up (bias correction). :math:`E` leaves that
factor out: it is the stationary response at the second moments as they are.
"""

import enum
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ntkdiag import _jax
from ntkdiag.optimizer.linearized_update import Leaves, accumulator_paths, floats_of, is_float
from ntkdiag.optimizer.optimizer_error import OptimizerError, guarded
from ntkdiag.optimizer.saved_state import Optimizer
from ntkdiag.optimizer.state_fields import (
    Buffers,
    buffers_of,
    unknown,
    with_counts_of_averages,
)

# A gradient whose square vanishes beside second moments, and is above 0 in float32.
_SMALL = 2.0**-60
# Another one, above the eps of what normalises updates and below where they are clipped.
_LARGER = 2.0**-16
# Second moments at which eps is negligible, and a count at which averages have no bias.
_MOMENT = 4.0**13
_LATE = 2**31 - 2
# The largest misfit of an array that is explained: at least this, or a few roundings.
_TOLERANCE = 1e-3
_TOLERANCE_IN_ROUNDINGS = 4.0
_MOST_TOLERANCE = 3e-2
# Elements of each array that are compared.
_SAMPLE = 128
# Arrays of at most this many elements cannot tell two explanations apart.
_FEW_ELEMENTS = 4
# Decay below this is rounding of the update.
_NO_DECAY = 2e-8
# Relative differences within which learning rates, or a value and a derivative, are equal.
_SAME = 1e-4
_LINEAR = 1e-3
_ROUNDING = 1e-5
# Squares of small numbers vanish in float32: inner products are taken of arrays times this.
_UNIT = 2.0**30


class OptimizerStatus(enum.IntEnum):
    """Whether the response of an optimizer is known."""

    RECOGNISED = 0
    YOUNG = 1
    UNEXPLAINED = 3
    NOT_PROPORTIONAL = 4
    UPHILL = 5
    NO_UPDATE = 6
    REFUSED = 7


SENTENCES = {
    OptimizerStatus.RECOGNISED: "The update of the optimizer is explained.",
    OptimizerStatus.YOUNG: (
        "The second moments of the optimizer are younger than the steps they average over: the "
        "margin holds for this step and changes while they grow."
    ),
    OptimizerStatus.UNEXPLAINED: (
        "The update differs from the one that gradient and optimizer state predict: the margin is "
        "NaN."
    ),
    OptimizerStatus.NOT_PROPORTIONAL: (
        "The update does not shrink with the gradient, as in sign descent: the margin is NaN."
    ),
    OptimizerStatus.UPHILL: (
        "The update points along the gradient instead of against it, as that of a part of an "
        "optimizer: pass the whole optimizer. The margin is NaN."
    ),
    OptimizerStatus.NO_UPDATE: "The update is zero: the margin is NaN.",
    OptimizerStatus.REFUSED: "The optimizer is not one whose margin is known: it is NaN.",
}


class Response(NamedTuple):
    """The response of an optimizer to gradients that change sign at every step.

    Attributes:
        response: E, a tree like the parameters, in float32 at least. 0 in arrays that are not
            explained, have no gradient, or where no gradient has arrived yet.
        decay: b, of the array that decays most.
        learning_rate: That of the trial step; NaN where arrays have several.
        explained: Which arrays with a gradient are explained, `[L]`.
        misfit: What is not explained of the update, relative, over all arrays.
        worst: The index of the array with the largest misfit, -1 where all are explained.
        status: An `OptimizerStatus`.
    """

    response: PyTree
    decay: Float[Array, ""]
    learning_rate: Float[Array, ""]
    explained: Bool[Array, " L"]
    misfit: Float[Array, ""]
    worst: Int[Array, ""]
    status: Int[Array, ""]

    @property
    def is_known(self) -> Bool[Array, ""]:
        """Whether there is a margin for the arrays that are explained."""
        return self.status <= OptimizerStatus.YOUNG


class Constants(NamedTuple):
    """What is known of an optimizer before training.

    Attributes:
        objection: Why it has no margin, as a sentence; None where its state is known.
        arrays: The paths of the arrays that `Response.explained` is about, in its order.
    """

    objection: str | None
    arrays: tuple[str, ...]


def constants_of(optimizer: Optimizer, params: PyTree, opt_state: PyTree = None) -> Constants:
    """What is known of an optimizer before training.

    Args:
        optimizer: The optimizer.
        params: Parameters, or their shapes.
        opt_state: Its state, or shapes; by default that of `optimizer.init`.
    """
    if opt_state is None:
        opt_state = jax.eval_shape(guarded(optimizer.init), params)
    return Constants(_objection(opt_state, params), tuple(floats_of(params)[0]))


def _objection(opt_state: PyTree, params: PyTree) -> str | None:
    """Why an optimizer has no margin, as a sentence."""
    reason = unknown(opt_state)
    if len(accumulator_paths(opt_state)) > 1:
        reason = "Gradients are accumulated in several places"
    for leaf in jax.tree.leaves(params):
        if jnp.issubdtype(getattr(leaf, "dtype", np.bool_), jnp.complexfloating):
            reason = "Parameters are complex numbers"
    return None if reason is None else f"{reason}: the margin is NaN."


def read_response(
    optimizer: Optimizer,
    opt_state: PyTree,
    params: PyTree,
    gradient: PyTree,
    *,
    constants: Constants | None = None,
    step: Int[Array, ""] | int | None = None,
    extra_args: Mapping[str, object] | None = None,
) -> tuple[PyTree, PyTree, Response]:
    """Take the next step on trial, and read how the optimizer responds.

    Args:
        optimizer: Has `update(gradient, state, params, **extra_args)`, as in Optax.
        opt_state: Its state before the step.
        params: The parameters as it takes them; None where it is called without.
        gradient: The gradient of the step, of each micro-step where gradients are accumulated.
        constants: Those of `constants_of`, which are found anew if they are left out.
        step: The number of steps before, for optimizers that do not count them.
        extra_args: Passed on to `update`.

    Returns:
        The update, the state after the step, and the response. With `optax.MultiSteps` the step is
        a whole one, of micro-steps with one gradient.

    Raises:
        OptimizerError: `update` raises.

    The function is pure and traceable. Cost: two calls of `update` on the parameters, one on arrays
    of one element, and two passes over the arrays.
    """
    update = guarded(optimizer.update)
    rule = _Rule(update, opt_state, params, gradient, dict(extra_args or {}))
    updates, state_after = rule.whole_step()
    like = gradient if params is None else params
    if constants is None:
        constants = constants_of(optimizer, like, opt_state)
    if constants.objection is not None:
        return updates, state_after, _refused(like, gradient)
    try:
        coefficients = rule.coefficients()
    except OptimizerError:
        return updates, state_after, _refused(like, gradient)
    return updates, state_after, _response(rule, coefficients, updates, state_after, like, step)


def _refused(like: PyTree, gradient: PyTree) -> Response:
    """The response of an optimizer that is not known."""
    return Response(
        response=_like_params(like, {}),
        decay=jnp.zeros(()),
        learning_rate=jnp.asarray(jnp.nan),
        explained=jnp.zeros(len(floats_of(gradient)[0]), bool),
        misfit=jnp.asarray(jnp.nan),
        worst=jnp.zeros((), jnp.int32),
        status=jnp.asarray(int(OptimizerStatus.REFUSED), jnp.int32),
    )


class _Coefficients(NamedTuple):
    """The coefficients of all arrays `[L]`, as multiples of X and constants.

    X is U_g of an element over `by_gradient`; 1 without second moments.
    """

    by_gradient: Float[Array, " L"]  # U_g at the reference second moments, where X = 1
    by_momentum: tuple[Float[Array, " L"], Float[Array, " L"]]  # U_m = s X + c: (s, c)
    by_params: tuple[Float[Array, " L"], Float[Array, " L"]]  # U_theta
    keep: Float[Array, " L"]  # A
    drive: tuple[Float[Array, " L"], Float[Array, " L"]]  # B
    drive_by_params: tuple[Float[Array, " L"], Float[Array, " L"]]  # C
    swing: Float[Array, " L"]  # U_g - U_m B / (1 + A) where X = 1
    stationary: Float[Array, " L"]  # of E without the bias correction of young momentum, over E
    learning_rates: Float[Array, " L"]
    is_linear: Bool[Array, " L"]
    # Of second moments, by their paths: v' = beta v + floor at zero gradient.
    betas: dict[str, Float[Array, ""]]
    floors: dict[str, Float[Array, ""]]


# The derivatives that are taken on arrays of one element: second moments, whether the averages are
# late, and the direction in (gradient, momentum, parameters). In bfloat16 betas of two decimals are
# exact along directions of this length.
_LENGTH = 100.0
_GRADIENT, _MOMENTUM, _PARAMS = (_LENGTH, 0.0, 0.0), (0.0, _LENGTH, 0.0), (0.0, 0.0, _LENGTH)
_ROWS = {
    "gradient": (_MOMENT, False, _GRADIENT, _SMALL),
    "gradient at 4 v": (4.0 * _MOMENT, False, _GRADIENT, _SMALL),
    "momentum": (_MOMENT, False, _MOMENTUM, _SMALL),
    "momentum at 4 v": (4.0 * _MOMENT, False, _MOMENTUM, _SMALL),
    "params": (_MOMENT, False, _PARAMS, _SMALL),
    "params at 4 v": (4.0 * _MOMENT, False, _PARAMS, _SMALL),
    "late gradient": (_MOMENT, True, _GRADIENT, _SMALL),
    "late gradient at 4 v": (4.0 * _MOMENT, True, _GRADIENT, _SMALL),
    "late momentum": (_MOMENT, True, _MOMENTUM, _SMALL),
    "no moments": (0.0, False, _GRADIENT, _SMALL),
    "larger gradient": (_MOMENT, True, _GRADIENT, _LARGER),
}


class _Rule:
    """An optimizer at a point, as a function of arrays by their paths."""

    def __init__(
        self,
        update: Callable[..., tuple[PyTree, PyTree]],
        state: PyTree,
        params: PyTree,
        gradient: PyTree,
        extra_args: Mapping[str, object],
    ) -> None:
        self.buffers = buffers_of(state) or Buffers({}, {}, {})
        self.gradient, self._with_gradient = floats_of(gradient)
        self.params, self._with_params = floats_of(params)
        self._update = update
        self._extra_args = extra_args
        self._set_state(state)
        self.micro_steps = jnp.ones((), jnp.int32)
        accumulators = accumulator_paths(state)
        if len(accumulators) == 1:
            [(counter, accumulated)] = accumulators.items()
            self._begin_at_last_micro_step(counter, accumulated)

    def _set_state(self, state: PyTree) -> None:
        self.state = state
        self.arrays, self._with_arrays = floats_of(state)

    def _begin_at_last_micro_step(self, counter: str, accumulated: str) -> None:
        """Make the next call of `update` the last micro-step of `optax.MultiSteps`.

        The counter goes on by (i + 1) mod k, and so from -2 to k - 1.
        """

        def state_at(count: Array | int) -> PyTree:
            """The state at a micro-step, before any gradient."""

            def leaf_at(path: tuple, leaf: Any) -> Any:
                name = jax.tree_util.keystr(path)
                if name == counter:
                    return jnp.full_like(leaf, count)
                return jnp.zeros_like(leaf) if name.startswith(accumulated) else leaf

            return jax.tree_util.tree_map_with_path(leaf_at, self.state)

        self._set_state(state_at(-2))
        _, after = self._call(
            self._small(self.gradient), self._small_arrays(), self._small(self.params)
        )
        [last] = [
            leaf
            for path, leaf in jax.tree_util.tree_leaves_with_path(after)
            if jax.tree_util.keystr(path) == counter
        ]
        self._set_state(state_at(last))
        self.micro_steps = last + 1

    def whole_step(self) -> tuple[PyTree, PyTree]:
        """The trial step."""
        scaled = {path: self._times_micro_steps(leaf) for path, leaf in self.gradient.items()}
        return self._call(scaled, {}, self.params)

    def small_gradient_update(self, moments: Leaves) -> Leaves:
        """The update for a small gradient, over that gradient, without momentum and parameters."""
        gradient = {
            path: self._times_micro_steps(jnp.full_like(_wide(leaf), _SMALL))
            for path, leaf in self.gradient.items()
        }
        zeros = {path: jnp.zeros_like(_wide(self.arrays[path])) for path in self.buffers.momentum}
        params = {path: jnp.zeros_like(leaf) for path, leaf in self.params.items()}
        updates, _ = self._call(gradient, zeros | moments, params)
        made, _ = floats_of(updates)
        return {path: _wide(made[path]) / _SMALL for path in gradient}

    def coefficients(self) -> _Coefficients:
        """Derivatives of `update` on arrays of one element."""
        paths = list(self.gradient)
        momentum_of = {param: path for path, param in self.buffers.momentum.items()}
        moments = list(self.buffers.second_moments)

        def row(moment: Array, is_late: Array, direction: Array, size: Array) -> tuple:
            def outputs(x: Array) -> tuple[Array, Array, Array]:
                along_gradient, along_momentum, along_params = x * direction
                gradient = self._small(self.gradient, size + along_gradient)
                arrays = self._small_arrays()
                for path in self.buffers.momentum:
                    arrays[path] = arrays[path] + along_momentum.astype(arrays[path].dtype)
                for path in moments:
                    arrays[path] = jnp.full_like(arrays[path], moment)
                updates, after = self._call(
                    {path: self._times_micro_steps(leaf) for path, leaf in gradient.items()},
                    arrays,
                    self._small(self.params, along_params),
                    count=jnp.where(is_late, _LATE, 0),
                )
                made, _ = floats_of(updates)
                new, _ = floats_of(after)
                new = {path: leaf.sum() for path, leaf in new.items() if path in arrays}
                zero = jnp.zeros(())
                return (
                    jnp.stack([made[path].sum() for path in paths]),
                    jnp.stack([new.get(momentum_of.get(path, ""), zero) for path in paths]),
                    jnp.stack([new[path] for path in moments] or [zero]),
                )

            return jax.jvp(outputs, (jnp.zeros(()),), (jnp.ones(()),))

        columns = [np.array(column) for column in zip(*_ROWS.values(), strict=True)]
        values, slopes = jax.vmap(row)(*(jnp.asarray(column) for column in columns))
        number = {name: index for index, name in enumerate(_ROWS)}
        u = {name: slopes[0][index] / _LENGTH for name, index in number.items()}
        m = {name: slopes[1][index] / _LENGTH for name, index in number.items()}
        value = values[0][number["gradient"]] / _SMALL
        larger = values[0][number["larger gradient"]] / _LARGER

        # Second moments four times as large scale X by this.
        ratio = _over(u["gradient at 4 v"], u["gradient"])
        is_scaled = jnp.abs(ratio - 1.0) > _SAME

        def split(name: str, of: dict[str, Array]) -> tuple[Array, Array]:
            """What of a coefficient is a multiple of X, and what is constant."""
            whole = of[name]
            change = whole - of[f"{name} at 4 v"]
            is_part = is_scaled & (jnp.abs(change) > _ROUNDING * jnp.abs(whole))
            part = jnp.where(is_part, change / jnp.where(is_part, 1.0 - ratio, 1.0), 0.0)
            rest = whole - part
            return part, jnp.where(jnp.abs(rest) > _ROUNDING * jnp.abs(whole), rest, 0.0)

        keep, late_keep = m["momentum"], m["late momentum"]
        swing = u["gradient"] - u["momentum"] * m["gradient"] / (1.0 + keep)
        late_swing = u["late gradient"] - u["late momentum"] * m["late gradient"] / (
            1.0 + late_keep
        )
        ends = values[2][number["gradient"]], values[2][number["no moments"]]
        betas = (ends[0] - ends[1]) / _MOMENT
        beta_of = dict(zip(self.buffers.second_moments.values(), betas, strict=False))
        beta = jnp.stack([beta_of.get(path, jnp.ones(())) for path in paths])
        late_ratio = _over(u["late gradient at 4 v"], u["late gradient"], otherwise=1.0)
        root = (_MOMENT * beta) ** (-jnp.log(late_ratio) / math.log(4.0))
        rates = _learning_rates(u, m, self.micro_steps)
        return _Coefficients(
            by_gradient=u["gradient"],
            by_momentum=split("momentum", u),
            by_params=split("params", u),
            keep=keep,
            drive=split("gradient", m),
            drive_by_params=split("params", m),
            swing=swing,
            stationary=self._stationary(u, m, _over(late_swing, swing)),
            learning_rates=jnp.where(_are_same(larger, u["late gradient"]), root * rates, jnp.nan),
            is_linear=_are_same(value, u["gradient"]),
            betas={path: betas[index] for index, path in enumerate(moments)},
            floors={path: ends[1][index] for index, path in enumerate(moments)},
        )

    def _stationary(
        self, u: Mapping[str, Array], m: Mapping[str, Array], late: Array
    ) -> Float[Array, " L"]:
        """E without the bias correction of young momentum, over E, at second moments as they are.

        Adam's update grows by 1 / (1 - A^n), n the steps that its state counts, or one more with
        Nesterov's momentum; what else its count changes are the second moments.
        """
        keep = m["momentum"]
        paths = list(self.gradient)
        is_counted = np.array([path in self.buffers.counts for path in paths])
        is_corrected = np.array([path in self.buffers.corrected for path in paths])
        counts = [self._count(path) + 1 for path in paths]
        n = jnp.stack([jnp.asarray(count, keep.dtype) for count in counts])
        share = _over(u["late momentum"] * m["late gradient"], u["late gradient"] * keep)
        n = jnp.where(share < 0.75, n + 1.0, n)  # Nesterov's: keep / (1 + keep) in the place of 1
        of_moments = _over(u["momentum"], u["late momentum"]) * (1.0 - keep**n)
        factor = late * jnp.where(is_corrected, of_moments, 1.0)
        return jnp.where(is_counted & jnp.isfinite(factor) & (factor > 0.0), factor, 1.0)

    def _count(self, path: str) -> Array | int:
        """How many steps the momentum of a parameter counts."""
        counts = self.buffers.counts
        if path not in counts:
            return 0
        for state_path, leaf in jax.tree_util.tree_leaves_with_path(self.state):
            if jax.tree_util.keystr(state_path) == counts[path]:
                return leaf
        return 0

    def _call(
        self, gradient: Leaves, arrays: Leaves, params: Leaves, count: Array | None = None
    ) -> tuple[PyTree, PyTree]:
        """What `update` returns for these arrays."""
        state = self._with_arrays(arrays)
        if count is not None:
            state = with_counts_of_averages(state, count)
        return self._update(
            self._with_gradient(gradient), state, self._with_params(params), **self._extra_args
        )

    def _small(self, leaves: Leaves, value: Array | float = 0.0) -> Leaves:
        """Arrays of one element with this value."""
        return {
            path: jnp.full((1,) * leaf.ndim, value, _jax.at_least_float32(leaf.dtype))
            for path, leaf in leaves.items()
        }

    def _small_arrays(self) -> Leaves:
        """Zeros for arrays of the state that are like parameters."""
        buffers = self.buffers
        chosen = {**buffers.momentum, **buffers.second_moments, **buffers.idle}
        prefixes = tuple(accumulator_paths(self.state).values())
        like_params = {
            path: leaf
            for path, leaf in self.arrays.items()
            if path in chosen or (prefixes and path.startswith(prefixes))
        }
        return self._small(like_params)

    def _times_micro_steps(self, leaf: Array) -> Array:
        """A gradient of which the average, or the sum, over micro-steps is that of a step."""
        if not accumulator_paths(self.state):
            return leaf
        return leaf * self.micro_steps.astype(leaf.dtype)


def _learning_rates(
    u: Mapping[str, Array], m: Mapping[str, Array], micro_steps: Int[Array, ""]
) -> Float[Array, " L"]:
    """The learning rate of each array over a root of second moments, from averages that are late.

    With plain descent it is -U_g, with a momentum that averages -(U_g + U_m), with one that sums
    -U_m B / A, in Nesterov's form -(U_g - U_m B / A).
    """
    gradient, momentum = u["late gradient"], u["late momentum"]
    a, b = m["late momentum"], m["late gradient"]
    beyond = gradient - _over(momentum * b, a)
    is_nesterov = (jnp.abs(beyond) > _SAME * jnp.abs(gradient)) & (a != 0.0)
    # Where gradients of micro-steps are summed, the average is of their sum.
    gain = _over(b, 1.0 - a)
    is_average = (jnp.abs(gain - 1.0) < _SAME) | (jnp.abs(gain - micro_steps) < _SAME)
    rates = jnp.where(is_nesterov, beyond, gradient)
    rates = jnp.where(is_average & (a != 0.0), gradient + momentum * gain, rates)
    return -rates


class _Fit(NamedTuple):
    """What explains the trial step, by array `[L]`."""

    of_gradient: Float[Array, " L"]  # the factor of U_g g, and so of E: s c
    of_params: Float[Array, " L"]  # of U_theta theta, and so of b
    squares: Float[Array, " L"]  # |u|^2, in a unit of its own
    misfits: Float[Array, " L"]  # likewise
    largest: Float[Array, " L"]  # the largest X


class _Trial(NamedTuple):
    """A trial step, by the paths of parameters."""

    update: Leaves
    momentum: Leaves
    momentum_after: Leaves
    moments_after: Leaves  # by the paths of the state

    @staticmethod
    def of(rule: _Rule, updates: PyTree, state_after: PyTree) -> "_Trial":
        made, _ = floats_of(updates)
        after, _ = floats_of(state_after)
        momentum = rule.buffers.momentum
        return _Trial(
            {path: made[path] for path in rule.gradient},
            {param: rule.arrays[path] for path, param in momentum.items()},
            {param: after[path] for path, param in momentum.items()},
            {path: after[path] for path in rule.buffers.second_moments},
        )


def _response(
    rule: _Rule,
    coefficients: _Coefficients,
    updates: PyTree,
    state_after: PyTree,
    like: PyTree,
    step: Int[Array, ""] | int | None,
) -> Response:
    """The response, from a trial step."""
    trial = _Trial.of(rule, updates, state_after)
    moments = {}
    for path, leaf in trial.moments_after.items():
        before = (_wide(leaf) - coefficients.floors[path]) / _or_one(coefficients.betas[path])
        moments[path] = jnp.maximum(before, 0.0).astype(_wide(leaf).dtype)
    small = rule.small_gradient_update(moments)
    for path, param in rule.buffers.second_moments.items():
        # Nothing tells how an element responds whose second moment is still 0.
        small[param] = jnp.where(trial.moments_after[path] == 0.0, 0.0, small[param])
    small = {path: jnp.where(jnp.isfinite(leaf), leaf, 0.0) for path, leaf in small.items()}
    fit = _fit(rule, coefficients, trial, small)

    has_update = fit.squares > 0.0
    is_proportional = coefficients.is_linear & (coefficients.swing != 0.0)
    tolerance = _tolerance(trial.update, rule.state)
    explained = fit.misfits <= tolerance**2 * fit.squares
    explained &= is_proportional | ~has_update
    factors = coefficients.stationary * fit.of_gradient
    factors *= _over(coefficients.swing, coefficients.by_gradient)
    explained &= jnp.isfinite(factors)
    goes_uphill = coefficients.swing * fit.of_gradient > 0.0

    status = jnp.where(_is_young(rule, coefficients, step), 1, 0)
    is_first = [
        (_adds_up_updates(rule.state, state_after), OptimizerStatus.REFUSED),
        (~jnp.any(has_update), OptimizerStatus.NO_UPDATE),
        (~jnp.any(has_update & is_proportional), OptimizerStatus.NOT_PROPORTIONAL),
        (~jnp.any(has_update & explained), OptimizerStatus.UNEXPLAINED),
        (jnp.any(has_update & goes_uphill), OptimizerStatus.UPHILL),
    ]
    for applies, code in reversed(is_first):
        status = jnp.where(applies, int(code), status)
    keeps = explained & (status <= OptimizerStatus.YOUNG)
    factors = jnp.where(keeps, -0.5 * factors, 0.0)

    response = {}
    for index, (path, leaf) in enumerate(small.items()):
        response[path] = factors[index].astype(leaf.dtype) * leaf
    shares = _over(fit.misfits, fit.squares)
    return Response(
        response=_like_params(like, response),
        decay=_decay(coefficients, fit),
        learning_rate=_learning_rate(coefficients, jnp.any(has_update)),
        explained=explained,
        misfit=jnp.sqrt(_over(fit.misfits.sum(), fit.squares.sum())).astype(jnp.zeros(()).dtype),
        worst=jnp.where(explained.all(), -1, jnp.argmax(jnp.where(explained, -1.0, shares))),
        status=status.astype(jnp.int32),
    )


def _fit(rule: _Rule, coefficients: _Coefficients, trial: _Trial, small: Leaves) -> _Fit:
    """Fit the trial step.

        u = s (U_m m + c U_g g + c' U_theta theta),    m' = A m + c B g + c' C theta

    Here c' is 1, or c where decay is clipped with the gradient. Without momentum the update alone
    tells one factor, either of all of it or of all but the decay.
    """
    has_momentum = np.array([path in trial.momentum for path in rule.gradient])
    update, params, gradient, momentum, momentum_after, by_gradient = (
        _elements(leaves, rule.gradient)
        for leaves in (
            trial.update,
            rule.params,
            rule.gradient,
            trial.momentum,
            trial.momentum_after,
            small,
        )
    )
    x = by_gradient * _over(1.0, coefficients.by_gradient)[:, None]

    def times(coefficient: tuple[Array, Array]) -> Float[Array, "L S"]:
        part, rest = coefficient
        return part[:, None] * x + rest[:, None]

    # 1. c, from what entered the momentum: of gradient and decay, or of the gradient alone.
    drive = momentum_after - coefficients.keep[:, None] * momentum
    of_gradient = times(coefficients.drive) * gradient
    of_params = times(coefficients.drive_by_params) * params
    of_both = of_gradient + of_params
    common = _multiple(drive, of_both)
    alone = _multiple(drive - of_params, of_gradient)
    is_alone = _are_better(
        _squares(drive - of_params - alone * of_gradient),
        _squares(drive - common * of_both),
        has_momentum,
        trial,
    )
    c = jnp.where(has_momentum[:, None], jnp.where(is_alone, alone, common), 1.0)
    c_params = jnp.where(is_alone | (_squares(of_params) == 0.0), 1.0, c)

    # 2. s, from the update; or without momentum c, where all but the decay is scaled.
    of_gradient = by_gradient * gradient
    of_params = times(coefficients.by_params) * params
    predicted = times(coefficients.by_momentum) * momentum + c * of_gradient + c_params * of_params
    s = _multiple(update, predicted)
    misfits = _squares(update - s * predicted)
    clipped = _multiple(update - of_params, of_gradient)
    clipped_misfits = _squares(update - of_params - clipped * of_gradient)
    is_clipped = _are_better(clipped_misfits, misfits, ~has_momentum, trial)
    return _Fit(
        of_gradient=jnp.where(is_clipped, clipped, s * c)[:, 0],
        of_params=jnp.where(is_clipped, 1.0, s * c_params)[:, 0],
        squares=_squares(update)[:, 0],
        misfits=jnp.where(is_clipped, clipped_misfits, misfits)[:, 0],
        largest=jnp.max(jnp.abs(x), axis=1, initial=0.0),
    )


def _elements(leaves: Leaves, like: Leaves) -> Float[Array, "L S"]:
    """Some elements of each array, spread over it; 0 where there are no more."""
    width = max((min(_SAMPLE, leaf.size) for leaf in like.values()), default=0)
    rows, places, total = [], [], 0
    for path, leaf in like.items():
        n_taken = min(_SAMPLE, leaf.size) if path in leaves else 0
        places.append([total + number if number < n_taken else -1 for number in range(width)])
        total += n_taken
        if n_taken:
            flat = _wide(leaves[path]).reshape(-1)
            # Elements are looked up: a slice could change how XLA lays out a sharded array.
            spread = np.linspace(0, leaf.size - 1, n_taken).astype(int)
            rows.append(flat[spread] if n_taken < leaf.size else flat)
    joined = jnp.concatenate([*rows, jnp.zeros(1)])
    return joined[np.array(places)]


def _multiple(rows: Float[Array, "L S"], of: Float[Array, "L S"]) -> Float[Array, "L 1"]:
    """The factor f of each row that fits rows = f * of best; 1 where `of` is 0."""
    product = jnp.sum((rows * _UNIT) * (of * _UNIT), axis=1, keepdims=True)
    return _over(product, _squares(of), otherwise=1.0)


def _squares(rows: Float[Array, "L S"]) -> Float[Array, "L 1"]:
    """Squared lengths, in a unit in which those of small numbers are not 0."""
    return jnp.sum((rows * _UNIT) ** 2, axis=1, keepdims=True)


def _are_better(
    misfits: Float[Array, "L 1"], others: Float[Array, "L 1"], may_be: np.ndarray, trial: _Trial
) -> Bool[Array, "L 1"]:
    """Which of the arrays that may be are explained better than, or as well as, in another way.

    Anything explains a few elements: they are taken as the others are.
    """
    is_few = np.array([[leaf.size <= _FEW_ELEMENTS] for leaf in trial.update.values()])
    may_be = may_be[:, None]
    tells = may_be & ~is_few
    tells = tells if tells.any() else may_be
    total = jnp.sum(jnp.where(tells, misfits, 0.0)) <= jnp.sum(jnp.where(tells, others, 0.0))
    return jnp.asarray(may_be) & jnp.where(is_few, total, misfits <= others)


def _decay(coefficients: _Coefficients, fit: _Fit) -> Float[Array, ""]:
    """b of the array that decays most."""
    (u_scaled, u_rest), (m_scaled, m_rest) = coefficients.by_params, coefficients.by_momentum
    c_scaled, c_rest = coefficients.drive_by_params
    kept = 1.0 + coefficients.keep
    scaled = u_scaled - (m_scaled * c_rest + m_rest * c_scaled) / kept
    rest = u_rest - m_rest * c_rest / kept
    shares = -fit.of_params * (coefficients.stationary * scaled * fit.largest + rest)
    largest = jnp.max(shares, initial=0.0).astype(jnp.zeros(()).dtype)
    return jnp.where(largest > _NO_DECAY, largest, 0.0)


def _learning_rate(coefficients: _Coefficients, has_update: Bool[Array, ""]) -> Float[Array, ""]:
    """The rate of all arrays that have one; NaN where these are several."""
    rates = jnp.where(coefficients.is_linear, coefficients.learning_rates, jnp.nan)
    is_trained = (coefficients.by_gradient != 0.0) | ~coefficients.is_linear
    largest = jnp.max(jnp.where(is_trained, rates, -jnp.inf))
    smallest = jnp.min(jnp.where(is_trained, rates, jnp.inf))
    rate = jnp.where(largest - smallest <= _SAME * jnp.abs(largest), largest, jnp.nan)
    rate = jnp.where(~is_trained.any() & ~has_update, 0.0, rate)
    return rate.astype(jnp.zeros(()).dtype)


def _is_young(
    rule: _Rule, coefficients: _Coefficients, step: Int[Array, ""] | int | None
) -> Bool[Array, ""]:
    """Whether second moments have seen fewer steps than they average over, 1 / (1 - beta2)."""
    counts = [
        jnp.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(rule.state)
        if jax.tree_util.keystr(path).endswith(".count")
    ]
    if step is not None:
        counts.append(jnp.asarray(step) // rule.micro_steps)
    if not counts or not coefficients.betas:
        return jnp.zeros((), bool)
    age = jnp.stack([jnp.max(count) for count in counts]).max()
    betas = jnp.stack(list(coefficients.betas.values()))
    remembers = (betas > 0.0) & (betas < 1.0)
    memory = jnp.where(remembers, 1.0 / jnp.where(remembers, 1.0 - betas, 1.0), 0.0)
    return age < jnp.max(memory)


def _adds_up_updates(state: PyTree, state_after: PyTree) -> Bool[Array, ""]:
    """Whether `optax.apply_every` adds up updates: it counts modulo their number, 1 or more."""
    adds_up = jnp.zeros((), bool)
    for node in jax.tree.leaves((state, state_after), is_leaf=_is_apply_every):
        if _is_apply_every(node):
            adds_up = adds_up | (node.count != 0)
    return adds_up


def _is_apply_every(node: object) -> bool:
    return type(node).__name__ == "ApplyEvery"


def _tolerance(update: Leaves, state: PyTree) -> float:
    """The misfit that rounding may leave in the coarsest of these arrays."""
    roundings = [
        float(jnp.finfo(leaf.dtype).eps)
        for leaf in jax.tree.leaves((update, state))
        if is_float(leaf)
    ]
    rounding = _TOLERANCE_IN_ROUNDINGS * max(roundings, default=0.0)
    return min(max(_TOLERANCE, rounding), _MOST_TOLERANCE)


def _like_params(params: PyTree, response: Leaves) -> PyTree:
    """E like the parameters, 0 where it is not listed."""

    def response_at(path: tuple, leaf: Any) -> Array:
        dtype = _jax.at_least_float32(leaf.dtype) if is_float(leaf) else jnp.float32
        nothing = jnp.zeros(jnp.shape(leaf) if hasattr(leaf, "dtype") else (), dtype)
        return response.get(jax.tree_util.keystr(path), nothing).astype(dtype)

    return jax.tree_util.tree_map_with_path(response_at, params)


def _over(
    numerator: Array | float, denominator: Array, otherwise: float = 0.0
) -> Float[Array, "..."]:
    """A quotient, with another value where the denominator is 0."""
    is_zero = denominator == 0.0
    return jnp.where(is_zero, otherwise, numerator / jnp.where(is_zero, 1.0, denominator))


def _are_same(a: Array, b: Array) -> Bool[Array, "..."]:
    return jnp.abs(a - b) <= _LINEAR * jnp.abs(b)


def _or_one(number: Array) -> Array:
    return jnp.where(number == 0.0, 1.0, number)


def _wide(leaf: Array) -> Array:
    """In float32, or in its own dtype where that is wider."""
    return leaf.astype(_jax.at_least_float32(leaf.dtype))
