"""A figure of a run as a page has it: drawing, legend and table."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from ntkdiag.report.figures.run_figure import (
    GREY,
    PALETTE,
    AreaFigure,
    LineFigure,
    PairFigure,
    RunFigure,
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
MOST_CELLS = 4000  # of a table
# Colours of a page follow its light or dark setting.
OF_PAGE = {A_COLOUR: "var(--a)", B_COLOUR: "var(--b)"}


@dataclasses.dataclass(frozen=True)
class Entry:
    """One name of a legend."""

    label: str  # its name
    colour: str  # as CSS has it
    dashed: bool = False  # whether its line is dashed


@dataclasses.dataclass(frozen=True)
class ReadTable:
    """A table to read: names of the columns, and lines of text."""

    head: Sequence[str]  # names of the columns
    lines: Sequence[Sequence[str]]  # the cells of each line
    n_lines: int  # how many lines there would be, had it room for all that is drawn


@dataclasses.dataclass(frozen=True)
class DrawnFigure:
    """A figure of a run with all that a page needs of it."""

    figure: RunFigure  # what it is
    image: str  # the drawing, an `<svg>` element
    text: str  # what it shows, for those who do not see it
    legend: Sequence[Entry]  # names of the curves; of states of one thing, the first and the last
    table: ReadTable  # its numbers to read


def drawn(what: RunFigure, subject: RunSubject) -> DrawnFigure:
    """Draw a figure of a run that is there."""
    with figure(WIDTH, _height(what)) as (canvas, axes):
        what.draw(subject, axes)
        image = svg(canvas, f"run-{what.name}")
    lines = what.table(subject)
    return DrawnFigure(
        figure=what,
        image=image,
        text=f"{what.title}. {what.caption}",
        legend=_legend(what, subject),
        table=_read_table(what, lines),
    )


def _height(what: RunFigure) -> float:
    """That of a drawing: a matrix is higher."""
    return HEIGHT_OF_PAIRS if isinstance(what, PairFigure) else HEIGHT


def _legend(what: RunFigure, subject: RunSubject) -> list[Entry]:
    """The curves and their colours."""
    entries = []
    if isinstance(what, LineFigure):
        for place, curve in enumerate(what.shown_curves(subject)):
            if curve.colour == GREY:
                continue
            colour = curve.colour or PALETTE[place % len(PALETTE)]
            colour = OF_PAGE.get(colour, colour)
            entries.append(Entry(curve.label, colour, curve.dashed))
        if what.are_states and len(entries) > 2:
            entries = [entries[0], entries[-1]]
        if what.level is not None:
            entries.append(Entry(what.level_name, "currentColor", dashed=True))
    if isinstance(what, AreaFigure):
        names = list(what.shares(subject))
        for name, colour in zip(names, colours_of_states(len(names)), strict=True):
            entries.append(Entry(name, OF_PAGE.get(colour, colour)))
    return entries


def _names(lines: Sequence[TableRow]) -> list[str]:
    """The columns of a table, in the order first seen."""
    names: dict[str, None] = {}
    for line in lines:
        names.update(dict.fromkeys(line))
    return list(names)


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
