"""What a monitor recorded during training."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ntkdiag.report.figures.style import A_COLOUR, B_COLOUR, FAINT, INK, figure, logarithmic, svg


def history(rows: Sequence[Mapping[str, Any]]) -> str:
    """Draw eigenvalues, drift, alignment and stability margin over the steps."""
    steps = np.array([row["step"] for row in rows])
    with figure(9.6, 5.2, columns=2, rows=2, sharex=True) as (canvas, axes):
        top, drift, aligned, margin = axes.ravel()
        longest = max(len(row["ntk_eigenvalues"]) for row in rows)
        padded = [
            [*row["ntk_eigenvalues"], *[None] * (longest - len(row["ntk_eigenvalues"]))]
            for row in rows
        ]
        values = np.array([[_value(item) for item in row] for row in padded], dtype=float)
        for index in range(values.shape[1]):
            top.plot(
                steps,
                values[:, index],
                color=INK,
                alpha=1 - 0.75 * index / max(1, values.shape[1]),
                linewidth=1.3,
            )
        logarithmic(top, bool((values > 0).any()), x=False)
        top.set(title=f"Largest {values.shape[1]} eigenvalues")
        drift.plot(steps, _series(rows, "ntk_distance_centred"), color=A_COLOUR)
        drift.set(title="Centred kernel distance from the first kernel")
        aligned.plot(steps, _series(rows, "ntk_alignment"), color=A_COLOUR)
        aligned.set(title="Alignment with the labels", xlabel="step")
        margin.plot(steps, _series(rows, "ntk_margin"), color=B_COLOUR)
        margin.axhline(1, color=FAINT, linestyle=(0, (4, 3)), linewidth=1)
        margin.text(steps[-1], 1.0, "edge of stability", ha="right", va="bottom", fontsize=8)
        margin.set(title="Stability margin", xlabel="step")
        for panel in (drift, aligned, margin):
            panel.set_ylim(bottom=0)
        return svg(canvas, "history")


def _series(rows: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    return np.array([_value(row.get(name)) for row in rows], dtype=float)


def _value(value: Any) -> float:
    return np.nan if value is None else float(value)
