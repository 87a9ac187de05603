"""The numbers in words: what they say about the run.

Each function looks at one question and returns a sentence, or nothing where no number supports one.
A half-sentence that names a cause is said only where the numbers show that cause; what one might do
is said in `advice`.
"""

import math

from ntkdiag.judging.alignment_growth import LUCK
from ntkdiag.judging.margin_levels import EDGE, OVER, SLACK
from ntkdiag.report.causes import (
    reached_leaves,
    some_of,
    unmoved_leaves,
    unreached_leaves,
)
from ntkdiag.report.fixed_arrays_reading import fixed_arrays_reading, only_fixed_arrays_moved
from ntkdiag.report.layers_reading import layers_reading
from ntkdiag.report.number_text import number, percent, ratio
from ntkdiag.report.reported import Comparison, Measured

SILENT = 0.001  # share of the trace below which a leaf hardly takes part


def readings(comparison: Comparison) -> list[str]:
    """Say in sentences what a comparison shows; only what a number supports."""
    sentences = [
        _state_of_a(comparison),
        _state_of_b(comparison),
        _stability_at_a(comparison),
        fixed_arrays_reading(comparison),
    ]
    if comparison.verdict.state != "alive":
        pass  # what is wrong with B makes of its spectrum and alignment what they are
    elif only_fixed_arrays_moved(comparison):
        sentences.append(_stability_at_b(comparison))
    else:
        if _is_near_the_edge(comparison.b):
            sentences.append(_stability_at_b(comparison))
        sentences += [_motion_of_the_kernel(comparison), _linear_prediction(comparison)]
        sentences += [_alignment(comparison), _loss(comparison)]
        if not _is_near_the_edge(comparison.b):
            sentences.append(_stability_at_b(comparison))
        sentences += [_entropy_rank(comparison), layers_reading(comparison)]
    sentences.append(_leaves(comparison))
    return [sentence for sentence in sentences if sentence]


def _state_of_a(comparison: Comparison) -> str:
    """Whether A is dead, or its outputs are equal."""
    condition = comparison.a.condition
    if condition.dead:
        return f"A is dead: {_dead(comparison.a)}."
    if condition.equal:
        return "At A the outputs are the same for every example."
    return ""


def _state_of_b(comparison: Comparison) -> str:
    """What is wrong with B, where it is dead or collapsed."""
    a = comparison.a
    b = comparison.b
    if comparison.verdict.state == "dead":
        outputs = "are the same for every example"
        if not b.condition.equal:
            outputs = "differ between examples, but nothing that is trained moves them apart"
        return f"B is dead: {_dead(b)}. Its outputs {outputs}."
    if comparison.verdict.state == "collapsed":
        outputs = "are the same for every example"
        if not b.condition.equal:
            share = percent(b.condition.spread / a.condition.spread)
            outputs = (
                f"spread over examples by {share} of what they did at A, and its loss is "
                f"{_beside_constant_outputs(b)} that of constant outputs"
            )
        return f"B has collapsed: its outputs {outputs}. Its parameters could tell them apart."
    return ""


def _dead(side: Measured) -> str:
    """Why nothing that is trained tells two examples apart on one side."""
    if side.trace == 0:
        return "no parameter moves an output on the probe"
    alike = "every parameter moves the outputs of all examples alike"
    if not unreached_leaves(side):
        return alike
    return f"{alike}. Only the kernel of {some_of(reached_leaves(side))} is not zero"


def _motion_of_the_kernel(comparison: Comparison) -> str:
    """How far the kernel turned, and how much it grew."""
    a = comparison.a
    b = comparison.b
    change = comparison.fixed_arrays
    trace_before = a.trace if change is None else change.trace  # both with the fixed arrays of B
    if trace_before == 0:
        return ""  # a kernel of zero has no direction to turn from: A is dead
    growth = f"Its trace changed by a factor of {number(b.trace / trace_before, 3)}"
    if change is not None and a.trace > 0:
        factor = number(change.trace / a.trace, 3)
        growth += f" by the parameters, and of {factor} by the fixed arrays"
    growth += "."
    distance = float(comparison.drift.distance_centred)
    if a.condition.dead or not math.isfinite(distance):
        which = "the kernel at A" if a.condition.dead else "one of the kernels"
        return f"Centred over examples, {which} is zero: how far it turned is undefined. {growth}"
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
        return "The model linearized at A predicts B: the kernel at A explains what was learned."
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
    if comparison.verdict.regime == "nonlinear":
        return f"{missed}: the kernel at A does not explain B."
    return f"{missed}."


def _alignment(comparison: Comparison) -> str:
    """Whether the kernel became more that of the labels, beyond chance."""
    # The parameters found the kernel as the fixed arrays of B make it.
    change = comparison.fixed_arrays
    aligned_a = comparison.a.alignment if change is None else change.alignment
    aligned_b = comparison.b.alignment
    if aligned_a is None or aligned_b is None:
        return ""
    undefined = _sides_where(not math.isfinite(aligned_a.value), not math.isfinite(aligned_b.value))
    if undefined:
        return (
            f"Alignment with the labels is undefined at {undefined}: centred over examples, the "
            "kernel is zero."
        )
    before = float(aligned_a.above)
    after = float(aligned_b.above)
    if not (math.isfinite(before) and math.isfinite(after)):
        return "Alignment with the labels says nothing here: permuted labels have the same."
    where = "" if change is None else ", fixed arrays of B"
    of_examples = f"examples {comparison.facts['label_probe']}"
    of_kernel = f"({aligned_b.reduction} kernel, {of_examples}{where})"
    if max(aligned_a.deviations, aligned_b.deviations) < LUCK:
        return f"Alignment with the labels is at chance at A and B {of_kernel}."
    values = f"from {number(before, 2)} to {number(after, 2)} above chance {of_kernel}"
    if comparison.verdict.task == "same":
        return f"Alignment with the labels stayed about the same, {values}."
    return f"Alignment with the labels {comparison.verdict.task} {values}."


def _loss(comparison: Comparison) -> str:
    """Whether the loss at B is any better than that of outputs equal over examples."""
    b = comparison.b
    if not b.is_at_constant_loss:
        return ""
    return (
        f"The loss at B, {number(b.loss)}, is {_beside_constant_outputs(b)} that of the best "
        f"constant outputs, {number(b.condition.constant_loss)}."
    )


def _beside_constant_outputs(side: Measured) -> str:
    """How a loss that is known, and at that of constant outputs, compares with it."""
    assert side.loss is not None
    assert side.condition.constant_loss is not None
    is_lower = side.loss < side.condition.constant_loss
    return "hardly lower than" if is_lower else "no lower than"


def _stability_at_a(comparison: Comparison) -> str:
    """How far the learning rate is from the critical one at A, where it comes close."""
    margin = comparison.a.margin
    if not _is_near_the_edge(comparison.a):
        return ""
    at = f"At A the learning rate is {number(margin, 2)} times the critical one"
    return _near_the_edge(at, margin)


def _is_near_the_edge(side: Measured) -> bool:
    """Whether the margin of a side is known, and at the edge of stability or beyond."""
    return side.margin is not None and side.margin >= EDGE


def _near_the_edge(at: str, margin: float) -> str:
    """What a margin of 0.8 or more means."""
    if margin > OVER:
        return f"{at}: on the quadratic model of the loss there, gradient descent diverges."
    return f"{at}: the edge of stability."


def _stability_at_b(comparison: Comparison) -> str:
    """How far the learning rate is from the critical one at B, and why it moved away from it."""
    margin = comparison.b.margin
    if margin is None or math.isnan(margin):
        return ""
    at = f"At B the learning rate is {number(margin, 2)} times the critical one"
    if margin >= EDGE:
        return _near_the_edge(at, margin)
    if margin >= SLACK:
        return f"{at}: stable."
    if not comparison.b.is_at_constant_loss:
        at = f"{at}: there is slack"
    return f"{at}. {_why_the_margin_fell(comparison)}".rstrip()


def _why_the_margin_fell(comparison: Comparison) -> str:
    """Which factor of the margin made it fall: the kernel, or the curvature of the loss.

    The margin is eta times the largest eigenvalue of Sigma^1/2 Theta Sigma^1/2, up to a constant.
    """
    a = comparison.a
    b = comparison.b
    if a.margin is None or not b.margin < a.margin / 2:
        return ""
    if comparison.facts["optimizer"] is not None:
        return ""  # its rate and its preconditioner moved, too
    kernel_fell = b.spectrum.largest < a.spectrum.largest
    before = a.condition.certainty
    after = b.condition.certainty
    became_certain = before is not None and after is not None and after > before
    if became_certain and not kernel_fell:
        return (
            f"It fell as predictions became certain: the largest probability is {percent(after)} "
            f"on average, {percent(before)} at A."
        )
    if kernel_fell and not became_certain:
        shrunk = ratio(b.spectrum.largest, a.spectrum.largest)
        return f"It fell with the largest eigenvalue of the kernel, {shrunk} what it was."
    return ""


def _entropy_rank(comparison: Comparison) -> str:
    """Whether the kernel lost modes."""
    before = comparison.a.spectrum.entropy_rank
    after = comparison.b.spectrum.entropy_rank
    if not after < before / 2:  # NaN on either side says nothing
        return ""
    return (
        f"The entropy rank fell from {number(before, 3)} to {number(after, 3)}: fewer modes carry "
        "the kernel."
    )


def _leaves(comparison: Comparison) -> str:
    """The parameters that no gradient reaches, that did not move, and that do little at B."""
    leaves = comparison.movement[:-1]
    unreached = unreached_leaves(comparison.b)
    silent = []
    for leaf in leaves:
        if leaf.moved > 0 and 0 < leaf.share_b < SILENT:
            silent.append(leaf.path)
    unmoved = unmoved_leaves(comparison)
    zero_rows = comparison.b.condition.zero_rows
    sentences = []
    if 0 < zero_rows < 1:
        sentences.append(f"No parameter moves {percent(zero_rows)} of the outputs at B.")
    if unreached:
        sentences.append(
            f"Parameters that no gradient reaches on the probe at B: {some_of(unreached)}."
        )
    if unmoved:
        sentences.append(
            f"Parameters that did not move, though gradients reach them: {some_of(unmoved)}."
        )
    if silent:
        sentences.append(
            f"Parameters with less than {percent(SILENT)} of the kernel at B: {some_of(silent)}."
        )
    return " ".join(sentences)


def _sides_where(at_a: bool, at_b: bool) -> str:
    """The sides of which something holds: "A", "B", "A and B", or nothing."""
    if at_a and at_b:
        return "A and B"
    if at_a:
        return "A"
    return "B" if at_b else ""
