"""Several runs together as one self-contained page: a table of them, and a line for each.

The frame, the drawings and the script are those of the page of one run. A quantity that such a page
has a figure of looks as it does there, with the runs in the place of its curves; every other number
that all runs have is on the last page.
"""

import dataclasses
import functools
import json
import math
import os
import pathlib

import numpy as np

from ntkdiag.report.dependencies import require_report
from ntkdiag.report.figures.run_drawing import ReadTable, drawn
from ntkdiag.report.figures.run_figure import PALETTE, Curve, LineFigure, colours_of_states
from ntkdiag.report.figures.run_figures import PAGES, RUN_FIGURES
from ntkdiag.report.number_text import number
from ntkdiag.report.report_file import replace_file, require_report_file
from ntkdiag.report.reported import Runs
from ntkdiag.report.run_conditions import OF_PROGRAMS, in_words
from ntkdiag.report.run_page import embedded_numbers, script_and_hash
from ntkdiag.report.typesetting import environment

TEMPLATE = "runs.html"
FIRST = ("margin", "loss", "accuracy")  # what is looked at first
NUMBERS = "numbers"  # the page of all that no page of one run has
MOST_SETTINGS = 6  # columns of the table
_DIGITS = 4
_LOGARITHMIC_FROM = 30.0  # largest over smallest value
_NOT_DRAWN = ("status", "step")  # the ends of the names of numbers that are no quantities


@dataclasses.dataclass(frozen=True)
class SeveralRuns:
    """What a figure of several runs is drawn of.

    Attributes:
        runs: The runs.
        where: Where all of their numbers are, for a figure that has no room for them.
    """

    runs: Runs
    where: str = "the folders of the runs"


def save_runs(path: str | os.PathLike[str], runs: Runs) -> pathlib.Path:
    """Write several runs as a page, or as JSON; see `Runs.save`."""
    path = pathlib.Path(path).expanduser()
    require_report_file(path, "Runs")
    if path.suffix == ".json":
        text = json.dumps(runs.to_dict(), indent=1, allow_nan=False) + "\n"
    else:
        require_report()
        text = runs_html(runs)
    replace_file(path, text)
    return path


def runs_html(runs: Runs) -> str:
    """The page as an HTML document."""
    from markupsafe import Markup

    subject = SeveralRuns(runs)
    drawings = [drawn(figure, subject) for figure in figures_of_runs(runs)]
    by_page = {page: [] for page in (*PAGES, NUMBERS)}
    for item in drawings:
        by_page[item.figure.page].append(item)
    headings = {**PAGES, NUMBERS: "All other numbers"}
    script, script_hash = script_and_hash()
    settings = _settings_shown(runs)
    return (
        environment()
        .get_template(TEMPLATE)
        .render(
            title=_title(runs),
            facts=_facts(runs),
            table=_table(runs, settings),
            remarks=_remarks(runs, settings),
            pages={page: headings[page] for page, items in by_page.items() if items},
            drawings=by_page,
            images={item.figure.name: Markup(item.image) for item in drawings},
            conditions=_common_conditions(runs),
            script=script,
            script_hash=script_hash,
            data=embedded_numbers(drawings),
        )
    )


def figures_of_runs(runs: Runs) -> list[LineFigure[SeveralRuns]]:
    """A figure of every number over the steps that all runs have, margin and loss first."""
    subject = SeveralRuns(runs)
    figures = [_figure(runs, name) for name in runs.names if _is_drawn(runs, name)]
    known = {figure.name: place for place, figure in enumerate(figures)}
    order = {name: place - len(FIRST) for place, name in enumerate(FIRST)}
    figures.sort(key=lambda figure: order.get(figure.name, known[figure.name]))
    return [figure for figure in figures if figure.is_there(subject)]


def _is_drawn(runs: Runs, name: str) -> bool:
    """Whether a name is that of one number for each step."""
    return runs.members[0].series(name).ndim == 1 and not name.endswith(_NOT_DRAWN)


def _figure(runs: Runs, name: str) -> LineFigure[SeveralRuns]:
    """The figure of one number, in the look that the page of one run has for it."""
    curves = functools.partial(_curves, name)
    of_one_run = RUN_FIGURES.get(name)
    if isinstance(of_one_run, LineFigure) and of_one_run.x_name == "step":
        return dataclasses.replace(of_one_run, curves=curves)
    words = name.replace("_", " ")
    known = np.concatenate(list(runs.series(name).values()))
    known = known[np.isfinite(known)]
    spans_decades = False
    if len(known):
        spans_decades = bool(0 < known.min() * _LOGARITHMIC_FROM < known.max())
    return LineFigure(
        name=name,
        page=NUMBERS,
        title=words[:1].upper() + words[1:],
        caption="",
        needs="",
        curves=curves,
        logarithmic_y=spans_decades,
    )


def _curves(name: str, subject: SeveralRuns) -> list[Curve]:
    """A line for each run; those of one group share a colour."""
    runs = subject.runs
    labels = list(runs.groups)
    # A few groups have colours that are told apart, many the shades of a sweep.
    colours = list(PALETTE) if len(labels) <= len(PALETTE) else colours_of_states(len(labels))
    curves = []
    for member in runs.members:
        steps = np.asarray(member.steps, np.float64)
        colour = colours[labels.index(member.group)]
        curves.append(Curve(member.name, steps, member.series(name), colour=colour))
    return curves


def _title(runs: Runs) -> str:
    """How many runs they are."""
    n_runs = len(runs.members)
    return "1 run" if n_runs == 1 else f"{n_runs} runs"


def _facts(runs: Runs) -> list[tuple[str, str]]:
    """What stands at the head of the page."""
    steps = [step for of_run in runs.steps.values() for step in of_run]
    facts = [("groups", str(len(runs.groups)))]
    if steps:
        facts.append(("steps", f"{min(steps)} to {max(steps)}"))
    record = runs.members[0].record
    for name in ("loss", "reduction"):
        if record.get(name):
            facts.append((name, str(record[name])))
    return facts


def _settings_shown(runs: Runs) -> list[str]:
    """The paths of the settings that differ, as many as the table has room for."""
    of_first = next(iter(runs.settings.values()))
    return list(of_first)[:MOST_SETTINGS]


def _table(runs: Runs, settings: list[str]) -> ReadTable:
    """A line for each run: its settings, where it ended, its loss and its margin."""
    has_groups = any(member.group != member.name for member in runs.members)
    has_margin, has_loss = "margin" in runs.names, "loss" in runs.names
    head = ["run"]
    if has_groups:
        head.append("group")
    head += [path.rpartition(".")[2].replace("_", " ") for path in settings]
    head.append("last step")
    if has_loss:
        head.append("last loss")
    if has_margin:
        head += ["last margin", "largest margin"]
    lines = []
    for member in runs.members:
        line = [member.name]
        if has_groups:
            line.append(member.group)
        line += [runs.settings[member.name][path] for path in settings]
        line.append(str(max(member.steps)) if member.steps else "none")
        if has_loss:
            line.append(_last(member.series("loss")))
        if has_margin:
            line += [_last(member.series("margin")), _largest(member.series("margin"))]
        lines.append(line)
    return ReadTable(head, lines, n_lines=len(lines))


def _last(values: np.ndarray) -> str:
    """The last number that is known."""
    known = values[np.isfinite(values)]
    return number(float(known[-1]) if len(known) else math.nan, _DIGITS)


def _largest(values: np.ndarray) -> str:
    known = values[np.isfinite(values)]
    return number(float(known.max()) if len(known) else math.nan, _DIGITS)


def _remarks(runs: Runs, settings: list[str]) -> list[str]:
    """What to know of the table."""
    remarks = []
    n_settings = len(next(iter(runs.settings.values())))
    if n_settings == 0 and len(runs.members) > 1:
        remarks.append(
            "The records of the runs are the same: they differ in a seed, if at all, or in what is "
            "not recorded, as the rate of an optimizer that is read."
        )
    n_more = n_settings - len(settings)
    if n_more:
        remarks.append(f"They differ in {n_more} more entries of their records.")
    if "margin" not in runs.names:
        remarks.append("There is no margin that all runs have: it needs a loss and the optimizer.")
    return remarks


def _common_conditions(runs: Runs) -> list[tuple[str, str]]:
    """The entries that are the same in the records of all runs, on a line each."""
    first = runs.members[0].record
    conditions = []
    for name, value in first.items():
        is_shared = all(member.record.get(name) == value for member in runs.members)
        if is_shared and name not in OF_PROGRAMS:
            conditions.append((name.replace("_", " "), in_words(value)))
    return conditions
