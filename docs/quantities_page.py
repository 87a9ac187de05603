"""Write the tables of docs/quantities.md from `ntkdiag.quantities`; the text before them stays.

python docs/quantities_page.py
"""

import pathlib

from ntkdiag.quantities import OF_KERNEL, QUANTITIES

PAGE = pathlib.Path(__file__).with_name("quantities.md")


def page() -> str:
    """The page as text."""
    before_tables = PAGE.read_text().partition(f"\n## {OF_KERNEL}\n")[0]
    parts = [before_tables]
    for section in dict.fromkeys(
        known.section for known in QUANTITIES.values()
    ):
        parts.append(
            f"\n## {section}\n\n| name | | what it tells | unit |\n|---|---|---|---|\n"
        )
        for name, quantity in QUANTITIES.items():
            if quantity.section != section:
                continue
            words = ", ".join(filter(None, (quantity.words, quantity.symbol)))
            cells = [f"`{name}`", words, quantity.meaning, quantity.unit]
            parts.append(
                "| "
                + " | ".join(cell.replace("|", "\\|") for cell in cells)
                + " |\n"
            )
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
