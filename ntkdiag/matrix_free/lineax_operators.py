"""J with a ridge as rows below it, as a lineax operator for LSMR: step -> (J step, root step).

`lineax.FunctionLinearOperator` would be differentiated and transposed by JAX, which stores the
activations of all microbatches at once. This operator knows its transpose.
"""

from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import lineax as lx
import numpy as np
from jaxtyping import Array, Float, PyTree

from ntkdiag.jaxtools.precision import at_least_float32


@runtime_checkable
class Products(Protocol):
    """What the operator needs of an `NTKOperator`: J, J^T and the shapes.

    The class itself is not imported: its file imports this one.
    """

    params: PyTree
    n_examples: int
    output_shape: tuple[int, ...]
    dtype: np.dtype

    def tangent(self, step: PyTree) -> Array:
        """J step."""
        ...

    def cotangent(self, v: Float[Array, "..."]) -> PyTree:
        """J^T v."""
        ...


class DampedJacobian(lx.AbstractLinearOperator):
    """[J; root I], from steps of the parameters to pairs (outputs, steps), and its transpose."""

    kernel: Products  # the operator whose J it is
    root: Float[Array, ""]  # square root of the ridge
    transposed: bool = eqx.field(static=True, default=False)  # whether this is the transpose

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
        """Not available."""
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
            return jax.ShapeDtypeStruct(p.shape, at_least_float32(p.dtype))

        return jax.tree.map(wide, self.kernel.params)

    def _outputs_and_step(self) -> PyTree:
        """Outputs `[n ...]`, and a step."""
        shape = (self.kernel.n_examples, *self.kernel.output_shape)
        dtype = at_least_float32(self.kernel.dtype)
        return jax.ShapeDtypeStruct(shape, dtype), self._step()


def _itself(operator: lx.AbstractLinearOperator) -> lx.AbstractLinearOperator:
    """What is linear and real is its own linearization and its own conjugate."""
    return operator


def _never(operator: lx.AbstractLinearOperator) -> bool:
    """The answer to questions about symmetry and zeros."""
    return False


# lineax asks its questions about an operator by single dispatch.
lx.linearise.register(DampedJacobian)(_itself)
lx.conj.register(DampedJacobian)(_itself)
for _question in (
    lx.is_symmetric,
    lx.is_diagonal,
    lx.is_tridiagonal,
    lx.is_lower_triangular,
    lx.is_upper_triangular,
    lx.has_unit_diagonal,
    lx.is_positive_semidefinite,
    lx.is_negative_semidefinite,
):
    _question.register(DampedJacobian)(_never)
