"""The look of a figure for a paper."""

import contextlib
from collections.abc import Iterator
from typing import Any

from ntkdiag import display
from ntkdiag.report.light_colours import LIGHT_INK, LIGHT_LINE

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
