"""The one function that measures, for the Optax transform and the host hook alike."""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from ntkdiag.kernels import ntk
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
    params = jax.lax.stop_gradient(params)
    raw = ntk(f, params, x, outputs=outputs, memory=memory, check=False).matrix.astype(kernel0.dtype)
    raw = (raw + raw.T) / 2
    finite = jnp.isfinite(raw).all()
    # The eigensolver is not asked about NaN: it need not return.
    kernel = jnp.where(finite, raw, jnp.eye(raw.shape[0], dtype=raw.dtype))
    reference = jnp.where(first, kernel, kernel0)

    eigenvalues = jnp.linalg.eigvalsh(kernel)[::-1]
    n_examples = jax.tree.leaves(x)[0].shape[0]
    critical = _critical(f, params, x, kernel, eigenvalues[0], n_examples, outputs, loss, momentum, nesterov)
    numbers = {
        "eigenvalues": eigenvalues[:top_k],
        "trace": jnp.trace(kernel),
        "participation_ratio": jnp.trace(kernel) ** 2 / jnp.sum(kernel**2),
        "drift": jnp.linalg.norm(kernel - reference) / jnp.linalg.norm(reference),
        "distance_centred": _distance(_centred(kernel, n_examples), _centred(reference, n_examples)),
        "alignment": _alignment(kernel, y, n_examples),
        "critical_learning_rate": critical,
        "margin": jnp.nan if learning_rate is None else learning_rate / critical,
    }
    numbers = {
        name: jnp.where(finite, jnp.asarray(value, kernel.dtype), jnp.nan) for name, value in numbers.items()
    }
    status = jnp.where(finite, Status.MEASURED.value, Status.NON_FINITE.value).astype(jnp.int32)
    measured = Measurement(jnp.asarray(step, jnp.int32), status, **numbers)
    return measured, jnp.where(first & ~finite, kernel0, reference)


def _critical(f, params, x, kernel, largest, n_examples, outputs, loss, momentum, nesterov):
    if outputs != "full":  # a reduced kernel reads lambda_max too low, a learning rate that is too high
        return jnp.nan
    if loss == "cross-entropy":
        probabilities = jax.nn.softmax(f(params, x).reshape(n_examples, -1).astype(kernel.dtype))
        root = jnp.sqrt(probabilities)
        # Sigma_i = diag(p) - p p^T = S_i S_i^T with S_i = diag(sqrt p) - p sqrt(p)^T
        factor = jax.vmap(jnp.diag)(root) - probabilities[:, :, None] * root[:, None, :]
        blocks = kernel.reshape(n_examples, -1, n_examples, root.shape[1])
        curvature = jnp.einsum("nop,nomq,mqr->npmr", factor, blocks, factor).reshape(kernel.shape)
        largest = jnp.linalg.eigvalsh(curvature)[-1]
    tau = 2 * (1 + momentum) / (1 + 2 * momentum if nesterov else 1)
    return tau * n_examples / largest


def _centred(kernel, n_examples):
    # H (x) I_C: the mean over examples is taken out, for each output by itself.
    blocks = kernel.reshape(n_examples, -1, n_examples, kernel.shape[0] // n_examples)
    blocks = blocks - blocks.mean(0, keepdims=True)
    return (blocks - blocks.mean(2, keepdims=True)).reshape(kernel.shape)


def _distance(a, b):
    return 1 - jnp.sum(a * b) / (jnp.linalg.norm(a) * jnp.linalg.norm(b))


def _alignment(kernel, y, n_examples):
    if y is None:
        return jnp.nan
    y = y - y.mean(0)
    kernel = _centred(kernel, n_examples)
    full = kernel.shape[0] == y.size
    power = y.ravel() @ kernel @ y.ravel() if full else jnp.einsum("nc,nm,mc->", y, kernel, y)
    norm = jnp.linalg.norm(kernel) * (1 if full else y.shape[1] ** 0.5)
    return power / (norm * jnp.sum(y**2))
