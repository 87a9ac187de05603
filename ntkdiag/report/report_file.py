"""A result as a file; wrong paths are refused early, and files are replaced at once."""

import json
import os
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from ntkdiag import errors, plugins
from ntkdiag.path_argument import as_path
from ntkdiag.runs.files_on_disk import disk_errors, require_room
from ntkdiag.runs.shared_call import shared_call

if TYPE_CHECKING:
    from ntkdiag.comparison.result import Result

ENDINGS = (".html", ".json", ".csv", ".nc")


def save_result(
    path: str | os.PathLike[str], result: "Result", page: Callable[[], str]
) -> pathlib.Path:
    """Write a result by the first process, for which the others wait."""
    absolute = as_path(path)
    with shared_call(f"save {os.fspath(path)}") as call:
        if call.is_writer:
            _write(absolute, result, page)
            call.say("written")
        else:
            call.hear()
    return pathlib.Path(path).expanduser()


def _write(path: pathlib.Path, result: "Result", page: Callable[[], str]) -> None:
    """Write a result in the format that the ending of a path says."""
    require_report_file(path, type(result).__name__)
    if path.suffix == ".json":
        content = json.dumps(result.to_dict(), indent=1, allow_nan=False) + "\n"
    elif path.suffix == ".csv":
        content = result.table().to_csv()
    elif path.suffix == ".nc":
        content = bytes(result.dataset.to_netcdf(engine="scipy"))
    else:
        content = page()
    # Names from other sources may contain lone surrogates.
    _replace(path, content if isinstance(content, bytes) else content.encode(errors="replace"))


def require_report() -> None:
    """Refuse to start on a page when a library for it is missing, or damaged."""
    for library in ("jinja2", "matplotlib"):
        plugins.imported(library, "for the page", "ntkdiag[report]")


def require_report_file(path: str | os.PathLike[str], result: str) -> None:
    """Refuse a path that no report can be written to, before the work of making one."""
    path = as_path(path)
    call = f"{result}.save({os.fspath(path)!r})"
    if path.suffix not in ENDINGS:
        raise errors.InvalidInputError(
            call=call,
            expected=f"a file name that ends in {', '.join(ENDINGS)}",
            got=f"the ending {path.suffix!r}",
            do=f'Write {result.lower()}.save("report.html").',
        )
    # The nearest folder that exists: those below it are made.
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise errors.InvalidInputError(
            call=call,
            expected="a file in a folder that can be written to",
            got="a folder" if path.is_dir() else f"{folder}, which cannot",
            do="Choose another path.",
        )
    require_room(path)
    if path.suffix == ".html":
        require_report()


def _replace(path: pathlib.Path, content: bytes) -> None:
    """Write a file under a temporary name: a reader never sees half a report."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(content)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
