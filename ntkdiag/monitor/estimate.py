"""A number with its error bar: what every instrument of a monitor returns."""

import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag import display
from ntkdiag.nouns import pytree


@pytree("value", "lower", "upper")
@dataclasses.dataclass(frozen=True, eq=False)
class Estimate:
    """A number, or an array of them, with an interval that holds the true one 95 times of 100.

    Attributes:
        value: The estimate; NaN where there is none.
        lower: Lower end of the interval; the value itself where it is exact.
        upper: Upper end.
    """

    value: Float[Array, "*s"]
    lower: Float[Array, "*s"]
    upper: Float[Array, "*s"]

    @staticmethod
    def exact(value: jax.typing.ArrayLike) -> "Estimate":
        """A number that is computed, not estimated: known to rounding."""
        array = _as_float(value)
        return Estimate(array, array, array)

    @staticmethod
    def bracket(
        value: jax.typing.ArrayLike, lower: jax.typing.ArrayLike, upper: jax.typing.ArrayLike
    ) -> "Estimate":
        """A number between two that enclose it."""
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
        half_width = student_t(n - 1) * samples.std(axis=0, ddof=1) / math.sqrt(n)
        return Estimate(mean, mean - half_width, mean + half_width)

    @staticmethod
    def unknown(shape: tuple[int, ...] = ()) -> "Estimate":
        """NaN: what cannot be known; the reason stands beside it, in the record."""
        nan = jnp.full(shape, jnp.nan)
        return Estimate(nan, nan, nan)

    def __repr__(self) -> str:
        return display.described(self)


def student_t(degrees: int) -> float:
    """The 97.5 % point of Student's distribution with so many degrees of freedom."""
    return _STUDENT_T[min(degrees, len(_STUDENT_T)) - 1] if degrees <= 30 else 1.96 + 2.4 / degrees


# 1 to 30 degrees of freedom; beyond, 1.96 + 2.4 / degrees is right to three digits.
_STUDENT_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def _as_float(value: jax.typing.ArrayLike) -> Array:
    """A floating array, of float32 at least."""
    array = jnp.asarray(value)
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))
