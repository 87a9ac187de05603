"""The look of every figure, and figures as inline SVG that follows the page's colours.

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

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Blue and orange: told apart with every common kind of colour blindness.
A_COLOUR = "#3b7dd8"
B_COLOUR = "#e07b1f"
INK = "#010203"  # stands for the page's text colour
FAINT = "#040506"  # stands for the page's line colour
RASTER_DPI = 110  # of images in a figure, such as heat maps
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

_RC = {
    "svg.fonttype": "none",  # text stays text, in a font of the reader
    "svg.hashsalt": "ntkdiag",  # the same ids at every run
    "text.parse_math": False,  # names of parameters are no TeX
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
def figure(width: float, height: float, **layout: Any) -> Iterator[tuple["Figure", Any]]:
    """Open a figure in the house look, without pyplot and without touching the user's settings."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # Any: matplotlib's stubs list the names of its settings one by one.
    look: Any = {**matplotlib.rcParamsDefault, **_RC, "backend": "svg"}
    with matplotlib.rc_context(look):
        canvas = Figure(figsize=(width, height))
        FigureCanvasSVG(canvas)  # makes itself what draws the figure
        yield canvas, canvas.subplots(**layout)


def logarithmic(axes: "Axes", has_data: bool, *, x: bool = True, y: bool = True) -> None:
    """Make axes logarithmic, with plain powers of ten at the ticks: no text is read as TeX."""
    if not has_data:
        return
    if x:
        axes.set_xscale("log")
        _set_ticks(axes.xaxis)
    if y:
        axes.set_yscale("log")
        _set_ticks(axes.yaxis)


def step_axis(axes: "Axes", steps: np.ndarray) -> None:
    """A horizontal axis of steps: logarithmic beyond 1 where most of them are early."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    middle = steps[len(steps) // 2]
    if len(steps) > 3 and middle < steps[-1] / 5:
        axes.set_xscale("symlog", linthresh=1)  # step 0 has a place, too
        axes.set_xticks(_powers_up_to(float(steps[-1])))
        axes.xaxis.set_major_formatter(FuncFormatter(_plain))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10]))
    axes.margins(x=0.02)


def _powers_up_to(last: float) -> list[float]:
    """0 and the powers of ten up to a step."""
    n_powers = int(math.log10(max(last, 1))) + 1
    return [0.0, *(10.0**power for power in range(n_powers))]


def _set_ticks(axis: Any) -> None:
    """Ticks of a logarithmic axis: powers of ten, between few of them also 2 and 5."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(numticks=7))
    axis.set_major_formatter(FuncFormatter(_power_of_ten))
    low, high = axis.get_view_interval()
    has_few_powers = low > 0 and len(_powers_within(low, high)) < 3
    if has_few_powers:
        axis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))
        axis.set_minor_formatter(FuncFormatter(_between_powers))
    else:
        axis.set_minor_locator(LogLocator(subs="auto"))
        axis.set_minor_formatter(NullFormatter())


def _powers_within(low: float, high: float) -> range:
    """The exponents of the powers of ten from one end of an axis to the other."""
    return range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)


def _power_of_ten(value: float, position: int | None) -> str:
    """0.01 to 1000 as they are, other powers of ten with an exponent."""
    del position
    exponent = round(math.log10(value))
    if -2 <= exponent <= 3:
        return f"{value:g}"
    return "10" + str(exponent).translate(_SUPERSCRIPT)


def _between_powers(value: float, position: int | None) -> str:
    """A tick between powers of ten, written as the power below it is."""
    exponent = math.floor(math.log10(value))
    if -2 <= exponent <= 3:
        return f"{value:g}"
    power = _power_of_ten(10.0**exponent, position)
    mantissa = f"{value / 10.0**exponent:.3g}"
    return power if mantissa == "1" else f"{mantissa}·{power}"


def _plain(value: float, position: int | None) -> str:
    """A step, as a plain number."""
    del position
    return f"{value:g}"


def svg(canvas: "Figure", name: str) -> str:
    """Write a figure as an SVG element for inlining: transparent, text as text, ids of its own."""
    stream = io.StringIO()
    canvas.savefig(
        stream,
        format="svg",
        transparent=True,
        dpi=RASTER_DPI,
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
    # The page's own colours, which follow its light or dark setting.
    text = text.replace(INK, "currentColor")
    text = text.replace(FAINT, "var(--line)")
    text = text.replace(A_COLOUR, "var(--a)")
    return text.replace(B_COLOUR, "var(--b)")
