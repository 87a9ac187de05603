"""A number with its error bar: what every instrument of a monitor returns, and an estimate."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ntkdiag import display
from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.pytree_dataclass import pytree


@pytree("value", "lower", "upper")
@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """A number, or an array of them, with an interval that holds the true one 95 times of 100.

    Attributes:
        value: The estimate; NaN where there is none.
        lower: Lower end of the interval; the value itself where it is exact.
        upper: Upper end.
        is_exact: Whether it is computed, not estimated: its interval is the value.
    """

    value: Float[Array | np.ndarray, "*s"]
    lower: Float[Array | np.ndarray, "*s"]
    upper: Float[Array | np.ndarray, "*s"]
    is_exact: bool = False

    @staticmethod
    def exact(value: jax.typing.ArrayLike) -> "Estimate":
        """A number that is computed, not estimated: known to rounding."""
        array = _as_float(value)
        return Estimate(array, array, array, is_exact=True)

    @staticmethod
    def between(
        value: jax.typing.ArrayLike, lower: jax.typing.ArrayLike, upper: jax.typing.ArrayLike
    ) -> "Estimate":
        """A number, and two that enclose it."""
        return Estimate(_as_float(value), _as_float(lower), _as_float(upper))

    @staticmethod
    def of_mean(samples: Float[Array, "n *s"]) -> "Estimate":
        """The mean of independent samples on the leading axis, with Student's interval.

        mean +- t s / sqrt(n), s their standard deviation and t the 97.5 % point of Student's
        distribution with n - 1 degrees of freedom. One sample has no interval: it is NaN.
        """
        n = samples.shape[0]
        mean = samples.mean(axis=0)
        if n < 2:
            return Estimate(mean, jnp.full_like(mean, jnp.nan), jnp.full_like(mean, jnp.nan))
        half_width = student_t(n - 1) * samples.std(axis=0, ddof=1) / np.sqrt(n)
        return Estimate(mean, mean - half_width, mean + half_width)

    @staticmethod
    def unknown(shape: tuple[int, ...] = ()) -> "Estimate":
        """NaN: an unknown number; the record has the reason."""
        nan = jnp.full(shape, jnp.nan)
        return Estimate(nan, nan, nan)

    def __repr__(self) -> str:
        return display.described(self)


def student_t(degrees: int) -> float:
    """The 97.5 % point of Student's distribution with so many degrees of freedom."""
    from scipy import special

    return float(special.stdtrit(degrees, 0.975))


def _as_float(value: jax.typing.ArrayLike) -> Array:
    """A floating array, of float32 at least."""
    array = jnp.asarray(value)
    return array.astype(at_least_float32(array.dtype))
