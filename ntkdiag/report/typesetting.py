"""Templates of the pages, with every value escaped."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def environment() -> "Environment":
    """Every value is escaped, and a name that a template misspells is an error."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("ntkdiag.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["typeset"] = _typeset
    made.filters["unbroken"] = _unbroken
    return made


def _typeset(text: str) -> "Markup":
    """Escape a text of ours and set its subscripts: S_c, f_lin, e1."""
    from markupsafe import Markup, escape

    # One to three letters or digits after an underscore inside a word; then e1 and e2.
    escaped = str(escape(text))
    with_subscripts = re.sub(r"(?<=[^\W_])_(\w{1,3})\b", r"<sub>\1</sub>", escaped)
    return Markup(re.sub(r"\be([12])\b", r"e<sub>\1</sub>", with_subscripts))


def _unbroken(text: str) -> str:
    """A text in which no line ends between a number and its %, or around an equals sign."""
    return text.replace(" %", "\u00a0%").replace(" = ", "\u00a0=\u00a0")
