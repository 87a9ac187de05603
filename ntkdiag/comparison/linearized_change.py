"""How well the Taylor model at A predicts what the model at B really puts out."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ntkdiag._jax import compiler_options
from ntkdiag.engine.independence import roundoff_of
from ntkdiag.linearization.taylor import linearize, taylor_expand

# Rounding over the change of the outputs up to which it does not decide on which side of 0.1 e1 lies.
_RESOLVED = 0.03


@dataclasses.dataclass(frozen=True, eq=False)
class Prediction:
    """Outputs at B against f(theta_A) + J(theta_A) (theta_B - theta_A), on the probe.

    Attributes:
        outputs: `[n o]` outputs of the linearized model at theta_B.
        rms: Root mean square of its difference to the outputs at B over examples and outputs, in units of f.
        max: Largest absolute difference.
        e1: ||difference|| / ||f_B - f_A||: below 0.1 the linear prediction is usable; None if nothing changed, or too
            little to tell it from rounding.
        e2: The same for the quadratic model; e2 << e1 says that the quadratic model suffices.
        agreement: Share of examples whose largest output is the same; None for a single output.
    """

    outputs: np.ndarray
    rms: float
    max: float
    e1: float | None
    e2: float | None
    agreement: float | None


def predict(
    f: Callable[..., Any],
    params_a: Any,
    params_b: Any,
    x: Any,
    start: np.ndarray,
    actual: np.ndarray,
) -> Prediction:
    """Predict the outputs at B from A and compare.

    The fixed arrays (batch statistics) of the prediction are those of A, those of `actual` are B's own: what they
    changed counts as not predicted.
    Cost: nested `jax.jvp`, about six forward passes. Source: Chizat et al. 2019 (arXiv 1812.07956) for e_1.

    Args:
        f: The function of side A.
        params_a: Where to expand.
        params_b: Where to predict.
        x: Probe.
        start: `[n o]` outputs at A.
        actual: `[n o]` outputs at B.

    Returns:
        The prediction and its errors.
    """
    options = compiler_options(reduces=True)
    linear, quadratic = (
        _rows(jax.jit(model, compiler_options=options)(params_b, x))
        for model in (linearize(f, params_a), taylor_expand(f, params_a, 2))
    )
    difference = linear - actual
    change, error = float(np.linalg.norm(actual - start)), float(np.linalg.norm(difference))
    rounding = roundoff_of(f, params_a, x) * float(np.linalg.norm(actual))
    resolved = change > 0 and (rounding < _RESOLVED * change or error > 3 * rounding)
    agree = actual.shape[1] > 1
    return Prediction(
        outputs=linear,
        rms=float(np.sqrt(np.mean(difference**2))),
        max=float(np.abs(difference).max()),
        e1=error / change if resolved else None,
        e2=float(np.linalg.norm(quadratic - actual)) / change if resolved else None,
        agreement=float(np.mean(linear.argmax(axis=1) == actual.argmax(axis=1))) if agree else None,
    )


def _rows(outputs: Any) -> np.ndarray:
    return np.asarray(outputs, np.float64).reshape(outputs.shape[0], -1)
