"""How far each parameter moved, and what part of the kernel it carries.

The kernel is a sum over the leaves of the parameters, Theta = sum_l J_l J_l^T, and so is its trace:
the share of a leaf is tr Theta_l / tr Theta.
"""

import dataclasses
import math

import numpy as np
from jaxtyping import Float, PyTree

from ntkdiag import display
from ntkdiag.analysis import drift
from ntkdiag.models.paths import leaves_by_path

RESOLUTION = 1e-5  # a centred kernel this small beside the kernel itself is rounding
ALL = "all"  # the path of the sum over all leaves


@dataclasses.dataclass(frozen=True)
class LeafMovement:
    """Motion of one leaf, or of all of them together."""

    path: str  # path of the leaf; ``"all"`` for the sum
    size: int  # number of parameters
    norm: float  # ||theta_A||
    moved: float  # ||theta_B - theta_A||
    share_a: float  # share of the trace of kernel A that this leaf carries, tr Theta_l / tr Theta
    share_b: float  # the same for kernel B
    # S_c between the leaf's own kernels at A and B, traced over outputs, both with the fixed arrays
    # of B; None where such a kernel is the same for all examples (the bias of the last layer), and
    # for the sum.
    distance_centred: float | None = None

    @property
    def relative(self) -> float | None:
        """||theta_B - theta_A|| / ||theta_A||; None for a leaf that started at zero."""
        return self.moved / self.norm if self.norm > 0 else None

    def to_dict(self) -> dict[str, str | int | float | None]:
        """The numbers by name."""
        return {**vars(self), "relative": self.relative}


def parameter_movement(
    params_a: PyTree,
    params_b: PyTree,
    kernels_a: dict[str, Float[np.ndarray, "n n"]],
    kernels_b: dict[str, Float[np.ndarray, "n n"]],
    start_kernels: dict[str, Float[np.ndarray, "n n"]],
) -> tuple[LeafMovement, ...]:
    """Measure every leaf: how far it moved, its share of the kernel, how far its kernel rotated."""
    trace_a = sum(np.trace(kernel) for kernel in kernels_a.values())
    trace_b = sum(np.trace(kernel) for kernel in kernels_b.values())
    leaves_b = leaves_by_path(params_b)
    rows = []
    for path, leaf_a in leaves_by_path(params_a).items():
        before = np.asarray(leaf_a, np.float64)
        after = np.asarray(leaves_b[path], np.float64)
        row = LeafMovement(
            path=display.printable(path),
            size=before.size,
            norm=float(np.linalg.norm(before)),
            moved=float(np.linalg.norm(after - before)),
            share_a=_share(np.trace(kernels_a[path]), trace_a),
            share_b=_share(np.trace(kernels_b[path]), trace_b),
            distance_centred=_distance_centred(start_kernels[path], kernels_b[path]),
        )
        rows.append(row)
    # Leaves are parts of one vector: their norms add in squares.
    total = LeafMovement(
        path=ALL,
        size=sum(row.size for row in rows),
        norm=float(np.sqrt(sum(row.norm**2 for row in rows))),
        moved=float(np.sqrt(sum(row.moved**2 for row in rows))),
        share_a=1.0,
        share_b=1.0,
    )
    return (*rows, total)


def total_movement(movement: tuple[LeafMovement, ...]) -> dict[str, int | float]:
    """The motion of all parameters together, by name."""
    everything = movement[-1]
    numbers = {"moved": everything.moved}
    if everything.relative is not None:
        numbers["moved_relative"] = everything.relative
    return numbers


def _distance_centred(a: Float[np.ndarray, "n n"], b: Float[np.ndarray, "n n"]) -> float | None:
    """S_c between two kernels of one leaf; None where one of them is the same for all examples."""
    for kernel in (a, b):
        # H K H with H = I - 1 1^T / n: the mean over examples removed on both sides.
        centred = kernel - kernel.mean(0) - kernel.mean(1)[:, None] + kernel.mean()
        if not np.linalg.norm(centred) > RESOLUTION * np.linalg.norm(kernel):
            return None
    return float(drift(a, b).distance_centred)


def _share(part: float, total: float) -> float:
    """A part of a trace; NaN where the kernel is zero."""
    return float(part / total) if total > 0 else math.nan
