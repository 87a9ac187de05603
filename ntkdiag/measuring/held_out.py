"""What one side makes of examples it was not trained on."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float, PyTree

from ntkdiag.analysis.alignment import Alignment
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.reduction import ReductionLike
from ntkdiag.measuring.kernel_regression import ProbeLabels, averaged_over_outputs


@dataclasses.dataclass(frozen=True, eq=False)
class HeldOutProbe:
    """Held-out examples beside those of `train`.

    Attributes:
        x: Examples, N on the leading axis of every leaf.
        labels: Their labels, read beside the outputs of the model.
        reduction: Reduction of their kernel.
    """

    x: PyTree
    labels: ProbeLabels
    reduction: ReductionLike

    def reduced_alike(self, kernel: Kernel) -> Kernel:
        """A kernel of `train`, reduced as theirs: alignments of two reductions do not compare."""
        return averaged_over_outputs(kernel) if self.reduction == "mean" else kernel


@dataclasses.dataclass(frozen=True, eq=False)
class HeldOut:
    """One side on held-out examples, beside what it is on those of `train`.

    Attributes:
        kernel: The empirical NTK of the held-out examples.
        outputs: `[N C]` model outputs.
        loss: Loss on them; None where no loss was named.
        accuracy: Share of labels that the outputs decide for; None unless labels are decisions.
        alignment_of_train: The alignment of the examples of `train`, of a kernel of the same
            reduction as that of the held-out ones; None where those of `train` have no labels.
    """

    kernel: Kernel
    outputs: Float[np.ndarray, "n o"]
    loss: float | None
    accuracy: float | None
    alignment_of_train: Alignment | None

    def to_dict(self) -> dict[str, Any]:
        """The numbers by name; the alignment of the held-out examples is with those of the side."""
        of_train = self.alignment_of_train
        return {
            "loss": self.loss,
            "accuracy": self.accuracy,
            "alignment_of_train": None if of_train is None else of_train.value,
            "alignment_of_train_chance": None if of_train is None else of_train.chance,
            "alignment_of_train_standard_deviation": (
                None if of_train is None else of_train.standard_deviation
            ),
            "alignment_of_train_above": None if of_train is None else of_train.above,
        }
