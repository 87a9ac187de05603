"""A result as one self-contained page: the findings, and a section for each question.

Styles, drawings and tables are in it, and nothing is loaded. It has no script, and its content
security policy forbids everything but its own styles.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ntkdiag.judging.finding import Finding
from ntkdiag.report.drawing import ReadTable, legend_of, table_of, table_of_pairs
from ntkdiag.report.figures import FIGURES, SECTIONS, Figure
from ntkdiag.report.style import figure, svg

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup
    from xarray import Dataset

Fact: TypeAlias = tuple[str, object]  # a name and a value
SIZE = (4.7, 3.2)  # inches
SIZE_OF_SQUARE = (4.7, 3.9)  # of matrices


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table."""

    name: str
    values: Sequence[str]
    symbol: str = ""
    meaning: str = ""
    key: str = ""  # its name in `ntkdiag.quantities`


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of numbers."""

    columns: Sequence[str]  # names of the columns of values
    rows: Sequence[Row]
    title: str = ""  # what it is of, where the section does not tell


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A figure with all that a page needs of it."""

    figure: Figure
    image: "Markup"  # the drawing, an `<svg>` element
    legend: Sequence[tuple[str, str, bool]]  # names, colours, whether dashed
    table: ReadTable  # its numbers to read


@dataclasses.dataclass(frozen=True)
class Page:
    """What is on a page."""

    kind: str  # what it is a report of
    title: str
    facts: Sequence[Fact]  # what a reader has to know first
    findings: Sequence[Finding]
    dataset: "Dataset"  # the numbers that figures draw
    conditions: Sequence[tuple[str, Sequence[Fact]]]  # everything else, under headings
    notes: Sequence[str] = ()  # what to know before trusting a number
    tables: Mapping[str, Table] = dataclasses.field(default_factory=dict)  # by section

    def html(self) -> str:
        """The page."""
        drawings: dict[str, list[Drawn]] = {section: [] for section in SECTIONS}
        for what in FIGURES.values():
            if what.is_there(self.dataset):
                drawings[what.section].append(_drawn(what, self.dataset))
        sections = [
            (name, title, self.tables.get(name), drawings[name])
            for name, title in SECTIONS.items()
            if drawings[name] or name in self.tables
        ]
        return _environment().get_template("page.html").render(page=self, sections=sections)


def _drawn(what: Figure, dataset: "Dataset") -> Drawn:
    from markupsafe import Markup

    is_square = what.over == "step_2"
    with figure(*(SIZE_OF_SQUARE if is_square else SIZE)) as (canvas, axes):
        what.draw(dataset, axes)
        # Our own SVG, in which matplotlib escaped every text: it is not escaped again.
        image = Markup(svg(canvas, what.name))
        table = table_of_pairs(dataset[what.needs[0]], axes) if is_square else table_of(axes)
        return Drawn(what, image, legend_of(axes), table)


def _environment() -> "Environment":
    """Every value is escaped, and a name that a template misspells is an error."""
    import jinja2

    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("ntkdiag.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["typeset"] = _typeset
    return templates


def _typeset(text: str) -> "Markup":
    """Escape a text of ours and set its subscripts: S_c, f_lin, e1."""
    from markupsafe import Markup, escape

    # One to three letters or digits after an underscore inside a word; then e1 and e2.
    escaped = str(escape(text))
    with_subscripts = re.sub(r"(?<=[^\W_])_(\w{1,3})\b", r"<sub>\1</sub>", escaped)
    return Markup(re.sub(r"\be([12])\b", r"e<sub>\1</sub>", with_subscripts))
