"""What two kernels and the outputs beside them say, where no parameters lead from A to B."""

import dataclasses
import math

from ntkdiag import display
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.measuring.decisions import Rule, agreement
from ntkdiag.measuring.measured import Measured
from ntkdiag.measuring.modes_overlap import (
    Modes,
    leading_modes,
    modes_to_compare,
    overlap_of_modes,
)


@dataclasses.dataclass(frozen=True)
class KernelsAlone:
    """Two sides that have no parameters in common.

    Attributes:
        reason: Why they have none: that is why movement, e1 and the learning of layers are not
            there.
        modes: How many leading modes `overlap` is of.
        overlap: ||U_A^T U_B||_F^2 / m of these m modes of the centred kernels: 1 for the same
            subspace; NaN where a kernel resolves none.
        overlap_by_chance: That of random subspaces, m over the rows of the kernel less the
            constants of the outputs.
        agreement: Share of the decisions on the probe that A and B both take; None where outputs
            decide nothing, or have other shapes.
    """

    reason: str
    modes: int
    overlap: float
    overlap_by_chance: float
    agreement: float | None

    def to_dict(self) -> dict[str, display.PlainValue]:
        """All fields."""
        return display.plain(vars(self))


def kernels_alone(
    a: Measured, b: Measured, reason: str, rule: Rule, shapes: tuple[tuple[int, ...], ...]
) -> KernelsAlone:
    """Lay modes and decisions of two sides beside each other; ten eigenvectors of each, (N C)^3.

    `shapes` are those of the outputs of A and B.
    """
    modes_a, modes_b = _modes_of(a), _modes_of(b)
    m = modes_to_compare(modes_a, modes_b)
    shape_a, shape_b = shapes
    agreeing = None
    if shape_a == shape_b:
        agreeing = agreement(a.outputs.reshape(shape_a), b.outputs.reshape(shape_b), rule)
    return KernelsAlone(
        reason=reason,
        modes=m,
        overlap=overlap_of_modes(modes_a, modes_b),
        overlap_by_chance=m / _centred_dimension(a.kernel),
        agreement=agreeing,
    )


def _modes_of(side: Measured) -> Modes:
    return leading_modes(side.kernel.array, float(side.spectrum.noise_floor))


def _centred_dimension(kernel: Kernel) -> int:
    """Rows less the constants of the outputs, which centring takes away."""
    rows = math.isqrt(kernel.array.size)
    return rows - rows // kernel.n_examples
