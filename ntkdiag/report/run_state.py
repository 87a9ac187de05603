"""Whether the network of a run still tells examples apart, in the words of `compare`."""

import numpy as np

from ntkdiag.analysis.degenerate import AT_CONSTANT_LOSS
from ntkdiag.judging.regime import State, state
from ntkdiag.report.run_subject import RunSubject


def states_of(subject: RunSubject) -> list[State]:
    """Of every checkpoint "alive", "dead" or "collapsed"; none where that was not measured."""
    dead = subject.series("dead")
    equal = subject.series("equal_outputs")
    spread = subject.series("output_spread")
    if dead is None or equal is None or spread is None:
        return []
    is_at_constant_loss = _are_at_constant_loss(subject)
    return [
        state(
            is_dead=bool(dead[place] == 1),
            equal=bool(equal[place] == 1),
            spread=float(spread[place]),
            spread_before=float(spread[0]),
            at_constant_loss=bool(is_at_constant_loss[place]),
        )
        for place in range(len(dead))
    ]


def sentence_of_state(subject: RunSubject) -> str:
    """What to know before all else of a network that is dead or has collapsed; "" otherwise."""
    states = states_of(subject)
    if not states or states[-1] == "alive":
        return ""
    # From which checkpoint on it has been so.
    place = len(states) - 1
    while place > 0 and states[place - 1] == states[-1]:
        place -= 1
    step = subject.steps[place]
    if states[-1] == "dead":
        return f"The network is dead from step {step} on: no parameter tells two examples apart"
    return (
        f"The network has collapsed from step {step} on: its outputs are the same for every "
        "example, or as good as"
    )


def _are_at_constant_loss(subject: RunSubject) -> np.ndarray:
    """Of every checkpoint whether its loss is that of the best constant outputs, or above."""
    loss, constant = subject.series("loss"), subject.series("constant_loss")
    if loss is None or constant is None:
        return np.zeros(len(subject.steps), bool)
    return loss >= AT_CONSTANT_LOSS * constant  # not of NaN
