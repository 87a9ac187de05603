"""What the linearized model outputs after training."""

import dataclasses
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from ntkdiag import display, errors
from ntkdiag._jax import Tracer
from ntkdiag.pytree_dataclass import pytree
from ntkdiag.scalars import AnyScalar

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@pytree("train", "test", "unlearned", "unresolved")
@dataclasses.dataclass(frozen=True, eq=False)
class Prediction:
    """Outputs of the linearized model.

    Attributes:
        train: `[... n o]`, shaped like y behind the axes of the time.
        test: `[... m o]` likewise; None without a test kernel.
        unlearned: Root mean square of the part of the initial residual that lies in modes whose
            eigenvalue is not resolved, and stays at t = infinity; None where it was not computed.
        unresolved: Number of those modes; None where it was not computed.
    """

    train: Float[Array, "..."]
    test: Float[Array, "..."] | None = None
    unlearned: AnyScalar | None = None
    unresolved: Int[Array, ""] | None = None

    def to_dict(self) -> dict[str, display.PlainValue]:
        """Outputs and what was left out, as plain JSON values."""
        return display.plain({f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    @errors.public
    def plot(self, time: jax.typing.ArrayLike, ax: "Axes | None" = None) -> "Axes":
        """Draw every output over time: training examples as full lines, test examples dashed.

        Args:
            time: `[T]`, the times or numbers of steps that were predicted.
            ax: Axes of matplotlib; None makes a figure.

        Returns:
            The axes.

        Raises:
            InvalidInputError: When the prediction is not one of a vector of times, or of another.
            MissingDependencyError: Without matplotlib.
        """
        times = np.asarray(time, np.float64)
        if times.ndim != 1 or np.shape(self.train)[:1] != times.shape:
            raise errors.InvalidInputError(
                expected="`time` [T] beside outputs [T n o]",
                got=f"shapes {times.shape} and {np.shape(self.train)}",
                do="Predict at a vector of times, and pass the same here.",
            )
        axes = display.axes_to_draw_on(ax)
        is_finite = np.isfinite(times)  # infinity has no place on an axis
        for outputs, style, name in ((self.train, "-", "train"), (self.test, "--", "test")):
            if outputs is None:
                continue
            lines = np.asarray(outputs).reshape(times.size, -1)[is_finite]  # [T n o] -> [T (n o)]
            drawn = axes.plot(times[is_finite], lines, style, linewidth=1)
            drawn[0].set_label(name)
        axes.set(xlabel="time or steps", ylabel="outputs of the linearized model")
        axes.set_xscale("symlog", linthresh=1.0)
        axes.legend()
        return axes

    def __repr__(self) -> str:
        test = "" if self.test is None else f", test {list(np.shape(self.test))}"
        return f"Prediction(train {list(np.shape(self.train))}{test}{self._left_out()})"

    def _left_out(self) -> str:
        """What was not learned, in words, where it is known."""
        if self.unlearned is None or isinstance(self.unlearned, Tracer):
            return ""
        return f", {self.unresolved} modes unresolved, {float(self.unlearned):.3g} unlearned"
