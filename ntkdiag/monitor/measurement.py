"""One measurement: numbers by name, each with its error bar."""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int

from ntkdiag import display
from ntkdiag.estimate import Estimate
from ntkdiag.pytree_dataclass import pytree


class Status(enum.IntEnum):
    """The status of a measurement."""

    UNMEASURED = 0
    MEASURED = 1
    NON_FINITE = 2  # the kernel, the gradient or the outputs hold NaN or infinity
    POSTPONED = 4  # of a state: the gradient was not finite, and the next step is measured


@pytree("step", "status", "estimates")
@dataclasses.dataclass(frozen=True, eq=False)
class Measurement:
    """The numbers of one step; NaN where one does not exist or could not be measured.

    Which numbers there are depends on the instruments. Each is an attribute, `measurement.margin`;
    `measurement["margin"]` is the same with its error bar. A `Monitor` returns arrays of numpy.
    """

    step: Int[Array | np.ndarray, ""]  # the step the parameters belong to
    status: Int[Array | np.ndarray, ""]  # 1 measured, 2 NaN or infinity
    estimates: dict[str, Estimate]  # numbers or arrays by name, with the ends of a 95 % interval
    layers: tuple[str, ...] = ()  # names of the layers that arrays by layer are of

    def __getattr__(self, name: str) -> jax.Array | np.ndarray:
        """A number by its name, without the error bar."""
        # While a copy is being built there are no estimates yet.
        estimates = vars(self).get("estimates", {})
        if name in estimates:
            return estimates[name].value
        measured = ", ".join(estimates)
        raise AttributeError(f"{name} was not measured; there are {measured or 'no numbers'}")

    def __getitem__(self, name: str) -> Estimate:
        """A number with its error bar, by its name."""
        return self.estimates[name]

    def __repr__(self) -> str:
        shown = {"step": self.step, "status": self.status}
        shown |= {name: estimate.value for name, estimate in self.estimates.items()}
        fields = [f"{name}={display.short(value)}" for name, value in shown.items()]
        return f"Measurement({', '.join(fields)})"

    def values(self) -> dict[str, float | int | list[float]]:
        """The numbers as the writers see them: "trace", "trace_lower", "trace_upper", ..."""
        return {**plain_numbers(flat(self.estimates)), "status": int(self.status)}


def flat(estimates: Mapping[str, Estimate]) -> dict[str, jax.Array | np.ndarray]:
    """Values, and ends of intervals, under names of their own."""
    arrays = {}
    for quantity, estimate in estimates.items():
        arrays[quantity] = estimate.value
        if not estimate.is_exact:
            arrays[f"{quantity}_lower"] = estimate.lower
            arrays[f"{quantity}_upper"] = estimate.upper
    return arrays


def plain_numbers(
    arrays: Mapping[str, jax.Array | np.ndarray],
) -> dict[str, float | int | list[float]]:
    """Floats, and lists of them."""
    return {name: np.asarray(array, np.float64).tolist() for name, array in arrays.items()}


def by_part(numbers: Mapping[str, Any], layers: Sequence[str]) -> dict[str, Any]:
    """Every number under a name of its own: those of a list by layer, or by position."""
    parts: dict[str, Any] = {}
    for name, value in numbers.items():
        if np.ndim(value) == 0:
            parts[name] = value
            continue
        of_layers = name.startswith("layer_") and len(layers) == len(value)
        for part, number in zip(layers if of_layers else range(len(value)), value, strict=True):
            parts[f"{name}/{part}"] = number
    return parts
