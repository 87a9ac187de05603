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
"""

import dataclasses
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ntkdiag.arrays import AnyArray, is_concrete
from ntkdiag.pytree_dataclass import pytree

Columns: TypeAlias = Float[AnyArray, "k *c"]  # a vector, or a matrix of columns


@pytree("scale", "direction", "blocks", "signs")
@dataclasses.dataclass(frozen=True, eq=False)
class CurvatureFactor:
    """L = diag(scale) (I - d d^T) or diag(scale) B, with Sigma = L L^T, or L S L^T beside signs."""

    scale: Float[AnyArray, " k"] | None = None  # None for 1
    direction: Float[AnyArray, "b v"] | None = None  # d, a unit vector for every block
    blocks: Float[AnyArray, "b v v"] | None = None  # B
    signs: Float[AnyArray, " k"] | None = None  # the diagonal of S, of a loss that is not convex

    def times(self, columns: Columns) -> Columns:
        """L applied to a vector `[k]`, or to every column of `[k c]`."""
        return self._scaled(self._in_blocks(columns, self.blocks))

    def transposed_times(self, columns: Columns) -> Columns:
        """L^T applied to a vector `[k]`, or to every column of `[k c]`."""
        transposed = None if self.blocks is None else self.blocks.mT
        return self._in_blocks(self._scaled(columns), transposed)

    def around(self, kernel: Float[AnyArray, "k k"]) -> Float[AnyArray, "k k"]:
        """L^T K L, or with signs R^T S R: symmetric, with the nonzero eigenvalues of Sigma K."""
        left = self.transposed_times(kernel)  # L^T K
        both = self.transposed_times(left.T)  # L^T (L^T K)^T = L^T K^T L
        between = 0.5 * (both + both.T)
        if self.signs is None:
            return between
        if is_concrete(between):
            values, vectors = np.linalg.eigh(np.asarray(between, np.float64))
        else:
            values, vectors = jnp.linalg.eigh(between)
        root = vectors * (values.clip(0.0) ** 0.5)  # column j times sqrt(lambda_j)
        return root.T @ (self.signs[:, None] * root)

    def weighted(self, weights: Float[AnyArray, " k"]) -> "CurvatureFactor":
        """diag(sqrt(w)) L, for outputs of one block that have one weight."""
        roots = jnp.sqrt(weights)
        return dataclasses.replace(self, scale=roots if self.scale is None else roots * self.scale)

    def on_host(self) -> "CurvatureFactor":
        """The same factor in NumPy and float64, for products on the host."""
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), self)

    def _scaled(self, columns: Columns) -> Columns:
        """diag(scale) times every column."""
        if self.scale is None:
            return columns
        return columns * self.scale.reshape(-1, *[1] * (columns.ndim - 1))

    def _in_blocks(self, columns: Columns, blocks: Float[AnyArray, "b v v"] | None) -> Columns:
        """B v, or v - d (d . v), in every block: `[(b v) c]`."""
        if blocks is not None:
            split = columns.reshape(*blocks.shape[:2], -1)  # [(b v) c] -> [b v c]
            return (blocks @ split).reshape(columns.shape)
        if self.direction is not None:
            d = self.direction[:, :, None]  # [b v 1]
            split = columns.reshape(*self.direction.shape, -1)
            along = (d * split).sum(1, keepdims=True)  # [b 1 c]
            return (split - d * along).reshape(columns.shape)
        return columns
