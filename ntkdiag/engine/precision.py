"""How the matrix products of a kernel are rounded.

    highest    float32 or float64 products, whatever the model's dtype says
    bf16x3     each factor is split into 2 bfloat16 pieces, 3 products of pieces: 16 bits
    bf16x6     3 pieces, 6 products: 22 bits
    float64    factors are cast to float64 before they are multiplied

A product of two factors split into pieces x = x_0 + x_1 + ..., of falling size, is the sum of x_i
y_j with i + j below the number of pieces: what is left out is below the last bit that is kept.

    bf16x3:    x y = x_0 y_1 + x_1 y_0 + x_0 y_0        (x_1 y_1 is 2^-16 of it)

On accelerators JAX rounds the factors of float32 products, to 10 bits on a GPU, unless it is told
otherwise. What is compared with something else, or is a small difference, is not to be that coarse:
`in_full_precision`.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from ntkdiag import _jax, errors

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Precision:
    """A rounding policy for the products of factors.

    Attributes:
        name: "highest", "bf16x3", "bf16x6" or "float64".
        pieces: bfloat16 pieces each factor is split into; 0 for none.
        unit_roundoff: Of one product, for the noise floor; None is that of the dtype.
    """

    name: str
    pieces: int = 0
    unit_roundoff: float | None = None

    def mode(self) -> contextlib.AbstractContextManager:
        """JAX's 64-bit mode where products are float64, whatever the mode of the caller is."""
        if self.name == "float64":
            return jax.enable_x64(True)
        return contextlib.nullcontext()

    def prepare(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """A factor cast to the dtype of the products."""
        return x.astype(self.dtype(x.dtype))

    def dtype(self, of_factors: DTypeLike) -> np.dtype:
        """The dtype of products of factors of this dtype: float32 at least."""
        if self.name == "float64":
            return np.dtype(np.float64)
        return _jax.at_least_float32(of_factors)

    def einsum(
        self, pattern: str, x: Float[Array, "..."], y: Float[Array, "..."]
    ) -> Float[Array, "..."]:
        """An einsum of two operands under this policy."""
        x = self.prepare(x)
        y = self.prepare(y)
        # Without HIGHEST an accelerator rounds float32 operands to TF32 or bfloat16.
        if not self.pieces:
            return jnp.einsum(pattern, x, y, precision=lax.Precision.HIGHEST)
        x_pieces = _split(x, self.pieces)
        y_pieces = _split(y, self.pieces)
        total = jnp.zeros((), jnp.float32)
        # Products x_i y_j, the smallest (large i + j) first: less is lost when they are added.
        for order in reversed(range(self.pieces)):
            for i in range(order + 1):
                operands = x_pieces[i], y_pieces[order - i]
                total = total + jnp.einsum(pattern, *operands, preferred_element_type=jnp.float32)
        return total.astype(x.dtype)


def _split(x: Float[Array, "..."], pieces: int) -> list[Float[Array, "..."]]:
    """An array as a sum of bfloat16 arrays of falling size."""
    parts = []
    # Each piece is what bfloat16 keeps of what the pieces before it left.
    for _ in range(pieces):
        part = x.astype(jnp.bfloat16)
        parts.append(part)
        x = x - part.astype(x.dtype)
    return parts


HIGHEST = Precision("highest")
POLICIES = {
    "highest": HIGHEST,
    "bf16x3": Precision("bf16x3", pieces=2, unit_roundoff=2.0**-16),
    "bf16x6": Precision("bf16x6", pieces=3, unit_roundoff=2.0**-22),
    "float64": Precision("float64"),
}


def policy(name: str) -> Precision:
    """The policy of this name.

    Raises:
        InvalidInputError: There is none.
    """
    if isinstance(name, str) and name in POLICIES:
        return POLICIES[name]
    raise errors.InvalidInputError(
        argument=f"precision={name!r}",
        expected=f"one of {', '.join(map(repr, POLICIES))}",
        got=repr(name),
        do='"highest" is the full precision of the dtype on every backend.',
    )


def in_full_precision(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, whose products are of full precision where it is traced or called.

    What says its own precision, as a layer may, keeps that.
    """

    @functools.wraps(function)
    def in_full(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return in_full
