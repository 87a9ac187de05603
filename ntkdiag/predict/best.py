"""The best point of a path: where to stop, or how much ridge to take."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.predict.prediction import Prediction


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["value", "error", "errors"], meta_fields=[]
)
@dataclasses.dataclass(frozen=True, eq=False)
class Best:
    """The point of a path with the smallest error.

    Attributes:
        value: The time, number of steps or ridge there.
        error: Its error.
        errors: `[T]`, the error at every point.
    """

    value: Any
    error: Any
    errors: Any


@errors.public
@keeps_float64
def best_on_path(
    prediction: Prediction, y_test: jax.typing.ArrayLike, path: jax.typing.ArrayLike
) -> Best:
    """Find where a path of predictions is closest to labels it has not seen.

    The error is the mean over examples of the squared error, summed over outputs, without a factor 1/2. Chosen and
    judged on the same labels it is a little too small: judge the chosen point on others.
    Cost: one pass.

    Args:
        prediction: Of `gradient_flow` or `gradient_descent` at times `[T]`, or of `ridge_path`, with test outputs.
        y_test: `[m o]`, shaped like the test outputs at one time.
        path: `[T]` times, steps or ridges.

    Returns:
        The best point; NaN where no point has a finite error.

    Raises:
        InvalidInputError: When there are no test outputs, or path or labels do not fit them.
    """
    labels, points = jnp.asarray(y_test), jnp.asarray(path)
    wanted = None if prediction.test is None else np.shape(prediction.test)
    if wanted is None or points.ndim != 1 or wanted != (points.shape[0], *labels.shape):
        raise errors.InvalidInputError(
            expected="test outputs of shape (T, *y_test.shape) for a path of shape (T,)",
            got=f"test outputs {wanted}, y_test {labels.shape}, path {points.shape}",
            do="Predict with `kernel_test=` at a vector of times or ridges.",
        )
    mean_errors = (
        jnp.sum((jnp.asarray(prediction.test) - labels) ** 2, axis=tuple(range(1, len(wanted))))
        / labels.shape[0]
    )
    index = jnp.argmin(jnp.where(jnp.isnan(mean_errors), jnp.inf, mean_errors))
    none = ~jnp.isfinite(mean_errors).any()  # everything diverged
    return Best(
        jnp.where(none, jnp.nan, points[index]),
        jnp.where(none, jnp.nan, mean_errors[index]),
        mean_errors,
    )
