"""Where a command writes: results to standard output, everything else to standard error."""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import typer

from ntkdiag import display


def print_json(content: Mapping[str, Any]) -> None:
    """Print plain values as one line of strict JSON: a number that is not finite is null."""
    typer.echo(json.dumps(display.plain(dict(content)), allow_nan=False))


def say(text: str) -> None:
    """Print what is no result, such as the path of a file that was written."""
    typer.echo(text, err=True)


@contextlib.contextmanager
def results_alone(as_json: bool) -> Iterator[None]:
    """Keep standard output for JSON: what the user's own code prints goes to standard error."""
    if not as_json:
        yield
        return
    with contextlib.redirect_stdout(sys.stderr):
        yield
