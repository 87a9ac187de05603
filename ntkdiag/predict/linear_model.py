"""The linearized model as a function of weights on the training rows: by a matrix, or by products alone."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors
from ntkdiag.kernel.operand import KernelLike, is_concrete
from ntkdiag.matrix_free.operator import NTKOperator, require_outputs, require_square
from ntkdiag.predict.origin import Origin
from ntkdiag.predict.prediction import Prediction
from ntkdiag.predict.problem import read_problem, require_origin
from ntkdiag.scalars import Number, require_at_least_zero


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["kernel", "start", "pull", "cross", "start_test", "pull_test"],
    meta_fields=["shape", "shape_test"],
)
@dataclasses.dataclass(frozen=True)
class LinearModel:
    """f = f_0 + (a - 1) J theta_0 + K w at theta = a theta_0 + J^T w.

    Attributes:
        kernel: Matrix or `NTKOperator`.
        start: f_0, in the layout of w.
        pull: J theta_0 likewise, or None.
        cross: Test by train, or None.
        start_test: f_0 on the test examples, or None.
        pull_test: J theta_0 there, or None.
        shape: Shape of the training outputs.
        shape_test: Shape of the test outputs.
    """

    kernel: Any
    start: jax.Array
    pull: jax.Array | None
    cross: Any
    start_test: jax.Array | None
    pull_test: jax.Array | None
    shape: tuple[int, ...]
    shape_test: tuple[int, ...]

    @property
    def reduces(self) -> bool:
        """Whether the network contains reductions; see `NTKOperator`."""
        return any(getattr(kernel, "reduces", False) for kernel in (self.kernel, self.cross))

    @property
    def closes_over_explicit(self) -> bool:
        """Whether the network closes over an array with explicit axes; see `NTKOperator`."""
        return any(
            getattr(kernel, "closes_over_explicit", False) for kernel in (self.kernel, self.cross)
        )

    def train(self, weights: jax.Array, kept: jax.Array) -> jax.Array:
        """Outputs on the training examples at weights w and a = `kept`."""
        outputs = self.start + self.kernel @ weights
        outputs = outputs if self.pull is None else outputs + (kept - 1.0) * self.pull
        return outputs.reshape(self.shape)

    def test(self, weights: jax.Array, kept: jax.Array) -> jax.Array | None:
        """Outputs on the test examples."""
        if self.cross is None or self.start_test is None:
            return None
        outputs = self.start_test + self.cross @ weights
        outputs = outputs if self.pull_test is None else outputs + (kept - 1.0) * self.pull_test
        return outputs.reshape(self.shape_test)

    def follow(self, weights: jax.Array, kept: jax.Array, axes: tuple[int, ...]) -> Prediction:
        """Outputs along a path of weights `[T ...]`, with the axes of the time in front."""
        pairs = list(zip(weights, kept, strict=True))
        train = jnp.stack([self.train(w, a) for w, a in pairs]).reshape(*axes, *self.shape)
        test = [outputs for outputs in (self.test(w, a) for w, a in pairs) if outputs is not None]
        return Prediction(train, jnp.stack(test).reshape(*axes, *self.shape_test) if test else None)


def read_model(
    kernel: KernelLike | NTKOperator,
    f0: jax.typing.ArrayLike | None,
    kernel_test: KernelLike | NTKOperator | None,
    f0_test: jax.typing.ArrayLike | None,
    origin: Origin | None,
) -> LinearModel:
    """Check the arguments of a prediction for any loss.

    Cost: one pass over a kernel; a forward pass where an operator comes without outputs.

    Args:
        kernel: Train by train.
        f0: f_0; None only for an operator, which computes it.
        kernel_test: Test by train, or None.
        f0_test: f_0 on the test examples; None for 0, or computed by an operator.
        origin: J theta_0, or None.

    Returns:
        The model.

    Raises:
        InvalidInputError: When arguments are not finite or do not fit each other.
    """
    if isinstance(kernel, NTKOperator):
        return _read_operators(kernel, f0, kernel_test, f0_test, origin)
    if f0 is None:
        raise errors.InvalidInputError(
            expected="`f0` beside a kernel that is an array",
            got="None",
            do="Pass `f0=f(params, x)`; with NTKOperator(f, params, x) they are computed.",
        )
    # The loss holds its own denominator and labels: D = 1 and y = 0 stand in for them.
    problem = read_problem(
        kernel,
        np.zeros(np.shape(f0), np.float32),
        kernel_test=kernel_test,
        f0=f0,
        f0_test=f0_test,
        origin=origin,
        loss_denominator=1.0,
    )
    parts = (
        problem.kernel,
        problem.start,
        problem.pull,
        problem.cross,
        problem.start_test,
        problem.pull_test,
    )
    return LinearModel(*parts, problem.shape, problem.shape_test)


def _read_operators(
    kernel: NTKOperator, f0: Any, kernel_test: Any, f0_test: Any, origin: Origin | None
) -> LinearModel:
    require_square(kernel)
    rows = (kernel.n_examples, *kernel.output_shape)
    start = require_outputs(kernel, kernel.outputs() if f0 is None else f0, "f0")
    pull = None if origin is None else require_outputs(kernel, origin.train, "origin.train")
    if kernel_test is None:
        return LinearModel(kernel, start, pull, None, None, None, rows, ())
    if not isinstance(kernel_test, NTKOperator) or kernel_test.shape[1] != kernel.shape[0]:
        raise errors.InvalidInputError(
            expected="`kernel_test` as NTKOperator(f, params, x_test, x)",
            got=f"shape {kernel_test.shape}"
            if isinstance(kernel_test, NTKOperator)
            else type(kernel_test).__name__,
            do="Rows are test examples, columns the training examples.",
        )
    require_origin(True, origin)
    theirs = kernel_test.outputs() if f0_test is None else f0_test
    start_test = require_outputs(kernel_test, theirs, "f0_test")
    pull_test = None
    if origin is not None and origin.test is not None:
        pull_test = require_outputs(kernel_test, origin.test, "origin.test")
    lines = (kernel_test.n_examples, *kernel_test.output_shape)
    return LinearModel(kernel, start, pull, kernel_test, start_test, pull_test, rows, lines)


def penalty(damping: Number, weight_decay: Number, origin: Origin | None) -> Number:
    """The coefficient of the one pull there is: to theta_0, or with `origin` to zero.

    Cost: none.

    Args:
        damping: Of 1/2 ||theta - theta_0||^2.
        weight_decay: Of 1/2 ||theta||^2.
        origin: J theta_0, without which nothing can be pulled to zero.

    Returns:
        The coefficient.

    Raises:
        InvalidInputError: One is negative, or it is the wrong one of the two.
    """
    require_at_least_zero(damping, "damping")
    require_at_least_zero(weight_decay, "weight_decay")
    name, idle = ("weight_decay", weight_decay) if origin is None else ("damping", damping)
    if not is_concrete(idle) or idle != 0:
        raise errors.InvalidInputError(
            expected="`weight_decay` with `origin`, or `damping` without",
            got=f"`{name}` {'without' if origin is None else 'with'} `origin`",
            do="Weight decay pulls to zero and needs origin=predict.origin(f, params, x, x_test); damping pulls to the "
            "initial parameters.",
        )
    return damping if origin is None else weight_decay
