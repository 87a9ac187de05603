"""The labels of the probes, read beside the outputs of the model."""

import math

import jax
import numpy as np

from ntkdiag.kernel.reduction import automatic_of_held_out
from ntkdiag.losses.alignable import alignable_targets
from ntkdiag.losses.custom_loss import CustomLoss
from ntkdiag.losses.targets import require_labels_differ
from ntkdiag.measuring.held_out import HeldOutProbe
from ntkdiag.measuring.kernel_regression import ProbeLabels
from ntkdiag.measuring.settings import Settings
from ntkdiag.probe_batch import ProbeBatch


def read_labels(
    probe: ProbeBatch, settings: Settings, outputs_of_one: tuple[int, ...]
) -> ProbeLabels | None:
    """Labels of a probe in float64; refused where the loss cannot read them.

    None without labels, unless the loss is the user's, who may need none.
    """
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
