"""The rule that warns of a jump of the loss, at the threshold of the benchmark of alarms."""

import dataclasses
from collections.abc import Sequence

from ntkdiag import errors
from ntkdiag.judging.finding import Finding
from ntkdiag.judging.spike_finding import spike_findings
from ntkdiag.judging.spike_risk import THRESHOLD
from ntkdiag.monitor.live_findings.rule import Row, Rule
from ntkdiag.scalars import require_in_range, require_positive


@dataclasses.dataclass(frozen=True)
class SpikeAhead(Rule):
    """Fires when the loss is likely to jump within 50 steps.

    The risk is a logistic rule of the margin, and of the update norm over its median of ten
    measurements; docs/alarms.md says what it is worth. Weights and threshold are those of the
    benchmark of alarms, with measurements at every fifth step.

    Attributes:
        threshold: The risk, between 0 and 1, above which it fires.

    Raises:
        InvalidInputError: When `threshold` is not between 0 and 1.
    """

    threshold: float = THRESHOLD

    @errors.public
    def __post_init__(self) -> None:
        require_positive(self.threshold, "threshold")
        require_in_range(self.threshold, "threshold", 0.0, 1.0, "It is a risk, from 0 to 1.")

    def check(self, history: Sequence[Row]) -> Finding | None:
        """A finding where the risk at the last record is above the threshold."""
        found = spike_findings(history, self.threshold)
        return found[0] if found else None
