"""`ntkdiag show RUN`: the last rows of every stream of a run in the terminal."""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

import ntkdiag
from ntkdiag.commands.printing import print_json
from ntkdiag.commands.shared_options import JsonOption, examples

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLES = examples("ntkdiag show run", "ntkdiag show run --rows 2 --json")
_WITHOUT_ROWS = ("probe",)  # streams that hold examples


def show(
    run: Annotated[pathlib.Path, typer.Argument(metavar="RUN", help="Run directory.")],
    rows: Annotated[int, typer.Option(min=1, help="Rows to show of each stream.")] = 4,
    as_json: JsonOption = False,
) -> None:
    """Show the last rows of a run: of each stream one table, with a column for each step.

    With --json these rows are printed, with lists and words in them.
    """
    from ntkdiag.report.comparison_table import terminal

    opened = ntkdiag.open_run(run)
    tails = {}
    for name in opened.names:
        if name in _WITHOUT_ROWS:
            continue
        # The rows of `track` together with the drift from the first checkpoint.
        tracked = opened.tracked if name == "track" else None
        all_rows = opened.rows(name) if tracked is None else tracked.rows
        tails[name] = list(all_rows[-rows:])
    if as_json:
        print_json({"root": os.fspath(opened.root), "streams": tails})
        return
    for name, tail in tails.items():
        terminal().print(_table(name, tail))


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> "Table":
    """The numbers of some rows, one below the other, a column for each row."""
    from rich.text import Text

    from ntkdiag.display import terminal_table
    from ntkdiag.report.number_text import number

    table = terminal_table(name if rows else f"{name}: no row yet")
    table.expand = False
    table.add_column("step", overflow="fold")
    for row in rows:
        table.add_column(str(row["step"]), justify="right", no_wrap=True)
    names: dict[str, None] = {}  # in the order first seen
    for row in rows:
        names.update(dict.fromkeys(key for key, value in row.items() if _is_number(value)))
    names.pop("step", None)
    for key in names:
        values = [row.get(key) for row in rows]
        table.add_row(Text(key), *(number(value) if _is_number(value) else "" for value in values))
    return table


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
