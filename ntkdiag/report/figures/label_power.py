"""How much of the labels lies in the fastest modes."""

from typing import Any

import numpy as np

from ntkdiag.report.figures.style import A_COLOUR, B_COLOUR, FAINT, figure, logarithmic, svg


def label_power(comparison: Any) -> str:
    """Draw the cumulative label power C(k) of both sides, and the level of labels spread evenly over the modes."""
    with figure(6.4, 3.3) as (canvas, axes):
        for name, side, colour in (("A", comparison.a, A_COLOUR), ("B", comparison.b, B_COLOUR)):
            rank = side.spectrum.rank
            index = np.arange(1, len(side.label_power) + 1)
            axes.plot(index[:rank], side.label_power[:rank], color=colour, label=name)
        axes.plot(
            index,
            index / len(index),
            color=FAINT,
            linestyle=(0, (4, 3)),
            label="labels spread evenly",
        )
        axes.set(
            title="Label power",
            xlabel="number of modes k, fastest first",
            ylabel="share of the labels, C(k)",
            ylim=(0, 1.02),
        )
        logarithmic(axes, True, y=False)
        axes.legend(loc="upper left")
        return svg(canvas, "labels")
