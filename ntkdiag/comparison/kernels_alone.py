"""What two kernels and the outputs beside them say, where no parameters lead from A to B."""

import dataclasses

import numpy as np

from ntkdiag import display
from ntkdiag.comparison.decisions import Rule, agreement
from ntkdiag.comparison.measured import Measured
from ntkdiag.comparison.modes_overlap import modes_to_compare, overlap_of_modes
from ntkdiag.kernel.decomposition import spectrum
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.spectrum import Spectrum


@dataclasses.dataclass(frozen=True)
class KernelsAlone:
    """Two sides that have no parameters in common.

    Attributes:
        reason: Why they have none: that is why movement, e1 and the learning of layers are not
            there.
        modes: How many leading modes `overlap` is of.
        overlap: ||U_A^T U_B||_F^2 / m of these m modes: 1 for the same subspace; NaN where a kernel
            resolves none.
        overlap_by_chance: That of random subspaces, m over the rows of the kernel.
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
    """Lay modes and decisions of two sides beside each other; two eigendecompositions (N C)^3.

    `shapes` are those of the outputs of A and B.
    """
    spectrum_a = _with_modes(a.kernel)
    spectrum_b = _with_modes(b.kernel)
    m = modes_to_compare(int(spectrum_a.rank), int(spectrum_b.rank))
    shape_a, shape_b = shapes
    agreeing = None
    if shape_a == shape_b:
        agreeing = agreement(a.outputs.reshape(shape_a), b.outputs.reshape(shape_b), rule)
    return KernelsAlone(
        reason=reason,
        modes=m,
        overlap=overlap_of_modes(np.asarray(spectrum_a.vectors), np.asarray(spectrum_b.vectors), m),
        overlap_by_chance=m / spectrum_a.size,
        agreement=agreeing,
    )


def _with_modes(kernel: Kernel) -> Spectrum:
    return spectrum(kernel, vectors=True)
