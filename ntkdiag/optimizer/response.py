r"""How an optimizer responds to gradients at a point of training, from one trial step.

A point lies between two steps: parameters :math:`\theta`, optimizer state and a gradient
:math:`g`. At fixed second moments, without clipping and trust ratios, the update of a usual
optimizer and its momentum :math:`m` are linear, element by element:

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
2. The coefficients are derivatives of ``update`` on arrays of one element: see `coefficients`.
   :math:`E` of every element is a multiple of the update for a small gradient, without momentum
   and parameters, at second moments as they are, or as the first step leaves them.
3. Clipping scales the gradient by :math:`c`, a trust ratio the update by :math:`s`. Both are read
   from elements of the trial step. What remains of its update is the misfit.

While first moments are young, Adam scales updates up (bias correction). :math:`E` leaves that
factor out: it is the stationary response.
"""

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ntkdiag import _jax
from ntkdiag.optimizer.coefficients import SAME, Coefficients, Pair, Rule, over
from ntkdiag.optimizer.leaves import Leaves, floats_of, is_float, wide
from ntkdiag.optimizer.optimizer_error import OptimizerError, guarded
from ntkdiag.optimizer.saved_state import Optimizer
from ntkdiag.optimizer.state_fields import unknown

# The largest misfit of an array that is explained: at least this, or a few roundings.
_TOLERANCE = 1e-3
_TOLERANCE_IN_ROUNDINGS = 4.0
_MOST_TOLERANCE = 3e-2
# The trial step is compared in so many elements of so many arrays of each group.
_ELEMENTS = 128
_ARRAYS = 4
# Decay below this is rounding of the update.
_NO_DECAY = 2e-8
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
        "The update of some array differs from the one that gradient and optimizer state predict: "
        "the margin is NaN."
    ),
    OptimizerStatus.NOT_PROPORTIONAL: (
        "The update does not shrink with the gradient, as in sign descent: the margin is NaN."
    ),
    OptimizerStatus.UPHILL: (
        "The update points along the gradient instead of against it, as that of a part of an "
        "optimizer: pass the whole optimizer. The margin is NaN."
    ),
    OptimizerStatus.NO_UPDATE: "The update is zero: the margin is NaN.",
    OptimizerStatus.REFUSED: "The update rule of the optimizer is not known: the margin is NaN.",
}


class Response(NamedTuple):
    """The response of an optimizer to gradients that change sign at every step.

    Attributes:
        response: E, a tree like the parameters, in float32 at least. 0 in arrays without a
            gradient, in elements that no gradient has reached, and where `is_known` is False.
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
        """Whether there is a margin: whether all arrays are explained."""
        return self.status <= OptimizerStatus.YOUNG


def objection(opt_state: PyTree, params: PyTree) -> str | None:
    """Why an optimizer with such a state has no margin, as a sentence."""
    reason = unknown(opt_state)
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
    step: Int[Array, ""] | int | None = None,
    extra_args: Mapping[str, object] | None = None,
) -> tuple[PyTree, PyTree, Response]:
    """Take the next step on trial, and read how the optimizer responds.

    Args:
        optimizer: Has `update(gradient, state, params, **extra_args)`, as in Optax.
        opt_state: Its state before the step.
        params: The parameters as it takes them; None where it is called without.
        gradient: The gradient of the step, of each micro-step where gradients are accumulated.
        step: The number of steps before, for optimizers that do not count them.
        extra_args: Passed on to `update`.

    Returns:
        The update, the state after the step, and the response. With `optax.MultiSteps` the step is
        a whole one, of micro-steps with one gradient.

    Raises:
        OptimizerError: `update` raises.

    The function is pure and traceable. Cost: two calls of `update` on the parameters, one on some
    elements, and one on arrays of one element.
    """
    rule = Rule(guarded(optimizer.update), opt_state, params, gradient, dict(extra_args or {}))
    updates, state_after = rule.trial_step()
    like = gradient if params is None else params
    if objection(opt_state, params) is None:
        try:
            groups = rule.groups()
            coefficients = rule.coefficients(groups)
        except OptimizerError:  # derivatives raise, or arrays of other shapes
            pass
        else:
            reading = _Reading(rule, groups, coefficients, updates, state_after)
            return updates, state_after, reading.response(like, step)
    n_arrays = len(rule.gradient)
    refused = Response(
        response=_like_params(like, {}),
        decay=jnp.zeros(()),
        learning_rate=jnp.asarray(jnp.nan),
        explained=jnp.zeros(n_arrays, bool),
        misfit=jnp.asarray(jnp.nan),
        worst=jnp.zeros((), jnp.int32),
        status=jnp.asarray(int(OptimizerStatus.REFUSED), jnp.int32),
    )
    return updates, state_after, refused


class _Fit(NamedTuple):
    """What explains the trial step, by group."""

    of_gradient: Float[Array, " G"]  # the factor of U_g g, and so of E: s c
    of_params: Float[Array, " G"]  # of U_theta theta, and so of b
    squares: Float[Array, " G"]  # |u|^2, in a unit of its own
    misfits: Float[Array, " G"]  # likewise


class _Reading:
    """An optimizer, its coefficients by group of arrays, and a trial step."""

    def __init__(
        self,
        rule: Rule,
        groups: list[list[int]],
        coefficients: Coefficients,
        updates: PyTree,
        state_after: PyTree,
    ) -> None:
        self.rule = rule
        self.groups = groups
        self.coefficients = coefficients
        self.update, _ = floats_of(updates)
        self.after, _ = floats_of(state_after)
        self.state_after = state_after
        paths = list(rule.gradient)
        self.group_of = {paths[i]: number for number, group in enumerate(groups) for i in group}

    def response(self, like: PyTree, step: Int[Array, ""] | int | None) -> Response:
        """The response, with E like some tree."""
        coefficients, rule = self.coefficients, self.rule
        # Second moments as they are, or as the first step leaves them.
        moments = {}
        for path, param in rule.buffers.second_moments.items():
            before = wide(rule.arrays[path])
            count = rule.count(param)
            count = step if count is None else count
            is_first = jnp.asarray(-1 if count is None else count) == 0
            moments[path] = jnp.where(is_first | (before == 0.0), wide(self.after[path]), before)
        small = self._small_update(moments, later=-1)
        fit = self._fit()
        has_update = fit.squares > 0.0
        factors = fit.of_gradient * coefficients.swing
        is_proportional = coefficients.is_linear & (coefficients.swing != 0.0)
        tolerance = _tolerance(self.update, rule.state)
        explained = fit.misfits <= tolerance**2 * fit.squares
        explained &= jnp.isfinite(factors) & (is_proportional | ~has_update)
        goes_uphill = coefficients.by_gradient * factors > 0.0

        status = jnp.where(self._is_young(step), OptimizerStatus.YOUNG, OptimizerStatus.RECOGNISED)
        is_first = [  # in order of precedence
            (_adds_up_updates((rule.state, self.state_after)), OptimizerStatus.REFUSED),
            (~jnp.any(has_update), OptimizerStatus.NO_UPDATE),
            (~jnp.any(has_update & is_proportional), OptimizerStatus.NOT_PROPORTIONAL),
            (~jnp.all(explained), OptimizerStatus.UNEXPLAINED),
            (jnp.any(has_update & goes_uphill), OptimizerStatus.UPHILL),
        ]
        for applies, code in reversed(is_first):
            status = jnp.where(applies, code, status)

        factors = jnp.where(status <= OptimizerStatus.YOUNG, -0.5 * factors, 0.0)
        response = {
            path: factors[self.group_of[path]].astype(leaf.dtype) * leaf
            for path, leaf in small.items()
        }
        group_of = np.array(list(self.group_of[path] for path in rule.gradient), int)
        worst = jnp.argmax(jnp.where(explained, -1.0, over(fit.misfits, fit.squares))[group_of])
        number = jnp.zeros(()).dtype
        return Response(
            response=_like_params(like, response),
            decay=self._decay(fit, self._elements(small)).astype(number),
            learning_rate=self._learning_rate(jnp.any(has_update)).astype(number),
            explained=explained[group_of],
            misfit=jnp.sqrt(over(fit.misfits.sum(), fit.squares.sum())).astype(number),
            worst=jnp.where(explained.all(), -1, worst),
            status=status.astype(jnp.int32),
        )

    def _small_update(self, moments: Leaves, later: int) -> Leaves:
        """The update for a small gradient that ends with these second moments."""
        rule = self.rule
        before = {}
        for path, param in rule.buffers.second_moments.items():
            group, after = self.group_of[param], wide(moments[path])
            beta, floor = self.coefficients.betas[group], self.coefficients.floors[group]
            undone = (after - floor) / jnp.where(beta == 0.0, 1.0, beta)
            before[path] = jnp.maximum(undone, 0.0).astype(after.dtype)
        small = rule.small_update(before, later)
        moment_of = {param: path for path, param in rule.buffers.second_moments.items()}
        for param, leaf in small.items():
            is_known = jnp.isfinite(leaf)
            if param in moment_of:
                # Nothing tells how an element responds whose second moment is still 0.
                is_known &= moments[moment_of[param]] != 0.0
            small[param] = jnp.where(is_known, leaf, 0.0)
        return small

    def _fit(self) -> _Fit:
        """Fit the trial step.

            u = s (U_m m + c U_g g + c' U_theta theta),    m' = A m + c B g + c' C theta

        Here c' is 1, or c where decay is clipped with the gradient. Without momentum the update
        alone tells one factor, either of all of it or of all but the decay.
        """
        coefficients, rule = self.coefficients, self.rule
        momentum_of = {param: path for path, param in rule.buffers.momentum.items()}
        paths = list(rule.gradient)
        has_momentum = np.array([[paths[group[0]] in momentum_of] for group in self.groups])
        update, gradient, params = map(self._elements, (self.update, rule.gradient, rule.params))
        momentum, momentum_after = (
            self._elements({param: arrays[path] for param, path in momentum_of.items()})
            for arrays in (rule.arrays, self.after)
        )
        by_gradient = self._elements(self._small_update(self.after, later=0))
        x = by_gradient * over(1.0, coefficients.by_gradient)[:, None]

        def times(coefficient: Pair) -> Float[Array, "G S"]:
            part, rest = coefficient
            return part[:, None] * x + rest[:, None]

        # 1. c, from what entered the momentum: of gradient and decay, or of the gradient alone.
        c = c_params = jnp.ones((len(self.groups), 1))
        if has_momentum.any():
            drive = momentum_after - coefficients.keep[:, None] * momentum
            of_gradient = times(coefficients.drive) * gradient
            of_params = times(coefficients.drive_by_params) * params
            common = _multiple(drive, of_gradient + of_params)
            alone = _multiple(drive - of_params, of_gradient)
            is_alone = _explains_better(
                _squares(drive - of_params - alone * of_gradient),
                _squares(drive - common * (of_gradient + of_params)),
                _squares(drive),
            )
            c = jnp.where(has_momentum, jnp.where(is_alone, alone, common), c)
            c_params = jnp.where(is_alone | (_squares(of_params) == 0.0), c_params, c)

        # 2. s, from the update.
        of_gradient = by_gradient * gradient
        of_params = times(coefficients.by_params) * params
        predicted = times(coefficients.by_momentum) * momentum
        predicted += c * of_gradient + c_params * of_params
        s = _multiple(update, predicted)
        misfits, squares = _squares(update - s * predicted), _squares(update)
        of_gradient_and_params = s * c, s * c_params

        # 3. Without momentum the update tells either s or c.
        if not has_momentum.all():
            clipped = _multiple(update - of_params, of_gradient)
            others = _squares(update - of_params - clipped * of_gradient)
            is_clipped = ~has_momentum & _explains_better(
                jnp.where(has_momentum, 0.0, others), jnp.where(has_momentum, 0.0, misfits), squares
            )
            misfits = jnp.where(is_clipped, others, misfits)
            of_gradient_and_params = (
                jnp.where(is_clipped, clipped, s),
                jnp.where(is_clipped, 1.0, s),
            )
        return _Fit(
            of_gradient=of_gradient_and_params[0][:, 0],
            of_params=of_gradient_and_params[1][:, 0],
            squares=squares[:, 0],
            misfits=misfits[:, 0],
        )

    def _elements(self, leaves: Leaves) -> Float[Array, "G S"]:
        """Some elements of some arrays of each group; 0 where there are no more."""
        paths = list(self.rule.gradient)
        rows = []
        for group in self.groups:
            # From the largest to the smallest.
            chosen = np.unique(np.linspace(0, len(group) - 1, _ARRAYS).astype(int))
            row = [_spread(leaves[paths[group[i]]]) for i in chosen if paths[group[i]] in leaves]
            rows.append(jnp.concatenate([*row, jnp.zeros(0)]))
        width = _ARRAYS * _ELEMENTS
        return jnp.stack([jnp.pad(row, (0, width - row.size)) for row in rows])

    def _decay(self, fit: _Fit, small: Float[Array, "G S"]) -> Float[Array, ""]:
        """b of the array that decays most."""
        coefficients = self.coefficients
        u_part, u_rest = coefficients.by_params
        # What decays through second moments does so as a part of the gradient.
        largest = jnp.max(-small * coefficients.swing[:, None], axis=1, initial=0.0)
        part = over(u_part, coefficients.by_gradient) * largest
        through_momentum = coefficients.by_momentum[1] * coefficients.drive_by_params[1]
        rest = u_rest - through_momentum / (1.0 + coefficients.keep)
        decay = jnp.max(fit.of_params * (part - rest), initial=0.0)
        return jnp.where(decay > _NO_DECAY, decay, 0.0)

    def _learning_rate(self, has_update: Bool[Array, ""]) -> Float[Array, ""]:
        """The rate of all arrays that have one; NaN where these are several."""
        coefficients = self.coefficients
        is_trained = (coefficients.by_gradient != 0.0) | ~coefficients.is_linear
        rates = jnp.where(coefficients.is_linear, coefficients.learning_rates, jnp.nan)
        largest = jnp.max(jnp.where(is_trained, rates, -jnp.inf))
        smallest = jnp.min(jnp.where(is_trained, rates, jnp.inf))
        rate = jnp.where(largest - smallest <= SAME * jnp.abs(largest), largest, jnp.nan)
        return jnp.where(~is_trained.any() & ~has_update, 0.0, rate)

    def _is_young(self, step: Int[Array, ""] | int | None) -> Bool[Array, ""]:
        """Whether second moments have seen fewer steps than they average over, 1 / (1 - beta2)."""
        with_paths = jax.tree_util.tree_leaves_with_path(self.rule.state)
        ages = [leaf for path, leaf in with_paths if jax.tree_util.keystr(path).endswith(".count")]
        if step is not None:
            ages.append(jnp.asarray(step) // self.rule.micro_steps)
        if not ages:
            return jnp.zeros((), bool)
        betas = self.coefficients.betas
        remembers = (betas > 0.0) & (betas < 1.0)
        memory = jnp.where(remembers, 1.0 / jnp.where(remembers, 1.0 - betas, 1.0), 0.0)
        return jnp.stack([jnp.max(jnp.asarray(age)) for age in ages]).max() < jnp.max(memory)


def _spread(leaf: Array) -> Float[Array, " s"]:
    """Some elements of an array, spread over all of it."""
    flat = wide(leaf).reshape(-1)
    if flat.size <= _ELEMENTS:
        return flat
    # Elements are looked up: a slice could change how XLA lays out a sharded array.
    return flat[np.linspace(0, flat.size - 1, _ELEMENTS).astype(int)]


def _explains_better(
    misfits: Float[Array, "G 1"], others: Float[Array, "G 1"], squares: Float[Array, "G 1"]
) -> Bool[Array, ""]:
    """Whether one explanation of all groups leaves no more than another."""
    return over(misfits, squares).sum() <= over(others, squares).sum()


def _multiple(rows: Float[Array, "G S"], of: Float[Array, "G S"]) -> Float[Array, "G 1"]:
    """The factor f of each row that fits rows = f * of best; 1 where `of` is 0."""
    product = jnp.sum((rows * _UNIT) * (of * _UNIT), axis=1, keepdims=True)
    return over(product, _squares(of), otherwise=1.0)


def _squares(rows: Float[Array, "G S"]) -> Float[Array, "G 1"]:
    """Squared lengths, in a unit in which those of small numbers are not 0."""
    return jnp.sum((rows * _UNIT) ** 2, axis=1, keepdims=True)


def _adds_up_updates(states: PyTree) -> Bool[Array, ""]:
    """Whether `optax.apply_every` adds up updates: it counts modulo their number."""

    def is_apply_every(node: object) -> bool:
        return type(node).__name__ == "ApplyEvery"

    nodes = filter(is_apply_every, jax.tree.leaves(states, is_leaf=is_apply_every))
    return jnp.stack([jnp.zeros((), bool), *(node.count != 0 for node in nodes)]).any()


def _tolerance(update: Leaves, state: PyTree) -> float:
    """The misfit that rounding may leave in the coarsest of these arrays."""
    floats = [leaf for leaf in jax.tree.leaves((update, state)) if is_float(leaf)]
    rounding = max((float(jnp.finfo(leaf.dtype).eps) for leaf in floats), default=0.0)
    return min(max(_TOLERANCE, _TOLERANCE_IN_ROUNDINGS * rounding), _MOST_TOLERANCE)


def _like_params(params: PyTree, response: Leaves) -> PyTree:
    """E like the parameters, 0 where it is not listed."""

    def response_at(path: tuple, leaf: Any) -> Array:
        shape = jnp.shape(leaf) if hasattr(leaf, "dtype") else ()
        dtype = _jax.at_least_float32(leaf.dtype) if is_float(leaf) else jnp.float32
        found = response.get(jax.tree_util.keystr(path))
        return jnp.zeros(shape, dtype) if found is None else found.astype(dtype)

    return jax.tree_util.tree_map_with_path(response_at, params)
