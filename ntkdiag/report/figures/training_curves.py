"""What a monitor recorded during training."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from ntkdiag.report.figures.style import A_COLOUR, B_COLOUR, FAINT, INK, figure, logarithmic, svg
from ntkdiag.report.monitor_records import Row


def history(rows: Sequence[Row]) -> str:
    """Draw eigenvalues, drift, alignment and stability margin over the steps."""
    steps = np.array([row["step"] for row in rows])
    eigenvalues = _eigenvalues(rows)
    n_eigenvalues = eigenvalues.shape[1]
    with figure(9.6, 5.2, columns=2, rows=2, sharex=True) as (canvas, axes):
        top, drift, alignment, margin = axes.ravel()
        # From dark, the largest, to pale.
        for index in range(n_eigenvalues):
            fading = 1 - 0.75 * index / max(1, n_eigenvalues)
            top.plot(steps, eigenvalues[:, index], color=INK, alpha=fading, linewidth=1.3)
        logarithmic(top, bool((eigenvalues > 0).any()), x=False)
        top.set(title=f"Largest {n_eigenvalues} eigenvalues")

        drift.plot(steps, _series(rows, "ntk_distance_centred"), color=A_COLOUR)
        drift.set(title="Centred kernel distance from the first kernel")
        alignment.plot(steps, _series(rows, "ntk_alignment"), color=A_COLOUR)
        # Its zero: records of older versions do not have it.
        chance = _series(rows, "ntk_alignment_chance")
        alignment.plot(steps, chance, color=FAINT, linestyle=(0, (4, 3)), linewidth=1)
        alignment.set(title=_alignment_title(rows, chance), xlabel="step")
        margin.plot(steps, _series(rows, "ntk_margin"), color=B_COLOUR)
        margin.axhline(1, color=FAINT, linestyle=(0, (4, 3)), linewidth=1)
        margin.text(steps[-1], 1.0, "edge of stability", ha="right", va="bottom", fontsize=8)
        margin.set(title="Stability margin", xlabel="step")
        # From zero on: a small change of a large number is not to look like a large one.
        for panel in (drift, alignment, margin):
            panel.set_ylim(bottom=0)
        return svg(canvas, "history")


def _alignment_title(rows: Sequence[Row], chance: Float[np.ndarray, " steps"]) -> str:
    """What the curves are: the reduction, where the record of the run is at hand, and chance."""
    title = "Alignment"
    reduction = rows[0].get("ntk_alignment_reduction")
    if reduction is not None:
        title += f", {reduction}"
    if np.isfinite(chance).any():
        title += "; dashed: chance"
    return title


def _eigenvalues(rows: Sequence[Row]) -> Float[np.ndarray, "steps k"]:
    """The eigenvalues of every step; NaN where a step has fewer than another, or could not know."""
    longest = max(len(row["ntk_eigenvalues"]) for row in rows)
    values = np.full((len(rows), longest), np.nan)
    for index, row in enumerate(rows):
        for position, value in enumerate(row["ntk_eigenvalues"]):
            values[index, position] = _nan_if_unknown(value)
    return values


def _series(rows: Sequence[Row], name: str) -> Float[np.ndarray, " steps"]:
    """One number over the steps."""
    return np.array([_nan_if_unknown(row.get(name)) for row in rows], dtype=float)


def _nan_if_unknown(value: float | int | None) -> float:
    return np.nan if value is None else float(value)
