"""What `track` stores of a run and of each checkpoint, and whether a folder holds that.

A run directory may be damaged, or come from elsewhere. What its lines say is checked once, when it
is read: a record or a row of another kind is refused with the entry that is wrong.
"""

import dataclasses
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ntkdiag import errors
from ntkdiag.kernel.convention import Convention
from ntkdiag.measuring.modes_overlap import N_MODES
from ntkdiag.runs.json_kinds import Kind, require_kind
from ntkdiag.runs.npy_array import damaged
from ntkdiag.runs.run_stream import CommittedStep, RunStream, StreamContents

STREAM = "track"  # of a run directory

_RECORD: Kind = {
    "reduction": str,
    "outputs": [int],
    "model": {"library": str, "mode": str},
    "parameters": {str: str},
    "probes": [{"name": str, "examples": int, "x?": str, "y?": str}],
    "dims": {str: [str]},
    "coordinates": {"leaf": [str]},
    "versions?": [str],
}
_PAIRS: Kind = {
    "step": [int],
    "distance": [float],
    "distance_centred": [float],
    "overlap": [float],
    "e1_to": [float],
    "e1_from": [float],
    "agreement_to": [float],
    "agreement_from": [float],
}
_ROW: Kind = {
    "norm": float,
    "rank": int,
    "params_sha256": str,
    "pairs": _PAIRS,
    "loss?": float,
    "update_norm?": float,
}
_CONVENTION: Kind = {
    "reduction": str,
    "n_outputs": int,
    "examples": str,
    "mode": str,
    "precision": str,
    "preconditioner": str,
    "backend": str,
    "unit_roundoff?": float,
    "model_roundoff?": float,
    "probe?": str,
}


def read_track(root: pathlib.Path, stream: str = STREAM) -> StreamContents:
    """The lines of a stream that `track` wrote; refused where they are of another kind."""
    contents = RunStream(root, stream).read()
    where = repr(os.fspath(RunStream(root, stream).path))
    if contents.committed:
        record = contents.records[-1] if contents.records else {}
        require_kind(record, _RECORD, f"the record of {where}")
        if not record["probes"]:
            raise _misfit(f"the record of {where} with the examples of its kernels", "no probes")
    for step, item in contents.committed.items():
        require_row(item.row, f"step {step} of {where}")
    return contents


def require_row(row: Mapping[str, Any], of: str) -> None:
    """Refuse the row of a checkpoint whose numbers of pairs are of another kind."""
    require_kind(row, _ROW, of)
    lengths = {name: len(row["pairs"][name]) for name in _PAIRS}
    if len(set(lengths.values())) > 1:
        got = ", ".join(f"{length} of {name}" for name, length in lengths.items())
        raise _misfit(f"{of} with as many pairs under each name", got)


def convention_of(row: Mapping[str, Any], step: int) -> Convention:
    """The convention of the kernel of a stored checkpoint."""
    stored = row.get("convention")
    # NaN stands for what is not known.
    entries = stored
    if isinstance(stored, Mapping):
        entries = {name: value for name, value in stored.items() if value == value}
    require_kind(entries, _CONVENTION, f"the convention of step {step}")
    assert isinstance(entries, Mapping)
    unknown = entries.keys() - {field.name for field in dataclasses.fields(Convention)}
    if unknown:
        got = f"also {', '.join(sorted(unknown))}"
        raise _misfit(f"the convention of step {step} as this version has it", got)
    return Convention(**entries)


def stored_array(
    root: pathlib.Path, record: Mapping[str, Any], committed: CommittedStep, key: str
) -> np.ndarray:
    """Kernel, eigenvalues or outputs; refused where the record says another shape."""
    stream = RunStream(root, STREAM)
    array = stream.array(committed, key)
    n = record["probes"][0]["examples"]  # those of `train` come first
    shapes = shapes_of_arrays((n, *record["outputs"]), is_full=record["reduction"] == "full")
    if array.dtype.kind != "f" or array.shape != shapes[key]:
        path = stream.array_path(committed.row["step"], key)
        raise damaged(path, f"{array.dtype.name} of shape {list(array.shape)}")
    return array


def shapes_of_arrays(outputs: tuple[int, ...], *, is_full: bool) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays of a checkpoint, by that of the outputs of all examples."""
    n, *of_one = outputs
    c = math.prod(of_one)
    n_rows = n * c if is_full else n
    return {
        "kernel": (n, c, n, c) if is_full else (n, n),
        "eigenvalues": (n_rows,),
        "modes": (n_rows, min(n_rows, N_MODES)),
        "outputs": outputs,
    }


def _misfit(expected: str, got: str) -> errors.CheckpointError:
    """The error for a run directory that says what `track` does not write."""
    return errors.CheckpointError(
        expected=expected,
        got=got,
        do="It was changed, or is of another version: restore it from a copy, or track once more "
        "into another folder.",
    )
