"""What the linearized model outputs after training."""

import dataclasses

import numpy as np
from jaxtyping import Array, Float, Int

from ntkdiag import display
from ntkdiag.jaxtools.tracing import Tracer
from ntkdiag.pytree_dataclass import pytree
from ntkdiag.scalars import AnyScalar


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

    def __repr__(self) -> str:
        test = "" if self.test is None else f", test {list(np.shape(self.test))}"
        left_out = ""
        if self.unlearned is not None and not isinstance(self.unlearned, Tracer):
            unlearned = float(self.unlearned)
            left_out = f", {self.unresolved} modes unresolved, {unlearned:.3g} unlearned"
        return f"Prediction(train {list(np.shape(self.train))}{test}{left_out})"
