"""Writes docs/quantities.md, "What the numbers mean", from the table in `ntkdiag.quantities`.

python docs/quantities_page.py
"""

import itertools
import pathlib

from ntkdiag.quantities import QUANTITIES

PAGE = pathlib.Path(__file__).with_name("quantities.md")
HEAD = """# What the numbers mean

A number has one name, wherever it stands: in `run.rows()`, `track(...).series(name)`,
`comparison.a.numbers`, `comparison.numbers`, tables of pandas, datasets of xarray (whose variables
carry these words and units), figures. In an experiment tracker it has `ntkdiag/` before it. The
ends of a 95 % interval are called `margin_lower` and `margin_upper`. NaN is what cannot be known;
the record's `notes` say why.

`alignment` is of the probe that has the labels: of `held_out` where it is given. Where both are
measured, as in `track`, they are `train_alignment` and `held_out_alignment`. How the numbers are
computed, and when they mislead, is in [diagnostics](diagnostics.md).
"""


def page() -> str:
    """The page as text."""
    parts = [HEAD]
    for section, items in itertools.groupby(
        QUANTITIES.items(), lambda item: item[1].section
    ):
        parts.append(
            f"\n## {section}\n\n| name | | what it tells | unit |\n|---|---|---|---|\n"
        )
        for name, quantity in items:
            filled = quantity.filled()
            words = (
                f"{filled.words}, {filled.symbol}"
                if filled.symbol
                else filled.words
            )
            cells = [f"`{name}`", words, filled.meaning, filled.unit]
            parts.append(
                "| "
                + " | ".join(cell.replace("|", "\\|") for cell in cells)
                + " |\n"
            )
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
