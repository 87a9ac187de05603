"""Mean and covariance of the trained linear model over initialisations.

Trained outputs are affine in the initial ones: with X the training examples, psi_t(lambda) how far
training has brought a mode of the kernel (`spectral_filters`), and B = Theta(x, X) psi_t(Theta),

    f_t(x) = f_0(x) - B (f_0(X) - y).

So the mean of f_0 gives that of f_t, and the covariance S of f_0 gives

    S(x, x) - B S(X, x) - S(x, X) B^T + B S(X, X) B^T,

which on the training set is A S(X, X) A with A = 1 - Theta psi_t(Theta).
"""

import dataclasses
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from ntkdiag import display, errors
from ntkdiag.arrays import as_array
from ntkdiag.descent import DescentLike
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.kernel_argument import KernelLike
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.losses import MSE
from ntkdiag.predict.closed_form import assemble, modes_of
from ntkdiag.predict.matrix_function import Eigenmodes, Profile, apply
from ntkdiag.predict.mse import SquaredError, Times, descent_law, read_squared_error
from ntkdiag.predict.problem import Problem, read_problem
from ntkdiag.predict.spectral_filters import FlowLaw, Law
from ntkdiag.predict.update_rule import read_rule, warn_above_critical
from ntkdiag.pytree_dataclass import pytree
from ntkdiag.scalars import Number, is_concrete, require_at_least_zero

Covariance: TypeAlias = Kernel | jax.typing.ArrayLike  # [n o m p], [n m] or [(n o) (m p)]
# Of the training examples; of these, of test by training examples, and of the test examples.
Prior: TypeAlias = Covariance | tuple[Covariance, Covariance, Covariance]


@pytree("train", "test", "covariance", "covariance_test")
@dataclasses.dataclass(frozen=True, eq=False)
class Ensemble:
    """Trained linear models, over initialisations.

    Attributes:
        train: `[... n o]` mean on the training examples.
        test: `[... m o]` mean on the test examples, or None.
        covariance: `[... n o n o]`, or `[... n n]` for each output beside a reduced kernel.
        covariance_test: Likewise on the test examples, or None.
    """

    train: Float[Array, "..."]
    test: Float[Array, "..."] | None
    covariance: Float[Array, "..."]
    covariance_test: Float[Array, "..."] | None

    def to_dict(self) -> dict[str, display.PlainValue]:
        """Means and covariances as plain JSON values."""
        return display.plain({f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    def __repr__(self) -> str:
        test = "" if self.test is None else f", test {list(np.shape(self.test))}"
        return f"Ensemble(train {list(np.shape(self.train))}{test})"

    def _repr_html_(self) -> str:
        rows = [
            ("train", f"{list(np.shape(self.train))}", "shape of the mean"),
            ("covariance", f"{list(np.shape(self.covariance))}", "over initialisations"),
        ]
        if self.test is not None and self.covariance_test is not None:
            shape = f"{list(np.shape(self.covariance_test))}"
            rows.append(("test", f"{list(np.shape(self.test))}", "shape of the mean"))
            rows.append(("covariance_test", shape, "over initialisations"))
        return display.html_table("Linear models over initialisations", rows)


@errors.public
@keeps_float64
def over_initializations(
    kernel: KernelLike,
    y: jax.typing.ArrayLike,
    time: Times = jnp.inf,
    *,
    prior: Prior,
    kernel_test: KernelLike | None = None,
    f0: jax.typing.ArrayLike | None = None,
    f0_test: jax.typing.ArrayLike | None = None,
    descent: DescentLike | None = None,
    ridge: Number = 0.0,
    loss: SquaredError = "mse",
) -> Ensemble:
    """Mean and covariance of the linearized model after training from random initial outputs.

    The kernel is fixed: f_t(x) = f_0(x) - Theta(x, X) psi_t(Theta) (f_0(X) - y) is linear in f_0.
    With S the covariance of f_0 and B = Theta(x, X) psi_t the covariance is
    S(x, x) - B S(X, x) - S(x, X) B^T + B S(X, X) B^T. For wide networks S is the NNGP kernel and
    Theta the same for all of them.

    Cost: one eigendecomposition, and O((NC)^3) per time.

    Source: Lee et al. 2019 (arXiv 1902.06720), eqs. 13 to 15.

    Args:
        kernel: As for `gradient_flow`, without operators.
        y: As for `gradient_flow`.
        time: As for `gradient_flow`; with `descent`, numbers of steps as for `gradient_descent`.
        prior: Covariance of f_0 on the training examples, laid out like the kernel: `[n o n o]`
            beside a full one, `[n n]` for each output beside a reduced one, or as a matrix
            `[(n o) (n o)]`, as `np.cov` of samples makes it. Beside `kernel_test` the three
            (train, test by train, test).
        kernel_test: Test by train.
        f0: Mean of f_0, the outputs on the training examples; None for 0.
        f0_test: Mean of f_0, the outputs on the test examples; None for 0.
        descent: As for `gradient_descent`; None for gradient flow.
        ridge: As for `gradient_flow`, one number, to each network's own initial parameters.
        loss: As for `gradient_flow`.

    Returns:
        Means and covariances with the axes of `time` first.

    Raises:
        InvalidInputError: As `gradient_flow`, or when the prior does not fit the kernels.
    """
    require_at_least_zero(ridge, "ridge")
    require_at_least_zero(jnp.asarray(time, jnp.result_type(float)), "time", many=True)
    squared_error: MSE = read_squared_error(loss)
    problem = read_problem(
        kernel,
        y,
        kernel_test=kernel_test,
        f0=f0,
        f0_test=f0_test,
        loss=squared_error,
    )
    prior_matrices = _read_prior(prior, problem)
    modes = modes_of(problem, kernel)
    times = jnp.asarray(time, problem.kernel.dtype)
    law = _law(problem, modes, times, descent, ridge)
    # The mean of f_t is f_t of the mean: `problem` has the mean of f_0.
    mean = assemble(problem, modes, law, times.shape)
    train, test = _covariances(problem, modes, law, prior_matrices)
    train = train.reshape(*times.shape, *_twice(problem.shape, problem.full))  # [T k k] -> [...]
    if test is not None:
        test = test.reshape(*times.shape, *_twice(problem.shape_test, problem.full))
    return Ensemble(mean.train, mean.test, train, test)


def _law(
    problem: Problem,
    modes: Eigenmodes,
    times: Float[Array, "..."],
    descent: DescentLike | None,
    ridge: Number,
) -> Law:
    """How modes are learned: by flow, or by descent with its warning."""
    if descent is None:
        # A flow has one ridge for each time.
        ridges = jnp.broadcast_to(jnp.asarray(ridge, times.dtype), (times.size,))
        return FlowLaw(times.reshape(-1) / problem.denominator, ridges)
    rule = read_rule(descent)
    if is_concrete(times) and not np.all(np.isinf(times) | (times == np.floor(times))):
        raise errors.InvalidInputError(
            expected="integer steps beside `descent`", got=f"{times}", do="Round them."
        )
    warn_above_critical(rule, (modes.values[0] + ridge) / problem.denominator)
    return descent_law(problem, rule, times, ridge)


class _PriorMatrices(NamedTuple):
    """The prior as matrices; None without test examples."""

    train: Float[Array, "k k"]
    test_train: Float[Array, "l k"] | None
    test: Float[Array, "l l"] | None


@jax.jit
def _covariances(
    problem: Problem, modes: Eigenmodes, law: Law, prior: _PriorMatrices
) -> tuple[Float[Array, "T k k"], Float[Array, "T l l"] | None]:
    """Covariances of the trained outputs on both sets."""

    def of_kernel(profile: Profile, columns: Float[Array, "k c"]) -> Float[Array, "T k c"]:
        return apply(profile, problem.kernel, modes, law, columns)

    # A, what is left of f_0 on the training set: [T k k]
    left = of_kernel(_left, jnp.eye(len(prior.train), dtype=prior.train.dtype))
    covariance = left @ prior.train @ left  # A S(X, X) A, and A is symmetric
    if problem.cross is None or prior.test is None or prior.test_train is None:
        return covariance, None
    # B = Theta(x, X) psi: [T k l] -> [T l k]
    reach = jnp.swapaxes(of_kernel(_response, problem.cross.T), 1, 2)
    mixed = reach @ prior.test_train.T  # B S(X, x), [T l l]
    spread = reach @ prior.train @ jnp.swapaxes(reach, 1, 2)  # B S(X, X) B^T
    covariance_test = prior.test - mixed - jnp.swapaxes(mixed, 1, 2) + spread
    return covariance, covariance_test


def _left(law: Law, values: Float[Array, " k"], floor: Float[Array, ""]) -> Float[Array, "T k"]:
    """1 - lambda psi, what is left of a mode."""
    return 1.0 - values * _response(law, values, floor)


def _response(law: Law, values: Float[Array, " k"], floor: Float[Array, ""]) -> Float[Array, "T k"]:
    """psi, how far a mode has answered the residual, in units of 1 / lambda."""
    return law.response(values, floor)


def _read_prior(prior: Prior, problem: Problem) -> _PriorMatrices:
    """The prior as matrices `[k k]`, `[l k]` and `[l l]`, refused where it does not fit."""
    # A full kernel couples outputs: axes of examples and outputs. A reduced one has examples alone.
    axes = problem.shape if problem.full else problem.shape[:1]
    axes_test = problem.shape_test if problem.full else problem.shape_test[:1]
    dtype = problem.kernel.dtype
    k = problem.kernel.shape[0]
    of_train, of_test_train, of_test = _parts(prior)
    train = _read_covariance(of_train, "train", (*axes, *axes), (k, k), dtype)
    if problem.cross is None:
        return _PriorMatrices(train, None, None)
    rows = problem.cross.shape[0]
    test_train = _read_covariance(
        of_test_train, "test by train", (*axes_test, *axes), (rows, k), dtype
    )
    test = _read_covariance(of_test, "test", (*axes_test, *axes_test), (rows, rows), dtype)
    return _PriorMatrices(train, test_train, test)


def _parts(prior: Prior) -> tuple[Covariance, Covariance | None, Covariance | None]:
    """The covariances of both sets; None for the test examples where there is one alone."""
    if not isinstance(prior, tuple):
        return prior, None, None
    if len(prior) != 3:
        raise errors.InvalidInputError(
            expected="`prior` as the covariance on the training examples, or as three: train, "
            "test by train, test",
            got=f"{len(prior)} of them",
            do="Pass prior=(train, test_train, test).",
        )
    return prior


def _read_covariance(
    value: Covariance | None,
    name: str,
    axes: tuple[int, ...],
    matrix_shape: tuple[int, int],
    dtype: DTypeLike,
) -> Float[Array, "l k"]:
    """One covariance as a matrix; axes of length 1 may be missing."""
    if isinstance(value, Kernel):
        value = value.array
    if value is not None:
        value = as_array(value, "prior")
    shape = None if value is None else value.shape
    accepted = (_without_ones(matrix_shape), _without_ones(axes))
    if shape is None or _without_ones(shape) not in accepted:
        got = "None" if shape is None else f"shape {shape}"
    elif is_concrete(value) and not np.isfinite(np.asarray(value)).all():
        got = f"shape {shape}, NaN or Inf in it"
    else:
        return jnp.asarray(value, dtype).reshape(matrix_shape)
    raise errors.InvalidInputError(
        expected=f"`prior` of {name} in the shape {axes} or {matrix_shape}, finite",
        got=got,
        do="Compute it for the same examples and outputs; beside a reduced kernel it is [n n] for "
        "each output.",
    )


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without axes of length 1."""
    return tuple(size for size in shape if size != 1)


def _twice(shape: tuple[int, ...], full: bool) -> tuple[int, ...]:
    """The axes of a covariance of outputs of a shape; of one output beside a reduced kernel."""
    if not full:
        shape = shape[:1]
    return (*shape, *shape)
