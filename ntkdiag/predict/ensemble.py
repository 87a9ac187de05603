"""Mean and covariance of the trained linear model over initialisations."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors
from ntkdiag.kernel.operand import KernelLike, is_concrete
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.predict.closed_form import assemble, modes_of
from ntkdiag.predict.laws import Descent, Flow, Law
from ntkdiag.predict.matrix_function import Modes, apply
from ntkdiag.predict.problem import Problem, read_problem
from ntkdiag.predict.threshold import stability_threshold, warn_above_critical
from ntkdiag.scalars import Number, require_at_least_zero, require_positive


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["train", "test_train", "test"], meta_fields=[]
)
@dataclasses.dataclass(frozen=True, eq=False)
class Prior:
    """Covariance of the outputs at initialisation.

    Attributes:
        train: `[n o n o]` beside a full kernel, `[n n]` for each output beside a reduced one.
        test_train: `[m o n o]` or `[m n]`; None without test examples.
        test: `[m o m o]` or `[m m]`; None without test examples.
    """

    train: Any
    test_train: Any = None
    test: Any = None

    @classmethod
    def of_samples(
        cls, train: jax.typing.ArrayLike, test: jax.typing.ArrayLike | None = None
    ) -> "Prior":
        """The covariance of outputs at several initialisations, beside a full kernel.

        Cost: O(S (NC)^2).

        Args:
            train: `[s n o]` outputs of s networks.
            test: `[s m o]` of the same networks, or None.

        Returns:
            The prior; its rank is at most s - 1.

        Raises:
            InvalidInputError: When there are fewer than two networks, or shapes do not fit.
        """
        x = np.asarray(train, np.float64)
        if x.ndim != 3 or len(x) < 2 or (test is not None and np.shape(test)[:1] != x.shape[:1]):
            raise errors.InvalidInputError(
                expected="outputs [s n o] of two networks at least, and [s m o] of the same ones",
                got=f"shapes {x.shape}" + ("" if test is None else f" and {np.shape(test)}"),
                do="Stack the outputs of every network along a first axis.",
            )
        x = x - x.mean(axis=0)
        cover = lambda a, b: np.einsum("sno,smp->nomp", a, b) / (len(a) - 1)
        if test is None:
            return cls(cover(x, x))
        z = np.asarray(test, np.float64)
        z = z - z.mean(axis=0)
        return cls(cover(x, x), cover(z, x), cover(z, z))


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["train", "test", "covariance", "covariance_test"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Ensemble:
    """Trained linear models, over initialisations.

    Attributes:
        train: `[... n o]` mean on the training examples.
        test: `[... m o]` mean on the test examples, or None.
        covariance: `[... n o n o]`, or `[... n n]` for each output beside a reduced kernel.
        covariance_test: Likewise on the test examples, or None.
    """

    train: Any
    test: Any
    covariance: Any
    covariance_test: Any


@errors.public
@keeps_float64
def over_initializations(
    kernel: KernelLike,
    y: jax.typing.ArrayLike,
    time: Any = jnp.inf,
    *,
    prior: Prior,
    kernel_test: KernelLike | None = None,
    f0: jax.typing.ArrayLike | None = None,
    f0_test: jax.typing.ArrayLike | None = None,
    learning_rate: Number | None = None,
    ridge: Number = 0.0,
    loss_denominator: Number | None = None,
) -> Ensemble:
    """Mean and covariance of the linearized model after training from random initial outputs, the kernel fixed.

    f_t(x) = f_0(x) - Theta(x, X) psi_t(Theta) (f_0(X) - y) is linear in f_0. With S the covariance of f_0 and
    B = Theta(x, X) psi_t the covariance is S(x, x) - B S(X, x) - S(x, X) B^T + B S(X, X) B^T. For wide networks S is
    the NNGP kernel and Theta the same for all of them.
    Cost: one eigendecomposition, and O((NC)^3) per time.
    Source: Lee et al. 2019 (arXiv 1902.06720), eqs. 13 to 15.

    Args:
        kernel: As for `gradient_flow`, an array or `Kernel`.
        y: As for `gradient_flow`.
        time: As for `gradient_flow`; with a learning rate, steps as for `gradient_descent`.
        prior: Covariance of f_0, laid out like the kernels.
        kernel_test: Test by train.
        f0: Mean of f_0 on the training examples; None for 0.
        f0_test: Mean of f_0 on the test examples; None for 0.
        learning_rate: None for gradient flow.
        ridge: As for `gradient_flow`, to each network's own initial parameters.
        loss_denominator: As for `gradient_flow`.

    Returns:
        Means and covariances with the axes of `time` first.

    Raises:
        InvalidInputError: As `gradient_flow`, or when the prior does not fit the kernels.
    """
    require_at_least_zero(ridge, "ridge")
    require_at_least_zero(jnp.asarray(time, jnp.result_type(float)), "time", many=True)
    problem = read_problem(
        kernel,
        y,
        kernel_test=kernel_test,
        f0=f0,
        f0_test=f0_test,
        origin=None,
        loss_denominator=loss_denominator,
    )
    modes = modes_of(problem)
    times = jnp.asarray(time, problem.kernel.dtype)
    law = _law(problem, modes, times.reshape(-1), learning_rate, ridge)
    mean = assemble(problem, modes, law, times.shape)
    covariances = _covariances(problem, modes, law, *_read_prior(prior, problem))
    shape, shape_test = (_twice(s, problem) for s in (problem.shape, problem.shape_test))
    train = covariances[0].reshape(*times.shape, *shape)
    test = None if covariances[1] is None else covariances[1].reshape(*times.shape, *shape_test)
    return Ensemble(mean.train, mean.test, train, test)


def _law(
    problem: Problem, modes: Modes, times: jax.Array, learning_rate: Number | None, ridge: Number
) -> Law:
    if learning_rate is None:
        return Flow(times / problem.denominator, ridge)
    require_positive(learning_rate, "learning_rate")
    if is_concrete(times) and not np.all(np.isinf(times) | (times == np.floor(times))):
        raise errors.InvalidInputError(
            expected="integer steps beside `learning_rate`", got=f"{times}", do="Round them."
        )
    decay = ridge / problem.denominator
    warn_above_critical(
        learning_rate, modes.values[-1], problem.denominator, stability_threshold(), decay
    )
    return Descent(times, learning_rate / problem.denominator, ridge)


@jax.jit
def _covariances(
    problem: Problem, modes: Modes, law: Law, train: Any, test_train: Any, test: Any
) -> tuple[jax.Array, jax.Array | None]:
    of_kernel = lambda profile, b: apply(profile, problem.kernel, modes, law, b)
    left = of_kernel(
        _left, jnp.eye(len(train), dtype=train.dtype)
    )  # [T k k], what is left of f_0 on the training set
    covariance = left @ train @ left
    if problem.cross is None or test is None:
        return covariance, None
    reach = jnp.swapaxes(of_kernel(_response, problem.cross.T), 1, 2)  # B, [T m k]
    mixed = reach @ test_train.T
    spread = reach @ train @ jnp.swapaxes(reach, 1, 2)
    return covariance, test - mixed - jnp.swapaxes(mixed, 1, 2) + spread


def _left(law: Law, values: jax.Array, floor: jax.Array) -> jax.Array:
    return 1.0 - values * _response(law, values, floor)


def _response(law: Law, values: jax.Array, floor: jax.Array) -> jax.Array:
    return law.responses(values, floor)[0]


def _read_prior(prior: Prior, problem: Problem) -> tuple[Any, Any, Any]:
    k = problem.kernel.shape[0]
    m = None if problem.cross is None else problem.cross.shape[0]
    found = []
    own, theirs = (
        (problem.shape, problem.shape_test)
        if problem.full
        else (problem.shape[:1], problem.shape_test[:1])
    )
    bare = lambda shape: tuple(size for size in shape if size != 1)
    for name, rows, columns, axes in (
        ("train", k, k, (*own, *own)),
        ("test_train", m, k, (*theirs, *own)),
        ("test", m, m, (*theirs, *theirs)),
    ):
        value = getattr(prior, name)
        if rows is None or columns is None:
            found.append(None)
            continue
        fits = value is not None and bare(np.shape(value)) in (bare((rows, columns)), bare(axes))
        if not fits or (is_concrete(value) and not np.isfinite(np.asarray(value)).all()):
            raise errors.InvalidInputError(
                expected=f"`prior.{name}` of shape {axes} or {(rows, columns)}, finite",
                got="None"
                if value is None
                else f"shape {np.shape(value)}" + (", NaN or Inf in it" if fits else ""),
                do="Compute it for the same examples and outputs; beside a reduced kernel it is [n n] for each output.",
            )
        found.append(jnp.asarray(value, problem.kernel.dtype).reshape(rows, columns))
    return found[0], found[1], found[2]


def _twice(shape: tuple[int, ...], problem: Problem) -> tuple[int, ...]:
    if not shape:
        return ()
    return (*shape, *shape) if problem.full else (shape[0], shape[0])
