"""What is kept of one checkpoint of a run: a row of numbers, and some arrays."""

import dataclasses
import math
from typing import Any

import numpy as np
from jaxtyping import Float

from ntkdiag.kernel.kernel import Kernel
from ntkdiag.measuring.measured import Measured
from ntkdiag.measuring.modes_overlap import leading_modes

# Counts, and numbers that are 1 for yes.
_WHOLE = ("rank", "dead", "equal_outputs")


@dataclasses.dataclass(frozen=True, eq=False)
class CheckpointNumbers:
    """One checkpoint of a run by itself, as it is stored."""

    row: dict[str, Any]  # numbers by name, as JSON has them
    kernel: Kernel  # the kernel on the probe
    eigenvalues: Float[np.ndarray, " k"]  # `[k]` of the kernel, descending
    # `[k m]` leading eigenvectors of the centred kernel, in columns; zeros where there is none that
    # is resolved.
    modes: Float[np.ndarray, "k m"]
    outputs: Float[np.ndarray, "n *o"]  # `[n *o]` outputs on the probe

    @staticmethod
    def of(measured: Measured, outputs_of_one: tuple[int, ...]) -> "CheckpointNumbers":
        """What is kept of a measurement: there will be one for each checkpoint."""
        kernel = measured.kernel
        return CheckpointNumbers(
            row={name: _known(value) for name, value in _row(measured).items()},
            kernel=dataclasses.replace(kernel, array=np.asarray(kernel.array), leaves=None),
            eigenvalues=np.asarray(measured.spectrum.eigenvalues),
            modes=leading_modes(kernel.array, float(measured.spectrum.noise_floor)),
            outputs=measured.outputs.reshape(-1, *outputs_of_one),
        )

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name, as they are stored."""
        return {
            "kernel": np.asarray(self.kernel.array),
            "eigenvalues": self.eigenvalues,
            "modes": self.modes,
            "outputs": self.outputs,
        }


def _row(measured: Measured) -> dict[str, Any]:
    """The numbers that were asked for, by their names in `ntkdiag.quantities`, as JSON has them."""
    row: dict[str, Any] = dict(measured.known_numbers)
    row.pop("step", None)
    row |= {name: int(row[name]) for name in _WHOLE}
    row["params_sha256"] = measured.params_sha256
    row["spectrum_status"] = measured.spectrum.status
    row["leaf_shares"] = measured.leaf_shares
    if measured.update_norm is not None:
        row["margin_status"] = measured.margin_status
    if measured.label_doubts is not None:
        row["label_doubts"] = measured.label_doubts.tolist()
    if measured.self_influence is not None:
        row["self_influence"] = measured.self_influence.tolist()
    return row


def _known(value: Any) -> Any:
    """NaN for infinity, which JSON does not have either."""
    return math.nan if isinstance(value, float) and math.isinf(value) else value
