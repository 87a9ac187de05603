"""`ntkdiag report RUN`: a run as one page."""

import pathlib
from typing import Annotated

import typer

import ntkdiag
from ntkdiag.commands.printing import print_json
from ntkdiag.commands.shared_options import JsonOption, examples

EXAMPLES = examples(
    "ntkdiag report runs/first",
    "ntkdiag report runs/first --out report.html",
)


def report(
    run: Annotated[pathlib.Path, typer.Argument(metavar="RUN", help="Run directory.")],
    out: Annotated[
        pathlib.Path | None,
        typer.Option(help="File to write, .html or .json; default: report.html in the run."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the report of a run directory: one page that opens anywhere.

    With --json the path that was written is printed as JSON.
    """
    written = ntkdiag.open_run(run).save(out or run / "report.html")
    if as_json:
        print_json({"report": f"{written}"})
    else:
        typer.echo(f"report: {written}")
