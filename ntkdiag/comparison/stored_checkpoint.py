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
from ntkdiag.kernel.kernel import Convention
from ntkdiag.measuring.checkpoint_pairs import N_MODES
from ntkdiag.runs.npz_file import damaged
from ntkdiag.runs.run_stream import CommittedStep, RunStream, StreamContents

STREAM = "track"  # of a run directory

_PAIRS = (
    "step",
    "distance",
    "distance_centred",
    "overlap",
    "e1_to",
    "e1_from",
    "agreement_to",
    "agreement_from",
)
_WORDS_OF_CONVENTION = ("reduction", "examples", "mode", "precision", "preconditioner")


def read_track(root: pathlib.Path) -> StreamContents:
    """The lines of the stream that `track` wrote; refused where they are of another kind."""
    stream = RunStream(root, STREAM)
    contents = stream.read()
    where = repr(os.fspath(stream.path))
    if contents.committed:
        record = contents.records[-1] if contents.records else {}
        _require_record(record, f"the record of {where}")
    for step, item in contents.committed.items():
        require_row(item.row, f"step {step} of {where}")
    return contents


def _require_record(record: Mapping[str, Any], of: str) -> None:
    """Refuse a record without what readers of a run rely on."""
    coordinates = record.get("coordinates")
    probes = record.get("probes")
    fits = {
        "reduction": isinstance(record.get("reduction"), str),
        "outputs": _is_list(record.get("outputs"), int),
        "parameters": _is_dictionary(record.get("parameters"), str),
        "dims": _is_dictionary(record.get("dims"), list),
        "coordinates": isinstance(coordinates, Mapping) and _is_list(coordinates.get("leaf"), str),
        "probes": bool(probes) and _is_list(probes, dict) and all(map(_is_probe, probes)),
        "versions": _is_list(record.get("versions") or [], str),
    }
    _require(fits, of)


def _is_probe(probe: Mapping[str, Any]) -> bool:
    """Whether an entry of a record names examples: how many, and their hashes."""
    hashes = (probe.get("x"), probe.get("y"))
    is_hashed = all(value is None or isinstance(value, str) for value in hashes)
    return is_hashed and isinstance(probe.get("name"), str) and _is(probe.get("examples"), int)


def require_row(row: Mapping[str, Any], of: str) -> None:
    """Refuse the row of a checkpoint whose numbers of pairs are of another kind."""
    pairs = row.get("pairs")
    numbers = (row.get("norm"), row.get("loss", 0.0), row.get("update_norm", 0.0))
    fits = {
        "norm, loss, update_norm": all(_is(number, int | float) for number in numbers),
        "rank": _is(row.get("rank"), int),
        "params_sha256": isinstance(row.get("params_sha256"), str),
        "pairs": isinstance(pairs, Mapping)
        and _is_list(pairs.get("step"), int)
        and all(_is_list(pairs.get(name), int | float) for name in _PAIRS)
        and len({len(pairs[name]) for name in _PAIRS}) == 1,
    }
    _require(fits, of)


def convention_of(row: Mapping[str, Any], step: int) -> Convention:
    """The convention of the kernel of a stored checkpoint."""
    stored = row.get("convention")
    entries = {}
    if isinstance(stored, Mapping):  # NaN stands for what is not known
        entries = {name: value for name, value in stored.items() if value == value}
    roundoffs = (entries.get("unit_roundoff", 0.0), entries.get("model_roundoff", 0.0))
    known = {field.name for field in dataclasses.fields(Convention)}
    fits = {
        "words": all(isinstance(entries.get(name), str) for name in _WORDS_OF_CONVENTION),
        "n_outputs": _is(entries.get("n_outputs"), int),
        "roundoff": all(_is(number, int | float) for number in roundoffs),
        "probe": isinstance(entries.get("probe", ""), str),
        "names": entries.keys() <= known,
    }
    _require(fits, f"the convention of step {step}")
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
        path = stream.array_path(committed.row["step"])
        raise damaged(path, f"{key} in {array.dtype.name} of shape {list(array.shape)}")
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


def _is(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind of numbers; bool is none."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_list(value: Any, kind: Any) -> bool:
    return isinstance(value, list) and all(_is(item, kind) for item in value)


def _is_dictionary(value: Any, kind: Any) -> bool:
    return isinstance(value, Mapping) and all(_is(item, kind) for item in value.values())


def _require(fits: Mapping[str, bool], of: str) -> None:
    """Refuse what a run directory says unless all of it is as `track` writes it."""
    wrong = [name for name, is_fit in fits.items() if not is_fit]
    if wrong:
        raise errors.CheckpointError(
            expected=f"{of} as track writes it",
            got=f"another kind of {wrong[0]}",
            do="It was changed, or is of another version: restore it from a copy, or track once "
            "more into another folder.",
        )
