"""Where a report is written: refused early, and replaced at once."""

import contextlib
import glob
import os
import pathlib
import time

from ntkdiag import errors
from ntkdiag.runs.files_on_disk import disk_errors, require_room

_SECONDS_OF_A_SAVE = 3600  # far more than any save takes


def require_report_file(path: pathlib.Path, result: str) -> None:
    """Refuse a path that no report can be written to, before the work of making one."""
    call = f"{result}.save({os.fspath(path)!r})"
    if path.suffix not in (".html", ".json"):
        raise errors.InvalidInputError(
            call=call,
            expected="a file name that ends in .html or .json",
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


def replace_file(path: pathlib.Path, text: str) -> None:
    """Write a file through another one beside it: a reader never sees half a report."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_dead(path)
        try:
            # Names that came from elsewhere may hold halves of characters.
            temporary.write_bytes(text.encode(errors="replace"))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _remove_dead(path: pathlib.Path) -> None:
    """Remove what killed saves left beside a file; younger ones may be under way."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with contextlib.suppress(OSError):  # another save may have removed it just now
            if time.time() - temporary.stat().st_mtime > _SECONDS_OF_A_SAVE:
                temporary.unlink()
