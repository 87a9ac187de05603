"""What the numbers of a run say: a sentence for each question, and how far to trust it.

A question that the run has no numbers for is answered by what is missing.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from ntkdiag.analysis.alignment import Alignment
from ntkdiag.judging.regime import task_of
from ntkdiag.judging.thresholds import (
    ALIGNMENT_DEVIATIONS,
    LAZY_DISTANCE,
    LAZY_E1,
    MARGIN_EDGE,
    MARGIN_OVER,
)
from ntkdiag.report.number_text import number, percent
from ntkdiag.report.run_margins import Margins
from ntkdiag.report.run_state import sentence_of_state
from ntkdiag.report.run_subject import RunSubject
from ntkdiag.report.wilson_interval import wilson_interval

_CONSTANT_KERNEL = "The rotation of the kernel is undefined: it is constant over the examples"


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer to one question."""

    sentence: str  # the answer with its numbers
    trust: str  # how far to trust it, what it rests on


def answers_of(subject: RunSubject) -> Mapping[str, Answer]:
    """The three answers that a report begins with, by the name of their page."""
    return {
        "training": _training(subject),
        "regime": _regime(subject),
        "generalization": _generalization(subject),
    }


def linear_from(subject: RunSubject) -> int | None:
    """The place of the first checkpoint from which on each, linearized, predicts the last one."""
    e1 = subject.matrix("e1")
    if e1 is None:
        return None
    fails = np.flatnonzero(~(e1[:-1, -1] < LAZY_E1))  # NaN predicts nothing
    place = int(fails[-1]) + 1 if len(fails) else 0
    return place if place < len(e1) - 1 else None


def _training(subject: RunSubject) -> Answer:
    margins = Margins.of(subject)
    state = sentence_of_state(subject)
    if margins is None:
        said = state or "Whether training is stable is not known, as no margin was measured"
        return Answer(
            f"{said}{_loss(subject)}.",
            "A margin needs track(..., train=, loss=, descent=), or a monitor with a loss.",
        )
    said = state or _stability(margins)
    return Answer(f"{said}{_loss(subject)}.", _trust_in_margins(subject, margins))


def _stability(margins: Margins) -> str:
    """What the margins of a network that is alive say."""
    steps, values = margins.steps, margins.values
    place = margins.largest
    most = f"{number(values[place], 3)} at step {steps[place]:.0f}"
    last = f"{number(values[-1], 3)} at step {steps[-1]:.0f}"
    if values[-1] > MARGIN_OVER:
        return (
            f"On the probe training ends beyond the edge of stability, 1, with a margin of {last}, "
            f"at most {most}"
        )
    if values[-1] >= MARGIN_EDGE:
        return f"Training ends at the edge of stability: the margin is {last}, at most {most}"
    if values[place] >= MARGIN_EDGE:
        return f"Training passed the edge of stability: the margin was {most}, and is {last}"
    return f"Training was stable: the margin was at most {most}, and is {last}"


def _loss(subject: RunSubject) -> str:
    """How the loss went, as the end of a sentence."""
    values = subject.series("loss")
    if values is None:
        measured = subject.measured("loss")
        values = None if measured is None else measured[1]
    if values is None or not (math.isfinite(values[0]) and math.isfinite(values[-1])):
        return ""
    went = "fell" if values[-1] < values[0] else "rose"
    return f"; the loss {went} from {number(values[0], 3)} to {number(values[-1], 3)}"


def _trust_in_margins(subject: RunSubject, margins: Margins) -> str:
    """What the margins are of."""
    parts = []
    n_measured = len(margins.steps) - margins.n_checkpoints
    if margins.n_checkpoints:
        parts.append(
            f"of {margins.n_checkpoints} checkpoints and the {subject.n_examples} examples of the "
            "probe, exact for these"
        )
    if n_measured:
        parts.append(f"of {n_measured} measurements while training")
    if margins.has_intervals:
        place = margins.last_interval
        ends = f"{number(margins.lower[place], 3)} to {number(margins.upper[place], 3)}"
        parts.append(
            f"the 95 % interval for the training set at step {margins.steps[place]:.0f} is {ends}"
        )
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _regime(subject: RunSubject) -> Answer:
    distances = subject.series("drift_distance_centred")
    if distances is None or len(subject.steps) < 2:
        return _regime_of_monitor(subject)
    first, last = subject.steps[0], subject.steps[-1]
    distance = float(distances[-1])
    if not math.isfinite(distance):
        return Answer(
            f"{sentence_of_state(subject) or _CONSTANT_KERNEL}.",
            f"Of {len(subject.steps)} checkpoints and {subject.n_examples} examples.",
        )
    sentence = (
        f"The kernel rotated by {number(distance, 3)} (centred distance) from step {first} to step "
        f"{last}{_half_way(subject, distances)}"
    )
    e1 = subject.matrix("e1")
    if e1 is not None and math.isfinite(e1[0, -1]):
        sentence += f", and the network linearized at step {first} {_off(float(e1[0, -1]))}"
    place = linear_from(subject)
    if place is not None and place > 0:
        assert e1 is not None
        sentence += (
            f"; from step {subject.steps[place]} on it is nearly linear "
            f"(e1 = {number(float(e1[place, -1]), 2)})"
        )
    trust = (
        f"Of {len(subject.steps)} checkpoints and {subject.n_examples} examples, exact for these; "
        "what other examples would give is not measured."
    )
    return Answer(f"{sentence}.", trust)


def _regime_of_monitor(subject: RunSubject) -> Answer:
    """The regime by what a monitor has of the kernel."""
    measured = subject.measured("drift")
    if measured is None:
        return Answer(
            "How far the kernel moved is not known: there are not two checkpoints of it.",
            "The regime needs ntkdiag.track on two checkpoints or more, or a monitor.",
        )
    steps, values = measured
    return Answer(
        f"The kernel changed by {percent(float(values[-1]))} of its norm up to step "
        f"{steps[-1]:.0f}, its scale included.",
        f"Of {len(steps)} measurements while training. Rotation of the kernel and the prediction "
        "of a linearized network need ntkdiag.track.",
    )


def _half_way(subject: RunSubject, distances: Float[np.ndarray, " T"]) -> str:
    """By which step half of the way was gone."""
    if not distances[-1] >= LAZY_DISTANCE:
        return ""
    place = int(np.flatnonzero(distances >= distances[-1] / 2)[0])
    return f", half of it by step {subject.steps[place]}"


def _off(e1: float) -> str:
    """How well a linearized network predicts."""
    if e1 < LAZY_E1:
        return f"predicts the last one (e1 = {number(e1, 2)})"
    if e1 > 1:
        return f"is off by more than the outputs changed (e1 = {number(e1, 2)})"
    return f"is off by {percent(e1)} of the change of the outputs"


def _generalization(subject: RunSubject) -> Answer:
    is_held_out = subject.series("held_out_alignment_above") is not None
    prefix = "held_out_" if is_held_out else ""
    of_examples = "held-out examples" if is_held_out else "the probe"
    above = subject.series(f"{prefix}alignment_above")
    if above is None:
        return _labels_of_monitor(subject)
    values = f"from {number(float(above[0]), 2)} to {number(float(above[-1]), 2)} above chance"
    task = task_of(_alignment(subject, prefix, 0), _alignment(subject, prefix, -1))
    if task == "unknown":
        sentence = f"Alignment with the labels of {of_examples} is undefined"
    elif _deviations(subject, prefix) < ALIGNMENT_DEVIATIONS:
        sentence = f"Alignment with the labels of {of_examples} is at chance"
    elif task == "same":
        sentence = f"Alignment with the labels of {of_examples} stayed about the same, {values}"
    else:
        sentence = f"Alignment with the labels of {of_examples} {task} {values}"
    return Answer(f"{sentence}{_accuracy(subject)}.", _trust_in_labels(subject, prefix))


def _labels_of_monitor(subject: RunSubject) -> Answer:
    """The fit of the labels by what a monitor has of it."""
    measured = subject.measured("alignment")
    if measured is None:
        return Answer(
            "How the kernel fits the labels is not known: no alignment was measured.",
            "It needs labels: track(..., held_out=(x, y)), or a monitor with labels.",
        )
    steps, values = measured
    of_examples = str(subject.watch_record.get("alignment_of", "the probe")).replace("_", " ")
    return Answer(
        f"Alignment with the labels changed from {number(values[0], 2)} to "
        f"{number(values[-1], 2)} at step {steps[-1]:.0f}.",
        f"Of {len(steps)} measurements while training, of examples: {of_examples}. The level of "
        "chance needs ntkdiag.track.",
    )


def _alignment(subject: RunSubject, prefix: str, place: int) -> Alignment | None:
    """The alignment of one checkpoint; None where its chance level was not measured."""
    names = ("alignment", "alignment_chance", "alignment_standard_deviation")
    series = [subject.series(f"{prefix}{name}") for name in names]
    if any(values is None for values in series):
        return None
    value, chance, deviation = (float(values[place]) for values in series if values is not None)
    return Alignment(value, chance, deviation, reduction="mean" if prefix else "full")


def _deviations(subject: RunSubject, prefix: str) -> float:
    """How many standard deviations the alignment is from that of permuted labels, at most."""
    value = subject.series(f"{prefix}alignment")
    chance = subject.series(f"{prefix}alignment_chance")
    deviation = subject.series(f"{prefix}alignment_standard_deviation")
    if value is None or chance is None or deviation is None:
        return math.inf
    # Labels that cannot be told from permuted ones have no deviation at all.
    return float(np.max((value - chance) / np.maximum(deviation, 1e-12), initial=0.0))


def _accuracy(subject: RunSubject) -> str:
    """The accuracies at the end of training, as the end of a sentence."""
    on_probe = subject.series("accuracy")
    held_out = subject.series("held_out_accuracy")
    if on_probe is None or not math.isfinite(on_probe[-1]):
        return ""
    if held_out is None:
        return f"; the accuracy ends at {percent(float(on_probe[-1]))}"
    return (
        f"; the held-out accuracy ends at {percent(float(held_out[-1]))}, that of examples trained "
        f"on at {percent(float(on_probe[-1]))}"
    )


def _trust_in_labels(subject: RunSubject, prefix: str) -> str:
    """What the numbers about labels are of."""
    n = subject.examples_of("held_out" if prefix else None)
    text = f"Of {n} examples"
    accuracy = subject.series(f"{prefix}accuracy")
    if accuracy is not None and math.isfinite(accuracy[-1]) and n:
        lower, upper = wilson_interval(float(accuracy[-1]), n)
        text += (
            f", which leave an accuracy of {percent(float(accuracy[-1]))} a 95 % interval of "
            f"{percent(lower)} to {percent(upper)}"
        )
    deviation = subject.series(f"{prefix}alignment_standard_deviation")
    if deviation is not None and math.isfinite(deviation[-1]):
        text += (
            "; the alignment of permuted labels has a standard deviation of "
            f"{number(float(deviation[-1]), 2)}"
        )
    if not prefix:
        text += ". After training a kernel knows the labels it was trained on"
    return f"{text}."
