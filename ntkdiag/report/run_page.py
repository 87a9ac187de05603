"""A run as one self-contained page: the findings, and a section for each question.

Styles, drawings and tables are in it, and nothing is loaded. It has no script, and its content
security policy forbids everything but its own styles.
"""

from collections.abc import Sequence

from ntkdiag.report.dependencies import require_report
from ntkdiag.report.figures.run_drawing import DrawnFigure, drawn
from ntkdiag.report.figures.run_figure import RunFigure
from ntkdiag.report.figures.run_figures import PAGES, RUN_FIGURES
from ntkdiag.report.run_conditions import conditions, facts_of_run
from ntkdiag.report.run_subject import RunSubject
from ntkdiag.report.typesetting import environment

TEMPLATE = "run.html"


def run_html(subject: RunSubject) -> str:
    """Write a run as a page that loads nothing."""
    require_report()
    from markupsafe import Markup

    figures = [what for what in RUN_FIGURES.values() if what.is_there(subject)]
    drawings = [drawn(what, subject) for what in figures]
    return (
        environment()
        .get_template(TEMPLATE)
        .render(
            title=_title(subject),
            facts=facts_of_run(subject),
            findings=subject.findings,
            pages=PAGES,
            drawings=_by_page(drawings),
            images={item.figure.name: Markup(item.image) for item in drawings},
            missing=_missing(figures),
            conditions=conditions(subject),
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
