"""A comparison as plain JSON values."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ntkdiag.comparison.comparison import Comparison
    from ntkdiag.comparison.measured import Measured
    from ntkdiag.comparison.parameter_movement import LeafMovement

_DRIFT = ("relative", "scale", "rotation", "distance", "distance_centred")
_PREDICTION = ("rms", "max", "e1", "e2", "agreement")


def comparison_as_dict(comparison: "Comparison") -> dict[str, Any]:
    """Every number of a comparison under its name.

    Args:
        comparison: The comparison.

    Returns:
        Nested dictionaries, lists, strings, finite numbers and None.
    """
    content = {
        "verdict": vars(comparison.verdict),
        "facts": comparison.facts,
        "notes": list(comparison.notes),
        "a": _side(comparison.a),
        "b": _side(comparison.b),
        "drift": {name: getattr(comparison.drift, name) for name in _DRIFT},
        "linearization": {name: getattr(comparison.prediction, name) for name in _PREDICTION},
        "movement": [_leaf(row) for row in comparison.movement],
    }
    return _plain(content)


def _side(side: "Measured") -> dict[str, Any]:
    spectrum = side.spectrum
    return {
        "label": side.label,
        "path": side.path,
        "step": side.step,
        "fixed_state": side.fixed_state,
        "params_sha256": side.params_sha256,
        "eigenvalues": spectrum.eigenvalues[: spectrum.rank],
        "unresolved_eigenvalues": spectrum.size - spectrum.rank,
        "noise_floor": spectrum.noise_floor,
        "spectrum_status": spectrum.status,
        "trace": side.trace,
        "participation_ratio": spectrum.participation_ratio,
        "entropy_rank": spectrum.entropy_rank,
        "alignment": side.alignment,
        "label_power": side.label_power,
        "loss": side.loss,
        "accuracy": side.accuracy,
        "critical_learning_rate": side.critical_learning_rate,
        "stability_margin": side.margin,
    }


def _leaf(row: "LeafMovement") -> dict[str, Any]:
    return {**vars(row), "relative": row.relative}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if np.ndim(value) > 0:
        return [_plain(item) for item in np.asarray(value, np.float64).tolist()]
    return float(value) if math.isfinite(value) else None
