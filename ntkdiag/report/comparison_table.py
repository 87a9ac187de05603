"""A comparison as tables in the terminal."""

import io
import sys
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ntkdiag.report.reading import readings
from ntkdiag.report.rows import (
    Row,
    kernel_rows,
    motion_rows,
    movement_rows,
    prediction_rows,
    task_rows,
)

STYLES = {"LAZY": "bold blue", "RICH": "bold green", "MIXED": "bold yellow", "UNCHANGED": "bold"}
WIDTH = 110
LEAVES = 16  # more are cut to those that moved most


def terminal() -> Console:
    """The console to print tables to; where standard output is no terminal, as wide as they want to be."""
    return Console(width=None if sys.stdout.isatty() else WIDTH)


def comparison_table(comparison: Any) -> Group:
    """Build the rich renderable of a comparison.

    Args:
        comparison: A `Comparison`.

    Returns:
        Tables and notes, for `rich.console.Console.print`.
    """
    pair, one = ("A", "B", "B / A"), ("value",)
    parts = [
        _heading(comparison),
        _words(comparison),
        _rows("Kernel", pair, kernel_rows(comparison)),
    ]
    if tasks := task_rows(comparison):
        parts.append(_rows("Task", pair, tasks))
    parts.append(
        _rows("From A to B", one, [*motion_rows(comparison), *prediction_rows(comparison)])
    )
    parts += [_movement(comparison), _footer(comparison)]
    return Group(*(Padding(part, (0, 0, 1, 0)) for part in parts))


def comparison_text(comparison: Any) -> str:
    """Write the tables as plain text, 110 columns wide, as `print` shows them.

    Args:
        comparison: A `Comparison`.

    Returns:
        The text.
    """
    file = io.StringIO()
    Console(file=file, width=WIDTH, color_system=None, legacy_windows=False).print(
        comparison_table(comparison)
    )
    return "\n".join(line.rstrip() for line in file.getvalue().rstrip().splitlines())


def _heading(comparison: Any) -> Text:
    verdict = comparison.verdict
    return Text.assemble(
        ("A  ", "bold"),
        f"{comparison.a.label}\n",
        ("B  ", "bold"),
        f"{comparison.b.label}\n\n",
        (verdict.name, STYLES[verdict.name]),
        f"  {verdict.numbers}\n",
        (verdict.criterion, "dim"),
    )


def _words(comparison: Any) -> Text:
    return Text("\n").join(Text(f"• {sentence}") for sentence in readings(comparison))


def _rows(title: str, columns: tuple[str, ...], rows: list[Row]) -> Table:
    table = _table(title)
    table.add_column("quantity", width=38)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("meaning", style="dim", ratio=1)
    for row in rows:
        table.add_row(
            *(
                Text(cell)
                for cell in (f"{row.name}  {row.symbol}".rstrip(), *row.values, row.meaning)
            )
        )
    return table


def _movement(comparison: Any) -> Table:
    table = _table("Parameters")
    table.add_column("leaf", ratio=1, min_width=16, overflow="fold")
    for name in (
        "size",
        "‖Δθ‖",
        "‖Δθ‖ /\n‖θ_A‖",
        "share of\ntr Θ_A",
        "share of\ntr Θ_B",
        "S_c of\nΘ_leaf",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    *leaves, total = movement_rows(comparison)
    order = sorted(
        range(len(leaves)), key=lambda index: comparison.movement[index].moved, reverse=True
    )
    for index in sorted(order[:LEAVES]):
        table.add_row(*(Text(cell) for cell in leaves[index]))
    if len(leaves) > LEAVES:
        table.add_row(Text(f"and {len(leaves) - LEAVES} leaves that moved less", style="dim"))
    table.add_section()
    table.add_row(*(Text(cell) for cell in total))
    return table


def _footer(comparison: Any) -> Text:
    facts = comparison.facts
    lines = [
        f"{facts['model']}, {facts['parameters']:,} {facts['parameter_dtype']} parameters, mode {facts['mode']}; "
        f"N = {facts['n_examples']}, C = {facts['n_outputs']}, probe {facts['probe_sha256'][:12]}",
        f"Θ: {facts['kernel']}, {facts['kernel_dtype']}",
        f"fixed state at A: {facts['fixed_state_a']}; at B: {facts['fixed_state_b']}",
        facts["versions"],
    ]
    text = Text("\n".join(lines), style="dim")
    for note in comparison.notes:
        text.append("\nNote: ", style="not dim bold")
        text.append(note, style="not dim")
    return text


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        expand=True,
        pad_edge=False,
    )
