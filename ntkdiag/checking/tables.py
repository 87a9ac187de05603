"""Tables in the terminal: of the arrays of a model, and of findings."""

import io
from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ntkdiag import display
from ntkdiag.checking.result import Check, Leaf

STYLES = {"ok": "green", "note": "bold yellow", "wrong": "bold red", "not checked": "dim"}
WIDTH = 110
ROWS = 20  # of more leaves the first

Row = tuple[str, str, str, str, str]  # path, shape, dtype, numbers, bytes


def as_text(renderable: RenderableType) -> str:
    """Write what rich can draw as plain text, 110 columns wide."""
    file = io.StringIO()
    console = Console(file=file, width=WIDTH, color_system=None, legacy_windows=False)
    console.print(renderable)
    lines = file.getvalue().rstrip().splitlines()
    return display.printable("\n".join(line.rstrip() for line in lines))


def findings_table(title: str, findings: Sequence[Check]) -> Table:
    """One row for every question and its answer."""
    table = display.terminal_table(title)
    table.add_column("question", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("answer", ratio=1, overflow="fold")
    for finding in findings:
        status = Text(finding.status, STYLES[finding.status])
        # As Text, so that brackets in names are not read as markup.
        table.add_row(Text(finding.question), status, Text(finding.text))
    return table


def leaves_table(title: str, leaves: Sequence[Leaf]) -> Table | Text:
    """One row for every array, of many for the first, and the sum of all."""
    if not leaves:
        return Text.assemble((title, "bold"), "\nnothing")
    table = display.terminal_table(title)
    table.add_column("path", ratio=1, overflow="fold")
    table.add_column("shape", overflow="fold")
    table.add_column("dtype")
    table.add_column("numbers", justify="right", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    for leaf in leaves[:ROWS]:
        table.add_row(*map(Text, _row(leaf.path or "(the whole)", str(list(leaf.shape)), [leaf])))
    if len(leaves) > ROWS:
        table.add_row(f"and {len(leaves) - ROWS} more")
    table.add_section()
    total = "1 array" if len(leaves) == 1 else f"{len(leaves)} arrays"
    table.add_row(*map(Text, _row(total, "", leaves)))
    return table


def _row(name: str, shape: str, leaves: Sequence[Leaf]) -> Row:
    """A row for one leaf, or for the sum of several."""
    dtypes = ", ".join(dict.fromkeys(leaf.dtype for leaf in leaves))
    numbers = sum(leaf.size for leaf in leaves)
    n_bytes = sum(leaf.bytes for leaf in leaves)
    return name, shape, dtypes, f"{numbers:,}", f"{n_bytes:,}"
