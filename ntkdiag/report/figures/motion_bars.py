"""Which parameters moved, and which carry the kernel."""

from typing import Any

import numpy as np

from ntkdiag.report.figures.style import A_COLOUR, B_COLOUR, INK, figure, svg

BARS = 24  # more leaves are summed by the layer they belong to; of over twice as many layers those that count most


def movement(comparison: Any) -> str:
    """Draw the relative movement and the share of the trace, leaf by leaf, or layer by layer for large models."""
    rows, n_layers = _grouped(comparison.movement[:-1])
    shown = f": {len(rows)} of {n_layers} layers" if len(rows) < n_layers else ""
    place = np.arange(len(rows))[::-1]
    with figure(9.6, 0.9 + 0.3 * len(rows), columns=2, sharey=True) as (canvas, (left, right)):
        relative = [moved / norm if norm > 0 else np.nan for _, norm, moved, _, _ in rows]
        left.barh(place, relative, color=INK, alpha=0.75, height=0.62)
        for where, (_, norm, moved, _, _) in zip(place, rows, strict=True):
            if not norm > 0:
                said = f" from zero to norm {moved:.2g}" if moved else " stayed at zero"
                left.text(0, where, said, va="center", fontsize=8)
        left.set_yticks(place, [_short(name) for name, *_ in rows])
        left.set(title=f"Movement{shown}", xlabel="‖Δθ‖ / ‖θ_A‖")
        right.barh(
            place + 0.18,
            [100 * share for *_, share, _ in rows],
            color=A_COLOUR,
            height=0.34,
            label="A",
        )
        right.barh(
            place - 0.18,
            [100 * share for *_, share in rows],
            color=B_COLOUR,
            height=0.34,
            label="B",
        )
        right.set(title="Share of the kernel", xlabel="% of tr Θ")
        right.legend(loc="best")
        for panel in (left, right):
            panel.grid(axis="y", visible=False)
            panel.tick_params(axis="y", length=0)
        return svg(canvas, "movement")


def _grouped(leaves: Any) -> tuple[list[tuple[str, float, float, float, float]], int]:
    groups: dict[str, list[Any]] = {}
    for leaf in leaves:
        name = leaf.path.rpartition("/")[0] if len(leaves) > BARS else leaf.path
        groups.setdefault(name or leaf.path or "all", []).append(leaf)
    rows = [
        (
            name,
            float(np.sqrt(sum(leaf.norm**2 for leaf in group))),
            float(np.sqrt(sum(leaf.moved**2 for leaf in group))),
            sum(leaf.share_a for leaf in group),
            sum(leaf.share_b for leaf in group),
        )
        for name, group in groups.items()
    ]
    everything = sum(moved**2 for _, _, moved, _, _ in rows) or 1.0
    weight = lambda row: max(
        row[2] ** 2 / everything, row[3], row[4]
    )  # of the movement, or of a kernel
    largest = sorted(rows, key=weight, reverse=True)[: 2 * BARS]
    return [row for row in rows if row in largest], len(rows)


def _short(name: str) -> str:
    return name if len(name) <= 34 else f"…{name[-33:]}"
