"""How a command ends that judges: by what it found.

Exit status 0 nothing, or what is worth knowing only; 1 warnings; 2 errors; 3 where no number is
there that could be judged. Errors of the command itself end with 4.
"""

from collections.abc import Iterable

import typer

from ntkdiag.commands.printing import say
from ntkdiag.judging.finding import SEVERITIES, Finding

_STATUS = {"info": 0, "warning": 1, "error": 2}
_CANNOT_TELL = 3
_UNKNOWN = "unknown"


def at_least(found: Iterable[Finding], severity: str) -> list[Finding]:
    """Those that are as urgent; that nothing can be judged is always said."""
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
    """End the command as `check` does where a finding is as urgent as `fail_on`.

    Each of these is a line on standard error.
    """
    if fail_on is None:
        return
    urgent = at_least(found, fail_on)
    for finding in urgent:
        say(f"ntkdiag: {finding}")
    if urgent:
        raise typer.Exit(exit_status(urgent))
