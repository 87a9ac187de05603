"""The change of the outputs from A to B against what the model linearized at A predicts of it."""

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool

from ntkdiag.report.figures.style import A_COLOUR, FAINT, INK
from ntkdiag.report.reported import Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 4000  # of more, every other or third is drawn


def draw_prediction(comparison: Comparison, axes: "Axes") -> None:
    """Draw one point per example and output; e1 is the distance from the line."""
    before = comparison.prediction.start
    actual = comparison.b.outputs - before  # [n o]
    predicted = comparison.prediction.outputs - before
    classes = comparison.classes
    is_label = np.zeros(actual.shape, bool)
    if classes is not None:
        is_label[np.arange(len(classes)), classes] = True
    stride = max(1, int(np.ceil(actual.size / POINTS)))

    low = min(actual.min(), predicted.min())
    high = max(actual.max(), predicted.max())
    axes.plot([low, high], [low, high], color=FAINT, linewidth=1)

    def draw(mask: Bool[np.ndarray, "n o"], **look: Any) -> None:
        """The points where the mask is true, in a look of their own; no more than POINTS."""
        if mask.any():
            x = predicted[mask][::stride]
            y = actual[mask][::stride]
            axes.plot(x, y, ".", markersize=4, markeredgewidth=0, **look)

    draw(~is_label, color=INK, alpha=0.35, label="other outputs" if is_label.any() else None)
    draw(is_label, color=A_COLOUR, alpha=0.9, label="output of the label")
    axes.set(
        xlabel="change predicted by the model linearized at A",
        ylabel="change from A to B",
    )
    if classes is not None:
        axes.legend(loc="upper left", handletextpad=0.1)
