"""Figures of which kernel a run has: its spectrum over training, its ranks, its leading modes."""

import math

import numpy as np

from ntkdiag.report.figures.run_figure import (
    Curve,
    LineFigure,
    PairFigure,
    RunFigure,
    colours_of_states,
    spread_places,
)
from ntkdiag.report.figures.run_training import over_checkpoints, over_measurements
from ntkdiag.report.run_subject import RunSubject

PAGE = "kernel"
MOST_EIGENVALUES = 12  # that are drawn over training
_TRACKED = "It needs a checkpoint of track."


def _spectra(subject: RunSubject) -> list[Curve]:
    """The resolved eigenvalues of every checkpoint over their index."""
    if subject.track is None:
        return []
    eigenvalues = subject.track.eigenvalues
    floors = subject.track.series("noise_floor")
    places = spread_places(eigenvalues.shape[1])
    curves = []
    colours = colours_of_states(len(eigenvalues))
    for place, step in enumerate(subject.steps):
        of_step = eigenvalues[place, places]
        # What is below the noise floor is rounding, and no number to be drawn.
        resolved = np.where(of_step > floors[place], of_step, math.nan)
        x = (places + 1).astype(np.float64)
        curves.append(Curve(f"step {step}", x, resolved, colour=colours[place]))
    return curves


def _eigenvalues(subject: RunSubject) -> list[Curve]:
    """Some eigenvalues over training, and the noise floor."""
    if subject.track is None:
        return _largest_of_monitor(subject)
    eigenvalues = subject.track.eigenvalues
    floors = subject.track.series("noise_floor")
    n_resolved = int(np.max(np.sum(eigenvalues > floors[:, None], axis=1), initial=0))
    if n_resolved == 0:
        return []
    indices = np.unique(np.geomspace(1, n_resolved, MOST_EIGENVALUES).round().astype(int))
    steps = np.asarray(subject.steps, np.float64)
    curves = []
    for index, colour in zip(indices, colours_of_states(len(indices)), strict=True):
        values = eigenvalues[:, index - 1]
        resolved = np.where(values > floors, values, math.nan)
        curves.append(Curve(f"λ{index}", steps, resolved, colour=colour))
    return [*curves, Curve("noise floor", steps, floors, dashed=True)]


def _largest_of_monitor(subject: RunSubject) -> list[Curve]:
    """The largest eigenvalues, as a monitor has them."""
    curves = []
    for place in range(MOST_EIGENVALUES):
        measured = subject.measured("eigenvalues", place)
        if measured is not None:
            curves.append(Curve(f"λ{place + 1}", *measured))
    colours = colours_of_states(len(curves))
    return [
        Curve(curve.label, curve.x, curve.y, colour=colour)
        for curve, colour in zip(curves, colours, strict=True)
    ]


def _ranks(subject: RunSubject) -> list[Curve]:
    names = {
        "rank": "resolved eigenvalues",
        "entropy_rank": "entropy rank",
        "participation_ratio": "participation ratio",
    }
    of_monitor = {"participation_ratio": "participation ratio, monitor"}
    return over_checkpoints(subject, names) or over_measurements(subject, of_monitor)


KERNEL: tuple[RunFigure, ...] = (
    LineFigure(
        name="spectrum",
        page=PAGE,
        title="Spectrum, checkpoint by checkpoint",
        caption="Eigenvalues of the kernel over their index, as far as they are above the noise "
        "floor. From blue, the first checkpoint, to orange, the last one.",
        needs=_TRACKED,
        curves=_spectra,
        x_name="index",
        quantity="eigenvalues",
        logarithmic_x=True,
        logarithmic_y=True,
        are_states=True,
    ),
    LineFigure(
        name="eigenvalues",
        page=PAGE,
        title="Eigenvalues over training",
        caption="Some eigenvalues, the largest blue. Below the dashed noise floor there is "
        "rounding, and nothing is drawn.",
        needs="It needs a checkpoint of track, or a monitor.",
        curves=_eigenvalues,
        logarithmic_y=True,
    ),
    LineFigure(
        name="ranks",
        page=PAGE,
        title="How many modes the kernel has",
        caption="Eigenvalues above the noise floor; exp of the entropy of λ / Σλ; (Σλ)² / Σλ². "
        "They fall when the kernel compresses.",
        needs="It needs a checkpoint of track, or a monitor.",
        curves=_ranks,
        y_name="modes",
        logarithmic_y=True,
    ),
    PairFigure(
        name="overlap",
        page=PAGE,
        title="Overlap of the leading modes",
        caption="‖U_iᵀ U_j‖² / m of the m leading modes of two centred kernels: 1 the same "
        "directions, 0 orthogonal ones.",
        needs="It needs two checkpoints of track.",
        matrix="overlap",
        bar="overlap",
        largest=1.0,
    ),
)
