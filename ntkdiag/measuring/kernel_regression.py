"""How well kernel and outputs of one side fit the labels of one probe.

A kernel after training knows the labels it was trained on. So alignment, label power and
leave-one-out are of held-out examples where there are some, and of all that is known of examples
trained on, the alignment alone is put beside it: the gap between the two is what the kernel owes
to having seen these very examples.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PyTree

from ntkdiag.analysis.alignment import Alignment, alignment
from ntkdiag.analysis.generalization import leave_one_out
from ntkdiag.analysis.modes import modes
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.losses import Loss
from ntkdiag.measuring.decisions import accuracy, class_numbers, decision_rule
from ntkdiag.measuring.labels_of_probes import ProbeLabels, averaged_over_outputs

# Ridge of leave-one-out in units of the mean diagonal entry of the kernel, as the baselines have.
RELATIVE_RIDGE = 1e-3


@dataclasses.dataclass(frozen=True, eq=False)
class KernelFit:
    """A kernel beside the labels of its examples."""

    alignment: Alignment  # centred kernel-target alignment, beside that of permuted labels
    # `[k]` cumulative label power C(k), kernel and labels centred.
    label_power: Float[np.ndarray, " k"] | None = None
    # Squared error of kernel regression on an example left out, over the variance of the labels: 1
    # is no better than their mean.
    leave_one_out: float | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class OutputFit:
    """The outputs of one side beside the labels of a probe."""

    loss: float | None  # loss on the probe; None where no loss was named
    # Share of labels that the outputs decide for; None unless labels are decisions.
    accuracy: float | None


def fit_kernel(
    kernel: Kernel, targets: Float[np.ndarray, "n o"], *, trained_on: bool, whole: bool = True
) -> KernelFit:
    """Measure a kernel beside labels, of examples that were trained on or not."""
    aligned = fit_alignment(kernel, targets, trained_on=trained_on)
    if not whole:
        return KernelFit(aligned)
    # Centred: a network with biases would show little more than its constant mode.
    return KernelFit(
        alignment=aligned,
        label_power=np.asarray(modes(kernel, targets, centred=True).label_power),
        leave_one_out=_leave_one_out(averaged_over_outputs(kernel), targets),
    )


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
    averaged = averaged_over_outputs(kernel)
    ridge = RELATIVE_RIDGE * float(np.mean(np.diagonal(np.asarray(averaged.matrix, np.float64))))
    if classes is None or not ridge > 0:
        return None
    residuals = leave_one_out(averaged, targets - targets.mean(axis=0), ridge).residuals
    # Targets and predictions both lack the mean over examples.
    return label_doubts(targets - np.asarray(residuals, np.float64), classes)


def label_doubts(
    predictions: Float[np.ndarray, "n c"], classes: Int[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """The doubt about each label, from predictions by all other examples."""
    rows = np.arange(len(classes))
    others = predictions.copy()
    others[rows, classes] = -np.inf
    return others.max(axis=1) - predictions[rows, classes]


def _leave_one_out(kernel: Kernel, targets: Float[np.ndarray, "n o"]) -> float:
    """Mean squared residual over the variance of the labels."""
    centred = targets - targets.mean(axis=0)
    mean_diagonal = float(np.mean(np.diagonal(np.asarray(kernel.matrix, np.float64))))
    if mean_diagonal == 0:  # a kernel of zero predicts nothing
        return math.nan
    left_out = leave_one_out(kernel, centred, RELATIVE_RIDGE * mean_diagonal)
    return float(left_out.mse) / float(np.mean(np.sum(centred**2, axis=1)))


def fit_outputs(
    outputs: Float[np.ndarray, "n *o"], labels: ProbeLabels, loss: Loss | None
) -> OutputFit:
    """Loss and accuracy of outputs."""
    rule = decision_rule(outputs.shape, labels.targets, loss)
    value = None
    if loss is not None:
        value = float(_loss(outputs, labels.y, loss))
    share = None
    if labels.targets is not None:
        share = accuracy(outputs, labels.targets, rule)
    return OutputFit(value, share)


@keeps_float64
def _loss(outputs: Float[np.ndarray, "n *o"], y: PyTree, loss: Loss) -> Float[jax.Array, ""]:
    """The loss on a probe, in float64 like the outputs."""
    return loss(jnp.asarray(outputs), loss.read(y, outputs.shape))
