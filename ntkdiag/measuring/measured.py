"""What is known of one set of parameters on the probes, as `measure` returns it."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from ntkdiag import errors
from ntkdiag.display import shortened
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.spectrum import Spectrum
from ntkdiag.quantities import quantity


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """One set of parameters on the probes: one side of a comparison, or a checkpoint of a run.

    `side["loss"]` is a number by its name in `ntkdiag.quantities`, NaN where it is not known, and
    `side["label_power"]` an array.
    """

    label: str  # name in tables
    path: str | None  # checkpoint path as given; None for values in memory
    step: int | None  # step number, where the checkpoint has one
    fixed_state: str  # where the arrays that are not parameters come from
    params_sha256: str  # SHA-256 of the parameters: path, dtype, shape and bytes of every leaf
    kernel: Kernel  # the empirical NTK on the probe
    spectrum: Spectrum  # its eigenvalues with their noise floor
    outputs: Float[np.ndarray, "n o"]  # `[N C]` model outputs
    # Every single number that was asked for, by its name in `ntkdiag.quantities`.
    numbers: Mapping[str, int | float]
    # The same of lists of numbers: leaf_shares `[l]`, in leaf order; label_power `[k]` and
    # label_doubts `[n]` beside labels; self_influence `[n]` where it was asked for.
    arrays: Mapping[str, np.ndarray]
    # Path -> `[n n]`, the kernel of each leaf traced over outputs; empty of a checkpoint of a run.
    leaf_kernels: dict[str, Float[np.ndarray, "n n"]]
    # That of the held-out examples; None unless they were given beside `train`.
    held_out_kernel: Kernel | None = None
    # "ok", or a sentence on what to know of the margin, or why there is none.
    margin_status: str = "ok"

    def __getitem__(self, name: str) -> Any:
        if name == "margin_status":  # the one name in the table that is a sentence
            return self.margin_status
        return number_named(name, self.numbers, self.arrays)

    def __repr__(self) -> str:
        known = [name for name in ("trace", "loss", "margin") if name in self.numbers]
        numbers = [f"{name} {self.numbers[name]:.4g}" for name in known]
        return f"Measured({self.label!r}: {', '.join(numbers)})"

    @property
    def row(self) -> dict[str, Any]:
        """What judgements look at: the numbers, shares of leaves, and the step."""
        row = {**self.numbers, "leaf_shares": self.arrays["leaf_shares"].tolist()}
        return row | {"step": self.step, "margin_status": self.margin_status}

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name, eigenvalues above the noise floor only; no kernels, no outputs."""
        return {
            "label": self.label,
            "path": self.path,
            "step": self.step,
            "fixed_state": self.fixed_state,
            "params_sha256": self.params_sha256,
            "spectrum_status": self.spectrum.status,
            "margin_status": self.margin_status,
            **self.numbers,
            "eigenvalues": self.spectrum.eigenvalues[: self.spectrum.rank],
            **self.arrays,
        }


def number_named(
    name: str, numbers: Mapping[str, int | float], arrays: Mapping[str, np.ndarray]
) -> int | float | np.ndarray:
    """A number or an array by name; NaN where it is not known, refused where it is none of ours."""
    if name in arrays:
        return arrays[name]
    if name not in numbers and quantity(name) is None:
        raise errors.InvalidInputError(
            expected=f"one of {', '.join([*numbers, *arrays])}",
            got=shortened(name),
            do="docs/quantities.md says what each is.",
        )
    return numbers.get(name, math.nan)
