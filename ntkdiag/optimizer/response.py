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

1. The coefficients are derivatives of ``update`` on arrays of one element: see `coefficients`.
   :math:`E` of every element is a multiple of the update for a small gradient, without momentum
   and parameters, at second moments as they are, or as the first step leaves them. The bias
   correction of young first moments is left out.
2. Clipping scales the gradient by :math:`c`, a trust ratio the update by :math:`s`. Both are read
   from elements of a trial step. What remains of its update is the misfit.
"""

import contextlib
import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.optimizer.coefficients import SAME, Pair, Rule, Update, over
from ntkdiag.optimizer.saved_state import Optimizer
from ntkdiag.optimizer.state_fields import Leaves, floats_of, is_float, unknown, wide

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

    RECOGNIZED = 0
    YOUNG = 1
    UNEXPLAINED = 3
    NOT_PROPORTIONAL = 4
    UPHILL = 5
    NO_UPDATE = 6
    REFUSED = 7


SENTENCES = {
    OptimizerStatus.RECOGNIZED: "The update of the optimizer is explained.",
    OptimizerStatus.YOUNG: "The second moments of the optimizer are younger than the steps they "
    "average over: the margin holds for this step and changes while they grow. It is judged "
    "after step 1 / (1 - b2), 1,000 for b2 = 0.999.",
    OptimizerStatus.UNEXPLAINED: "The update of some array differs from the one that gradient and "
    "optimizer state predict: the margin is NaN.",
    OptimizerStatus.NOT_PROPORTIONAL: "The update does not shrink with the gradient, as in sign "
    "descent: the margin is NaN.",
    OptimizerStatus.UPHILL: "The update points along the gradient instead of against it, as that "
    "of a part of an optimizer: pass the whole optimizer. The margin is NaN.",
    OptimizerStatus.NO_UPDATE: "The update is zero: the margin is NaN.",
    OptimizerStatus.REFUSED: "The update rule of the optimizer is not known, or the state is not "
    "its own: the margin is NaN.",
}


class Response(NamedTuple):
    """How an optimizer responds to gradients that change sign at every step, but for E."""

    decay: Float[Array, ""]  # b, of the array that decays most
    learning_rate: Float[Array, ""]  # that of the trial step; NaN where arrays have several
    misfit: Float[Array, ""]  # what is not explained of the update, relative, over all arrays
    status: Int[Array, ""]  # an `OptimizerStatus`

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


class OptimizerError(Exception):
    """An optimizer cannot be read, for something that its `update` does or raises."""


def _guarded(update: Update) -> Update:
    """`update`, whose own exceptions are an `OptimizerError` that says what they were."""

    def guarded(*args: PyTree, **kwargs: object) -> tuple[PyTree, PyTree]:
        try:
            return update(*args, **kwargs)
        except Exception as error:  # an unknown optimizer may raise anything under differentiation
            lines = str(error).strip().splitlines() or [""]
            raise OptimizerError(f"{type(error).__name__}: {lines[0]}") from error

    return guarded


class Trial:
    """The next step, taken on trial, and how the optimizer responds; traceable.

    Without a count of steps in its state, `step` is the number of steps before. Whatever `update`
    raises is an OptimizerError.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        opt_state: PyTree,
        params: PyTree,
        gradient: PyTree,
        *,
        step: Int[Array, ""] | int | None,
        extra_args: Mapping[str, object],
    ) -> None:
        rule = Rule(_guarded(optimizer.update), opt_state, params, gradient, extra_args)
        self.updates, self.state_after = rule.trial_step()
        self._like = gradient if params is None else params
        self._model: _OptimizerModel | None = None
        nan = jnp.full((), jnp.nan)
        status = jnp.asarray(int(OptimizerStatus.REFUSED), jnp.int32)
        self.response = Response(jnp.zeros(()), nan, nan, status)
        if objection(opt_state, params) is None:
            # Derivatives raise, or arrays have other shapes.
            with contextlib.suppress(OptimizerError):
                model = _OptimizerModel(rule, self.updates, self.state_after, step)
                self.response = model.response()
                self._model = model

    def by_parameter(self) -> PyTree:
        """E, like the parameters, computed again; 0 where it is not known."""
        known = {} if self._model is None else self._model.by_path()

        def response_at(path: tuple, leaf: Any) -> Array:
            shape = jnp.shape(leaf) if hasattr(leaf, "dtype") else ()
            dtype = at_least_float32(leaf.dtype) if is_float(leaf) else jnp.float32
            found = known.get(jax.tree_util.keystr(path))
            return jnp.zeros(shape, dtype) if found is None else found.astype(dtype)

        return jax.tree_util.tree_map_with_path(response_at, self._like)


class _OptimizerModel:
    """An optimizer at a point, its coefficients by group of arrays, and a trial step."""

    def __init__(
        self,
        rule: Rule,
        updates: PyTree,
        state_after: PyTree,
        step: Int[Array, ""] | int | None,
    ) -> None:
        self.rule = rule
        self.paths = list(rule.gradient)
        self.groups = rule.groups()
        self.coefficients = rule.coefficients(self.groups)
        self.group_of = {self.paths[i]: n for n, group in enumerate(self.groups) for i in group}
        self.update, _ = floats_of(updates)
        self.after, _ = floats_of(state_after)
        self.step = step

    def response(self) -> Response:
        """The response, but for E."""
        coefficients, rule = self.coefficients, self.rule
        squares, misfits, of_gradient, of_params = self._fit()
        has_update = squares > 0.0
        factors = of_gradient * coefficients.swing
        is_proportional = coefficients.is_linear & (coefficients.swing != 0.0)
        explained = misfits <= _tolerance(self.update, rule.state) ** 2 * squares
        explained &= jnp.isfinite(factors) & (is_proportional | ~has_update)
        goes_uphill = coefficients.by_gradient * factors > 0.0

        status = jnp.where(self._is_young(), OptimizerStatus.YOUNG, OptimizerStatus.RECOGNIZED)
        in_order = [
            (~jnp.any(has_update), OptimizerStatus.NO_UPDATE),
            (~jnp.any(has_update & is_proportional), OptimizerStatus.NOT_PROPORTIONAL),
            (~jnp.all(explained), OptimizerStatus.UNEXPLAINED),
            (jnp.any(has_update & goes_uphill), OptimizerStatus.UPHILL),
        ]
        for applies, code in reversed(in_order):
            status = jnp.where(applies, code, status)

        self._factors = jnp.where(status <= OptimizerStatus.YOUNG, -0.5 * factors, 0.0)
        small = self._elements(self._small())
        number = jnp.zeros(()).dtype
        return Response(
            decay=self._decay(of_params, small).astype(number),
            learning_rate=self._learning_rate(jnp.any(has_update)).astype(number),
            misfit=jnp.sqrt(over(misfits.sum(), squares.sum())).astype(number),
            status=status.astype(jnp.int32),
        )

    def by_path(self) -> Leaves:
        """E of every array."""
        return {
            path: self._factors[self.group_of[path]].astype(leaf.dtype) * leaf
            for path, leaf in self._small().items()
        }

    def _small(self) -> Leaves:
        """The update for a small gradient at the second moments of the point."""
        return self._small_update(self._moments(), later=-1)

    def _moments(self) -> Leaves:
        """Second moments as they are, or as the first step leaves them."""
        moments = {}
        # The step is computed again: a branch that asks for E would keep the state of the other
        # branch.
        _, state_after = self.rule.trial_step()
        arrays_after, _ = floats_of(state_after)
        for path, param in self.rule.buffers.second_moments.items():
            before, after = wide(self.rule.arrays[path]), wide(arrays_after[path])
            count = self.rule.count(param)
            count = self.step if count is None else count
            is_first = jnp.asarray(-1 if count is None else count) == 0
            moments[path] = jnp.where(is_first | (before == 0.0), after, before)
        return moments

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
        for path, param in rule.buffers.second_moments.items():
            # The response of an element is unknown while its second moment is 0.
            small[param] = jnp.where(moments[path] == 0.0, 0.0, small[param])
        return {path: jnp.where(jnp.isfinite(leaf), leaf, 0.0) for path, leaf in small.items()}

    def _fit(self) -> tuple[Float[Array, " G"], ...]:
        """Fit the trial step, in some elements of each group.

            u = s (U_m m + c U_g g + c' U_theta theta),    m' = A m + c B g + c' C theta

        Here c' is 1, or c where decay is clipped with the gradient. Without momentum the update
        alone tells c, and s is 1.

        Returns:
            |u|^2 and the squared misfit, times the square of `_UNIT`; s c and s c'.
        """
        coefficients, rule = self.coefficients, self.rule
        has_momentum = np.array([[self.paths[g[0]] in rule.momentum_of] for g in self.groups])
        before, after = (
            {param: arrays[path] for param, path in rule.momentum_of.items()}
            for arrays in (rule.arrays, self.after)
        )
        leaves = self.update, rule.gradient, rule.params, before, after
        update, gradient, params, momentum, momentum_after = (
            _UNIT * self._elements(of) for of in leaves
        )
        by_gradient = self._elements(self._small_update(self.after, later=0))
        x = by_gradient * over(1.0, coefficients.by_gradient)[:, None]

        def times(coefficient: Pair) -> Float[Array, "G S"]:
            part, rest = coefficient
            return part[:, None] * x + rest[:, None]

        # 1. c, from what enters the momentum: of gradient and decay, or of the gradient alone.
        to_update = by_gradient * gradient, times(coefficients.by_params) * params
        driven = times(coefficients.drive) * gradient, times(coefficients.drive_by_params) * params
        entered = momentum_after - coefficients.keep[:, None] * momentum
        drive = jnp.where(has_momentum, entered, update)
        of_gradient = jnp.where(has_momentum, driven[0], to_update[0])
        of_params = jnp.where(has_momentum, driven[1], to_update[1])
        together, remaining = of_gradient + of_params, drive - of_params
        with_together, with_gradient, *squares = _inner(
            (drive, together),
            (remaining, of_gradient),
            *((rows, rows) for rows in (together, of_gradient, of_params, drive)),
        )
        common = over(with_together, squares[0], otherwise=1.0)
        alone = over(with_gradient, squares[1], otherwise=1.0)
        missed = drive - common * together, remaining - alone * of_gradient
        if_common, if_alone = _inner(*((rows, rows) for rows in missed))
        is_alone = over(if_alone - if_common, squares[3]).sum() <= 0.0
        c = jnp.where(is_alone, alone, common)
        c_params = jnp.where(is_alone | (squares[2] == 0.0), 1.0, c)

        # 2. s, from the update.
        predicted = times(coefficients.by_momentum) * momentum
        predicted += c * to_update[0] + c_params * to_update[1]
        of_update, product, of_predicted = _inner(
            (update, update), (update, predicted), (predicted, predicted)
        )
        s = over(product, of_predicted, otherwise=1.0)
        missed = update - s * predicted
        [misfit] = _inner((missed, missed))
        return tuple(number[:, 0] for number in (of_update, misfit, s * c, s * c_params))

    def _elements(self, leaves: Leaves) -> Float[Array, "G S"]:
        """Some elements of some arrays of each group; 0 where there are no more."""
        rows = []
        for group in self.groups:
            # From the largest to the smallest.
            chosen = np.unique(np.linspace(0, len(group) - 1, _ARRAYS).astype(int))
            paths = [self.paths[group[i]] for i in chosen]
            row = [_spread(leaves[path]) for path in paths if path in leaves]
            rows.append(jnp.concatenate([*row, jnp.zeros(0)]))
        width = _ARRAYS * _ELEMENTS
        return jnp.stack([jnp.pad(row, (0, width - row.size)) for row in rows])

    def _decay(self, of_params: Float[Array, " G"], small: Float[Array, "G S"]) -> Float[Array, ""]:
        """b of the array that decays most."""
        coefficients = self.coefficients
        u_part, u_rest = coefficients.by_params
        # What decays through second moments does so as a part of the gradient.
        largest = jnp.max(-small * coefficients.swing[:, None], axis=1, initial=0.0)
        part = over(u_part, coefficients.by_gradient) * largest
        through_momentum = coefficients.by_momentum[1] * coefficients.drive_by_params[1]
        rest = u_rest - through_momentum / (1.0 + coefficients.keep)
        decay = jnp.max(of_params * (part - rest), initial=0.0)
        return jnp.where(decay > _NO_DECAY, decay, 0.0)

    def _learning_rate(self, has_update: Bool[Array, ""]) -> Float[Array, ""]:
        """The rate of all arrays that have one; NaN where these are several."""
        coefficients = self.coefficients
        is_trained = (coefficients.by_gradient != 0.0) | ~coefficients.is_linear
        rates = jnp.where(coefficients.is_linear, coefficients.learning_rates, jnp.nan)
        largest = jnp.max(jnp.where(is_trained, rates, -jnp.inf))
        smallest = jnp.min(jnp.where(is_trained, rates, jnp.inf))
        is_one = is_trained.any() & (largest - smallest <= SAME * jnp.abs(largest))
        rate = jnp.where(is_one, largest, jnp.nan)
        return jnp.where(~is_trained.any() & ~has_update, 0.0, rate)

    def _is_young(self) -> Bool[Array, ""]:
        """Whether second moments have seen fewer steps than they average over, 1 / (1 - beta2)."""
        with_paths = jax.tree_util.tree_leaves_with_path(self.rule.state)
        ages = [leaf for path, leaf in with_paths if jax.tree_util.keystr(path).endswith(".count")]
        if not ages and self.step is not None:
            ages = [self.step // self.rule.micro_steps]
        betas = self.coefficients.betas
        remembers = (betas > 0.0) & (betas < 1.0)
        memory = jnp.max(jnp.where(remembers, 1.0 / jnp.where(remembers, 1.0 - betas, 1.0), 0.0))
        # Without a count, the age of the moments is unknown.
        return jnp.stack([jnp.max(jnp.asarray(age)) for age in ages or [memory]]).max() < memory


def _spread(leaf: Array) -> Float[Array, " s"]:
    flat = wide(leaf).reshape(-1)
    if flat.size <= _ELEMENTS:
        return flat
    # Elements are looked up: a slice could change how XLA lays out a sharded array.
    return flat[np.linspace(0, flat.size - 1, _ELEMENTS).astype(int)]


def _inner(*pairs: tuple[Float[Array, "G S"], Float[Array, "G S"]]) -> Float[Array, "p G 1"]:
    """Inner products of rows, in one sum: XLA compiles every sum by itself."""
    return jnp.stack([a * b for a, b in pairs]).sum(axis=2, keepdims=True)


def _tolerance(update: Leaves, state: PyTree) -> float:
    """The misfit that rounding may leave in the coarsest of these arrays."""
    floats = [leaf for leaf in jax.tree.leaves((update, state)) if is_float(leaf)]
    rounding = max((float(jnp.finfo(leaf.dtype).eps) for leaf in floats), default=0.0)
    return min(max(_TOLERANCE, _TOLERANCE_IN_ROUNDINGS * rounding), _MOST_TOLERANCE)
