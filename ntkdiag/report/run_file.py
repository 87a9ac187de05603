"""A run as a file: the page of its report, or its numbers."""

import json
import os
import pathlib
from collections.abc import Callable

from ntkdiag import display, errors
from ntkdiag.path_argument import as_path
from ntkdiag.report.dependencies import require_report
from ntkdiag.report.report_file import replace_file, require_report_file
from ntkdiag.report.reported import Track
from ntkdiag.report.run_subject import RunSubject
from ntkdiag.runs.run_reader import RunReader
from ntkdiag.runs.shared_call import by_first_process


@by_first_process
def save_run(
    path: str | os.PathLike[str],
    result: str,
    track: Track | None,
    run: RunReader | None,
    numbers: Callable[[], display.PlainValue],
) -> pathlib.Path:
    """Write a run that is a `Track`, a run directory, or both."""
    path = as_path(path)
    require_report_file(path, result)
    if path.suffix == ".json":
        text = json.dumps(numbers(), indent=1, allow_nan=False) + "\n"
    else:
        require_report()
        # What draws is loaded when something is drawn.
        from ntkdiag.report.run_page import run_html

        subject = RunSubject.of(track, run)
        _require_content(subject)
        text = run_html(subject)
    replace_file(path, text)
    return path


def _require_content(subject: RunSubject) -> None:
    """Refuse a run directory that holds nothing a report is about."""
    if subject.track is None and not subject.watched:
        assert subject.run is not None  # a subject has one of the two
        raise errors.InvalidInputError(
            expected="checkpoints of ntkdiag.track, or measurements of ntkdiag.watch",
            got=f"{subject.run}",
            do="Track the checkpoints into it: ntkdiag.track(..., out=...).",
        )
