"""A run as one self-contained page: the answer, what to do next, and a page for each question.

Everything is in it, styles, drawings, numbers and one script, and nothing is loaded. Its content
security policy forbids everything else; the script is allowed by its hash. Without the script all
pages stand one below the other.
"""

import base64
import hashlib
import importlib.resources
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ntkdiag import display
from ntkdiag.report.dependencies import require_report
from ntkdiag.report.figures.run_drawing import DrawnFigure, drawn
from ntkdiag.report.figures.run_figure import RunFigure
from ntkdiag.report.figures.run_figures import PAGES, RUN_FIGURES
from ntkdiag.report.run_advice import run_advice
from ntkdiag.report.run_answers import ANSWERS, answers_of
from ntkdiag.report.run_conditions import (
    conditions,
    facts_of_run,
    hashes_of_run,
    parameters_of_run,
)
from ntkdiag.report.run_findings import findings_of
from ntkdiag.report.run_subject import RunSubject
from ntkdiag.report.typesetting import environment

if TYPE_CHECKING:
    from markupsafe import Markup

TEMPLATE = "run.html"
SCRIPT = "run.js"


def run_html(subject: RunSubject) -> str:
    """Write a run as a page that loads nothing.

    Args:
        subject: The run.

    Returns:
        The HTML document.

    Raises:
        MissingDependencyError: jinja2 or matplotlib is not installed.

    Cost: a second for ten figures; one decomposition n^3 for each stored kernel.
    """
    require_report()
    from markupsafe import Markup

    script, script_hash = script_and_hash()
    answers = answers_of(subject)
    figures = [what for what in RUN_FIGURES.values() if what.is_there(subject)]
    drawings = [drawn(what, subject) for what in figures]
    return (
        environment()
        .get_template(TEMPLATE)
        .render(
            title=_title(subject),
            facts=facts_of_run(subject),
            answers=[answers[name] for name in ANSWERS],
            answered=ANSWERS,
            findings=[finding for finding in findings_of(subject) if finding.id != "unknown"],
            advice=run_advice(subject),
            pages=PAGES,
            answers_by_page=answers,
            drawings=_by_page(drawings),
            images={item.figure.name: Markup(item.image) for item in drawings},
            missing=_missing(figures),
            conditions=conditions(subject),
            parameters=parameters_of_run(subject),
            hashes=hashes_of_run(subject),
            script=script,
            script_hash=script_hash,
            data=embedded_numbers(drawings),
        )
    )


def _title(subject: RunSubject) -> str:
    """The name of the folder; where nothing is stored, what it is."""
    return "Run" if subject.run is None else subject.run.root.name


def _by_page(drawings: Sequence[DrawnFigure]) -> dict[str, list[DrawnFigure]]:
    """The drawings of every page."""
    by_page: dict[str, list[DrawnFigure]] = {page: [] for page in PAGES}
    for item in drawings:
        by_page[item.figure.page].append(item)
    return by_page


def _missing(there: Sequence[RunFigure]) -> dict[str, list[RunFigure]]:
    """The figures of every page that have nothing to show."""
    by_page: dict[str, list[RunFigure]] = {page: [] for page in PAGES}
    for what in RUN_FIGURES.values():
        if what not in there:
            by_page[what.page].append(what)
    return by_page


def script_and_hash() -> tuple["Markup", str]:
    """The one script of the page, and the hash by which a content security policy allows it."""
    from markupsafe import Markup

    folder = importlib.resources.files("ntkdiag.report") / "templates"
    script = (folder / SCRIPT).read_text(encoding="utf-8")
    return Markup(script), base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def embedded_numbers(drawings: Sequence[DrawnFigure]) -> "Markup":
    """The numbers of all drawings as JSON that no text in it can end."""
    from markupsafe import Markup

    numbers: Mapping[str, object] = {item.figure.name: item.data for item in drawings}
    text = json.dumps(display.plain(numbers), separators=(",", ":"), allow_nan=False)
    # Inside a script element only these characters could end it.
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
