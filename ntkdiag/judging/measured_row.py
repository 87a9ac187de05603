"""A measurement as rules read it: numbers by name, beside its step."""

import math
import numbers
from collections.abc import Mapping

Row = Mapping[str, object]


def number_of(row: Row, name: str) -> float:
    """A number of a measurement; NaN where there is none."""
    number = row.get(name)
    return float(number) if isinstance(number, numbers.Real) else math.nan
