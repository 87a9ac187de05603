"""What other fixed arrays did between two sides, and what the parameters did, told apart.

Running statistics move in training, too, and change outputs and kernel without any change of the
features that the parameters make. So the way from A to B is cut in two, with theta the parameters
and s the fixed arrays:

    f(theta_A, s_A)  ->  f(theta_A, s_B)  ->  f(theta_B, s_B)
                 fixed arrays         parameters

Drift, e1 and the verdict, alignment included, are those of the second part, at the fixed arrays of
B. The first part has its own numbers here. Where the fixed arrays are the same, both begin at A and
nothing is added.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Float, PyTree

from ntkdiag.analysis import drift
from ntkdiag.analysis.degenerate import spread_over_examples
from ntkdiag.analysis.drift import Drift
from ntkdiag.comparison.load import Side
from ntkdiag.comparison.restore import are_equal, random_streams
from ntkdiag.engine import ntk
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.reduction import ReductionLike
from ntkdiag.measuring.kernel_regression import fit_alignment, numbers_of_alignment
from ntkdiag.measuring.probed_function import ProbedFunction


@dataclasses.dataclass(frozen=True, eq=False)
class Start:
    """Where the change by the parameters begins: those of A, with the fixed arrays of B."""

    f: Callable[..., PyTree]  # the function of these fixed arrays
    params: PyTree  # the parameters of A
    outputs: Float[np.ndarray, "n o"]  # `[n o]` f(theta_A, s_B) on the probe
    kernel: Kernel  # the empirical NTK there
    # Spread of the outputs and, beside labels, alignment of the kernel there, of the held-out
    # examples if they were given; by name.
    numbers: dict[str, int | float]


def differing_fixed_arrays(a: Side, b: Side) -> tuple[str, ...]:
    """Paths of the fixed arrays that are not the same on both sides."""
    fixed_a = a.functional.fixed
    fixed_b = b.functional.fixed
    if a.functional.apply is b.functional.apply:
        return ()
    # Where nothing is drawn at random, keys and counts of random streams do nothing.
    passed_over = set()
    if a.functional.mode == b.functional.mode == "eval":
        passed_over = random_streams(fixed_a) | random_streams(fixed_b)
    paths = dict.fromkeys([*fixed_a, *fixed_b])  # in order, each once
    differing = []
    for path in paths:
        is_in_both = path in fixed_a and path in fixed_b
        are_the_same = is_in_both and are_equal(fixed_a[path], fixed_b[path])
        if path not in passed_over and not are_the_same:
            differing.append(path)
    return tuple(differing)


def start_of(function: ProbedFunction, params: PyTree, kwargs: Mapping[str, PyTree]) -> Start:
    """Parameters evaluated with the fixed arrays that a function, or its arguments, hold."""
    settings, labels, held_out = function.settings, function.labels, function.held_out
    f = functools.partial(function.f, **kwargs) if kwargs else function.f

    def kernel_of(x: PyTree, reduction: ReductionLike) -> Kernel:
        return ntk(function.f, params, x, reduction=reduction, memory=settings.memory, **kwargs)

    outputs = function.outputs(params, kwargs, settings.x)
    kernel = kernel_of(settings.x, settings.reduction)
    flat = outputs.reshape(outputs.shape[0], -1)
    numbers = {"output_spread": spread_over_examples(flat)}
    # The alignment of the examples that the sides have theirs of.
    held_out_targets = None if held_out is None else held_out.labels.flat_targets
    targets = None if labels is None else labels.flat_targets
    aligned = None
    name = "alignment" if held_out is None else "held_out_alignment"
    if held_out is not None and held_out_targets is not None:
        of_held_out = kernel_of(held_out.x, held_out.reduction)
        aligned = fit_alignment(of_held_out, held_out_targets, trained_on=False)
    elif held_out is None and targets is not None:
        trained_on = settings.probes.train is not None
        aligned = fit_alignment(kernel, targets, trained_on=trained_on)
    if aligned is not None:
        numbers |= numbers_of_alignment(aligned, name)
        del numbers[f"{name}_above"]  # it follows from the others
    return Start(f, params, flat, kernel, numbers)


def change_of_fixed_arrays(
    start: Start,
    kernel_before: Kernel,
    outputs_before: Float[np.ndarray, "n o"],
    outputs_after: Float[np.ndarray, "n o"],
) -> dict[str, int | float]:
    """The part of the change that fixed arrays made, by name."""
    whole = _size(outputs_after - outputs_before)
    numbers = {}
    if whole > 0:
        numbers["share_of_fixed_arrays"] = _size(start.outputs - outputs_before) / whole
        numbers["share_of_parameters"] = _size(outputs_after - start.outputs) / whole
    moved = drift(kernel_before, start.kernel)
    numbers["fixed_arrays_drift"] = float(moved.relative)
    numbers["fixed_arrays_distance_centred"] = float(moved.distance_centred)
    return numbers


def numbers_of_drift(moved: Drift) -> dict[str, int | float]:
    """The motion of a kernel, by name."""
    return {
        "drift": float(moved.relative),
        "drift_scale": float(moved.scale),
        "drift_rotation": float(moved.rotation),
        "drift_distance": float(moved.distance),
        "drift_distance_centred": float(moved.distance_centred),
    }


def _size(outputs: Float[np.ndarray, "n o"]) -> float:
    """||f|| over examples and outputs."""
    return float(np.linalg.norm(outputs))
