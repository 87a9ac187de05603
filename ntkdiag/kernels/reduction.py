"""`outputs=`: which output directions are differentiated, and how the kernel is reduced over them."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors

FULL_ROWS = 2048  # rows of the full kernel up to which it is the choice where nothing is said
NAMES = ("mean", "trace", "full", "diagonal", "sum-of-logits")


@dataclasses.dataclass(frozen=True)
class RandomProjections:
    """`outputs=RandomProjections(k)`: an unbiased estimate of the trace kernel from k random output directions.

    K_hat[n,m] = (1/k) sum_j <J_n^T v_j, J_m^T v_j> with vectors v_j of random signs, no two of them equal up to sign,
    which would say the same twice. The standard error is that of the mean over j, drawn without replacement from the
    M = 2^(C - 1) that there are: s / sqrt(k) sqrt(1 - k / M). It is itself an estimate from k numbers: for an interval
    take Student's t of k - 1 degrees of freedom.
    For many outputs this costs k backward passes per example instead of C.

    Attributes:
        k: Number of directions, from 2 to M; with C of them "trace" is no dearer, and exact.
        seed: Seed of the directions.
    """

    k: int
    seed: int = 0

    def possible(self, n_outputs: int) -> bool:
        """Whether there are so many directions, and a seed to draw them with."""
        return all(isinstance(v, int | np.integer) for v in (self.k, self.seed)) and 2 <= self.k <= 2 ** (n_outputs - 1)

    def directions(self, n_outputs: int, dtype: Any) -> jax.Array:
        """Rademacher directions [k C], different up to sign; v and -v are one direction, so the first sign is 1."""
        rng, signs = np.random.default_rng(self.seed), np.ones((0, n_outputs))
        while len(signs) < self.k:
            more = rng.choice([-1.0, 1.0], size=(self.k, n_outputs))
            signs = np.concatenate([signs, more * more[:, :1]])
            signs = signs[np.sort(np.unique(signs, axis=0, return_index=True)[1])]
        return jnp.asarray(signs[: self.k], dtype)


@dataclasses.dataclass(frozen=True, eq=False)
class Reduction:
    """What `outputs=` asks for.

    Attributes:
        name: As in `Convention.outputs`.
        contraction: How factor Grams are contracted over outputs: "full", "trace" or "diagonal".
        n_outputs: C, outputs of one example.
        n_directions: k, rows of the basis: one backward pass each.
        source: The projection [C k] or the `RandomProjections`; None for a name.
        columns: The reduction of the columns, where they are another function with another number of outputs.
    """

    name: str
    contraction: str
    n_outputs: int
    n_directions: int
    source: Any = None
    columns: "Reduction | None" = None

    @staticmethod
    def of(outputs: Any, n_outputs: int) -> "Reduction":
        """Read `outputs=`.

        Raises:
            InvalidInputError: It is no known name, no array of shape [C k], and no `RandomProjections` of 2 to M.
        """
        if isinstance(outputs, str) and outputs in NAMES:
            contraction = {"mean": "trace", "trace": "trace", "diagonal": "diagonal"}.get(outputs, "full")
            k = 1 if outputs == "sum-of-logits" else n_outputs
            return Reduction(outputs, contraction, n_outputs, k)
        if isinstance(outputs, RandomProjections) and outputs.possible(n_outputs):
            return Reduction("random-projections", "diagonal", n_outputs, outputs.k, outputs)
        shape, dtype = getattr(outputs, "shape", ()), getattr(outputs, "dtype", None)
        real = dtype is not None and any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer))
        if real and len(shape) == 2 and shape[0] == n_outputs and shape[1]:
            return Reduction("projection", "full", n_outputs, shape[1], outputs)
        got = repr(outputs) if dtype is None else f"an array of shape {shape} and dtype {dtype}"
        names = ", ".join(map(repr, NAMES))
        raise errors.InvalidInputError(
            errors.message(
                "ntk(..., outputs=...)",
                expected=f"one of {names}, RandomProjections(k, seed) with 2 <= k <= 2^{n_outputs - 1}, or a "
                f"projection of shape [{n_outputs}, k]",
                got=got,
                do=f"This function has {n_outputs} outputs per example.",
            )
        )

    def against(self, n_outputs: int, call: str) -> "Reduction":
        """The same between f and a second function with this number of outputs.

        Raises:
            InvalidInputError: The functions differ in it and the reduction pairs their outputs.
        """
        if n_outputs == self.n_outputs:
            return self
        if self.name not in ("full", "sum-of-logits"):
            raise errors.InvalidInputError(
                errors.message(
                    f"{call[:-1]}, f2=..., outputs=...)",
                    expected='"full" or "sum-of-logits" between functions with different numbers of outputs',
                    got=f'"{self.name}" with {self.n_outputs} and {n_outputs} outputs per example',
                    do="The other reductions pair output o of f with output o of f2.",
                )
            )
        return dataclasses.replace(self, columns=Reduction.of(self.name, n_outputs))

    def basis(self, dtype: Any) -> jax.Array | np.ndarray:
        """Output directions [k C]."""
        if self.name == "sum-of-logits":
            return np.full((1, self.n_outputs), 1 / math.sqrt(self.n_outputs), dtype)
        if isinstance(self.source, RandomProjections):
            return self.source.directions(self.n_outputs, dtype)
        return np.eye(self.n_outputs, dtype=dtype) if self.source is None else jnp.asarray(self.source, dtype).T

    def tile_shape(self, n: int, m: int) -> tuple[int, ...]:
        """Shape of the contracted kernel of n by m examples, before `finish`."""
        k, other = self.n_directions, (self.columns or self).n_directions
        return {"full": (n, k, m, other), "trace": (n, m), "diagonal": (n, m, k)}[self.contraction]

    def finish(self, k: Any) -> tuple[Any, Any]:
        """Scale and shape as the convention says: (kernel, standard error or None)."""
        if self.name == "mean":
            return k / self.n_outputs, None
        if self.name == "sum-of-logits":
            return k[:, 0, :, 0], None
        if self.name == "random-projections":
            left = max(0.0, 1.0 - self.n_directions / 2.0 ** min(self.n_outputs - 1, 1000))
            return k.mean(-1), k.std(-1, ddof=1) * math.sqrt(left / self.n_directions)
        return k, None


def automatic(n_examples: int, n_outputs: int) -> str:
    """`outputs="auto"`: "full" where it has at most 2048 rows, else "mean"."""
    return "full" if n_examples * n_outputs <= FULL_ROWS else "mean"
