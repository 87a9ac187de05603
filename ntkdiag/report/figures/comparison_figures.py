"""All figures of a comparison by name: what each shows, how it is drawn, and its numbers."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ntkdiag.report.figures.change_scatter import SIZE as SIZE_OF_PREDICTION
from ntkdiag.report.figures.change_scatter import draw_prediction
from ntkdiag.report.figures.heatmaps import SIZE as SIZE_OF_HEATMAPS
from ntkdiag.report.figures.heatmaps import draw_heatmaps
from ntkdiag.report.figures.label_power import SIZE as SIZE_OF_LABEL_POWER
from ntkdiag.report.figures.label_power import draw_label_power, has_label_power
from ntkdiag.report.figures.motion_bars import draw_movement, size_of
from ntkdiag.report.figures.run_figure import TableRow
from ntkdiag.report.figures.spectra import SIZE as SIZE_OF_SPECTRA
from ntkdiag.report.figures.spectra import WIDTHS, draw_spectra
from ntkdiag.report.reported import Comparison


def _always(comparison: Comparison) -> bool:
    """Every comparison has it."""
    del comparison
    return True


def _has_common_parameters(comparison: Comparison) -> bool:
    """Whether parameters lead from A to B."""
    return comparison.kernels_alone is None


@dataclasses.dataclass(frozen=True)
class ComparisonFigure:
    """One figure of a comparison.

    Attributes:
        name: As `comparison.plot.<name>()` calls it.
        caption: How to read it.
        size: Of a comparison, width and height in inches in the report.
        draw: Draws it on axes, or on a pair of axes where it has two panels.
        table: Its numbers, a dictionary for each line; none of a picture of kernels.
        panels: How many panels it has beside each other, and how they are laid out.
        is_there: Whether a comparison has the numbers.
    """

    name: str
    caption: str
    size: Callable[[Comparison], tuple[float, float]]
    draw: Callable[[Comparison, Any], None]
    table: Callable[[Comparison], list[TableRow]]
    panels: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_there: Callable[[Comparison], bool] = _always

    @property
    def n_panels(self) -> int:
        """How many panels it has."""
        return self.panels.get("ncols", 1)


def _fixed(size: tuple[float, float]) -> Callable[[Comparison], tuple[float, float]]:
    """A size that is the same for every comparison."""

    def of(comparison: Comparison) -> tuple[float, float]:
        """Width and height in inches."""
        del comparison
        return size

    return of


def _eigenvalues(comparison: Comparison) -> list[TableRow]:
    """A line for each resolved eigenvalue of each side."""
    lines = []
    for side, measured in (("A", comparison.a), ("B", comparison.b)):
        spectrum = measured.spectrum
        resolved = np.asarray(spectrum.eigenvalues)[: int(spectrum.rank)]
        for place, value in enumerate(resolved.tolist()):
            lines.append({"side": side, "index": place + 1, "eigenvalue": value})
    return lines


def _no_table(comparison: Comparison) -> list[TableRow]:
    """Nothing: a kernel has N^2 entries."""
    del comparison
    return []


def _movement(comparison: Comparison) -> list[TableRow]:
    """A line for each leaf."""
    *leaves, _ = comparison.movement
    return [leaf.to_dict() for leaf in leaves]


def _prediction(comparison: Comparison) -> list[TableRow]:
    """A line for each output of each example."""
    before = comparison.prediction.start
    actual = comparison.b.outputs - before  # [n o]
    predicted = comparison.prediction.outputs - before
    lines = []
    for (example, output), value in np.ndenumerate(actual):
        line = {"example": example, "output": output, "change": float(value)}
        lines.append({**line, "predicted": float(predicted[example, output])})
    return lines


def _label_power(comparison: Comparison) -> list[TableRow]:
    """A line for each number of modes."""
    powers = zip(comparison.a.label_power, comparison.b.label_power, strict=True)
    return [{"k": k + 1, "a": float(a), "b": float(b)} for k, (a, b) in enumerate(powers)]


COMPARISON_FIGURES: Mapping[str, ComparisonFigure] = {
    figure.name: figure
    for figure in (
        ComparisonFigure(
            name="spectra",
            caption="Eigenvalues of both kernels above their noise floors, and the ratio B / A.",
            size=_fixed(SIZE_OF_SPECTRA),
            draw=draw_spectra,
            table=_eigenvalues,
            panels={"ncols": 2, "width_ratios": WIDTHS},
        ),
        ComparisonFigure(
            name="heatmaps",
            caption="Both kernels averaged over outputs and centred over examples, in units of "
            "their mean diagonal.",
            size=_fixed(SIZE_OF_HEATMAPS),
            draw=draw_heatmaps,
            table=_no_table,
            panels={"ncols": 2},
        ),
        ComparisonFigure(
            name="movement",
            caption="How far the parameters moved, and their share of the trace of the kernel.",
            size=size_of,
            draw=draw_movement,
            table=_movement,
            is_there=_has_common_parameters,
            panels={"ncols": 2, "sharey": True},
        ),
        ComparisonFigure(
            name="prediction",
            caption="The change of the outputs from A to B against what the model linearized at A "
            "predicts of it; on the line the prediction is right.",
            size=_fixed(SIZE_OF_PREDICTION),
            draw=draw_prediction,
            table=_prediction,
            is_there=_has_common_parameters,
        ),
        ComparisonFigure(
            name="label_power",
            caption="Share of the centred labels in the k fastest modes; dashed, that of labels "
            "spread evenly over the modes.",
            size=_fixed(SIZE_OF_LABEL_POWER),
            draw=draw_label_power,
            table=_label_power,
            is_there=has_label_power,
        ),
    )
}
