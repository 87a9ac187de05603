"""Numbers as text."""

import math
from typing import Any

MISSING = "–"


def number(value: Any, digits: int = 4) -> str:
    """Write a number with `digits` significant digits; what is not known or not finite is a dash."""
    if value is None or not math.isfinite(value):
        return MISSING
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(float(value))
    if size >= 1e6 or 0 < size < 1e-3:
        return f"{float(value):.{digits - 1}e}"
    decimals = digits if size == 0 else max(0, digits - 1 - math.floor(math.log10(size)))
    text = f"{float(value):,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def ratio(after: Any, before: Any) -> str:
    """Write after / before as a factor; a dash where it has no meaning."""
    if after is None or before is None or not before > 0 or not math.isfinite(after / before):
        return MISSING
    return f"{number(after / before, 3)}×"


def percent(value: Any) -> str:
    """Write a share as a percentage."""
    return MISSING if value is None or not math.isfinite(value) else f"{100 * value:.1f} %"
