"""The linearized model as a function of weights on the training rows.

At parameters theta = theta_0 + J^T w the outputs of the linearized model are f = f_0 + K w on the
training examples, and likewise with the rows of the test examples. Every gradient of a loss of the
outputs is J^T times something, so that training moves w alone. All that is asked of K is a product:
it may be a matrix or an `NTKOperator`.
"""

import dataclasses
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ntkdiag import errors
from ntkdiag.arrays import as_array
from ntkdiag.kernel.kernel_argument import KernelLike
from ntkdiag.losses import MSE
from ntkdiag.matrix_free.operator import NTKOperator, require_outputs, require_square
from ntkdiag.predict.prediction import Prediction
from ntkdiag.predict.problem import read_problem
from ntkdiag.pytree_dataclass import pytree

Rows: TypeAlias = Float[Array, "..."]  # [k c] beside a matrix, [n ...] beside an operator
Product: TypeAlias = Float[Array, "k k"] | NTKOperator
Cross: TypeAlias = Float[Array, "l k"] | NTKOperator


@pytree("kernel", "start", "cross", "start_test")
@dataclasses.dataclass(frozen=True)
class LinearModel:
    """f = f_0 + K w."""

    kernel: Product  # k, a matrix or an `NTKOperator`
    start: Rows  # f_0, in the layout of w
    cross: Cross | None  # k of test by training examples, or None
    start_test: Rows | None  # f_0 on the test examples, or None
    shape: tuple[int, ...]  # of the training outputs
    shape_test: tuple[int, ...]  # of the test outputs

    @property
    def reduces(self) -> bool:
        """Whether the network contains reductions; see `NTKOperator`."""
        return any(operator.reduces for operator in self._operators())

    def _operators(self) -> list[NTKOperator]:
        """Those of the two kernels that are operators."""
        return [kernel for kernel in (self.kernel, self.cross) if isinstance(kernel, NTKOperator)]

    def train(self, weights: Rows) -> Rows:
        """Outputs on the training examples at weights w."""
        return (self.start + self.kernel @ weights).reshape(self.shape)

    def test(self, weights: Rows) -> Rows | None:
        """Outputs on the test examples, or None."""
        if self.cross is None or self.start_test is None:
            return None
        return (self.start_test + self.cross @ weights).reshape(self.shape_test)

    def follow(self, weights: Rows, axes: tuple[int, ...]) -> Prediction:
        """Outputs along a path of weights `[T ...]`, with the axes of the time in front."""
        train = jnp.stack([self.train(w) for w in weights])
        train = train.reshape(*axes, *self.shape)  # [T n o] -> [... n o]
        if self.cross is None:
            return Prediction(train)
        tests = [self.test(w) for w in weights]
        test = jnp.stack([outputs for outputs in tests if outputs is not None])  # [T m o]
        return Prediction(train, test.reshape(*axes, *self.shape_test))


def read_model(
    kernel: KernelLike | NTKOperator,
    f0: jax.typing.ArrayLike | None,
    kernel_test: KernelLike | NTKOperator | None,
    f0_test: jax.typing.ArrayLike | None,
) -> LinearModel:
    """The model from the arguments of a prediction for any loss."""
    if isinstance(kernel, NTKOperator):
        return _read_operators(kernel, f0, kernel_test, f0_test)
    if f0 is None:
        raise errors.InvalidInputError(
            expected="`f0` beside a kernel that is an array",
            got="None",
            do="Pass `f0=f(params, x)`; with NTKOperator(f, params, x) they are computed.",
        )
    f0 = as_array(f0, "f0")
    # The loss knows its labels and denominator: y = 0 and D = 1 stand in for them here.
    problem = read_problem(
        kernel,
        np.zeros(f0.shape, np.float32),
        kernel_test=kernel_test,
        f0=f0,
        f0_test=f0_test,
        loss=MSE(denominator=1.0),
    )
    return LinearModel(
        kernel=problem.kernel,
        start=problem.start,
        cross=problem.cross,
        start_test=problem.start_test,
        shape=problem.shape,
        shape_test=problem.shape_test,
    )


def _read_operators(
    kernel: NTKOperator,
    f0: jax.typing.ArrayLike | None,
    kernel_test: KernelLike | NTKOperator | None,
    f0_test: jax.typing.ArrayLike | None,
) -> LinearModel:
    """The model of operators, which compute the outputs that are not passed."""
    # The training set.
    require_square(kernel)
    cross = _read_cross_operator(kernel, kernel_test)
    start = require_outputs(kernel, kernel.outputs() if f0 is None else f0, "f0")
    shape = (kernel.n_examples, *kernel.output_shape)
    if cross is None:
        return LinearModel(kernel, start, None, None, shape, ())

    # The test set.
    start_test = require_outputs(cross, cross.outputs() if f0_test is None else f0_test, "f0_test")
    shape_test = (cross.n_examples, *cross.output_shape)
    return LinearModel(kernel, start, cross, start_test, shape, shape_test)


def _read_cross_operator(
    kernel: NTKOperator, kernel_test: KernelLike | NTKOperator | None
) -> NTKOperator | None:
    """The operator of test by training examples, refused where it does not fit."""
    if kernel_test is None:
        return None
    is_operator = isinstance(kernel_test, NTKOperator)
    if is_operator and kernel_test.shape[1] == kernel.shape[0]:
        return kernel_test
    raise errors.InvalidInputError(
        expected="`kernel_test` as NTKOperator(f, params, x_test, x)",
        got=f"shape {kernel_test.shape}" if is_operator else type(kernel_test).__name__,
        do="Rows are test examples, columns the training examples.",
    )
