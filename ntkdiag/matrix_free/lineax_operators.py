"""J and J J^T as lineax operators.

`lineax.FunctionLinearOperator` would be differentiated and transposed by JAX, which stores the
activations of all microbatches at once. These operators know their transpose.

    KernelOperator     v -> K v                       for the user's solvers: `NTKOperator.lineax()`
    DampedJacobian     step -> (J step, root step)    for LSMR: a ridge as rows below J
"""

from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag import _jax


@runtime_checkable
class Products(Protocol):
    """What these operators need of an `NTKOperator`: J, J^T, K and the shapes.

    The class itself is not imported: its file imports this one.
    """

    params: PyTree
    n_examples: int
    output_shape: tuple[int, ...]
    shape: tuple[int, int]
    dtype: np.dtype

    @property
    def symmetric(self) -> bool:
        """Whether rows and columns are the same examples."""
        ...

    def mv(self, v: Float[Array, "..."]) -> Array:
        """K v."""
        ...

    def tangent(self, step: PyTree) -> Array:
        """J step."""
        ...

    def cotangent(self, v: Float[Array, "..."]) -> PyTree:
        """J^T v."""
        ...

    def transpose(self) -> "Products":
        """K^T."""
        ...


class KernelOperator(lx.AbstractLinearOperator):
    """K on vectors `[(m p)]`.

    Attributes:
        kernel: The operator.
    """

    kernel: Products

    def mv(self, vector: Float[Array, " m_p"]) -> Float[Array, " n_o"]:
        """K v."""
        return self.kernel.mv(vector)

    def as_matrix(self) -> Float[Array, "n_o m_p"]:
        """The kernel, formed column by column."""
        identity = jnp.eye(self.kernel.shape[1], dtype=self.in_structure().dtype)
        columns = jax.lax.map(self.mv, identity)  # [(m p) (n o)], one after the other
        return columns.T

    def transpose(self) -> "KernelOperator":
        """K^T, with rows and columns exchanged."""
        return KernelOperator(self.kernel.transpose())

    def in_structure(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of v."""
        return self._vector(self.kernel.shape[1])

    def out_structure(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype of K v."""
        return self._vector(self.kernel.shape[0])

    def _vector(self, length: int) -> jax.ShapeDtypeStruct:
        """A vector of products with K, which are in float32 at least."""
        return jax.ShapeDtypeStruct((length,), _jax.at_least_float32(self.kernel.dtype))


class DampedJacobian(lx.AbstractLinearOperator):
    """[J; root I], from steps of the parameters to pairs (outputs, steps), and its transpose.

    Attributes:
        kernel: The operator whose J it is.
        root: Square root of the ridge.
        transposed: Whether this is the transpose.
    """

    kernel: Products
    root: Float[Array, ""]
    transposed: bool = eqx.field(static=True, default=False)

    def mv(self, vector: PyTree) -> PyTree:
        """[J step, root step], or J^T v + root d."""
        if self.transposed:
            # [J^T, root I] (v, d), where d is a tree like the parameters
            v, d = vector
            pulled = self.kernel.cotangent(v)
            return jax.tree.map(lambda a, b: a + self.root * b, pulled, d)
        # [J; root I] step
        change = self.kernel.tangent(vector)
        damped = jax.tree.map(lambda d: self.root * d, vector)
        return change, damped

    def as_matrix(self) -> Array:
        """Not available: `KernelOperator` is, for a small kernel."""
        raise NotImplementedError(
            "DampedJacobian.as_matrix: the point of it is not to form the matrix."
        )

    def transpose(self) -> "DampedJacobian":
        """The transpose."""
        return DampedJacobian(self.kernel, self.root, not self.transposed)

    def in_structure(self) -> PyTree:
        """Structure of the argument of `mv`."""
        if self.transposed:
            return self._outputs_and_step()
        return self._step()

    def out_structure(self) -> PyTree:
        """Structure of the result of `mv`."""
        if self.transposed:
            return self._step()
        return self._outputs_and_step()

    def _step(self) -> PyTree:
        """A step of the parameters, a tree like them in float32 at least."""

        def wide(p: Array) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(p.shape, _jax.at_least_float32(p.dtype))

        return jax.tree.map(wide, self.kernel.params)

    def _outputs_and_step(self) -> PyTree:
        """Outputs `[n ...]`, and a step."""
        shape = (self.kernel.n_examples, *self.kernel.output_shape)
        dtype = _jax.at_least_float32(self.kernel.dtype)
        return jax.ShapeDtypeStruct(shape, dtype), self._step()


def _itself(operator: lx.AbstractLinearOperator) -> lx.AbstractLinearOperator:
    """What is linear and real is its own linearization and its own conjugate."""
    return operator


def _never(operator: lx.AbstractLinearOperator) -> bool:
    """The answer to questions that hold for no kernel in general."""
    return False


def _is_symmetric(operator: lx.AbstractLinearOperator) -> bool:
    """A kernel of examples with themselves is symmetric, and positive semidefinite."""
    return isinstance(operator, KernelOperator) and operator.kernel.symmetric


def _as_matrix_operator(operator: lx.AbstractLinearOperator) -> lx.MatrixLinearOperator:
    """The operator with its entries in memory."""
    return lx.MatrixLinearOperator(operator.as_matrix())


def _diagonal(operator: lx.AbstractLinearOperator) -> Array:
    """The diagonal, by way of the whole matrix."""
    return jnp.diag(operator.as_matrix())


# lineax asks its questions about an operator by single dispatch: each class answers all of them.
for _kind in (KernelOperator, DampedJacobian):
    lx.linearise.register(_kind)(_itself)
    lx.conj.register(_kind)(_itself)
    lx.materialise.register(_kind)(_as_matrix_operator)
    lx.diagonal.register(_kind)(_diagonal)
    lx.is_symmetric.register(_kind)(_is_symmetric)
    lx.is_positive_semidefinite.register(_kind)(_is_symmetric)
    for _question in (
        lx.is_diagonal,
        lx.is_tridiagonal,
        lx.is_lower_triangular,
        lx.is_upper_triangular,
        lx.has_unit_diagonal,
        lx.is_negative_semidefinite,
    ):
        _question.register(_kind)(_never)
