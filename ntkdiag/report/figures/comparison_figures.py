"""All figures of a comparison by name, and how each is drawn."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ntkdiag.report.figures.change_scatter import draw_prediction
from ntkdiag.report.figures.heatmaps import draw_kernel_a, draw_kernel_b
from ntkdiag.report.figures.label_power import draw_label_power, has_label_power
from ntkdiag.report.figures.spectra import draw_spectra, draw_spectrum_change
from ntkdiag.report.reported import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OF_KERNELS = (
    "Averaged over outputs, centred, divided by the mean diagonal; A and B have one colour scale. "
    "Examples are sorted by class where labels are classes: blocks along the diagonal are classes "
    "whose examples teach each other."
)


@dataclasses.dataclass(frozen=True)
class ComparisonFigure:
    """One figure of a comparison."""

    name: str  # as `comparison.plot.<name>()` calls it
    section: str  # the part of the page that it is in: "kernel", "motion" or "prediction"
    title: str  # what it shows, in a few words
    caption: str  # how to read it
    draw: Callable[[Comparison, "Axes"], None]
    is_there: Callable[[Comparison], bool] = lambda comparison: True  # whether it has the numbers


COMPARISON_FIGURES: Mapping[str, ComparisonFigure] = {
    figure.name: figure
    for figure in (
        ComparisonFigure(
            name="spectra",
            section="kernel",
            title="Eigenvalues",
            caption="Resolved eigenvalues of both kernels. Below the dashed noise floors "
            "eigenvalues are rounding and are not drawn.",
            draw=draw_spectra,
        ),
        ComparisonFigure(
            name="spectrum_change",
            section="kernel",
            title="Change of the eigenvalues",
            caption="Each eigenvalue of B over that of A. A flat line is a change of scale alone.",
            draw=draw_spectrum_change,
        ),
        ComparisonFigure(
            name="kernel_a",
            section="kernel",
            title="Kernel of A",
            caption=_OF_KERNELS,
            draw=draw_kernel_a,
        ),
        ComparisonFigure(
            name="kernel_b",
            section="kernel",
            title="Kernel of B",
            caption=_OF_KERNELS,
            draw=draw_kernel_b,
        ),
        ComparisonFigure(
            name="label_power",
            section="motion",
            title="Label power",
            caption="Share of the centred labels within the k fastest modes of the centred kernel. "
            "A curve that rises early means that what is learned fast is what the labels ask for.",
            draw=draw_label_power,
            is_there=has_label_power,
        ),
        ComparisonFigure(
            name="prediction",
            section="prediction",
            title="Linear prediction",
            caption="Each point is one output of one probe example. On the line, training from A "
            "to B would be explained by the kernel at A; e1 is the distance from it, relative to "
            "the change.",
            draw=draw_prediction,
        ),
    )
}
