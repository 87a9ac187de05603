"""Options that several commands have, what commands print, and how they end.

Results go to standard output, everything else to standard error. A command that judges ends with 0
for no finding or information only, 1 for warnings, 2 for errors, and 3 if no number can be judged.
Errors of the command itself end with 4.
"""

import contextlib
import json
import pathlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias

import typer

from ntkdiag import display, errors
from ntkdiag.judging.finding import SEVERITIES, Finding

_STATUS = {"info": 0, "warning": 1, "error": 2}
_CANNOT_TELL = 3
_UNKNOWN = "unknown"

_CASE = (
    "path.py:function that returns a model, (model, x), (model, variables, x) or a dictionary. "
    "IMPORTS CODE."
)
CaseArgument: TypeAlias = Annotated[str, typer.Argument(metavar="CASE", help=_CASE)]
CaseOption: TypeAlias = Annotated[str, typer.Option("--case", metavar="CASE", help=_CASE)]
TrainOption: TypeAlias = Annotated[
    pathlib.Path | None,
    typer.Option(
        metavar="FILE.npz",
        help="Examples of the training set: arrays x and, optionally, y. Default: the case's.",
    ),
]
HeldOutOption: TypeAlias = Annotated[
    pathlib.Path | None,
    typer.Option(
        metavar="FILE.npz", help="Examples that were not trained on: x and y. Default: the case's."
    ),
]
ReductionOption: TypeAlias = Annotated[
    Literal["auto", "full", "mean", "trace", "sum-of-logits"],
    typer.Option(
        metavar="KIND",
        help="Reduction of the kernel over outputs: full, mean, trace, sum-of-logits; auto is "
        "full up to 2048 rows.",
    ),
]
MemoryOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Memory budget of a kernel, such as 4GB.")
]
JsonOption: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON, and nothing else.")
]
FailOnOption: TypeAlias = Annotated[
    Literal["warning", "error"] | None,
    typer.Option(
        metavar="SEVERITY",
        help="Fail on findings of this severity: warning or error. Status 1 for warnings, 2 for "
        "errors, 3 if nothing can be judged.",
    ),
]


def examples(*lines: str) -> str:
    """The end of a help text: commands that can be copied, one under the other."""
    return "\n\n".join(("Examples:", *lines))


def print_json(content: Mapping[str, Any]) -> None:
    """Print plain values as one line of strict JSON: a number that is not finite is null."""
    typer.echo(json.dumps(display.plain(dict(content)), allow_nan=False))


@contextlib.contextmanager
def results_alone(as_json: bool) -> Iterator[None]:
    """Keep standard output for JSON: what the user's own code prints goes to standard error."""
    if not as_json:
        yield
        return
    with contextlib.redirect_stdout(sys.stderr):
        yield


def usage_error(call: str, expected: str, got: str) -> errors.InvalidInputError:
    """The error for words such as ``ntkdiag plan net``; it names the help of their command."""
    command = " ".join(call.split()[:2])
    return errors.InvalidInputError(
        call=call, expected=expected, got=got, do=f"See: {command} --help"
    )


def at_least(found: Iterable[Finding], severity: str) -> list[Finding]:
    """The findings of at least this severity, and always the one that nothing can be judged."""
    least = SEVERITIES.index(severity)
    return [
        finding
        for finding in found
        if finding.id == _UNKNOWN or SEVERITIES.index(finding.severity) >= least
    ]


def exit_status(found: list[Finding]) -> int:
    """The exit status of a command that found these."""
    if any(finding.id == _UNKNOWN for finding in found):
        return _CANNOT_TELL
    return max((_STATUS[finding.severity] for finding in found), default=0)


def end_by(found: Iterable[Finding], fail_on: str | None) -> None:
    """End the command as `check` does where a finding is as urgent as `fail_on`, and print it."""
    if fail_on is None:
        return
    urgent = at_least(found, fail_on)
    for finding in urgent:
        typer.echo(f"ntkdiag: {finding}", err=True)
    if urgent:
        raise typer.Exit(exit_status(urgent))
