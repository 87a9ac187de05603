"""A stream as what other libraries work with: a table of pandas, a dataset of xarray.

Axes and the values along them come from the record, ``{"dims": {"kernel": ["example", "example_2"],
"share": ["layer"]}, "coordinates": {"layer": ["Dense_0", "Dense_1"]}}``.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ntkdiag import errors
from ntkdiag.display import imported, shortened
from ntkdiag.quantities import quantity
from ntkdiag.runs.json_lines import Row, finite_or_null
from ntkdiag.runs.run_stream import axes_of
from ntkdiag.runs.stacking import stacked, stacked_scalars

if TYPE_CHECKING:
    import pandas
    import xarray

# The netCDF files of SciPy have an attribute of this name for themselves.
_OTHER_NAMES = {"mode": "model_mode"}
LARGEST_INTEGER = 2**31 - 1  # of an attribute in every version of netCDF


def as_frame(rows: Sequence[Row], record: Row) -> "pandas.DataFrame":
    """Rows as a table, its index the steps; the record is in its `attrs`."""
    pandas = imported("pandas", "makes the table")
    frame = pandas.DataFrame.from_records(rows)
    if rows:
        frame = frame.set_index("step")
    frame.attrs["record"] = record
    return frame


def as_dataset(
    rows: Sequence[Row], arrays: Mapping[str, Sequence[np.ndarray | None]], record: Row
) -> "xarray.Dataset":
    """Rows, and arrays that have one entry for each row, as a dataset over step."""
    xarray = imported("xarray", "makes the dataset")
    over_steps: dict[str, np.ndarray | None] = {}
    for name in _names(rows):
        values = [row.get(name, math.nan) for row in rows]
        over_steps[name] = stacked_scalars(values)
    for name, of_steps in arrays.items():
        over_steps[name] = stacked(of_steps)

    # What is not of one shape over the steps is named, not lost in silence.
    variables = {}
    left_out = []
    for name, values in over_steps.items():
        if values is None:
            left_out.append(name)
            continue
        axes = axes_of(record, name, values.ndim - 1)
        if axes is None:
            raise _misfit(f"no {values.ndim - 1} names for the axes of {name!r}")
        variables[name] = (["step", *axes], values)
    attributes = attributes_of(record)
    attributes["left_out"] = ", ".join(left_out)

    coordinates: dict[str, list[Any]] = {"step": [row["step"] for row in rows]}
    used = {axis for axes, _ in variables.values() for axis in axes}
    stated = record.get("coordinates") or {}
    if not isinstance(stated, dict):
        raise _misfit(f"coordinates {shortened(stated)}")
    for axis, values in stated.items():
        if axis in used:
            coordinates[axis] = values
    try:
        dataset = xarray.Dataset(variables, coords=coordinates, attrs=attributes)
    # Axes of several lengths, coordinates of another length than their axis or of no kind.
    except (ValueError, TypeError) as error:
        raise _misfit(str(error).partition("\n")[0]) from error
    return with_meanings(dataset)


def with_meanings(dataset: "xarray.Dataset") -> "xarray.Dataset":
    """The dataset, with what each variable is: its words, its meaning and its unit.

    xarray writes words and units at the axes of its figures. Variables of other names stay without.
    """
    for name, variable in dataset.data_vars.items():
        known = quantity(str(name))
        if known is not None:
            variable.attrs |= {"long_name": known.words, "description": known.meaning}
            if known.unit:
                variable.attrs["units"] = known.unit
    return dataset


def _misfit(got: str) -> errors.CheckpointError:
    """The error for a record that does not fit the arrays that are stored with it."""
    return errors.CheckpointError(
        expected='"dims" and "coordinates" of the record that fit the arrays of the run',
        got=got,
        do="The record was changed, or is of another run. run.array(step, key) reads the arrays "
        "one by one.",
    )


def _names(rows: Sequence[Row]) -> list[str]:
    """Every name that a row has, but for the step, in the order first seen."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    names.pop("step", None)
    return list(names)


def attributes_of(record: Mapping[str, Any]) -> dict[str, str | int | float]:
    """The entries of a record as attributes of a dataset."""
    return {_OTHER_NAMES.get(name, name): _attribute(value) for name, value in record.items()}


def _attribute(value: Any) -> str | int | float:
    """An entry of a record as every format can store it: text, a number, or JSON text."""
    if isinstance(value, str | float):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_INTEGER:
        return value
    return json.dumps(finite_or_null(value))
