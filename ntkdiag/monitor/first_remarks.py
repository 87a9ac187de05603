"""What is said once of the first measurements: why there is no margin, and that of another loss.

They go to standard error, or where the program logs to. Both stand in the numbers as well, where
few look who wait for a curve.
"""

import math
import statistics
from collections.abc import Mapping
from typing import Any

from ntkdiag.monitor.error_isolation import say
from ntkdiag.monitor.writers import Values
from ntkdiag.optimizer.response import SENTENCES, OptimizerStatus

# After so many measurements the gradients are judged: along each other from this cosine on, and
# across below that; of another loss beyond this scale.
_GRADIENTS = 3
_ALONG, _ACROSS = 0.7, 0.2
_ANOTHER_SCALE = 1.8


class FirstRemarks:
    """Looks at measurements until it has said what there is to say."""

    def __init__(self) -> None:
        self._has_said_why = False
        self._scales: list[float] = []
        self._cosines: list[float] = []

    def look(self, values: Values, record: Mapping[str, Any]) -> None:
        """Look at the numbers of one measurement, beside the record that says what they are."""
        if "call" not in record:
            return  # of nobody who measures
        self._say_why_unknown(values, record)
        self._say_if_another_loss(values, record)

    def _say_why_unknown(self, values: Values, record: Mapping[str, Any]) -> None:
        """Say why there is no margin, and which array is explained worst."""
        status = _number(values, "optimizer_status")
        margin = values.get("margin")
        is_unknown = isinstance(margin, float) and math.isnan(margin)
        if self._has_said_why or status is None or not is_unknown:
            return
        self._has_said_why = True
        reason = SENTENCES[OptimizerStatus(int(status))]
        place = _number(values, "optimizer_array")
        arrays = record.get("optimizer_arrays", [])
        where = ""
        if place is not None and 0 <= place < len(arrays):
            where = f" The array that is explained worst is {arrays[int(place)]}."
        say(f"{record['call']}: no margin: {reason}{where} This is said once.")

    def _say_if_another_loss(self, values: Values, record: Mapping[str, Any]) -> None:
        """Say that the gradient which the optimizer got is not that of the named loss."""
        scale = _number(values, "gradient_scale")
        cosine = _number(values, "gradient_cosine")
        if scale is None or cosine is None or len(self._scales) == _GRADIENTS:
            return
        self._scales.append(scale)
        self._cosines.append(cosine)
        if len(self._scales) < _GRADIENTS:
            return
        scale, cosine = statistics.median(self._scales), statistics.median(self._cosines)
        beside = f"that of loss={record['loss']!r} on the probe (cosine {cosine:.2f})"
        if cosine >= _ALONG and not 1.0 / _ANOTHER_SCALE < scale < _ANOTHER_SCALE:
            say(
                f"{record['call']}: the gradient is {scale:.3g} times {beside}: the margin is that "
                "of the named loss, and of the trained one so many times it. State what its sum is "
                "divided by: a loss of ntkdiag.losses with denominator=. This is said once."
            )
        elif max(self._cosines) < _ACROSS:
            say(
                f"{record['call']}: the gradient is hardly along {beside}: is another loss "
                "trained, or a sum of several? loss= takes a function loss(outputs, y). This is "
                "said once."
            )


def _number(values: Values, quantity: str) -> float | None:
    """A number of a measurement; None where it is not there, not finite, or several."""
    number = values.get(quantity)
    if isinstance(number, list) or number is None or not math.isfinite(number):
        return None
    return float(number)
