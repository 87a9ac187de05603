"""Records of a monitor for the page of a run, which may have very many: a column at a time."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from ntkdiag.quantities import QUANTITIES

Row: TypeAlias = Mapping[str, Any]  # one line of JSON: the step, and numbers by name


@dataclasses.dataclass(frozen=True, eq=False)
class Measurements:
    """What one monitor measured over a training."""

    rows: Sequence[Row] = ()  # one for each step, in the order of the steps, as they were written
    # What was looked up: names of numbers, or of arrays of numbers -> [s], or [s k].
    _numbers: dict[str, np.ndarray] = dataclasses.field(default_factory=dict, init=False)
    _arrays: dict[str, np.ndarray] = dataclasses.field(default_factory=dict, init=False)

    @staticmethod
    def of(rows: Sequence[Row]) -> "Measurements":
        """Those among rows as they were written."""
        return Measurements(_in_order(rows))

    def __len__(self) -> int:
        return len(self.rows)

    @functools.cached_property
    def steps(self) -> Float[np.ndarray, " s"]:
        """The steps that were measured."""
        return np.array([row["step"] for row in self.rows], np.float64)

    def numbers(self, name: str, place: int | None = None) -> Float[np.ndarray, " s"]:
        """A number over the steps, or one of an array of numbers; NaN where there is none."""
        if place is not None:
            array = self._array(name)
            has_place = place < array.shape[1]
            return array[:, place] if has_place else np.full(len(self.rows), np.nan)
        if name not in self._numbers:
            self._numbers[name] = _numbers_of([row.get(name) for row in self.rows])
        return self._numbers[name]

    def _array(self, name: str) -> Float[np.ndarray, "s k"]:
        """Lists of numbers over the steps; NaN where one is shorter than others, or none."""
        if name not in self._arrays:
            self._arrays[name] = _array_of([row.get(name) for row in self.rows])
        return self._arrays[name]


def _numbers_of(values: Sequence[Any]) -> Float[np.ndarray, " s"]:
    """Values as numbers; NaN for what is none."""
    try:
        return np.array(values, np.float64).reshape(len(values))
    except (TypeError, ValueError):  # some are lists, or text
        return np.array([_number(value) for value in values], np.float64)


def _array_of(values: Sequence[Any]) -> Float[np.ndarray, "s k"]:
    """Lists of numbers as rows of an array; NaN for what is no number."""
    lists = [_entries(value) for value in values]
    longest = max(map(len, lists), default=0)
    array = np.full((len(lists), longest), np.nan)
    if longest == 0:
        return array
    for place, entries in enumerate(lists):
        array[place, : len(entries)] = _numbers_of(entries)
    return array


def _entries(value: Any) -> Sequence[Any]:
    """The entries of a list or an array; none of anything else."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return value if isinstance(value, list | tuple) else []


def _number(value: Any) -> float:
    """A number; NaN for anything else."""
    return float(value) if isinstance(value, int | float) else math.nan


def _in_order(rows: Sequence[Row]) -> list[Row]:
    """The rows that hold numbers of the table, in the order of their steps."""
    by_step = {row["step"]: row for row in rows if "step" in row and row.keys() & QUANTITIES.keys()}
    return [by_step[step] for step in sorted(by_step)]
