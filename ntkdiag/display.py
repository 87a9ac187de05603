"""How results show themselves: as a table, as plain JSON values, on the axes of a figure.

A result has `_repr_html_`, `to_dict` and, where there is something to see, `plot`; the functions
here are what these methods have in common. Nothing here knows any result.
"""

import html
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table


# A value of JSON: None, a boolean, a number, a string, or a list or dictionary of such values.
PlainValue: TypeAlias = Any


def html_table(title: str, rows: Iterable[tuple[str, str, str]]) -> str:
    """A table of names, values and what the values say, for `_repr_html_`; all text is escaped."""
    lines = [f"<table><caption>{html.escape(title)}</caption><tbody>"]
    for name, value, meaning in rows:
        cells = f"<td>{html.escape(value)}</td><td>{html.escape(meaning)}</td>"
        lines.append(f'<tr><th scope="row">{html.escape(name)}</th>{cells}</tr>')
    lines.append("</tbody></table>")
    return "\n".join(lines)


def terminal_table(title: str) -> "Table":
    """An empty table for the terminal, with its title; it takes the whole width."""
    from rich import box
    from rich.table import Table

    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        expand=True,
        pad_edge=False,
    )


def plain(value: PyTree) -> PlainValue:
    """A value as JSON has it: arrays become lists, and numbers that are not finite become None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    array = np.asarray(value)
    if array.ndim > 0:
        return [plain(item) for item in array.tolist()]
    if array.dtype.kind in "biu":  # booleans and integers
        return array.item()
    return float(array) if math.isfinite(array) else None


def axes_to_draw_on(ax: "Axes | None") -> "Axes":
    """The axes a plot is drawn on: those handed in, or those of a new figure."""
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise errors.MissingDependencyError(
            expected="matplotlib, which draws the figure",
            got="no matplotlib",
            do='Run: pip install "ntkdiag[report]"',
        ) from None
    return plt.subplots(layout="constrained")[1]
