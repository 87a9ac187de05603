"""How far each parameter moved, and what part of the kernel it carries."""

import dataclasses
from typing import Any

import numpy as np

from ntkdiag.analysis import drift
from ntkdiag.models.paths import leaves_by_path

RESOLUTION = 1e-5  # a centred kernel this small beside the kernel itself is rounding


@dataclasses.dataclass(frozen=True)
class LeafMovement:
    """Motion of one leaf, or of all of them together.

    Attributes:
        path: Path of the leaf; ``"all"`` for the sum.
        size: Number of parameters.
        norm: ||theta_A||.
        moved: ||theta_B - theta_A||.
        share_a: Share of the trace of kernel A that this leaf carries, tr Theta_l / tr Theta.
        share_b: The same for kernel B.
        distance_centred: S_c between the leaf's own kernels at A and B, traced over outputs; None where such a kernel
            is the same for all examples (the bias of the last layer), and for the sum.
    """

    path: str
    size: int
    norm: float
    moved: float
    share_a: float
    share_b: float
    distance_centred: float | None = None

    @property
    def relative(self) -> float | None:
        """||theta_B - theta_A|| / ||theta_A||; None for a leaf that started at zero."""
        return self.moved / self.norm if self.norm > 0 else None


def parameter_movement(
    params_a: Any, params_b: Any, kernels_a: dict[str, np.ndarray], kernels_b: dict[str, np.ndarray]
) -> tuple[LeafMovement, ...]:
    """Measure every leaf: ||theta_B - theta_A||, its share of the kernel, and how far its kernel turned.

    Cost: N^2 per leaf.

    Args:
        params_a: Parameters of side A.
        params_b: Parameters of side B, of the same structure.
        kernels_a: Kernel `[n n]` of each leaf at A, by path.
        kernels_b: The same at B.

    Returns:
        One entry per leaf in leaf order, then the sum over all.
    """
    a, b = leaves_by_path(params_a), leaves_by_path(params_b)
    total_a, total_b = (sum(map(np.trace, kernels.values())) for kernels in (kernels_a, kernels_b))
    rows = []
    for path, leaf in a.items():
        before, after = np.asarray(leaf, np.float64), np.asarray(b[path], np.float64)
        rows.append(
            LeafMovement(
                path,
                before.size,
                float(np.linalg.norm(before)),
                float(np.linalg.norm(after - before)),
                _ratio(np.trace(kernels_a[path]), total_a),
                _ratio(np.trace(kernels_b[path]), total_b),
                _distance(kernels_a[path], kernels_b[path]),
            )
        )
    norm, moved = (
        float(np.sqrt(sum(getattr(row, name) ** 2 for row in rows))) for name in ("norm", "moved")
    )
    return (*rows, LeafMovement("all", sum(row.size for row in rows), norm, moved, 1.0, 1.0))


def _distance(a: np.ndarray, b: np.ndarray) -> float | None:
    for kernel in (a, b):
        centred = kernel - kernel.mean(0) - kernel.mean(1)[:, None] + kernel.mean()
        if not np.linalg.norm(centred) > RESOLUTION * np.linalg.norm(kernel):
            return None
    return float(drift(a, b).distance_centred)


def _ratio(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else float("nan")
