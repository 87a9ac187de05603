"""The labels of the probes, read beside the outputs of the model."""

import dataclasses
import math

import jax
import numpy as np
from jaxtyping import Float, PyTree

from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.reduction import ReductionLike, automatic_of_held_out
from ntkdiag.losses.alignable import alignable_targets
from ntkdiag.losses.custom_loss import CustomLoss
from ntkdiag.losses.targets import require_labels_differ
from ntkdiag.measuring.settings import Settings
from ntkdiag.probe_batch import ProbeBatch


@dataclasses.dataclass(frozen=True, eq=False)
class ProbeLabels:
    """Labels of one probe, read beside the outputs of the model."""

    y: PyTree  # as they came, for the loss
    # `[n *o]` targets in float64 shaped like the outputs, one-hot where they are class numbers;
    # None where a kernel cannot be laid beside them, see `alignable_targets`.
    targets: Float[np.ndarray, "n *o"] | None

    @property
    def flat_targets(self) -> Float[np.ndarray, "n o"] | None:
        """The targets as the kernel has its rows: all outputs of an example side by side."""
        return None if self.targets is None else self.targets.reshape(self.targets.shape[0], -1)


@dataclasses.dataclass(frozen=True, eq=False)
class HeldOutProbe:
    """Held-out examples beside those of `train`."""

    x: PyTree  # examples, N on the leading axis of every leaf
    labels: ProbeLabels  # their labels, read beside the outputs of the model
    reduction: ReductionLike  # reduction of their kernel

    def reduced_alike(self, kernel: Kernel) -> Kernel:
        """A kernel of `train`, reduced as theirs: alignments of two reductions do not compare."""
        return averaged_over_outputs(kernel) if self.reduction == "mean" else kernel


def read_labels(
    probe: ProbeBatch, settings: Settings, outputs_of_one: tuple[int, ...]
) -> ProbeLabels | None:
    """Labels of a probe in float64; refused where the loss cannot read them."""
    loss = settings.loss
    if probe.y is None and not isinstance(loss, CustomLoss):
        return None
    shape = (probe.n_examples, *outputs_of_one)
    # In float64, as the diagnostics are, whatever the model computes in.
    with jax.enable_x64(True):
        if isinstance(loss, CustomLoss):
            loss.require_runs(shape, np.float64, probe.y)
        if loss is not None and probe.y is not None:
            loss.read(probe.y, shape)
        targets = alignable_targets(probe.y, shape, loss)
        if targets is None:
            return ProbeLabels(probe.y, None)
        require_labels_differ(targets)
    return ProbeLabels(probe.y, np.asarray(targets, np.float64))


def read_held_out(settings: Settings, outputs_of_one: tuple[int, ...]) -> HeldOutProbe | None:
    """Held-out examples beside those of `train`; None where one probe is all there is."""
    probe = settings.probes.held_out
    if probe is None or settings.probes.train is None:
        return None
    labels = read_labels(probe, settings, outputs_of_one)
    assert labels is not None  # `read_probes` refuses held-out examples without
    reduction = automatic_of_held_out(settings.reduction, math.prod(outputs_of_one))
    return HeldOutProbe(probe.x, labels, reduction)


def averaged_over_outputs(kernel: Kernel) -> Kernel:
    """The mean over outputs of a full kernel; a reduced kernel as it is."""
    if kernel.ndim != 4:
        return kernel
    # [n o m o] -> [n m], in float64: the diagonal blocks are those of the kernel.
    mean = np.einsum("nomo->nm", np.asarray(kernel.array, np.float64)) / kernel.shape[1]
    convention = dataclasses.replace(kernel.convention, reduction="mean")
    return dataclasses.replace(kernel, array=mean.astype(kernel.dtype), convention=convention)
