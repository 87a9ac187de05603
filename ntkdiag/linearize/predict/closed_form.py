"""From the eigenmodes of the training kernel and how far each is learned, to outputs."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ntkdiag.kernels.operands.operand import is_concrete, refuse
from ntkdiag.linearize.predict.prediction import Prediction
from ntkdiag.linearize.predict.problem import Problem


class Modes(NamedTuple):
    """Eigenmodes of the training kernel.

    Attributes:
        values: `[k]` eigenvalues, not negative.
        vectors: `[k k]`, one column per mode.
        floor: The noise floor.
    """

    values: jax.Array
    vectors: jax.Array
    floor: jax.Array


class Response(NamedTuple):
    """How far each mode is learned at each time.

    Attributes:
        psi: `[T k]`, the answer to a constant source, in units of 1 / eigenvalue.
        chi: `[T k]`, the answer to the pull of the decaying initial parameters.
        decay: `[T]`, what is left of the initial parameters under weight decay to zero; 1 without.
    """

    psi: jax.Array
    chi: jax.Array
    decay: jax.Array


def modes_of(problem: Problem, call: str) -> Modes:
    """Decompose the training kernel.

    Cost: one eigendecomposition, O((NC)^3).

    Args:
        problem: The problem.
        call: The public call, for the message.

    Returns:
        The modes; NaN throughout when eigenvalues are below minus the noise floor and it is too late to refuse.

    Raises:
        InvalidInputError: When eigenvalues are below minus the noise floor.
    """
    modes, negative = _decompose(problem.kernel, problem.noise_floor)
    if is_concrete(negative) and negative > 0:
        refuse(
            call,
            expected="a kernel J J^T, which has no negative eigenvalues",
            got=f"{int(negative)} eigenvalues below the noise floor {-float(modes.floor):.2g}",
            do="Compute all rows in one call and one batch size; see `health(kernel)`.",
        )
    return modes


@functools.partial(jax.jit, static_argnames="axes")
def assemble(problem: Problem, modes: Modes, response: Response, axes: tuple[int, ...]) -> Prediction:
    """Put the outputs together.

    With c the weights on the training rows of J, theta_t = a theta_0 + J^T c and, in the eigenbasis u of the kernel,
    u^T c = -psi u^T (f_0 - J theta_0 - y) - chi u^T J theta_0. Without decay to zero a = 1 and J theta_0 drops out.
    Cost: O((NC)^2) per time.

    Args:
        problem: The problem.
        modes: Its modes.
        response: How far each is learned.
        axes: Shape of the times, in front of the outputs.

    Returns:
        The prediction.
    """
    values, vectors, floor = modes
    residual = vectors.T @ problem.residual  # [k c]
    coefficients = -response.psi[:, :, None] * residual  # [T k c]
    if problem.pull is not None:
        coefficients += (response.psi - response.chi)[:, :, None] * (vectors.T @ problem.pull)
    shrink = response.decay[:, None, None] - 1.0
    train = problem.start + jnp.einsum("kj,j,Tjc->Tkc", vectors, values, coefficients)
    train = train if problem.pull is None else train + shrink * problem.pull
    test = None
    if problem.cross is not None and problem.start_test is not None:
        test = problem.start_test + jnp.einsum("lj,Tjc->Tlc", problem.cross @ vectors, coefficients)
        test = test if problem.pull_test is None else test + shrink * problem.pull_test
        test = test.reshape(*axes, *problem.shape_test)
    unresolved = values <= floor
    unlearned = jnp.sqrt(jnp.sum(jnp.where(unresolved[:, None], residual, 0.0) ** 2) / residual.size)
    return Prediction(train.reshape(*axes, *problem.shape), test, unlearned, jnp.sum(unresolved))


@jax.jit
def _decompose(kernel: jax.Array, noise_floor: float) -> tuple[Modes, jax.Array]:
    values, vectors = jnp.linalg.eigh(kernel)
    floor = noise_floor * jnp.max(jnp.abs(values))
    negative = jnp.sum(values < -floor)
    kept = jnp.where(negative > 0, jnp.nan, jnp.maximum(values, 0.0))
    return Modes(kept, vectors, floor), negative
