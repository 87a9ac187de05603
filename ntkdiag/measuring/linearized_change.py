"""How well the Taylor model at A predicts what the model at B really puts out.

With theta_A and theta_B the parameters and f_A, f_B the outputs on the probe, both with the fixed
arrays of B,

    f_lin = f_A + J(theta_A) (theta_B - theta_A),     e1 = ||f_B - f_lin|| / ||f_B - f_A||,

and e2 the same for the quadratic Taylor model. Two steps of training may lie so close that the
change of the outputs is rounding. Then e1 is a ratio of rounding errors, and is left out; it stays
where either the change is far above rounding, or the error is, so that e1 is large for certain.
"""

from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag.jaxtools.cpu import compiler_options
from ntkdiag.jaxtools.precision import in_full_precision, roundoff_of
from ntkdiag.linearization.taylor import linearize, taylor_expand

# Rounding up to this part of the change cannot decide on which side of 0.1 e1 lies.
_RESOLVED = 0.03
# An error of the prediction beyond this many times rounding is an error of the linear model.
_ABOVE_ROUNDING = 3.0


def predict(
    f: Callable[..., PyTree],
    params_a: PyTree,
    params_b: PyTree,
    x: PyTree,
    outputs_a: Float[np.ndarray, "n o"],
    outputs_b: Float[np.ndarray, "n o"],
) -> tuple[dict[str, int | float], Float[np.ndarray, "n o"]]:
    """Numbers of the prediction of B from A, and the outputs of the linearized model at B."""
    linear = _evaluate(linearize(f, params_a), params_b, x)
    quadratic = _evaluate(taylor_expand(f, params_a, 2), params_b, x)
    difference = linear - outputs_b
    error = float(np.linalg.norm(difference))
    change = float(np.linalg.norm(outputs_b - outputs_a))
    numbers = {
        "linearization_rms": float(np.sqrt(np.mean(difference**2))),
        "linearization_max": float(np.abs(difference).max()),
    }
    # How far rounding alone may move the outputs: their size by the unit roundoff of the model.
    rounding = roundoff_of(f, params_a, x) * float(np.linalg.norm(outputs_b))
    e1 = resolved_error(error, change, rounding)
    if e1 is not None:
        numbers["e1"] = e1
        numbers["e2"] = float(np.linalg.norm(quadratic - outputs_b)) / change
    return numbers, linear


def resolved_error(error: float, change: float, rounding: float) -> float | None:
    """e1, the error of a prediction over the change it predicts; None where both are rounding."""
    change_is_resolved = rounding < _RESOLVED * change
    error_is_resolved = error > _ABOVE_ROUNDING * rounding
    if change > 0 and (change_is_resolved or error_is_resolved):
        return error / change
    return None


def _evaluate(
    model: Callable[..., Float[Array, "n *o"]], params: PyTree, x: PyTree
) -> Float[np.ndarray, "n o"]:
    """Outputs of a Taylor model in float64, flat over the axes of an example."""
    # XLA on CPU compiles some float32 reductions wrongly by default: these options are checked.
    full = in_full_precision(model)
    outputs = jax.jit(full, compiler_options=compiler_options(reduces=True))(params, x)
    return np.asarray(outputs, np.float64).reshape(outputs.shape[0], -1)
