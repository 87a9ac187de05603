"""The one function that measures, for the Optax transform and the host hook alike."""

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp

from ntkdiag.analysis.alignment import alignment
from ntkdiag.analysis.drift import drift
from ntkdiag.analysis.rank import participation_ratio
from ntkdiag.analysis.spectrum import spectrum
from ntkdiag.kernels import Kernel, ntk
from ntkdiag.monitor.measurement import Measurement, Status

Loss = Literal["mse", "cross-entropy"]


def measure(
    f: Any,
    params: Any,
    x: Any,
    y: Any,
    kernel0: jax.Array,
    *,
    step: Any,
    first: Any,
    top_k: int,
    outputs: str,
    loss: Loss,
    learning_rate: Any,
    momentum: float,
    nesterov: bool,
    memory: Any = None,
) -> tuple[Measurement, jax.Array]:
    r"""Measure the kernel of `f` at `params` on the probe.

    With K the kernel and lambda its eigenvalues, descending,

        PR = (sum lambda)^2 / sum lambda^2,     drift = ||K - K_0||_F / ||K_0||_F,
        eta_crit = tau N / lambda_max(S^T Theta S),     margin = eta / eta_crit,

    S S^T the Hessian of the loss in the outputs (the identity for the squared error), tau = 2 (1 + beta) with momentum
    beta, 2 (1 + beta) / (1 + 2 beta) with Nesterov's.

    Cost: one kernel, and its eigenvalues, (N C)^3; a second set of eigenvalues for the cross-entropy.

    Args:
        f: `f(params, x)`, outputs `[N ...]`.
        params: Parameters, of the structure `f` takes.
        x: Probe examples.
        y: Labels as `[N C]` floats, or None.
        kernel0: The kernel drift is measured from; anything where `first`.
        step: The step, recorded.
        first: True when this kernel is itself the reference.
        top_k: Number of eigenvalues.
        outputs: Reduction of the kernel, as `ntk` takes it.
        loss: Loss the stability numbers are for.
        learning_rate: Learning rate at this step, or None.
        momentum: Coefficient of momentum.
        nesterov: Whether the momentum is Nesterov's.
        memory: Memory budget of the kernel, as `ntk` takes it.

    Returns:
        The measurement, and the kernel drift is to be measured from next: `[K K]`, this one if `first`.
    """
    raw = ntk(f, jax.lax.stop_gradient(params), x, outputs=outputs, memory=memory, check=False)
    array = raw.array.astype(kernel0.dtype)
    finite = jnp.isfinite(array).all()
    # The diagnostics are never shown NaN: an eigensolver need not return from it.
    kernel = _replaced(raw, jnp.where(finite, array, jnp.eye(kernel0.shape[0]).reshape(array.shape)))
    reference = jnp.where(first, kernel.matrix, kernel0)

    eigenvalues = jnp.asarray(spectrum(kernel).eigenvalues, kernel0.dtype)
    moved = drift(_replaced(raw, reference.reshape(array.shape)), kernel)
    critical = _critical(f, params, x, kernel, eigenvalues[0], loss, momentum, nesterov)
    numbers = {
        "eigenvalues": eigenvalues[:top_k],
        "trace": jnp.trace(kernel.matrix),
        "participation_ratio": participation_ratio(kernel),
        "drift": moved.relative,
        "distance_centred": moved.distance_centred,
        "alignment": jnp.nan if y is None else alignment(kernel, y),
        "critical_learning_rate": critical,
        "margin": jnp.nan if learning_rate is None else learning_rate / critical,
    }
    numbers = {name: jnp.where(finite, jnp.asarray(value, kernel.dtype), jnp.nan) for name, value in numbers.items()}
    status = jnp.where(finite, Status.MEASURED.value, Status.NON_FINITE.value).astype(jnp.int32)
    measured = Measurement(jnp.asarray(step, jnp.int32), status, **numbers)
    return measured, jnp.where(first & ~finite, kernel0, reference)


def _replaced(kernel: Kernel, array: jax.Array) -> Kernel:
    return dataclasses.replace(kernel, array=array)


def _critical(f, params, x, kernel, largest, loss, momentum, nesterov):
    if kernel.ndim != 4:  # a reduced kernel reads lambda_max too low, a learning rate that is too high
        return jnp.nan
    n_examples = kernel.n_examples
    if loss == "cross-entropy":
        probabilities = jax.nn.softmax(f(params, x).reshape(n_examples, -1).astype(kernel.dtype))
        root = jnp.sqrt(probabilities)
        # Sigma_i = diag(p) - p p^T = S_i S_i^T with S_i = diag(sqrt p) - p sqrt(p)^T
        factor = jax.vmap(jnp.diag)(root) - probabilities[:, :, None] * root[:, None, :]
        curvature = jnp.einsum("nop,nomq,mqr->npmr", factor, kernel.array, factor)
        largest = jnp.linalg.eigvalsh(curvature.reshape(kernel.matrix.shape))[-1]
    tau = 2 * (1 + momentum) / (1 + 2 * momentum if nesterov else 1)
    return tau * n_examples / largest
