"""Files of JSON lines that grow at their end: one object a line, a torn line is none.

A line ``{"record": {...}}`` says what the lines after it mean, ``{"alert": {...}}`` is an alert,
and every other line is a row, ``{"step": ..., name: value, ...}``. JSON has no NaN: it is null. A
line may end with a checksum, ``..., "crc32": "0a1b2c3d"}``: the CRC-32 of all that is before it.
"""

import json
import math
import os
import pathlib
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

Row = dict[str, Any]

CHECKSUM = "crc32"
_BEFORE_CHECKSUM = f', "{CHECKSUM}": "'


def line_of(content: Mapping[str, Any]) -> str:
    """One line without its end; numbers and arrays of NumPy become numbers and lists."""
    return json.dumps(finite_or_null(content), allow_nan=False)


def checked_line_of(content: Mapping[str, Any]) -> str:
    """One line without its end, its last entry the checksum of what is before."""
    text = line_of(content).removesuffix("}")
    return f'{text}{_BEFORE_CHECKSUM}{_crc32_of(text)}"}}'


def append_line(path: pathlib.Path, line: str, *, sync: bool = False) -> None:
    """Append a line to a file, whose folders are made; `sync` waits until it is on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = line + "\n"
    # A run killed in mid-line leaves a line without an end: close it, or this line would be lost
    # with it.
    if _lacks_newline(path):
        text = "\n" + text
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def records_and_rows(path: str | os.PathLike[str]) -> tuple[list[Row], list[Row]]:
    """The records of a file and its rows in the order written, with NaN for null."""
    records: list[Row] = []
    rows: list[Row] = []
    for content in json_objects(path):
        if "record" in content:
            records.append(content["record"])
        elif not is_alert(content):
            rows.append(row_of(content))
    return records, rows


def last_record(path: pathlib.Path) -> Row | None:
    """The last record of a file, whose rows are passed over; None where there is none."""
    record = None
    if not has_content(path):
        return record
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith('{"record"'):
                content = object_of(line.rstrip())
                record = record if content is None else content["record"]
    return record


def row_of(content: Mapping[str, Any]) -> Row:
    """What a line says as a row: NaN for null."""
    return {name: _null_as_nan(value) for name, value in content.items()}


def json_objects(path: str | os.PathLike[str]) -> Iterator[Row]:
    """The lines of a file that are JSON objects; one that is not complete, or damaged, is none."""
    text = pathlib.Path(path).expanduser().read_text(encoding="utf-8", errors="replace")
    for line in text.splitlines():
        content = object_of(line)
        if content is not None:
            yield content


def object_of(line: str) -> Row | None:
    """The JSON object of a line; None where it has none, or another checksum than it states."""
    text, has_checksum, end = line.rpartition(_BEFORE_CHECKSUM)
    if has_checksum:
        if end != f'{_crc32_of(text)}"}}':
            return None
        line = text + "}"
    try:
        content = json.loads(line)
    except json.JSONDecodeError:
        return None
    # A checksum that is not where it was written belongs to a line that was changed.
    if not isinstance(content, dict) or CHECKSUM in content:
        return None
    return content


def is_alert(content: Mapping[str, Any]) -> bool:
    """Whether a line is an alert; a measurement may have a number of that name beside its step."""
    return content.keys() == {"alert"}


def finite_or_null(value: Any) -> Any:
    """JSON values with None for numbers that are not finite, which JSON does not have."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite_or_null(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_null(item) for item in value]
    return value


def has_content(path: pathlib.Path) -> bool:
    """Whether there is such a file, with anything in it."""
    return path.exists() and path.stat().st_size > 0


def _crc32_of(text: str) -> str:
    """The checksum of a text, as eight digits."""
    return f"{zlib.crc32(text.encode()):08x}"


def _null_as_nan(value: Any) -> Any:
    """JSON values of a row with NaN in the place of None."""
    if isinstance(value, list):
        return [_null_as_nan(item) for item in value]
    if isinstance(value, dict):
        return {key: _null_as_nan(item) for key, item in value.items()}
    if value is None:
        return math.nan
    return value


def _lacks_newline(path: pathlib.Path) -> bool:
    """Whether the last line of a file has no end."""
    if not has_content(path):
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
