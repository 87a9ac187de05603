"""Write the tables of docs/quantities.md from `ntkdiag.quantities`; the text before them stays.

python docs/quantities_page.py
"""

import itertools
import pathlib

from ntkdiag.quantities import OF_KERNEL, QUANTITIES

PAGE = pathlib.Path(__file__).with_name("quantities.md")


def page() -> str:
    """The page as text."""
    before_tables = PAGE.read_text().partition(f"\n## {OF_KERNEL}\n")[0]
    parts = [before_tables]
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
