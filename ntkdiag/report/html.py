"""A comparison as one self-contained page."""

import re
from typing import Any

from ntkdiag.report import figures
from ntkdiag.report.dependencies import require_report
from ntkdiag.report.methods_paragraph import methods
from ntkdiag.report.monitor_records import History, read_history
from ntkdiag.report.number_text import number, percent
from ntkdiag.report.reading import readings
from ntkdiag.report.rows import kernel_rows, motion_rows, movement_rows, prediction_rows, task_rows

TEMPLATE = "comparison.html"


def comparison_html(comparison: Any, *, history: History | None = None) -> str:
    """Write a comparison as a page that loads nothing: styles and figures are in it, scripts are not.

    All text is escaped; the page's content security policy forbids everything but its own styles and images.
    Cost: a second or two for the figures.

    Args:
        comparison: A `Comparison`.
        history: Records of a monitor to draw beside it.

    Returns:
        The HTML document.

    Raises:
        MissingDependencyError: jinja2 or matplotlib is not installed.
        InvalidInputError: `history` holds no measurement.
    """
    require_report()
    import jinja2

    rows = read_history(history)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ntkdiag.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["typeset"] = _typeset
    return environment.get_template(TEMPLATE).render(
        comparison=comparison,
        classes=comparison.classes is not None,
        a=comparison.a,
        b=comparison.b,
        facts=comparison.facts,
        cards=_cards(comparison),
        kernel_rows=kernel_rows(comparison),
        task_rows=task_rows(comparison),
        motion_rows=motion_rows(comparison),
        prediction_rows=prediction_rows(comparison),
        movement_rows=movement_rows(comparison),
        readings=readings(comparison),
        methods=methods(comparison),
        history_steps=(rows[0]["step"], rows[-1]["step"], len(rows)) if rows else None,
        **_figures(comparison, rows),
    )


def _figures(comparison: Any, rows: list[Any]) -> dict[str, Any]:
    from markupsafe import Markup  # our own SVG, in which matplotlib escaped every text

    drawn = {
        "spectra": figures.spectra(comparison),
        "heatmaps": figures.heatmaps(comparison),
        "movement": figures.movement(comparison),
        "prediction": figures.prediction(comparison),
        "label_power": figures.label_power(comparison)
        if comparison.a.label_power is not None
        else "",
        "history": figures.history(rows) if rows else "",
    }
    return {f"{name}_figure": Markup(text) for name, text in drawn.items()}


def _typeset(text: str) -> Any:
    """Escape a text of ours and set its subscripts: S_c, f_lin, e1."""
    from markupsafe import Markup, escape

    marked = re.sub(r"(?<=[^\W_])_(\w{1,3})\b", r"<sub>\1</sub>", str(escape(text)))
    return Markup(re.sub(r"\be([12])\b", r"e<sub>\1</sub>", marked))


def _cards(comparison: Any) -> list[tuple[str, str, str]]:
    """The numbers to read first: title, value, what it says."""
    a, b, facts = comparison.a, comparison.b, comparison.facts
    centred = float(comparison.drift.distance_centred)
    cards = [
        ("Kernel moved", number(centred, 3), "centred distance S_c, from 0 same to 1 unrelated"),
        (
            "Kernel size",
            f"{number(b.trace / a.trace, 3)}×" if a.trace else "–",
            "trace of the kernel, B / A",
        ),
        (
            "Linear model is off by",
            number(comparison.prediction.e1, 3),
            "e₁, its error over the change of the outputs",
        ),
    ]
    if a.alignment is not None:
        value = f"{number(a.alignment, 2)} → {number(b.alignment, 2)}"
        cards.append(("Label alignment", value, "centred kernel-target alignment, A → B"))
    if a.accuracy is not None:
        cards.append(
            ("Accuracy", f"{percent(a.accuracy)} → {percent(b.accuracy)}", "on the probe, A → B")
        )
    if a.margin is not None:
        value = f"{number(a.margin, 2)} → {number(b.margin, 2)}"
        cards.append(
            (
                "Stability margin",
                value,
                f"at learning rate {facts['learning_rate']:g}; 1 is the edge of stability",
            )
        )
    return cards
