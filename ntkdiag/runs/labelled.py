"""A stream as a dataset of xarray; its record names the axes."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ntkdiag import errors
from ntkdiag.quantities import quantity
from ntkdiag.runs.json_lines import Row, line_of

if TYPE_CHECKING:
    import xarray

# The netCDF files of SciPy have an attribute of this name for themselves.
_OTHER_NAMES = {"mode": "model_mode"}
_LARGEST_INTEGER = 2**31 - 1  # of an attribute in every version of netCDF


def as_dataset(
    rows: Sequence[Row], arrays: Mapping[str, Sequence[np.ndarray | None]], record: Row
) -> "xarray.Dataset":
    """Rows, and arrays that have one entry for each row, as a dataset over step."""
    import xarray

    names = dict.fromkeys(name for row in rows for name in row if name != "step")
    over_steps = {name: _stacked([row.get(name) for row in rows]) for name in names}
    for name, of_steps in arrays.items():
        over_steps[name] = _stacked(of_steps)
    left_out = []
    try:
        dims = dict(record.get("dims") or {})
        variables = {}
        for name, values in over_steps.items():
            # Numbers whose shape changes over the steps are named, not dropped silently.
            if values is None:
                left_out.append(name)
                continue
            axes = dims.get(name) or [f"{name}_{axis}" for axis in range(values.ndim - 1)]
            variables[name] = (["step", *axes], values)
        dataset = xarray.Dataset(variables, {"step": [row["step"] for row in rows]})
        for axis, values in dict(record.get("coordinates") or {}).items():
            if axis in dataset.dims:
                dataset = dataset.assign_coords({axis: values})
    except (ValueError, TypeError) as error:
        raise errors.CheckpointError(
            expected='"dims" and "coordinates" of the record that fit the arrays of the run',
            got=str(error).partition("\n")[0],
            do="The record was changed, or is of another run. run.array(step, key) reads the "
            "arrays one by one.",
        ) from error
    dataset.attrs = attributes_of(record) | {"left_out": ", ".join(left_out)}
    return with_meanings(dataset)


def with_meanings(dataset: "xarray.Dataset") -> "xarray.Dataset":
    """The dataset with words, meaning and unit of each variable that is a known quantity."""
    for name, variable in dataset.data_vars.items():
        known = quantity(str(name))
        if known is not None:
            variable.attrs |= {"long_name": known.words, "description": known.meaning}
            if known.unit:
                variable.attrs["units"] = known.unit
    return dataset


def attributes_of(record: Mapping[str, Any]) -> dict[str, str | int | float]:
    """The entries of a record as every format can store them: text, a number, or JSON text."""
    return {_OTHER_NAMES.get(name, name): _attribute(value) for name, value in record.items()}


def _stacked(values: Sequence[Any]) -> np.ndarray | None:
    """Numbers of one shape along a first axis, NaN for None; None where they are not that."""
    try:
        arrays = [np.asarray(math.nan if value is None else value) for value in values]
    except ValueError:  # lists of several lengths in a list
        return None
    if any(array.dtype.kind not in "biufc" for array in arrays):
        return None
    longest = max(arrays, key=np.ndim)
    missing = np.full(longest.shape, math.nan, np.result_type(longest, np.float16))
    for step, array in enumerate(arrays):
        # One NaN among arrays is a step without the array.
        if array.ndim < longest.ndim and array.ndim == 0 and np.isnan(array):
            arrays[step] = missing
    if len({array.shape for array in arrays}) > 1:
        return None
    return np.stack(arrays)


def _attribute(value: Any) -> str | int | float:
    if isinstance(value, str | float):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST_INTEGER:
        return value
    return line_of(value)
