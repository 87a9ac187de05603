"""Shapes and reduction of a measured kernel, which are known before it is computed.

What `reduction="auto"` stands for is decided by `automatic_of_probe`.
"""

import dataclasses
import math

from jax.typing import DTypeLike

from ntkdiag import errors
from ntkdiag.kernel.reduction import RandomProjections, ReductionLike, automatic_of_probe


@dataclasses.dataclass(frozen=True)
class ProbeLayout:
    """What the outputs on the probe tell about the kernel: N, C, its rows and its dtype."""

    output_shape: tuple[int, ...]  # of the outputs on the probe, `[N ...]`
    reduction: str  # reduction of the kernel over outputs, in words
    dtype: DTypeLike  # of the kernel and all numbers
    # The random directions, where the kernel is estimated from some.
    projections: RandomProjections | None = None

    @staticmethod
    def of(
        output_shape: tuple[int, ...], reduction: ReductionLike, dtype: DTypeLike
    ) -> "ProbeLayout":
        """The layout of a kernel of these outputs; "auto" becomes what it stands for."""
        n_outputs = math.prod(output_shape[1:])
        if isinstance(reduction, str) and reduction == "auto":
            reduction = automatic_of_probe(output_shape[0], n_outputs)
        projections = reduction if isinstance(reduction, RandomProjections) else None
        return ProbeLayout(output_shape, str(reduction), dtype, projections)

    @property
    def reduction_for_ntk(self) -> ReductionLike:
        """The reduction as `ntk` takes it."""
        return self.reduction if self.projections is None else self.projections

    def require_same(self, first: "ProbeLayout") -> None:
        """Refuse outputs that are no longer those of the first measurement."""
        if (self.output_shape, self.reduction) == (first.output_shape, first.reduction):
            return
        raise errors.InvalidInputError(
            expected=f"outputs of shape {first.output_shape}, as at the first measurement, whose "
            f"{first.reduction} kernel all others are compared with",
            got=f"shape {self.output_shape}",
            do="Make a new Monitor for the new outputs.",
        )

    @property
    def n_examples(self) -> int:
        """Probe examples, N."""
        return self.output_shape[0]

    @property
    def n_outputs(self) -> int:
        """Outputs per example, C."""
        return math.prod(self.output_shape[1:])

    @property
    def size(self) -> int:
        """Rows of the measured kernel: N C of the full kernel, N of a reduced one."""
        if self.reduction == "full":
            return self.n_examples * self.n_outputs
        return self.n_examples

    @property
    def is_reduced(self) -> bool:
        """Whether the largest eigenvalue is that of another kernel than the full one."""
        return self.reduction != "full" and self.n_outputs > 1
