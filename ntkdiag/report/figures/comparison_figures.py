"""All figures of a comparison by name, and how each is drawn."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from ntkdiag.report.figures.change_scatter import SIZE as SIZE_OF_PREDICTION
from ntkdiag.report.figures.change_scatter import draw_prediction
from ntkdiag.report.figures.heatmaps import SIZE as SIZE_OF_HEATMAPS
from ntkdiag.report.figures.heatmaps import draw_heatmaps
from ntkdiag.report.figures.label_power import SIZE as SIZE_OF_LABEL_POWER
from ntkdiag.report.figures.label_power import draw_label_power, has_label_power
from ntkdiag.report.figures.spectra import SIZE as SIZE_OF_SPECTRA
from ntkdiag.report.figures.spectra import WIDTHS, draw_spectra
from ntkdiag.report.reported import Comparison


def _always(comparison: Comparison) -> bool:
    """Every comparison has it."""
    del comparison
    return True


@dataclasses.dataclass(frozen=True)
class ComparisonFigure:
    """One figure of a comparison."""

    name: str  # as `comparison.plot.<name>()` calls it
    size: tuple[float, float]  # width and height in inches in the report
    # Draws it on axes, or on a pair of axes where it has two panels.
    draw: Callable[[Comparison, Any], None]
    # How many panels it has beside each other, and how they are laid out.
    panels: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_there: Callable[[Comparison], bool] = _always  # whether a comparison has the numbers

    @property
    def n_panels(self) -> int:
        """How many panels it has."""
        return self.panels.get("ncols", 1)


COMPARISON_FIGURES: Mapping[str, ComparisonFigure] = {
    figure.name: figure
    for figure in (
        ComparisonFigure(
            name="spectra",
            size=SIZE_OF_SPECTRA,
            draw=draw_spectra,
            panels={"ncols": 2, "width_ratios": WIDTHS},
        ),
        ComparisonFigure(
            name="heatmaps",
            size=SIZE_OF_HEATMAPS,
            draw=draw_heatmaps,
            panels={"ncols": 2},
        ),
        ComparisonFigure(
            name="prediction",
            size=SIZE_OF_PREDICTION,
            draw=draw_prediction,
        ),
        ComparisonFigure(
            name="label_power",
            size=SIZE_OF_LABEL_POWER,
            draw=draw_label_power,
            is_there=has_label_power,
        ),
    )
}
