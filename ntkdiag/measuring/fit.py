"""How well kernel and outputs of one side fit the labels of one probe.

A kernel after training knows the labels it was trained on. So alignment, label power and
leave-one-out are of held-out examples where there are some, and of all that is known of examples
trained on, only the alignment is measured too: the gap between the two is the effect of training on
these examples.

Outputs decide for the largest one of several classes along the last axis, so that tokens `[N T V]`
have a decision at every position. Under a sigmoid, with labels that are no classes, every output
decides by its sign.
"""

import math
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, PyTree

from ntkdiag.analysis.alignment import Alignment, alignment
from ntkdiag.analysis.generalization import LeaveOneOut, leave_one_out
from ntkdiag.analysis.modes import modes
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.working_precision import keeps_float64
from ntkdiag.losses import Loss, SigmoidCrossEntropy
from ntkdiag.measuring.probed_function import ProbeLabels, averaged_over_outputs

# How outputs decide; None where there is nothing to decide: a single output that is no logit of a
# sigmoid.
Rule: TypeAlias = Literal["largest", "sign"] | None
# Numbers and arrays by their names in `ntkdiag.quantities`.
Numbers: TypeAlias = dict[str, int | float | np.ndarray]
# Ridge of leave-one-out in units of the mean diagonal entry of the kernel, as the baselines have.
RELATIVE_RIDGE = 1e-3


def fit_kernel(
    kernel: Kernel,
    targets: Float[np.ndarray, "n o"],
    *,
    trained_on: bool,
    prefix: str = "",
    detailed: bool = True,
) -> Numbers:
    """What a kernel is beside labels, of examples that were trained on or not."""
    aligned = alignment(kernel, targets, trained_on=trained_on)
    found: Numbers = {**numbers_of_alignment(aligned, f"{prefix}alignment")}
    if detailed:
        found["leave_one_out"] = _relative_error(kernel, targets)
        # Centred: in a network with biases the constant mode would dominate.
        found["label_power"] = np.asarray(modes(kernel, targets, centred=True).label_power)
    return found


def numbers_of_alignment(aligned: Alignment, name: str) -> dict[str, float]:
    """An alignment beside its chance level, under names that begin alike."""
    # As plain numbers: `above` is computed of them in float64.
    plain = jax.tree.map(float, aligned)
    return {
        name: plain.value,
        f"{name}_chance": plain.chance,
        f"{name}_standard_deviation": plain.standard_deviation,
        f"{name}_above": plain.above,
    }


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
) -> Numbers:
    """Loss and accuracy of outputs, as far as a loss is named and labels are decisions."""
    numbers: Numbers = {}
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


def decision_rule(
    shape: tuple[int, ...], targets: Float[np.ndarray, "n *o"] | None, loss: Loss | None
) -> Rule:
    """How outputs of a shape decide, beside targets of the same shape where there are labels."""
    if isinstance(loss, SigmoidCrossEntropy) and not _are_classes(targets):
        return "sign"
    return "largest" if len(shape) > 1 and shape[-1] > 1 else None


def accuracy(
    outputs: Float[np.ndarray, "n *o"], targets: Float[np.ndarray, "n *o"], rule: Rule
) -> float | None:
    """The share of right decisions; None unless the targets are decisions themselves."""
    if rule == "largest" and _are_classes(targets):
        return float(np.mean(outputs.argmax(axis=-1) == targets.argmax(axis=-1)))
    if rule == "sign" and _are_binary(targets):
        return float(np.mean((outputs > 0) == (targets == 1)))
    return None


def agreement(
    a: Float[np.ndarray, "n *o"], b: Float[np.ndarray, "n *o"], rule: Rule
) -> float | None:
    """The share of decisions that are the same by two outputs."""
    decided_a = _decided(a, rule)
    decided_b = _decided(b, rule)
    if decided_a is None or decided_b is None:
        return None
    return float(np.mean(decided_a == decided_b))


def class_numbers(targets: Float[np.ndarray, "n *o"]) -> Int[np.ndarray, " n"] | None:
    """`[n]`, where targets `[n c]` are one-hot rows; None where they are not."""
    if targets.ndim == 2 and _are_classes(targets):
        return targets.argmax(axis=1)
    return None


def _decided(
    outputs: Float[np.ndarray, "n *o"], rule: Rule
) -> Int[np.ndarray, "n *t"] | Bool[np.ndarray, "n *o"] | None:
    if rule is None:
        return None
    return outputs.argmax(axis=-1) if rule == "largest" else outputs > 0


def _are_classes(targets: Float[np.ndarray, "n *o"] | None) -> bool:
    """Whether targets are one-hot along the last axis."""
    if targets is None or targets.ndim < 2 or targets.shape[-1] < 2:
        return False
    return _are_binary(targets) and bool((targets.sum(axis=-1) == 1).all())


def _are_binary(targets: Float[np.ndarray, "n *o"]) -> bool:
    return bool(np.isin(targets, (0, 1)).all())
