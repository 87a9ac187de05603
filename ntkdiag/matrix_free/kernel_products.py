"""A kernel as products v -> K v on vectors of the host, for iterations that run there in float64.

An `NTKOperator` and a kernel in memory are read alike: their product, their size, and what their
arithmetic can resolve. Products are formed in the precision of the kernel, but at least in float32.
"""

import dataclasses

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.arrays import AnyArray
from ntkdiag.jaxtools.precision import roundoff_of
from ntkdiag.jaxtools.tracing import is_traced
from ntkdiag.kernel.kernel import Convention, Kernel
from ntkdiag.kernel.kernel_argument import (
    KernelLike,
    coarsest,
    kernel_of,
    noise_floor,
    require_symmetric,
    square_matrix,
    unpack,
)
from ntkdiag.matrix_free.lanczos import Product, Vector
from ntkdiag.matrix_free.operator import NTKOperator


@dataclasses.dataclass(frozen=True, eq=False)
class KernelProducts:
    """A kernel as far as its largest eigenvalues need it."""

    product: Product  # v -> K v, on float64 vectors of the host
    size: int  # rows
    kernel: Kernel | AnyArray | None  # the kernel in memory; None for an operator
    convention: Convention | None  # of the kernel; None for a bare array
    roundoff: float  # the largest unit roundoff of all that the kernel went through
    noise_floor: float  # resolution of the eigenvalues, relative to the largest


def operator_products(operator: NTKOperator) -> KernelProducts:
    """Products with an operator; its noise floor is the roundoff of its model, at any size."""
    _require_concrete(operator)
    if not operator.symmetric:
        raise errors.InvalidInputError(
            expected="an operator of examples with themselves",
            got="a cross operator",
            do="Leave out `x2`.",
        )
    # Vectors enter in the precision of the products, and come back to float64.
    dtype = np.float64 if operator.dtype == np.float64 else np.float32

    def product(v: Vector) -> Vector:
        return np.asarray(operator.mv(v.astype(dtype)), np.float64)

    # The model's own arithmetic bounds what can be resolved: it is looked up in a trace of f.
    microbatch = jax.tree.map(lambda leaf: leaf[: operator.batch_size], operator.x)
    convention = Convention(
        reduction="full",
        n_outputs=int(np.prod(operator.output_shape)),
        mode=getattr(operator.f, "mode", "unspecified"),  # `functionalize` notes it on f
        model_roundoff=roundoff_of(operator.f, operator.params, microbatch),
        preconditioner=operator.preconditioner.kind,
    )
    roundoff = convention.coarsest(operator.dtype)
    return KernelProducts(
        product, operator.shape[0], None, convention, roundoff, noise_floor=roundoff
    )


def matrix_products(kernel: KernelLike) -> KernelProducts:
    """Products with a kernel in memory, in its own precision but at least float32."""
    kernel = kernel_of(kernel)
    array, convention, symmetric = unpack(kernel, "kernel")
    _require_concrete(array)
    # Half precision becomes float32, in which products of numpy are fast; the roundoff stays known.
    matrix = np.asarray(square_matrix(array, symmetric))
    matrix = matrix.astype(np.promote_types(matrix.dtype, np.float32), copy=False)
    roundoff = coarsest(array, convention)
    # Lanczos assumes symmetry: without it the results are silently wrong.
    require_symmetric(matrix, roundoff)

    def product(v: Vector) -> Vector:
        return np.asarray(matrix @ v.astype(matrix.dtype), np.float64)

    rows = matrix.shape[0]
    floor = noise_floor(array, convention, rows)
    kept = kernel if isinstance(kernel, Kernel) else array
    return KernelProducts(product, rows, kept, convention, roundoff, noise_floor=floor)


def _require_concrete(arrays: PyTree) -> None:
    """Refuse a kernel whose values are not known: the iterations run on the host."""
    if is_traced(arrays):
        raise errors.InvalidInputError(
            expected="a kernel with values",
            got="one inside jax.jit, jax.grad or jax.vmap",
            do="Call it outside; inside, decompose a kernel in memory with `spectrum`.",
        )
