"""Squared error with an `NTKOperator` in place of a kernel: the same answers, reached step by step."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ntkdiag import errors
from ntkdiag.kernel.operand import is_concrete
from ntkdiag.matrix_free.compiled_run import run
from ntkdiag.matrix_free.operator import NTKOperator, require_outputs, require_square
from ntkdiag.matrix_free.ridge_regression import least_squares
from ntkdiag.predict.descent import iterate_descent
from ntkdiag.predict.flow import integrate_flow
from ntkdiag.predict.linear_model import read_model
from ntkdiag.predict.origin import Origin
from ntkdiag.predict.prediction import Prediction
from ntkdiag.predict.threshold import MomentumKind, stability_threshold, warn_above_critical
from ntkdiag.scalars import Number, require_positive

_PRODUCTS = 30


class Given(NamedTuple):
    """The arguments that `gradient_flow` and `gradient_descent` share; see there."""

    y: Any
    kernel_test: Any
    f0: Any
    f0_test: Any
    ridge: Number
    origin: Origin | None
    loss_denominator: Number | None

    def options(self, denominator: Number) -> dict[str, Any]:
        """Those of the predictions for any loss."""
        pull = "damping" if self.origin is None else "weight_decay"
        names = ("f0", "kernel_test", "f0_test", "origin")
        return {name: getattr(self, name) for name in names} | {pull: self.ridge / denominator}


def flow(kernel: NTKOperator, given: Given, time: Any) -> Prediction:
    """`gradient_flow` without the kernel.

    Cost: as `integrate_flow`, and as `least_squares` for infinity.

    Args:
        kernel: The operator.
        given: The other arguments.
        time: t, in any order.

    Returns:
        The prediction.
    """
    loss, denominator, y = _loss(kernel, given)

    def reach(times: np.ndarray) -> Prediction:
        found = integrate_flow(kernel, loss, times, **given.options(denominator))
        if is_concrete(found.train) and np.isnan(np.asarray(found.train)).any():
            errors.warn(
                f"{errors.current_call()}: the differential equation was not solved up to {times[-1]:g} "
                "within the steps allowed: NaN. Take integrate_flow with solver=diffrax.Kvaerno5() or more max_steps.",
                RuntimeWarning,
            )
        return found

    return _piece(np.asarray(time, np.float64), reach, lambda: _endless(kernel, given, y))


def descent(
    kernel: NTKOperator,
    given: Given,
    steps: Any,
    learning_rate: Number,
    momentum: Number,
    kind: MomentumKind,
) -> Prediction:
    """`gradient_descent` without the kernel. For infinity, the learning rate has to be below critical.

    Cost: as `iterate_descent`, and as `least_squares` and 30 products for infinity.

    Args:
        kernel: The operator.
        given: The other arguments.
        steps: Numbers of steps, in any order.
        learning_rate: eta.
        momentum: beta.
        kind: See `stability_threshold`.

    Returns:
        The prediction.
    """
    loss, denominator, y = _loss(kernel, given)
    options = given.options(denominator) | {"momentum": momentum, "momentum_kind": kind}
    reach = lambda counts: iterate_descent(
        kernel, loss, counts.astype(int), learning_rate, **options
    )

    def endless() -> Prediction:
        threshold, decay = stability_threshold(momentum, kind), given.ridge / denominator
        numbers = learning_rate, _largest(kernel), denominator, threshold, decay
        end = _endless(kernel, given, y)
        if warn_above_critical(*numbers):
            end = jax.tree.map(lambda f: jnp.full_like(f, jnp.nan), end)
        return end

    return _piece(np.asarray(steps, np.float64), reach, endless)


class _Squared:
    """(1 / D) sum 1/2 (f - y)^2; equal for equal y and D, so that what was compiled for one is used for the other."""

    def __init__(self, y: jax.Array, denominator: Number):
        self.y, self.denominator = y, denominator
        known = is_concrete(y) and is_concrete(denominator)
        self.key = (y.shape, np.asarray(y).tobytes(), float(denominator)) if known else id(self)

    def __call__(self, f: jax.Array) -> jax.Array:
        return 0.5 * jnp.sum((f - self.y) ** 2) / self.denominator

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Squared) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def _largest(kernel: NTKOperator) -> jax.Array:
    """lambda_max by power iteration: from below, within a few percent."""
    return run(_power_iteration, kernel, jax.random.normal(jax.random.key(0), (kernel.shape[0],)))


def _power_iteration(kernel: NTKOperator, v: jax.Array) -> jax.Array:
    step = lambda _, v: kernel.mv(v / jnp.linalg.norm(v)).astype(v.dtype)
    return jnp.linalg.norm(jax.lax.fori_loop(0, _PRODUCTS, step, v))


def _loss(kernel: NTKOperator, given: Given) -> tuple[Any, Number, jax.Array]:
    require_square(kernel)
    denominator = given.loss_denominator
    if denominator is None:
        denominator = float(kernel.n_examples)
    require_positive(denominator, "loss_denominator")
    y = require_outputs(kernel, given.y, "y")
    return _Squared(y, denominator), denominator, y


def _piece(times: np.ndarray, reach: Any, endless: Any) -> Prediction:
    """Finite times by `reach`, which wants them ascending, and infinity by `endless`."""
    values, where = np.unique(times.reshape(-1), return_inverse=True)
    finite = values[np.isfinite(values)]
    parts = ([reach(finite)] if finite.size else []) + (
        [endless()] if finite.size < values.size else []
    )

    def stacked(name: str) -> Any:
        found = [getattr(part, name) for part in parts]
        if found[0] is None:
            return None
        rows = [
            a if part is parts[0] and finite.size else a[None]
            for a, part in zip(found, parts, strict=True)
        ]
        joined = jnp.concatenate(rows)[where]
        return joined.reshape(*times.shape, *joined.shape[1:])

    return Prediction(stacked("train"), stacked("test"))


def _endless(kernel: NTKOperator, given: Given, y: jax.Array) -> Prediction:
    if given.origin is not None and not given.ridge:
        given = given._replace(origin=None)  # nothing pulls
    model = read_model(kernel, given.f0, given.kernel_test, given.f0_test, given.origin)
    kept = jnp.asarray(1.0 if given.origin is None else 0.0, model.start.dtype)
    start = model.start if model.pull is None else model.start + (kept - 1.0) * model.pull
    solution = least_squares(kernel, y, ridge=given.ridge, f0=start)
    if not isinstance(solution.converged, Tracer) and not bool(solution.converged):
        errors.warn(
            f"{errors.current_call()}: at infinity the solver stopped at a residual of {float(solution.residual):.2g} after "
            f"{int(solution.iterations)} iterations. Take a ridge, or matrix_free.least_squares with a preconditioner.",
            RuntimeWarning,
        )
    if model.cross is None or model.start_test is None:
        return Prediction(solution.outputs)
    begun = (
        model.start_test
        if model.pull_test is None
        else model.start_test + (kept - 1.0) * model.pull_test
    )
    return Prediction(solution.outputs, begun + model.cross.tangent(solution.step))
