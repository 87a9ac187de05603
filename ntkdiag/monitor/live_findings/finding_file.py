"""The last records before a finding, written to a file of their own.

The file appears whole or not at all: it is written under another name first, which begins with a
dot, and then renamed.
"""

import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

from ntkdiag.judging.finding import Finding
from ntkdiag.runs.json_lines import line_of


def save_finding(
    folder: pathlib.Path,
    record: Mapping[str, Any],
    finding: Finding,
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Write the convention record, the finding and the last records, each on a line."""
    if jax.process_index() != 0:
        return
    folder.mkdir(parents=True, exist_ok=True)
    lines = [{"record": record}, {"finding": finding.to_dict()}, *rows]
    path = _free_path(folder, finding)
    unfinished = folder / f".{path.stem}.{os.getpid()}.tmp"
    try:
        _write(unfinished, lines)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)  # what a full disk left


def _free_path(folder: pathlib.Path, finding: Finding) -> pathlib.Path:
    """A file that is not there yet: what another run wrote into the folder stays."""
    name = re.sub(r"[^\w.-]+", "_", finding.id)
    stem = f"finding-{name}-{finding.step}"
    path = folder / f"{stem}.jsonl"
    count = 1
    while path.exists():
        count += 1
        path = folder / f"{stem}-{count}.jsonl"
    return path


def _write(path: pathlib.Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write lines of JSON, and have the system put them on the disk."""
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(line_of(line) + "\n")
        file.flush()
        os.fsync(file.fileno())
