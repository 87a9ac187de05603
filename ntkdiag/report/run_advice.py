"""What one might do next about a run: only what its numbers call for."""

import numpy as np

from ntkdiag.judging.margin_levels import EDGE, OVER, SLACK
from ntkdiag.judging.regime import LAZY_E1
from ntkdiag.report.number_text import number, percent
from ntkdiag.report.rate_advice import watch_the_loss
from ntkdiag.report.run_answers import linear_from
from ntkdiag.report.run_margins import Margins
from ntkdiag.report.run_state import sentence_of_state
from ntkdiag.report.run_subject import RunSubject

LARGE_JUMP = 0.4  # of the way of the kernel, between two checkpoints


def run_advice(subject: RunSubject) -> list[str]:
    """Say what to do next."""
    lines = [
        _learning_rate(subject),
        _linear(subject),
        _between_checkpoints(subject),
        _held_out(subject),
        _margin(subject),
        _checkpoints(subject),
        _stored(subject),
    ]
    return [line for line in lines if line]


def _learning_rate(subject: RunSubject) -> str:
    """Lower it, or raise it, where the margins say so."""
    margins = Margins.of(subject)
    if margins is None or sentence_of_state(subject):
        return ""
    values = margins.values
    lowest = float(margins.lower[margins.last_interval])
    if values[-1] > OVER and margins.has_intervals and not lowest > 1:
        return watch_the_loss(lowest)
    if values[-1] > OVER:
        return (
            f"Lower the learning rate, or let it decay, by a factor of {number(values[-1], 2)}: "
            "that far the margin is beyond 1."
        )
    early = values[: max(1, len(values) // 3)]
    if np.max(early) > OVER:
        step = margins.steps[int(np.argmax(early))]
        return f"Warm up the learning rate: the margin is beyond 1 at step {step:.0f}."
    if margins.has_intervals and np.max(margins.upper) < SLACK and _is_slow(subject):
        factor = EDGE / float(np.max(margins.upper))
        return (
            f"Raise the learning rate{_from_to(subject, factor)}: up to a factor of "
            f"{number(factor, 2)} training stays below the edge, and the network did not leave the "
            "linear regime."
        )
    return ""


def _from_to(subject: RunSubject, factor: float) -> str:
    """Which rate to try, twice at most, such as ", 0.05 -> 0.1", where that of the run is known."""
    rates = subject.series("learning_rate")
    if rates is None or not np.isfinite(rates).any():
        measured = subject.measured("learning_rate")
        rates = None if measured is None else measured[1]
    if rates is None:
        return ""
    rate = float(np.nanmax(rates))
    return f", {number(rate, 2)} -> {number(min(factor, 2.0) * rate, 2)}"


def _is_slow(subject: RunSubject) -> bool:
    """Whether the network linearized at the first checkpoint predicts the last one."""
    e1 = subject.matrix("e1")
    return e1 is not None and bool(e1[0, -1] < LAZY_E1)


def _linear(subject: RunSubject) -> str:
    """Use the linear model where it holds."""
    place = linear_from(subject)
    if place is None:
        return ""
    if place == 0:
        return (
            "Train the linearized model, too (ntkdiag.baselines.linear_baseline): if it does as "
            "well, the first kernel is all there is to this run."
        )
    step = subject.steps[place]
    return (
        f"Another run like this may end at step {step}, with the network linearized there "
        "(ntkdiag.linearized_model): it predicts the last checkpoint."
    )


def _between_checkpoints(subject: RunSubject) -> str:
    """Save more checkpoints where the kernel turned fastest."""
    distance = subject.matrix("distance_centred")
    farthest = 0.0 if distance is None else float(np.nanmax(distance, initial=0.0))
    if distance is None or farthest == 0.0:  # the kernel of a linear model never turns
        return ""
    jumps = np.diagonal(distance, 1)
    place = int(np.nanargmax(jumps)) if np.isfinite(jumps).any() else 0
    of_all = float(jumps[place]) / farthest
    if not of_all > LARGE_JUMP or len(subject.steps) < 3:
        return ""
    before, after = subject.steps[place], subject.steps[place + 1]
    if after - before < 2:
        return ""
    return (
        f"Save more checkpoints between step {before} and step {after}: in between the kernel went "
        f"{percent(of_all)} of its farthest way."
    )


def _held_out(subject: RunSubject) -> str:
    """Measure labels that the kernel has not seen."""
    if subject.track is None or subject.examples_of("held_out"):
        return ""
    return (
        "Track with held_out=(x, y), too: of examples trained on, alignment and leave-one-out say "
        "little about others."
    )


def _margin(subject: RunSubject) -> str:
    """Measure a margin."""
    if Margins.of(subject) is not None or subject.track is None:
        return ""
    return "Track with loss= and descent=, too, to see whether the learning rate is stable."


def _checkpoints(subject: RunSubject) -> str:
    """Track the checkpoints of a run that was only watched."""
    if subject.track is not None:
        return ""
    return (
        "Track the checkpoints of this run (ntkdiag.track): regime, spectra and labels are theirs."
    )


def _stored(subject: RunSubject) -> str:
    """Store kernels."""
    if subject.track is None or subject.run is not None:
        return ""
    return "Track with out=: label power, leave-one-out and examples are of stored kernels."
