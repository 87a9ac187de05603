"""Results in the terminal: first the answer, then, on request, all numbers.

The first screen of a comparison holds the verdict, six key numbers and the findings. A run has a
line for each checkpoint.
"""

import dataclasses
import io
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ntkdiag.display import number, terminal_table
from ntkdiag.judging.finding import Finding
from ntkdiag.report.comparison_page import tables_of
from ntkdiag.report.page import Row

if TYPE_CHECKING:
    from ntkdiag.comparison.comparison import Comparison
    from ntkdiag.comparison.tracked import Track

WIDTH = 110
MORE = 'All of it: comparison.text(everything=True), or comparison.save("report.html").'

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

# Columns of a run, where it has them: title and name of the number. As many as fit 80 characters.
OF_RUN = {
    "loss": "loss",
    "accuracy": "accuracy",
    "particip.": "participation_ratio",
    "drift": "drift",
    "S_c": "drift_distance_centred",
    "margin": "margin",
}
DIGITS = 3


def terminal() -> Console:
    """The console to print tables to: as wide as the terminal, or 110 columns where it is none."""
    return Console(width=None if sys.stdout.isatty() else WIDTH)


@dataclasses.dataclass(frozen=True)
class Screen:
    """What a comparison shows in a terminal, as something that rich can print."""

    comparison: "Comparison"
    everything: bool = False  # all numbers and notes, instead of the first screen

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        comparison = self.comparison
        tables = tables_of(comparison).values()
        parts: list[RenderableType] = [_heading(comparison)]
        if self.everything:
            parts.append(_findings(comparison.findings))
            for table in tables:
                parts.append(_quantities(table.title, table.columns, table.rows))
            parts += [Text(f"Note: {note}") for note in comparison.notes]
        else:
            rows = [row for table in tables for row in table.rows]
            parts.append(_key_numbers(rows))
            parts.append(_findings(comparison.findings))
            n_more, n_notes = len(rows) - MOST_KEY_NUMBERS, len(comparison.notes)
            text = f"Not shown: {n_more} numbers and {n_notes} notes. {MORE}"
            parts.append(Text(text, style="dim"))
        for part in parts:
            yield part
            yield ""  # an empty line under each


def comparison_text(comparison: "Comparison", *, everything: bool = False) -> str:
    """Write what the terminal shows as plain text."""
    # No colours, and no trailing blanks: the text may be compared and pasted.
    file = io.StringIO()
    console = Console(file=file, width=WIDTH, color_system=None, legacy_windows=False)
    console.print(Screen(comparison, everything=everything))
    lines = file.getvalue().rstrip().splitlines()
    return "\n".join(line.rstrip() for line in lines)


def track_screen(track: "Track") -> Group:
    """Of each checkpoint its numbers, and e1 of the network linearized at the first one."""
    steps = track.steps
    title = f"{len(steps)} checkpoints, steps {steps[0]} to {steps[-1]}"
    names = dict(OF_RUN)
    if "held_out_accuracy" in track.names:
        names["accuracy"] = "held_out_accuracy"
        title += "; accuracy of held-out examples"
    table = terminal_table(title)
    table.add_column("step", justify="right", no_wrap=True)
    columns = {head: track.series(name) for head, name in names.items() if name in track.names}
    columns[f"e1 from {steps[0]}"] = track.matrix("e1")[0]
    for head in columns:
        table.add_column(head, justify="right", no_wrap=True)
    for index, step in enumerate(steps):
        cells = [number(float(column[index]), DIGITS) for column in columns.values()]
        table.add_row(str(step), *cells)
    return Group(table, _findings(track.findings))


def _heading(comparison: "Comparison") -> Text:
    return Text.assemble(
        (comparison.verdict.headline, "bold"),
        ("\nA  ", "bold"),
        f"{comparison.labels[0]}\n",
        ("B  ", "bold"),
        comparison.labels[1],
    )


def _key_numbers(rows: Sequence[Row]) -> Table:
    by_key = {row.key: row for row in rows}
    chosen = []
    for key in [key for key in KEY_NUMBERS if key in by_key][:MOST_KEY_NUMBERS]:
        row = by_key[key]
        if len(row.values) == 1:  # what lies between A and B has no value at either
            row = dataclasses.replace(row, values=("", "", *row.values))
        chosen.append(row)
    return _quantities(None, ("A", "B", "A to B"), chosen)


def _findings(findings: list[Finding]) -> Text:
    """What was found in the numbers, one under the other, each with what to do about it."""
    lines = [Text(f"• {finding}") for finding in findings]
    return Text("\n").join(lines) if lines else Text("No findings.")


def _quantities(title: str | None, columns: Sequence[str], rows: Sequence[Row]) -> Table:
    table = terminal_table(title)
    table.expand = False
    table.add_column("quantity", min_width=20)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        name = f"{row.name}  {row.symbol}".rstrip()
        table.add_row(*map(Text, (name, *row.values)))  # plain text, in which rich finds no markup
    return table
