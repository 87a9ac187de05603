"""Text and numbers as LaTeX: what TeX reads as commands, and the symbols of our texts."""

import re
from collections.abc import Sequence

from ntkdiag.report.number_text import MISSING, number
from ntkdiag.scalars import Number

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}
# Symbols of our own texts, which not every engine has in its fonts.
_SYMBOLS = {
    "Θ": r"\Theta",
    "θ": r"\theta",
    "Σ": r"\Sigma",
    "Δ": r"\Delta",
    "λ": r"\lambda",
    "ε": r"\varepsilon",
    "η": r"\eta",
    "σ": r"\sigma",
    "φ": r"\varphi",
    "τ": r"\tau",
    "√": r"\surd",
    "‖": r"\|",
    "ᵀ": r"^{\top}",
    "½": r"\tfrac{1}{2}",
    "×": r"\times",
    "−": "-",
    "±": r"\pm",
    "≤": r"\le",
    "≥": r"\ge",
    "≪": r"\ll",
    "→": r"\to",
    "∈": r"\in",
    "·": r"\cdot",
    "°": r"^{\circ}",
    "ᵢ": "_{i}",
    **{sign: f"_{{{digit}}}" for digit, sign in enumerate("₀₁₂₃₄₅₆₇₈₉")},
    **{sign: f"^{{{digit}}}" for digit, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    "⁻": "^{-}",
}
_PLAIN = {"–": "--", "—": "---", "…": r"\ldots{}", "“": "``", "”": "''"}


def latex(text: str) -> str:
    """A text that TeX sets as it stands; runs of symbols become formulas."""
    written = []
    formula = []
    for sign in text:
        if sign in _SYMBOLS:
            formula.append(_SYMBOLS[sign])
            continue
        written.append(_formula(formula))
        formula = []
        written.append(_SPECIAL.get(sign) or _PLAIN.get(sign, sign))
    written.append(_formula(formula))
    return "".join(written)


def latex_number(value: Number | None, digits: int = 4) -> str:
    """A number with some digits, its power of ten and its sign as a formula."""
    text = number(value, digits)
    if text == MISSING:
        return "--"
    mantissa, _, exponent = text.partition("e")
    if exponent:
        return rf"${mantissa}\times 10^{{{int(exponent)}}}$"
    return f"${text}$" if text.startswith("-") else text


def latex_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str, label: str
) -> str:
    """A table in the style of booktabs, its first column to the left, the others to the right.

    Cells, headings and the caption are LaTeX already.
    """
    columns = "l" + "r" * (len(headings) - 1)
    lines = [
        r"\begin{table}[htbp]",
        r"  \centering",
        rf"  \caption{{{caption}}}",
        rf"  \label{{{label}}}",
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        f"    {' & '.join(headings)} " + r"\\",
        r"    \midrule",
        *(f"    {' & '.join(cells)} " + r"\\" for cells in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _formula(signs: Sequence[str]) -> str:
    """Symbols that stand beside each other, as one formula; letters after a command stay apart."""
    if not signs:
        return ""
    # An index that begins a formula has nothing to stand at.
    body = "".join(f"{sign} " if re.fullmatch(r"\\[A-Za-z]+", sign) else sign for sign in signs)
    return f"${body.rstrip()}$"
