"""Logs that other programs wrote: JSON lines, CSV, and the events of TensorBoard.

A row is a step with its numbers, under our names where theirs are usual ones: `train/loss`,
`grad_norm`, `lr`; what a monitor wrote, `ntkdiag/margin` in a tracker or a line of `JsonLines`, is
there as it is. All else is left out: a `margin` of others is another number.
"""

import csv
import importlib
import json
import math
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from ntkdiag import errors

# Our name -> how others call it, in small letters, without what stands before the last slash.
_NAMES = {
    "loss": ("loss", "train_loss", "training_loss", "batch_loss"),
    "gradient_norm": ("gradient_norm", "grad_norm", "global_norm", "grads_norm"),
    "update_norm": ("update_norm", "updates_norm"),
    "learning_rate": ("learning_rate", "lr"),
    "step": ("step", "global_step", "iteration", "iter", "_step"),
}
_OURS = {theirs: ours for ours, names in _NAMES.items() for theirs in names}
_OF_MONITORS = "ntkdiag"  # before the last slash of what a monitor writes to a tracker
# Words before the last slash that mean another set than the training set.
_NOT_TRAINED_ON = ("val", "valid", "validation", "eval", "test")

_EVENTS = "tensorboard.backend.event_processing.event_accumulator"

Row = dict[str, float]


def is_foreign_log(path: pathlib.Path) -> bool:
    """Whether a path is a log of one of these kinds."""
    if path.is_dir():
        return any(path.glob("events.out.tfevents.*"))
    is_log = path.suffix in (".jsonl", ".ndjson", ".csv") or ".tfevents." in path.name
    return is_log and path.is_file()


def read_foreign_log(path: pathlib.Path) -> list[Row]:
    """The rows of a log in the order of their steps, those of one step together.

    Raises:
        MissingDependencyError: TensorBoard is not installed (its events only).
    """
    if path.is_dir() or ".tfevents." in path.name:
        entries = _tensorboard(path)
    elif path.suffix == ".csv":
        with path.open(newline="") as file:
            entries = list(csv.DictReader(file))
    else:
        entries = _json_lines(path)
    return _by_step(entries)


def _by_step(entries: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Rows under our names; lines without a step are counted."""
    rows: dict[float, Row] = {}
    is_ours = False
    for number, entry in enumerate(entries):
        is_ours |= isinstance(entry.get("record"), dict)  # the first line that a monitor writes
        row = _in_our_names(entry, is_ours)
        # Lines of other things, such as the record and the findings that a monitor writes.
        if not row.keys() - {"step"}:
            continue
        step = row.get("step", math.nan)
        step = step if math.isfinite(step) else float(number)
        rows.setdefault(step, {}).update(row | {"step": step})
    return [rows[step] for step in sorted(rows)]


def _in_our_names(entry: Mapping[str, Any], is_ours: bool) -> Row:
    """The numbers of a line that we know."""
    row: Row = {}
    for name, value in entry.items():
        *sets, last = str(name).lower().split("/")
        number = _number(value)
        ours = last if is_ours or sets == [_OF_MONITORS] else _OURS.get(last)
        if ours is not None and number is not None and not set(sets) & set(_NOT_TRAINED_ON):
            row[ours] = number
    return row


def _number(value: Any) -> float | None:
    """A number, also from text, in which NaN is one; None for what is none."""
    if value is None or isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _json_lines(path: pathlib.Path) -> list[Mapping[str, Any]]:
    """The objects of a file; a line that is not complete is dropped."""
    entries = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            # A loss that JSON cannot say is written as null.
            entries.append({name: math.nan if v is None else v for name, v in entry.items()})
    return entries


def _tensorboard(path: pathlib.Path) -> list[Mapping[str, Any]]:
    """The scalars of a folder or file of events."""
    try:
        reader = importlib.import_module(_EVENTS)
    except ImportError:
        raise errors.MissingDependencyError(
            expected="tensorboard, which reads its events",
            got="no tensorboard",
            do="Run: pip install tensorboard",
        ) from None
    events = reader.EventAccumulator(str(path), size_guidance={"scalars": 0})
    events.Reload()
    return [
        {"step": event.step, name: event.value}
        for name in events.Tags()["scalars"]
        for event in events.Scalars(name)
    ]
