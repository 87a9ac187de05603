"""What one measurement holds."""

import dataclasses
import enum
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from ntkdiag import display
from ntkdiag.nouns import pytree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

QUANTITIES = (
    "eigenvalues",
    "trace",
    "participation_ratio",
    "drift",
    "distance_centred",
    "alignment",
    "alignment_chance",
    "alignment_standard_deviation",
    "alignment_above",
    "critical_learning_rate",
    "margin",
)

# What each number but the eigenvalues says, where a measurement shows itself.
_MEANINGS = {
    "trace": "sum of all eigenvalues",
    "participation_ratio": "effective number of modes",
    "drift": "relative change since the first measurement",
    "distance_centred": "change of direction since then, centred",
    "alignment": "centred kernel-target alignment with the labels",
    "alignment_chance": "its mean over permuted labels",
    "alignment_standard_deviation": "over permuted labels",
    "alignment_above": "(alignment - chance) / (1 - chance)",
    "critical_learning_rate": "descent on the quadratic model of the loss diverges above it",
    "margin": "learning rate over the critical one",
}


class Status(enum.IntEnum):
    """What became of a measurement."""

    UNMEASURED = 0
    MEASURED = 1
    NON_FINITE = 2  # the kernel or the outputs hold NaN or infinity
    FIXED_MOVED = 3  # arrays the measured function holds fixed have other values in training


@pytree("step", "status", *QUANTITIES)
@dataclasses.dataclass(frozen=True, eq=False)
class Measurement:
    """The diagnostics of one step; NaN where a quantity does not exist or could not be measured.

    Every number is that of the kernel the convention record names ("reduction"): the full kernel
    Theta = J J^T of shape [(N C) (N C)], or a reduction of it to [N N]. The arrays are of JAX
    inside a compiled step, and of numpy where a `Monitor` returns them.

    Attributes:
        step: The step the parameters belong to.
        status: 0 not measured, 1 measured, 2 NaN or infinity in kernel or outputs, 3 arrays that
            the measured function holds fixed have other values in training.
        eigenvalues: The largest eigenvalues, descending, `[top_k]`; NaN below the noise floor of
            the kernel.
        trace: Sum of all eigenvalues.
        participation_ratio: (sum lambda)^2 / sum lambda^2, the effective number of modes.
        drift: ||K_t - K_0||_F / ||K_0||_F, with K_0 the kernel of the first measurement.
        distance_centred: 1 - cosine of the centred K_t and K_0: change of direction alone.
        alignment: Centred kernel-target alignment with the labels.
        alignment_chance: Its mean over all permutations of the labels among the examples.
        alignment_standard_deviation: Its standard deviation over them.
        alignment_above: (alignment - chance) / (1 - chance): 0 at chance, 1 at most.
        critical_learning_rate: The learning rate above which descent on the quadratic model of the
            loss diverges.
        margin: learning rate / critical learning rate; about 1 at the edge of stability.
        alignment_reduction: Reduction of the kernel the alignment is of: that of another one is
            another number.
    """

    step: Int[Array | np.ndarray, ""]
    status: Int[Array | np.ndarray, ""]
    eigenvalues: Float[Array | np.ndarray, " top_k"]
    trace: Float[Array | np.ndarray, ""]
    participation_ratio: Float[Array | np.ndarray, ""]
    drift: Float[Array | np.ndarray, ""]
    distance_centred: Float[Array | np.ndarray, ""]
    alignment: Float[Array | np.ndarray, ""]
    alignment_chance: Float[Array | np.ndarray, ""]
    alignment_standard_deviation: Float[Array | np.ndarray, ""]
    alignment_above: Float[Array | np.ndarray, ""]
    critical_learning_rate: Float[Array | np.ndarray, ""]
    margin: Float[Array | np.ndarray, ""]
    alignment_reduction: str = "full"

    def __repr__(self) -> str:
        return display.described(self)

    def values(self, name: str = "ntk") -> dict[str, float | int | list[float]]:
        """The numbers under the names the writers see: "ntk_trace", "ntk_eigenvalues", ...

        Args:
            name: Replaces "ntk" in every name.

        Returns:
            A float, or a list of floats for the eigenvalues, under each name; `<name>_status` is
            the status.
        """
        numbers: dict[str, float | int | list[float]] = {}
        for quantity in QUANTITIES:
            value = np.asarray(getattr(self, quantity), np.float64)
            numbers[f"{name}_{quantity}"] = value.tolist()
        numbers[f"{name}_status"] = int(self.status)
        return numbers

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """The largest eigenvalues over their index, on a logarithmic axis.

        Args:
            ax: Axes of matplotlib to draw on; a new figure without.

        Returns:
            The axes.

        Raises:
            MissingDependencyError: matplotlib is not installed.

        Cost: drawing.
        """
        ax = display.axes_to_draw_on(ax)
        eigenvalues = np.asarray(self.eigenvalues)
        ax.plot(np.arange(1, len(eigenvalues) + 1), eigenvalues, "o-")
        # NaN, below the noise floor, is not drawn; without anything above it no logarithm exists.
        if (eigenvalues > 0).any():
            ax.set_yscale("log")
        ax.set_xlabel("index")
        ax.set_ylabel("eigenvalue")
        ax.set_title(f"Largest eigenvalues at step {int(self.step)}")
        return ax

    def to_dict(self) -> dict[str, Any]:
        """Plain values as JSON has them: the status by name, None for what is NaN."""
        numbers = {name: display.plain(getattr(self, name)) for name in QUANTITIES}
        return {
            "step": int(self.step),
            "status": Status(int(self.status)).name,
            "alignment_reduction": self.alignment_reduction,
            **numbers,
        }

    def _repr_html_(self) -> str:
        """The numbers as a table, for notebooks."""
        eigenvalues = np.asarray(self.eigenvalues)
        shown = "  ".join(f"{value:.4g}" for value in eigenvalues)
        rows = [
            ("status", Status(int(self.status)).name, ""),
            ("eigenvalues", shown, f"the largest {len(eigenvalues)}; NaN below the noise floor"),
        ]
        for name, meaning in _MEANINGS.items():
            if name == "alignment":
                meaning += f", {self.alignment_reduction} kernel"
            rows.append((name.replace("_", " "), f"{float(getattr(self, name)):.4g}", meaning))
        return display.html_table(f"Kernel at step {int(self.step)}", rows)


def unmeasured(top_k: int, dtype: DTypeLike) -> Measurement:
    """The measurement before the first one: NaN of the right shapes.

    Args:
        top_k: Number of eigenvalues.
        dtype: Dtype of the numbers.

    Returns:
        A `Measurement` with status UNMEASURED and step -1.
    """
    numbers: dict[str, Any] = {name: jnp.full((), jnp.nan, dtype) for name in QUANTITIES}
    numbers["eigenvalues"] = jnp.full((top_k,), jnp.nan, dtype)
    step = jnp.asarray(-1, jnp.int32)
    return Measurement(step, jnp.asarray(Status.UNMEASURED, jnp.int32), **numbers)
