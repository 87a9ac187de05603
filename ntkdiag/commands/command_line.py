"""The program: its commands, and how it ends.

Exit status 0 is done, 4 an error or words that cannot be used; see `options` for commands that
judge. `selfcheck` ends with 1 where it found something. What is wrong is one message on standard
error. Errors inside the user's own code keep their traceback.
"""

import io
import logging
import sys
from typing import Annotated, Any

import typer

from ntkdiag import errors
from ntkdiag.commands import of_checkpoints, of_model, of_run

# What typer raises for unknown words. It does not export this class, only a subclass.
_USAGE_ERRORS: Any = typer.BadParameter.__bases__

FAILED = 4  # exit status, apart from those of findings

app = typer.Typer(name="ntkdiag", pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> bool:
    """Print all versions and end, where `--version` stands before any command."""
    if wanted:
        from ntkdiag.comparison.record import installed_versions

        typer.echo("\n".join(installed_versions()))
        raise typer.Exit
    return wanted


@app.callback()
def every_command(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the versions of ntkdiag, JAX and others, and exit.",
        ),
    ] = False,
) -> None:
    """Training diagnostics for Flax and Equinox models, on the empirical neural tangent kernel."""


# In the order of the help; examples stand at the end of the help of a command.
for _command, _examples in (
    (of_run.demo, of_run.DEMO_EXAMPLES),
    (of_model.selfcheck, of_model.SELFCHECK_EXAMPLES),
    (of_model.plan, of_model.PLAN_EXAMPLES),
    (of_checkpoints.compare, of_checkpoints.COMPARE_EXAMPLES),
    (of_checkpoints.track, of_checkpoints.TRACK_EXAMPLES),
    (of_run.show, of_run.SHOW_EXAMPLES),
    (of_run.check, of_run.CHECK_EXAMPLES),
    (of_run.report, of_run.REPORT_EXAMPLES),
):
    app.command(epilog=_examples)(_command)


def main() -> None:
    """Run the command line, and end with its exit status."""
    # On damaged data Orbax abandons asyncio tasks, which asyncio reports long after our message.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    # Characters that the terminal's encoding lacks are replaced.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    words = sys.argv[1:] or ["--help"]
    try:
        status = app(args=words, prog_name="ntkdiag", standalone_mode=False)
    except errors.NtkdiagError as error:
        sys.stderr.write(f"ntkdiag: {error}\n")
        status = FAILED
    except _USAGE_ERRORS as error:
        sys.stderr.write(f"ntkdiag: {_in_one_line(error)}\n")
        status = FAILED
    sys.exit(status or 0)


def _in_one_line(error: Any) -> str:
    """A usage error of typer in the form that all messages have."""
    command = "ntkdiag" if error.ctx is None else error.ctx.command_path
    message = " ".join(error.format_message().split()).rstrip(".")
    return f"{command}: {message}. See: {command} --help"
