"""From the eigenmodes of the training kernel and how far each is learned, to outputs.

With c the weights on the training rows of J,

    theta_t = theta_0 + J^T c,    c = -psi(Theta) (f_0 - y).

Here psi is the response of a law (see `response`): how far a mode has answered the residual.
The outputs are f_0 + Theta c.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ntkdiag.kernel.kernel_argument import KernelLike
from ntkdiag.kernel.spectrum import Spectrum, decompose
from ntkdiag.predict.matrix_function import Eigenmodes, Profile, apply
from ntkdiag.predict.prediction import Prediction
from ntkdiag.predict.problem import Problem
from ntkdiag.predict.response import Law


def modes_of(problem: Problem, kernel: KernelLike | None = None) -> Eigenmodes:
    """The modes of the training kernel; NaN throughout where a traced one cannot be refused."""
    if isinstance(kernel, Spectrum) and kernel.vectors is not None:
        modes = kernel
    else:
        modes = decompose(problem.kernel, problem.noise_floor, vectors=True)
    modes = modes.require_semidefinite()
    dtype = problem.kernel.dtype
    values = jnp.asarray(modes.eigenvalues, dtype)
    # Negative by rounding only: counted as 0, but moving with the kernel as before.
    below_zero = jax.lax.stop_gradient(jnp.minimum(values, 0.0))
    floor = jax.lax.stop_gradient(jnp.asarray(modes.noise_floor, dtype))
    return Eigenmodes(values - below_zero, jnp.asarray(modes.vectors, dtype), floor)


@functools.partial(jax.jit, static_argnames="axes")
def assemble(problem: Problem, modes: Eigenmodes, law: Law, axes: tuple[int, ...]) -> Prediction:
    """Put the outputs together, at times of the shape `axes`; O((NC)^2) per time."""

    def of_kernel(
        profile: Profile, columns: Float[Array, "k c"]
    ) -> tuple[Float[Array, "T k c"], Float[Array, "T k c"]]:
        """Theta h(Theta) b and h(Theta) b for the response h of a profile."""
        both = apply(profile, problem.kernel, modes, law, columns)  # [2T k c]
        moved, weights = jnp.split(both, 2)
        return moved, weights

    # The answer to the residual: Theta c and c.
    learned, weights = of_kernel(_of_source, -problem.residual)
    train = problem.start + learned
    test = None
    if problem.cross is not None and problem.start_test is not None:
        test = problem.start_test + problem.cross @ weights  # [T l c]
        test = test.reshape(*axes, *problem.shape_test)

    # What no time will learn: the residual in modes that the kernel does not resolve.
    vectors = jax.lax.stop_gradient(modes.vectors)
    is_unresolved = modes.values <= modes.floor
    left = jnp.where(is_unresolved[:, None], vectors.T @ problem.residual, 0.0)  # [k c]
    return Prediction(
        train=train.reshape(*axes, *problem.shape),
        test=test,
        unlearned=jnp.sqrt(jnp.sum(left**2) / left.size),
        unresolved=jnp.sum(is_unresolved),
    )


def _of_source(
    law: Law, values: Float[Array, " k"], floor: Float[Array, ""]
) -> Float[Array, "h k"]:
    """lambda psi for the outputs, and psi for the weights."""
    psi = law.response(values, floor)
    return jnp.concatenate([values * psi, psi])  # [T k] each -> [2T k]
