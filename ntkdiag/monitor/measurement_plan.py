"""What a measurement will cost, before the first one is made.

A measurement is a kernel, planned as `plan` does, and one or two sets of eigenvalues of its K rows;
beside it stands a second kernel, of the held-out examples, where there are some:

    flops    those of the kernels, and 4/3 K^3 for each set of eigenvalues
    bytes    those of the larger kernel, and six arrays [K K] in float64 beside each
    seconds  flops over the rate of products on this machine, of which eigenvalues reach a tenth

Compiling is not planned: it takes seconds, and is needed once.
"""

import dataclasses

import numpy as np

from ntkdiag.engine.planning.plan import Plan
from ntkdiag.memory import readable

# The kernel in float64, what LAPACK works in, the reference kernel, and both of them centred.
_ARRAYS = 6
# Eigenvalues are found by products with vectors, which wait for the memory.
_SHARE_OF_RATE = 0.1


@dataclasses.dataclass(frozen=True)
class MeasurementPlan:
    """The cost of a measurement; print it for one line.

    Attributes:
        kernel: The plan of the kernel.
        n_rows: Its rows, K: examples times outputs, or examples for a reduced kernel.
        decompositions: Sets of eigenvalues: two for losses other than squared error.
        held_out: The plan of the kernel of the held-out examples, which has no eigenvalues.
        n_rows_held_out: Its rows.
    """

    kernel: Plan
    n_rows: int
    decompositions: int
    held_out: Plan | None = None
    n_rows_held_out: int = 0

    @property
    def flops(self) -> int:
        """Floating-point operations."""
        return sum(plan.flops for plan in self._kernels) + self._flops_of_eigenvalues

    @property
    def flops_as_products(self) -> float:
        """Floating-point operations of products that take as long as the measurement."""
        of_kernels = sum(plan.flops for plan in self._kernels)
        return of_kernels + self._flops_of_eigenvalues / _SHARE_OF_RATE

    @property
    def bytes(self) -> int:
        """Peak of memory beyond parameters and examples."""
        # The kernels are made one after the other, and both are kept.
        kept = 8 * _ARRAYS * (self.n_rows**2 + self.n_rows_held_out**2)
        return max(plan.peak_bytes for plan in self._kernels) + kept

    @property
    def seconds(self) -> float:
        """Time of a measurement once compiled; right within a few times."""
        if not self.kernel.flops:
            return 0.0
        rate = self.kernel.flops / self.kernel.seconds
        of_eigenvalues = self._flops_of_eigenvalues / (_SHARE_OF_RATE * rate)
        return sum(plan.seconds for plan in self._kernels) + of_eigenvalues

    @property
    def _kernels(self) -> list[Plan]:
        return [self.kernel] if self.held_out is None else [self.kernel, self.held_out]

    @property
    def _flops_of_eigenvalues(self) -> int:
        return self.decompositions * 4 * self.n_rows**3 // 3

    def __str__(self) -> str:
        """The cost in one line."""
        rows = f"a kernel of {self.n_rows:,} rows"
        if self.held_out is not None:
            rows += f" and one of {self.n_rows_held_out:,} held out"
        return f"{rows}: {self.flops:.2g} flops, {self.price} and compiling"

    @property
    def price(self) -> str:
        """Memory and time, in words."""
        return f"{readable(self.bytes)}, about {self.seconds:.2g} s"

    def excess(self, budget: int, seconds: float | int | np.number | None) -> str | None:
        """What the plan is beyond, in words: so many bytes, so many seconds; None within both."""
        if self.bytes > budget:
            return f"more than the {readable(budget)} of memory="
        if seconds is not None and self.seconds > seconds:
            return f"more than the {seconds:g} s of first_measurement="
        return None
