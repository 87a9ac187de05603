"""The ROC of some numbers, as a picture."""

import pathlib
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import roc_auc_score, roc_curve

from benchmarks.alarms.evaluation import Scored

# What takes the place of a number that is not known: below all others.
_LOWEST = -1e30


def draw(path: pathlib.Path, scored: Mapping[str, Sequence[Scored]]) -> None:
    """Curves of steps: which share of those ahead of a spike is named, at which share of others."""
    figure, axes = plt.subplots(figsize=(5.2, 3.9), layout="constrained")
    for number, (name, of_runs) in enumerate(scored.items()):
        ahead = np.concatenate([one.is_ahead for one in of_runs])
        scores = np.concatenate([one.scores for one in of_runs])
        scores = np.clip(scores, _LOWEST, -_LOWEST)
        wrong, right, _ = roc_curve(ahead, scores)
        area = roc_auc_score(ahead, scores)
        axes.plot(
            wrong,
            right,
            label=f"{name.strip('*')}, {area:.2f}",
            linewidth=2.2 if number == 0 else 1.2,
            linestyle="-" if number < 3 else "--",
        )
    axes.plot([0, 1], [0, 1], color="0.8", linewidth=0.8, zorder=0)
    axes.set_xlabel("share of other steps that are warned of")
    axes.set_ylabel("share of the 50 steps before a spike")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, dpi=130)
    plt.close(figure)
