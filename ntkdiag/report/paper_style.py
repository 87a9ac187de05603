"""The look of a figure that is no part of a page: dark on light, and the style of a paper."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ntkdiag import display
from ntkdiag.report.figures.style import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LIGHT_INK = "#222222"
LIGHT_LINE = "#b4b4b4"

_STYLE: Any = {  # Any: matplotlib's stubs list the names of its settings one by one
    "figure.figsize": (3.25, 2.3),  # inches: one column of ICML
    "figure.constrained_layout.use": True,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # TrueType, which conferences ask for
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "axes.edgecolor": LIGHT_LINE,
    "axes.labelcolor": LIGHT_INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LIGHT_LINE,
    "grid.linewidth": 0.4,
    "lines.linewidth": 1.2,
    "lines.markersize": 2.5,
}


@contextlib.contextmanager
def paper_style() -> Iterator[None]:
    """Draw figures in the width of a column, in 8 point, while the context is open.

        with ntkdiag.report.paper_style():
            run.plot.drift().figure.savefig("drift.pdf")

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    display.require_matplotlib()
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def recolour(ax: "Axes") -> None:
    """Give everything on axes that is drawn in the colours of a page those of paper."""
    from matplotlib.colors import to_hex
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

    light = {INK: LIGHT_INK, FAINT: LIGHT_LINE}

    def is_of_the_page(artist: Any) -> bool:
        """Whether a line or a text has a colour that stands for one of the page."""
        return isinstance(artist, Line2D | Text) and to_hex(artist.get_color()) in light

    for artist in ax.findobj(is_of_the_page):
        colour = to_hex(artist.get_color())  # pyright: ignore[reportAttributeAccessIssue]
        artist.set(color=light[colour])
    for patch in ax.patches:
        if to_hex(patch.get_facecolor()) in light:
            patch.set_facecolor(light[to_hex(patch.get_facecolor())])
