"""Values of one name over the steps of a run, as one array."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def stacked(arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Arrays of one shape and dtype along a first axis; None where that cannot be.

    Steps without the array, at least one of which has it, are NaN.
    """
    present = [array for array in arrays if array is not None]
    kinds = {(array.shape, array.dtype) for array in present}
    if len(kinds) != 1:
        return None
    if len(present) == len(arrays):
        return np.stack(present)  # [...] of each step -> [steps ...]
    ((shape, dtype),) = kinds
    if dtype.kind not in "fc":
        return None  # there is no integer that says "not known"
    missing = np.full(shape, np.nan, dtype)
    return np.stack([missing if array is None else array for array in arrays])


def stacked_scalars(values: Sequence[Any]) -> np.ndarray | None:
    """Numbers, or lists of numbers of one length; None for anything else."""
    arrays = []
    for value in values:
        array = np.asarray(value) if _is_numeric(value) else None
        if array is None:
            return None
        arrays.append(array)
    # One NaN among lists is a step without the list.
    shape = max((array.shape for array in arrays), key=len)
    filled = []
    for array in arrays:
        is_missing = array.shape == () and shape != () and np.isnan(array)
        filled.append(np.full(shape, np.nan) if is_missing else array)
    if any(array.shape != shape for array in filled):
        return None
    return np.stack(filled)


def _is_numeric(value: Any) -> bool:
    """Whether a JSON value is a number, a truth value, or a list of such."""
    if isinstance(value, list):
        return all(isinstance(item, bool | int | float) for item in value)
    return isinstance(value, bool | int | float)
