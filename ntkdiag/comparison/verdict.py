"""What happened between two checkpoints, along two axes, with the criterion spelled out.

First of all, whether B still tells examples apart: DEAD and COLLAPSED are defined in
`ntkdiag.analysis.degenerate`, and say more than the axes do. The regime says how far the model
linearized at A explains B. The task says whether the kernel became more that of the labels.
"""

import dataclasses
import math

from ntkdiag.analysis.alignment import Alignment
from ntkdiag.judging.regime import Regime, State, Task, odds, regime_of, state, task_of
from ntkdiag.judging.thresholds import (
    ALIGNMENT_GROWTH,
    LAZY_DISTANCE,
    LAZY_E1,
    NONLINEAR_DISTANCE,
    NONLINEAR_E1,
)
from ntkdiag.measuring.measured import Measured
from ntkdiag.scalars import Number

CRITERION = (
    "DEAD if no parameter tells two examples apart, COLLAPSED if the outputs are equal over "
    "examples. Otherwise, regime: "
    f"LAZY if e1 < {LAZY_E1} and S_c < {LAZY_DISTANCE}, the model linearized at A explains B; "
    f"NONLINEAR if e1 >= {NONLINEAR_E1}, or e1 >= {LAZY_E1} and S_c > {NONLINEAR_DISTANCE}; "
    "UNCHANGED if the parameters changed no output beyond rounding; BETWEEN otherwise. Task: the "
    "alignment grew or fell if its odds above chance, (alignment - chance) / (1 - alignment), "
    f"changed by a factor of {ALIGNMENT_GROWTH:g} or more."
)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What happened, along two axes."""

    state: State  # "dead", "collapsed" or "alive": B itself, before all else
    # "lazy", "between" or "nonlinear"; "unchanged" if the parameters changed no output beyond
    # rounding; "unknown" where S_c is undefined and e1 does not decide.
    regime: Regime
    # Whether the alignment with the labels, above chance, "grew", "fell", or stayed the "same";
    # "unknown" without labels, or where it is undefined.
    task: Task
    numbers: str  # the numbers it rests on, in words
    criterion: str = CRITERION  # the rule

    @property
    def name(self) -> str:
        """The first word, in capitals: the state where it is not "alive", else the regime."""
        return (self.regime if self.state == "alive" else self.state).upper()

    @property
    def headline(self) -> str:
        """Both axes in a few words, such as "NONLINEAR, alignment grew"."""
        if self.state != "alive" or self.task == "unknown":
            return self.name
        return f"{self.name}, {self.task_words}"

    @property
    def task_words(self) -> str:
        """The task in words, such as "alignment grew"."""
        if self.task == "unknown":
            return "alignment unknown"
        return "alignment unchanged" if self.task == "same" else f"alignment {self.task}"

    def to_dict(self) -> dict[str, str]:
        """All fields and the name."""
        return {"name": self.name, **vars(self)}


def judge(
    a: Measured,
    b: Measured,
    *,
    e1: float | None,
    distance_centred: float | None,
    alignment_before: Alignment | None,
    spread_before: float,
) -> Verdict:
    """Decide what happened from A to B, by `CRITERION`."""
    # What centring leaves of a constant kernel is rounding, and so is its direction.
    if a.condition.dead or b.condition.dead:
        distance_centred = None
    # What other statistics took away, parameters did not lose.
    state_of_b = state_of(b, spread_before=min(a.condition.spread, spread_before))
    if state_of_b == "alive":
        regime_numbers = _describe_regime(e1, distance_centred)
        task_numbers = _describe_task(a.alignment, alignment_before, b.alignment)
        numbers = f"{regime_numbers} {task_numbers}"
    else:
        numbers = _describe_state(a, b)
    return Verdict(
        state=state_of_b,
        regime=regime_of(e1, distance_centred),
        task=task_of(alignment_before, b.alignment),
        numbers=numbers,
    )


def state_of(b: Measured, *, spread_before: float) -> State:
    """Whether B is dead or collapsed, by the definitions of `ntkdiag.analysis.degenerate`."""
    return state(
        is_dead=b.condition.dead,
        equal=b.condition.equal,
        spread=b.condition.spread,
        spread_before=spread_before,
        at_constant_loss=b.is_at_constant_loss,
    )


def _describe_state(a: Measured, b: Measured) -> str:
    """The numbers of a network that is dead or collapsed."""
    condition = b.condition
    parts = [
        f"Outputs spread {_written(a.condition.spread)} over examples at A, "
        f"{_written(condition.spread)} at B"
    ]
    if b.loss is not None and condition.constant_loss is not None:
        parts.append(
            f"loss {_written(b.loss, 4)}, that of the best constant outputs "
            f"{_written(condition.constant_loss, 4)}"
        )
    if condition.zero_rows == 1:
        parts.append("the kernel is zero")
    else:
        parts.append(f"mean mode {100 * condition.mean_mode_share:.4g} % of the kernel")
    return f"{'; '.join(parts)}."


def _describe_regime(e1: float | None, distance_centred: float | None) -> str:
    """The numbers of the regime."""
    distance = f"S_c = {_written(distance_centred)}"
    if e1 is None:
        return (
            "The parameters of A and B give the same outputs on the probe, or outputs that differ "
            f"by too little to tell it from rounding; {distance}."
        )
    return f"e1 = {e1:.3g}, {distance}."


def _describe_task(
    of_a: Alignment | None, before: Alignment | None, after: Alignment | None
) -> str:
    """The alignment before and after with its chance level, and the growth of its odds."""
    if before is None or after is None:
        return "Alignment unknown without labels."
    values = f"{_written(before.value)} to {_written(after.value)}"
    chances = f"{_written(before.chance)} and {_written(after.chance)}"
    where = "" if before is of_a else ", fixed arrays of B"
    text = f"Alignment ({after.reduction} kernel{where}) {values}, by chance {chances}"
    # Over nothing, or to 1, a ratio says nothing.
    if odds(before) > 0 and math.isfinite(odds(after)):
        text += f", odds above chance × {odds(after) / odds(before):.3g}"
    return f"{text}."


def _written(value: Number | None, digits: int = 3) -> str:
    """Some digits; a number that is not finite is undefined, as for a kernel of zero."""
    if value is None or not math.isfinite(value):
        return "undefined"
    return f"{float(value):.{digits}g}"
