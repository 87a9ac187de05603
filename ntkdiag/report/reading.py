"""The numbers in words: what they say about the run, and what one might do."""

import math
from typing import Any

from ntkdiag.report.number_text import number, percent

SLACK, EDGE, OVER = 0.5, 0.8, 1.1
SILENT = 0.001  # share of the trace below which a leaf hardly takes part
NAMED = 4


def readings(comparison: Any) -> list[str]:
    """Say in sentences what a comparison shows; only what a number supports.

    Args:
        comparison: A `Comparison`.

    Returns:
        Sentences, the most important first.
    """
    said = [_motion(comparison), _linear(comparison), _labels(comparison), _stability(comparison)]
    return [text for text in (*said, _rank(comparison), _leaves(comparison)) if text]


def _motion(comparison: Any) -> str:
    if zero := [
        name for name, side in (("A", comparison.a), ("B", comparison.b)) if side.trace == 0
    ]:
        return f"At {' and '.join(zero)} the kernel is zero: no parameter moves the outputs on the probe."
    growth, centred = (
        comparison.b.trace / comparison.a.trace,
        float(comparison.drift.distance_centred),
    )
    if not math.isfinite(centred):
        return (
            f"Centred, one of the kernels is zero: how far it turned is undefined. {_grew(growth)}"
        )
    turned = "hardly turned" if centred < 0.01 else "turned" if centred < 0.1 else "turned far"
    return f"The kernel {turned} (centred distance {number(centred, 3)}). {_grew(growth)}"


def _grew(growth: float) -> str:
    return f"Its trace changed by a factor of {number(growth, 3)}."


def _linear(comparison: Any) -> str:
    prediction = comparison.prediction
    if prediction.e1 is None:
        return ""
    if prediction.e1 < 0.1:
        return "The model linearized at A predicts B: kernel methods at A explain this part of training."
    missed = f"The model linearized at A is off by {percent(prediction.e1)} of the size of the change of the outputs"
    if prediction.e1 > 1:
        missed = f"The model linearized at A is off by more than the outputs changed (e1 = {number(prediction.e1, 3)})"
    if prediction.e2 is not None and prediction.e2 < prediction.e1 / 2:
        return f"{missed}; the quadratic model by less than half of that."
    return f"{missed}: the kernel at A does not explain B."


def _labels(comparison: Any) -> str:
    before, after = comparison.a.alignment, comparison.b.alignment
    if before is None:
        return ""
    if undefined := [
        name for name, value in (("A", before), ("B", after)) if not math.isfinite(value)
    ]:
        return f"Alignment with the labels is undefined at {' and '.join(undefined)}: centred, the kernel is zero."
    if before > 0 and after >= 1.2 * before:
        turned = (
            "turned towards the labels"
            if after >= 2 * before
            else "turned somewhat towards the labels"
        )
        return f"Alignment with the labels rose {number(after / before, 3)}-fold: fast directions {turned}."
    if after < before / 1.2:
        return "Alignment with the labels fell: what the kernel learns fast is less what the labels ask for."
    return "Alignment with the labels stayed about the same."


def _stability(comparison: Any) -> str:
    before, margin = comparison.a.margin, comparison.b.margin
    if margin is None or comparison.b.trace == 0:
        return ""
    at = f"At B the learning rate is {number(margin, 2)} of the critical one"
    if margin > OVER:
        return f"{at}: if that lasts, lower the learning rate or warm up."
    if margin >= EDGE:
        return f"{at}: the edge of stability."
    if margin >= SLACK:
        return f"{at}: stable."
    why = ""
    if _softmax(comparison) and margin < before:
        why = " It fell: so it does under cross-entropy as predictions become certain."
    return f"{at}: there is slack.{why}"


def _softmax(comparison: Any) -> bool:
    return "cross-entropy" in comparison.facts["loss"]


def _rank(comparison: Any) -> str:
    before, after = comparison.a.spectrum.entropy_rank, comparison.b.spectrum.entropy_rank
    if not after < before / 2:
        return ""
    return (
        f"The entropy rank fell from {number(before, 3)} to {number(after, 3)}: the kernel compressed. Together with "
        "falling gradient norms on new data that is a sign of lost plasticity; by itself it is not."
    )


def _leaves(comparison: Any) -> str:
    leaves = comparison.movement[:-1]
    still = [leaf.path for leaf in leaves if leaf.moved == 0]
    silent = [leaf.path for leaf in leaves if leaf.moved > 0 and leaf.share_b < SILENT]
    said = []
    if still and len(still) < len(leaves):
        said.append(f"Did not move: {_some(still)}; frozen, or without a gradient.")
    if silent:
        said.append(
            f"Hardly takes part at B, below {percent(SILENT)} of the trace: {_some(silent)}."
        )
    return " ".join(said)


def _some(paths: list[str]) -> str:
    more = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
    return ", ".join(paths[:NAMED]) + more
