"""`outputs=`: which output directions are differentiated, and how the kernel is reduced over them."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors

NAMES = ("mean", "trace", "full", "diagonal", "sum-of-logits")


@dataclasses.dataclass(frozen=True, eq=False)
class Reduction:
    """What `outputs=` asks for.

    Attributes:
        name: As in `Convention.outputs`.
        contraction: How factor Grams are contracted over outputs: "full", "trace" or "diagonal".
        n_outputs: C, outputs of one example.
        n_directions: k, rows of the basis: one backward pass each.
        projection: V [C k] of a projection; None otherwise.
    """

    name: str
    contraction: str
    n_outputs: int
    n_directions: int
    projection: Any = None

    @staticmethod
    def of(outputs: Any, n_outputs: int) -> "Reduction":
        """Read `outputs=`.

        Raises:
            InvalidInputError: It is no known name and no array of shape [C k].
        """
        if isinstance(outputs, str) and outputs in NAMES:
            contraction = {"mean": "trace", "trace": "trace", "diagonal": "diagonal"}.get(outputs, "full")
            k = 1 if outputs == "sum-of-logits" else n_outputs
            return Reduction(outputs, contraction, n_outputs, k)
        if isinstance(outputs, (jax.Array, np.ndarray)) and outputs.ndim == 2 and outputs.shape[0] == n_outputs:
            return Reduction("projection", "full", n_outputs, outputs.shape[1], outputs)
        got = f"an array of shape {outputs.shape}" if hasattr(outputs, "shape") else repr(outputs)
        raise errors.InvalidInputError(
            errors.message(
                f"ntk(..., outputs={got if not isinstance(outputs, str) else repr(outputs)})",
                expected=f"one of {', '.join(map(repr, NAMES))} or a projection of shape [{n_outputs}, k]",
                got=got,
                do=f"This function has {n_outputs} outputs per example.",
            )
        )

    def basis(self, dtype: Any) -> jax.Array:
        """Output directions [k C]."""
        if self.name == "sum-of-logits":
            return jnp.full((1, self.n_outputs), 1 / math.sqrt(self.n_outputs), dtype)
        if self.projection is not None:
            return jnp.asarray(self.projection, dtype).T
        return jnp.eye(self.n_outputs, dtype=dtype)

    def tile_shape(self, n: int, m: int) -> tuple[int, ...]:
        """Shape of the contracted kernel of n by m examples, before `finish`."""
        k = self.n_directions
        return {"full": (n, k, m, k), "trace": (n, m), "diagonal": (n, m, k)}[self.contraction]

    def finish(self, k: Any) -> Any:
        """Scale and shape as the convention says."""
        if self.name == "mean":
            return k / self.n_outputs
        return k[:, 0, :, 0] if self.name == "sum-of-logits" else k
