"""The single numbers of a comparison, by the names of `ntkdiag.quantities`.

What is not known is NaN. Texts, arrays and lists are left out.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from ntkdiag.scalars import nan_if_unknown

Comparison: TypeAlias = Any  # a ntkdiag.comparison.Comparison, which imports this file

# The names of numbers of `drift` and of `prediction`, and their fields.
DRIFT = {
    "drift": "relative",
    "drift_scale": "scale",
    "drift_rotation": "rotation",
    "drift_distance": "distance",
    "drift_distance_centred": "distance_centred",
}
PREDICTION = {
    "e1": "e1",
    "e2": "e2",
    "linearization_rms": "rms",
    "linearization_max": "max",
    "agreement": "agreement",
}
# Those of a side that go by longer names where they stand alone.
_LONGER = {
    "equal": "equal_outputs",
    "spread": "output_spread",
    "alignment_of_train": "train_alignment",
    "alignment_of_train_above": "train_alignment_above",
}
_ALIGNMENTS = (
    "alignment",
    "alignment_chance",
    "alignment_standard_deviation",
    "alignment_above",
)
# Entries of a side that are no numbers, even where they are not known.
_OF_OTHER_KINDS = ("label", "path", "label_power", "condition", "held_out")


def numbers_of_side(content: Mapping[str, Any]) -> dict[str, float]:
    """Those of one side, of what its `to_dict` has; of held-out examples they begin "held_out_"."""
    numbers: dict[str, float] = {"rank": float(len(content["eigenvalues"]))}
    held_out = content["held_out"]
    for name, value in content.items():
        if name not in _OF_OTHER_KINDS:
            # Beside held-out examples the labels are theirs.
            is_theirs = held_out is not None and name in _ALIGNMENTS
            _add(numbers, f"held_out_{name}" if is_theirs else name, value)
    for name, value in content["condition"].items():
        _add(numbers, _LONGER.get(str(name), str(name)), value)
    for name, value in (held_out or {}).items():
        _add(numbers, _LONGER.get(name, f"held_out_{name}"), value)
    return numbers


def numbers_between(comparison: Comparison) -> dict[str, float]:
    """Those of the change from A to B."""
    numbers: dict[str, float] = {}
    for name, field in DRIFT.items():
        numbers[name] = nan_if_unknown(getattr(comparison.drift, field))
    alone = comparison.kernels_alone
    if alone is not None:
        numbers["overlap"] = nan_if_unknown(alone.overlap)
        numbers["agreement_of_sides"] = nan_if_unknown(alone.agreement)
        return numbers
    for name, field in PREDICTION.items():
        numbers[name] = nan_if_unknown(getattr(comparison.prediction, field))
    everything = comparison.movement[-1]
    numbers["moved"] = float(everything.moved)
    numbers["moved_relative"] = nan_if_unknown(everything.relative)
    change = comparison.fixed_arrays
    if change is not None:
        numbers["share_of_fixed_arrays"] = nan_if_unknown(change.share_of_fixed_arrays)
        numbers["share_of_parameters"] = nan_if_unknown(change.share_of_parameters)
        drift = change.drift
        numbers["fixed_arrays_drift"] = nan_if_unknown(drift.relative)
        numbers["fixed_arrays_distance_centred"] = nan_if_unknown(drift.distance_centred)
    return numbers


def _add(numbers: dict[str, float], name: str, value: Any) -> None:
    """Note a value that is one number, or not known; texts and arrays are none."""
    is_text = isinstance(value, str)
    if value is None or (not is_text and np.ndim(value) == 0):
        numbers[name] = nan_if_unknown(value)
