"""The single numbers of the change from A to B, by the names of `ntkdiag.quantities`.

What is not known is NaN.
"""

from typing import Any, TypeAlias

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


def numbers_between(comparison: Comparison) -> dict[str, float]:
    """Those of the change from A to B."""
    numbers: dict[str, float] = {}
    for name, field in DRIFT.items():
        numbers[name] = nan_if_unknown(getattr(comparison.drift, field))
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
