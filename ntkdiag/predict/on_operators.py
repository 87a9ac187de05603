"""Squared error with an `NTKOperator` in place of a kernel: the same answers, reached step by step.

User story: the kernel of 10,000 examples with 10 outputs takes 40 GB, and its eigendecomposition
days; what the linearized model will have learned after 1,000 steps takes 1,000 products with it.
Without eigenmodes there is no closed form, so

- finite times are iterated (`iterate_descent`) or integrated (`integrate_flow`), ascending;
- infinity is a least-squares problem, solved by `least_squares`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ntkdiag import errors
from ntkdiag._jax import Tracer
from ntkdiag.descent import Descent
from ntkdiag.kernel.kernel_argument import KernelLike
from ntkdiag.losses import MSE
from ntkdiag.matrix_free.compiled_run import run
from ntkdiag.matrix_free.operator import NTKOperator, require_outputs, require_square
from ntkdiag.matrix_free.ridge_regression import least_squares
from ntkdiag.predict.flow import integrate_flow
from ntkdiag.predict.iterated_descent import iterate_descent
from ntkdiag.predict.linear_model import read_model
from ntkdiag.predict.prediction import Prediction
from ntkdiag.predict.update_rule import warn_above_critical
from ntkdiag.scalars import Number, is_concrete

Times: TypeAlias = jax.typing.ArrayLike | Sequence[float | int]

POWER_STEPS = 30


class Regression(NamedTuple):
    """The arguments that `gradient_flow` and `gradient_descent` share; see there."""

    y: jax.typing.ArrayLike
    kernel_test: KernelLike | NTKOperator | None
    f0: jax.typing.ArrayLike | None
    f0_test: jax.typing.ArrayLike | None
    ridge: Number
    loss: MSE

    def options(self) -> dict[str, Any]:
        """Those that the predictions for any loss take by name, of the types above."""
        return {name: value for name, value in self._asdict().items() if name != "y"}


def flow(kernel: NTKOperator, regression: Regression, time: Times) -> Prediction:
    """`gradient_flow` without the kernel, at times in any order."""
    regression = _read(kernel, regression)

    def at_times(times: np.ndarray) -> Prediction:
        reached = integrate_flow(kernel, regression.y, times, **regression.options())
        if is_concrete(reached.train) and np.isnan(np.asarray(reached.train)).any():
            errors.warn(
                f"{errors.current_call()}: the differential equation was not solved up to "
                f"{times[-1]:g} within the steps allowed: NaN. Take integrate_flow with "
                "solver=diffrax.Kvaerno5() or more max_steps.",
                RuntimeWarning,
            )
        return reached

    def at_infinity() -> Prediction:
        return _minimum(kernel, regression)

    return _at_all(np.asarray(time, np.float64), at_times, at_infinity)


def descent(kernel: NTKOperator, regression: Regression, rule: Descent, steps: Times) -> Prediction:
    """`gradient_descent` without the kernel, at numbers of steps in any order.

    Infinity costs 30 products more: where the learning rate is above critical, it is NaN.
    """
    regression = _read(kernel, regression)

    def at_steps(counts: np.ndarray) -> Prediction:
        return iterate_descent(
            kernel, regression.y, rule, counts.astype(int), **regression.options()
        )

    def at_infinity() -> Prediction:
        denominator = regression.loss.denominator_for(_shape(kernel))
        end = _minimum(kernel, regression)
        curvature = (_largest_eigenvalue(kernel) + regression.ridge) / denominator
        if warn_above_critical(rule, curvature):
            end = jax.tree.map(lambda outputs: jnp.full_like(outputs, jnp.nan), end)
        return end

    return _at_all(np.asarray(steps, np.float64), at_steps, at_infinity)


def _shape(kernel: NTKOperator) -> tuple[int, ...]:
    """The shape of the outputs on the training examples."""
    return kernel.n_examples, *kernel.output_shape


def _read(kernel: NTKOperator, regression: Regression) -> Regression:
    """The same regression with targets that are shaped like the outputs."""
    require_square(kernel)
    return regression._replace(y=require_outputs(kernel, regression.y, "y"))


def _largest_eigenvalue(kernel: NTKOperator) -> Float[Array, ""]:
    """lambda_max by power iteration: from below, within a few percent."""
    start = jax.random.normal(jax.random.key(0), (kernel.shape[0],))
    return run(_power_iteration, kernel, start)


def _power_iteration(kernel: NTKOperator, v: Float[Array, " n_o"]) -> Float[Array, ""]:
    """||K v|| for the v that 30 products lead to."""

    def step(_: Int[Array, ""], v: Float[Array, " n_o"]) -> Float[Array, " n_o"]:
        return kernel.mv(v / jnp.linalg.norm(v)).astype(v.dtype)

    return jnp.linalg.norm(jax.lax.fori_loop(0, POWER_STEPS, step, v))


def _at_all(
    times: np.ndarray,
    at_finite: Callable[[np.ndarray], Prediction],
    at_infinity: Callable[[], Prediction],
) -> Prediction:
    """Times in any order from a function of ascending finite times, and one for infinity."""
    # The different times, of which infinity is the last, and where each time is among them.
    ascending, positions = np.unique(times.reshape(-1), return_inverse=True)
    finite = ascending[np.isfinite(ascending)]
    parts = []
    if finite.size:
        parts.append(at_finite(finite))
    if finite.size < ascending.size:
        end = at_infinity()
        parts.append(jax.tree.map(lambda outputs: outputs[None], end))  # one more time

    def in_order(outputs: list[jax.Array | None]) -> jax.Array | None:
        """Outputs of the finite times, and of infinity, in the order of the times."""
        rows = [part for part in outputs if part is not None]
        if not rows:
            return None
        joined = jnp.concatenate(rows)[positions]
        return joined.reshape(*times.shape, *joined.shape[1:])

    train = in_order([part.train for part in parts])
    assert train is not None
    return Prediction(train, in_order([part.test for part in parts]))


def _minimum(kernel: NTKOperator, regression: Regression) -> Prediction:
    """Outputs where training ends: least squares with the ridge."""
    model = read_model(kernel, regression.f0, regression.kernel_test, regression.f0_test)
    solution = least_squares(kernel, regression.y, ridge=regression.ridge, f0=model.start)
    if not isinstance(solution.converged, Tracer) and not bool(solution.converged):
        errors.warn(
            f"{errors.current_call()}: at infinity the solver stopped at a residual of "
            f"{float(solution.residual):.2g} after {int(solution.iterations)} iterations. Take a "
            "ridge, or matrix_free.least_squares with solver=LSMR().",
            RuntimeWarning,
        )
    if not isinstance(model.cross, NTKOperator) or model.start_test is None:
        return Prediction(solution.outputs)
    # The same on the test examples, where the step changes the outputs by J step.
    test = model.start_test + model.cross.tangent(solution.step)
    return Prediction(solution.outputs, test)
