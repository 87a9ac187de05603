"""A comparison as one row of the stream "compare" of a run directory.

What stays the same over the rows is the record: probes, loss, reduction, leaves. Each comparison is
the next step of the stream, with the numbers of `Comparison.to_dict` under joined names, `a_trace`,
`drift_relative`, the motion of the leaves as lists over them, and both spectra as arrays.
"""

import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ntkdiag import errors
from ntkdiag.runs.files_on_disk import require_room
from ntkdiag.runs.run_writer import RunWriter

FILE_ENDINGS = (".html", ".json")
STREAM = "compare"
# Facts that are of one row, or of the machine.
_OF_SIDES = ("fixed_state_a", "fixed_state_b")
_OF_MACHINE = ("backend", "versions")


def is_run_directory(path: str | os.PathLike[str]) -> bool:
    """Whether a path means a run directory: a folder, or a new name without an ending."""
    path = pathlib.Path(path)
    if path.suffix in FILE_ENDINGS:
        return False
    return path.is_dir() or (path.suffix == "" and not path.exists())


def require_writable(path: pathlib.Path) -> None:
    """Refuse a run directory that cannot be written to, or made."""
    candidates = (path, *path.parents)
    folder = next(candidate for candidate in candidates if candidate.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise errors.InvalidInputError(
            call=f"Comparison.save({os.fspath(path)!r})",
            expected="a folder that can be written to, or made",
            got=f"{folder}, which cannot",
            do="Choose another path.",
        )
    require_room(path)


def append_comparison(
    root: pathlib.Path, content: Mapping[str, Any], spectra: Mapping[str, np.ndarray]
) -> None:
    """Append the content of `Comparison.to_dict`, and the eigenvalues `[k]` of each side."""
    movement = content["movement"]
    row = dict(_scalars({name: part for name, part in content.items() if name != "facts"}))
    row |= {name: content["facts"][name] for name in _OF_SIDES}
    names = movement[0].keys() - {"path"}
    for name in names:
        row[f"movement_{name}"] = [leaf[name] for leaf in movement]
    row["notes"] = content["notes"]
    row["findings"] = content["findings"]
    record = _record(content["facts"], [leaf["path"] for leaf in movement])
    with RunWriter.open(root, record, name=STREAM) as writer:
        arrays = {f"{side}_eigenvalues": array for side, array in spectra.items()}
        writer.write(max(writer.finished, default=-1) + 1, row, arrays)


def _record(facts: Mapping[str, Any], leaves: list[str]) -> dict[str, Any]:
    """What the numbers mean: the facts that all comparisons of a stream share."""
    shared = {name: fact for name, fact in facts.items() if name not in _OF_SIDES + _OF_MACHINE}
    of_leaves = ("size", "norm", "moved", "share_a", "share_b", "distance_centred", "relative")
    dims = {f"movement_{name}": ["leaf"] for name in of_leaves}
    return {
        "format": "ntkdiag run 1",
        "source": STREAM,
        **shared,
        "dims": {**dims, "a_eigenvalues": ["mode"], "b_eigenvalues": ["mode"]},
        "coordinates": {"leaf": leaves},
        "versions": [f"backend {facts['backend']}", *str(facts["versions"]).split(", ")],
    }


def _scalars(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Numbers and texts, those inside dictionaries under joined names; lists are left out."""
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{prefix}{name}_")
        elif not isinstance(value, list):
            yield f"{prefix}{name}", value
