"""How the matrix products of a Gram are rounded."""

import contextlib
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ntkdiag import _compat, errors


@dataclasses.dataclass(frozen=True)
class Precision:
    """A rounding policy for Gram products.

    Attributes:
        name: "highest", "bf16x3", "bf16x6" or "float64".
        pieces: bfloat16 pieces each factor is split into; 0 for none.
        relative: Unit roundoff of one product, for the noise floor; None is that of the dtype.
    """

    name: str
    pieces: int = 0
    relative: float | None = None

    def mode(self) -> contextlib.AbstractContextManager:
        """The 64-bit mode of JAX where products are float64, whatever the mode of the caller is."""
        return jax.enable_x64(True) if self.name == "float64" else contextlib.nullcontext()

    def prepare(self, x: jax.Array) -> jax.Array:
        """Cast a factor: to float64 where asked for, and never below float32."""
        return x.astype(self.dtype(x.dtype))

    def dtype(self, factors: Any) -> Any:
        """That of the products of factors of this dtype."""
        return np.dtype(np.float64) if self.name == "float64" else _compat.at_least_float32(factors)

    def einsum(self, pattern: str, x: jax.Array, y: jax.Array) -> jax.Array:
        """A two-operand einsum under this policy."""
        x, y = self.prepare(x), self.prepare(y)
        if not self.pieces:
            return jnp.einsum(pattern, x, y, precision=lax.Precision.HIGHEST)
        xs, ys = _split(x, self.pieces), _split(y, self.pieces)
        total: Any = 0.0
        for order in reversed(range(self.pieces)):  # smallest terms first
            for i in range(order + 1):
                term = jnp.einsum(pattern, xs[i], ys[order - i], preferred_element_type=jnp.float32)
                total = total + term
        return total.astype(x.dtype)

    def unit_roundoff(self, dtype: Any) -> float:
        """Relative rounding error of one product."""
        return self.relative if self.relative is not None else float(jnp.finfo(dtype).eps)


def _split(x: jax.Array, pieces: int) -> list[jax.Array]:
    """x as a sum of bfloat16 arrays of falling size."""
    parts = []
    for _ in range(pieces):
        part = x.astype(jnp.bfloat16)
        parts.append(part)
        x = x - part.astype(x.dtype)
    return parts


HIGHEST = Precision("highest")
POLICIES = {
    "highest": HIGHEST,
    "bf16x3": Precision("bf16x3", 2, 2.0**-16),
    "bf16x6": Precision("bf16x6", 3, 2.0**-22),
    "float64": Precision("float64"),
}


def policy(name: str) -> Precision:
    """The policy of this name.

    Raises:
        InvalidInputError: There is none.
    """
    if name in POLICIES:
        return POLICIES[name]
    raise errors.InvalidInputError(
        errors.message(
            f"ntk(..., precision={name!r})",
            expected=f"one of {', '.join(map(repr, POLICIES))}",
            got=repr(name),
            do='"highest" is the full precision of the dtype on every backend.',
        )
    )
