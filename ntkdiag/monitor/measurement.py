"""What one measurement holds: numbers by name, each with its error bar."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from ntkdiag import display
from ntkdiag.estimate import Estimate
from ntkdiag.pytree_dataclass import pytree
from ntkdiag.quantities import GENERAL, QUANTITIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Status(enum.IntEnum):
    """What became of a measurement."""

    UNMEASURED = 0
    MEASURED = 1
    NON_FINITE = 2  # the kernel, the gradient or the outputs hold NaN or infinity
    POSTPONED = 4  # of a state: the gradient was not finite, and the next step is measured


@pytree("step", "status", "estimates")
@dataclasses.dataclass(frozen=True, eq=False)
class Measurement:
    """The numbers of one step; NaN where one does not exist or could not be measured.

    Which numbers there are depends on the instruments. Each is an attribute, `measurement.margin`;
    `measurement["margin"]` is the same with its error bar. What they mean, and what they are of,
    stands in the convention record. The arrays are of numpy where a `Monitor` returns them.

    Attributes:
        step: The step the parameters belong to.
        status: 0 not measured, 1 measured, 2 NaN or infinity in kernel, gradient or outputs.
        estimates: Name -> `Estimate`, a number or an array with the ends of a 95 % interval.
        alignment_reduction: Reduction of the kernel the alignment is of: that of another one is
            another number.
        layers: Names of the layers that arrays by layer are of.
    """

    step: Int[Array | np.ndarray, ""]
    status: Int[Array | np.ndarray, ""]
    estimates: dict[str, Estimate]
    alignment_reduction: str = "full"
    layers: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> jax.Array | np.ndarray:
        """A number by its name, without the error bar."""
        # While a copy is being put together there are no estimates yet.
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
        """The numbers as the writers see them: "trace", "trace_lower", ...

        Returns:
            A float, or a list of floats for an array, under each name; what is estimated also has
            the ends of its 95 % interval, `_lower` and `_upper`. `status` is the status.
        """
        return {**plain_numbers(flat(self.estimates)), "status": int(self.status)}

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """The largest eigenvalues, of the kernel or of the curvature, on a logarithmic axis.

        Args:
            ax: Axes of matplotlib to draw on; a new figure without.

        Returns:
            The axes.

        Raises:
            MissingDependencyError: matplotlib is not installed.

        Cost: drawing.
        """
        ax = display.axes_to_draw_on(ax)
        name = "eigenvalues" if "eigenvalues" in self.estimates else "curvatures"
        spectrum = np.atleast_1d(np.asarray(getattr(self, name)))
        ax.plot(np.arange(1, len(spectrum) + 1), spectrum, "o-")
        # NaN, below the noise floor, is not drawn; without anything above it no logarithm exists.
        if (spectrum > 0).any():
            ax.set_yscale("log")
        ax.set_xlabel("index")
        ax.set_ylabel(name.removesuffix("s"))
        ax.set_title(f"Largest {name} at step {int(self.step)}")
        return ax

    def to_dict(self) -> dict[str, display.PlainValue]:
        """Plain values as JSON has them: the status by name, None for what is NaN."""
        numbers = {name: display.plain(value) for name, value in flat(self.estimates).items()}
        return {
            "step": int(self.step),
            "status": Status(int(self.status)).name,
            "alignment_reduction": self.alignment_reduction,
            **numbers,
        }

    def _repr_html_(self) -> str:
        """The numbers as a table, for notebooks."""
        rows = [("status", Status(int(self.status)).name, "")]
        for name, estimate in self.estimates.items():
            known = QUANTITIES.get(name)
            fields = GENERAL | {"reduction": self.alignment_reduction}
            meaning = "" if known is None else known.filled(fields).meaning
            rows.append((name.replace("_", " "), _shown(estimate), meaning))
        return display.html_table(f"Step {int(self.step)}", rows)


def flat(estimates: Mapping[str, Estimate], prefix: str = "") -> dict[str, jax.Array | np.ndarray]:
    """Values, and ends of intervals, under names of their own; `prefix` comes before each."""
    arrays = {}
    for quantity, estimate in estimates.items():
        arrays[f"{prefix}{quantity}"] = estimate.value
        if not estimate.is_exact:
            arrays[f"{prefix}{quantity}_lower"] = estimate.lower
            arrays[f"{prefix}{quantity}_upper"] = estimate.upper
    return arrays


def plain_numbers(
    arrays: Mapping[str, jax.Array | np.ndarray],
) -> dict[str, float | int | list[float]]:
    """Floats, and lists of them."""
    return {name: np.asarray(array, np.float64).tolist() for name, array in arrays.items()}


def _shown(estimate: Estimate) -> str:
    """A number with its interval, or the first few of an array."""
    values = np.atleast_1d(np.asarray(estimate.value))
    shown = "  ".join(f"{value:.4g}" for value in values[:8])
    if values.size > 8:
        return f"{shown}  ... ({values.size})"
    if values.size == 1 and not estimate.is_exact:
        lower = np.asarray(estimate.lower).item()
        upper = np.asarray(estimate.upper).item()
        return f"{shown}  [{lower:.3g}, {upper:.3g}]"
    return shown


def unmeasured(estimates: Mapping[str, Estimate] | None = None) -> Measurement:
    """The measurement before the first one: NaN in the shapes of these estimates."""
    blank = jax.tree.map(
        lambda leaf: jnp.full(leaf.shape, jnp.nan, leaf.dtype), dict(estimates or {})
    )
    step = jnp.asarray(-1, jnp.int32)
    return Measurement(step, jnp.asarray(Status.UNMEASURED, jnp.int32), blank)
