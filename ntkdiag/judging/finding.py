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
    """A judgement on the numbers of a run or a comparison."""

    id: str  # which judgement it is; docs/findings.md has a paragraph for each
    severity: Severity
    quantities: tuple[str, ...]  # names of the numbers that it rests on
    sentence: str  # what was found
    value: Number | None = None  # the number that decided; NaN is a value, too
    interval: tuple[Number, Number] | None = None  # its 95 % interval
    threshold: Number | None = None  # what it was compared with
    step: int | np.integer | None = None  # None where it is about the whole
    layer: str | None = None  # the first of several; None where it is about all
    trust: str = ""  # how far to trust it: what it rests on
    do: str = ""  # what to do about it

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
