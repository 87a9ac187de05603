"""The curvature of a loss in the outputs, as a factor L of Sigma = L L^T.

Sigma is block diagonal: one block for every example, or position. The stability of training depends on the largest
eigenvalue of Sigma^1/2 Theta Sigma^1/2. Any factor of Sigma gives the same nonzero eigenvalues, L^T Theta L, so no
square root of a matrix is taken:

    squared error            Sigma = I                  L = I
    softmax cross-entropy    Sigma = diag(p) - p p^T    L = diag(s) (I - s s^T), s = sqrt(p)
    sigmoid cross-entropy    Sigma = diag(p (1 - p))    L = diag(s), s = sqrt(p (1 - p))
    any other                Sigma = U diag(h) U^T      L = U diag(sqrt(h))

The methods take NumPy and JAX arrays and compute with the library of the factor's own arrays.
"""

import abc
import dataclasses
import functools
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

Columns = Any  # [k] or [k c], of NumPy or JAX


class CurvatureFactor(abc.ABC):
    """L, with Sigma = L L^T the curvature of a loss in k outputs."""

    @abc.abstractmethod
    def times(self, columns: Columns) -> Columns:
        """L applied to a vector `[k]`, or to every column of `[k c]`."""

    @abc.abstractmethod
    def transposed_times(self, columns: Columns) -> Columns:
        """L^T applied to a vector `[k]`, or to every column of `[k c]`."""

    def around(self, kernel: Float[Array, "k k"]) -> Float[Array, "k k"]:
        """L^T K L, symmetrised: its nonzero eigenvalues are those of Sigma^1/2 K Sigma^1/2."""
        left = self.transposed_times(kernel)  # L^T K
        both = self.transposed_times(left.T)  # L^T (L^T K)^T = L^T K^T L
        return 0.5 * (both + both.T)

    def on_host(self) -> "CurvatureFactor":
        """The same factor in NumPy and float64, for products on the host."""
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), self)


@functools.partial(jax.tree_util.register_dataclass, data_fields=[], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class IdentityFactor(CurvatureFactor):
    """L = I: squared error."""

    def times(self, columns: Columns) -> Columns:
        """The columns themselves."""
        return columns

    def transposed_times(self, columns: Columns) -> Columns:
        """The columns themselves."""
        return columns


@functools.partial(jax.tree_util.register_dataclass, data_fields=["scale"], meta_fields=[])
@dataclasses.dataclass(frozen=True, eq=False)
class DiagonalFactor(CurvatureFactor):
    """L = diag(s).

    Attributes:
        scale: s, `[k]`.
    """

    scale: Any

    def times(self, columns: Columns) -> Columns:
        """s times every column."""
        return (self.scale * columns.T).T

    def transposed_times(self, columns: Columns) -> Columns:
        """The same: L is symmetric."""
        return self.times(columns)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["root"], meta_fields=[])
@dataclasses.dataclass(frozen=True, eq=False)
class SoftmaxFactor(CurvatureFactor):
    """L = diag(s) (I - s s^T) with s = sqrt(p), one block for every softmax; s^T s = 1.

    Attributes:
        root: s, `[b v]`: b softmaxes over v classes each.
    """

    root: Any

    def times(self, columns: Columns) -> Columns:
        """s (v - s (s . v)) in every block."""
        root, blocks = self._blocks(columns)
        return (root * _without_part_along(root, blocks)).reshape(columns.shape)

    def transposed_times(self, columns: Columns) -> Columns:
        """w - s (s . w), w = s v, in every block."""
        root, blocks = self._blocks(columns)
        return _without_part_along(root, root * blocks).reshape(columns.shape)

    def _blocks(self, columns: Columns) -> tuple[Any, Any]:
        """s as `[b v 1]` and the columns as `[b v c]`."""
        return self.root[:, :, None], columns.reshape(*self.root.shape, -1)


def _without_part_along(direction: Any, blocks: Any) -> Any:
    """Columns `[b v c]` less their part along a unit direction `[b v 1]`."""
    along = (direction * blocks).sum(1, keepdims=True)  # [b 1 c]
    return blocks - direction * along


@functools.partial(jax.tree_util.register_dataclass, data_fields=["blocks"], meta_fields=[])
@dataclasses.dataclass(frozen=True, eq=False)
class BlockFactor(CurvatureFactor):
    """L as one matrix for every block of outputs.

    Attributes:
        blocks: `[b r r]`.
    """

    blocks: Any

    def times(self, columns: Columns) -> Columns:
        """L v in every block."""
        return (self.blocks @ self._split(columns)).reshape(columns.shape)

    def transposed_times(self, columns: Columns) -> Columns:
        """L^T v in every block."""
        return (self.blocks.mT @ self._split(columns)).reshape(columns.shape)

    def _split(self, columns: Columns) -> Any:
        """The columns as `[b r c]`."""
        b, r, _ = self.blocks.shape
        return columns.reshape(b, r, -1)
