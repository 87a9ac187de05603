"""What a monitor recorded during training: the margin, and three other curves.

Which ones depends on what was measured, the kernel first: its eigenvalues, its motion, its
alignment; without it the largest curvatures, the error of a linear step, the trace.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from ntkdiag.report.figures.style import A_COLOUR, B_COLOUR, FAINT, INK, figure, logarithmic, svg
from ntkdiag.report.monitor_records import Row, array_of, numbers_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def history(rows: Sequence[Row]) -> str:
    """Draw what was measured over the steps: the stability margin, and three curves beside it."""
    curves = _curves(rows)
    steps = np.array([row["step"] for row in rows])
    with figure(9.6, 5.2, columns=2, rows=2, sharex=True) as (canvas, axes):
        panels = axes.ravel()
        for panel, (name, draw) in zip(panels, curves[:3], strict=False):
            draw(panel, rows, steps, name)
        for panel in panels[len(curves[:3]) : 3]:
            panel.set_axis_off()
        _draw_margin(panels[3], rows, steps)
        for panel in panels[2:]:
            panel.set_xlabel("step")
        return svg(canvas, "history")


Drawing = Callable[["Axes", Sequence[Row], Int[np.ndarray, " steps"], str], None]


def _curves(rows: Sequence[Row]) -> list[tuple[str, Drawing]]:
    """Names of what is drawn beside the margin, in the order of importance, and how."""
    candidates = [
        ("eigenvalues", _draw_largest),
        ("curvatures", _draw_largest),
        ("distance_centred", _draw_distance),
        ("alignment", _draw_alignment),
        ("step_error", _draw_step_error),
        ("trace", _draw_trace),
    ]
    measured = set().union(*rows)
    if "eigenvalues" in measured:
        measured.discard("curvatures")
    return [(name, draw) for name, draw in candidates if name in measured]


def _draw_largest(
    panel: "Axes", rows: Sequence[Row], steps: Int[np.ndarray, " steps"], name: str
) -> None:
    """Eigenvalues or curvatures."""
    values = array_of([row.get(name) for row in rows])
    n_values = values.shape[1]
    # From dark, the largest, to pale.
    for index in range(n_values):
        fading = 1 - 0.75 * index / max(1, n_values)
        panel.plot(steps, values[:, index], color=INK, alpha=fading, linewidth=1.3)
    logarithmic(panel, bool((values > 0).any()), x=False)
    title = f"Largest {n_values} eigenvalues"
    if name == "curvatures":
        title = f"Largest {n_values} curvatures, critical at 1"
    panel.set_title(title)


def _draw_distance(
    panel: "Axes", rows: Sequence[Row], steps: Int[np.ndarray, " steps"], name: str
) -> None:
    _draw_with_interval(panel, rows, steps, name, A_COLOUR)
    panel.set_title("Centred kernel distance from the first kernel")
    # From zero on: a small change of a large number is not to look like a large one.
    panel.set_ylim(bottom=0)


def _draw_alignment(
    panel: "Axes", rows: Sequence[Row], steps: Int[np.ndarray, " steps"], name: str
) -> None:
    panel.plot(steps, _series(rows, name), color=A_COLOUR)
    # Its zero: records of older versions do not have it.
    chance = _series(rows, "alignment_chance")
    panel.plot(steps, chance, color=FAINT, linestyle=(0, (4, 3)), linewidth=1)
    panel.set_title(_alignment_title(rows, chance))
    panel.set_ylim(bottom=0)


def _draw_step_error(
    panel: "Axes", rows: Sequence[Row], steps: Int[np.ndarray, " steps"], name: str
) -> None:
    _draw_with_interval(panel, rows, steps, name, A_COLOUR)
    panel.set_title("Relative error of the linearized model in one step")
    panel.set_ylim(bottom=0)


def _draw_trace(
    panel: "Axes", rows: Sequence[Row], steps: Int[np.ndarray, " steps"], name: str
) -> None:
    _draw_with_interval(panel, rows, steps, name, A_COLOUR)
    panel.set_title("Trace of the kernel")
    panel.set_ylim(bottom=0)


def _draw_margin(panel: "Axes", rows: Sequence[Row], steps: Int[np.ndarray, " steps"]) -> None:
    _draw_with_interval(panel, rows, steps, "margin", B_COLOUR)
    panel.axhline(1, color=FAINT, linestyle=(0, (4, 3)), linewidth=1)
    panel.text(steps[-1], 1.0, "edge of stability", ha="right", va="bottom", fontsize=8)
    panel.set_title("Stability margin")
    panel.set_ylim(bottom=0)


def _draw_with_interval(
    panel: "Axes",
    rows: Sequence[Row],
    steps: Int[np.ndarray, " steps"],
    name: str,
    colour: str,
) -> None:
    """A curve, with a band between the ends of its intervals where it is estimated."""
    panel.plot(steps, _series(rows, name), color=colour)
    lower = _series(rows, f"{name}_lower")
    upper = _series(rows, f"{name}_upper")
    # An end that is not finite bounds nothing.
    if (np.isfinite(lower) & np.isfinite(upper)).any():
        panel.fill_between(steps, lower, upper, color=colour, alpha=0.15, linewidth=0)


def _alignment_title(rows: Sequence[Row], chance: Float[np.ndarray, " steps"]) -> str:
    """What the curves are: the reduction, where the record of the run is at hand, and chance."""
    title = "Alignment"
    reduction = rows[0].get("alignment_reduction")
    if reduction is not None:
        title += f", {reduction}"
    if np.isfinite(chance).any():
        title += "; dashed: chance"
    return title


def _series(rows: Sequence[Row], name: str) -> Float[np.ndarray, " steps"]:
    """One number over the steps."""
    return numbers_of([row.get(name) for row in rows])
