"""The one function that measures, for the Optax transform and the host hook alike."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag.analysis.alignment import alignment
from ntkdiag.analysis.curvature import Loss
from ntkdiag.analysis.drift import drift
from ntkdiag.analysis.momentum import MomentumKind, stability_threshold
from ntkdiag.analysis.rank import participation_ratio
from ntkdiag.analysis.spectrum import spectrum
from ntkdiag.analysis.stability import critical_learning_rate
from ntkdiag.kernels import Kernel, ntk
from ntkdiag.monitor.measurement import Measurement, Status


def measure(
    f: Any,
    params: Any,
    x: Any,
    y: Any,
    kernel0: jax.Array,
    *,
    step: Any,
    first: Any,
    unmoved: Any = True,
    top_k: int,
    outputs: str,
    loss: Loss,
    loss_denominator: float,
    n_classes: int,
    weight_decay: float,
    learning_rate: Any,
    momentum: float,
    nesterov: bool,
    memory: Any = None,
) -> tuple[Measurement, jax.Array]:
    r"""Measure the kernel of `f` at `params` on the probe.

    With K the kernel, lambda its eigenvalues and Theta the full kernel,

        PR = (sum lambda)^2 / sum lambda^2,     drift = ||K - K_0||_F / ||K_0||_F,
        eta_crit = 1 / (lambda_max(Sigma^1/2 Theta Sigma^1/2) / (D tau) + wd / 2),     margin = eta / eta_crit,

    Sigma the Hessian of the summed loss in the outputs, D what the sum is divided by, tau the `stability_threshold` of
    the momentum, wd the weight decay.

    Cost: one kernel, and its eigenvalues, (N C)^3; a second set of eigenvalues for the cross-entropies.

    Args:
        f: `f(params, x)`, outputs `[N ...]`.
        params: Parameters, of the structure `f` takes.
        x: Probe examples.
        y: Labels as `[N C]` floats, or None.
        kernel0: The kernel drift is measured from; anything where `first`.
        step: The step, recorded.
        first: True when this kernel is itself the reference.
        unmoved: False when `f` holds arrays fixed that have moved in training.
        top_k: Number of eigenvalues.
        outputs: Reduction of the kernel, as `ntk` takes it.
        loss: Loss the stability numbers are for.
        loss_denominator: D.
        n_classes: Length of the last axis of the outputs, which a softmax is over.
        weight_decay: wd, decoupled, per unit of learning rate.
        learning_rate: Learning rate at this step, or None.
        momentum: Coefficient of momentum.
        nesterov: Whether the momentum is Nesterov's.
        memory: Memory budget of the kernel, as `ntk` takes it.

    Returns:
        The measurement, and the kernel `[K K]` drift is to be measured from next: this one if `first`.
    """
    params = jax.lax.stop_gradient(params)
    raw = ntk(f, params, x, outputs=outputs, memory=memory, check=False)
    logits = None if loss == "mse" else f(params, x).reshape(-1, n_classes)
    finite = jnp.isfinite(raw.array).all() & (True if logits is None else jnp.isfinite(logits).all())
    given = {"step": step, "first": first, "unmoved": unmoved, "learning_rate": learning_rate}
    kind: MomentumKind = "nesterov" if nesterov else "heavy-ball"
    training = {"momentum": momentum, "weight_decay": weight_decay, "loss_denominator": loss_denominator}
    return _diagnose(raw, logits, y, kernel0, given, training, finite, top_k=top_k, loss=loss, kind=kind)


@functools.partial(jax.jit, static_argnames=("top_k", "loss", "kind"))  # outside of a jit, one program
def _diagnose(
    raw: Kernel,
    logits: Any,
    y: Any,
    kernel0: jax.Array,
    given: dict[str, Any],
    training: dict[str, Any],
    finite: jax.Array,
    *,
    top_k: int,
    loss: Loss,
    kind: MomentumKind,
) -> tuple[Measurement, jax.Array]:
    """The diagnostics of a kernel, all in one program; arguments as of `measure`."""
    # They are never shown NaN: an eigensolver need not return from it.
    safe = jnp.eye(kernel0.shape[0]).reshape(raw.shape)
    kernel = _with(raw, jnp.where(finite, raw.array, safe).astype(kernel0.dtype))
    logits = None if logits is None else jnp.where(finite, logits, 0.0)
    reference = jnp.where(given["first"], kernel.matrix, kernel0)

    found = spectrum(kernel)
    eigenvalues = jnp.asarray(found.eigenvalues, kernel0.dtype)
    moved = drift(_with(raw, reference.reshape(raw.shape)), kernel)
    critical = _critical(kernel, eigenvalues[0], loss, logits, kind, **training)
    rate = given["learning_rate"]
    numbers = {
        "eigenvalues": jnp.where(eigenvalues < found.noise_floor, jnp.nan, eigenvalues)[:top_k],
        "trace": jnp.trace(kernel.matrix),
        "participation_ratio": participation_ratio(kernel),
        "drift": moved.relative,
        "distance_centred": moved.distance_centred,
        "alignment": jnp.nan if y is None else alignment(kernel, y),
        "critical_learning_rate": critical,
        "margin": jnp.nan if rate is None else rate / critical,
    }
    valid = finite & given["unmoved"]
    numbers = {name: jnp.where(valid, jnp.asarray(value, kernel.dtype), jnp.nan) for name, value in numbers.items()}
    status = jnp.where(finite, jnp.where(given["unmoved"], Status.MEASURED, Status.FIXED_MOVED), Status.NON_FINITE)
    measured = Measurement(jnp.asarray(given["step"], jnp.int32), status.astype(jnp.int32), **numbers)
    return measured, jnp.where(given["first"] & ~valid, kernel0, reference)


def _with(kernel: Kernel, array: jax.Array) -> Kernel:
    return dataclasses.replace(kernel, array=array)


def _critical(
    kernel: Kernel, largest: jax.Array, loss: Loss, logits: Any, kind: MomentumKind, **training: float
) -> jax.Array | float:
    if kernel.ndim != 4 and kernel.convention.n_outputs > 1:
        return jnp.nan  # a reduced kernel has another lambda_max
    if loss == "mse":  # the eigenvalues are known
        threshold = training["loss_denominator"] * stability_threshold(training["momentum"], kind)
        return 1.0 / (largest / threshold + 0.5 * training["weight_decay"])
    # As a bare matrix, the kernel of all positions: a softmax is over the last axis of the outputs only.
    return critical_learning_rate(kernel.matrix, loss=loss, logits=logits, momentum_kind=kind, **training)
