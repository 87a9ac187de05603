"""The look of every figure, and matplotlib figures as inline SVG that follows the page's colours."""

import contextlib
import io
import math
import re
from collections.abc import Iterator
from typing import Any

A_COLOUR, B_COLOUR = (
    "#3b7dd8",
    "#e07b1f",
)  # blue and orange: told apart with every common kind of colour blindness
INK = "#010203"  # stands for the page's text colour
FAINT = "#040506"  # stands for the page's line colour
RASTER_DPI = 110
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

_RC = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ntkdiag",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.use_mathtext": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "grid.alpha": 0.45,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.6,
    "lines.markersize": 3.5,
    "figure.constrained_layout.use": True,
}


@contextlib.contextmanager
def figure(
    width: float, height: float, columns: int = 1, rows: int = 1, **options: Any
) -> Iterator[tuple[Any, Any]]:
    """Open a figure in the house look, without pyplot and without touching the user's settings.

    Args:
        width: Inches.
        height: Inches.
        columns: Panels side by side.
        rows: Panels one above the other.
        **options: Handed to `Figure.subplots`.

    Yields:
        The figure and its axes, an array if there is more than one.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    look: Any = {**matplotlib.rcParamsDefault, **_RC, "backend": "svg"}
    with matplotlib.rc_context(look):
        canvas = Figure(figsize=(width, height))
        FigureCanvasSVG(canvas)
        yield canvas, canvas.subplots(rows, columns, **options)


def logarithmic(axes: Any, has_data: bool, *, x: bool = True, y: bool = True) -> None:
    """Make axes logarithmic, with plain powers of ten at the ticks: no text here is read as TeX.

    Args:
        axes: The axes, already drawn on.
        has_data: Whether anything positive is drawn; without it the axes stay linear, since nothing can be placed.
        x: Whether the horizontal axis is meant.
        y: Whether the vertical one is.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis, scale, wanted in ((axes.xaxis, axes.set_xscale, x), (axes.yaxis, axes.set_yscale, y)):
        if wanted and has_data:
            scale("log")
            axis.set_major_locator(LogLocator(numticks=7))
            axis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))
            low, high = axis.get_view_interval()
            within = (
                math.log10(high / low) < 1.5 if low > 0 else False
            )  # few powers of ten: say what lies between
            axis.set_minor_locator(LogLocator(subs=(2.0, 5.0) if within else "auto"))
            axis.set_minor_formatter(
                FuncFormatter(lambda value, _: f"{value:g}") if within else NullFormatter()
            )


def _power(value: float) -> str:
    exponent = round(math.log10(value))
    return f"{value:g}" if 0 <= exponent <= 3 else "10" + str(exponent).translate(_SUPERSCRIPT)


def svg(canvas: Any, name: str) -> str:
    """Write a figure as an SVG element for inlining: transparent, text as text, ids of its own.

    Args:
        canvas: The matplotlib figure.
        name: Prefix of all ids, so that several figures can stand in one page.

    Returns:
        An `<svg>` element without declarations, metadata or addresses; text in it is escaped.
    """
    stream = io.StringIO()
    canvas.savefig(
        stream,
        format="svg",
        transparent=True,
        dpi=RASTER_DPI,
        metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")),
    )
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    for ours, theirs in (
        (INK, "currentColor"),
        (FAINT, "var(--line)"),
        (A_COLOUR, "var(--a)"),
        (B_COLOUR, "var(--b)"),
    ):
        text = text.replace(ours, theirs)
    return text
