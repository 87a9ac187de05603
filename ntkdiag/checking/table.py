"""A self-check as tables in the terminal."""

import io
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ntkdiag.checking.result import Leaf, SelfCheck

STYLES = {"ok": "green", "note": "bold yellow", "wrong": "bold red", "not checked": "dim"}
WIDTH = 110
ROWS = 20  # more leaves are summed by the first part of their paths


def selfcheck_table(check: SelfCheck) -> Group:
    """Build the rich renderable of a self-check."""
    verdict = Text("nothing is wrong", "bold green") if check.ok else Text("something is wrong", "bold red")
    heading = Text.assemble((check.model, "bold"), f", mode {check.mode}: ", verdict, f"  ({check.seconds:.1f} s)")
    parts = [heading, _leaves("Differentiated", check.trainable), _leaves("Held fixed", check.fixed), _findings(check)]
    return Group(*(Padding(part, (0, 0, 1, 0)) for part in parts))


def selfcheck_text(check: SelfCheck) -> str:
    """Write the tables as plain text, 110 columns wide."""
    file = io.StringIO()
    Console(file=file, width=WIDTH, color_system=None, legacy_windows=False).print(selfcheck_table(check))
    return "\n".join(line.rstrip() for line in file.getvalue().rstrip().splitlines())


def _leaves(title: str, leaves: Sequence[Leaf]) -> Any:
    if not leaves:
        return Text.assemble((title, "bold"), "\nnothing")
    table = _table(title)
    table.add_column("path", ratio=1, overflow="fold")
    table.add_column("shape", overflow="fold")
    table.add_column("dtype")
    table.add_column("numbers", justify="right", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    for row in _rows(leaves):
        table.add_row(*map(Text, row))
    table.add_section()
    table.add_row(*map(Text, _summed(f"{len(leaves)} {'array' if len(leaves) == 1 else 'arrays'}", leaves)))
    return table


def _rows(leaves: Sequence[Leaf]) -> list[tuple[str, ...]]:
    """Write one row per leaf, or where there are many, one per beginning of their paths."""
    if len(leaves) <= ROWS:
        return [_row(leaf.path or "(the whole)", leaf.shape, [leaf]) for leaf in leaves]
    for depth in (3, 2, 1):
        groups: dict[str, list[Leaf]] = {}
        for leaf in leaves:
            groups.setdefault("/".join(leaf.path.split("/")[:depth]), []).append(leaf)
        if len(groups) <= ROWS or depth == 1:
            break
    rows = [
        _summed(f"{path}: {len(group)} arrays" if len(group) > 1 else path, group) for path, group in groups.items()
    ]
    return rows[:ROWS] + ([(f"and {len(rows) - ROWS} more", "", "", "", "")] if len(rows) > ROWS else [])


def _summed(name: str, leaves: Sequence[Leaf]) -> tuple[str, ...]:
    return _row(name, None, leaves)


def _row(name: str, shape: tuple[int, ...] | None, leaves: Sequence[Leaf]) -> tuple[str, ...]:
    dtypes = ", ".join(dict.fromkeys(leaf.dtype for leaf in leaves))
    size, bytes_ = (sum(getattr(leaf, name) for leaf in leaves) for name in ("size", "bytes"))
    return name, "" if shape is None else str(list(shape)), dtypes, f"{size:,}", f"{bytes_:,}"


def _findings(check: SelfCheck) -> Table:
    table = _table("Checked")
    table.add_column("question", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("answer", ratio=1, overflow="fold")
    for finding in check.findings:
        table.add_row(Text(finding.question), Text(finding.status, STYLES[finding.status]), Text(finding.text))
    return table


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, expand=True, pad_edge=False
    )
