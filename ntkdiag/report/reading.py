"""The numbers in words: what they say about the run, and what one might do.

Each function looks at one question and returns a sentence, or nothing where no number supports one.
"""

import math
from collections.abc import Sequence

from ntkdiag.report.number_text import number, percent
from ntkdiag.report.reported import Alignment, Comparison

# The stability margin: below SLACK the learning rate could grow, from EDGE on training oscillates,
# beyond OVER it does not last.
SLACK = 0.5
EDGE = 0.8
OVER = 1.1
LUCK = 2.0  # standard deviations from chance that a draw of labels may well have
SILENT = 0.001  # share of the trace below which a leaf hardly takes part
MOST_PATHS = 4  # more are counted


def readings(comparison: Comparison) -> list[str]:
    """Say in sentences what a comparison shows; only what a number supports.

    Args:
        comparison: A `Comparison`.

    Returns:
        Sentences, the most important first.
    """
    sentences = [
        _motion_of_the_kernel(comparison),
        _linear_prediction(comparison),
        _alignment(comparison),
        _stability(comparison),
        _compression(comparison),
        _idle_leaves(comparison),
    ]
    return [sentence for sentence in sentences if sentence]


def _motion_of_the_kernel(comparison: Comparison) -> str:
    """How far the kernel turned, and how much it grew."""
    a = comparison.a
    b = comparison.b
    zero = _sides_where(a.trace == 0, b.trace == 0)
    if zero:
        return f"At {zero} the kernel is zero: no parameter moves the outputs on the probe."
    growth = f"Its trace changed by a factor of {number(b.trace / a.trace, 3)}."
    distance = float(comparison.drift.distance_centred)
    if not math.isfinite(distance):
        return f"Centred, one of the kernels is zero: how far it turned is undefined. {growth}"
    # The bounds of the verdict: below the first is lazy, beyond the second features moved.
    if distance < 0.01:
        turned = "hardly turned"
    elif distance < 0.1:
        turned = "turned"
    else:
        turned = "turned far"
    return f"The kernel {turned} (centred distance {number(distance, 3)}). {growth}"


def _linear_prediction(comparison: Comparison) -> str:
    """Whether the model linearized at A explains B, or else the quadratic one."""
    e1 = comparison.prediction.e1
    e2 = comparison.prediction.e2
    if e1 is None:
        return ""
    if e1 < 0.1:
        return (
            "The model linearized at A predicts B: kernel methods at A explain this part of "
            "training."
        )
    if e1 > 1:
        missed = (
            "The model linearized at A is off by more than the outputs changed "
            f"(e1 = {number(e1, 3)})"
        )
    else:
        missed = (
            f"The model linearized at A is off by {percent(e1)} of the size of the change of the "
            "outputs"
        )
    # Curvature of the model in its parameters explains what a linear model misses.
    if e2 is not None and e2 < e1 / 2:
        return f"{missed}; the quadratic model by less than half of that."
    return f"{missed}: the kernel at A does not explain B."


def _alignment(comparison: Comparison) -> str:
    """Whether the fast directions of the kernel turned towards the labels, beyond chance."""
    aligned_a = comparison.a.alignment
    aligned_b = comparison.b.alignment
    if aligned_a is None or aligned_b is None:
        return ""
    undefined = _sides_where(not math.isfinite(aligned_a.value), not math.isfinite(aligned_b.value))
    if undefined:
        return (
            f"Alignment with the labels is undefined at {undefined}: centred, the kernel is zero."
        )
    before = float(aligned_a.above)
    after = float(aligned_b.above)
    if not (math.isfinite(before) and math.isfinite(after)):
        return "Alignment with the labels says nothing here: permuted labels have the same."
    of_kernel = f"({aligned_b.reduction} kernel)"
    if max(aligned_a.deviations, aligned_b.deviations) < LUCK:
        return f"Alignment with the labels is at chance at A and B {of_kernel}."

    # Less than a fifth up or down, or than a lucky draw, counts as no change.
    luck = LUCK * max(_share(aligned_a), _share(aligned_b))
    values = f"from {number(before, 2)} to {number(after, 2)} above chance {of_kernel}"
    if after - before > luck and after >= 1.2 * before:
        return (
            f"Alignment with the labels rose {values}: fast directions turned towards the labels."
        )
    if before - after > luck and before >= 1.2 * after:
        return (
            f"Alignment with the labels fell {values}: what the kernel learns fast is less what "
            "the labels ask for."
        )
    return f"Alignment with the labels stayed about the same, {values}."


def _share(alignment: Alignment) -> float:
    """One standard deviation of permuted labels in the units of `above`."""
    return float(alignment.standard_deviation / (1 - alignment.chance))


def _stability(comparison: Comparison) -> str:
    """How far the learning rate is from the critical one at B."""
    before = comparison.a.margin
    margin = comparison.b.margin
    if before is None or margin is None or comparison.b.trace == 0:
        return ""
    at = f"At B the learning rate is {number(margin, 2)} of the critical one"
    if margin > OVER:
        return f"{at}: if that lasts, lower the learning rate or warm up."
    if margin >= EDGE:
        return f"{at}: the edge of stability."
    if margin >= SLACK:
        return f"{at}: stable."
    # The curvature of a softmax or a sigmoid vanishes where predictions become certain.
    is_cross_entropy = "cross-entropy" in str(comparison.facts["loss"])
    if is_cross_entropy and margin < before:
        return (
            f"{at}: there is slack. It fell: so it does under cross-entropy as predictions become "
            "certain."
        )
    return f"{at}: there is slack."


def _compression(comparison: Comparison) -> str:
    """Whether the kernel lost modes."""
    before = comparison.a.spectrum.entropy_rank
    after = comparison.b.spectrum.entropy_rank
    if not after < before / 2:  # NaN on either side says nothing
        return ""
    return (
        f"The entropy rank fell from {number(before, 3)} to {number(after, 3)}: the kernel "
        "compressed. Together with falling gradient norms on new data that is a sign of lost "
        "plasticity; by itself it is not."
    )


def _idle_leaves(comparison: Comparison) -> str:
    """The parameters that stayed where they were, and those that do little for the kernel at B."""
    *leaves, _ = comparison.movement
    unmoved = [leaf.path for leaf in leaves if leaf.moved == 0]
    silent = [leaf.path for leaf in leaves if leaf.moved > 0 and leaf.share_b < SILENT]
    sentences = []
    if unmoved and len(unmoved) < len(leaves):
        sentences.append(f"Did not move: {_some(unmoved)}; frozen, or without a gradient.")
    if silent:
        sentences.append(
            f"Hardly takes part at B, below {percent(SILENT)} of the trace: {_some(silent)}."
        )
    return " ".join(sentences)


def _sides_where(at_a: bool, at_b: bool) -> str:
    """The sides of which something holds: "A", "B", "A and B", or nothing."""
    if at_a and at_b:
        return "A and B"
    if at_a:
        return "A"
    return "B" if at_b else ""


def _some(paths: Sequence[str]) -> str:
    """Paths joined by commas, the first four of them, and how many more there are."""
    text = ", ".join(paths[:MOST_PATHS])
    if len(paths) > MOST_PATHS:
        text += f" and {len(paths) - MOST_PATHS} more"
    return text
