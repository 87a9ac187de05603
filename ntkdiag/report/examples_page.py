"""A result about examples as one self-contained page: the answer, its examples, its numbers.

The frame, the drawings, the galleries and the script are those of the page of a run.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from ntkdiag.judging.finding import Finding
from ntkdiag.report.dependencies import require_report
from ntkdiag.report.figures.run_drawing import DrawnFigure, drawn
from ntkdiag.report.figures.run_figure import Curve, LineFigure
from ntkdiag.report.run_answers import Answer
from ntkdiag.report.run_gallery import Gallery, ShownExample
from ntkdiag.report.run_page import embedded_numbers, script_and_hash
from ntkdiag.report.typesetting import environment

TEMPLATE = "examples.html"


@dataclasses.dataclass(frozen=True)
class PageOfExamples:
    """One page of the report.

    Attributes:
        name: Its name in addresses.
        heading: What it is about.
        caption: How to read it; may be empty.
        head: Names of the columns of its table.
        lines: Of every line of the table, the examples in each of its cells.
        drawings: Its figures.
        galleries: Its galleries.
    """

    name: str
    heading: str
    caption: str = ""
    head: Sequence[str] = ()
    lines: Sequence[Sequence[Sequence[ShownExample]]] = ()
    drawings: Sequence[DrawnFigure] = ()
    galleries: Sequence[Gallery] = ()


@dataclasses.dataclass(frozen=True)
class Changes:
    """What a figure of changes is drawn of.

    Attributes:
        by_example: `[n]`, the change of every example.
        where: Where all of them are, for a figure that has no room for them.
    """

    by_example: Float[np.ndarray, " n"]
    where: str = "the .json file that save() writes"


def examples_html(
    *,
    kind: str,
    title: str,
    facts: Sequence[tuple[str, str]],
    answers: Sequence[Answer],
    findings: Sequence[Finding],
    pages: Sequence[PageOfExamples],
    numbers: Sequence[tuple[str, str]],
) -> str:
    """The page as an HTML document.

    Args:
        kind: What kind of a report it is.
        title: What it is about.
        facts: What stands at the head, names and values.
        answers: The answer.
        findings: The findings.
        pages: The pages.
        numbers: All single numbers, names and values.

    Returns:
        The document, which loads nothing.

    Raises:
        MissingDependencyError: jinja2 or matplotlib is not installed.
    """
    require_report()
    from markupsafe import Markup

    drawings = [item for page in pages for item in page.drawings]
    script, script_hash = script_and_hash()
    return (
        environment()
        .get_template(TEMPLATE)
        .render(
            kind=kind,
            title=title,
            facts=facts,
            answers=answers,
            findings=findings,
            advice=[finding.do for finding in findings if finding.do],
            pages=pages,
            images={item.figure.name: Markup(item.image) for item in drawings},
            numbers=numbers,
            script=script,
            script_hash=script_hash,
            data=embedded_numbers(drawings),
        )
    )


def drawn_in_order(
    name: str, title: str, caption: str, by_example: Float[np.ndarray, " n"], y_name: str
) -> DrawnFigure:
    """A figure of the change of every example, the smallest first."""
    figure = LineFigure[Changes](
        name=name,
        page="",
        title=title,
        caption=caption,
        needs="",
        curves=_in_order,
        x_name="rank",
        y_name=y_name,
        level=0.0,
        level_name="no change",
    )
    return drawn(figure, Changes(np.asarray(by_example, np.float64)))


def _in_order(changes: Changes) -> list[Curve]:
    """One curve."""
    ranks = np.arange(1, len(changes.by_example) + 1, dtype=np.float64)
    return [Curve("change", ranks, np.sort(changes.by_example))]
