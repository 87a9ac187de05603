"""From the eigenmodes of the training kernel and how far each is learned, to outputs."""

import functools

import jax
import jax.numpy as jnp

from ntkdiag import errors
from ntkdiag.kernel.operand import is_concrete
from ntkdiag.predict.laws import Law
from ntkdiag.predict.matrix_function import Modes, apply
from ntkdiag.predict.prediction import Prediction
from ntkdiag.predict.problem import Problem


def modes_of(problem: Problem) -> Modes:
    """Decompose the training kernel.

    Cost: one eigendecomposition, O((NC)^3).

    Args:
        problem: The problem.

    Returns:
        The modes; NaN throughout when eigenvalues are below minus the noise floor and it is too late to refuse.

    Raises:
        InvalidInputError: When eigenvalues are below minus the noise floor.
    """
    modes, negative = _decompose(problem.kernel, problem.noise_floor)
    if is_concrete(negative) and negative > 0:
        raise errors.InvalidInputError(
            expected="a kernel J J^T, which has no negative eigenvalues",
            got=f"{int(negative)} eigenvalues below the noise floor {-float(modes.floor):.2g}",
            do="Compute all rows in one call and one batch size; see `health(kernel)`.",
        )
    return modes


@functools.partial(jax.jit, static_argnames="axes")
def assemble(problem: Problem, modes: Modes, law: Law, axes: tuple[int, ...]) -> Prediction:
    """Put the outputs together.

    With c the weights on the training rows of J, theta_t = a theta_0 + J^T c and
    c = -psi(Theta) (f_0 - J theta_0 - y) - chi(Theta) J theta_0. Without decay to zero a = 1 and J theta_0 drops out.
    Cost: O((NC)^2) per time.

    Args:
        problem: The problem.
        modes: Its modes.
        law: How modes are learned.
        axes: Shape of the times, in front of the outputs.

    Returns:
        The prediction.
    """
    of_kernel = lambda profile, b: jnp.split(apply(profile, problem.kernel, modes, law, b), 2)
    shrink = law.decay()[:, None, None] - 1.0
    source = problem.residual if problem.pull is None else problem.residual - problem.pull
    learned, weights = of_kernel(_of_source, -source)
    train = problem.start + learned
    if problem.pull is not None:
        kept, more = of_kernel(_of_pull, -problem.pull)
        train, weights = train + kept + shrink * problem.pull, weights + more
    test = None
    if problem.cross is not None and problem.start_test is not None:
        test = problem.start_test + problem.cross @ weights
        test = test if problem.pull_test is None else test + shrink * problem.pull_test
        test = test.reshape(*axes, *problem.shape_test)
    vectors = jax.lax.stop_gradient(modes.vectors)
    unresolved = modes.values <= modes.floor
    left = jnp.where(unresolved[:, None], vectors.T @ problem.residual, 0.0)
    unlearned = jnp.sqrt(jnp.sum(left**2) / left.size)
    return Prediction(train.reshape(*axes, *problem.shape), test, unlearned, jnp.sum(unresolved))


def _of_source(law: Law, values: jax.Array, floor: jax.Array) -> jax.Array:
    psi, _ = law.responses(values, floor)
    return jnp.concatenate([values * psi, psi])


def _of_pull(law: Law, values: jax.Array, floor: jax.Array) -> jax.Array:
    _, chi = law.responses(values, floor)
    return jnp.concatenate([values * chi, chi])


@jax.jit
def _decompose(kernel: jax.Array, noise_floor: float) -> tuple[Modes, jax.Array]:
    values, vectors = jnp.linalg.eigh(kernel)
    floor = jax.lax.stop_gradient(noise_floor * jnp.max(jnp.abs(values)))
    negative = jnp.sum(values < -floor)
    kept = values - jax.lax.stop_gradient(
        jnp.minimum(values, 0.0)
    )  # rounded up to 0, moving as before
    return Modes(jnp.where(negative > 0, jnp.nan, kept), vectors, floor), negative
