"""The colours of a figure that is no part of a page: dark on light.

Figures of the report are drawn in colours that stand for those of the page (`figures.style`). Where
a figure is drawn for a notebook, a paper or axes of the user, they become colours of their own.
"""

from typing import TYPE_CHECKING, Any

from ntkdiag.report.figures.style import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LIGHT_INK = "#222222"
LIGHT_LINE = "#b4b4b4"


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
