"""A folder that is there as a whole or not at all.

1. A folder that holds files is refused, unless it is to be replaced and every file in it was
   written by a former call: ``versions.json`` lists them.
2. The files are written into a folder beside it, which is then renamed. Where one is replaced, it
   is renamed before; a call that is killed between the two leaves it there, and the next one puts
   it back.
"""

import glob
import json
import os
import pathlib
import shutil
from collections.abc import Mapping

from ntkdiag import errors
from ntkdiag.path_argument import as_path
from ntkdiag.report.report_file import remove_dead
from ntkdiag.runs.files_on_disk import disk_errors, require_room

VERSIONS = "versions.json"
FORMAT = "ntkdiag paper 1"


def require_place(path: str | os.PathLike[str], *, overwrite: bool) -> pathlib.Path:
    """The absolute path of a folder that may be written; refused where something else is there."""
    folder = as_path(path)
    require_room(folder)
    _put_back(folder)
    if folder.exists() and not folder.is_dir():
        raise errors.InvalidInputError(
            expected=f"a folder at {os.fspath(path)!r}", got="a file", do="Choose another path."
        )
    there = _files_in(folder)
    if not there:
        return folder
    if not overwrite:
        raise errors.InvalidInputError(
            expected=f"a new or an empty folder at {os.fspath(path)!r}",
            got=f"one with {len(there)} files",
            do="Choose another path, or pass overwrite=True to replace what save_paper wrote.",
        )
    foreign = sorted(there - _listed_in(folder))
    if foreign:
        raise errors.InvalidInputError(
            argument="overwrite=True",
            expected="a folder of files that save_paper wrote",
            got=f"{foreign[0]!r}" + (f" and {len(foreign) - 1} others" * (len(foreign) > 1)),
            do="Move them away, or choose another path.",
        )
    return folder


def write_folder(folder: pathlib.Path, files: Mapping[str, bytes], versions: dict) -> None:
    """Write all files and ``versions.json``, and put the folder into its place at once."""
    versions = {"format": FORMAT, **versions, "files": sorted([*files, VERSIONS])}
    text = json.dumps(versions, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    before = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    with disk_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_dead(folder)
        try:
            for name, content in {**files, VERSIONS: text.encode(errors="replace")}.items():
                file = beside / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            if folder.exists():
                os.replace(folder, before)
            os.replace(beside, folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
            _put_back(folder)  # where the new one could not take its place
            shutil.rmtree(before, ignore_errors=True)


def _put_back(folder: pathlib.Path) -> None:
    """Give a folder its name again, that a call which did not come to its end took away."""
    for before in folder.parent.glob(f".{glob.escape(folder.name)}.*.old"):
        if not folder.exists():
            before.rename(folder)


def _files_in(folder: pathlib.Path) -> set[str]:
    """Every file in a folder, by its path inside; none where there is no folder."""
    files = [path for path in folder.rglob("*") if not path.is_dir()]
    return {path.relative_to(folder).as_posix() for path in files}


def _listed_in(folder: pathlib.Path) -> set[str]:
    """The files that a former call wrote; none where none did."""
    try:
        content = json.loads((folder / VERSIONS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return set()
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return set()
    return set(content.get("files", ()))
