"""The margin of stability of one checkpoint under a stated update rule."""

import dataclasses
import math
from collections.abc import Callable
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ntkdiag.analysis.stability import critical_learning_rate, gauss_newton_matrix
from ntkdiag.descent import Descent
from ntkdiag.kernel.spectrum import Spectrum
from ntkdiag.matrix_free.operator import NTKOperator
from ntkdiag.measuring.settings import Settings
from ntkdiag.monitor.instruments.margin import ends_of, first_half

# Rows of the full kernel up to which the margin of a reduced one comes from products: 8 MB.
MOST_ROWS_OF_PRODUCTS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Stability:
    """How close the learning rate of one checkpoint is to divergence; NaN for what is not known."""

    critical_learning_rate: float  # where the margin would be 1
    margin: float | None  # learning rate over the critical one
    learning_rate: float | None  # of the next step; None where none was stated
    status: str = "ok"  # "ok", or a sentence on what to know, or why the margin is not known
    # Size of the optimizer's next update; None where the update rule was stated.
    update_norm: float | None = None
    # The 95 % interval of the margin of all training examples; None beside a stated rule where the
    # kernel is reduced or the loss not convex in the outputs.
    interval: tuple[float, float] | None = None

    @property
    def numbers(self) -> dict[str, int | float]:
        """Those that were asked for, by name."""
        lower, upper = self.interval or (None, None)
        numbers = {
            "critical_learning_rate": self.critical_learning_rate,
            "margin": self.margin,
            "learning_rate": self.learning_rate,
            "margin_lower": lower,
            "margin_upper": upper,
            "update_norm": self.update_norm,
        }
        return {name: float(value) for name, value in numbers.items() if value is not None}

    @staticmethod
    def unknown(status: str) -> "Stability":
        """All NaN, and why."""
        nan = math.nan
        return Stability(nan, nan, nan, status, update_norm=nan, interval=(nan, nan))


# What is computed when it is called.
PendingStability: TypeAlias = Callable[[], Stability]


def stated_stability(
    spectrum: Spectrum,
    outputs: Float[np.ndarray, "n *o"],
    settings: Settings,
    full: Callable[[], NTKOperator],
) -> Stability | None:
    """Critical learning rate and margin of the stated rule, as far as loss and kernel allow."""
    convention = spectrum.convention
    assert convention is not None  # that of a `Kernel`
    # The curvature of held-out examples is not that of the loss that is trained.
    if settings.loss is None or settings.probes.train is None:
        return None
    kernel: Spectrum | NTKOperator = spectrum
    if convention.reduction != "full" and convention.n_outputs > 1:
        n_rows = settings.n_examples * convention.n_outputs
        if convention.examples == "joint" or n_rows > MOST_ROWS_OF_PRODUCTS:
            return None
        kernel = full()
    descent = settings.descent or Descent()
    critical_rate = critical_learning_rate(
        kernel, descent, loss=settings.loss, outputs=outputs, y=settings.y
    )
    if descent.learning_rate is None:
        return Stability(float(critical_rate), margin=None, learning_rate=None)
    margin = descent.learning_rate / critical_rate
    rate = float(descent.learning_rate)
    interval = None
    if isinstance(kernel, Spectrum):
        interval = _interval(kernel, descent, outputs, settings)
    return Stability(float(critical_rate), float(margin), rate, interval=interval)


def _interval(
    kernel: Spectrum, descent: Descent, outputs: Float[np.ndarray, "n *o"], settings: Settings
) -> tuple[float, float] | None:
    """Both ends of the margin of the training set, as `margin_error` has them."""
    assert settings.loss is not None
    found = gauss_newton_matrix(
        kernel, loss=settings.loss, outputs=jnp.asarray(outputs), y=settings.y
    )
    if found is None:
        return None
    matrix = np.asarray(found, np.float64)
    if not np.isfinite(matrix).all():
        return math.nan, math.nan
    n = len(outputs)
    value, vector = _largest(matrix)
    by_example = value * np.square(vector).reshape(n, -1).sum(axis=1)
    half = np.repeat(first_half(n), len(matrix) // n)
    # Twice that of a half: D counts all examples.
    of_halves = [2.0 * _largest(matrix[rows][:, rows])[0] for rows in (half, ~half)]
    bias = np.asarray(np.mean(of_halves) - value)
    ends = ends_of(np.asarray(value), by_example, bias, settings.n_train)
    lower, upper = (float(descent.margin(float(end))) for end in ends)
    return lower, upper


def _largest(matrix: Float[np.ndarray, "k k"]) -> tuple[float, Float[np.ndarray, " k"]]:
    import scipy.linalg  # here, because it is slow to import

    last = len(matrix) - 1
    values, vectors = scipy.linalg.eigh(matrix, subset_by_index=(last, last))
    return float(values[0]), vectors[:, 0]
