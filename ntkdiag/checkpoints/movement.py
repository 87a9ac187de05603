"""How far each parameter moved, and which share of the kernel it carries."""

import dataclasses
from typing import Any

import numpy as np

from ntkdiag.adapters import leaves_by_path


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
    """

    path: str
    size: int
    norm: float
    moved: float
    share_a: float
    share_b: float

    @property
    def relative(self) -> float | None:
        """||theta_B - theta_A|| / ||theta_A||; None for a leaf that started at zero."""
        return self.moved / self.norm if self.norm > 0 else None


def parameter_movement(
    params_a: Any, params_b: Any, traces_a: dict[str, float], traces_b: dict[str, float]
) -> tuple[LeafMovement, ...]:
    """Measure ||theta_B - theta_A|| leaf by leaf, in float64.

    Args:
        params_a: Parameters of side A.
        params_b: Parameters of side B, of the same structure.
        traces_a: Trace of each leaf's part of kernel A, by path.
        traces_b: The same for kernel B.

    Returns:
        One entry per leaf in leaf order, then the sum over all.
    """
    a, b = leaves_by_path(params_a), leaves_by_path(params_b)
    total_a, total_b = sum(traces_a.values()), sum(traces_b.values())
    rows = []
    for path, leaf in a.items():
        before, after = np.asarray(leaf, np.float64), np.asarray(b[path], np.float64)
        share_a, share_b = _ratio(traces_a[path], total_a), _ratio(traces_b[path], total_b)
        moved = float(np.linalg.norm(after - before))
        rows.append(LeafMovement(path, before.size, float(np.linalg.norm(before)), moved, share_a, share_b))
    return (*rows, _total(rows))


def _total(rows: list[LeafMovement]) -> LeafMovement:
    norm = float(np.sqrt(sum(row.norm**2 for row in rows)))
    moved = float(np.sqrt(sum(row.moved**2 for row in rows)))
    return LeafMovement("all", sum(row.size for row in rows), norm, moved, 1.0, 1.0)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else float("nan")
