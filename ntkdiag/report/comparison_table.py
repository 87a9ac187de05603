"""A comparison in the terminal: first the answer, then, for who asks, everything.

The first screen holds the verdict, six key numbers and the findings; `everything` all tables.
From 100 columns on, what the numbers mean stands beside them.
"""

import dataclasses
import io
import sys
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from ntkdiag import display
from ntkdiag.report.reported import Comparison
from ntkdiag.report.rows import (
    LEAF_COLUMNS,
    Row,
    all_rows,
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
ROOM_FOR_MEANINGS = 100  # columns; in a narrower terminal they would be a few letters wide
LEAVES = 16  # more are cut to those that moved most

# The first six of these that a comparison has are its key numbers.
KEY_NUMBERS = (
    "e1",
    "drift_distance_centred",
    "alignment_above",
    "held_out_alignment_above",
    "loss",
    "margin",
    "trace",
    "accuracy",
    "drift",
    "entropy_rank",
    "moved_relative",
)
MOST_KEY_NUMBERS = 6

BOTH_SIDES = ("A", "B", "B / A")


def terminal() -> Console:
    """The console to print tables to: as wide as the terminal, or 110 columns where it is none."""
    return Console(width=None if sys.stdout.isatty() else WIDTH)


@dataclasses.dataclass(frozen=True)
class Screen:
    """What a comparison shows in a terminal, as something that rich can print."""

    comparison: Comparison  # a `Comparison`
    everything: bool = False  # all tables and notes, instead of the first screen
    # The last line of the first screen: how to get the rest.
    more: str = 'All of it: comparison.text(everything=True), or comparison.save("report.html").'

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        with_meanings = options.max_width >= ROOM_FOR_MEANINGS
        if self.everything:
            parts = _everything(self.comparison, with_meanings)
        else:
            parts = [
                _heading(self.comparison),
                _key_numbers(self.comparison, with_meanings),
                _findings(self.comparison),
                Text(f"{_left_out(self.comparison)} {self.more}", style="dim"),
            ]
        for part in parts:
            yield part
            yield ""  # an empty line under each


def comparison_text(comparison: Comparison, *, everything: bool = False) -> str:
    """Write what the terminal shows as plain text."""
    # No colours, and no trailing blanks: the text may be compared and pasted.
    file = io.StringIO()
    console = Console(file=file, width=WIDTH, color_system=None, legacy_windows=False)
    console.print(Screen(comparison, everything=everything))
    lines = file.getvalue().rstrip().splitlines()
    return "\n".join(line.rstrip() for line in lines)


def _everything(comparison: Comparison, with_meanings: bool) -> list[Text | Table]:
    """All tables, findings and notes."""
    between = [*motion_rows(comparison), *prediction_rows(comparison)]
    parts = [
        _heading(comparison).append(f"\n\n{comparison.verdict.criterion}", style="dim"),
        _findings(comparison),
        _quantities("Kernel", BOTH_SIDES, kernel_rows(comparison), with_meanings),
    ]
    of_the_task = task_rows(comparison)
    if of_the_task:
        parts.append(_quantities("Task", BOTH_SIDES, of_the_task, with_meanings))
    parts.append(_quantities("From A to B", ("value",), between, with_meanings))
    return [*parts, _parameters(comparison), _footer(comparison)]


def _heading(comparison: Comparison) -> Text:
    """The verdict and the names of the sides."""
    verdict = comparison.verdict
    return Text.assemble(
        (verdict.headline, STYLES.get(verdict.name, "bold")),
        ("\nA  ", "bold"),
        f"{comparison.a.label}\n",
        ("B  ", "bold"),
        comparison.b.label,
    )


def _key_numbers(comparison: Comparison, with_meanings: bool) -> Table:
    """The six numbers to read first, in one table."""
    by_key = {row.key: row for row in all_rows(comparison)}
    rows = []
    for key in [key for key in KEY_NUMBERS if key in by_key][:MOST_KEY_NUMBERS]:
        row = by_key[key]
        if len(row.values) == 1:  # what lies between A and B has no value at either
            row = dataclasses.replace(row, values=("", "", *row.values))
        rows.append(row)
    return _quantities(None, ("A", "B", "A to B"), rows, with_meanings)


def _left_out(comparison: Comparison) -> str:
    """What the first screen does not hold, counted."""
    leaves = len(comparison.movement) - 1
    n_notes = len(comparison.notes)
    notes = f"{n_notes} {'note' if n_notes == 1 else 'notes'}"
    n_numbers = len(all_rows(comparison)) - MOST_KEY_NUMBERS
    return f"Not shown: {n_numbers} numbers, {leaves} parameters leaf by leaf, {notes}."


def _findings(comparison: Comparison) -> Text:
    """What was found in the numbers, one under the other, each with what to do about it."""
    lines = [Text(f"• {finding}") for finding in comparison.findings]
    return Text("\n").join(lines) if lines else Text("No findings.")


def _quantities(
    title: str | None, columns: tuple[str, ...], rows: list[Row], with_meanings: bool
) -> Table:
    """A table of quantities with their values, and what they mean where there is room."""
    table = display.terminal_table(title)
    table.expand = with_meanings
    # Tables with titles stand under each other, their meanings in one line.
    in_line = with_meanings and title is not None
    table.add_column("quantity", width=38 if in_line else None, min_width=20)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    if with_meanings:
        table.add_column("meaning", style="dim", ratio=1)
    for row in rows:
        name = f"{row.name}  {row.symbol}".rstrip()
        cells = (name, *row.values)
        _add_row(table, (*cells, row.meaning) if with_meanings else cells)
    return table


def _parameters(comparison: Comparison) -> Table:
    """A table of the leaves that moved most, in their order, and of all parameters together."""
    table = display.terminal_table("Parameters (kernels of leaves are traced over outputs)")
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
    lines = [
        *_model_lines(comparison),
        *_probes(comparison),
        f"Θ: {facts['kernel']}, {facts['kernel_dtype']}",
        f"fixed arrays at A: {facts['fixed_state_a']}; at B: {facts['fixed_state_b']}",
        str(facts["versions"]),
    ]
    text = Text("\n".join(lines), style="dim")
    for note in comparison.notes:
        text.append("\nNote: ", style="not dim bold")
        text.append(note, style="not dim")
    return text


def _model_lines(comparison: Comparison) -> list[str]:
    """The model, or both models, each in a line."""
    facts = comparison.facts
    lines = []
    for of in ("", "_b"):
        if f"model{of}" in facts:
            size = f"{facts[f'parameters{of}']:,} {facts[f'parameter_dtype{of}']} parameters"
            n_outputs = facts.get(f"n_outputs{of}", facts["n_outputs"])
            mode = facts[f"mode{of}"]
            lines.append(f"{facts[f'model{of}']}, {size}, mode {mode}, C = {n_outputs}")
    return lines


def _probes(comparison: Comparison) -> list[str]:
    """The examples of each probe: what they are, how many, and which."""
    facts = comparison.facts
    lines = []
    for words, name in (("trained on", "train"), ("held out", "held_out")):
        digest = facts[f"{name}_sha256"]
        if digest is not None:
            # So many letters are enough to tell two probes apart.
            lines.append(f"{words}: N = {facts[f'{name}_examples']}, probe {str(digest)[:12]}")
    return lines


def _add_row(table: Table, cells: tuple[str, ...]) -> None:
    """Add a row of plain text, in which rich finds no markup."""
    table.add_row(*(Text(cell) for cell in cells))
