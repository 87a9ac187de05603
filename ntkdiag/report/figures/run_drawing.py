"""A figure of a run as a page has it: the drawing, its legend, its numbers.

1. Draw it as SVG, in colours of the page. What belongs to a curve is a group with an id of its own,
   by which the page shows and hides it.
2. Take the numbers as columns, each line with its place in the drawing: a page says the number that
   is nearest to the pointer, and writes the columns as CSV.
3. Make a table to read of them, a column for each curve.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from ntkdiag.report.figures.run_figure import (
    PALETTE,
    AreaFigure,
    LineFigure,
    PairFigure,
    RunFigure,
    Subject,
    TableRow,
    colours_of_states,
)
from ntkdiag.report.figures.style import A_COLOUR, B_COLOUR, figure, svg
from ntkdiag.report.figures.thinning import even_places
from ntkdiag.report.number_text import number
from ntkdiag.report.run_subject import RunSubject

WIDTH, HEIGHT = 4.7, 3.0  # inches
HEIGHT_OF_PAIRS = 3.9
DIGITS_READ = 4
MOST_CELLS = 4000  # of a table to read; the columns have all that is drawn
DIGITS_STORED = 8
# Colours of a page follow its light or dark setting.
OF_PAGE = {A_COLOUR: "var(--a)", B_COLOUR: "var(--b)"}


@dataclasses.dataclass(frozen=True)
class Entry:
    """One name of a legend.

    Attributes:
        number: Of its curve, in the ids of the drawing.
        label: Its name.
        colour: As CSS has it.
        dashed: Whether its line is dashed.
    """

    number: int
    label: str
    colour: str
    dashed: bool = False


@dataclasses.dataclass(frozen=True)
class ReadTable:
    """A table to read: names of the columns, and lines of text.

    Attributes:
        head: Names of the columns.
        lines: The cells of each line.
        n_lines: How many lines there would be, had it room for all that is drawn.
    """

    head: Sequence[str]
    lines: Sequence[Sequence[str]]
    n_lines: int


@dataclasses.dataclass(frozen=True)
class DrawnFigure:
    """A figure of a run with all that a page needs of it.

    Attributes:
        figure: What it is.
        image: The drawing, an `<svg>` element.
        text: What it shows, for those who do not see it.
        legend: Names of the curves.
        states: Whether one curve is shown at a time.
        part: What is drawn of more than that, and where all of it is; empty where all is drawn.
        table: Its numbers to read.
        data: Its numbers as plain values: "columns", and "points" in percent of the drawing.
    """

    figure: RunFigure
    image: str
    text: str
    legend: Sequence[Entry]
    states: bool
    part: str
    table: ReadTable
    data: Mapping[str, Any]


def drawn(what: RunFigure[Subject], subject: Subject) -> DrawnFigure:
    """Draw a figure of a run that is there."""
    with figure(WIDTH, _height(what)) as (canvas, axes):
        what.draw(subject, axes)
        image = svg(canvas, f"run-{what.name}")
        # Data -> pixels -> shares of the figure, whose origin is below.
        pixels = axes.transData.transform(what.points(subject))
        points = canvas.transFigure.inverted().transform(pixels)
    lines = what.shown_table(subject)
    legend = _legend(what, subject)
    columns = {name: [_stored(line.get(name)) for line in lines] for name in _names(lines)}
    return DrawnFigure(
        figure=what,
        image=image,
        text=f"{what.title}. {_in_words(lines)}",
        legend=legend,
        states=_has_states(what),
        part=_part(what, subject),
        table=_read_table(what, lines),
        data={"columns": columns, "points": _percent(points)},
    )


def _height(what: RunFigure) -> float:
    """That of a drawing: a matrix is higher."""
    return HEIGHT_OF_PAIRS if isinstance(what, PairFigure) else HEIGHT


def _has_states(what: RunFigure) -> bool:
    """Whether its curves are states of one thing, shown one at a time."""
    return isinstance(what, LineFigure) and what.only_one


def _part(what: RunFigure[Subject], subject: Subject) -> str:
    """What is drawn of more than that, and where all numbers are."""
    part = what.drawn_part(subject)
    return f"{part} All numbers are in {subject.where}." if part else ""


def _legend(what: RunFigure[Subject], subject: Subject) -> list[Entry]:
    """The curves by number, and their colours."""
    entries = []
    if isinstance(what, LineFigure):
        for number_, curve in enumerate(what.shown_curves(subject)):
            colour = curve.colour or PALETTE[number_ % len(PALETTE)]
            colour = OF_PAGE.get(colour, colour)
            entries.append(Entry(number_, curve.label, colour, curve.dashed))
    if isinstance(what, AreaFigure) and isinstance(subject, RunSubject):
        names = list(what.shares(subject))
        for number_, colour in enumerate(colours_of_states(len(names))):
            entries.append(Entry(number_, names[number_], OF_PAGE.get(colour, colour)))
    return entries


def _names(lines: Sequence[TableRow]) -> list[str]:
    """The columns of a table, in the order first seen."""
    names: dict[str, None] = {}
    for line in lines:
        names.update(dict.fromkeys(line))
    return list(names)


def _stored(value: Any) -> Any:
    """A value as JSON has it, with as many digits as a float32 has."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS_STORED}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e9 else rounded


def _percent(points: Float[np.ndarray, "n 2"]) -> list[list[float | None]]:
    """Places from the upper left corner in percent of the drawing; None where nothing is drawn."""
    places: list[list[float | None]] = []
    for x, y in points.tolist():
        if math.isfinite(x) and math.isfinite(y):
            places.append([round(100 * x, 1), round(100 * (1 - y), 1)])
        else:
            places.append([None, None])
    return places


def _in_words(lines: Sequence[TableRow]) -> str:
    """The ends of every curve, or the range of all values."""
    by_series: dict[str, list[float]] = {}
    for line in lines:
        if math.isfinite(line["value"]):
            by_series.setdefault(str(line.get("series", "values")), []).append(line["value"])
    if list(by_series) == ["values"]:
        values = by_series["values"]
        return f"Values from {number(min(values), 3)} to {number(max(values), 3)}."
    texts = []
    for name, values in list(by_series.items())[:4]:
        texts.append(f"{name}: from {number(values[0], 3)} to {number(values[-1], 3)}.")
    if len(by_series) > 4:
        texts.append(f"{len(by_series) - 4} more curves in the table.")
    return " ".join(texts)


def _read_table(what: RunFigure, lines: Sequence[TableRow]) -> ReadTable:
    """A line for each step, or index, and a column for each curve, or column of a matrix."""
    if isinstance(what, PairFigure):
        across, down = "column_step", "row_step"
        corner = f"{what.rows} ↓, {what.columns} →" if what.rows != what.columns else "step"
    else:
        across = "series"
        corner = down = _names(lines)[1]
    columns = list(dict.fromkeys(line[across] for line in lines))
    by_line: dict[Any, dict[Any, float]] = {}
    for line in lines:
        by_line.setdefault(line[down], {})[line[across]] = line["value"]
    keys = sorted(by_line)
    rows = []
    for place in even_places(len(keys), max(2, MOST_CELLS // len(columns))):
        of_line = by_line[keys[place]]
        cells = [number(of_line.get(column), DIGITS_READ) for column in columns]
        rows.append([f"{keys[place]:g}", *cells])
    return ReadTable([corner, *(str(column) for column in columns)], rows, len(keys))
