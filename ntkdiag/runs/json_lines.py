"""Files of JSON lines that grow at their end: one object a line, a torn line is none.

A line ``{"record": {...}}`` says what the lines after it mean, ``{"finding": {...}}`` is a finding,
and every other line is a row, ``{"step": ..., name: value, ...}``. JSON has no NaN: it is null. A
line may end with a checksum, ``..., "crc32": "0a1b2c3d"}``: the CRC-32 of all that is before it.
After a line that does, every line has to.

Files come from elsewhere, too. A line that is no such object is passed over and counted, and so is
one that is longer, or nested more deeply, than any that is written here.
"""

import dataclasses
import json
import math
import os
import pathlib
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from ntkdiag import errors, memory
from ntkdiag.runs.files_on_disk import in_words, regular_file

Row = dict[str, Any]

CHECKSUM = "crc32"
_BEFORE_CHECKSUM = f', "{CHECKSUM}": "'

MOST_BYTES_OF_LINE = 2**26
MOST_LEVELS = 32  # of lists and dictionaries inside each other
LARGEST_STEP = 2**63 - 1
_LARGEST_INTEGER = 2**64 - 1  # that NumPy has a dtype for
_MOST_DIGITS = 20  # that it has
_BYTES_OF_A_BYTE = 8  # that its numbers take in Python, about
_NO_LINE = b"#"


@dataclasses.dataclass(frozen=True)
class LinesOfFile:
    """What the lines of a file say."""

    records: list[Row] = dataclasses.field(default_factory=list)  # in the order written
    # In the order written, with NaN for null.
    rows: list[Row] = dataclasses.field(default_factory=list)
    # Their entries, in the order written.
    findings: list[Row] = dataclasses.field(default_factory=list)
    passed_over: int = 0  # how many lines say nothing: torn, damaged, or of something else


def line_of(content: Mapping[str, Any]) -> str:
    """One line without its end; numbers and arrays of NumPy become numbers and lists."""
    return json.dumps(finite_or_null(content), allow_nan=False)


def checked_line_of(content: Mapping[str, Any]) -> str:
    """One line without its end, its last entry the checksum of what is before."""
    text = line_of(content).removesuffix("}")
    return f'{text}{_BEFORE_CHECKSUM}{_crc32_of(text)}"}}'


def append_line(path: pathlib.Path, line: str, *, sync: bool = False) -> int:
    """Append a line to a file, whose folders are made; the bytes that it is longer for.

    `sync` waits until it is on the disk. What the disk refuses is an OSError, and leaves the file
    as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    content = f"{line}\n".encode()
    # A run killed in mid-line leaves a line without an end: close it, or this line would be lost
    # with it.
    if _lacks_newline(path):
        content = b"\n" + content
    size = path.stat().st_size if path.is_file() else None
    try:
        with path.open("ab", buffering=0) as file:
            _write_all(file, content)
            if sync:
                os.fsync(file.fileno())
    except OSError:
        if size is not None:
            os.truncate(path, size)
        raise
    return len(content)


def read_lines(path: pathlib.Path) -> LinesOfFile:
    """All lines of a file."""
    records: list[Row] = []
    rows: list[Row] = []
    findings: list[Row] = []
    passed_over = 0
    are_checked = False
    for line in _lines_of(path):
        content = object_of(line)
        if _BEFORE_CHECKSUM.encode() not in line:
            content = None if are_checked else content
        elif content is not None:
            are_checked = True
        kind = _kind(content)
        if content is None or kind == "nothing":
            passed_over += 1
        elif kind == "record":
            records.append(content["record"])
        elif kind == "finding":
            findings.append(content["finding"])
        else:
            rows.append(row_of(content) if b"null" in line else content)
    return LinesOfFile(records, rows, findings, passed_over)


def last_record(path: pathlib.Path) -> Row | None:
    """The last record of a file, whose rows are passed over; None where there is none."""
    record = None
    if not has_content(path):
        return record
    for line in _lines_of(path):
        if line.startswith(b'{"record"'):
            content = object_of(line) or {}
            stated = content.get("record")
            record = stated if isinstance(stated, dict) else record
    return record


def row_of(content: Row) -> Row:
    """What a line says as a row: NaN for null."""
    return {name: _null_as_nan(value) for name, value in content.items()}


def object_of(line: str | bytes) -> Row | None:
    """The JSON object of a line; None where it has none, or another checksum than it states."""
    text = line.decode(errors="replace").rstrip() if isinstance(line, bytes) else line
    before, has_checksum, end = text.rpartition(_BEFORE_CHECKSUM)
    if has_checksum:
        if end != f'{_crc32_of(before)}"}}':
            return None
        text = before + "}"
    try:
        content = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    # A checksum that is not where it was written belongs to a line that was changed.
    if not isinstance(content, dict) or CHECKSUM in content:
        return None
    may_be_deep = text.count("[") + text.count("{") > MOST_LEVELS
    return None if may_be_deep and _is_deeper(content, MOST_LEVELS) else content


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


def _lines_of(path: pathlib.Path) -> Iterator[bytes]:
    """The lines of a file that are not empty."""
    try:
        with regular_file(path) as file:
            memory.require_free(
                _BYTES_OF_A_BYTE * os.fstat(file.fileno()).st_size,
                f"the lines of {os.fspath(path)!r}",
                memory.host_memory,
                "Read it where there is more memory, or cut it into several files.",
            )
            for line in _lines(file):
                if not line.isspace():
                    yield line
    except OSError as error:
        raise errors.CheckpointError(
            expected=f"a file of JSON lines {os.fspath(path)!r}",
            got=in_words(error),
            do="Check the spelling and the working directory.",
        ) from error


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file; one that is too long to hold is a line that says nothing."""
    while line := file.readline(MOST_BYTES_OF_LINE):
        if len(line) < MOST_BYTES_OF_LINE or line.endswith(b"\n"):
            yield line
            continue
        while not line.endswith(b"\n") and (line := file.readline(MOST_BYTES_OF_LINE)):
            pass
        yield _NO_LINE


def _integer(digits: str) -> int | float:
    """An integer as NumPy has it, else the nearest number; refused where no number is near."""
    if len(digits) <= _MOST_DIGITS and abs(int(digits)) <= _LARGEST_INTEGER:
        return int(digits)
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"an integer of {len(digits)} digits")
    return number


_DECODER = json.JSONDecoder(parse_int=_integer)


def _kind(content: Row | None) -> str:
    """What a line is: "record", "finding", "row", or "nothing"."""
    if content is None:
        return "nothing"
    for kind in ("record", "finding"):
        if content.keys() == {kind}:
            return kind if isinstance(content[kind], dict) else "nothing"
    step = content.get("step")
    is_step = isinstance(step, int) and not isinstance(step, bool) and abs(step) <= LARGEST_STEP
    return "row" if is_step else "nothing"


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and dictionaries lie in each other on more levels than that."""
    if not isinstance(value, list | dict):
        return False
    inside = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in inside)


def _write_all(file: Any, content: bytes) -> None:
    """Write all of it: a pipe, or a disk that is nearly full, may take a part at a time."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


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
