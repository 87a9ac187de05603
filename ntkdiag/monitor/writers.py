"""Where measurements go: the Writer protocol, and writers that need nothing beyond ntkdiag."""

import math
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

from ntkdiag.judging.finding import Finding
from ntkdiag.monitor.measurement import by_part

Numbers: TypeAlias = float | int | list[float] | list[int]
Values: TypeAlias = Mapping[str, Numbers]


@runtime_checkable
class Writer(Protocol):
    """Receives one call per measurement, on the host.

    Three methods are optional. `start(record)` is called once, before the first `write`, with what
    the numbers mean, as plain JSON values. `finding(finding)` takes a `Finding`. `close()` ends the
    writer. All are called on a thread beside training, one after the other.
    """

    def write(self, step: int, values: Values) -> None:
        """Take the measurement of one step: a float or a list of floats under each name."""
        ...


class InMemory:
    """Keeps everything in lists, for notebooks and tests."""

    def __init__(self) -> None:
        self.record: dict[str, Any] | None = None
        self.steps: list[int] = []
        self.rows: list[dict[str, Any]] = []
        self.findings: list[Finding] = []

    def start(self, record: Mapping[str, Any]) -> None:
        """Keep the convention record."""
        self.record = dict(record)

    def write(self, step: int, values: Values) -> None:
        """Append one measurement."""
        self.steps.append(step)
        self.rows.append({"step": step, **values})

    def finding(self, finding: Finding) -> None:
        """Append one finding."""
        self.findings.append(finding)

    def series(self, name: str) -> list[Numbers]:
        """The values of one name, in the order written."""
        return [row[name] for row in self.rows]


# What one line in a terminal has room for.
_HEADLINES = ("loss", "batch_loss", "margin", "learning_rate", "drift")


class Terminal:
    """Prints a line for each measurement, "step 550  loss 0.0132  margin 0.421 [0.31, 0.52]"."""

    def write(self, step: int, values: Values) -> None:
        """Print the step, then the numbers, the margin with its interval."""
        shown = [name for name in _HEADLINES if name in values]
        if "loss" in shown and "batch_loss" in shown:
            shown.remove("batch_loss")  # the loss of the probe is a smoother curve
        # Without any of them, all but numbers by layer, the ends of intervals and counts of NaN.
        others = ("layer_", "_lower", "_upper", "not_finite")
        shown = shown or [name for name in values if not any(part in name for part in others)]
        parts = [f"step {step}"]
        for name in shown:
            parts.append(f"{name} {_in_digits(values[name], 3)}")
            if name == "margin" and "margin_lower" in values:
                ends = [_in_digits(values[f"margin_{end}"], 2) for end in ("lower", "upper")]
                parts[-1] += f" [{', '.join(ends)}]"
        print("  ".join(parts), flush=True)

    def finding(self, finding: Finding) -> None:
        """Print one finding."""
        print(finding, flush=True)


def _in_digits(value: Numbers, digits: int) -> str:
    """A number, a list of them in brackets; a dash for what is not finite."""
    if isinstance(value, list):
        return "[" + " ".join(_in_digits(item, digits) for item in value) + "]"
    return f"{value:.{digits}g}" if math.isfinite(value) else "-"


def scalars_of(values: Values, record: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Every finite number of a measurement under a name of its own.

    A number of a list has the name of the list and, after a slash, the layer that it is of, or its
    position: ``layer_gradient/Dense_0/kernel``, ``eigenvalues/0``.

    Args:
        values: What `Writer.write` gets.
        record: What `Writer.start` gets: it has the names of the layers.

    Returns:
        Name -> number.
    """
    numbers = by_part(values, (record or {}).get("layers", ()))
    return {name: number for name, number in numbers.items() if math.isfinite(number)}
