"""The last records of a run, and what is found in them."""

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ntkdiag.judging.finding import Finding

Row: TypeAlias = Mapping[str, Any]  # numbers and lists by name, and "step"
History: TypeAlias = Sequence[Row]  # newest last, never empty


def number_of(row: Row, name: str) -> float:
    """A number of a record; NaN where there is none."""
    number = row.get(name)
    return float(number) if isinstance(number, numbers.Real) else math.nan


def live_finding(history: History, *names: str, n_measurements: int, **entries: Any) -> Finding:
    """A warning about the newest record, and about the first of these numbers in it."""
    row = history[-1]
    ends = number_of(row, f"{names[0]}_lower"), number_of(row, f"{names[0]}_upper")
    count = "one measurement" if n_measurements == 1 else f"{n_measurements} measurements"
    usual = {
        "severity": "warning",
        "quantities": names,
        "value": number_of(row, names[0]),
        "interval": None if all(map(math.isnan, ends)) else ends,
        "step": int(row["step"]),
        "trust": f"Of {count} while it trained.",
    }
    return Finding(**(usual | entries))
