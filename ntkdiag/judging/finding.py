"""A finding: a judgement on numbers, with everything that whoever reads it may ask."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

Severity = Literal["info", "warning", "error"]
# From the least to the most urgent.
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")
Number: TypeAlias = float | int | np.number


@dataclasses.dataclass(frozen=True)
class Finding:
    """A judgement on the numbers of a run or a comparison.

    Attributes:
        id: Which judgement it is; docs/findings.md has a paragraph for each.
        severity: "info", "warning" or "error".
        quantities: Names of the numbers that it rests on.
        value: The number that decided; NaN is a value, too. None where it is no number.
        interval: Its 95 % interval; None where it has none.
        threshold: What it was compared with; None where there is nothing.
        step: The step that it is about; None where it is about the whole.
        layer: The layer that it is about, the first of several; None where it is about all.
        sentence: What was found.
        trust: How far to trust it: what it rests on.
        do: What to do about it; "" where nothing needs to be done.
        verify: How to see that it helped; "" likewise.
    """

    id: str
    severity: Severity
    quantities: tuple[str, ...]
    sentence: str
    value: Number | None = None
    interval: tuple[Number, Number] | None = None
    threshold: Number | None = None
    step: int | np.integer | None = None
    layer: str | None = None
    trust: str = ""
    do: str = ""
    verify: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values as JSON has them, with None for a number that is not finite."""
        entries = dataclasses.asdict(self)
        entries["quantities"] = list(self.quantities)
        entries["value"] = _finite(self.value)
        entries["threshold"] = _finite(self.threshold)
        entries["step"] = None if self.step is None else int(self.step)
        entries["interval"] = None if self.interval is None else [*map(_finite, self.interval)]
        return entries

    @staticmethod
    def of_dict(entries: Mapping[str, Any]) -> "Finding":
        """A finding from its plain values, or from those of a stored row, where null is NaN."""
        fields: dict[str, Any] = {
            name: None if _is_nan(value) else value for name, value in entries.items()
        }
        fields["quantities"] = tuple(entries["quantities"])
        if fields["interval"] is not None:
            lower, upper = entries["interval"]
            fields["interval"] = (_or_nan(lower), _or_nan(upper))
        return Finding(**fields)

    def __str__(self) -> str:
        where = "" if self.step is None else f" step {self.step}"
        return " ".join(f"{self.severity}{where} {self.id}: {self.sentence} {self.do}".split())


def is_finding(entries: Mapping[str, Any]) -> bool:
    """Whether these are the plain values of a finding: all of them, each of its kind."""
    if entries.keys() != {field.name for field in dataclasses.fields(Finding)}:
        return False
    texts = [entries[name] for name in ("id", "sentence", "trust", "do", "verify")]
    quantities, interval = entries["quantities"], entries["interval"]
    ends = [None, None] if interval is None else interval
    if not isinstance(quantities, list) or not isinstance(ends, list) or len(ends) != 2:
        return False
    numbers = [entries["value"], entries["threshold"], *ends]
    return (
        entries["severity"] in SEVERITIES
        and all(isinstance(text, str) for text in (*texts, *quantities))
        and all(isinstance(number, int | float | None) for number in numbers)
        and isinstance(entries["step"], int | None)
        and isinstance(entries["layer"], str | None)
    )


def by_urgency(found: list[Finding]) -> list[Finding]:
    """The most urgent first; of one severity in the order they came."""
    return sorted(found, key=lambda finding: -SEVERITIES.index(finding.severity))


def _finite(number: Number | None) -> float | None:
    """The number, or None where it is not finite."""
    return float(number) if number is not None and math.isfinite(number) else None


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _or_nan(number: float | None) -> float:
    return math.nan if number is None else number
