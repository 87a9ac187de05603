"""A finding: a judgement on numbers, with its reason, its reliability and a remedy."""

import dataclasses
import math
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
        quantities: Names of the numbers that it is based on.
        sentence: What was found.
        value: The number that decided; NaN is a value, too. None if it is not a number.
        interval: Its 95 % interval; None where it has none.
        threshold: What it was compared with; None where there is nothing.
        step: The step that it is about; None where it is about the whole.
        layer: The layer that it is about, the first of several; None where it is about all.
        trust: How far to trust it; "" if there is nothing to add.
        do: What to do about it; "" where nothing needs to be done.
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

    @property
    def subject(self) -> tuple[str, Severity, str | None]:
        """What it is about: findings with the same subject repeat each other."""
        return self.id, self.severity, self.layer

    def to_dict(self) -> dict[str, Any]:
        """Plain values as JSON has them, with None for a number that is not finite."""
        entries = dataclasses.asdict(self)
        entries["quantities"] = list(self.quantities)
        entries["value"] = _finite(self.value)
        entries["threshold"] = _finite(self.threshold)
        entries["step"] = None if self.step is None else int(self.step)
        entries["interval"] = None if self.interval is None else [*map(_finite, self.interval)]
        return entries

    def __str__(self) -> str:
        where = "" if self.step is None else f" step {self.step}"
        return " ".join(f"{self.severity}{where} {self.id}: {self.sentence} {self.do}".split())


def by_urgency(findings: list[Finding]) -> list[Finding]:
    """The most urgent first; of one severity in the order they came."""
    return sorted(findings, key=lambda finding: -SEVERITIES.index(finding.severity))


def _finite(number: Number | None) -> float | None:
    """The number, or None where it is not finite."""
    return float(number) if number is not None and math.isfinite(number) else None
