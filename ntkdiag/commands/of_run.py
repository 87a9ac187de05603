"""`ntkdiag check RUN`: what is found in a run, for programs that read."""

import pathlib
import time
from typing import Annotated, Literal

import typer

import ntkdiag
from ntkdiag.commands.judged import at_least, exit_status
from ntkdiag.commands.printing import print_json
from ntkdiag.commands.shared_options import JsonOption, examples
from ntkdiag.judging.finding import Finding

EXAMPLES = examples(
    "ntkdiag check runs/first --follow",
    "ntkdiag check runs/first --severity error --json",
)
# Of the JSON that is printed; another one where an entry changes its meaning.
FORMAT = "ntkdiag findings 1"


def check(
    run: Annotated[pathlib.Path, typer.Argument(metavar="RUN", help="Run directory.")],
    severity: Annotated[
        Literal["info", "warning", "error"], typer.Option(help="The least that is printed.")
    ] = "info",
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for others, until an error is found or Ctrl-C.")
    ] = False,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 5.0,
    as_json: JsonOption = False,
) -> None:
    """Print what is found in a run: dead networks, margins beyond the edge, dead layers.

    Exit status: 0 nothing, 1 warnings, 2 errors, 3 where no number can be judged, 4 where the run
    cannot be read.
    """
    found = at_least(ntkdiag.open_run(run).findings, severity)
    if not as_json:
        _print(found)
        if not found:
            typer.echo("No findings.")
    try:
        while follow and not any(finding.severity == "error" for finding in found):
            time.sleep(every)
            now = at_least(ntkdiag.open_run(run).findings, severity)
            if not as_json:
                _print([finding for finding in now if finding not in found])
            found = now
    except KeyboardInterrupt:
        pass
    if as_json:
        print_json({"format": FORMAT, "findings": [finding.to_dict() for finding in found]})
    raise typer.Exit(exit_status(found))


def _print(found: list[Finding]) -> None:
    """A line for each."""
    for finding in found:
        typer.echo(f"{finding}")
