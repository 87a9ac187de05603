"""What lies between two checkpoints beside the prediction: statistics, drift, motion of leaves.

Running statistics move in training, too, and change outputs and kernel without any change of the
features that the parameters make. So the way from A to B is cut in two, with theta the parameters
and s the fixed arrays:

    f(theta_A, s_A)  ->  f(theta_A, s_B)  ->  f(theta_B, s_B)
                 fixed arrays         parameters

Drift, e1 and the verdict, alignment included, are those of the second part, at the fixed arrays of
B. The first part has its own numbers here. Where the fixed arrays are the same, both begin at A and
nothing is added.

The kernel is a sum over the leaves of the parameters, Theta = sum_l J_l J_l^T, so each leaf has a
kernel of its own, and rotates by itself.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, PyTree

from ntkdiag.analysis import drift
from ntkdiag.analysis.alignment import alignment
from ntkdiag.analysis.degenerate import spread_over_examples
from ntkdiag.analysis.drift import Drift
from ntkdiag.engine import ntk
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.reduction import ReductionLike
from ntkdiag.measuring.fit import numbers_of_alignment
from ntkdiag.measuring.measure import Measured
from ntkdiag.measuring.probed_function import ProbedFunction
from ntkdiag.models.paths import leaves_by_path

RESOLUTION = 1e-5  # a centred kernel this small beside the kernel itself is rounding


@dataclasses.dataclass(frozen=True, eq=False)
class Start:
    """Where the change by the parameters begins: those of A, with the fixed arrays of B."""

    outputs: Float[np.ndarray, "n *o"]  # f(theta_A, s_B) on the probe
    kernel: Kernel  # the empirical NTK there
    # Spread of the outputs and, beside labels, alignment of the kernel there, of the held-out
    # examples if they were given; by name.
    numbers: dict[str, int | float]


def start_of(function: ProbedFunction, params: PyTree, kwargs: Mapping[str, PyTree]) -> Start:
    """Parameters evaluated with the fixed arrays of another checkpoint."""
    settings, labels, held_out = function.settings, function.labels, function.held_out

    def kernel_of(x: PyTree, reduction: ReductionLike) -> Kernel:
        return ntk(function.f, params, x, reduction=reduction, memory=settings.memory, **kwargs)

    outputs = function.outputs(params, kwargs, settings.x)
    kernel = kernel_of(settings.x, settings.reduction)
    numbers = {"output_spread": spread_over_examples(outputs.reshape(outputs.shape[0], -1))}
    # The alignment of the examples that the sides have theirs of.
    of_labels = labels if held_out is None else held_out.labels
    if of_labels is None or of_labels.flat_targets is None:
        return Start(outputs, kernel, numbers)
    name, of_targets = "alignment", kernel
    trained_on = held_out is None and settings.probes.train is not None
    if held_out is not None:
        name, of_targets = "held_out_alignment", kernel_of(held_out.x, held_out.reduction)
    aligned = alignment(of_targets, of_labels.flat_targets, trained_on=trained_on)
    numbers |= numbers_of_alignment(aligned, name)
    del numbers[f"{name}_above"]  # it follows from the others
    return Start(outputs, kernel, numbers)


def change_of_fixed_arrays(start: Start, before: Measured, after: Measured) -> dict[str, float]:
    """The part of the change that fixed arrays made, by name."""
    total = float(np.linalg.norm(after.outputs - before.outputs))
    numbers = {}
    if total > 0:
        by_fixed_arrays = float(np.linalg.norm(start.outputs - before.outputs))
        by_parameters = float(np.linalg.norm(after.outputs - start.outputs))
        numbers["share_of_fixed_arrays"] = by_fixed_arrays / total
        numbers["share_of_parameters"] = by_parameters / total
    moved = drift(before.kernel, start.kernel)
    numbers["fixed_arrays_drift"] = float(moved.relative)
    numbers["fixed_arrays_distance_centred"] = float(moved.distance_centred)
    return numbers


def numbers_of_drift(moved: Drift) -> dict[str, float]:
    """The motion of a kernel, by name."""
    return {
        "drift": float(moved.relative),
        "drift_scale": float(moved.scale),
        "drift_rotation": float(moved.rotation),
        "drift_distance": float(moved.distance),
        "drift_distance_centred": float(moved.distance_centred),
    }


def motion_of_leaves(
    before: Measured, after: Measured, start_kernels: Mapping[str, Float[np.ndarray, "n n"]]
) -> dict[str, np.ndarray]:
    """Of every leaf `[l]`: its size, how far it moved, how far its kernel rotated, by name.

    `start_kernels` are those of A with the fixed arrays of B. A leaf that started at zero has no
    relative motion, and one whose kernel is the same for all examples (the bias of the last layer)
    no distance: NaN.
    """
    leaves = leaves_by_path(before.params)
    leaves_after = leaves_by_path(after.params)
    norms, moved, distances = [], [], []
    for path, leaf in leaves.items():
        theta = np.asarray(leaf, np.float64)
        norms.append(np.linalg.norm(theta))
        moved.append(np.linalg.norm(np.asarray(leaves_after[path], np.float64) - theta))
        distances.append(_distance_centred(start_kernels[path], after.leaf_kernels[path]))
    norm = np.array(norms)
    return {
        "leaf_size": np.array([np.size(leaf) for leaf in leaves.values()]),
        "leaf_norm": norm,
        "leaf_moved": np.array(moved),
        "leaf_relative": np.array(moved) / np.where(norm > 0, norm, math.nan),
        "leaf_distance_centred": np.array(distances),
    }


def motion_of_all(of_leaves: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The motion of all parameters together, by name."""
    # Leaves are parts of one vector: their norms add in squares.
    moved = float(np.linalg.norm(of_leaves["leaf_moved"]))
    norm = float(np.linalg.norm(of_leaves["leaf_norm"]))
    return {"moved": moved} | ({"moved_relative": moved / norm} if norm > 0 else {})


def _distance_centred(a: Float[np.ndarray, "n n"], b: Float[np.ndarray, "n n"]) -> float:
    """S_c between two kernels of one leaf; NaN where one of them is the same for all examples."""
    for kernel in (a, b):
        # H K H with H = I - 1 1^T / n: the mean over examples removed on both sides.
        centred = kernel - kernel.mean(0) - kernel.mean(1)[:, None] + kernel.mean()
        if not np.linalg.norm(centred) > RESOLUTION * np.linalg.norm(kernel):
            return math.nan
    return float(drift(a, b).distance_centred)
