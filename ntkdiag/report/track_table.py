"""A run in the terminal: a line for each checkpoint, and what the numbers say."""

from typing import TYPE_CHECKING

from ntkdiag import display
from ntkdiag.report.number_text import number
from ntkdiag.report.reported import Track

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

# Columns, where the run has them: title and name of the number. As many as fit 80 characters.
COLUMNS = {
    "loss": "loss",
    "accuracy": "accuracy",
    "particip.": "participation_ratio",
    "drift": "drift",
    "S_c": "drift_distance_centred",
    "margin": "margin",
}
DIGITS = 3


def track_table(track: Track) -> "Group":
    """The table of the checkpoints, and the findings."""
    from rich.console import Group
    from rich.text import Text

    return Group(_checkpoints(track), *(Text(f"• {finding}") for finding in track.findings))


def _checkpoints(track: Track) -> "Table":
    """Step, numbers, and e1 of the network linearized at the first checkpoint."""
    steps = track.steps
    title = f"{len(steps)} checkpoints, steps {steps[0]} to {steps[-1]}"
    names = dict(COLUMNS)
    if "held_out_accuracy" in track.names:
        names["accuracy"] = "held_out_accuracy"
        title += "; accuracy of held-out examples"
    table = display.terminal_table(title)
    table.add_column("step", justify="right", no_wrap=True)
    columns = []
    for heading, name in names.items():
        if name in track.names:
            table.add_column(heading, justify="right", no_wrap=True)
            columns.append(track.series(name))
    table.add_column(f"e1 from {steps[0]}", justify="right", no_wrap=True)
    columns.append(track.matrix("e1")[0])
    for place, step in enumerate(steps):
        table.add_row(str(step), *[number(float(column[place]), DIGITS) for column in columns])
    return table
