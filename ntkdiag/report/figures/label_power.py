"""How much of the labels lies in the fastest modes."""

from typing import TYPE_CHECKING

import numpy as np

from ntkdiag.report.figures.style import A_COLOUR, B_COLOUR, FAINT, logarithmic
from ntkdiag.report.reported import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def has_label_power(comparison: Comparison) -> bool:
    """Whether both sides have labels."""
    return comparison.a.label_power is not None and comparison.b.label_power is not None


def draw_label_power(comparison: Comparison, axes: "Axes") -> None:
    """Draw the cumulative label power C(k) of both sides."""
    power_a = comparison.a.label_power
    power_b = comparison.b.label_power
    rank_a = int(comparison.a.spectrum.rank)
    rank_b = int(comparison.b.spectrum.rank)
    # Directions of eigenvalues below the noise floor are rounding, and not drawn.
    n_modes = len(power_a)
    k = np.arange(1, n_modes + 1)
    axes.plot(k[:rank_a], power_a[:rank_a], color=A_COLOUR, label="A")
    axes.plot(k[:rank_b], power_b[:rank_b], color=B_COLOUR, label="B")
    dashed = (0, (4, 3))
    axes.plot(k, k / n_modes, color=FAINT, linestyle=dashed, label="labels spread evenly")
    axes.set(
        xlabel="number of modes k, fastest first",
        ylabel="share of the labels, C(k)",
        ylim=(0, 1.02),
    )
    logarithmic(axes, True, y=False)
    axes.legend(loc="upper left")
