"""A run as a table for the terminal, a line for each checkpoint."""

from typing import TYPE_CHECKING

from ntkdiag import display
from ntkdiag.report.number_text import number
from ntkdiag.report.reported import Track

if TYPE_CHECKING:
    from rich.table import Table

# Columns, where the run has them: their title and the name of the number.
COLUMNS = {
    "loss": "loss",
    "accuracy": "accuracy",
    "held out": "held_out_accuracy",
    "trace": "trace",
    "rank": "rank",
    "particip.": "participation_ratio",
    "drift": "drift",
    "S_c": "drift_distance_centred",
    "margin": "margin",
}
# Numbers that labels decide about, of held-out examples where there are some.
ALIGNMENTS = ("held_out_alignment_above", "alignment_above")


def track_table(track: Track) -> "Table":
    """Step, numbers, and e1 of the network linearized at the first checkpoint."""
    steps = track.steps
    table = display.terminal_table(f"{len(steps)} checkpoints, steps {steps[0]} to {steps[-1]}")
    names = {title: name for title, name in COLUMNS.items() if name in track.names}
    for name in ALIGNMENTS:
        if name in track.names:
            names["alignment"] = name
            break
    table.add_column("step", justify="right")
    columns = []
    for title, name in names.items():
        table.add_column(title, justify="right")
        columns.append(track.series(name))
    table.add_column("e1 from first", justify="right")
    columns.append(track.matrix("e1")[0])
    for place, step in enumerate(steps):
        table.add_row(str(step), *[number(float(column[place])) for column in columns])
    return table
