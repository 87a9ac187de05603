"""Everything that is measured of one kernel, inside a compiled step and outside of it.

The kernel is computed by `ntk`, all that follows from it in one compiled program:

1. where kernel or outputs are not finite, an identity stands in, and all numbers end as NaN;
2. spectrum, drift from the reference kernel, alignment;
3. the critical learning rate and the margin, where a loss was named and the kernel is not reduced;
4. what could not be measured becomes NaN, and the status says why.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PyTree

from ntkdiag.analysis.alignment import Alignment, alignment
from ntkdiag.analysis.drift import drift
from ntkdiag.analysis.stability import critical_rate_and_margin
from ntkdiag.descent import Descent
from ntkdiag.engine.ntk import ntk
from ntkdiag.estimate import student_t
from ntkdiag.kernel.decomposition import spectrum
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.reduction import RandomProjections
from ntkdiag.losses import Loss
from ntkdiag.losses.alignable import alignable_targets
from ntkdiag.monitor.measurement import Status
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.pytree_dataclass import pytree

if TYPE_CHECKING:
    from ntkdiag.monitor.probe import Probe


def measure_kernel(
    probe: "Probe",
    params: PyTree,
    layout: ProbeLayout,
    kernel0: Float[Array | np.ndarray, "k k"],
    *,
    first: bool | Bool[Array, ""],
    held: Mapping[str, PyTree],
) -> "KernelNumbers":
    r"""Measure the kernel of the probe at some parameters."""
    f = probe.following_function() if held else probe.function
    kwargs: dict[str, Any] = {"held": probe.as_arguments(held)} if held else {}
    x, y = jax.tree.map(jnp.asarray, probe.x), probe.y
    shape, reduction = layout.output_shape, layout.reduction_for_ntk
    loss = probe.loss if probe.is_trained_on else None
    # Whoever differentiates a whole training step does not mean the diagnostics.
    params = jax.lax.stop_gradient(params)
    # Whether examples interact was checked before: `Probe.verify` does, once.
    # Without a bar of its own: the training loop has one, as a rule.
    options = {"memory": probe.memory, "check": False, "progress": False}
    kernel = ntk(f, params, x, reduction=reduction, **options, **kwargs)

    is_reduced = kernel.ndim != 4 and kernel.convention.n_outputs > 1
    trained_loss = loss
    if is_reduced:
        trained_loss = None  # its largest eigenvalue is not that of the full kernel
    outputs = None
    if trained_loss is not None and not trained_loss.has_unit_curvature(y):
        outputs = f(params, x, **kwargs)
    labels = None
    if trained_loss is not None and y is not None:
        labels = trained_loss.read(y, shape)

    # What the alignment is with, and its kernel where it is of other examples.
    kernel_of_labels = None
    held_out = probe.held_out
    if held_out is None:
        targets = alignable_targets(y, shape, loss)
    else:
        targets = alignable_targets(held_out.y, (held_out.n_examples, *shape[1:]), loss)
    if held_out is not None and targets is not None:
        kernel_of_labels = ntk(
            f,
            params,
            jax.tree.map(jnp.asarray, held_out.x),
            reduction=probe.reduction_of_alignment(layout),
            **options,
            **kwargs,
        )
    if targets is not None:
        targets = targets.reshape(targets.shape[0], -1)  # [n *o] -> [n o]
    labelled = _Labelled(kernel_of_labels, targets)

    training = _Training(trained_loss, outputs, labels)
    after = _Reference(first, kernel0)
    measured = _diagnose(kernel, labelled, training, after, probe.top_k)
    if not isinstance(reduction, RandomProjections):
        return measured
    error = _trace_error(kernel, reduction.k, measured.status)
    return dataclasses.replace(measured, trace_error=error)


def _trace_error(kernel: Kernel, n_directions: int, status: Int[Array, ""]) -> Float[Array, ""]:
    """The half width of a 95 % interval for the trace of a kernel from random directions."""
    assert kernel.standard_error is not None
    of_entries = jnp.asarray(kernel.standard_error)  # [n n]
    error = student_t(n_directions - 1) * jnp.trace(of_entries)
    return jnp.where(status == Status.MEASURED, error, jnp.nan)


@pytree("numbers", "status", "kernel0", "trace_error")
@dataclasses.dataclass(frozen=True, eq=False)
class KernelNumbers:
    """What is measured of a kernel."""

    numbers: dict[str, Array]  # name -> number; NaN where it does not exist
    status: Int[Array, ""]  # a `Status`
    kernel0: Float[Array, "k k"]  # `[K K]`, what drift is to be measured from next
    # What the trace may be off by, 95 times of 100, where the kernel is estimated from random
    # directions; None where it is exact.
    trace_error: Float[Array, ""] | None = None


@pytree("loss", "outputs", "labels")
@dataclasses.dataclass(frozen=True)
class _Training:
    """What the stability numbers depend on besides the kernel.

    `outputs` is None where the curvature of the loss does not depend on them, or none was named.
    """

    loss: Loss | None
    outputs: Float[Array, "n *o"] | None
    labels: PyTree


@pytree("kernel", "targets")
@dataclasses.dataclass(frozen=True)
class _Labelled:
    """What the alignment is of; `kernel` is None for that which is measured anyway.

    `targets` is None without labels.
    """

    kernel: Kernel | None
    targets: Float[Array, "n o"] | None


@pytree("first", "kernel0")
@dataclasses.dataclass(frozen=True)
class _Reference:
    """After what a kernel is measured; see `measure_kernel`."""

    first: bool | Bool[Array, ""]
    kernel0: Float[Array | np.ndarray, "k k"]


def _diagnose_kernel(
    raw: Kernel,
    labelled: _Labelled,
    training: _Training,
    after: _Reference,
    top_k: int,
) -> KernelNumbers:
    """All diagnostics of a kernel, and the reference kernel of the next measurement."""
    first = after.first
    kernel0 = after.kernel0

    # Diagnostics are never shown NaN: an eigensolver need not return from it.
    is_finite = jnp.isfinite(raw.array).all()
    outputs = training.outputs
    if outputs is not None:
        is_finite = is_finite & jnp.isfinite(outputs).all()
        outputs = jnp.where(is_finite, outputs, 0.0)
    if labelled.kernel is not None:
        is_finite = is_finite & jnp.isfinite(labelled.kernel.array).all()
    kernel = _or_identity(raw, is_finite, kernel0.dtype)
    kernel_of_labels = kernel
    if labelled.kernel is not None:
        kernel_of_labels = _or_identity(labelled.kernel, is_finite, kernel0.dtype)

    # The kernel by itself, beside the reference, and beside the labels.
    decomposed = spectrum(kernel)
    eigenvalues = jnp.asarray(decomposed.eigenvalues, kernel0.dtype)
    is_rounding = eigenvalues < decomposed.noise_floor
    reference = jnp.where(first, kernel.matrix, kernel0)
    reference_kernel = dataclasses.replace(raw, array=reference.reshape(raw.shape))
    motion = drift(reference_kernel, kernel)
    aligned = Alignment(jnp.nan, jnp.nan, jnp.nan, kernel_of_labels.convention.reduction)
    if labelled.targets is not None:
        aligned = alignment(kernel_of_labels, labelled.targets)
    critical_rate = jnp.nan
    if training.loss is not None:
        critical_rate, _ = critical_rate_and_margin(
            decomposed, Descent(), loss=training.loss, outputs=outputs, y=training.labels
        )
    numbers = {
        "eigenvalues": jnp.where(is_rounding, jnp.nan, eigenvalues)[:top_k],
        "trace": jnp.trace(kernel.matrix),
        "participation_ratio": decomposed.participation_ratio,
        "drift": motion.relative,
        "distance_centred": motion.distance_centred,
        "alignment": aligned.value,
        "alignment_chance": aligned.chance,
        "alignment_standard_deviation": aligned.standard_deviation,
        "alignment_above": aligned.above,
        "critical_learning_rate": critical_rate,
        "margin": jnp.nan,
    }

    # What could not be measured is NaN; the status says why.
    for name, value in numbers.items():
        numbers[name] = jnp.where(is_finite, jnp.asarray(value, kernel.dtype), jnp.nan)
    status = jnp.where(is_finite, Status.MEASURED, Status.NON_FINITE).astype(jnp.int32)
    # A first kernel that could not be measured is no reference.
    kept = jnp.where(first & ~is_finite, kernel0, reference)
    return KernelNumbers(numbers, status, kept)


def _or_identity(raw: Kernel, is_finite: Bool[Array, ""], dtype: DTypeLike) -> Kernel:
    """The kernel, or an identity in the place of one that cannot be measured."""
    identity = jnp.eye(raw.matrix.shape[0]).reshape(raw.shape)  # [k k] -> [n m] or [n o m p]
    array = jnp.where(is_finite, raw.array, identity).astype(dtype)
    return dataclasses.replace(raw, array=array)


# Outside of a jit, one program.
_diagnose = jax.jit(_diagnose_kernel, static_argnums=4)
