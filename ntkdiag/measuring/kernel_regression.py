"""How well kernel and outputs of one side fit the labels of one probe.

A kernel after training knows the labels it was trained on. So alignment, label power and
leave-one-out are of held-out examples where there are some, and of all that is known of examples
trained on, the alignment alone is put beside it: the gap between the two is what the kernel owes
to having seen these very examples.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PyTree

from ntkdiag.analysis.alignment import Alignment, alignment
from ntkdiag.analysis.generalization import LeaveOneOut, leave_one_out
from ntkdiag.analysis.modes import modes
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.losses import Loss
from ntkdiag.measuring.decisions import accuracy, class_numbers, decision_rule
from ntkdiag.measuring.labels_of_probes import ProbeLabels, averaged_over_outputs

# Ridge of leave-one-out in units of the mean diagonal entry of the kernel, as the baselines have.
RELATIVE_RIDGE = 1e-3


def fit_kernel(
    kernel: Kernel,
    targets: Float[np.ndarray, "n o"],
    *,
    trained_on: bool,
    prefix: str = "",
    whole: bool = True,
) -> tuple[dict[str, int | float], dict[str, np.ndarray]]:
    """Numbers and arrays of a kernel beside labels, of examples that were trained on or not."""
    aligned = fit_alignment(kernel, targets, trained_on=trained_on)
    numbers = numbers_of_alignment(aligned, f"{prefix}alignment")
    if not whole:
        return numbers, {}
    numbers["leave_one_out"] = _relative_error(kernel, targets)
    # Centred: a network with biases would show little more than its constant mode.
    label_power = np.asarray(modes(kernel, targets, centred=True).label_power)
    return numbers, {"label_power": label_power}


def numbers_of_alignment(aligned: Alignment, name: str) -> dict[str, int | float]:
    """An alignment beside its chance level, under names that begin alike."""
    return {
        name: float(aligned.value),
        f"{name}_chance": float(aligned.chance),
        f"{name}_standard_deviation": float(aligned.standard_deviation),
        f"{name}_above": float(aligned.above),
    }


def fit_alignment(
    kernel: Kernel, targets: Float[np.ndarray, "n o"], *, trained_on: bool
) -> Alignment:
    """The alignment beside its chance level, as plain numbers."""
    return jax.tree.map(float, alignment(kernel, targets, trained_on=trained_on))


def doubts_of_labels(
    kernel: Kernel, targets: Float[np.ndarray, "n o"]
) -> Float[np.ndarray, " n"] | None:
    """By how much all other examples contradict the label of each; None without classes."""
    classes = class_numbers(targets)
    left_out = None if classes is None else _left_out(kernel, targets)
    if classes is None or left_out is None:
        return None
    # Targets and predictions both lack the mean over examples.
    return label_doubts(targets - np.asarray(left_out.residuals, np.float64), classes)


def label_doubts(
    predictions: Float[np.ndarray, "n c"], classes: Int[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """The doubt about each label, from predictions by all other examples."""
    rows = np.arange(len(classes))
    others = predictions.copy()
    others[rows, classes] = -np.inf
    return others.max(axis=1) - predictions[rows, classes]


def _relative_error(kernel: Kernel, targets: Float[np.ndarray, "n o"]) -> float:
    """Mean squared residual over the variance of the labels; NaN for a kernel of zero."""
    left_out = _left_out(kernel, targets)
    if left_out is None:
        return math.nan
    centred = targets - targets.mean(axis=0)
    return float(left_out.mse) / float(np.mean(np.sum(centred**2, axis=1)))


def _left_out(kernel: Kernel, targets: Float[np.ndarray, "n o"]) -> LeaveOneOut | None:
    """Leave-one-out on centred labels; None for a kernel of zero, which predicts nothing."""
    averaged = averaged_over_outputs(kernel)
    ridge = RELATIVE_RIDGE * float(np.mean(np.diagonal(np.asarray(averaged.matrix, np.float64))))
    if not ridge > 0:
        return None
    return leave_one_out(averaged, targets - targets.mean(axis=0), ridge)


def fit_outputs(
    outputs: Float[np.ndarray, "n *o"], labels: ProbeLabels, loss: Loss | None, prefix: str = ""
) -> dict[str, int | float]:
    """Loss and accuracy of outputs, as far as a loss is named and labels are decisions."""
    numbers = {}
    if loss is not None:
        numbers[f"{prefix}loss"] = float(_loss(outputs, labels.y, loss))
    if labels.targets is not None:
        rule = decision_rule(outputs.shape, labels.targets, loss)
        share = accuracy(outputs, labels.targets, rule)
        if share is not None:
            numbers[f"{prefix}accuracy"] = share
    return numbers


@keeps_float64
def _loss(outputs: Float[np.ndarray, "n *o"], y: PyTree, loss: Loss) -> Float[jax.Array, ""]:
    """The loss on a probe, in float64 like the outputs."""
    return loss(jnp.asarray(outputs), loss.read(y, outputs.shape))
