"""The change of the outputs from A to B against what the model linearized at A predicts of it."""

from typing import Any

import numpy as np

from ntkdiag.report.figures.style import A_COLOUR, FAINT, INK, figure, svg

POINTS = 4000


def prediction(comparison: Any) -> str:
    """Draw one point per example and output; the outputs of the true class stand out. e1 is the distance from the line.

    Changes, not outputs: between two late checkpoints these hardly differ, and everything would lie on the line.
    """
    before = comparison.a.outputs
    actual, predicted = comparison.b.outputs - before, comparison.prediction.outputs - before
    classes = comparison.classes
    right = np.zeros(actual.shape, bool)
    if classes is not None:
        right[np.arange(len(classes)), classes] = True
    every = max(1, int(np.ceil(actual.size / POINTS)))
    with figure(4.6, 4.2) as (canvas, axes):
        low, high = min(actual.min(), predicted.min()), max(actual.max(), predicted.max())
        axes.plot([low, high], [low, high], color=FAINT, linewidth=1)
        groups = [
            (~right, INK, "other outputs" if classes is not None else None, 0.35),
            (right, A_COLOUR, "output of the label", 0.9),
        ]
        for mask, colour, name, alpha in groups:
            if mask.any():
                points = predicted[mask][::every], actual[mask][::every]
                axes.plot(
                    *points,
                    ".",
                    color=colour,
                    alpha=alpha,
                    label=name,
                    markersize=4,
                    markeredgewidth=0,
                )
        axes.set(
            title="Linear prediction",
            xlabel="change predicted by the linear model at A",
            ylabel="change from A to B",
        )
        if classes is not None:
            axes.legend(loc="upper left", handletextpad=0.1)
        return svg(canvas, "prediction")
