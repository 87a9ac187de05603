"""The look of figures: inline SVG in the colours of a page, or dark on light for papers.

A page is light or dark, and a drawing does not know which. So it is drawn in colours that occur
nowhere else, and in the finished SVG these are replaced by variables of the page's style sheet.
"""

import contextlib
import io
import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ntkdiag import plugins

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Blue and orange: told apart with every common kind of colour blindness.
A_COLOUR = "#3b7dd8"
B_COLOUR = "#e07b1f"
INK = "#010203"  # stands for the page's text colour
FAINT = "#040506"  # stands for the page's line colour
# Of a page, which follow its light or dark setting, and on paper.
OF_PAGE = {A_COLOUR: "var(--a)", B_COLOUR: "var(--b)", INK: "currentColor", FAINT: "var(--line)"}
ON_PAPER = {INK: "#222222", FAINT: "#b4b4b4"}
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

_COMMON = {
    "figure.constrained_layout.use": True,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
}
_PAGE = {
    **_COMMON,
    "backend": "svg",
    "svg.fonttype": "none",  # text stays text, in a font of the reader
    "svg.hashsalt": "ntkdiag",  # the same ids at every run
    "text.parse_math": False,  # names of parameters are no TeX
    "axes.formatter.use_mathtext": False,
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.labelsize": 9.5,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "grid.alpha": 0.45,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "lines.linewidth": 1.6,
    "lines.markersize": 3.5,
}
_PAPER = {
    **_COMMON,
    "figure.figsize": (3.25, 2.3),  # inches: one column of ICML
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # TrueType, which conferences ask for
    "font.size": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "axes.edgecolor": ON_PAPER[FAINT],
    "axes.labelcolor": ON_PAPER[INK],
    "grid.color": ON_PAPER[FAINT],
    "grid.linewidth": 0.4,
    "lines.linewidth": 1.2,
    "lines.markersize": 2.5,
}


@contextlib.contextmanager
def figure(width: float, height: float) -> Iterator[tuple["Figure", "Axes"]]:
    """Open a figure in the house look, without pyplot and without touching the user's settings."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # Any: matplotlib's stubs list the names of its settings one by one.
    look: Any = {**matplotlib.rcParamsDefault, **_PAGE}
    with matplotlib.rc_context(look):
        canvas = Figure(figsize=(width, height))
        FigureCanvasSVG(canvas)  # makes itself what draws the figure
        yield canvas, canvas.subplots()


@contextlib.contextmanager
def paper_style() -> Iterator[None]:
    """Draw figures in the width of a column, in 8 point, while the context is open.

        with ntkdiag.report.paper_style():
            run.plot.drift().figure.savefig("drift.pdf")

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    matplotlib = plugins.imported("matplotlib", "for figures", "ntkdiag[report]")
    look: Any = _PAPER
    with matplotlib.rc_context(look):
        yield


def recolour(ax: "Axes") -> None:
    """Give everything on axes that is drawn in the colours of a page those of paper."""
    from matplotlib.colors import to_hex
    from matplotlib.lines import Line2D
    from matplotlib.text import Text

    for artist in [*ax.findobj(Line2D), *ax.findobj(Text)]:
        colour = to_hex(artist.get_color())  # pyright: ignore[reportAttributeAccessIssue]
        if colour in ON_PAPER:
            artist.set(color=ON_PAPER[colour])


def logarithmic(axes: "Axes", *, x: bool, y: bool) -> None:
    """Make axes logarithmic, with plain powers of ten at the ticks: no text is read as TeX."""
    if x:
        axes.set_xscale("log")
        _set_ticks(axes.xaxis)
    if y:
        axes.set_yscale("log")
        _set_ticks(axes.yaxis)


def step_axis(axes: "Axes", steps: np.ndarray) -> None:
    """A horizontal axis of steps: logarithmic beyond 1 where most of them are early."""
    from matplotlib.ticker import MaxNLocator

    middle = steps[len(steps) // 2]
    if len(steps) > 3 and middle < steps[-1] / 5:
        axes.set_xscale("symlog", linthresh=1)  # step 0 has a place, too
        powers = [10**power for power in range(int(math.log10(steps[-1])) + 1)]
        axes.set_xticks([0, *powers], map(str, [0, *powers]))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10]))
    axes.margins(x=0.02)


def _set_ticks(axis: Any) -> None:
    """Ticks of a logarithmic axis: powers of ten, between few of them also 2 and 5."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, StrMethodFormatter

    axis.set_major_locator(LogLocator(numticks=7))
    low, high = axis.get_view_interval()
    is_plain = low > 0.0099 and high < 9999
    formatter = StrMethodFormatter("{x:g}") if is_plain else FuncFormatter(_power_of_ten)
    axis.set_major_formatter(formatter)
    if low > 0 and high < 100 * low:
        axis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
        axis.set_minor_formatter(formatter)
    else:
        axis.set_minor_locator(LogLocator(subs="auto"))
        axis.set_minor_formatter(NullFormatter())


def _power_of_ten(value: float, position: int | None) -> str:
    """A tick of an axis beyond 0.01 to 9999: all of them have a power of ten."""
    del position
    mantissa, exponent = f"{value:.0e}".split("e")
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPT)
    return power if mantissa == "1" else f"{mantissa}·{power}"


def svg(canvas: "Figure", name: str) -> str:
    """Write a figure as an SVG element for inlining: transparent, text as text, ids of its own."""
    stream = io.StringIO()
    canvas.savefig(
        stream,
        format="svg",
        transparent=True,
        dpi=110,  # of images in it
        # Left out: the same comparison gives the same page.
        metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
    )
    text = stream.getvalue()

    # The element alone, without metadata and addresses.
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    # Ids, and what refers to them, begin with the name of the figure.
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    for colour, of_page in OF_PAGE.items():
        text = text.replace(colour, of_page)
    return text
