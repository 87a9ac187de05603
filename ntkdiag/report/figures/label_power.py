"""How much of the labels lies in the fastest modes."""

import numpy as np

from ntkdiag.report.figures.style import A_COLOUR, B_COLOUR, FAINT, figure, logarithmic, svg
from ntkdiag.report.reported import Comparison


def label_power(comparison: Comparison) -> str:
    """Draw the cumulative label power C(k) of both sides.

    A dashed line is the level of labels that are spread evenly over the modes. Nothing is drawn
    without labels.
    """
    power_a = comparison.a.label_power
    power_b = comparison.b.label_power
    if power_a is None or power_b is None:
        return ""
    rank_a = int(comparison.a.spectrum.rank)
    rank_b = int(comparison.b.spectrum.rank)
    # Directions of eigenvalues below the noise floor are rounding, and not drawn.
    n_modes = len(power_a)
    k = np.arange(1, n_modes + 1)
    with figure(6.4, 3.3) as (canvas, axes):
        axes.plot(k[:rank_a], power_a[:rank_a], color=A_COLOUR, label="A")
        axes.plot(k[:rank_b], power_b[:rank_b], color=B_COLOUR, label="B")
        dashed = (0, (4, 3))
        axes.plot(k, k / n_modes, color=FAINT, linestyle=dashed, label="labels spread evenly")
        axes.set(
            title="Label power",
            xlabel="number of modes k, fastest first",
            ylabel="share of the labels, C(k)",
            ylim=(0, 1.02),
        )
        logarithmic(axes, True, y=False)
        axes.legend(loc="upper left")
        return svg(canvas, "labels")
