"""Measurements as scalars only, as trackers and metric loggers take them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ntkdiag.monitor.writers import Values


def scalars_of(values: Values, record: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Every finite number of a measurement under a name of its own.

    A number of a list has the name of the list and, after a slash, the layer that it is of, or its
    position: ``layer_gradient/Dense_0/kernel``, ``eigenvalues/0``. Numbers that are not
    finite are left out, as trackers draw them as if they were something.

    Args:
        values: What `Writer.write` gets.
        record: What `Writer.start` gets: it has the names of the layers.

    Returns:
        Name -> number.
    """
    flat: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, list):
            for entry, number in zip(_entries(name, value, record or {}), value, strict=True):
                flat[f"{name}/{entry}"] = number
        else:
            flat[name] = value
    return {name: number for name, number in flat.items() if math.isfinite(number)}


def _entries(name: str, numbers: Sequence[float], record: Mapping[str, Any]) -> Sequence[object]:
    """The names of the numbers in a list: those of its axis where it has some, else positions."""
    axes = record.get("dims", {}).get(name, [])
    if len(axes) == 1:
        coordinates = record.get("coordinates", {}).get(axes[0], [])
        if len(coordinates) == len(numbers):
            return coordinates
    return range(len(numbers))
