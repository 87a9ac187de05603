"""What was measured."""

import dataclasses
import statistics
from typing import Any


@dataclasses.dataclass
class Result:
    """One peer on one workload.

    Attributes:
        workload: Its name.
        reduction: "trace" or "full".
        peer: Its name.
        first: Seconds to the first result: trace, compile and run.
        error: Largest error over the largest entry of the float64 kernel.
        seconds: Of every call in every round, for the whole kernel.
        cpu: Processor seconds of every call, all threads: what a busy machine disturbs least.
        scale: Whole over measured: above 1 where only some blocks were computed and `seconds` were
            multiplied.
        peak_bytes: Measured peak resident set above the baseline.
        plan: What the peer predicted.
        failed: The reason, where there is no number.
    """

    workload: str
    reduction: str
    peer: str
    first: float | None = None
    error: float | None = None
    seconds: list[float] = dataclasses.field(default_factory=list)
    cpu: list[float] = dataclasses.field(default_factory=list)
    scale: float = 1.0
    peak_bytes: int | None = None
    plan: dict[str, Any] = dataclasses.field(default_factory=dict)
    failed: str | None = None

    @property
    def median(self) -> float | None:
        """Median seconds."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def median_cpu(self) -> float | None:
        """Median processor seconds, all threads."""
        return statistics.median(self.cpu) if self.cpu else None

    def add(self, answer: dict[str, Any]) -> None:
        """Take in the calls that a worker timed."""
        self.seconds += [seconds * self.scale for seconds in answer["seconds"]]
        self.cpu += [seconds * self.scale for seconds in answer["cpu"]]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**dataclasses.asdict(self), "median": self.median, "median_cpu": self.median_cpu}


def best(results: list[Result], ours: str = "ntkdiag") -> Result | None:
    """The fastest of the others."""
    others = [result for result in results if result.peer != ours]
    measured = [result for result in others if result.seconds and not result.failed]
    return min(measured, key=lambda result: result.median, default=None)
