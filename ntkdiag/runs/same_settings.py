"""Whether a run is gone on with as it was begun: two records, entry by entry.

An entry inside a dictionary has a dotted path, `probe.sha256`. What may change is "versions", and
the entries that it names.
"""

import json
import os
import pathlib
from collections.abc import Iterator, Mapping

from ntkdiag import errors
from ntkdiag.runs.json_lines import Row

LONGEST_VALUE = 80  # characters of a value in a message
VERSIONS = "versions"


def require_same(path: pathlib.Path, stored: Row, record: Row) -> None:
    """Refuse a record that differs from the one that a stream was begun with."""
    may_change = {VERSIONS, *_named_versions(record), *_named_versions(stored)}
    there = dict(_entries(stored, may_change))
    here = dict(_entries(record, may_change))
    paths = sorted(there.keys() | here.keys())
    different = [path for path in paths if there.get(path, "") != here.get(path, "")]
    if different:
        raise errors.InvalidInputError(
            expected=f"the settings of {os.fspath(path)!r}, {_written(there, different)}",
            got=_written(here, different),
            do="Choose another folder, or go on with the settings of this one.",
        )


def _named_versions(record: Row) -> list[str]:
    """The entries that change with the versions."""
    versions = record.get(VERSIONS)
    named = versions if isinstance(versions, list | dict) else ()
    return [name for name in named if isinstance(name, str)]


def _entries(record: Row, left_out: set[str], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted path and JSON text of every entry of a record, those inside dictionaries too."""
    for key, value in record.items():
        path = f"{prefix}{key}"
        if path in left_out:
            continue
        if isinstance(value, Mapping) and value:
            yield from _entries(dict(value), left_out, f"{path}.")
        else:
            yield path, json.dumps(value)


def _written(entries: dict[str, str], paths: list[str]) -> str:
    """Entries for a message; long values are cut."""
    return ", ".join(f"{path}={_cut(entries.get(path, 'nothing'))}" for path in paths)


def _cut(text: str) -> str:
    """Text of a length that a message has room for."""
    if len(text) <= LONGEST_VALUE:
        return text
    return f"{text[:LONGEST_VALUE]}..."
