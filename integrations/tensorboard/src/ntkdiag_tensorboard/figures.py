"""The figure of a spectrum."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def spectrum_figure(quantity: str, now: list[float], first: list[float]) -> "Figure":
    """A spectrum over its positions on a logarithmic axis, with the first one of the run in grey.

    Numbers that are not finite or not above zero have no place on the axis.
    """
    from matplotlib.figure import Figure  # of pyplot nothing: this is not the main thread

    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.add_subplot()
    for spectrum, label, color in ((first, "first", "0.7"), (now, "now", "C0")):
        shown = [value if 0 < value < math.inf else math.nan for value in spectrum]
        axes.plot(range(1, len(shown) + 1), shown, "o-", color=color, label=label)
    axes.set(xlabel="position", ylabel=quantity, yscale="log")
    axes.legend(frameon=False)
    return figure
