"""What measuring has cost so far."""

import dataclasses

import numpy as np

from ntkdiag import display


@dataclasses.dataclass
class Cost:
    """Wall time of a monitor.

    The first measurement compiles and happens once, so it is kept apart.
    """

    # Largest share of the wall time that measuring may take; None for no limit.
    time_share: float | int | np.number | None
    setup_seconds: float = 0.0  # the first measurement, compilation included
    seconds: float = 0.0  # all later measurements together, and those that failed
    elapsed: float = 0.0  # wall time since the end of the first
    measurements: int = 0  # measurements made

    @property
    def share(self) -> float:
        """Part of the wall time since the first measurement that went into measuring."""
        if self.elapsed <= 0:
            return 0.0
        return self.seconds / self.elapsed

    def __repr__(self) -> str:
        return display.described(self)

    def __str__(self) -> str:
        """One line for logs."""
        return (
            f"{self.measurements} measurements; first "
            f"{self.setup_seconds:.3g} s with compilation, then {self.seconds:.3g} s of "
            f"{self.elapsed:.3g} s ({100 * self.share:.2g} %)"
        )
