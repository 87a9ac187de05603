"""The linear system of a step of Newton's method on a loss of the linearized model.

With H the Hessian of the loss in the outputs, and weights a that move the outputs by K a, it is

    (H K + ridge) a = b.

H K is not symmetric, but it is in the inner product <a, b> = a^T K b, in which conjugate gradients
run there: the vector and its image K a are carried along together, so that one product with K per
iteration suffices. With A = H K + ridge it is, on these pairs,

    (a, K a)  ->  (A a, K A a) = (h + ridge a,  K h + ridge K a),    h = H (K a).
"""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag.matrix_free.conjugate_gradients import LinearSolve, conjugate_gradients
from ntkdiag.matrix_free.operator import NTKOperator
from ntkdiag.matrix_free.solvers import CG
from ntkdiag.scalars import Scalar

Outputs: TypeAlias = Float[Array, "n *o"]
WithImage: TypeAlias = tuple[jax.Array, jax.Array]  # a, K a


def solve_newton(
    operator: NTKOperator,
    hessian_product: Callable[[Outputs], Outputs],
    right: WithImage,
    ridge: Scalar,
    solver: CG,
) -> LinearSolve:
    """Solve (H K + ridge) a = b, given (b, K b); the solution is the pair (a, K a).

    Iterations end, and the residual is measured, in the norm of K.
    """

    def product(pair: WithImage) -> WithImage:
        """(a, K a) -> (A a, K A a) with A = H K + ridge, by one product with K."""
        a, image = pair
        hessian_part = hessian_product(image)  # H K a
        moved = hessian_part + ridge * a
        image_of_moved = operator.mv(hessian_part) + ridge * image
        return moved, image_of_moved

    def inner(a: WithImage, b: WithImage) -> Scalar:
        """<a, b> = a^T K b."""
        left, _ = a
        _, image_of_right = b
        return jnp.vdot(left, image_of_right)

    return conjugate_gradients(
        product,
        right,
        tolerance=solver.tolerance,
        max_steps=solver.max_steps,
        inner=inner,
    )
