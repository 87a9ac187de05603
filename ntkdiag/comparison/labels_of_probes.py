"""The labels of the probes, read beside the outputs of the model."""

import math

import jax
import numpy as np

from ntkdiag.comparison.held_out import HeldOutProbe
from ntkdiag.comparison.label_fit import ProbeLabels
from ntkdiag.comparison.settings import Settings
from ntkdiag.kernel.reduction import automatic_of_held_out
from ntkdiag.losses.targets import as_numbers, read_targets, require_labels_differ
from ntkdiag.probe_batch import ProbeBatch


def read_labels(
    probe: ProbeBatch, settings: Settings, outputs_of_one: tuple[int, ...]
) -> ProbeLabels | None:
    """Labels of a probe in float64; refused where targets or the loss cannot be made of them."""
    if probe.y is None:
        return None
    shape = (probe.n_examples, *outputs_of_one)
    # In float64, as the diagnostics are, whatever the model computes in.
    with jax.enable_x64(True):
        targets = read_targets(probe.y, shape)
        require_labels_differ(targets)
        if settings.loss is not None:
            settings.loss.read(as_numbers(probe.y), shape)
    return ProbeLabels(as_numbers(probe.y), np.asarray(targets, np.float64))


def read_held_out(settings: Settings, outputs_of_one: tuple[int, ...]) -> HeldOutProbe | None:
    """Held-out examples beside those of `train`; None where one probe is all there is."""
    probe = settings.probes.held_out
    if probe is None or settings.probes.train is None:
        return None
    labels = read_labels(probe, settings, outputs_of_one)
    assert labels is not None  # `read_probes` refuses held-out examples without
    reduction = automatic_of_held_out(settings.reduction, math.prod(outputs_of_one))
    return HeldOutProbe(probe.x, labels, reduction)
