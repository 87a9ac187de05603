"""All stability margins that a run has: of its checkpoints, and of what its monitor measured."""

import dataclasses

import numpy as np
from jaxtyping import Float

from ntkdiag.report.run_subject import RunSubject


@dataclasses.dataclass(frozen=True, eq=False)
class Margins:
    """The margins of a run, by step."""

    steps: Float[np.ndarray, " s"]  # the steps
    values: Float[np.ndarray, " s"]  # the margin of the probe at each
    # Lower ends of the intervals for the training set; the value where none is known.
    lower: Float[np.ndarray, " s"]
    upper: Float[np.ndarray, " s"]  # upper ends
    n_checkpoints: int  # how many are of checkpoints; the others were measured while training
    has_intervals: bool  # whether any has an interval

    @staticmethod
    def of(subject: RunSubject) -> "Margins | None":
        """All there are; None without."""
        parts = [part for part in (_of_checkpoints(subject), _of_monitor(subject)) if part]
        if not parts:
            return None
        steps, values, lower, upper = map(np.concatenate, zip(*parts, strict=True))
        order = np.argsort(steps, kind="stable")
        of_checkpoints = _of_checkpoints(subject)
        return Margins(
            steps=steps[order],
            values=values[order],
            lower=lower[order],
            upper=upper[order],
            n_checkpoints=0 if of_checkpoints is None else len(of_checkpoints[0]),
            has_intervals=bool(np.any(lower < upper)),
        )

    @property
    def last_interval(self) -> int:
        """The place of the last that has an interval; of all, where none has one."""
        places = np.flatnonzero(self.lower < self.upper)
        return int(places[-1]) if len(places) else len(self.steps) - 1

    @property
    def largest(self) -> int:
        """The place of the largest."""
        return int(np.argmax(self.values))


def _of_checkpoints(subject: RunSubject) -> tuple[np.ndarray, ...] | None:
    """Steps, values and both ends of those of the checkpoints."""
    values = subject.series("margin")
    if values is None or not np.isfinite(values).any():
        return None
    known = np.isfinite(values)
    ends = [subject.series(name) for name in ("margin_lower", "margin_upper")]
    # An end that is not known is the value itself.
    lower, upper = (
        values if end is None else np.where(np.isfinite(end), end, values) for end in ends
    )
    steps = np.asarray(subject.steps, np.float64)
    return steps[known], values[known], lower[known], upper[known]


def _of_monitor(subject: RunSubject) -> tuple[np.ndarray, ...] | None:
    """The same of the measurements of the monitor."""
    measured = subject.measured("margin")
    if measured is None:
        return None
    steps, values = measured
    lower, upper = subject.interval("margin") or (values, values)
    # An end that is not known is the value itself.
    lower = np.where(np.isfinite(lower), lower, values)
    upper = np.where(np.isfinite(upper), upper, values)
    return steps, values, lower, upper
