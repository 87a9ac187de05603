"""A comparison as tables in the terminal."""

import io
import sys

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ntkdiag import display
from ntkdiag.report.advice import advice
from ntkdiag.report.reading import readings
from ntkdiag.report.reported import Comparison
from ntkdiag.report.rows import (
    Row,
    fixed_array_rows,
    kernel_rows,
    motion_rows,
    movement_rows,
    prediction_rows,
    task_rows,
)

# Of verdicts by name; the others are bold without a colour.
STYLES = {
    "DEAD": "bold red",
    "COLLAPSED": "bold red",
    "LAZY": "bold blue",
    "BETWEEN": "bold yellow",
    "NONLINEAR": "bold green",
}
WIDTH = 110
LEAVES = 16  # more are cut to those that moved most

BOTH_SIDES = ("A", "B", "B / A")
LEAF_COLUMNS = (
    "size",
    "‖Δθ‖",
    "‖Δθ‖ /\n‖θ_A‖",
    "share of\ntr Θ_A",
    "share of\ntr Θ_B",
    "S_c of\nΘ_leaf",
)


def terminal() -> Console:
    """The console to print tables to: as wide as the terminal, or 110 columns where it is none."""
    return Console(width=None if sys.stdout.isatty() else WIDTH)


def comparison_table(comparison: Comparison) -> Group:
    """Build the rich renderable of a comparison.

    Args:
        comparison: A `Comparison`.

    Returns:
        Tables and notes, for `rich.console.Console.print`.
    """
    between = [
        *motion_rows(comparison),
        *prediction_rows(comparison),
        *fixed_array_rows(comparison),
    ]
    parts = [
        _heading(comparison),
        _in_words(comparison),
        _quantities("Kernel", BOTH_SIDES, kernel_rows(comparison)),
    ]
    of_the_task = task_rows(comparison)
    if of_the_task:
        parts.append(_quantities("Task", BOTH_SIDES, of_the_task))
    parts.append(_quantities("From A to B", ("value",), between))
    parts.append(_parameters(comparison))
    parts.append(_footer(comparison))
    # An empty line under each.
    return Group(*(Padding(part, (0, 0, 1, 0)) for part in parts))


def comparison_text(comparison: Comparison) -> str:
    """Write the tables as plain text, 110 columns wide, as `print` shows them.

    Args:
        comparison: A `Comparison`.

    Returns:
        The text.
    """
    # No colours, and no trailing blanks: the text may be compared and pasted.
    file = io.StringIO()
    console = Console(file=file, width=WIDTH, color_system=None, legacy_windows=False)
    console.print(comparison_table(comparison))
    lines = file.getvalue().rstrip().splitlines()
    return "\n".join(line.rstrip() for line in lines)


def _heading(comparison: Comparison) -> Text:
    """The names of the sides, and the verdict with its criterion."""
    verdict = comparison.verdict
    return Text.assemble(
        ("A  ", "bold"),
        f"{comparison.a.label}\n",
        ("B  ", "bold"),
        f"{comparison.b.label}\n\n",
        (verdict.headline, STYLES.get(verdict.name, "bold")),
        f"  {verdict.numbers}\n",
        (verdict.criterion, "dim"),
    )


def _in_words(comparison: Comparison) -> Text:
    """The numbers in sentences, one under the other, and what to do next."""
    lines = [Text(f"• {sentence}") for sentence in readings(comparison)]
    next_steps = advice(comparison)
    if next_steps:
        lines.append(Text("\nWhat to do next", style="bold"))
    lines += [Text(f"• {sentence}") for sentence in next_steps]
    return Text("\n").join(lines)


def _quantities(title: str, columns: tuple[str, ...], rows: list[Row]) -> Table:
    """A table of quantities with their values and what they mean."""
    table = display.terminal_table(title)
    table.add_column("quantity", width=38)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("meaning", style="dim", ratio=1)
    for row in rows:
        name = f"{row.name}  {row.symbol}".rstrip()
        _add_row(table, (name, *row.values, row.meaning))
    return table


def _parameters(comparison: Comparison) -> Table:
    """A table of the leaves that moved most, in their order, and of all parameters together."""
    table = display.terminal_table("Parameters")
    table.add_column("leaf", ratio=1, min_width=16, overflow="fold")
    for name in LEAF_COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    # Those that moved most are kept in the order of the model.
    *rows, total = movement_rows(comparison)
    moved = [leaf.moved for leaf in comparison.movement[:-1]]
    most_moved_first = sorted(range(len(rows)), key=moved.__getitem__, reverse=True)
    for index in sorted(most_moved_first[:LEAVES]):
        _add_row(table, rows[index])
    if len(rows) > LEAVES:
        table.add_row(Text(f"and {len(rows) - LEAVES} leaves that moved less", style="dim"))
    table.add_section()
    _add_row(table, total)
    return table


def _footer(comparison: Comparison) -> Text:
    """Conventions and notes."""
    facts = comparison.facts
    probe = str(facts["probe_sha256"])[:12]  # enough to tell two probes apart
    lines = [
        f"{facts['model']}, {facts['parameters']:,} {facts['parameter_dtype']} parameters, "
        f"mode {facts['mode']}; N = {facts['n_examples']}, C = {facts['n_outputs']}, probe {probe}",
        f"Θ: {facts['kernel']}, {facts['kernel_dtype']}",
        f"fixed arrays at A: {facts['fixed_state_a']}; at B: {facts['fixed_state_b']}",
        str(facts["versions"]),
    ]
    text = Text("\n".join(lines), style="dim")
    for note in comparison.notes:
        text.append("\nNote: ", style="not dim bold")
        text.append(note, style="not dim")
    return text


def _add_row(table: Table, cells: tuple[str, ...]) -> None:
    """Add a row of plain text, in which rich finds no markup."""
    table.add_row(*(Text(cell) for cell in cells))
