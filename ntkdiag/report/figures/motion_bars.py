"""Which parameters moved, and which carry the kernel."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ntkdiag.report.figures.style import A_COLOUR, B_COLOUR, INK
from ntkdiag.report.reported import Comparison, LeafMovement

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# More leaves are summed by the layer they belong to; of over twice as many layers those are drawn
# that count most.
BARS = 24
LONGEST_NAME = 34


@dataclasses.dataclass(frozen=True)
class _Bar:
    """A leaf, or all leaves of a layer together."""

    name: str
    norm: float
    moved: float
    share_a: float
    share_b: float


def size_of(comparison: Comparison) -> tuple[float, float]:
    """Width and height in inches: as high as there are bars."""
    *leaves, _ = comparison.movement
    return 9.6, 0.9 + 0.3 * len(_most_important(_bars(leaves)))


def draw_movement(comparison: Comparison, axes: Sequence["Axes"]) -> None:
    """Draw relative movement and share of the trace, by leaf, or by layer for large models."""
    *leaves, _ = comparison.movement
    layers = _bars(leaves)
    bars = _most_important(layers)
    title = "Movement"
    if len(bars) < len(layers):
        title = f"Movement: {len(bars)} of {len(layers)} layers"
    places = np.arange(len(bars))[::-1]  # the first on top

    left, right = axes
    relative = [bar.moved / bar.norm if bar.norm > 0 else np.nan for bar in bars]
    left.barh(places, relative, color=INK, alpha=0.75, height=0.62)
    for place, bar in zip(places, bars, strict=True):
        # Without a norm at A there is no relative movement.
        if not bar.norm > 0:
            text = f" from zero to norm {bar.moved:.2g}" if bar.moved else " stayed at zero"
            left.text(0, place, text, va="center", fontsize=8)
    left.set_yticks(places, [_short(bar.name) for bar in bars])
    left.set(title=title, xlabel="‖Δθ‖ / ‖θ‖ at A")

    shares_a = [100 * bar.share_a for bar in bars]
    shares_b = [100 * bar.share_b for bar in bars]
    right.barh(places + 0.18, shares_a, color=A_COLOUR, height=0.34, label="A")
    right.barh(places - 0.18, shares_b, color=B_COLOUR, height=0.34, label="B")
    right.set(title="Share of the kernel", xlabel="% of tr Θ")
    right.legend(loc="best")
    for panel in (left, right):
        panel.grid(axis="y", visible=False)
        panel.tick_params(axis="y", length=0)


def _bars(leaves: Sequence[LeafMovement]) -> list[_Bar]:
    """One bar for each leaf, or for each layer where there are many leaves."""
    layers: dict[str, list[LeafMovement]] = {}
    for leaf in leaves:
        name = leaf.path
        if len(leaves) > BARS:
            name = leaf.path.rpartition("/")[0]
        # A leaf at the top is in no layer, and the only leaf of a model may have no path either.
        layers.setdefault(name or leaf.path or "all", []).append(leaf)
    bars = []
    for name, members in layers.items():
        bar = _Bar(
            name,
            norm=float(np.sqrt(sum(leaf.norm**2 for leaf in members))),
            moved=float(np.sqrt(sum(leaf.moved**2 for leaf in members))),
            share_a=sum(leaf.share_a for leaf in members),
            share_b=sum(leaf.share_b for leaf in members),
        )
        bars.append(bar)
    return bars


def _most_important(bars: list[_Bar]) -> list[_Bar]:
    """The bars with the largest share of the movement, or of a kernel, in their order."""
    all_moved = sum(bar.moved**2 for bar in bars) or 1.0  # where nothing moved, no bar has a share

    def importance(bar: _Bar) -> float:
        """The largest share that a bar has of anything that is drawn."""
        return max(bar.moved**2 / all_moved, bar.share_a, bar.share_b)

    largest = sorted(bars, key=importance, reverse=True)[: 2 * BARS]
    return [bar for bar in bars if bar in largest]


def _short(name: str) -> str:
    """The end of a long name, which tells leaves apart."""
    if len(name) <= LONGEST_NAME:
        return name
    return f"…{name[-(LONGEST_NAME - 1) :]}"
