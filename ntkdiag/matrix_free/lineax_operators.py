"""J with a ridge as rows below it, as a lineax operator for LSMR: step -> (J step, root step).

`lineax.FunctionLinearOperator` would be differentiated and transposed by JAX, which stores the
activations of all microbatches at once. This operator knows its transpose.
"""

import equinox as eqx
import jax
import lineax as lx
from jaxtyping import Array, Float, PyTree

from ntkdiag.jaxtools.precision import at_least_float32
from ntkdiag.matrix_free.operator import NTKOperator


class DampedJacobian(lx.AbstractLinearOperator):
    """[J; root I], from steps of the parameters to pairs (outputs, steps), and its transpose."""

    kernel: NTKOperator  # the operator whose J it is
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


# What is linear and real is its own linearization and its own conjugate. lineax asks its questions
# about an operator by single dispatch: it is none of these.
for _of_itself in (lx.linearise, lx.conj):
    _of_itself.register(DampedJacobian)(lambda operator: operator)
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
    _question.register(DampedJacobian)(lambda operator: False)
