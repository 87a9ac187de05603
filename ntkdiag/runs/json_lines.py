"""Files of JSON lines that grow at their end: one object a line, a torn line is none.

A line ``{"record": {...}}`` says what the lines after it mean, and every other line is a row,
``{"step": ..., name: value, ...}``. JSON has no NaN: it is null. A line may end with a checksum,
``..., "crc32": "0a1b2c3d"}``: the CRC-32 of all that is before it.
"""

import json
import math
import os
import pathlib
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from ntkdiag import errors
from ntkdiag.display import plain
from ntkdiag.runs.files_on_disk import in_words, regular_file

Row = dict[str, Any]

_CHECKSUM = ', "crc32": "'


def line_of(content: Any) -> str:
    """JSON values on one line; numbers and arrays of NumPy become numbers and lists."""
    return json.dumps(plain(content), allow_nan=False)


def checked_line_of(content: Mapping[str, Any]) -> str:
    """One line without its end, its last entry the checksum of what is before."""
    text = line_of(content).removesuffix("}")
    return f'{text}{_CHECKSUM}{_crc32_of(text)}"}}'


def append_line(path: pathlib.Path, line: str, *, sync: bool = False) -> int:
    """Append a line to a file, whose folders are made; returns how many bytes were added.

    `sync` waits for the disk. After an OSError the file is as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    content = f"{line}\n".encode()
    size = path.stat().st_size if path.is_file() else None
    # End the line of a run that was killed in mid-line, or this one is lost with it.
    if size and not _ends_with_newline(path):
        content = b"\n" + content
    try:
        with path.open("ab") as file:
            file.write(content)
            file.flush()
            if sync:
                os.fsync(file.fileno())
    except OSError:
        if size is not None:
            os.truncate(path, size)
        raise
    return len(content)


def lines_of_file(path: pathlib.Path) -> Iterator[bytes]:
    """The lines of a file that are not empty."""
    try:
        with regular_file(path) as file:
            yield from (line for line in file if not line.isspace())
    except OSError as error:
        raise errors.CheckpointError(
            expected=f"a file of JSON lines {os.fspath(path)!r}",
            got=in_words(error),
            do="Check the spelling and the working directory.",
        ) from error


def row_of(content: Row) -> Row:
    """What a line says as a row: NaN for null."""
    return {name: _null_as_nan(value) for name, value in content.items()}


def object_of(line: str | bytes) -> Row | None:
    """The JSON object of a line; None where it has none, or another checksum than it states."""
    text = line.decode(errors="replace").rstrip() if isinstance(line, bytes) else line
    before, has_checksum, end = text.rpartition(_CHECKSUM)
    if has_checksum:
        if end != f'{_crc32_of(before)}"}}':
            return None
        text = before + "}"
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    # If the checksum is not at the end, the line was changed.
    return content if isinstance(content, dict) and "crc32" not in content else None


def _ends_with_newline(path: pathlib.Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _crc32_of(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _null_as_nan(value: Any) -> Any:
    if isinstance(value, list):
        return [_null_as_nan(item) for item in value]
    if isinstance(value, dict):
        return {key: _null_as_nan(item) for key, item in value.items()}
    return math.nan if value is None else value
