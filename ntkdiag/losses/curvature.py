"""The curvature of a loss in the outputs, as a factor L of Sigma = L L^T.

Sigma is block diagonal: one block for every example, or position. The stability of training depends
on the largest eigenvalue of Sigma^1/2 Theta Sigma^1/2. Any factor of Sigma gives the same nonzero
eigenvalues, those of L^T Theta L, so no square root of a matrix is taken:

    squared error            Sigma = I                  L = I
    softmax cross-entropy    Sigma = diag(p) - p p^T    L = diag(s) (I - s s^T), s = sqrt(p)
    sigmoid cross-entropy    Sigma = diag(p (1 - p))    L = diag(s), s = sqrt(p (1 - p))
    any other                Sigma = U diag(h) U^T      L = U diag(sqrt(h))
    with weights w           Sigma = diag(w) Sigma_0    L = diag(sqrt(w)) L_0

A loss that is not convex in the outputs has Sigma = L S L^T with signs S on the diagonal. The
nonzero eigenvalues are those of S M, M = L^T Theta L, or of M^1/2 S M^1/2, which is symmetric.

The methods take NumPy and JAX arrays and compute with the library of the factor's own arrays.
"""

import abc
import dataclasses
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ntkdiag.pytree_dataclass import pytree
from ntkdiag.scalars import AnyArray, is_concrete

Columns: TypeAlias = Float[AnyArray, "k *c"]  # a vector, or a matrix of columns


class CurvatureFactor(abc.ABC):
    """L, with Sigma = L L^T the curvature of a loss in k outputs."""

    @abc.abstractmethod
    def times(self, columns: Columns) -> Columns:
        """L applied to a vector `[k]`, or to every column of `[k c]`."""

    @abc.abstractmethod
    def transposed_times(self, columns: Columns) -> Columns:
        """L^T applied to a vector `[k]`, or to every column of `[k c]`."""

    def around(self, kernel: Float[AnyArray, "k k"]) -> Float[AnyArray, "k k"]:
        """L^T K L, symmetrised: its nonzero eigenvalues are those of Sigma^1/2 K Sigma^1/2."""
        left = self.transposed_times(kernel)  # L^T K
        both = self.transposed_times(left.T)  # L^T (L^T K)^T = L^T K^T L
        return 0.5 * (both + both.T)

    @property
    def signs(self) -> Float[AnyArray, " k"] | None:
        """S, where Sigma = L S L^T has negative eigenvalues; None for Sigma = L L^T."""
        return None

    def on_host(self) -> "CurvatureFactor":
        """The same factor in NumPy and float64, for products on the host."""
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), self)


@pytree()
@dataclasses.dataclass(frozen=True)
class IdentityFactor(CurvatureFactor):
    """L = I: squared error."""

    def times(self, columns: Columns) -> Columns:
        """The columns themselves."""
        return columns

    def transposed_times(self, columns: Columns) -> Columns:
        """The columns themselves."""
        return columns


@pytree("scale")
@dataclasses.dataclass(frozen=True, eq=False)
class DiagonalFactor(CurvatureFactor):
    """L = diag(s)."""

    scale: Float[AnyArray, " k"]  # s, `[k]`

    def times(self, columns: Columns) -> Columns:
        """s times every column."""
        return (self.scale * columns.T).T  # the k rows come last for a moment, beside s

    def transposed_times(self, columns: Columns) -> Columns:
        """s times every column: L is symmetric."""
        return self.times(columns)


@pytree("root")
@dataclasses.dataclass(frozen=True, eq=False)
class SoftmaxFactor(CurvatureFactor):
    """L = diag(s) (I - s s^T) with s = sqrt(p), one block for every softmax; s^T s = 1."""

    root: Float[AnyArray, "b v"]  # s, `[b v]`: b softmaxes over v classes each

    def times(self, columns: Columns) -> Columns:
        """s (v - s (s . v)) in every block."""
        root = self.root[:, :, None]
        projected = _without_part_along(root, self._split(columns))
        return (root * projected).reshape(columns.shape)

    def transposed_times(self, columns: Columns) -> Columns:
        """w - s (s . w), w = s v, in every block."""
        root = self.root[:, :, None]
        scaled = root * self._split(columns)
        return _without_part_along(root, scaled).reshape(columns.shape)

    def _split(self, columns: Columns) -> Float[AnyArray, "b v c"]:
        """The columns block by block: `[(b v) c]` -> `[b v c]`."""
        return columns.reshape(*self.root.shape, -1)


def _without_part_along(
    direction: Float[AnyArray, "b v 1"], blocks: Float[AnyArray, "b v c"]
) -> Float[AnyArray, "b v c"]:
    """Columns `[b v c]` less their part along a unit direction `[b v 1]`."""
    along = (direction * blocks).sum(1, keepdims=True)  # [b 1 c]
    return blocks - direction * along


@pytree("blocks")
@dataclasses.dataclass(frozen=True, eq=False)
class BlockFactor(CurvatureFactor):
    """L as one matrix for every block of outputs."""

    blocks: Float[AnyArray, "b r r"]  # `[b r r]`

    def times(self, columns: Columns) -> Columns:
        """L v in every block."""
        return (self.blocks @ self._split(columns)).reshape(columns.shape)

    def transposed_times(self, columns: Columns) -> Columns:
        """L^T v in every block."""
        return (self.blocks.mT @ self._split(columns)).reshape(columns.shape)

    def _split(self, columns: Columns) -> Float[AnyArray, "b r c"]:
        """The columns block by block: `[(b r) c]` -> `[b r c]`."""
        b, r, _ = self.blocks.shape
        return columns.reshape(b, r, -1)


@pytree("factor", "root_weights")
@dataclasses.dataclass(frozen=True, eq=False)
class WeightedFactor(CurvatureFactor):
    """L = diag(sqrt(w)) L_0, where outputs of one block of Sigma_0 have one weight."""

    factor: CurvatureFactor  # l_0
    root_weights: Float[AnyArray, " k"]  # sqrt(w), `[k]`

    def times(self, columns: Columns) -> Columns:
        """sqrt(w) L_0 v."""
        return (self.root_weights * self.factor.times(columns).T).T

    def transposed_times(self, columns: Columns) -> Columns:
        """L_0^T (sqrt(w) v)."""
        return self.factor.transposed_times((self.root_weights * columns.T).T)


@pytree("factor", "signs_of_columns")
@dataclasses.dataclass(frozen=True, eq=False)
class SignedFactor(CurvatureFactor):
    """L and the signs S of Sigma = L S L^T, which is not positive."""

    factor: CurvatureFactor  # L
    signs_of_columns: Float[AnyArray, " k"]  # the diagonal of S, `[k]`: 1 or -1

    @property
    def signs(self) -> Float[AnyArray, " k"]:
        """The diagonal of S."""
        return self.signs_of_columns

    def times(self, columns: Columns) -> Columns:
        """L v."""
        return self.factor.times(columns)

    def transposed_times(self, columns: Columns) -> Columns:
        """L^T v."""
        return self.factor.transposed_times(columns)

    def around(self, kernel: Float[AnyArray, "k k"]) -> Float[AnyArray, "k k"]:
        """R^T S R with R R^T = L^T K L: its nonzero eigenvalues are those of Sigma K."""
        between = self.factor.around(kernel)
        if is_concrete(between):
            values, vectors = np.linalg.eigh(np.asarray(between, np.float64))
        else:
            values, vectors = jnp.linalg.eigh(between)
        root = vectors * (values.clip(0.0) ** 0.5)  # column j times sqrt(lambda_j)
        return root.T @ (self.signs_of_columns[:, None] * root)
