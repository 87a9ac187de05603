"""A comparison as one self-contained page."""

from typing import TYPE_CHECKING

from ntkdiag.report.dependencies import require_report
from ntkdiag.report.figures.comparison_figures import COMPARISON_FIGURES, ComparisonFigure
from ntkdiag.report.figures.style import figure, svg
from ntkdiag.report.number_text import number, percent, ratio
from ntkdiag.report.reported import Comparison
from ntkdiag.report.rows import (
    at_learning_rate,
    fixed_array_rows,
    kernel_rows,
    motion_rows,
    movement_rows,
    prediction_rows,
    task_rows,
)
from ntkdiag.report.typesetting import environment

if TYPE_CHECKING:
    from markupsafe import Markup


TEMPLATE = "comparison.html"
SIZE = (4.7, 3.6)  # inches


def comparison_html(comparison: Comparison) -> str:
    """Write a comparison as a page that loads nothing."""
    require_report()
    return (
        environment()
        .get_template(TEMPLATE)
        .render(
            comparison=comparison,
            a=comparison.a,
            b=comparison.b,
            facts=comparison.facts,
            cards=_cards(comparison),
            kernel_rows=kernel_rows(comparison),
            task_rows=task_rows(comparison),
            motion_rows=[*motion_rows(comparison), *fixed_array_rows(comparison)],
            prediction_rows=prediction_rows(comparison),
            movement_rows=movement_rows(comparison),
            findings=comparison.findings,
            conditions=_conditions(comparison),
            drawings=_drawings(comparison),
        )
    )


def _drawings(comparison: Comparison) -> dict[str, list[tuple[ComparisonFigure, "Markup"]]]:
    """The figures that there are and their drawings, by section."""
    from markupsafe import Markup

    drawings: dict[str, list[tuple[ComparisonFigure, Markup]]] = {}
    for name, what in COMPARISON_FIGURES.items():
        if not what.is_there(comparison):
            continue
        with figure(*SIZE) as (canvas, axes):
            what.draw(comparison, axes)
            image = svg(canvas, name)
        # Our own SVG, in which matplotlib escaped every text: it is not escaped again.
        drawings.setdefault(what.section, []).append((what, Markup(image)))
    return drawings


def _conditions(comparison: Comparison) -> list[tuple[str, object]]:
    """Everything that is needed to repeat the numbers: names and values."""
    facts = [(name.replace("_", " "), value) for name, value in comparison.facts.items()]
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        facts.append((f"path of {name}", side.path))
        facts.append((f"parameters of {name}, SHA-256", side.params_sha256))
    return [(name, value) for name, value in facts if value is not None]


def _cards(comparison: Comparison) -> list[tuple[str, str, str]]:
    """The numbers to read first: title, value, what it says."""
    a = comparison.a
    b = comparison.b
    distance = number(float(comparison.drift.distance_centred), 3)
    error = number(comparison.prediction.e1, 3)
    cards = [
        ("Kernel moved", distance, "centred distance S_c, from 0 same to 1 unrelated"),
        ("Kernel size", ratio(b.trace, a.trace), "trace of the kernel, B / A"),
        ("Linearized model is off by", error, "e₁, its error over the change of the outputs"),
    ]
    if a.alignment is not None and b.alignment is not None:
        aligned = f"{number(a.alignment.above, 2)} → {number(b.alignment.above, 2)}"
        examples = comparison.facts["label_probe"]
        meaning = f"{a.alignment.reduction} kernel, {examples}, A → B: 0 is that of permuted labels"
        cards.append(("Alignment above chance", aligned, meaning))
    if a.accuracy is not None:
        accuracy = f"{percent(a.accuracy)} → {percent(b.accuracy)}"
        cards.append(("Accuracy", accuracy, f"{comparison.facts['kernel_probe']}, A → B"))
    if a.margin is not None:
        margin = f"{number(a.margin, 2)} → {number(b.margin, 2)}"
        at_rate = at_learning_rate(comparison)
        meaning = f"{at_rate[:1].lower()}{at_rate[1:]}; 1 is the edge of stability"
        if b.margin_interval is not None:
            lower, upper = (number(end, 2) for end in b.margin_interval)
            meaning += f"; at B {lower} to {upper} for the training set"
        cards.append(("Stability margin", margin, meaning))
    return cards
