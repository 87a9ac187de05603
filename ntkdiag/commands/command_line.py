"""The program: its commands, and how it ends.

Exit status 0 is done, 4 an error or words that cannot be used. `check` and `--fail-on` end with 1
for warnings, 2 for errors, and 3 where no number can be judged; `selfcheck` with 1 where it found
something.
What is wrong is one message on standard error. Errors inside the user's own code
keep their traceback.
"""

import io
import logging
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from ntkdiag import errors
from ntkdiag.commands import (
    check_command,
    compare_command,
    demo_command,
    plan_command,
    report_command,
    selfcheck_command,
    show_command,
    track_command,
)

# What typer raises for words that fit no command. It does not hand the class on, but one below it.
_USAGE_ERRORS: Any = typer.BadParameter.__bases__

FAILED = 4  # exit status, apart from those of findings

app = typer.Typer(name="ntkdiag", pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> bool:
    """Print all versions and end, where `--version` stands before any command."""
    if wanted:
        from ntkdiag.comparison.versions import installed_versions

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


def _add(command: Callable[..., None], examples: str = "") -> None:
    """Make a function the command of its name, with examples at the end of its help."""
    app.command(epilog=examples)(command)


# In the order of the help.
_add(demo_command.demo, demo_command.EXAMPLES)
_add(selfcheck_command.selfcheck, selfcheck_command.EXAMPLES)
_add(plan_command.plan, plan_command.EXAMPLES)
_add(compare_command.compare, compare_command.EXAMPLES)
_add(track_command.track, track_command.EXAMPLES)
_add(show_command.show, show_command.EXAMPLES)
_add(check_command.check, check_command.EXAMPLES)
_add(report_command.report, report_command.EXAMPLES)


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
    said = " ".join(error.format_message().split()).rstrip(".")
    return f"{command}: {said}. See: {command} --help"
