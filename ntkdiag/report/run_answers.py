"""What the numbers of a run say: a sentence for each question, and how far to trust it.

A question that the run has no numbers for is answered by what is missing.
"""

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from ntkdiag.report.causes import EDGE, LUCK, OVER, SLACK
from ntkdiag.report.number_text import number, percent, ratio
from ntkdiag.report.run_subject import RunSubject

# The questions whose answers come first.
ANSWERS = ("training", "regime", "generalization")
# As the verdict of a comparison has them.
STILL, TURNED = 0.01, 0.1  # centred distances
LINEAR = 0.1  # e1 up to which a linearized network is usable
SAME = 0.02  # of an alignment above chance, and of an accuracy


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer to one question.

    Attributes:
        sentence: The answer with its numbers.
        trust: How far to trust it, what it rests on.
    """

    sentence: str
    trust: str


def answers_of(subject: RunSubject) -> Mapping[str, Answer]:
    """The answer of every page of the report, by its name.

    Args:
        subject: The run.

    Returns:
        Page -> what it says.
    """
    return {
        "training": _training(subject),
        "regime": _regime(subject),
        "kernel": _kernel(subject),
        "generalization": _generalization(subject),
        "layers": _layers(subject),
        "examples": _examples(subject),
    }


def margins(
    subject: RunSubject,
) -> tuple[Float[np.ndarray, " s"], Float[np.ndarray, " s"], bool] | None:
    """Steps and stability margins, and whether they are of the checkpoints; None without."""
    of_checkpoints = subject.series("margin")
    if of_checkpoints is not None and np.isfinite(of_checkpoints).any():
        known = np.isfinite(of_checkpoints)
        return np.asarray(subject.steps, np.float64)[known], of_checkpoints[known], True
    measured = subject.measured("margin")
    return None if measured is None else (*measured, False)


def linear_from(subject: RunSubject) -> int | None:
    """The place of the first checkpoint from which the linearized network predicts the last one."""
    e1 = subject.matrix("e1")
    if e1 is None:
        return None
    to_the_last = e1[:-1, -1]
    usable = np.flatnonzero(to_the_last < LINEAR)
    return int(usable[0]) if len(usable) else None


def _training(subject: RunSubject) -> Answer:
    known = margins(subject)
    if known is None:
        return Answer(
            f"Whether training is stable is not known, as no margin was measured{_loss(subject)}.",
            "A margin needs track(..., train=, loss=, descent=), or a monitor with a loss.",
        )
    steps, values, of_checkpoints = known
    place = int(np.argmax(values))
    most = f"{number(values[place], 3)} at step {steps[place]:.0f}"
    last = f"{number(values[-1], 3)} at step {steps[-1]:.0f}"
    if values[-1] > OVER:
        sentence = (
            f"On the probe training ends beyond the edge of stability, 1, with a margin of {last}, "
            f"at most {most}"
        )
    elif values[-1] >= EDGE:
        sentence = f"Training ends at the edge of stability: the margin is {last}, at most {most}"
    elif values[place] >= EDGE:
        sentence = f"Training passed the edge of stability: the margin was {most}, and is {last}"
    elif values[place] >= SLACK:
        sentence = f"Training was stable: the margin was at most {most}, and is {last}"
    else:
        sentence = (
            f"The learning rate could be larger: the margin was at most {most}, and is {last}"
        )
    return Answer(
        f"{sentence}{_loss(subject)}.", _trust_in_margins(subject, len(steps), of_checkpoints)
    )


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


def _trust_in_margins(subject: RunSubject, count: int, of_checkpoints: bool) -> str:
    """What the margins are of."""
    if of_checkpoints:
        text = (
            f"Of {count} checkpoints and the {subject.n_examples} examples of the probe, exact for "
            "these; of a training set that is much larger the margin is lower"
        )
    else:
        text = f"Of {count} measurements while training"
    interval = subject.interval("margin")
    if interval is not None:
        lower, upper = interval
        text += (
            "; the monitor's 95 % interval for the training set at its last measurement is "
            f"{number(lower[-1], 3)} to {number(upper[-1], 3)}"
        )
    return f"{text}."


def _regime(subject: RunSubject) -> Answer:
    distances = subject.series("drift_distance_centred")
    if distances is None or len(subject.steps) < 2:
        return _regime_of_monitor(subject)
    first, last = subject.steps[0], subject.steps[-1]
    distance = float(distances[-1])
    sentence = (
        f"The kernel {_turned(distance)} from step {first} to step {last} (centred distance "
        f"{number(distance, 3)}{_half_way(subject, distances)})"
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
    measured = subject.measured("distance_centred")
    if measured is None:
        return Answer(
            "How far the kernel moved is not known: there are not two checkpoints of it.",
            "The regime needs ntkdiag.track on two checkpoints or more, or a monitor with the "
            "kernel tier.",
        )
    steps, values = measured
    return Answer(
        f"The kernel {_turned(float(values[-1]))} up to step {steps[-1]:.0f} (centred distance "
        f"{number(values[-1], 3)}).",
        f"Of {len(steps)} measurements while training. What a linearized network predicts needs "
        "ntkdiag.track.",
    )


def _turned(distance: float) -> str:
    if distance < STILL:
        return "hardly turned"
    return "turned" if distance < TURNED else "turned far"


def _half_way(subject: RunSubject, distances: Float[np.ndarray, " T"]) -> str:
    """By which step half of the way was gone."""
    if not distances[-1] >= STILL:
        return ""
    place = int(np.flatnonzero(distances >= distances[-1] / 2)[0])
    return f", half of it by step {subject.steps[place]}"


def _off(e1: float) -> str:
    """How well a linearized network predicts."""
    if e1 < LINEAR:
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
    before, after = float(above[0]), float(above[-1])
    values = f"from {number(before, 2)} to {number(after, 2)} above chance"
    if not (math.isfinite(before) and math.isfinite(after)):
        sentence = f"Alignment with the labels of {of_examples} is undefined"
    elif _deviations(subject, prefix) < LUCK:
        sentence = f"Alignment with the labels of {of_examples} is at chance"
    elif abs(after - before) < SAME:
        sentence = f"Alignment with the labels of {of_examples} stayed about the same, {values}"
    else:
        went = "rose" if after > before else "fell"
        sentence = f"Alignment with the labels of {of_examples} {went} {values}"
    return Answer(f"{sentence}{_accuracy(subject)}.", _trust_in_labels(subject, prefix))


def _labels_of_monitor(subject: RunSubject) -> Answer:
    """The fit of the labels by what a monitor has of it."""
    measured = subject.measured("alignment_above")
    if measured is None:
        return Answer(
            "How the kernel fits the labels is not known: no alignment was measured.",
            "It needs labels: track(..., held_out=(x, y)), or a monitor with the kernel tier.",
        )
    steps, values = measured
    of_examples = str(subject.watch_record.get("alignment_of", "the probe")).replace("_", " ")
    return Answer(
        f"Alignment with the labels went from {number(values[0], 2)} to {number(values[-1], 2)} "
        f"above chance at step {steps[-1]:.0f}.",
        f"Of {len(steps)} measurements while training, of examples: {of_examples}.",
    )


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
        p = float(accuracy[-1])
        text += (
            f", which leave an accuracy a standard error of {percent(math.sqrt(p * (1 - p) / n))}"
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


def _kernel(subject: RunSubject) -> Answer:
    if subject.track is None:
        return Answer(
            "Spectra over training are not known: no checkpoint was tracked.",
            "They need ntkdiag.track.",
        )
    trace = subject.series("trace")
    ranks = subject.series("entropy_rank")
    resolved = subject.series("rank")
    assert trace is not None
    assert ranks is not None
    assert resolved is not None
    size = subject.track.eigenvalues.shape[1]
    return Answer(
        f"The trace changed by a factor of {ratio(float(trace[-1]), float(trace[0])).rstrip('×')}, "
        f"the entropy rank from {number(float(ranks[0]), 3)} to {number(float(ranks[-1]), 3)}.",
        f"{resolved[-1]:.0f} of {size} eigenvalues are above the noise floor at the end; what lies "
        "below is rounding.",
    )


def _layers(subject: RunSubject) -> Answer:
    shares = subject.series("leaf_shares")
    names = subject.record.get("coordinates", {}).get("leaf", [])
    if shares is None or not names or not np.isfinite(shares[-1]).all():
        return Answer(
            "Which parameters carry the kernel is not known.", "Shares need ntkdiag.track."
        )
    place = int(np.argmax(shares[-1]))
    name = names[place] or "the only leaf"
    return Answer(
        f"{name} carries {percent(float(shares[-1, place]))} of the kernel at the end, "
        f"{percent(float(shares[0, place]))} at the beginning.",
        f"Shares of {len(names)} leaves in the trace, on {subject.n_examples} examples.",
    )


def _examples(subject: RunSubject) -> Answer:
    if not subject.kernels:
        return Answer(
            "Examples are not told apart: no kernels are stored.",
            "They are stored by track(..., out=).",
        )
    influence = np.diagonal(subject.kernels[-1]).astype(np.float64)
    place = int(np.argmax(influence))
    label = f" (label {subject.labels[place]})" if subject.labels else ""
    return Answer(
        f"The largest self-influence at the end is that of example {place}{label}, "
        f"{number(float(influence[place] / np.median(influence)), 3)} times the median.",
        f"Of the {len(influence)} examples of the probe, by the kernel averaged over outputs.",
    )
