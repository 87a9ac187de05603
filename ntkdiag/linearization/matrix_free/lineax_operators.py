"""J and J J^T as lineax operators.

`lineax.FunctionLinearOperator` would be differentiated and transposed by JAX, which stores the activations of all
microbatches at once. These operators know their transpose.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx

from ntkdiag import _compat
from ntkdiag.linearization.matrix_free.operator import NTKOperator


class KernelOperator(lx.AbstractLinearOperator):
    """K on vectors `[(m p)]`.

    Attributes:
        kernel: The operator.
    """

    kernel: NTKOperator

    def mv(self, vector: Any) -> Any:
        """K v."""
        return self.kernel.mv(vector)

    def as_matrix(self) -> Any:
        """The kernel, formed column by column."""
        return jax.lax.map(self.mv, jnp.eye(self.kernel.shape[1], dtype=self.in_structure().dtype)).T

    def transpose(self) -> "KernelOperator":
        """K^T, with rows and columns exchanged."""
        k = self.kernel
        if k.symmetric:
            return self
        return KernelOperator(NTKOperator(k.f, k.params, k.x2, k.x, microbatch=k.microbatch, check=False))

    def in_structure(self) -> Any:
        """Shape and dtype of v."""
        return jax.ShapeDtypeStruct((self.kernel.shape[1],), _compat.at_least_float32(self.kernel.dtype))

    def out_structure(self) -> Any:
        """Shape and dtype of K v."""
        return jax.ShapeDtypeStruct((self.kernel.shape[0],), _compat.at_least_float32(self.kernel.dtype))


class DampedJacobian(lx.AbstractLinearOperator):
    """[J; root I] from steps of the parameters to (outputs, steps), and its transpose.

    Attributes:
        kernel: The operator whose J it is.
        root: Square root of the ridge.
        transposed: Whether this is the transpose.
    """

    kernel: NTKOperator
    root: Any
    transposed: bool = eqx.field(static=True, default=False)

    def mv(self, vector: Any) -> Any:
        """[J step, root step], or J^T v + root d."""
        if self.transposed:
            v, d = vector
            return jax.tree.map(lambda a, b: a + self.root * b, self.kernel.cotangent(v), d)
        return self.kernel.tangent(vector), jax.tree.map(lambda d: self.root * d, vector)

    def as_matrix(self) -> Any:
        """Not available: use `KernelOperator` for a small kernel."""
        raise NotImplementedError("DampedJacobian.as_matrix: the point of it is not to form the matrix.")

    def transpose(self) -> "DampedJacobian":
        """The transpose."""
        return DampedJacobian(self.kernel, self.root, not self.transposed)

    def in_structure(self) -> Any:
        """Structure of the argument of `mv`."""
        return self._both() if self.transposed else self._step()

    def out_structure(self) -> Any:
        """Structure of the result of `mv`."""
        return self._step() if self.transposed else self._both()

    def _step(self) -> Any:
        wide = lambda p: jax.ShapeDtypeStruct(p.shape, _compat.at_least_float32(p.dtype))
        return jax.tree.map(wide, self.kernel.params)

    def _both(self) -> Any:
        k = self.kernel
        dtype = _compat.at_least_float32(k.dtype)
        return jax.ShapeDtypeStruct((k.n_examples, *k.output_shape), dtype), self._step()


def _symmetric(operator: Any) -> bool:
    return isinstance(operator, KernelOperator) and operator.kernel.symmetric


for _kind in (KernelOperator, DampedJacobian):
    lx.linearise.register(_kind)(lambda operator: operator)
    lx.materialise.register(_kind)(lambda operator: lx.MatrixLinearOperator(operator.as_matrix()))
    lx.conj.register(_kind)(lambda operator: operator)
    lx.is_symmetric.register(_kind)(_symmetric)
    lx.is_positive_semidefinite.register(_kind)(_symmetric)
    for _question in (
        lx.is_diagonal,
        lx.is_tridiagonal,
        lx.is_lower_triangular,
        lx.is_upper_triangular,
        lx.has_unit_diagonal,
        lx.is_negative_semidefinite,
    ):
        _question.register(_kind)(lambda operator: False)
    lx.diagonal.register(_kind)(lambda operator: jnp.diag(operator.as_matrix()))
