"""Figures of how the kernel fits the labels: alignment, label power, leave-one-out."""

import numpy as np

from ntkdiag.report.figures.run_figure import (
    Curve,
    LineFigure,
    RunFigure,
    colours_of_states,
    spread_places,
)
from ntkdiag.report.figures.run_training import over_checkpoints, over_measurements
from ntkdiag.report.run_subject import RunSubject

PAGE = "generalization"
_STORED = "It needs track(..., out=) and labels: it is computed of the stored kernels."


def _alignments(subject: RunSubject) -> list[Curve]:
    names = {
        "alignment_above": "of the probe",
        "train_alignment_above": "trained on",
        "held_out_alignment_above": "held out",
    }
    curves = over_checkpoints(subject, names)
    return curves or over_measurements(subject, {"alignment_above": "monitor"})


def _label_powers(subject: RunSubject) -> list[Curve]:
    powers = subject.label_powers
    curves = []
    for step, power, colour in zip(
        subject.steps, powers, colours_of_states(len(powers)), strict=False
    ):
        places = spread_places(len(power))
        k = (places + 1).astype(np.float64)
        curves.append(Curve(f"step {step}", k, power[places], colour=colour))
    return curves


def _left_out(subject: RunSubject) -> list[Curve]:
    errors_left_out = subject.errors_left_out
    if not len(errors_left_out):
        return []
    steps = np.asarray(subject.steps, np.float64)
    return [Curve("leave-one-out error", steps, errors_left_out)]


LABELS: tuple[RunFigure, ...] = (
    LineFigure(
        name="alignment",
        page=PAGE,
        title="Alignment with the labels",
        caption="Centred alignment of kernel and labels, above that of permuted labels: 0 is "
        "chance, 1 a kernel of the labels alone.",
        needs="It needs labels.",
        curves=_alignments,
        quantity="alignment_above",
    ),
    LineFigure(
        name="label_power",
        page=PAGE,
        title="Label power",
        caption="Share of the centred labels in the k fastest modes of the kernel averaged over "
        "outputs. A curve that rises early: what is learned fast is what the labels ask for.",
        needs=_STORED,
        curves=_label_powers,
        x_name="modes k",
        logarithmic_x=True,
        from_zero=True,
        are_states=True,
    ),
    LineFigure(
        name="leave_one_out",
        page=PAGE,
        title="Leave-one-out error of kernel regression",
        caption="Squared error on an example left out, over the variance of the labels: 1 is no "
        "better than their mean. Of examples trained on it is too low after training.",
        needs=_STORED,
        curves=_left_out,
        from_zero=True,
        level=1.0,
        level_name="mean of the labels",
    ),
)
