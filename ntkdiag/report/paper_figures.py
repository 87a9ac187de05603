"""Figures in the size of a paper, as PDF and SVG: text of 8 points, TrueType, the same bytes again.

A column is 3.25 inches wide, the text 6.75 inches: the sizes of ICML; other conferences are close.
"""

import io
from collections.abc import Callable, Mapping
from typing import Any

from ntkdiag.report.light_colours import LIGHT_INK, LIGHT_LINE, recolour

COLUMN = 3.25  # inches
TEXT = 6.75
COLUMN_HEIGHT = 2.3
_LOOK = {
    "pdf.fonttype": 42,  # TrueType, as conferences ask for
    "svg.fonttype": "path",  # the same letters on every machine
    "svg.hashsalt": "ntkdiag",  # the same ids at every run
    "text.parse_math": False,  # names of parameters are no TeX
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.fancybox": False,
    "legend.edgecolor": "none",
    "legend.framealpha": 0.85,
    "legend.handlelength": 1.4,
    "axes.linewidth": 0.6,
    "axes.edgecolor": LIGHT_LINE,
    "axes.labelcolor": LIGHT_INK,
    "axes.titlecolor": LIGHT_INK,
    "text.color": LIGHT_INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.formatter.use_mathtext": False,
    "grid.color": LIGHT_LINE,
    "grid.linewidth": 0.4,
    "grid.alpha": 0.5,
    "xtick.color": LIGHT_LINE,
    "ytick.color": LIGHT_LINE,
    "xtick.labelcolor": LIGHT_INK,
    "ytick.labelcolor": LIGHT_INK,
    "lines.linewidth": 1.2,
    "lines.markersize": 2.5,
    "figure.constrained_layout.use": True,
}
_NO_DATE: Mapping[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}


def paper_figure(
    draw: Callable[[Any], object], size: tuple[float, float], **panels: Any
) -> dict[str, bytes]:
    """Draw a figure of a size in inches on its axes; its bytes by the ending of the file."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Any: matplotlib's stubs list the names of its settings one by one.
    look: Any = {**matplotlib.rcParamsDefault, **_LOOK, "backend": "agg"}
    files = {}
    with matplotlib.rc_context(look):
        canvas = Figure(figsize=size)
        FigureCanvasAgg(canvas)  # makes itself what draws the figure
        draw(canvas.subplots(**panels))
        for axes in canvas.axes:
            recolour(axes)
            for text in axes.texts:
                text.set_fontsize(min(float(text.get_fontsize()), 7.0))
        for ending, metadata in _NO_DATE.items():
            stream = io.BytesIO()
            canvas.savefig(stream, format=ending, dpi=300, metadata=metadata)
            files[ending] = stream.getvalue()
    return files
