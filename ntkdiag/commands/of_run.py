"""`ntkdiag show`, `check` and `report` of a run directory, and `demo`, which makes one."""

import os
import pathlib
from typing import Annotated, Literal, TypeAlias

import typer

import ntkdiag
from ntkdiag.commands.options import JsonOption, at_least, examples, exit_status, print_json

SHOW_EXAMPLES = examples("ntkdiag show run", "ntkdiag show run --rows 2 --json")
CHECK_EXAMPLES = examples(
    "ntkdiag check runs/first",
    "ntkdiag check runs/first --severity error --json",
)
REPORT_EXAMPLES = examples(
    "ntkdiag report runs/first",
    "ntkdiag report runs/first --out report.html",
)
DEMO_EXAMPLES = examples("ntkdiag demo", "ntkdiag demo --steps 100 --out runs/first")
# Of the JSON of `check`; another one where an entry changes its meaning.
FORMAT = "ntkdiag findings 1"

_Run: TypeAlias = Annotated[pathlib.Path, typer.Argument(metavar="RUN", help="Run directory.")]


def show(
    run: _Run,
    rows: Annotated[int, typer.Option(min=1, help="Rows to show of each stream.")] = 4,
    as_json: JsonOption = False,
) -> None:
    """Show the last rows of a run: of each stream one table, with a column for each step.

    With --json these rows are printed, with lists and words in them.
    """
    opened = ntkdiag.open_run(run)
    streams = {}
    for name in opened.names:
        # The rows of `track` together with the drift from the first checkpoint.
        tracked = opened.tracked if name == "track" else None
        all_rows = opened.rows(name) if tracked is None else tracked.rows
        streams[name] = list(all_rows[-rows:])
    if as_json:
        print_json({"root": os.fspath(opened.root), "streams": streams})
        return
    import pandas

    for name, tail in streams.items():
        numbers = pandas.DataFrame(tail, columns=None if tail else ["step"]).set_index("step")
        table = numbers.select_dtypes("number").T
        text = table.to_string(float_format="{:.4g}".format, na_rep="–")
        typer.echo(f"{name}\n{text}\n")


def check(
    run: _Run,
    severity: Annotated[
        Literal["info", "warning", "error"], typer.Option(help="The lowest severity to print.")
    ] = "info",
    as_json: JsonOption = False,
) -> None:
    """Print the findings of a run: dead networks, margins beyond the edge, dead layers.

    Exit status: 0 nothing, 1 warnings, 2 errors, 3 no number can be judged, 4 the command failed.
    """
    found = at_least(ntkdiag.open_run(run).findings, severity)
    if as_json:
        print_json({"format": FORMAT, "findings": [finding.to_dict() for finding in found]})
    else:
        typer.echo("\n".join(map(str, found)) or "No findings.")
    raise typer.Exit(exit_status(found))


def report(
    run: _Run,
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="File to write, .html or .json; default: report.html in the run."),
    ] = None,
) -> None:
    """Write the report of a run directory: one page that opens anywhere."""
    written = ntkdiag.open_run(run).save(out or run / "report.html")
    typer.echo(f"report: {written}")


def demo(
    steps: Annotated[int, typer.Option(min=1, help="Number of training steps.")] = 300,
    out: Annotated[pathlib.Path, typer.Option(help="Folder to create.")] = pathlib.Path(
        "runs/digits"
    ),
) -> None:
    """Train a small network on digits, watch its kernel, track its checkpoints.

    Measurements, checkpoints and a report are in one folder.
    """
    from ntkdiag.demo import run_demo
    from ntkdiag.report.screens import terminal

    run_demo(steps, out, terminal())
