"""How results show themselves: numbers as text, tables, plain JSON values, axes of a figure.

A result has `_repr_html_`, `to_dict` and, where there is something to see, `plot`; the functions
here are what these methods have in common. This file depends on no result.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors, plugins
from ntkdiag.arrays import Number
from ntkdiag.jaxtools.tracing import Tracer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table


_MOST_LETTERS = 80  # of a value in a message
MOST_ENTRIES = 8  # of a vector that is written entry by entry
MISSING = "–"

# A value of JSON: None, a boolean, a number, a string, or a list or dictionary of such values.
PlainValue: TypeAlias = Any


def printable(text: str) -> str:
    """A name for tables and pages: what stands for bytes that are no letters becomes a "?"."""
    return text.encode(errors="replace").decode()


def some_of(names: Iterable[object], most: int = 4) -> str:
    """Names joined by commas, the first few of them, and how many more there are."""
    named = [str(name) for name in names]
    text = ", ".join(named[:most])
    return f"{text} and {len(named) - most} more" if len(named) > most else text


def terminal_table(title: str | None) -> "Table":
    """An empty table for the terminal, with its title, if any; it takes the whole width."""
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


def described(instance: object) -> str:
    """A result as its class and fields, in which numbers stand as numbers: for `__repr__`."""
    fields = dataclasses.fields(instance)  # pyright: ignore[reportArgumentType]
    shown = [f"{field.name}={short(getattr(instance, field.name))}" for field in fields]
    return f"{type(instance).__name__}({', '.join(shown)})"


def short(value: Any) -> str:
    """One field of a result, in a few words."""
    if isinstance(value, dict):
        return f"{len(value)} arrays by name"
    if not isinstance(value, np.ndarray | np.generic | jax.Array):
        return repr(value).partition("\n")[0]  # of a result that shows itself in lines, the first
    if isinstance(value, Tracer):
        return "traced"
    array = np.asarray(value)
    if array.ndim == 0:
        return _number(array.item())
    if array.ndim == 1 and len(array) <= MOST_ENTRIES:
        return f"[{', '.join(map(_number, array.tolist()))}]"
    return f"{array.dtype}{list(array.shape)}"


def shortened(value: Any) -> str:
    """A value as a message shows it: of a very long one the beginning."""
    text = repr(value)
    if len(text) <= _MOST_LETTERS:
        return text
    return f"{text[:_MOST_LETTERS]}... ({len(text):,} letters)"


def _number(value: float | int | bool | complex) -> str:
    """A number with four digits; whole numbers and truth values as they are."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def plain(value: PyTree) -> PlainValue:
    """A value as JSON has it: arrays become lists, and numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    array = np.asarray(value)
    if array.ndim > 0:
        return [plain(item) for item in array.tolist()]
    if array.dtype.kind in "biu":  # booleans and integers
        return array.item()
    return float(array) if math.isfinite(array) else None


def number(value: Number | None, digits: int = 4) -> str:
    """Write a number with some significant digits; what is not known or not finite is a dash."""
    if value is None or not math.isfinite(value):
        return MISSING
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(float(value))
    if size >= 1e6 or 0 < size < 1e-3:
        return f"{float(value):.{digits - 1}e}"
    # Decimals left of `digits` significant digits: 3 before the point and 4 digits leave 1.
    decimals = digits
    if size > 0:
        digits_before_point = 1 + math.floor(math.log10(size))
        decimals = max(0, digits - digits_before_point)
    text = f"{float(value):,.{decimals}f}"
    # Zeros at the end are dropped after a decimal point only: 100 stays 100.
    if "." not in text:
        return text
    return text.rstrip("0").rstrip(".")


def ratio(after: Number | None, before: Number | None) -> str:
    """Write after / before as a factor; a dash where it has no meaning."""
    if after is None or before is None or not before > 0:
        return MISSING
    factor = after / before
    if not math.isfinite(factor):
        return MISSING
    return f"{number(factor, 3)}×"


def percent(value: Number | None) -> str:
    """Write a share as a percentage."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{100 * value:.1f} %"


def axes_to_draw_on(ax: "Axes | None") -> "Axes":
    """The axes a plot is drawn on: those passed, or those of a new figure."""
    if ax is not None and not hasattr(ax, "get_xlabel"):
        raise errors.InvalidInputError(
            expected="axes of matplotlib to draw on",
            got=shortened(ax),
            do="Leave it out to draw a new figure.",
        )
    if ax is not None:
        return ax
    pyplot = plugins.imported("matplotlib.pyplot", "for figures", "ntkdiag[report]")
    return pyplot.subplots(layout="constrained")[1]
