"""Everything measured of one side by itself."""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, PyTree

from ntkdiag import display
from ntkdiag._jax import compiler_options
from ntkdiag.analysis.alignment import Alignment
from ntkdiag.analysis.degenerate import AT_CONSTANT_LOSS
from ntkdiag.checkpoints.step_names import Step
from ntkdiag.comparison.degeneracy import Condition, condition
from ntkdiag.comparison.held_out import HeldOut, HeldOutProbe
from ntkdiag.comparison.kernel_regression import (
    KernelFit,
    ProbeLabels,
    fit_alignment,
    fit_kernel,
    fit_outputs,
)
from ntkdiag.comparison.leaf_kernels import leaf_kernels
from ntkdiag.comparison.load import Side
from ntkdiag.comparison.settings import Settings
from ntkdiag.comparison.single_numbers import numbers_of_side
from ntkdiag.comparison.stated_margin import Stability, stated_stability
from ntkdiag.engine.independence import roundoff_of
from ntkdiag.engine.ntk import ntk
from ntkdiag.kernel.decomposition import spectrum
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.reduction import reduction_of_leaves
from ntkdiag.kernel.spectrum import Spectrum, require_decomposable
from ntkdiag.matrix_free.operator import NTKOperator
from ntkdiag.models.paths import leaves_by_path
from ntkdiag.scalars import Number


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """One side of a comparison.

    Attributes:
        label: Name in tables.
        path: Checkpoint path as given; None for values in memory.
        step: Step number, where the checkpoint has one.
        fixed_state: Where the arrays that are not parameters come from.
        params_sha256: SHA-256 of the parameters: path, dtype, shape and bytes of every leaf.
        kernel: The empirical NTK on the probe.
        spectrum: Its eigenvalues with their noise floor.
        outputs: `[N C]` model outputs.
        leaf_kernels: Path -> `[n n]`, the kernel of each leaf traced over outputs.
        condition: Whether it still tells examples apart, and what its outputs are like.
        alignment: Centred kernel-target alignment, beside that of permuted labels; None without
            labels. Of the held-out examples where there are some, as are the two below.
        label_power: `[k]` cumulative label power C(k), kernel and labels centred; None without
            labels.
        leave_one_out: Squared error of kernel regression on an example left out, over the variance
            of the labels; None without labels.
        loss: Loss on the probe; None without labels, or where no loss was named.
        accuracy: Share of labels that the outputs decide for, by the largest output along the last
            axis or, under a sigmoid, by the sign; None unless labels are classes or 0 and 1.
        critical_learning_rate: Where the quadratic model of the loss starts to diverge; None if the
            kernel is reduced, no loss was named, or no examples of the training set were given.
        margin: learning rate / critical learning rate; None without a learning rate, too; NaN where
            the optimizer or its state is not known.
        learning_rate: That of the margin; NaN where the optimizer does not tell.
        margin_interval: The 95 % interval of the margin of all training examples; None beside a
            stated rule where the kernel is reduced or the loss not convex in the outputs.
        margin_status: "ok", or a sentence on what to know of the margin, or why there is none.
        held_out: The same side on held-out examples; None unless they were given beside `train`.
    """

    label: str
    path: str | None
    step: Step | None
    fixed_state: str
    params_sha256: str
    kernel: Kernel
    spectrum: Spectrum
    outputs: Float[np.ndarray, "n o"]
    leaf_kernels: dict[str, Float[np.ndarray, "n n"]]
    condition: Condition
    alignment: Alignment | None = None
    label_power: Float[np.ndarray, " k"] | None = None
    leave_one_out: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    critical_learning_rate: float | None = None
    margin: float | None = None
    learning_rate: float | None = None
    margin_interval: tuple[float, float] | None = None
    margin_status: str = "ok"
    held_out: HeldOut | None = None

    @property
    def alignment_gap(self) -> float | None:
        """Alignment of examples trained on minus that of held-out ones, both above chance."""
        of_train = None if self.held_out is None else self.held_out.alignment_of_train
        if of_train is None or self.alignment is None:
            return None
        return float(of_train.above - self.alignment.above)

    def __repr__(self) -> str:
        numbers = {"trace": self.trace, "loss": self.loss, "margin": self.margin}
        if self.alignment is not None:
            numbers["alignment"] = float(self.alignment.value)
        known = [f"{name} {value:.4g}" for name, value in numbers.items() if value is not None]
        return f"Measured({self.label!r}: {', '.join(known)})"

    @property
    def is_at_constant_loss(self) -> bool:
        """Whether the loss is known, and no lower than that of the best constant outputs."""
        constant_loss = self.condition.constant_loss
        if self.loss is None or constant_loss is None:
            return False
        return self.loss >= AT_CONSTANT_LOSS * constant_loss

    @property
    def trace(self) -> float:
        """Sum of the eigenvalues of the kernel in its convention."""
        return float(np.trace(np.asarray(self.kernel.matrix, np.float64)))

    @property
    def numbers(self) -> dict[str, float]:
        """Every single number by its name in `ntkdiag.quantities`, NaN where it is not known."""
        return numbers_of_side(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name, eigenvalues above the noise floor only; no kernels, no outputs."""
        spectrum = self.spectrum
        lower, upper = self.margin_interval or (None, None)
        return {
            "label": self.label,
            "path": self.path,
            "step": self.step,
            "fixed_state": self.fixed_state,
            "params_sha256": self.params_sha256,
            "eigenvalues": spectrum.eigenvalues[: spectrum.rank],
            "unresolved_eigenvalues": spectrum.size - spectrum.rank,
            "noise_floor": spectrum.noise_floor,
            "spectrum_status": spectrum.status,
            "trace": self.trace,
            "participation_ratio": spectrum.participation_ratio,
            "entropy_rank": spectrum.entropy_rank,
            "condition": vars(self.condition),
            **_aligned(self.alignment),
            "label_power": self.label_power,
            "leave_one_out": self.leave_one_out,
            "loss": self.loss,
            "accuracy": self.accuracy,
            "critical_learning_rate": self.critical_learning_rate,
            "margin": self.margin,
            "learning_rate": self.learning_rate,
            "margin_lower": lower,
            "margin_upper": upper,
            "margin_status": self.margin_status,
            "alignment_gap": self.alignment_gap,
            "held_out": None if self.held_out is None else self.held_out.to_dict(),
        }


def measure_side(
    side: Side,
    settings: Settings,
    outputs: Float[np.ndarray, "n *o"],
    labels: ProbeLabels | None,
    held_out: HeldOutProbe | None,
    of_optimizer: Stability | None = None,
) -> Measured:
    """Measure one side.

    `outputs` are its own on the probe, whose `labels` may be None; `held_out` is None where that
    probe is all there is; without the stability `of_optimizer` it is that of the stated update
    rule. Cost: one kernel, one eigendecomposition (N C)^3, a second one with
    labels and a third one for a loss other than squared error; one more reduced kernel for its
    parts by leaf, and one of the held-out examples.
    """
    f, params = side.functional
    n, n_outputs = outputs.shape[0], outputs[0].size
    # Before any work; "auto" is full for small kernels alone.
    rows = n * n_outputs if settings.reduction == "full" else n
    # Its modes are laid beside labels only where there are no held-out examples for that.
    has_targets = labels is not None and labels.targets is not None
    require_decomposable(rows, vectors=has_targets and held_out is None)
    kernel = ntk(f, params, settings.x, reduction=settings.reduction, memory=settings.memory)
    flat_outputs = outputs.reshape(outputs.shape[0], -1)  # [n ...] -> [n o]
    # The loss takes the outputs in their own shape, whose axes tell classes from positions.
    kernel_spectrum = spectrum(kernel)
    stability = of_optimizer or stated_stability(
        kernel_spectrum, outputs, settings, functools.partial(NTKOperator, f, params, settings.x)
    )
    kernels_of_leaves = leaf_kernels(
        f, params, settings.x, settings.memory, reduction_of_leaves(settings.reduction)
    )
    traced = sum(kernels_of_leaves.values(), np.zeros((n, n)))  # sum_c Theta_cc
    roundoff = roundoff_of(f, params, settings.x)
    measured = Measured(
        label=side.label,
        path=None if side.path is None else display.printable(side.path),
        step=side.step,
        fixed_state=side.fixed_state,
        params_sha256=fingerprint(params),
        kernel=kernel,
        spectrum=kernel_spectrum,
        outputs=flat_outputs,
        leaf_kernels=kernels_of_leaves,
        condition=condition(settings, outputs, kernel, traced, roundoff),
    )
    measured = with_stability(measured, stability)
    # What labels are needed for.
    if held_out is not None:
        if labels is not None:
            measured = _with_output_fit(measured, outputs, labels, settings)
        return _beside_held_out(measured, side, settings, labels, held_out)
    return measured if labels is None else beside_labels(measured, outputs, labels, settings)


def with_stability(measured: Measured, stability: Stability | None) -> Measured:
    """The measurements with critical learning rate and margin, where these are known."""
    if stability is None:
        return measured
    return dataclasses.replace(
        measured,
        critical_learning_rate=stability.critical_learning_rate,
        margin=stability.margin,
        learning_rate=stability.learning_rate,
        margin_interval=stability.interval,
        margin_status=stability.status,
    )


def beside_labels(
    measured: Measured, outputs: Float[np.ndarray, "n *o"], labels: ProbeLabels, settings: Settings
) -> Measured:
    """The measurements completed by those of outputs and kernel beside the labels of the probe."""
    measured = _with_output_fit(measured, outputs, labels, settings)
    trained_on = settings.probes.train is not None
    if labels.flat_targets is None:
        return measured
    fit = fit_kernel(measured.kernel, labels.flat_targets, trained_on=trained_on)
    return _with_kernel_fit(measured, fit)


def _with_output_fit(
    measured: Measured, outputs: Float[np.ndarray, "n *o"], labels: ProbeLabels, settings: Settings
) -> Measured:
    """The measurements with loss and accuracy."""
    fit = fit_outputs(outputs, labels, settings.loss)
    return dataclasses.replace(measured, loss=fit.loss, accuracy=fit.accuracy)


def _beside_held_out(
    measured: Measured,
    side: Side,
    settings: Settings,
    labels: ProbeLabels | None,
    held_out: HeldOutProbe,
) -> Measured:
    """The measurements completed by those on held-out examples."""
    f, params = side.functional
    kernel = ntk(f, params, held_out.x, reduction=held_out.reduction, memory=settings.memory)
    outputs = evaluate(f, params, held_out.x)
    of_outputs = fit_outputs(outputs, held_out.labels, settings.loss)
    alignment_of_train = None
    if labels is not None and labels.flat_targets is not None:
        kernel_of_train = held_out.reduced_alike(measured.kernel)
        alignment_of_train = fit_alignment(kernel_of_train, labels.flat_targets, trained_on=True)
    on_held_out = HeldOut(
        kernel=kernel,
        outputs=outputs.reshape(outputs.shape[0], -1),  # [n ...] -> [n o]
        loss=of_outputs.loss,
        accuracy=of_outputs.accuracy,
        alignment_of_train=alignment_of_train,
    )
    measured = dataclasses.replace(measured, held_out=on_held_out)
    if held_out.labels.flat_targets is None:
        return measured
    fit = fit_kernel(kernel, held_out.labels.flat_targets, trained_on=False)
    return _with_kernel_fit(measured, fit)


def _with_kernel_fit(measured: Measured, fit: KernelFit) -> Measured:
    """The measurements with what a kernel beside its labels tells."""
    return dataclasses.replace(
        measured,
        alignment=fit.alignment,
        label_power=fit.label_power,
        leave_one_out=fit.leave_one_out,
    )


def evaluate(f: Callable[..., PyTree], params: PyTree, x: PyTree) -> Float[np.ndarray, "n *o"]:
    """Outputs on the probe in float64."""
    # XLA on CPU compiles some float32 reductions wrongly by default: these options are checked.
    outputs = jax.jit(f, compiler_options=compiler_options(reduces=True))(params, x)
    return np.asarray(outputs, np.float64)


def fingerprint(params: PyTree) -> str:
    """SHA-256 of parameters, to recognise them in another report."""
    digest = hashlib.sha256()
    for path, leaf in leaves_by_path(params).items():
        array = np.asarray(leaf)
        digest.update(f"{path}:{array.dtype}{array.shape}".encode(errors="surrogatepass"))
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _aligned(aligned: Alignment | None) -> dict[str, Number | None]:
    """The alignment under the names of its numbers; None without labels."""
    if aligned is None:
        aligned = Alignment(math.nan, math.nan, math.nan, reduction="")
    return {
        "alignment": aligned.value,
        "alignment_chance": aligned.chance,
        "alignment_standard_deviation": aligned.standard_deviation,
        "alignment_above": aligned.above,
    }
