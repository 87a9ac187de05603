"""A result about examples as a file: its page, or its numbers."""

import json
import os
import pathlib
from collections.abc import Callable

from ntkdiag.path_argument import as_path
from ntkdiag.report.dependencies import require_report
from ntkdiag.report.report_file import replace_file, require_report_file
from ntkdiag.report.reported import Influence, Interference
from ntkdiag.runs.shared_call import by_first_process


@by_first_process
def save_examples(
    path: str | os.PathLike[str], result: Influence | Interference, page: Callable[[], str]
) -> pathlib.Path:
    """Write what `page` returns, or the numbers of the result, by the ending of the path.

    Args:
        path: File ending in ``.html`` or ``.json``.
        result: An `Influence` or an `Interference`.
        page: Makes its page.

    Returns:
        The path written.

    Raises:
        InvalidInputError: The path has another ending, or cannot be written.
        MissingDependencyError: jinja2 or matplotlib is not installed (HTML only).
    """
    path = as_path(path)
    require_report_file(path, type(result).__name__)
    if path.suffix == ".json":
        text = json.dumps(result.to_dict(), indent=1, allow_nan=False) + "\n"
    else:
        require_report()
        text = page()
    replace_file(path, text)
    return path
