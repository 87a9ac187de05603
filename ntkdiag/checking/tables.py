"""Tables in the terminal: of the arrays of a model, and of findings."""

import io
from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ntkdiag import display
from ntkdiag.checking.findings import Check, Leaf

STYLES = {"ok": "green", "note": "bold yellow", "wrong": "bold red", "not checked": "dim"}
WIDTH = 110
ROWS = 20  # more leaves are summed by the first parts of their paths

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
    """One row for every array, or where there are many, for every beginning of their paths."""
    if not leaves:
        return Text.assemble((title, "bold"), "\nnothing")
    table = display.terminal_table(title)
    table.add_column("path", ratio=1, overflow="fold")
    table.add_column("shape", overflow="fold")
    table.add_column("dtype")
    table.add_column("numbers", justify="right", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    for row in _rows(leaves):
        table.add_row(*map(Text, row))
    table.add_section()
    total = "1 array" if len(leaves) == 1 else f"{len(leaves)} arrays"
    table.add_row(*map(Text, _row(total, "", leaves)))
    return table


def _rows(leaves: Sequence[Leaf]) -> list[Row]:
    """One row per leaf if they fit, else one per group, and a last one for those left out."""
    if len(leaves) <= ROWS:
        return [_row(leaf.path or "(the whole)", str(list(leaf.shape)), [leaf]) for leaf in leaves]
    rows = []
    for path, group in _groups(leaves).items():
        name = path if len(group) == 1 else f"{path}: {len(group)} arrays"
        rows.append(_row(name, "", group))
    if len(rows) <= ROWS:
        return rows
    return [*rows[:ROWS], (f"and {len(rows) - ROWS} more", "", "", "", "")]


def _groups(leaves: Sequence[Leaf]) -> dict[str, list[Leaf]]:
    """Leaves by the first parts of their paths: three if that makes few groups, else two or one."""
    # The deepest grouping that fits says most.
    groups: dict[str, list[Leaf]] = {}
    for depth in (3, 2, 1):
        groups = {}
        for leaf in leaves:
            beginning = "/".join(leaf.path.split("/")[:depth])
            groups.setdefault(beginning, []).append(leaf)
        if len(groups) <= ROWS:
            break
    return groups


def _row(name: str, shape: str, leaves: Sequence[Leaf]) -> Row:
    """A row for one leaf, or for the sum of several."""
    dtypes = ", ".join(dict.fromkeys(leaf.dtype for leaf in leaves))
    numbers = sum(leaf.size for leaf in leaves)
    n_bytes = sum(leaf.bytes for leaf in leaves)
    return name, shape, dtypes, f"{numbers:,}", f"{n_bytes:,}"
