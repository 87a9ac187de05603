"""What the linearized model outputs after training."""

import dataclasses
import functools
from typing import Any

import jax


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["train", "test", "unlearned", "unresolved"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Prediction:
    """Outputs of the linearized model.

    Attributes:
        train: `[... n o]`, shaped like y behind the axes of the time.
        test: `[... m o]` likewise; None without a test kernel.
        unlearned: Root mean square of the part of the initial residual that lies in modes whose eigenvalue is not
            resolved, and stays at t = infinity; None where it was not computed.
        unresolved: Number of those modes; None where it was not computed.
    """

    train: Any
    test: Any = None
    unlearned: Any = None
    unresolved: Any = None
