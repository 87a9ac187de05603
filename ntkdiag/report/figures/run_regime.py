"""Figures of the regime of a run: how far the kernel moved, and what a linear model predicts."""

import numpy as np

from ntkdiag.report.figures.run_figure import Curve, LineFigure, PairFigure, RunFigure
from ntkdiag.report.figures.run_training import over_checkpoints, over_measurements
from ntkdiag.report.run_subject import RunSubject

PAGE = "regime"
_TWO = "It needs two checkpoints of track."


def _distances(subject: RunSubject) -> list[Curve]:
    return over_checkpoints(subject, {"drift_distance_centred": "centred distance"})


def _drifts(subject: RunSubject) -> list[Curve]:
    of_checkpoints = over_checkpoints(subject, {"drift": "checkpoints"})
    return of_checkpoints + over_measurements(subject, {"drift": "monitor"})


def _predictions(subject: RunSubject) -> list[Curve]:
    e1 = subject.matrix("e1")
    if e1 is None:
        return []
    steps = np.asarray(subject.steps, np.float64)
    middle = len(steps) // 2
    curves = []
    for place in sorted({0, middle} - {len(steps) - 1}):
        label = f"linearized at step {subject.steps[place]}"
        curves.append(Curve(label, steps[place + 1 :], e1[place, place + 1 :]))
    return curves


REGIME: tuple[RunFigure, ...] = (
    LineFigure(
        name="drift_distance_centred",
        page=PAGE,
        title="Rotation of the kernel",
        caption="Centred distance from the first kernel: 0 is the same direction, 1 an unrelated "
        "one. Below 0.01 the kernel hardly rotated, beyond 0.1 features moved.",
        needs=_TWO,
        curves=_distances,
        from_zero=True,
    ),
    LineFigure(
        name="drift",
        page=PAGE,
        title="Change of the kernel",
        caption="‖Θ − Θ₀‖ / ‖Θ₀‖ from the first kernel, its scale included. Checkpoints and "
        "monitors may measure different examples.",
        needs="It needs two checkpoints of track, or a monitor.",
        curves=_drifts,
        from_zero=True,
    ),
    PairFigure(
        name="e1",
        page=PAGE,
        title="Linearization error of all pairs",
        caption="Row: where the network is linearized; column: what it predicts. Dark columns to "
        "the right of a row say that from there on the network is nearly linear.",
        needs=_TWO,
        matrix="e1",
        rows="linearized at step",
        columns="predicting step",
        bar="e₁, 1 is no prediction",
        largest=1.0,
    ),
    PairFigure(
        name="distance_centred",
        page=PAGE,
        title="Distance of all pairs of kernels",
        caption="1 − cosine between two kernels, centred over examples. Dark blocks are phases in "
        "which the kernel rests.",
        needs=_TWO,
        matrix="distance_centred",
        bar="centred distance",
    ),
    LineFigure(
        name="prediction",
        page=PAGE,
        title="What a linearized network gets wrong",
        caption="e₁ of the network linearized at one checkpoint, for the outputs of later ones. "
        "Below 0.1 the linear model is usable.",
        needs=_TWO,
        curves=_predictions,
        quantity="e1",
        from_zero=True,
        level=0.1,
        level_name="usable below",
    ),
)
