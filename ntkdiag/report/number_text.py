"""Numbers as text."""

import math

from ntkdiag.scalars import Number

MISSING = "–"


def number(value: Number | None, digits: int = 4) -> str:
    """Write a number with some significant digits; what is not known or not finite is a dash."""
    if value is None or not math.isfinite(value):
        return MISSING
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(float(value))
    if size >= 1e6 or 0 < size < 1e-3:
        return f"{float(value):.{digits - 1}e}"
    # Decimals left of `digits` significant digits: 3 before the point and 4 digits leave 1.
    decimals = digits
    if size > 0:
        digits_before_point = 1 + math.floor(math.log10(size))
        decimals = max(0, digits - digits_before_point)
    text = f"{float(value):,.{decimals}f}"
    # Zeros at the end are dropped after a decimal point only: 100 stays 100.
    if "." not in text:
        return text
    return text.rstrip("0").rstrip(".")


def ratio(after: Number | None, before: Number | None) -> str:
    """Write after / before as a factor; a dash where it has no meaning."""
    if after is None or before is None or not before > 0:
        return MISSING
    factor = after / before
    if not math.isfinite(factor):
        return MISSING
    return f"{number(factor, 3)}×"


def percent(value: Number | None) -> str:
    """Write a share as a percentage."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{100 * value:.1f} %"
