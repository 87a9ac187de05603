"""What fitting the linearized model without a training example does to test examples, in two ways.

1. With the kernel of all training examples and its inverse on the host, all of them at once.
2. By products with the kernel, which is never formed: one fit for each example that is left out.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float64, Int, PyTree

from ntkdiag import errors
from ntkdiag.gradients.refitting import FunctionSpaceLoss, fit
from ntkdiag.gradients.refitting_by_products import problem_by_products
from ntkdiag.kernel.decomposition import spectrum
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.matrix_free.operator import NTKOperator
from ntkdiag.matrix_free.solvers import CG
from ntkdiag.matrix_free.top_spectrum import top_spectrum
from ntkdiag.memory import host_memory, require_free

# Arrays of the host that are alive at once: the kernel, Newton's matrix, its inverse and a factor
# of it, [(n o) (n o)]; weights without each example, their outputs and steps, [(n o) n].
_FLOAT64_MATRICES = 4
_FLOAT64_COLUMNS = 4
# The largest eigenvalue says what a ridge is compared with: three digits suffice.
_TOLERANCE_OF_TOP = 1e-3


@dataclasses.dataclass(frozen=True, eq=False)
class LeavingOut:
    """What is fitted, and what is left out.

    Attributes:
        operator: K of the training examples, with the function and its parameters.
        loss: Of the training examples.
        x_test: The test examples.
        ridge: The ridge.
        left_out: Numbers of training examples.
    """

    operator: NTKOperator
    loss: FunctionSpaceLoss
    x_test: PyTree
    ridge: float
    left_out: Int[np.ndarray, " k"]


class Refitted(NamedTuple):
    """The model fitted with all training examples, and without some of them.

    Attributes:
        weights: `[(n o)]`, with all.
        image: `[(test o)]`, K_test alpha.
        changes: `[k (test o)]`, how that changes without each.
        residual: The largest relative residual without one.
    """

    weights: Float64[np.ndarray, " rows"]
    image: Float64[np.ndarray, " test"]
    changes: Float64[np.ndarray, "k test"]
    residual: float


def by_kernel(problem: LeavingOut, kernel_of: Callable[..., Kernel]) -> Refitted:
    """1. Both from the kernel and its inverse; `kernel_of` gives the full one of some examples.

    Raises:
        MemoryBudgetError: They do not fit on the host.
        InvalidInputError: The ridge is below the resolution of the kernel.
    """
    operator = problem.operator
    _require_room(operator)
    full = kernel_of(operator.x)
    _require_resolved(problem.ridge, full.noise_floor * float(spectrum(full).largest))
    to_test = np.asarray(kernel_of(problem.x_test, operator.x).matrix, np.float64)

    start = np.asarray(operator.outputs()).reshape(-1)
    fitted = fit(np.asarray(full.matrix), start, problem.loss, problem.ridge)
    changes = (to_test @ (fitted.left_out[:, problem.left_out] - fitted.weights[:, None])).T
    return Refitted(fitted.weights, to_test @ fitted.weights, changes, 0.0)


def by_products(problem: LeavingOut, solver: CG) -> Refitted:
    """2. Both from products with the kernel, one example after the other.

    Raises:
        InvalidInputError: It is another solver, or the ridge is below the resolution of the kernel.
    """
    _require_solver(solver)
    operator = problem.operator
    top = top_spectrum(operator, 1, tolerance=_TOLERANCE_OF_TOP)
    _require_resolved(problem.ridge, float(top.noise_floor))
    to_test = NTKOperator(
        operator.f,
        operator.params,
        problem.x_test,
        operator.x,
        batch_size=operator.batch_size,
        check=False,
    )

    def on_test(weights: jax.Array) -> Float64[np.ndarray, " test"]:
        return np.asarray(to_test.mv(weights), np.float64).reshape(-1)

    refits = problem_by_products(operator, problem.loss, problem.ridge, solver)
    everything = refits.fit().point
    left_over = refits.left_over(everything)
    changes, residuals = [], []
    for example in problem.left_out.tolist():
        refit = refits.without(example, everything, left_over)
        changes.append(on_test(refit.point.weights))
        residuals.append(refit.residual)
    weights = np.asarray(everything.weights, np.float64).reshape(-1)
    return Refitted(weights, on_test(everything.weights), np.stack(changes), max(residuals))


def _require_solver(solver: CG) -> None:
    """Refuse solvers that do not solve for weights on the examples."""
    if isinstance(solver, CG) and solver.space == "function" and not solver.rank:
        return
    raise errors.InvalidInputError(
        expected='solver=CG(), with space="function" and without a rank',
        got=repr(solver),
        do="What is left out is a row of the kernel: the weights on the examples are solved for.",
    )


def _require_room(operator: NTKOperator) -> None:
    """Refuse a kernel that does not fit on the host beside what is made of it."""
    rows, _ = operator.shape
    n = operator.n_examples
    itemsize = np.dtype(operator.dtype).itemsize
    needed = rows**2 * (itemsize + _FLOAT64_MATRICES * 8) + rows * n * _FLOAT64_COLUMNS * 8
    require_free(
        needed,
        f"the kernel of {rows} rows and its inverse",
        host_memory,
        "Pass solver=ntkdiag.matrix_free.CG(), which solves by products and never forms it, with "
        "left_out= the examples that matter: each is a fit by itself.",
    )


def _require_resolved(ridge: float, resolution: float) -> None:
    """Refuse a ridge that is lost in the rounding of the kernel."""
    if ridge <= resolution:
        raise errors.InvalidInputError(
            expected=f"a `ridge` above the resolution of the kernel, {resolution:.3g}",
            got=f"{ridge:.3g}",
            do="Below it, what is fitted is rounding: raise the ridge, or compute in float64.",
        )
