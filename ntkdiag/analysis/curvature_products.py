"""The curvature of a loss along the kernel, as products with an operator.

The nonzero eigenvalues of the Gauss-Newton matrix J^T Sigma J / D are those of L^T Theta L / D with
Sigma = L L^T. Lanczos iterations see that matrix by products alone:

    v  ->  L v  ->  Theta L v  ->  L^T Theta L v

Where the loss is not convex in the outputs, Sigma = L S L^T with signs S, they are those of
S L^T Theta L.
"""

import math
from typing import TypeAlias

import numpy as np
from jaxtyping import ArrayLike, Float, PyTree

from ntkdiag import errors, memory
from ntkdiag.arrays import as_array
from ntkdiag.losses import Loss
from ntkdiag.losses.curvature import CurvatureFactor
from ntkdiag.matrix_free import lanczos
from ntkdiag.matrix_free.kernel_products import operator_products
from ntkdiag.matrix_free.lanczos import Vector
from ntkdiag.matrix_free.operator import NTKOperator
from ntkdiag.scalars import Number

Outputs: TypeAlias = Float[ArrayLike, "n *o"]

# Of the residual, relative to the largest eigenvalue: the error of that is about its square.
_TOLERANCE = 1e-5


def largest_of_products(
    operator: NTKOperator, loss: Loss, outputs: Outputs | None, y: PyTree | None
) -> Number:
    """The largest eigenvalue of Sigma Theta / D; outputs that did not come are computed."""
    kernel = operator_products(operator)
    n_examples = kernel.size // math.prod(operator.output_shape)
    shape = (n_examples, *operator.output_shape)
    values: Outputs = np.zeros(shape)  # of which the curvature of squared error does not depend
    if not loss.is_quadratic:
        values = operator.outputs() if outputs is None else as_array(outputs, "outputs")
        require_rows(values.shape, kernel.size)
    factor = CurvatureFactor()
    if not loss.has_unit_curvature(y):
        labels = None if y is None else loss.read(y, shape)
        factor = loss.curvature(values.reshape(shape), labels).on_host()

    def product(v: Vector, /) -> Vector:
        # v -> L v -> Theta L v -> L^T Theta L v
        image = kernel.product(np.asarray(factor.times(v)))
        return np.asarray(factor.transposed_times(image))

    # A basis and its images, in float64 on the host.
    memory.require_free(
        2 * lanczos.LARGEST_BASIS * 8 * kernel.size,
        f"vectors of {kernel.size:,} rows",
        memory.host_memory,
        "Take fewer examples.",
    )
    start = np.random.default_rng(0).normal(size=kernel.size)
    signs = 1.0 if factor.signs is None else np.asarray(factor.signs)
    pair = lanczos.largest_pair(product, start, _TOLERANCE, signs=signs, roundoff=kernel.roundoff)
    if not np.isfinite(pair.values).all():
        raise lanczos.not_finite()
    if not pair.converged.all():
        relative = float(pair.residuals[0] / np.abs(pair.values[0]))
        errors.warn(
            f"{errors.current_call()}: after {pair.products} products the largest eigenvalue "
            f"is known to a residual of {relative:.1g} of itself only.",
            RuntimeWarning,
        )
    return float(pair.values[0]) / loss.denominator_for(shape)


def require_rows(shape: tuple[int, ...], rows: int) -> None:
    """Refuse outputs that are not as many as the kernel has rows."""
    if not shape or math.prod(shape) != rows:
        raise errors.InvalidInputError(
            expected=f"`outputs` [n o] with n o = {rows} rows of the kernel",
            got=f"shape {shape}",
            do="Pass f(params, x) of the same examples as the kernel, and the full kernel.",
        )
