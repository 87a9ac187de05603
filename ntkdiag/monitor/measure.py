"""The one function that measures, for the Optax transform and the host hook alike.

The kernel is computed by `ntk`, all that follows from it in one compiled program:

1. where kernel or outputs are not finite, an identity stands in, and all numbers are NaN in the end;
2. spectrum, drift from the reference kernel, alignment;
3. the critical learning rate and the margin, where a loss was named and the kernel is not reduced.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ntkdiag import errors
from ntkdiag.analysis.alignment import alignment
from ntkdiag.analysis.drift import drift
from ntkdiag.analysis.rank import participation_ratio
from ntkdiag.analysis.stability import critical_learning_rate
from ntkdiag.descent import Descent, DescentLike, as_descent
from ntkdiag.engine.ntk import ntk
from ntkdiag.kernel.decomposition import spectrum
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.losses import Loss
from ntkdiag.losses.loss_argument import LossLike, as_loss
from ntkdiag.losses.targets import read_targets
from ntkdiag.monitor.measurement import Measurement, Status


@errors.public
def measure(
    f: Callable[..., Any],
    params: PyTree,
    x: PyTree,
    y: Any,
    kernel0: Float[Array, "k k"],
    *,
    step: Any,
    first: Any,
    unmoved: Any = True,
    top_k: int,
    shape: tuple[int, ...],
    reduction: str,
    loss: LossLike | None = None,
    descent: DescentLike | None = None,
    memory: int | float | str | None = None,
) -> tuple[Measurement, Float[Array, "k k"]]:
    r"""Measure the kernel of `f` at `params` on the probe.

    With K the kernel, lambda its eigenvalues and Theta the full kernel,

        PR = (sum lambda)^2 / sum lambda^2,     drift = ||K - K_0||_F / ||K_0||_F,
        eta_crit = 1 / (lambda_max(Sigma^1/2 Theta Sigma^1/2) / (D tau) + w / 2),     margin = eta / eta_crit,

    Sigma and D those of the loss (see `Loss`), eta, tau and w those of the update rule (see `Descent`).

    Cost: one kernel, and its eigenvalues, (N C)^3; a second set of eigenvalues for losses other than squared error.

    Args:
        f: `f(params, x)`, outputs `[N ...]`.
        params: Parameters, of the structure `f` takes.
        x: Probe examples.
        y: Labels: class numbers or targets; None leaves the alignment out.
        kernel0: `[K K]`, the kernel drift is measured from; anything where `first`.
        step: The step, recorded.
        first: True when this kernel is itself the reference.
        unmoved: False when `f` holds arrays fixed that have moved in training.
        top_k: Number of eigenvalues.
        shape: Of the outputs f(params, x).
        reduction: Reduction of the kernel, as `ntk` takes it.
        loss: Loss the stability numbers are for; None leaves them out.
        descent: Update rule at this step; None is plain gradient descent and leaves the margin out.
        memory: Memory budget of the kernel, as `ntk` takes it.

    Returns:
        The measurement, and the kernel `[K K]` drift is to be measured from next: this one if `first`.
    """
    params = jax.lax.stop_gradient(params)
    raw = ntk(f, params, x, reduction=reduction, memory=memory, check=False)
    trained = as_loss(loss)
    if raw.ndim != 4 and raw.convention.n_outputs > 1:
        trained = None  # a reduced kernel has another largest eigenvalue
    outputs = None
    if trained is not None and not trained.is_quadratic:
        outputs = f(params, x)
    targets, labels = None, None
    if y is not None:
        targets = read_targets(y, shape).reshape(shape[0], -1)
        labels = None if trained is None else trained.read(y, shape)
    rule = Descent() if descent is None else as_descent(descent)
    situation = _Situation(step, first, unmoved, kernel0)
    return _diagnose(raw, outputs, targets, labels, trained, rule, situation, top_k)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Situation:
    """When and after what a kernel is measured; see `measure`."""

    step: Any
    first: Any
    unmoved: Any
    kernel0: Any


def _diagnose_kernel(
    raw: Kernel,
    outputs: Any,
    targets: Any,
    labels: Any,
    loss: Loss | None,
    descent: Descent,
    situation: _Situation,
    top_k: int,
) -> tuple[Measurement, Float[Array, "k k"]]:
    """The diagnostics of a kernel, all in one program."""
    kernel0, first = situation.kernel0, situation.first
    finite = jnp.isfinite(raw.array).all()
    if outputs is not None:
        finite = finite & jnp.isfinite(outputs).all()
        outputs = jnp.where(finite, outputs, 0.0)
    # Diagnostics are never shown NaN: an eigensolver need not return from it.
    identity = jnp.eye(kernel0.shape[0]).reshape(raw.shape)
    kernel = _with(raw, jnp.where(finite, raw.array, identity).astype(kernel0.dtype))
    reference = jnp.where(first, kernel.matrix, kernel0)

    decomposed = spectrum(kernel)
    eigenvalues = jnp.asarray(decomposed.eigenvalues, kernel0.dtype)
    moved = drift(_with(raw, reference.reshape(raw.shape)), kernel)
    critical, margin = jnp.nan, jnp.nan
    if loss is not None:
        critical = critical_learning_rate(kernel, descent, loss=loss, outputs=outputs, y=labels)
        if descent.learning_rate is not None:
            margin = descent.require_learning_rate() / critical
    numbers = {
        "eigenvalues": jnp.where(eigenvalues < decomposed.noise_floor, jnp.nan, eigenvalues)[
            :top_k
        ],
        "trace": jnp.trace(kernel.matrix),
        "participation_ratio": participation_ratio(kernel),
        "drift": moved.relative,
        "distance_centred": moved.distance_centred,
        "alignment": jnp.nan if targets is None else alignment(kernel, targets),
        "critical_learning_rate": critical,
        "margin": margin,
    }

    valid = finite & situation.unmoved
    for name, value in numbers.items():
        numbers[name] = jnp.where(valid, jnp.asarray(value, kernel.dtype), jnp.nan)
    status = jnp.where(situation.unmoved, Status.MEASURED, Status.FIXED_MOVED)
    status = jnp.where(finite, status, Status.NON_FINITE).astype(jnp.int32)
    measurement = Measurement(jnp.asarray(situation.step, jnp.int32), status, **numbers)
    # A first kernel that could not be measured is no reference.
    return measurement, jnp.where(first & ~valid, kernel0, reference)


_diagnose = jax.jit(_diagnose_kernel, static_argnums=7)  # outside of a jit, one program


def _with(kernel: Kernel, array: jax.Array) -> Kernel:
    """The kernel with other numbers."""
    return dataclasses.replace(kernel, array=array)
